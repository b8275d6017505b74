"""Instructions for an element in the hot loops of compiled kernels, counted in their assembly.

`python -m benchmarks.counting.instructions` compiles the kernels below for this processor, counts, writes the counts
into instructions.json beside this file under the name of the processor, and the table into docs/performance.md.
`make bench` finds them there, and compares each row with the limits that it measures. `--show NAME` prints the loops.

The hot loop of a kernel is the innermost one that does most of what `per` counts: it takes part of every element, and
the rest of the kernel (the ends of arrays, tiles that are searched again) is run far less often and left out, so that a
bound is never too high. A vector instruction counts once per 32-bit lane; loads, stores and moves count as bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np

import fpsim as fp
from benchmarks.counting.assembly import KINDS, AssemblyLoop, inner_loops
from benchmarks.counting.bounds import COUNTS, NAMES, bound
from benchmarks.limits import best, lanes, measure
from benchmarks.machine import describe
from benchmarks.race import one_core
from fpsim.runtime.compile import KERNELS
from fpsim.runtime.vectors import has_avx512

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- instructions: begin -->", "<!-- instructions: end -->"
LARGE = 1 << 23  # elements, so that results of one byte go around the caches


class HotLoop(NamedTuple):
    """A rule that finds the hot loop of a kernel, and counts the elements that one turn of the loop computes.

    per: bytes that the loop stores for an element; or a mnemonic and how many elements a 32-bit lane of it stands for.
    has, lacks: a mnemonic that the loop must or must not contain; "" for none.
    shortest: True to take the loop with the fewest operations per element, if loops with more are for rare operands.
    """

    kernel: str
    per: int | tuple[str, float]
    has: str = ""
    lacks: str = ""
    shortest: bool = False


class CountedWork(NamedTuple):
    """The work of some rows: a call, its hot loops, and the bytes of an element read from memory and written to it."""

    call: Callable[[], object]
    parts: tuple[HotLoop, ...]
    read: float
    written: float
    rows: tuple[str, ...]  # patterns of names


def elements(loop: AssemblyLoop, part: HotLoop) -> float:
    """Return the number of elements that one turn of a loop computes; 0 if it doesn't match `part`, or only copies."""
    if (part.has and not loop.count(part.has)) or (part.lacks and loop.count(part.lacks)):
        return 0
    if not isinstance(part.per, int):
        return loop.lanes(part.per[0]) * part.per[1]
    made = loop.stored() / part.per
    return made if made <= loop.operations()["integer"] else 0


def hot(loops: list[AssemblyLoop], part: HotLoop) -> AssemblyLoop:
    """Return the loop that computes most elements in a turn, of equal ones by most operations, fewest instructions.

    With `part.shortest`, return the loop with fewest operations an element, of those that compute half as many or more.

    Raises: LookupError if no loop computes elements.
    """
    candidates = [loop for loop in loops if elements(loop, part)]
    if not candidates:
        raise LookupError(f"none of the {len(loops)} loops of {part.kernel} has what is counted; see --show")
    if part.shortest:
        most = max(elements(loop, part) for loop in candidates)
        wide = [loop for loop in candidates if 2 * elements(loop, part) >= most]
        return min(wide, key=lambda loop: sum(loop.operations().values()) / elements(loop, part))
    return max(candidates, key=lambda loop: (elements(loop, part), sum(loop.operations().values()), -loop.instructions))


def cost(loops: list[AssemblyLoop], part: HotLoop) -> dict[str, float]:
    """Return kind of operation -> number of such operations per element in the hot loop."""
    loop = hot(loops, part)
    return {kind: round(count / elements(loop, part), 3) for kind, count in loop.operations().items()}


def works() -> dict[str, CountedWork]:
    """Return the counted works by name: calls, their hot loops, and the rows that do this work."""
    x = np.random.default_rng(0).standard_normal(LARGE, np.float32)
    codes, twos = np.empty(x.size, np.uint8), np.empty(x.size, np.uint16)
    square, side = x.reshape(-1, 2048), x[: 256 * 256].reshape(256, 256)
    encode, stochastic = "casts.loops encode_kernel", "casts.loops stochastic_kernel"
    nearest = "arithmetic.kernels.nearest"

    def cast(fmt: str, **words: Any) -> Callable[[], object]:
        return lambda: fp.encode(x, fmt, **words)

    def on_codes(name: str, fmt: str) -> Callable[[], object]:
        count = 3 if name == "fma" else 2
        return lambda: getattr(fp, name)(*[fp.encode(x, fmt)] * count, fmt=fmt)

    def scaled(scaling: fp.Scaling) -> Callable[[], object]:
        return lambda: fp.encode_scaled(square, fp.E4M3, scaling)

    def product(unit: Any, fmt: Any) -> Callable[[], object]:
        return lambda: fp.matmul(fp.cast(side, fmt), fp.cast(side, fmt), accumulate=unit)

    decoded = (HotLoop("casts.loops decode_kernel", 4),)
    tiles = HotLoop("scaling.kernels.tiles quantize_strips", 1, r"vpmovu?s?db|vpackuswb", "vpmuludq")
    fused = (HotLoop("products.kernels.fused_product", ("vcvttps2dq", 1.0)),)
    # two fused multiply-adds for a product, of which one adds zero
    chains = (HotLoop("products.kernels.fused_product", (r"vfmadd\d+ps", 0.5)),) if has_avx512() else fused
    rows = (HotLoop("sums.kernels.float32_rows rows_kernel", 2, "vaddps", "vpmaxud"),)  # two steps to a sum stored
    clamped = (HotLoop("sums.kernels.float32_rows rows_kernel", ("vmaxps", 1.0)),)  # one addend for a product
    result = {
        "encode E4M3": CountedWork(cast("e4m3"), (HotLoop(encode, 1),), 4, 1, ("encode E4M3",)),
        "encode E5M2": CountedWork(cast("e5m2"), (HotLoop(encode, 1),), 4, 1, ("encode E5M2",)),
        "encode BF16": CountedWork(cast("bf16"), (HotLoop(encode, 2),), 4, 2, ("encode BF16",)),
        "encode FP16": CountedWork(cast("fp16"), (HotLoop("casts.half half_kernel", 2),), 4, 2, ("encode FP16",)),
        "encode E4M3, stochastic": CountedWork(
            cast("e4m3", rounding="stochastic", seed=1),
            (HotLoop(stochastic, 4, "vpmuludq"), HotLoop(stochastic, 1, lacks="vpmuludq")),
            4, 1, ("encode E4M3, stochastic",),
        ),
        "decode E4M3": CountedWork(lambda: fp.decode(codes, "e4m3"), decoded, 1, 4, ("decode E4M3",)),
        "decode FP16": CountedWork(
            lambda: fp.decode(twos, "fp16"), (HotLoop("casts.half half_decode_kernel", 4),), 2, 4, ("decode FP16",)
        ),
        "decode BF16": CountedWork(lambda: fp.decode(twos, "bf16"), decoded, 2, 4, ("decode BF16",)),
        "quantize E4M3": CountedWork(
            lambda: fp.quantize(x, "e4m3"), (HotLoop("casts.loops quantize_kernel", 4),), 4, 4,
            ("quantize E4M3",),
        ),
        "scales per 1x128": CountedWork(
            scaled(fp.scalings.TILE_1X128), (tiles,), 4, 1 + 4 / 128, ("E4M3 TILE_1X128, codes*",)
        ),
        "scales per 128x128": CountedWork(
            scaled(fp.scalings.BLOCK_128X128), (tiles,), 4, 1, ("E4M3 BLOCK_128X128, codes*",)
        ),
        "Hopper FP8 product": CountedWork(product("hopper_e4m3_f32", "e4m3"), chains, 0, 0, ("hopper_e4m3_f32*",)),
        "Hopper FP16 product": CountedWork(product("hopper_f16_f32", "fp16"), fused, 0, 0, ("hopper_f16_f32*",)),
        "Hopper BF16 product": CountedWork(product("hopper_bf16_f32", "bf16"), fused, 0, 0, ("hopper_bf16_f32*",)),
        "Ampere FP16 product": CountedWork(product("ampere_f16_f32", "fp16"), fused, 0, 0, ("ampere_f16_f32*",)),
        "Sequential FP32": CountedWork(product(fp.Sequential(fp.FP32), "bf16"), rows, 0, 0, ("Sequential FP32*",)),
        "Sequential BF16": CountedWork(product(fp.Sequential(fp.BF16), "bf16"), rows, 0, 0, ("Sequential BF16*",)),
        "Sequential FP16": CountedWork(product(fp.Sequential(fp.FP16), "fp16"), clamped, 0, 0, ("Sequential FP16*",)),
    }  # fmt: skip
    for mode in ("nearest_away", "toward_zero", "up", "down", "odd"):
        name = f"encode E4M3, {mode}"
        result[name] = CountedWork(cast("e4m3", rounding=mode), (HotLoop(encode, 1),), 4, 1, (name,))
    for fmt in ("FP16", "BF16"):
        for operation in ("add", "multiply", "divide", "sqrt", "fma"):
            name, count = f"{operation} {fmt}", {"fma": 3, "sqrt": 1}.get(operation, 2)
            call = on_codes(operation, fmt) if operation != "sqrt" else partial(fp.sqrt, twos, fmt=fmt)
            scales = fmt == "BF16" and operation in ("multiply", "divide")  # blocks with subnormal results
            result[name] = CountedWork(call, (HotLoop(nearest, 2, shortest=scales),), 2 * count, 2, (name,))
    return result


def target() -> str:
    """Return the processor that kernels are compiled for, with the width of its vectors: the key of its counts."""
    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    return f"{name}, {32 * lanes()} bits"


def count(only: str = "", show: bool = False) -> dict[str, Any]:
    """Compile the kernels in this process, whose cache must be empty, and count their instructions."""
    result: dict[str, Any] = {}
    known: set[tuple[int, Any]] = set()
    seen: dict[str, list[AssemblyLoop]] = {}  # a work may have the loops of one before it
    for name, work in works().items():
        work.call()
        fresh = [
            (kernel, types) for kernel in KERNELS for types in kernel.signatures if (id(kernel), types) not in known
        ]
        known |= {(id(kernel), types) for kernel, types in fresh}
        loops = {_name(kernel): inner_loops(kernel.inspect_asm(types)) for kernel, types in fresh}
        seen |= loops
        if only not in name:
            continue
        if show:
            _print(name, loops)
        result[name] = _entry(work, loops, seen)
    return result


def _name(kernel: Any) -> str:
    code = kernel.py_func
    return f"{code.__module__.removeprefix('fpsim.')} {code.__qualname__}"


def _entry(
    work: CountedWork, loops: dict[str, list[AssemblyLoop]], seen: dict[str, list[AssemblyLoop]]
) -> dict[str, Any]:
    total = dict.fromkeys(KINDS, 0.0)
    for part in work.parts:
        for kind, operations in cost(_of(loops, part) or _of(seen, part), part).items():
            total[kind] += operations
    rounded = {kind: round(operations, 3) for kind, operations in total.items()}
    kernels = sorted({part.kernel for part in work.parts})
    return {"kernels": kernels, "read": work.read, "written": work.written, "operations": rounded, "rows": work.rows}


def _of(loops: dict[str, list[AssemblyLoop]], part: HotLoop) -> list[AssemblyLoop]:
    return [loop for name, inner in loops.items() if name.startswith(part.kernel) for loop in inner]


def _print(name: str, loops: dict[str, list[AssemblyLoop]]) -> None:
    for kernel, inner in loops.items():
        for loop in inner:
            print(f"{name}: {kernel}: {loop.operations()}, stores {loop.stored()} bytes", file=sys.stderr)


def table(counts: dict[str, dict[str, Any]]) -> str:
    """Format the counts as a table for each processor."""
    lines: list[str] = []
    for compiled_for, one_processor in counts.items():
        limits, works = one_processor["limits"], one_processor["works"]
        memory = " and ".join(f"{name} {limits[name] / 1e9:.1f}" for name in ("read", "copy"))
        rates = ", ".join(f"{limits[kind] / 1e9:.1f} {NAMES[kind]}" for kind in limits if kind not in ("read", "copy"))
        lines += [
            f"A core of an {one_processor['processor']} had these limits on {one_processor['date']}: {memory} GB/s; "
            f"in billions per second, {rates}.", "",
            "This table has the bytes and operations that a row needs for each element (products: for each "
            f"multiply-add), in code for {compiled_for.replace(', ', ' with vectors of ')}. The last column names the "
            "limit that allows the lowest rate:", "",
            "| work | bytes read, written | vector operations | of them float products | of them integer products | "
            "scalar operations | slowest limit |",
            "|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for name, work in works.items():
            numbers = " | ".join(f"{work['operations'][kind]:.4g}" for kind in KINDS)
            name_of_bound = NAMES[bound(work, limits).name]
            lines.append(f"| {name} | {work['read']:g}, {work['written']:.3g} | {numbers} | {name_of_bound} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def main(arguments: list[str] | None = None) -> int:
    """Count in a new process, print the table, and write the counts and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="count the works whose name contains this, and write nothing")
    parser.add_argument("--show", default="", help="the same, and print every loop of their kernels")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(count(options.show or options.only, bool(options.show))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.counting.instructions", "--here"]
        command += ["--only", options.only, "--show", options.show]
        environment = {**os.environ, "FPSIM_CACHE_DIR": folder, "FPSIM_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    machine = describe()
    with one_core():
        limits = best(measure(), measure())
    counted = {
        "processor": machine["processor"], "date": machine["date"], "limits": limits, "works": json.loads(done.stdout),
    }  # fmt: skip
    print(table({target(): counted}))
    if not (options.only or options.show):
        counts = (json.loads(COUNTS.read_text()) if COUNTS.exists() else {}) | {target(): counted}
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{table(counts)}\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
