"""dot_add: one matrix instruction for each row of operands, by the integer specification of the unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.instructions.operands import block_count, block_scales, operand, row_operands, widened
from fpsim.lazy import deferred
from fpsim.matrix_units.catalogue import any_unit
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.runtime.pipeline import wrapping

u64 = np.uint64
loops, plans = deferred("fpsim.instructions.loops"), deferred("fpsim.instructions.plan")  # both import numba
integers = deferred("fpsim.instructions.integers")


def dot_add(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike | None,
    unit: str | MatrixUnit | IntegerUnit,
    *,
    scale_a: npt.ArrayLike | None = None,
    scale_b: npt.ArrayLike | None = None,
) -> npt.NDArray[Any]:
    """Return c + sum of a[n, k] * b[n, k] for every row n, bit for bit as a matrix unit computes it.

    This is the reference: it uses integers only, and executes one instruction of the unit after the other. `fp.matmul`
    returns the same bits hundreds of times faster.

    Args:
      a, b: (N, K) codes of the unit's elements, one element per byte for FP8, FP6 and FP4, or arrays of their dtypes
        (float8_e4m3fn, float16, ...). tf32 and xf32 operands are float32 arrays or bit patterns. Integer units require
        int8 or uint8 arrays, with one element per byte for s4 and u4 too. K is any number of terms: each instruction
        adds up to `unit.terms` of them to the accumulator, in ascending order of k.
      c: (N,) values at which the accumulator starts: codes (uint32 for f32, uint16 for f16, uint64 for f64) or floats
        of its dtype, int32 for s32; None for +0.
      unit: a unit or its name; see `fp.units()`.
      scale_a, scale_b: (N, K / block) codes of the block scales, for block-scaled units; None for others.

    Returns:
      (N,) codes of the result, in the accumulator's unsigned dtype; int32 for s32.

    Raises:
      ValueError: shapes that do not match, formats that the unit does not accept, codes out of range, missing or
        unwanted scales, or K that is not a multiple of the scale block.
      TypeError: operands that are neither codes nor floats, or, for an integer unit, not integers.

    Source: docs/matrix-units.md, docs/integer-products.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> a = fp.cast(np.float32([[1, 2**-7, 2**-7, 2**-8]]), fp.E4M3)
      >>> b = fp.cast(np.ones((1, 4), np.float32), fp.E4M3)
      >>> fp.dot_add(a, b, None, "hopper_e4m3_f32").view(np.float32)
      array([1.0195312], dtype=float32)
      >>> fp.dot_add(np.int8([[100, -3]]), np.int8([[100, 5]]), None, "hopper_s8_s32")
      array([9985], dtype=int32)
    """
    unit = any_unit("unit", unit)
    if isinstance(unit, IntegerUnit):
        sums: npt.NDArray[Any] = integers().integer_dot_add(a, b, c, unit, scale_a, scale_b)
        return sums
    left, right, start = row_operands(a, b, c, unit, operand)
    grid = (*start.shape, block_count(left.shape[-1], unit))
    p, q = block_scales(scale_a, grid, unit, "scale_a"), block_scales(scale_b, grid, unit, "scale_b")
    out = run_rows(widened(left, unit.a, unit), widened(right, unit.b, unit), start, p, q, unit)
    return out.reshape(start.shape).astype(unit.d.dtype)


def run_rows(a: Array, b: Array, c: Array, p: Array, q: Array, unit: MatrixUnit) -> Array:
    """Return the results of a unit for each row of operands, as uint64 codes of the accumulator, 1-D.

    a, b: (..., K) unsigned codes in the formats that the unit's emulation reads (see operands.widened). c: (...)
    unsigned codes at which sums start. p, q: (..., blocks) codes of the block scales of a and b, which are not read for
    units without them.
    """
    plan = plans().unit_plan(unit)
    rows = [np.ascontiguousarray(x.reshape(c.size, x.shape[-1]), u64) for x in (a, b)]
    blocks = [np.ascontiguousarray(x.reshape(c.size, x.shape[-1]), u64) for x in (p, q)]
    out = np.empty(c.size, u64)
    digits = np.zeros(plan.digits, np.int64)
    words = np.ascontiguousarray(c.reshape(-1), u64)
    with wrapping():
        loops().dot_add_kernel(unit.rule)(*rows, words, *blocks, out, plan.layouts, plan.facts, digits)
    return out
