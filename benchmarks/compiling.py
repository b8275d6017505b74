"""What compiling each kernel costs: `python -m benchmarks.compiling` measures it and fills in docs/performance.md.

The calls below take every family of kernels once, in a process with an empty cache. A kernel's time is the processor's,
not the clock's; what numba compiles once per process (`np.empty`, `min`, views) falls on the kernel that comes first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fpsim as fp

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- compiling: begin -->", "<!-- compiling: end -->"


class Compiled(NamedTuple):
    """A kernel that was compiled: the call that took it, its name, CPU seconds, functions compiled with it."""

    call: str
    kernel: str
    seconds: float
    functions: int


def calls() -> dict[str, Any]:
    """What a user may call first, by family."""
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    half = x.astype(np.float16)
    large = np.ones(1 << 22, np.float32)

    def e4m3() -> Any:
        return fp.cast(x, "e4m3")

    def bf16() -> Any:
        return fp.cast(x, "bf16")

    unit = "hopper_e4m3_f32"
    return {
        "encode": lambda: fp.encode(x, "e4m3"),
        "encode, up": lambda: fp.encode(x, "e4m3", rounding="up"),
        "encode, stochastic": lambda: fp.encode(x, "e4m3", rounding="stochastic", seed=1),
        "encode, large": lambda: fp.encode(large, "e4m3"),
        "decode": lambda: fp.decode(fp.encode(x, "e4m3"), "e4m3"),
        "quantize": lambda: fp.quantize(x, "e4m3"),
        "add, 8 bits": lambda: fp.add(e4m3(), e4m3()),
        "add, 16 bits": lambda: fp.add(half, half),
        "add, up": lambda: fp.add(half, half, rounding="up"),
        "add, flags": lambda: fp.add(half, half, rounding="stochastic", seed=1, flags=True),
        "divide, BF16": lambda: fp.divide(bf16(), bf16()),
        "fma": lambda: fp.fma(half, half, half),
        "less": lambda: fp.less(half, half),
        "convert": lambda: fp.convert(half, "e4m3"),
        "encode_scaled, tiles": lambda: fp.encode_scaled(x, "e4m3", fp.scalings.TILE_1X128),
        "encode_scaled, NVFP4": lambda: fp.encode_scaled(x, "e2m1", fp.scalings.NVFP4),
        "encode_scaled, INT8": lambda: fp.encode_scaled(x, "int8", fp.scalings.ROW),
        "quantize_scaled, tiles": lambda: fp.quantize_scaled(x, "e4m3", fp.scalings.TILE_1X128),
        "Scaled.decode": lambda: fp.encode_scaled(x, "e4m3", fp.scalings.TILE_1X128).decode(),
        "sum, pairwise": lambda: fp.sum(x, accumulate=fp.Pairwise("fp32")),
        "sum, exact": lambda: fp.sum(x, accumulate=fp.Exact("fp16")),
        "matmul, sequential": lambda: fp.matmul(half, half.T, accumulate=fp.Sequential("fp16")),
        "dot_add, Hopper": lambda: fp.dot_add(e4m3()[:, :32], e4m3()[:, :32], None, unit),
        "dot_add, CDNA3": lambda: fp.dot_add(half[:, :16], half[:, :16], None, "cdna3_f16_f32"),
        "matmul, Hopper FP8": lambda: fp.matmul(e4m3(), e4m3().T, accumulate=unit),
        "matmul, promoted": lambda: fp.matmul(e4m3(), e4m3().T, accumulate=unit, promote=128),
        "matmul, Hopper FP16": lambda: fp.matmul(half, half.T, accumulate="hopper_f16_f32"),
        "matmul, Ampere FP16": lambda: fp.matmul(half, half.T, accumulate="ampere_f16_f32"),
    }


def measure(only: str = "") -> list[Compiled]:
    """Compile everything in this process, whose cache must be empty, and time it."""
    from numba.core import event

    from fpsim.runtime.compile import KERNELS

    found: list[Compiled] = []
    open_ones: list[tuple[Any, float, int]] = []
    count = 0

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, one: Any) -> None:
            nonlocal count
            count += 1
            open_ones.append((one.data["dispatcher"], time.process_time(), count))

        def on_end(self, one: Any) -> None:
            dispatcher, began, before = open_ones.pop()
            if any(dispatcher is each for each in KERNELS):
                code = dispatcher.py_func
                name = f"{code.__module__.removeprefix('fpsim.')}.{code.__qualname__.partition('.<locals>')[0]}"
                seconds = time.process_time() - began
                found.append(Compiled(call, name, seconds, count - before))

    with event.install_listener("numba:compile", Listener()):
        for call, run in calls().items():  # the listener reads `call`
            if only in call:
                run()
    return found


def table(found: list[Compiled], machine: str) -> str:
    """The kernels as a table, the slowest first, with their sum."""
    lines = [
        f"{sum(each.seconds for each in found):.0f} CPU seconds for {len(found)} kernels; {machine}.", "",
        "| kernel | taken first by | CPU s | functions compiled with it |", "|---|---|---|---|",
    ]  # fmt: skip
    for each in sorted(found, key=lambda one: -one.seconds):
        lines.append(f"| `{each.kernel}` | {each.call} | {each.seconds:.1f} | {each.functions} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure in a process of its own, print the table, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="calls whose name contains this; the page is left as it is")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure(options.only)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.compiling", "--here", "--only", options.only]
        environment = {**os.environ, "FPSIM_CACHE_DIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    from benchmarks.machine import describe

    machine = describe()
    text = table([Compiled(*each) for each in json.loads(done.stdout)], f"{machine['processor']}, {machine['date']}")
    print(text)
    if not options.only:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
