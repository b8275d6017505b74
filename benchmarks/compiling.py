"""Time to compile each kernel: `python -m benchmarks.compiling` measures it and writes it into docs/performance.md.

The calls below use every family of kernels once, in a process with an empty cache. Times are processor time. What numba
compiles once per process (`np.empty`, `min`, views) counts for the kernel that needs it first.
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
    """A compiled kernel: the call that needed it, its name, CPU seconds, and number of functions compiled with it."""

    call: str
    kernel: str
    seconds: float
    functions: int


def calls() -> dict[str, Any]:
    """Return calls that a user may make first, by name; together they use every family of kernels."""
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
    """Time each compilation by the calls whose name contains `only`; the cache of this process must be empty."""
    from numba.core import event

    from fpsim.runtime.compile import KERNELS

    compiled: list[Compiled] = []
    open_ones: list[tuple[Any, float, int]] = []
    count = 0

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, one: Any) -> None:
            nonlocal count
            count += 1
            open_ones.append((one.data["dispatcher"], time.process_time(), count))

        def on_end(self, one: Any) -> None:
            dispatcher, began, before = open_ones.pop()
            if any(dispatcher is kernel for kernel in KERNELS):
                code = dispatcher.py_func
                name = f"{code.__module__.removeprefix('fpsim.')}.{code.__qualname__.partition('.<locals>')[0]}"
                seconds = time.process_time() - began
                compiled.append(Compiled(call, name, seconds, count - before))

    with event.install_listener("numba:compile", Listener()):
        for call, run in calls().items():  # the listener reads `call`
            if only in call:
                run()
    return compiled


def table(compiled: list[Compiled], machine: str) -> str:
    """Format the kernels as a table, the slowest first, below their total."""
    seconds = sum(row.seconds for row in compiled)
    lines = [
        f"Compiling all {len(compiled)} kernels of the table took {seconds:.0f} CPU seconds ({machine}).", "",
        "| kernel | first call that needs it | CPU seconds | functions compiled with it |", "|---|---|---|---|",
    ]  # fmt: skip
    for row in sorted(compiled, key=lambda row: -row.seconds):
        lines.append(f"| `{row.kernel}` | {row.call} | {row.seconds:.1f} | {row.functions} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure in a new process, print the table, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="run the calls whose name contains this, and leave the page unchanged"
    )
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
    text = table([Compiled(*row) for row in json.loads(done.stdout)], f"{machine['processor']}, {machine['date']}")
    print(text)
    if not options.only:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
