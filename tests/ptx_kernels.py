"""Kernels of fpsim.gpu with the types of their arguments, compiled to PTX for sm_90 where no GPU is.

Run as `python -m tests.ptx_kernels MODULE`, in a process of its own: it prints {name: PTX} of one module as JSON.
A kernel that is to be looked at is added to the function of its module; a module, as a function in MODULES.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from numba import types

u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64
i32, i64, f32 = types.int32, types.int64, types.float32


class Kernel(NamedTuple):
    """A kernel before it is compiled."""

    name: str
    function: Any  # what fpsim.gpu.launch.gpu_kernel gives
    signature: tuple[Any, ...]  # the numba types of its arguments


def arrays(*kinds: Any) -> tuple[Any, ...]:
    """The types of contiguous arrays of one axis."""
    return tuple(kind[::1] for kind in kinds)


def cast() -> Iterator[Kernel]:
    """fpsim.gpu.cast: every mode of rounding and every kind of format, for each width of the source."""
    module = importlib.import_module("fpsim.gpu.cast")  # fpsim.gpu.cast is also the name of a function
    module = sys.modules["fpsim.gpu.cast"]
    for width, word in ((32, u32), (64, u64)):
        yield Kernel(f"decode {width}", module._decode_kernel(width), arrays(u32, word, word))
        # what the last kind compiles holds the checks of the others: one mode is enough for these
        for mode, kind in (*((mode, 2) for mode in range(7)), (0, 0), (0, 1)):
            signature = (*arrays(word, u8, word, u32), u64, u64)
            yield Kernel(f"encode {width} {mode} {kind}", module._encode_kernel(width, mode, kind, 0), signature)
    signature = (*arrays(u16, u8, u32, u32), u64, u64)
    yield Kernel("encode widened", module._encode_kernel(32, 0, 0, 1), signature)
    yield Kernel("look up", module._table_kernel(), arrays(u8, u32, u32))
    yield Kernel("outside", module._outside_kernel(), (*arrays(u8), u8, *arrays(u8)))


def arithmetic() -> Iterator[Kernel]:
    """fpsim.gpu.arithmetic: every operation."""
    from fpsim.core.operations import BINARY, COMPARISONS, UNARY

    module = importlib.import_module("fpsim.gpu.arithmetic")

    rounding = (*arrays(u8, u8, u8), i64, i64, i64, *arrays(u8, u8, u64, u64, u64, u64), u64, u64, u64)
    for name in (*UNARY, *BINARY, "fma"):
        yield Kernel(name, module._rounding_kernel(name, 0), rounding)
    comparison = (*arrays(u8, u8), i64, i64, *arrays(u8, u8, u64, u64))
    for name in COMPARISONS:
        yield Kernel(name, module._comparison_kernel(name), comparison)
    yield Kernel("next", module._neighbour_kernel(0), arrays(u8, u8, u8, u64, u64))


def unit_product() -> Iterator[Kernel]:
    """fpsim.gpu.unit_product: the rule of every matrix unit."""
    from fpsim.gpu import unit_product as module
    from fpsim.matrix_unit import Rule

    layouts = (*arrays(u64, u64, u64, u64, u64), i64[::1], i64, i64)
    a, b, scale = u16[:, ::1], u16[:, ::1], u8[:, ::1]
    for rule in Rule:
        kernel = module.product_kernel(rule, 12, rule is Rule.GROUPED)
        yield Kernel(rule.name, kernel, (a, b, u32[::1], scale, scale, u32[::1], *layouts))
    for along_rows in (False, True):
        yield Kernel(f"gather {along_rows}", module.gather_kernel(along_rows), (a, *arrays(i32), b))


def fused_product() -> Iterator[Kernel]:
    """fpsim.gpu.fused_kernels: tiles for every width of a sum, and every way of promotion."""
    import numpy as np
    from numba import typeof

    from fpsim.gpu import fused_kernels as tiles
    from fpsim.gpu.fused_product import LONG_TILE, TILE
    from fpsim.gpu.fused_step import OperandFacts, StepFacts

    operands = (typeof(OperandFacts(*map(np.int32, range(9)))),) * 2
    ends = (*arrays(i32), f32[:, ::1], f32[:, ::1], *operands, typeof(StepFacts(*map(np.int32, range(5)))), i32, i32)
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
    """fpsim.gpu.fused_kernels: what tiles leave."""
    from fpsim.gpu import fused_kernels as tiles
    from fpsim.matrix_unit import Rule

    matrices = tuple(kind[:, ::1] for kind in (u32, u8, u8, u8, u8, u8))
    signature = (*matrices, *arrays(i32), f32[:, ::1], f32[:, ::1], *arrays(u64, u64, u64, u64, u64), i64[::1])
    yield Kernel("marked", tiles.specified_kernel(Rule.SCALED), (*signature, i32, i32, i32, i32))


def float_matrix() -> Iterator[Kernel]:
    """fpsim.gpu.float_matrix: the operations of epilogues and merges."""
    from fpsim.gpu import float_matrix as module

    for name in ("add", "multiply", "fma"):
        signature = (*arrays(u32, u32, u32, i64, u32), i64, *arrays(u64, u64))
        yield Kernel(name, module.operation_kernel(name), signature)
    yield Kernel("fill", module.fill_kernel(), (*arrays(u32), u32))
    yield Kernel("copy", module.copy_kernel(), arrays(u32, u32))
    yield Kernel("nan", module.nan_kernel(), (*arrays(u32), u32, u32, u32))
    yield Kernel("nan code", module.nan_code_kernel(), (*arrays(u32, u8), u8))


def lane_product() -> Iterator[Kernel]:
    """fpsim.gpu.lane_product: the sums of lanes."""
    from fpsim.gpu import lane_product as module

    signature = (u16[:, ::1], u16[:, ::1], u32[:, :, ::1], i64[::1], u32, *arrays(u64, u64, u64, u64))
    yield Kernel("lanes", module.lane_sums_kernel(), signature)


MODULES: dict[str, Callable[[], Iterator[Kernel]]] = {
    "cast": cast, "arithmetic": arithmetic,
    "unit_product": unit_product, "float_matrix": float_matrix, "lane_product": lane_product,
    "fused_product": fused_product, "marked": marked,
}  # fmt: skip
# What a module may do in floating point, where it argues that this is exact; all others calculate with integers. No
# operation is approximate or flushes subnormals.
FLOATS = {
    # multiplications by powers of two, and of operands of few bits; promotions add and fuse as IEEE 754 says
    "fused_product": r"(add|sub|mul)\.(rn\.)?f32|fma\.rn\.f32",
    "marked": r"(add|mul)\.(rn\.)?f32|fma\.rn\.f32",  # promotions alone
}
IN_REGISTERS = ("fused_product",)  # what a thread adds up must not be in memory


class _Hopper:
    """The device that numba-cuda asks for its capability when a kernel calls a function."""

    compute_capability = (9, 0)


def compiled(module: str) -> dict[str, str]:
    """PTX of a module's kernels; only for a process of its own, which believes from then on that a GPU is there."""
    import numba.cuda.compiler
    import numba.cuda.dispatcher
    from numba import cuda

    for place in (numba.cuda.compiler, numba.cuda.dispatcher):
        if hasattr(place, "get_current_device"):
            place.get_current_device = lambda: _Hopper
    return {
        kernel.name: cuda.compile_ptx(kernel.function.py_func, kernel.signature, cc=(9, 0))[0]
        for kernel in MODULES[module]()
    }


if __name__ == "__main__":
    json.dump(compiled(sys.argv[1]), sys.stdout)
