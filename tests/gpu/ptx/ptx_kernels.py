"""Kernels of fpsim.gpu with the types of their arguments, compiled to PTX for sm_90 where no GPU is.

Run as `python -m tests.gpu.ptx.ptx_kernels MODULE`, in its own process: it prints {name: PTX} of one module as JSON.
A kernel that is to be looked at is added to the function of its module; a module, as a function in MODULES.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from numba import types

u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64
i32, i64, f32, f64 = types.int32, types.int64, types.float32, types.float64
WORDS = {8: u8, 16: u16, 32: u32, 64: u64}


class Kernel(NamedTuple):
    """A kernel before it is compiled."""

    name: str
    function: Any  # what fpsim.gpu.launch.gpu_kernel gives
    signature: tuple[Any, ...]  # the numba types of its arguments


def arrays(*kinds: Any) -> tuple[Any, ...]:
    """Return the types of contiguous arrays of one axis."""
    return tuple(kind[::1] for kind in kinds)


def cast_of(name: str, *way: Any, **fields: Any) -> Kernel:
    """Return a kernel of gpu/casts/kernels.py."""
    from fpsim.gpu.casts import kernels as module

    chosen = module.CastWay(*way, **fields)
    count, layout = chosen.groups.length, u32 if chosen.width == 32 else u64
    plain, grouped = ([WORDS[bits * times] for bits in chosen[:2]] for times in (1, count))
    return Kernel(name, module.cast_kernel(chosen), (*arrays(*plain, *grouped, layout, layout, layout), u64, u64))


def casts(by_floats: bool) -> Iterator[Kernel]:
    """Casts of float32 to named formats and back, whose layouts are constants; rounded by float32 addition, or not."""
    from fpsim.core.layouts import decode_plan, encode_plan
    from fpsim.formats.named import BF16, E4M3, E4M3FNUZ, E8M0, FP16
    from fpsim.formats.rounding import Rounding

    for fmt in (E4M3, E4M3FNUZ, E8M0, FP16, BF16):
        back, bits = decode_plan(fmt, 32), 8 * fmt.storage.itemsize
        if back and not by_floats:
            yield cast_of(f"decode {fmt}", bits, 32, 32, reads=True, of_source=back.frozen)
        for mode in (Rounding.NEAREST_EVEN, Rounding.DOWN, Rounding.STOCHASTIC):
            plan = encode_plan(fmt, 32, mode, "nonfinite", "keep", 32)
            to = {"rounds": True, "mode": int(mode), "kind": plan.kind, "to_code": plan.frozen}
            if by_floats != (mode == Rounding.NEAREST_EVEN and fmt not in (E8M0, BF16)):
                continue
            yield cast_of(f"encode {fmt} {mode}", 32, bits, 32, **to)
            if by_floats and back:
                yield cast_of(f"quantize {fmt}", 32, 32, 32, gives=True, of_result=back.frozen, **to)


def cast() -> Iterator[Kernel]:
    """gpu/casts/kernels.py: every mode, both widths of the source, and named formats."""
    from fpsim.formats.rounding import Rounding
    from fpsim.gpu.casts import kernels as module
    from fpsim.gpu.device import copies

    yield cast_of("decode 32", 8, 32, 32, reads=True)
    yield cast_of("decode 64", 32, 64, 64, reads=True)
    for mode in Rounding:
        yield cast_of(f"encode 32 {mode}", 32, 8, 32, rounds=True, mode=int(mode), kind=2)
    for mode in (Rounding.NEAREST_EVEN, Rounding.STOCHASTIC):  # the others are the same words with another constant
        yield cast_of(f"encode 64 {mode}", 64, 8, 64, rounds=True, mode=int(mode), kind=2)
    yield cast_of("encode widened", 16, 8, 32, reads=True, rounds=True)
    yield cast_of("quantize", 32, 32, 32, rounds=True, gives=True, kind=1)
    yield from casts(by_floats=False)
    yield Kernel("look up", module.look_up_kernel(), arrays(u8, u32, u32))
    yield Kernel("outside", module.outside_kernel(), (*arrays(u8), u8, *arrays(u64)))
    yield Kernel("range", module.range_kernel(), (*arrays(u8), i64, i64, *arrays(u8)))
    yield Kernel("gather", copies.gather_kernel(), (*arrays(u8, u8), i64, *arrays(i64, i64)))


def float_cast() -> Iterator[Kernel]:
    """gpu/casts/kernels.py where it rounds by an addition of float32."""
    return casts(by_floats=True)


def arithmetic() -> Iterator[Kernel]:
    """gpu/arithmetic/exact_kernels.py: every operation."""
    from fpsim.core.operations import BINARY, COMPARISONS, UNARY
    from fpsim.gpu.arithmetic import exact_kernels as module
    from fpsim.gpu.arithmetic.elementary_kernels import tabulated_kernel

    seed = types.UniTuple(u64, 2)
    rounding = (*arrays(u8, u8, u8), types.UniTuple(i64, 3), *arrays(u8, u8), u64[:, ::1], u64, seed)
    for name in (*UNARY, *BINARY, "fma"):
        yield Kernel(name, module.rounding_kernel(name, 0), rounding)
    comparison = (*arrays(u8, u8), i64, i64, *arrays(u8, u8, u64, u64))
    for name in COMPARISONS:
        yield Kernel(name, module.comparison_kernel(name), comparison)
    for name in ("negative", "absolute", "classify"):
        yield Kernel(name, module.sign_kernel(name), arrays(u8, u8, u64, u64))
    tabulated = (*arrays(u16, u16, u8, u64, u16, u8, u64), u64, seed)
    for mode in (0, 6):
        yield Kernel(f"elementary {mode}", tabulated_kernel(mode), tabulated)
    yield Kernel("next", module.neighbour_kernel(0), arrays(u8, u8, u8, u64, u64))
    of_integers = (*arrays(u64, u8, u8), u64, *arrays(u64), u64, seed)
    yield Kernel("from int", module.from_integer_kernel(6), of_integers)
    to_integers = (*arrays(u8, u64, u8, u64), u64, u64, u64, u64, seed)
    yield Kernel("to int", module.to_integer_kernel(6), to_integers)
    yield Kernel("union", module.union_kernel(), arrays(u8, u32))


def elementary() -> Iterator[Kernel]:
    """gpu/arithmetic/elementary_kernels.py: the functions of float32, in float64."""
    from fpsim.core.elementary.float32 import FUNCTIONS
    from fpsim.gpu.arithmetic import elementary_kernels as module

    for name in FUNCTIONS:
        yield Kernel(name, module.float32_kernel(name), (*arrays(u32, u32, u8), u32))


def elementwise(name: str, function: Any, bits: int, target_bits: int, count: int, shared_words: int) -> Kernel:
    """Return a kernel of gpu/arithmetic/pair_kernels.py."""
    from fpsim.gpu.arithmetic import pair_kernels as module

    length = module.elements_at_once(bits, target_bits).length
    plain = arrays(*[WORDS[bits]] * 3, WORDS[target_bits])
    wide = arrays(*[WORDS[bits * length]] * 3, WORDS[target_bits * length])
    kernel = module.elementwise_kernel(function, bits, target_bits, count, shared_words)
    return Kernel(name, kernel, (*plain, *wide, u64, u64, u64, *arrays(u32, WORDS[target_bits])))


def pairs() -> Iterator[Kernel]:
    """gpu/arithmetic/pair_kernels.py: results of pairs of codes, looked up."""
    from fpsim.gpu.arithmetic import pair_kernels as module

    yield elementwise("pairs", module.looks_up((8, 8), 8), 8, 8, 2, 1 << 14)
    yield elementwise("pairs to 16 bits", module.looks_up((4, 4), 8), 8, 16, 2, 0)


def float_arithmetic() -> Iterator[Kernel]:
    """gpu/core/float_arithmetic.py: operations by those of float32 and float64."""
    from fpsim.formats.named import BF16, E4M3, FP16, FP32
    from fpsim.gpu.core import float_arithmetic as module

    for fmt, name in (
        (FP16, "add"),
        (BF16, "multiply"),
        (FP32, "divide"),
        (FP16, "sqrt"),
        (BF16, "fma"),
        (FP16, "fma"),
        (E4M3, "fma"),
    ):
        function = module.float_function(fmt, name)
        yield elementwise(f"{name} {fmt.name}", function, fmt.bits, fmt.bits, module.OPERANDS[name], 0)


def unit_product() -> Iterator[Kernel]:
    """gpu/products/unit_product.py: the rule of every matrix unit."""
    from fpsim.gpu.products import unit_product as module
    from fpsim.matrix_units.matrix_unit import Rule

    layouts = u64[::1], i64[::1]
    a, b, scale = u16[:, ::1], u16[:, ::1], u8[:, ::1]
    for rule in Rule:
        kernel = module.product_kernel(rule, 12, rule is Rule.GROUPED)
        yield Kernel(rule.name, kernel, (a, b, u32[::1], scale, scale, u32[::1], *layouts))
    for along_rows in (False, True):
        yield Kernel(f"gather {along_rows}", module.gather_kernel(along_rows), (a, *arrays(i32), b))


def integer_products() -> Iterator[Kernel]:
    """gpu/products/integer_matrix.py: products of integers by all signs, and zero points."""
    from fpsim.gpu.products import integer_matrix as module

    matrix, words, facts = u8[:, ::1], u32[::1], i64[::1]
    for signs in ((True, True, True), (False, True, True), (False, False, False)):
        for paired in (False, True):
            yield Kernel(f"{signs} {paired}", module.integer_kernel(*signs, paired), (matrix, matrix, words, facts))
    yield Kernel("zero points", module.zero_point_kernel(), (words, words, words, words, words, u64))


def fused_product() -> Iterator[Kernel]:
    """gpu/products/fused_kernels.py: tiles for every width of a sum, and every way of promotion."""
    import numpy as np
    from numba import typeof

    from fpsim.gpu.products import fused_kernels as tiles
    from fpsim.gpu.products.fused_product import LONG_TILE, TILE
    from fpsim.gpu.products.fused_step import OperandFacts, StepNumbers

    operands = (typeof(OperandFacts(*map(np.int32, range(9)))),) * 2
    ends = (*arrays(i32), f32[:, ::1], f32[:, ::1], *operands, typeof(StepNumbers(*map(np.int32, range(5)))), i32, i32)
    for label, word, result, *key, tile in (
        ("fp8", u8, u32, 32, tiles.SHORT, False, False, False, tiles.NEVER, TILE),
        ("fp8 promoted", u8, u32, 32, tiles.SHORT, False, False, False, 0, TILE),
        ("fp8 with factors", u8, u32, 32, tiles.SHORT, False, False, False, 2, TILE),
        ("bf16", u16, u32, 16, tiles.LONG, False, False, False, tiles.NEVER, LONG_TILE),
        ("tf32 promoted", u32, u32, 8, tiles.MIDDLE, False, False, False, 0, TILE),
        ("fp16 to fp16", u16, u16, 16, tiles.LONG, True, True, False, tiles.NEVER, LONG_TILE),
        ("mxfp8", u8, u32, 32, tiles.LONG, False, False, True, tiles.NEVER, LONG_TILE),
    ):
        matrices = tuple(kind[:, ::1] for kind in (result, u8, word, word, u8, u8))
        signature = (*matrices[:2], i32[::1], *matrices[2:], *ends)
        yield Kernel(f"tiles of {label}", tiles.tile_kernel(*key, tile), signature)


def marked() -> Iterator[Kernel]:
    """gpu/products/fused_kernels.py: what tiles leave."""
    from fpsim.gpu.products import fused_kernels as tiles
    from fpsim.matrix_units.matrix_unit import Rule

    matrices = tuple(kind[:, ::1] for kind in (u32, u8, u8, u8, u8, u8))
    signature = (*matrices, *arrays(i32), f32[:, ::1], f32[:, ::1], u64[::1], i64[::1])
    yield Kernel("marked", tiles.specified_kernel(Rule.SCALED), (*signature, i32, i32, i32, i32))


def float_matrix() -> Iterator[Kernel]:
    """gpu/products/float_matrix.py: the operations of epilogues and merges."""
    from fpsim.gpu.device.transfer import fill_kernel
    from fpsim.gpu.products import float_matrix as module

    for name in ("add", "multiply", "fma"):
        signature = (*arrays(u32, u32, u32, i64, u32), i64, *arrays(u64, u64))
        yield Kernel(name, module.operation_kernel(name), signature)
    yield Kernel("fill", fill_kernel(), (*arrays(u32), u32))
    yield Kernel("copy", module.copy_kernel(), arrays(u32, u32))
    yield Kernel("nan", module.nan_kernel(), (*arrays(u32), u32, u32, u32))
    yield Kernel("nan code", module.nan_code_kernel(), (*arrays(u32, u8), u8))


def lane_product() -> Iterator[Kernel]:
    """gpu/products/lane_product.py: the sums of lanes."""
    from fpsim.gpu.products import lane_product as module

    signature = (u16[:, ::1], u16[:, ::1], u32[:, :, ::1], i64[::1], u32, *arrays(u64, u64, u64, u64))
    yield Kernel("lanes", module.lane_sums_kernel(), signature)


def accumulate() -> Iterator[Kernel]:
    """gpu/sums/accumulate.py: every order of summation, with and without random words, and products of FP64."""
    from fpsim.core.rounding import NEAREST_EVEN, STOCHASTIC
    from fpsim.core.sums.sum_order import Randomness
    from fpsim.gpu.sums import accumulate as module

    layouts, random = u64[:, ::1], types.NamedTuple((i64, u64, u64, u64, u64), Randomness)
    for mode, wide, kind in ((NEAREST_EVEN, False, u8), (STOCHASTIC, False, u8), (NEAREST_EVEN, True, u64)):
        matrices = (kind[:, ::1], kind[:, ::1], i64, kind[:, ::1], kind[:, ::1])
        for name, chained, fused in (("sequential", True, False), ("fused", True, True), ("chunked", False, False)):
            kernel = module.sequence_kernel(mode, chained, fused, wide)
            yield Kernel(f"{name} {mode} {wide}", kernel, (*matrices, i64, layouts, random))
        kernel = module.pairwise_kernel(mode, 16, wide)
        yield Kernel(f"pairwise {mode} {wide}", kernel, (*matrices, layouts, random))
        kernel = module.exact_kernel(mode, 24, not wide)
        yield Kernel(f"exact {mode} {wide}", kernel, (*matrices, i64, layouts, u64, random))
    yield Kernel("nothing", module._nothing_kernel(), (*arrays(u8, u8), u64, u64, u64, u64))


def norms() -> Iterator[Kernel]:
    """gpu/norms/kernels.py: sums of lanes, of squares too."""
    from fpsim.gpu.norms import kernels as module

    for squares, kind in ((False, f32), (True, f64)):
        yield Kernel(f"lanes {squares}", module.lanes_kernel(squares), (*arrays(u32, kind), i64, i64, i64))
        yield Kernel(f"join {squares}", module.join_kernel(), (*arrays(kind, u32), i64, i64))


def largest() -> Iterator[Kernel]:
    """gpu/norms/kernels.py: largest elements along an axis."""
    from fpsim.gpu.norms import kernels as module

    for word in (u32, u64):
        yield Kernel(f"largest {word}", module.largest_kernel(word.bitwidth), (*arrays(word, word), i64, i64, i64))


MODULES: dict[str, Callable[[], Iterator[Kernel]]] = {
    "cast": cast, "float_cast": float_cast, "arithmetic": arithmetic, "pairs": pairs,
    "elementary": elementary, "float_arithmetic": float_arithmetic, "unit_product": unit_product,
    "float_matrix": float_matrix, "lane_product": lane_product, "fused_product": fused_product, "marked": marked,
    "accumulate": accumulate,
    "integer_products": integer_products, "norms": norms, "largest": largest,
}  # fmt: skip
# What a module may do in floating point, where it argues that this is exact; all others calculate with integers. No
# operation is approximate or flushes subnormals.
FLOATS = {
    "float_cast": r"(add|sub|mul)\.(rn\.)?f32",
    # products are `mul.rn`, which no compiler may fuse with a sum
    "elementary": r"mul\.rn\.f64|(add|sub)(\.rn)?\.f64|(div|sqrt|rcp)\.rn\.f(32|64)",
    "float_arithmetic": r"(add|sub|mul)(\.rn)?\.f(32|64)|(div|sqrt)\.rn\.f32",
    # multiplications by powers of two, and of operands of few bits; promotions add and fuse as IEEE 754 says
    "fused_product": r"(add|sub|mul)\.(rn\.)?f32|fma\.rn\.f32",
    # sums in float32, which no product precedes; products of two float32 numbers are exact in float64, so that one that
    # is fused with a sum gives the same bits
    "norms": r"add(\.rn)?\.f(32|64)|mul(\.rn)?\.f64|fma\.rn\.f64",
    "marked": r"(add|mul)\.(rn\.)?f32|fma\.rn\.f32",  # promotions alone
}
# What a thread holds must not be in memory
IN_REGISTERS = ("cast", "float_cast", "pairs", "float_arithmetic", "fused_product")


class _Hopper:
    """The device that numba-cuda asks for its capability when a kernel calls a function."""

    compute_capability = (9, 0)


def pretend_hopper() -> None:
    """Let a process of its own believe that a GPU is there."""
    import numba.cuda.compiler
    import numba.cuda.dispatcher

    for place in (numba.cuda.compiler, numba.cuda.dispatcher):
        if hasattr(place, "get_current_device"):
            place.get_current_device = lambda: _Hopper


def compiled(module: str) -> dict[str, str]:
    """PTX of a module's kernels."""
    from numba import cuda

    pretend_hopper()
    return {
        kernel.name: cuda.compile_ptx(kernel.function.py_func, kernel.signature, cc=(9, 0))[0]
        for kernel in MODULES[module]()
    }


if __name__ == "__main__":
    json.dump(compiled(sys.argv[1]), sys.stdout)
