"""Stacks of short float32 products, each output a chain of float32 additions or of fused multiply-adds."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.pipelines import SHORT
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.products.result_parts import MACS
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.float_steps import fused
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.processor import has_fma, ieee_arithmetic, keeps_ieee
from fpsim.runtime.threads import over_units
from fpsim.sums.accumulators import FusedMultiplyAdd, Sequential

f32 = np.float32
NAN = f32(np.nan)
CHAINS = Sequential(FP32), FusedMultiplyAdd(FP32)
FEW = 4  # terms that are added to a row between two stores


@cache
def chains_kernel(is_fused: bool) -> Any:
    """Return the kernel (a, b, out, first, stop) -> None that writes products first .. stop - 1 of a stack to `out`.

    a: (P, M, K), b: (P, K, N), out: (P, M, N), float32. Each output starts at +0 and adds its K products in ascending
    order of k. is_fused: True adds by fused multiply-adds; False rounds each product to float32 before it is added.
    Every NaN in `out` gets one bit pattern.
    """

    @scalar
    def step(x: Any, y: Any, total: Any) -> Any:
        """Return x * y + total in float32, rounded once if is_fused, else twice."""
        return fused(x, y, total) if is_fused else f32(x * y) + total

    def chains(a: Any, b: Any, out: Any, first: int, stop: int) -> None:
        m, k, n = a.shape[1], a.shape[2], b.shape[2]
        few = k - k % FEW
        row = np.empty(n, f32)
        for product in range(first, stop):
            matrix = b[product]
            for i in range(m):
                x, y = a[product, i], out[product, i]
                row[:] = f32(0)
                for j in range(0, few, FEW):
                    x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
                    for column in range(n):
                        total = step(x1, matrix[j + 1, column], step(x0, matrix[j, column], row[column]))
                        row[column] = step(x3, matrix[j + 3, column], step(x2, matrix[j + 2, column], total))
                for j in range(few, k):
                    for column in range(n):
                        row[column] = step(x[j], matrix[j, column], row[column])
                for column in range(n):
                    y[column] = row[column] if row[column] == row[column] else NAN

    return kernel(chains)


def chain_stack(a: Any, b: Any, accumulate: Any, fmt: FormatLike | None) -> Array | None:
    """Return the products (..., M, N), float32, of two stacks of short matrices; None if this loop cannot compute them.

    The loop needs nonempty float32 arrays of at most SHORT elements per matrix, and an accumulator that adds one term
    at a time in float32: Sequential(FP32) or FusedMultiplyAdd(FP32). a, b, accumulate, fmt: as for `fpsim.matmul`.
    """
    if type(a) is not np.ndarray or type(b) is not np.ndarray or a.dtype != f32 or b.dtype != f32:
        return None
    is_known = accumulate in CHAINS and (
        fmt is None or (not isinstance(fmt, (tuple, list)) and find_format(fmt) == FP32)
    )
    if not is_known or not (a.size and b.size) or not keeps_ieee() or allows_general_loops():
        return None
    is_fused = isinstance(accumulate, FusedMultiplyAdd)
    (m, k), n = a.shape[-2:], b.shape[-1]
    if max(m * k, k * n, m * n) > SHORT or (is_fused and not has_fma()):
        return None
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (
        np.require(np.broadcast_to(x, (*shape, *x.shape[-2:])), None, ["C", "A", "W"]).reshape(-1, *x.shape[-2:])
        for x in (a, b)
    )
    result, loop = np.empty((math.prod(shape), m, n), f32), chains_kernel(is_fused)

    def work(first: int, stop: int) -> None:
        with ieee_arithmetic():
            loop(left, right, result, first, stop)

    over_units(len(result), max(m * k * n // MACS, 1), work)
    return result.reshape(*shape, m, n)
