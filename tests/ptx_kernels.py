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

u8, u16, u32, u64, i64 = types.uint8, types.uint16, types.uint32, types.uint64, types.int64


class Kernel(NamedTuple):
    """A kernel before it is compiled."""

    name: str
    function: Any  # what fpsim.gpu.launch.gpu_kernel gives
    signature: tuple[Any, ...]  # the numba types of its arguments


def arrays(*kinds: Any) -> tuple[Any, ...]:
    """The types of contiguous arrays of one axis."""
    return tuple(kind[::1] for kind in kinds)


def cast() -> Iterator[Kernel]:
    """fpsim.gpu.cast: every mode, and every rule for values beyond the largest, for each width of the source."""
    module = importlib.import_module("fpsim.gpu.cast")  # fpsim.gpu.cast is also the name of a function
    module = sys.modules["fpsim.gpu.cast"]
    for width, word in ((32, u32), (64, u64)):
        yield Kernel(f"decode {width}", module._decode_kernel(width), arrays(u32, word, word))
        for mode in range(7):
            for kind in range(3):
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


def matmul() -> Iterator[Kernel]:
    """fpsim.gpu.matmul: the rule of every matrix unit."""
    from fpsim.matrix_unit import Rule

    module = importlib.import_module("fpsim.gpu.matmul")
    layouts = (*arrays(u64, u64, u64, u64, u64), i64[::1], i64, i64, i64, *arrays(u64, u64), u64)
    a, b, scale = u16[:, ::1], u16[:, ::1], u8[:, ::1]
    for rule in Rule:
        kernel = module._product_kernel(rule, 12, rule is Rule.GROUPED)
        yield Kernel(rule.name, kernel, (a, b, u32[::1], scale, scale, u32[::1], *layouts))


def accumulate() -> Iterator[Kernel]:
    """fpsim.gpu.accumulate: every order of summation, with and without random words, and products of FP64."""
    from fpsim.core.rounding import NEAREST_EVEN, STOCHASTIC

    module = importlib.import_module("fpsim.gpu.accumulate")
    layouts, stream = arrays(u64, u64, u64, u64), (u64, u64, u64)
    for mode, wide, kind in ((NEAREST_EVEN, False, u8), (STOCHASTIC, False, u8), (NEAREST_EVEN, True, u64)):
        matrices = (kind[:, ::1], kind[:, ::1], i64, kind[:, ::1], kind[:, ::1])
        for name, chained, fused in (("sequential", True, False), ("fused", True, True), ("chunked", False, False)):
            kernel = module.sequence_kernel(mode, chained, fused, wide)
            yield Kernel(f"{name} {mode} {wide}", kernel, (*matrices, i64, *layouts, *stream))
        kernel = module.pairwise_kernel(mode, 16, wide)
        yield Kernel(f"pairwise {mode} {wide}", kernel, (*matrices, *layouts[:3], *stream))
        kernel = module.exact_kernel(mode, 24, not wide)
        yield Kernel(f"exact {mode} {wide}", kernel, (*matrices, i64, *layouts, *stream))
    yield Kernel("nothing", module._nothing_kernel(), (*arrays(u8, u8), *stream, u64))


MODULES: dict[str, Callable[[], Iterator[Kernel]]] = {
    "cast": cast, "arithmetic": arithmetic, "matmul": matmul, "accumulate": accumulate,
}  # fmt: skip


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
