"""Additions of partial sums to their totals (promotion), and of slices' totals to the earlier slices' sums.

A tile is a block of the result: some rows by the columns of a panel (decoded terms of b). With promotion, a tile has up
to three matrices: the unit's accumulators, as float32 patterns; the totals, to which accumulators are added every few
terms; and, if K is divided into slices, the sums of all earlier slices. A row is added while it is in the L1 cache,
right after the instruction that ends its partial sum.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from fpsim.products.kernels.fused_row import rounded_to_half
from fpsim.products.kernels.row_vectors import GROUPS, nearest_half
from fpsim.reload import reloadable
from fpsim.runtime import vectors as v
from fpsim.runtime.compile import inner_loop, scalar
from fpsim.runtime.float_steps import fused

i32, i64, f32 = np.int32, np.int64, np.float32

# How a partial sum joins its total: added; times the rounded product of both factors, fused with the addition; times
# one factor, rounded, then times the other, fused with the addition; added in FP16.
ADD, PRODUCT, ROWS_FIRST, COLUMNS_FIRST, ADD_HALF = range(5)


@reloadable
class Joins(NamedTuple):
    """The kernels that add a row of partial sums to its float32 totals, and totals to the sums of earlier slices of K.

    Attributes:
      promote: (totals, tile, r, left, right, mode) -> None adds row r of the partial sums `tile`, times the row's scale
        `left` and the columns' scales `right`, to row r of `totals`; then it sets row r of `tile` to +0. `mode` is the
        order of the multiplications (see `_promote`).
      merge: (merged, totals, r) -> None adds row r of `totals` to row r of `merged`, and sets row r of `totals` to -0.
    """

    promote: Any
    merge: Any


@inner_loop
def _promote(totals: Any, tile: Any, r: Any, left: Any, right: Any, mode: Any) -> None:
    """Add row r of partial sums `tile`, times their scales, to row r of `totals`; set the partial sums to +0.

    tile: float32 patterns as int32. totals: float32. left: the row's scale. right: (columns,) float32 scales. mode: ADD
    for no scales; PRODUCT: fma(left * right, partial, total); ROWS_FIRST: fma(partial * left, right, total);
    COLUMNS_FIRST: fma(partial * right, left, total); ADD_HALF: as ADD, rounded to FP16.
    """
    for j in range(tile.shape[1]):
        partial = i32(tile[r, j]).view(f32)
        if mode == PRODUCT:
            totals[r, j] = fused(f32(left * right[j]), partial, totals[r, j])
        elif mode == ROWS_FIRST:
            totals[r, j] = fused(f32(partial * left), right[j], totals[r, j])
        elif mode == COLUMNS_FIRST:
            totals[r, j] = fused(f32(partial * right[j]), left, totals[r, j])
        else:
            totals[r, j] = f32(totals[r, j] + partial)
        if mode == ADD_HALF:
            totals[r, j] = rounded_to_half(totals[r, j])
        tile[r, j] = i32(0)


@inner_loop
def _merge(merged: Any, totals: Any, r: Any) -> None:
    """Add row r of `totals` to row r of `merged`, the sums of earlier slices of K, and set row r of `totals` to -0.

    Both are (rows, columns) float32.
    """
    for j in range(totals.shape[1]):
        merged[r, j] = f32(merged[r, j] + totals[r, j])
        totals[r, j] = f32(-0.0)


PLAIN = Joins(_promote, _merge)


def _joined(builder: Any, mode: int, total: Any, partial: Any, left: Any, right: Any) -> Any:
    """Emit and return a vector of totals plus partial sums, times their scales as `mode` says.

    builder: llvmlite's IRBuilder. total, partial: float32 vectors. left: the row's scale, right: the columns' scales.
    mode: PRODUCT: fma(left * right, partial, total); ROWS_FIRST: fma(partial * left, right, total); COLUMNS_FIRST:
    fma(partial * right, left, total); ADD: total + partial, without scales; ADD_HALF: the same, rounded to FP16.
    """
    if mode == PRODUCT:
        return v.fused(builder, builder.fmul(left, right), partial, total)
    if mode == ROWS_FIRST:
        return v.fused(builder, builder.fmul(partial, left), right, total)
    if mode == COLUMNS_FIRST:
        return v.fused(builder, builder.fmul(partial, right), left, total)
    added = builder.fadd(total, partial)
    if mode == ADD_HALF:
        return builder.fadd(nearest_half(builder, added), v.constant(0.0, v.FLOATS))  # +0 for -0
    return added


@cache
def in_vectors() -> Joins:
    """Return the kernels `promote` and `merge` of `Joins` in vector instructions, for rows of 64 columns.

    They add partial sums to totals, and totals to the sums of earlier slices of K. The processor must have AVX-512 or
    AVX2.
    """
    size = GROUPS * v.SIZE

    def promote(_typing: Any, totals: Any, tile: Any, r: Any, left: Any, right: Any, mode: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            totals, tile, right = (v.start_of(context, builder, sig.args[i], args[i]) for i in (0, 1, 4))
            totals, tile = (v.row_at(builder, x, args[2], size) for x in (totals, tile))
            left = v.everywhere(builder, args[3], v.FLOATS)
            for mode in (ADD, PRODUCT, ROWS_FIRST, COLUMNS_FIRST, ADD_HALF):
                with builder.if_then(builder.icmp_signed("==", args[5], v.LONG(mode))):
                    for place in range(0, size, v.SIZE):
                        total, partial, factor = (v.load(builder, x, place, v.FLOATS) for x in (totals, tile, right))
                        v.store(builder, _joined(builder, mode, total, partial, left, factor), totals, place)
                        v.store(builder, v.constant(0, v.INTS), tile, place)
            return context.get_dummy_value()

        return types.void(totals, tile, r, left, right, mode), build

    def merge(_typing: Any, merged: Any, totals: Any, r: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            merged, totals = (
                v.row_at(builder, v.start_of(context, builder, sig.args[i], args[i]), args[2], size) for i in (0, 1)
            )
            for place in range(0, size, v.SIZE):
                before, total = (v.load(builder, x, place, v.FLOATS) for x in (merged, totals))
                v.store(builder, builder.fadd(before, total), merged, place)
                v.store(builder, v.constant(-0.0, v.FLOATS), totals, place)
            return context.get_dummy_value()

        return types.void(merged, totals, r), build

    promote_row, merge_row = intrinsic(promote), intrinsic(merge)

    def promoted(totals: Any, tile: Any, r: Any, left: Any, right: Any, mode: Any) -> None:
        promote_row(totals, tile, i64(r), f32(left), right, i64(mode))

    def joined(merged: Any, totals: Any, r: Any) -> None:
        merge_row(merged, totals, i64(r))

    return Joins(scalar(promoted), scalar(joined))
