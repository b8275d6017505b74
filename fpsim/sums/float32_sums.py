"""Sums in float32 by their plan: products of matrices of any size, and a quick path for plain short arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arithmetic.operands import full_dtype
from fpsim.arrays import FORMAT_OF, Array
from fpsim.casts.pipelines import SHORT
from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format
from fpsim.runtime import threads
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.pipeline import run_stages
from fpsim.runtime.processor import ieee_arithmetic, keeps_ieee
from fpsim.sums.accumulators import Accumulator
from fpsim.sums.float32_plan import WORD, Float32Sums, Panels, StripWay, float32_sums, panels_of, run_strips
from fpsim.sums.kernels.float32_rows import STRIP
from fpsim.sums.plan import seedless

Area = tuple[slice, slice]  # rows and columns
BYTE = np.dtype(np.uint8)
NO_C = np.zeros((0, 0), np.uint32)
ONE = np.float32(1).view(np.uint32)
COST = STRIP // 4  # a step of a strip's column, in elements of a cast


def summed(
    plan: Float32Sums, a: Array, b: Array, layouts: tuple[Array, Array], c: Array, result: Array
) -> Sequence[Area]:  # fmt: skip
    """Fill `result` with a @ b + c in float32; return the areas of it that float32 cannot compute.

    In those areas, sums may leave the range in which float32 is exact, and the values are undefined. If most do, the
    whole result is one such area. The calling thread's processor must be in IEEE 754 mode (no flushing of subnormals).

    Args:
      plan: the plan of the accumulator.
      a, b: codes (M, K) and (K, N) in C order.
      layouts: for a and b, the constants by which codes are decoded (fields of DecodeLayout).
      c: (M, N) float32 bits that sums start from, or NO_C, which is empty.
      result: (M, N) array of plan.dtype in C order to fill.

    Returns:
      (slice of rows, slice of columns) of each area; empty if all sums are done.
    """
    operands = panels_of(a, b, layouts, plan.way.padding)
    count, terms, width = operands.panels.shape
    strips, cast = -(-len(operands.a) // STRIP) * count, plan.cast
    given_up, out = np.empty(strips, BYTE), result.view(WORD) if cast is None else np.empty(result.shape, WORD)
    cost = COST * width * terms
    if strips * cost < threads.SMALLEST:
        lost = run_strips(plan.way, operands, c, out, given_up, 0, strips)
        if cast is not None:
            cast.run(out.reshape(-1), result.view(cast.dtype).reshape(-1), 0)
    else:
        lost = _by_threads(plan.way, operands, c, out, given_up, cost)
        if cast is not None:
            run_stages((cast,), out, result.view(cast.dtype))
    if not lost:
        return ()
    if 2 * lost > strips:
        return ((slice(None), slice(None)),)
    corners = ((strip // count * STRIP, strip % count * width) for strip in given_up.nonzero()[0])
    return [(slice(i, min(i + STRIP, len(result))), slice(j, j + width)) for i, j in corners]


def _by_threads(
    way: StripWay, operands: Panels, c: Array, out: Array, given_up: Array, cost: int
) -> int:  # fmt: skip
    """Compute all strips of the result on several threads; return the number of strips that float32 cannot compute.

    A strip is a block of 16 rows by a panel (up to 128 columns). way: arguments of the kernels. operands: a and b,
    decoded. c: (M, N) float32 bits that are added, or empty. out: (M, N) uint32 bits to fill. given_up: 1-D uint8, one
    element per strip, set to 1 if float32 cannot compute it, else to 0. cost: duration of one strip, as the number of
    elements that a cast converts in that time.
    """
    parts: list[int] = []

    def work(first: int, stop: int) -> None:
        with ieee_arithmetic():
            parts.append(run_strips(way, operands, c, out, given_up, first, stop))

    threads.over_units(given_up.size, cost, work)
    return sum(parts)


def plain_sums(a: Array, b: Array, accumulator: Accumulator, fmt: Any, out: Array | None = None) -> Array | None:
    """Return a @ b in the accumulator's dtype by a path that has little overhead, or None if this path does not apply.

    It does not apply if float32 cannot reproduce the accumulator's sums or decodes operands by a table, if sums may
    leave the range in which float32 is exact, or if an operand's dtype has integers that are no codes of its format.

    Args:
      a, b: arrays (M, K) and (K, N) of any size; callers pass short ones, for which overhead matters.
      accumulator: the accumulator.
      fmt: format of operands that are codes; None if they are floats.
      out: array of the result's shape in C order to fill, or None; its content is undefined if None is returned.
    """
    plan = _plain(seedless(accumulator), fmt, a.dtype, b.dtype)
    if plan is None or plan.layouts is None or (out is not None and out.dtype != plan.dtype):
        return None
    left, right = _in_c_order(a, plan.storage[0]), _in_c_order(b, plan.storage[1])
    result = np.empty((a.shape[0], b.shape[1]), plan.dtype) if out is None else out
    return None if summed(plan, left, right, plan.layouts, NO_C, result) else result


def plain_sum(x: Array, accumulator: Accumulator, fmt: Any) -> Any | None:
    """Return the sum of a short C-ordered array by a quick path in float32, or None where this path does not apply.

    The sum is a scalar of the accumulator's dtype. The path does not apply inside a block of `general_loops`, or in
    one of these cases: float32 cannot reproduce the accumulator's sums or decodes x by a table; x is empty or has more
    than SHORT (16384) elements; the processor flushes subnormals or does not round to nearest; sums may leave the range
    in which float32 is exact; the dtype of x has integers that are no codes of the format.

    fmt: format of x if it holds codes; None if it holds floats.
    """
    plan = _plain(seedless(accumulator), fmt, None, x.dtype)
    if plan is None or plan.layouts is None or not (0 < x.size <= SHORT and keeps_ieee()) or allows_general_loops():
        return None
    ones = np.empty((1, x.size), WORD)
    ones.fill(ONE)  # np.full takes three times as long
    result = np.empty((1, 1), plan.dtype)
    lost = summed(plan, ones, _in_c_order(x.reshape(-1, 1), plan.storage[1]), plan.layouts, NO_C, result)
    return None if lost else result[0, 0]


def _in_c_order(x: Array, codes: np.dtype[Any]) -> Array:
    """Return x in C order with the unsigned dtype `codes`; floats of the format are viewed as their codes."""
    return np.ascontiguousarray(x if x.dtype is codes else x.view(codes))


@lru_cache(maxsize=4096)
def _plain(
    accumulator: Accumulator, fmt: Any, of_a: np.dtype[Any] | None, of_b: np.dtype[Any]
) -> Float32Sums | None:  # fmt: skip
    """Return the plan by which float32 computes an accumulator's sums, for operands of two dtypes; cached.

    The result is None if float32 cannot reproduce the sums, or the dtypes do not suit `fmt`. accumulator: with its seed
    removed (`seedless`). fmt: format of operands that are codes; None for floats. of_a, of_b: dtypes of a and b; of_a
    is None if a is all ones.
    """
    a, b = None if of_a is None else _format_of(of_a, fmt), _format_of(of_b, fmt)
    if b is None or (a is None and of_a is not None):
        return None
    return float32_sums(accumulator, (a, b))


def _format_of(dtype: np.dtype[Any], fmt: Any) -> Format | None:
    """Return the format of an operand, or None if this quick path does not accept it.

    It accepts a dtype that stores one format, if fmt is None or that format, and otherwise an integer dtype of which
    every integer is a code of fmt. dtype: dtype of the operand; fmt: its format if it holds codes, None for floats.
    """
    stored, wanted = FORMAT_OF.get(dtype), None if fmt is None else find_format(fmt)
    if stored is not None and wanted in (None, stored):
        return stored
    return wanted if wanted is not None and dtype is full_dtype(wanted) else None
