"""Limits of one core: bandwidths, and rates of loops whose instructions are counted in their own assembly.

Each loop is written in LLVM's intermediate language: twelve independent chains of operations on registers, compiled
without optimisation, so that nothing is left out. `check` reads the assembly and refuses other instructions.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from benchmarks.counting.assembly import LANES, inner_loops
from fpsim.runtime.compile import kernel
from fpsim.runtime.stream import BLOCK, element_loop, prefetch_block
from fpsim.runtime.target import target_machine
from fpsim.runtime.vectors import call

CHAINS, DEPTH = 12, 4  # 12 registers and two operands fit AVX2's sixteen; a chain waits at most 5 cycles for itself
TURNS = 25  # short ones, of which the best counts: other work on the machine can only slow them
ITERATIONS = 200_000
BYTES = 1 << 26  # beyond the caches that one core can use alone; an array more than that for a copy
UNITS = {
    "read": "bytes/s",
    "copy": "bytes/s, read and written",
    "float": "float32 fused multiply-adds/s",
    "integer": "32-bit integer additions/s",
    "multiply": "products of 32 by 32 bits with all 64 bits/s",
    "scalar": "64-bit scalar additions/s",
}
MNEMONICS = {"float": r"vfm\w+ps", "integer": "vpaddd", "multiply": "vpmuludq", "scalar": r"addq|leaq"}
EXPECTED = CHAINS * DEPTH


class CompiledLoop(NamedTuple):
    """A compiled loop.

    run: function that runs the loop for a number of turns. operations: number of operations in one turn, in all
    lanes.
    """

    run: Callable[[int], object]
    operations: int
    assembly: str


def machine() -> llvm.TargetMachine:
    """Return LLVM's description of the processor to compile for (that of NUMBA_CPU_NAME, if set)."""
    return target_machine()


@cache
def lanes() -> int:
    """Return the 32-bit lanes of the widest vectors that the compiler uses: 16 with AVX-512, 8 with AVX2, else 4."""
    module, widest = ir.Module("limit_width"), ir.VectorType(ir.IntType(32), max(LANES.values()))
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [widest.as_pointer()]), "limit")
    builder = ir.IRBuilder(function.append_basic_block())
    value = builder.load(function.args[0])  # compilers split what is too wide, but not in what `_opaque` writes
    builder.store(builder.add(value, value), function.args[0])
    builder.ret_void()
    assembly = machine().emit_assembly(llvm.parse_assembly(str(module)))
    return max((width for letter, width in LANES.items() if f"%{letter}mm" in assembly), default=4)


@cache
def loop(kind: str) -> CompiledLoop:
    """Compile the loop of "float", "integer", "multiply" or "scalar" operations, for the widest vectors.

    Raises: RuntimeError if its assembly has another number of these instructions than were written.
    """
    width = lanes()
    module = ir.Module(f"limit_{kind}")
    module.triple = llvm.get_default_triple()
    of: dict[str, ir.Type] = {
        "float": ir.VectorType(ir.FloatType(), width),
        "integer": ir.VectorType(ir.IntType(32), width),
        "multiply": ir.VectorType(ir.IntType(64), width // 2),
        "scalar": ir.IntType(64),
    }
    _write(module, kind, of[kind])
    parsed = llvm.parse_assembly(str(module))
    target = machine()
    assembly = target.emit_assembly(parsed)
    check(kind, assembly)
    engine = llvm.create_mcjit_compiler(parsed, target)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("limit"))
    room = np.zeros(64, np.float32)
    per_operation = {"float": width, "integer": width, "multiply": width // 2, "scalar": 1}[kind]

    def run(turns: int, _engine: object = engine) -> None:
        function(turns, room.ctypes.data)

    return CompiledLoop(run, EXPECTED * per_operation, assembly)


def _write(module: ir.Module, kind: str, of: ir.Type) -> None:
    """Write `void limit(int64 turns, vector *room)`, whose chains begin with the values in `room`."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64), of.as_pointer()]), "limit")
    turns, room = function.args
    entry, body, leave = (function.append_basic_block(name) for name in ("entry", "body", "leave"))
    builder = ir.IRBuilder(entry)
    first, second = (builder.load(room, align=4) for _ in range(2))
    first, second = _opaque(builder, first, of), _opaque(builder, second, of)
    starts = [_opaque(builder, builder.load(room, align=4), of) for _ in range(CHAINS)]
    builder.branch(body)
    builder.position_at_end(body)
    count = builder.phi(turns.type)
    count.add_incoming(turns, entry)
    chains = [builder.phi(of) for _ in range(CHAINS)]
    values = list(chains)
    for step in range(DEPTH):
        other = second if step % 2 else first
        values = [_opaque(builder, _operation(builder, kind, value, other), of) for value in values]
    for chain, start, value in zip(chains, starts, values, strict=True):
        chain.add_incoming(start, entry)
        chain.add_incoming(value, body)
    less = builder.sub(count, count.type(1))
    count.add_incoming(less, body)
    builder.cbranch(builder.icmp_signed(">", less, less.type(0)), body, leave)
    builder.position_at_end(leave)
    for value in values:
        _keep(builder, value, of)
    builder.ret_void()


def _opaque(builder: ir.IRBuilder, value: ir.Value, of: ir.Type) -> ir.Value:
    """Return the value through an empty assembly instruction, so that the compiler can't merge equal chains."""
    letter = "r" if isinstance(of, ir.IntType) else "v"
    return builder.asm(ir.FunctionType(of, [of]), "", f"={letter},0", [value], side_effect=True)


def _keep(builder: ir.IRBuilder, value: ir.Value, of: ir.Type) -> None:
    letter = "r" if isinstance(of, ir.IntType) else "v"
    builder.asm(ir.FunctionType(ir.VoidType(), [of]), "", letter, [value], side_effect=True)


def _operation(builder: ir.IRBuilder, kind: str, value: ir.Value, other: ir.Value) -> ir.Value:
    if kind == "float":
        name = f"llvm.fma.v{value.type.count}f32"
        return call(builder, name, value.type, value, other, other)
    if kind == "multiply":
        low = value.type([(1 << 32) - 1] * value.type.count)
        return builder.mul(builder.and_(value, low), builder.and_(other, low))
    return builder.add(value, other)


def check(kind: str, assembly: str) -> None:
    """Raise RuntimeError unless the assembly has exactly one loop, with the instructions that were written."""
    counts = [one.count(MNEMONICS[kind]) for one in inner_loops(assembly)]
    others = [one.instructions - count for one, count in zip(inner_loops(assembly), counts, strict=True)]
    if counts != [EXPECTED] or others[0] > 4:
        raise RuntimeError(
            f"the loop that measures the rate {kind!r} must have {EXPECTED} instructions {MNEMONICS[kind]} and at "
            f"most 4 others; it compiled to {counts} and {others}. Look at limits.loop on this processor."
        )


def rate(kind: str) -> float:
    """Return the operations of all lanes a second, the best of several turns."""
    one = loop(kind)
    one.run(ITERATIONS)
    return one.operations * ITERATIONS / _best(lambda: one.run(ITERATIONS))


def _same(word: Any, _facts: Any) -> Any:
    return word


_stream = element_loop(_same, streamed=True)


@kernel
def copy(source: Any, target: Any) -> None:
    """Copy an array of 32-bit words to `target` by stores that bypass the caches, so that it isn't read."""
    _stream(source, target, 0)


@kernel
def total(words: Any) -> Any:
    """Return the exclusive or of the whole blocks of 128 in an array of 64-bit words, reading each word once."""
    result = np.uint64(0)
    for start in range(0, words.size - BLOCK + 1, BLOCK):
        prefetch_block(words, start)
        for i in range(BLOCK):
            result ^= words[np.uint64(start + i)]  # from the beginning alone, or AVX2 gathers words one by one
    return result


def bandwidths() -> dict[str, float]:
    """Return bytes a second of memory beyond the caches: read, and copied (bytes read plus bytes written)."""
    source = np.ones(BYTES // 4, np.uint32)
    target = np.zeros_like(source)
    copied = min(_best(lambda: np.copyto(target, source)), _best(lambda: copy(source, target)))
    return {"read": BYTES / _best(lambda: total(source.view(np.uint64))), "copy": 2 * BYTES / copied}


def _best(work: Callable[[], object]) -> float:
    work()
    taken = []
    for _ in range(TURNS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def measure() -> dict[str, float]:
    """Measure every limit of this core, in the units of `UNITS`."""
    return bandwidths() | {kind: rate(kind) for kind in MNEMONICS}


def best(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    """Return the higher of two measurements of each limit, since other work can only lower them."""
    return {name: max(value, last.get(name, 0.0)) for name, value in first.items()}


def drift(first: dict[str, float], last: dict[str, float]) -> float:
    """Return the largest relative difference between two measurements of a limit, caused by other work."""
    return max((abs(first[name] / last[name] - 1) for name in first if name in last), default=0.0)
