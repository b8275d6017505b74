"""The matrix product of the units that follow the FUSED rule: panels, tiles, promotion, and the rows that need care.

Tiles are LANES columns by a block of rows. Steps over K go through a tile one after the other: a panel of B is decoded
once and stays in the L1 cache while the rows of A pass by. A row of a step whose exponents leave the window of
fused_row goes through wide_row, and NaN and Inf are added by class beside the finite sum; both are decided for each
row of each step, so that a few such values cost little.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.products.kernels.fused_row import RowScratch, fused_row, override, rounded_to_half, row_facts, specials_row
from fpsim.products.kernels.panel import DEEP, INFINITE, LANES, MAGNITUDE, SPECIAL, ZERO_EXPONENT, class_of, fill_row
from fpsim.products.kernels.wide_row import wide_row
from fpsim.runtime.compile import inner_loop, kernel, scalar
from fpsim.runtime.float_steps import fused

i8, i32, i64, f32, f64 = np.int8, np.int32, np.int64, np.float32, np.float64

# How a partial sum joins its total: added; times the rounded product of both factors, fused with the addition; times
# one factor, rounded, then times the other, fused with the addition; added in FP16.
ADD, PRODUCT, ROWS_FIRST, COLUMNS_FIRST, ADD_HALF = range(5)
NO_SCALE = i32(1 << 20)  # in the place of a scale that is NaN
SCALE_WINDOW = i32(36)  # exponents of scales that fused_row takes
NAN_PATTERN = i32(0x7FFFFFFF)
ROW_BLOCK = 512  # rows of a tile: their totals stay in the L2 cache while the steps go by
PANEL_BYTES = 1 << 26  # at most, of the rows of A that are decoded at a time


@scalar
def _scale_flags(scale: Any) -> Any:
    """What the exponent of a scale makes of its row or panel."""
    if scale == NO_SCALE:
        return i32(SPECIAL)
    return i32(DEEP) if (scale > SCALE_WINDOW) | (scale < -SCALE_WINDOW) else i32(0)


@inner_loop
def fill_rows(source: Any, k: Any, terms: Any, facts: Any, values: Any, exponents: Any) -> Any:
    """A row of A from term k on as values and exponents, zeros behind its end; returns what it holds."""
    stop = min(k + terms, source.size)
    flags = fill_row(source[k:stop], facts[0], facts[1], facts[2], values, exponents)
    for i in range(stop - k, terms):
        values[i] = i32(0)
        exponents[i] = i8(ZERO_EXPONENT)
    return flags


@inner_loop
def fill_panel(source: Any, k: Any, j: Any, width: Any, terms: Any, facts: Any, values: Any, exponents: Any) -> Any:
    """Rows k .. of B from column j on as a panel, zeros around it; returns what it holds."""
    flags = i32(0)
    for i in range(terms):
        filled = width if k + i < source.shape[0] else 0
        if filled:
            flags = i32(
                flags | fill_row(source[k + i, j : j + width], facts[0], facts[1], facts[2], values[i], exponents[i])
            )
        for x in range(filled, LANES):
            values[i, x] = i32(0)
            exponents[i, x] = i8(ZERO_EXPONENT)
    return flags


@inner_loop
def _promote(total: Any, c: Any, left: Any, right: Any, mode: Any) -> None:
    """Add a row of partial sums to its totals, and start new ones."""
    for j in range(LANES):
        partial = i32(c[j]).view(f32)
        if mode == PRODUCT:
            total[j] = fused(f32(left * right[j]), partial, total[j])
        elif mode == ROWS_FIRST:
            total[j] = fused(f32(partial * left), right[j], total[j])
        elif mode == COLUMNS_FIRST:
            total[j] = fused(f32(partial * right[j]), left, total[j])
        else:
            total[j] = f32(total[j] + partial)
        if mode == ADD_HALF:
            total[j] = rounded_to_half(total[j])
        c[j] = i32(0)


@inner_loop
def _merge(merged: Any, total: Any) -> None:
    """Add a row of a slice's totals to those of the slices before it, and start new ones: -0 adds nothing."""
    for j in range(LANES):
        merged[j] = f32(merged[j] + total[j])
        total[j] = f32(-0.0)


@inner_loop
def _begin_tile(
    c: Any, m: Any, n: Any, rows: Any, width: Any, promotion: Any, cut: Any, tile: Any, totals: Any, merged: Any
) -> None:
    """What a tile starts from: c, in the totals where partial sums are promoted, or before the first slice."""
    for r in range(rows):
        for j in range(LANES):
            bits = i32(c[m + r, n + j]) if j < width else i32(0)
            start = i32(bits).view(f32)
            tile[r, j] = i32(0) if promotion else bits
            if cut:
                merged[r, j] = start
            totals[r, j] = f32(-0.0) if cut else start


@inner_loop
def _end_tile(
    tile: Any, totals: Any, merged: Any, m: Any, n: Any, rows: Any, width: Any, promotion: Any, cut: Any, c: Any
) -> None:
    """Put the results of a tile into c, every NaN with the same bits."""
    for r in range(rows):
        for j in range(width):
            bits = i32(tile[r, j])
            if cut:
                bits = f32(merged[r, j]).view(i32)
            elif promotion:
                bits = f32(totals[r, j]).view(i32)
            c[m + r, n + j] = NAN_PATTERN if i32(bits & MAGNITUDE) > INFINITE else bits


@inner_loop
def _panel_classes(
    b: Any, k: Any, n: Any, width: Any, terms: Any, kept: Any, scales: Any, scaled: Any, classes: Any
) -> None:
    """The classes of a panel of B; a column whose scale is NaN is one of NaNs."""
    for i in range(terms):
        for j in range(LANES):
            classes[i, j] = NAN_PATTERN if scaled and scales[j] == NO_SCALE else i32(0)
        if k + i < b.shape[0]:
            for j in range(width):
                classes[i, j] = class_of(b[k + i, n + j], kept) if classes[i, j] == i32(0) else NAN_PATTERN


@inner_loop
def _row_classes(row: Any, k: Any, kept: Any, scale: Any, classes: Any) -> None:
    """The classes of a step's terms of a row of A, NaN where its scale is."""
    for i in range(classes.size):
        of_term = class_of(row[k + i], kept) if k + i < row.size else i32(0)
        classes[i] = NAN_PATTERN if scale == NO_SCALE else of_term


@cache
def fused_product(terms: int, joined: bool, half: bool, scaled: bool) -> Any:
    """The loop `(a, b, c, scale_a, scale_b, left, right, u, of_a, of_b, wide, promotion, cut, mode, m0, m1, n0, n1)`.

    It adds a @ b to c in rows m0 .. m1 and columns n0 .. n1.

    a: (M, K), b: (K, N), c: (M, N) float32 patterns as int32; scale_a: (M, steps), scale_b: (steps, N) exponents of
    block scales; left: (M, blocks), right: (blocks, N) float32 factors of partial sums; u: RowFacts; of_a, of_b: the
    bits that the unit reads, the smallest exponent and the base of the relative exponents; wide: the facts of
    wide_row; promotion: steps from one promotion to the next, 0 for none; cut: steps of a slice whose promoted total is
    added to c, and begins anew as its first partial sum is, 0 for none.
    """
    one_row = fused_row(terms, joined, half, scaled)
    count: Any = i64(terms)  # not a constant to numba, which compiles functions once for all such
    has_scales = np.bool_(scaled)

    def product(
        a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, left: Any, right: Any, facts: Any, of_a: Any, of_b: Any,
        wide: Any, promotion: Any, cut: Any, mode: Any, m0: Any, m1: Any, n0: Any, n1: Any,
    ) -> None:  # fmt: skip
        steps = (a.shape[1] + terms - 1) // terms
        block = max(min(PANEL_BYTES // (5 * terms * steps), ROW_BLOCK, m1 - m0), 1)
        u = row_facts(facts)
        a_values, a_exponents = np.empty((steps, block, terms), i32), np.empty((steps, block, terms), i8)
        a_flags = np.empty((steps, block), i32)
        b_values, b_exponents = np.empty((terms, LANES), i32), np.empty((terms, LANES), i8)
        a_classes, b_classes = np.empty(terms, i32), np.empty((terms, LANES), i32)
        tile, totals = np.empty((block, LANES), i32), np.zeros((block, LANES), f32)
        merged = np.zeros((block if cut else 0, LANES), f32)
        lanes_scale, lanes_right = np.zeros(LANES, i32), np.zeros(LANES, f32)
        room = RowScratch(
            np.empty(LANES, i8), np.empty(LANES, i32), np.empty(LANES, i32), np.empty((4, LANES), i32),
            np.empty(LANES, f32),
        )  # fmt: skip
        wide_e, wide_total = np.empty(LANES, i32), np.empty(LANES, f64)
        a_floats, b_floats = a_values.view(f32), b_values.view(f32)

        for m in range(m0, m1, block):
            rows = min(block, m1 - m)
            for s in range(steps):
                for r in range(rows):
                    flags = fill_rows(a[m + r], s * terms, count, of_a, a_values[s, r], a_exponents[s, r])
                    if scaled:
                        flags = i32(flags | _scale_flags(scale_a[m + r, s]))
                    a_flags[s, r] = flags
            for n in range(n0, n1, LANES):
                width = min(LANES, n1 - n)
                _begin_tile(c, m, n, rows, width, promotion, cut, tile, totals, merged)
                for s in range(steps):
                    k = s * terms
                    panel = fill_panel(b, k, n, width, count, of_b, b_values, b_exponents)
                    if scaled:
                        for j in range(width):
                            lanes_scale[j] = scale_b[s, n + j]
                            panel = i32(panel | _scale_flags(lanes_scale[j]))
                    have_classes = False
                    for r in range(rows):
                        flags = i32(panel | a_flags[s, r])
                        scale = scale_a[m + r, s] if scaled else i32(0)
                        if flags & i32(SPECIAL):
                            if not have_classes:
                                _panel_classes(b, k, n, width, count, of_b[0], lanes_scale, has_scales, b_classes)
                                have_classes = True
                            _row_classes(a[m + r], k, of_a[0], scale, a_classes)
                            specials_row(a_classes.view(f32), b_classes.view(f32), count, tile[r], room.specials)
                        if flags & i32(DEEP):
                            wide_row(
                                a_values[s, r], b_values, tile[r], count, scale, lanes_scale, wide, wide_e, wide_total
                            )
                        else:
                            one_row(
                                a_floats[s, r], a_exponents[s, r], b_floats, b_exponents, tile[r], scale, lanes_scale,
                                u, room,
                            )  # fmt: skip
                        if flags & i32(SPECIAL):
                            override(tile[r], room.specials)
                    ends_slice = s + 1 == steps or (cut and (s + 1) % cut == 0)
                    if promotion and (ends_slice or (s % cut if cut else s) % promotion + 1 == promotion):
                        part = s // promotion
                        for j in range(width if left.size else 0):
                            lanes_right[j] = right[part, n + j]
                        for r in range(rows):
                            _promote(totals[r], tile[r], left[m + r, part] if left.size else f32(0), lanes_right, mode)
                    if cut and ends_slice:
                        for r in range(rows):
                            _merge(merged[r], totals[r])
                _end_tile(tile, totals, merged, m, n, rows, width, promotion, cut, c)

    return kernel(product)
