"""Loops that run a tree of two-operand additions over many sums at once: a row per term, a column per sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.float_steps import fused

f32, u32 = np.float32, np.uint32

SUMS_AT_ONCE = 64  # sums that are computed together, so that their running sums stay in the cache
AS_IT_IS, TO_FP16, TO_BF16 = 0, 1, 2  # rounding of a float32 sum, with the bits of a single rounding
IN_DOUBLE = 3  # sums in float64
SMALLEST_NORMAL = f32(2.0**-126)
HALF_NORMAL = f32(2.0**-14)  # the smallest normal FP16
HALF_SHIFT = f32(0.75)  # adding and subtracting it rounds to multiples of 2^-24, FP16's subnormals
INFINITY = 0x7F800000


@scalar
def narrowed(x: Any, mode: Any) -> Any:
    """Return a float32 rounded to nearest even, as float32; mode: AS_IT_IS (not rounded), TO_FP16 or TO_BF16."""
    if mode == AS_IT_IS or x != x:
        return x
    bits = f32(x).view(u32)
    if mode == TO_BF16:
        return u32((bits + u32(0x7FFF) + ((bits >> u32(16)) & u32(1))) & u32(0xFFFF0000)).view(f32)
    if abs(x) < HALF_NORMAL:
        return f32(np.copysign((f32(abs(x)) + HALF_SHIFT) - HALF_SHIFT, x))
    near = u32((bits + u32(0xFFF) + ((bits >> u32(13)) & u32(1))) & u32(0xFFFFE000))
    if u32(near & u32(0x7FFFFFFF)) >= u32(0x47800000):  # 2^16
        near = u32((near & u32(0x80000000)) | u32(INFINITY))
    return u32(near).view(f32)


@scalar
def kept(x: Any, flushes: Any) -> Any:
    """Return the float32 x, or a zero of its sign if `flushes` and x is subnormal."""
    return f32(np.copysign(f32(0), x)) if flushes and abs(x) < SMALLEST_NORMAL else x


@kernel
def tree_rows(
    sums: Any, a: Any, b: Any, steps: Any, mode: int, flushes: int, first: int, stop: int
) -> None:  # fmt: skip
    """Run two-operand additions over the rows of `sums` in place, (n, R) float32 or float64: a row per term.

    Args:
      sums: the terms, or their products; the results are left in row steps.result.
      a, b: (n, R) operands of the dtype of `sums`, whose products are added unrounded.
      steps: a PairSteps. For each i in order, row steps.taken[i] is added to row steps.into[i]. But if k =
        steps.term[i] is not negative, the unrounded product a[k] * b[k] is added to row steps.into[i] instead.
      mode: the rounding of float32 sums after each addition, AS_IT_IS, TO_FP16 or TO_BF16; AS_IT_IS for float64.
      flushes: 1 if subnormal float32 sums become zeros, else 0; 0 for float64.
      first, stop: range of columns.
    """
    into, taken, term = steps.into, steps.taken, steps.term
    for start in range(first, stop, SUMS_AT_ONCE):
        end = min(start + SUMS_AT_ONCE, stop)
        for i in range(into.size):
            line = sums[into[i], start:end]
            if term[i] >= 0:
                x, y = a[term[i], start:end], b[term[i], start:end]
                for r in range(line.size):
                    line[r] = fused(x[r], y[r], line[r])
            else:
                other = sums[taken[i], start:end]
                for r in range(line.size):
                    line[r] = line[r] + other[r]
            if mode != AS_IT_IS or flushes:
                for r in range(line.size):
                    line[r] = kept(narrowed(line[r], mode), flushes)


@kernel
def mixed_rows(
    sums: Any, a: Any, b: Any, steps: Any, modes: Any, first: int, stop: int
) -> None:  # fmt: skip
    """Run two-operand additions over the float64 rows of `sums` in place; each addition rounds by a separate mode.

    Args:
      sums: (n, R), the terms, or their products; the results are left in row steps.result.
      a, b: (n, R) float64 operands, whose products are added unrounded.
      steps: a PairSteps. For each i in order, row steps.taken[i] is added to row steps.into[i]. But if k =
        steps.term[i] is not negative, the unrounded product a[k] * b[k] is added to row steps.into[i] instead.
      modes: int64, one for each addition: AS_IT_IS (rounded to float32), TO_FP16, TO_BF16 or IN_DOUBLE (left in
        float64).
      first, stop: range of columns.
    """
    into, taken, term = steps.into, steps.taken, steps.term
    for start in range(first, stop, SUMS_AT_ONCE):
        end = min(start + SUMS_AT_ONCE, stop)
        for i in range(into.size):
            line, mode = sums[into[i], start:end], modes[i]
            if term[i] >= 0:
                x, y = a[term[i], start:end], b[term[i], start:end]
                if mode == IN_DOUBLE:
                    for r in range(line.size):
                        line[r] = fused(x[r], y[r], line[r])
                else:
                    for r in range(line.size):
                        line[r] = narrowed(fused(f32(x[r]), f32(y[r]), f32(line[r])), mode)
                continue
            other = sums[taken[i], start:end]
            if mode == IN_DOUBLE:
                for r in range(line.size):
                    line[r] = line[r] + other[r]
            else:
                for r in range(line.size):
                    line[r] = narrowed(f32(line[r]) + f32(other[r]), mode)
