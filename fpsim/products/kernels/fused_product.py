"""The product kernel of units of `Rule.FUSED`: panels, tiles, promotion, and rows that need care.

A tile is a block of result rows by 64 or 128 columns. Instructions along K are applied to a tile one after the other: a
panel (the terms of one instruction for these columns of b) is decoded once and stays in the L1 cache for all rows of a.
A row of an instruction whose exponents exceed the range of fused_row.py is computed by wide_row.py. NaN and Inf are
added separately from the finite sum. Both are decided per row and instruction, so that a few such values cost little.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.products.kernels.chained_row import chained_row
from fpsim.products.kernels.code_panel import code_class, half_class
from fpsim.products.kernels.fused_row import RowPlace, RowScratch, fused_row, row_facts, specials_row
from fpsim.products.kernels.panel import DEEP, INFINITE, MAGNITUDE, SPECIAL, class_of
from fpsim.products.kernels.promotion import PLAIN, in_vectors
from fpsim.products.kernels.vector_row import vector_row
from fpsim.products.kernels.wide_row import wide_row
from fpsim.runtime.compile import inner_loop, kernel, scalar

i8, i32, i64, u64, f32, f64 = np.int8, np.int32, np.int64, np.uint64, np.float32, np.float64

NO_SCALE = i32(1 << 20)  # replaces the exponent of a scale that is NaN
SCALE_WINDOW = i32(36)  # largest magnitude of a scale's exponent for fused_row
NAN_PATTERN = i32(0x7FFFFFFF)
ROW_BLOCK = 512  # rows of a tile: their totals stay in the L2 cache for all steps
DECODED_BYTES = 1 << 26  # at most, of the rows of A that are decoded at a time


@scalar
def _scale_flags(scale: Any) -> Any:
    """Return the flag (int32) of a scale's exponent: SPECIAL for NO_SCALE (NaN), DEEP for |exponent| > 36, else 0."""
    if scale == NO_SCALE:
        return i32(SPECIAL)
    return i32(DEEP) if (scale > SCALE_WINDOW) | (scale < -SCALE_WINDOW) else i32(0)


@inner_loop
def _begin_tile(c: Any, part: Any, promotion: Any, cut: Any, tile: Any, totals: Any, merged: Any) -> None:
    """Copy the values of c at which the sums of a tile (a block of results) start.

    Without promotion they go to `tile`. With promotion (partial sums are added to a total) they go to `totals` and
    `tile` is set to +0. With promotion and slices of K they go to `merged`, `tile` is set to +0 and `totals` to -0.
    Padding columns of `tile` become +0, those of `totals` -0. c, tile: int32 patterns of float32; totals, merged:
    float32. part: (first row, first column, number of rows, number of columns). promotion, cut: instructions per
    promotion and per slice, 0 for none.

    Indices are unsigned, since numba tests whether signed ones count from the end; without the test the compiler reads
    adjacent words together. Slices of the arrays take longer.
    """
    m, n, rows, width = part
    for r in range(rows):
        row = u64(m + r)
        for j in range(width, tile.shape[1]):
            tile[r, j] = i32(0)
        if not promotion:
            for j in range(width):
                tile[r, j] = c[row, u64(n + j)]
            continue
        for j in range(width):
            tile[r, j] = i32(0)
            totals[r, j] = f32(-0.0) if cut else i32(c[row, u64(n + j)]).view(f32)
        for j in range(width, tile.shape[1]):
            totals[r, j] = f32(-0.0)
        if cut:
            for j in range(width):
                merged[r, j] = i32(c[row, u64(n + j)]).view(f32)


@scalar
def _one_nan(bits: Any) -> Any:
    """Return float32 bits (int32) unchanged, or NAN_PATTERN (0x7FFFFFFF) for any NaN."""
    return NAN_PATTERN if i32(bits & MAGNITUDE) > INFINITE else bits


@inner_loop
def _end_tile(tile: Any, totals: Any, merged: Any, part: Any, promotion: Any, cut: Any, c: Any) -> None:
    """Copy the sums of a finished tile (a block of results) to its part of c, every NaN as NAN_PATTERN (0x7FFFFFFF).

    The sums are in `merged` (float32) with slices of K. Without slices they are in `totals` (float32) if partial sums
    are added to a total (promotion), else in `tile` (float32 patterns as int32). part: (first row, first column, number
    of rows, number of columns). promotion, cut: instructions per partial sum and per slice, 0 for none. c: (M, N)
    float32 patterns as int32.
    """
    m, n, rows, width = part
    for r in range(rows):
        row = u64(m + r)
        if cut:
            for j in range(width):
                c[row, u64(n + j)] = _one_nan(i32(f32(merged[r, j]).view(i32)))
        elif promotion:
            for j in range(width):
                c[row, u64(n + j)] = _one_nan(i32(f32(totals[r, j]).view(i32)))
        else:
            for j in range(width):
                c[row, u64(n + j)] = _one_nan(i32(tile[r, j]))


@scalar
def _class_at(b: Any, k: Any, n: Any, facts: Any) -> Any:
    """Return the class of term k and column n of b, as float32 bits: -1, -0, 0 or 1 by its sign, Inf or NaN.

    b: (K, N) float32 patterns as int32. facts: int32; facts[0] is the mask of the bits that the unit reads.
    """
    return class_of(b[k, n], facts[0])


@cache
def _panel_classes(source: str) -> Any:
    """Return the loop that writes the class of an instruction's terms of b: -1, -0, 0, 1 (by sign), Inf or NaN.

    source: what b holds, "floats" or codes as "bytes" (up to 8 bits) or "halves" (FP16, BF16). The arguments of the
    loop are b, first term k, first column n, number of columns `width`, number of terms, facts (row 2 of the array that
    `fused_facts` returns), scales of the columns, whether b has scales, and classes. It fills `classes`, (terms,
    columns), with float32 bits as int32; a column whose scale is NaN is all NaN.
    """
    class_at = {"floats": _class_at, "bytes": code_class, "halves": half_class}[source]

    def panel_classes(
        b: Any, k: Any, n: Any, width: Any, terms: Any, facts: Any, scales: Any, scaled: Any, classes: Any
    ) -> None:
        for i in range(classes.shape[0]):
            for j in range(classes.shape[1]):
                classes[i, j] = NAN_PATTERN if scaled and scales[j] == NO_SCALE else i32(0)
        for i in range(terms):
            for j in range(width):
                classes[i, j] = class_at(b, k + i, n + j, facts) if classes[i, j] == i32(0) else NAN_PATTERN

    return inner_loop(panel_classes)


# Code for a few rows is not inlined: it would take registers from the loops over all other rows.


@inner_loop
def _meet_specials(
    a: Any, place: Any, kept: Any, scale_a: Any, scaled: Any, a_classes: Any, b_classes: Any, tile: Any, specials: Any
) -> None:
    """Compute the NaN and Inf that an instruction adds to rows r .. stop - 1 of results.

    They are written to rows 0, 1, ... of `specials` (float32); columns without NaN or Inf get finite numbers.

    Args:
      a: (M, K) float32 patterns as int32.
      place: (the tile's first row in a, r, stop, the instruction's number, its first term).
      kept: mask of the bits that the unit reads.
      scale_a: (M, steps) exponents of block scales, read if `scaled`; NO_SCALE (NaN) makes all terms NaN.
      a_classes: int32 scratch buffer (terms,). b_classes: classes of b's terms, from `_panel_classes`.
      tile: the sums so far; it does not change.
    """
    m, r, stop, s, k = place
    for x in range(r, stop):
        scale = scale_a[m + x, s] if scaled else i32(0)
        row = a[m + x]
        for i in range(a_classes.size):  # terms beyond K are 0
            of_term = class_of(row[k + i], kept) if k + i < row.size else i32(0)
            a_classes[i] = NAN_PATTERN if scale == NO_SCALE else of_term
        specials_row(a_classes.view(f32), b_classes.view(f32), a_classes.size, tile[x], specials[x - r])


@inner_loop
def _wide_rows(
    a_values: Any, place: Any, b_values: Any, tile: Any, scale_a: Any, column_scales: Any, wide: Any, e: Any, total: Any
) -> None:
    """Add one instruction's products to rows r .. stop - 1 of `tile`, a block of results, in float64 (wide_row.py).

    Args:
      a_values, b_values: (steps, rows, terms) and (terms, columns), decoded float32 patterns as int32.
      place: (the tile's first row in a, r, stop, the instruction's number, whether a has scales).
      tile: (rows, columns) float32 patterns as int32, changed in place.
      scale_a, column_scales: (M, steps) and (columns,), exponents of block scales.
      wide: int32 array of the unit's properties, the fields of WideFacts.
      e, total: int32 and float64 scratch buffers (columns,).
    """
    m, r, stop, s, scaled = place
    for x in range(r, stop):
        scale = scale_a[m + x, s] if scaled else i32(0)
        wide_row(a_values[s, x], b_values, tile[x], i64(a_values.shape[2]), scale, column_scales, wide, e, total)


@inner_loop
def _override_rows(tile: Any, r: Any, stop: Any, specials: Any) -> None:
    """Write the NaN and Inf in rows 0, 1, ... of `specials` over the results in rows r .. stop - 1 of `tile`.

    tile: (rows, columns) float32 patterns as int32. specials: (rows, columns) float32; its finite elements are ignored.
    """
    for x in range(r, stop):
        row, met = tile[x], specials[x - r].view(i32)
        for j in range(row.size):
            row[j] = met[j] if i32(i32(met[j]) & MAGNITUDE) >= INFINITE else row[j]


@cache
def _joining_rows(vectors: bool) -> Any:
    """Return the loop (merged, totals, tile, place, left, right, mode, merges) -> None that promotes partial sums.

    It adds rows r .. stop - 1 of `tile` (partial sums, then set to +0), times their scales, to the same rows of
    `totals`. If `merges` is True, at the end of a slice of K, it adds these rows to `merged`, the earlier slices' sums.
    place: (m, r, stop, part). m: the row of the product where the tile begins, so that row x of the tile has the scale
    left[m + x, part]; part: index of the partial sum along K. left: (M, partial sums) scales; right: (columns,) scales.
    mode: how scales multiply (promotion.py). vectors: use AVX-512 or AVX2.
    """
    promote, merge = in_vectors() if vectors else PLAIN

    def join_rows(
        merged: Any, totals: Any, tile: Any, place: Any, left: Any, right: Any, mode: Any, merges: Any
    ) -> None:
        m, r, stop, part = place
        for x in range(r, stop):
            promote(totals, tile, x, left[m + x, part] if left.size else f32(0), right, mode)
            if merges:
                merge(merged, totals, x)

    return inner_loop(join_rows)


@cache
def fused_product(
    terms: int, joined: bool, half: bool, scaled: bool, kind: str = "plain", source: str = "floats"
) -> Any:  # fmt: skip
    """Return the kernel (a, b, c, parts, scale_a, scale_b, left, right, facts) -> None that adds products a @ b to c.

    Args:
      terms: products of one instruction.
      joined: whether sums of eight products fill an int32 and are added up in an int64.
      half: whether results are FP16, held as float32.
      scaled: whether the unit multiplies block scales.
      kind: the name of the innermost loops, a result of fast_units.rows_of.
      source: what b holds, "floats", or codes as "bytes" or "halves" (code_panel.py).

    Arguments of the kernel:
      a, b, c: stacks (A, M, K), (B, K, N) and (C, M, N) of float32 patterns as int32; b may be codes. c changes.
      parts: (1 + P, 5) int64. Row 0: instructions per promotion (after which a partial sum is added to a float32
        total), instructions per slice of K (0 for none), how partial sums are scaled (promotion.py), and the columns n0
        .. n1 - 1 of the result as n0 and n1. Each other row (i, j, l, m0, m1): add a[i] @ b[j] to rows m0 .. m1 - 1 of
        c[l].
      scale_a, scale_b: (M, steps) and (steps, N) int32 exponents of block scales, per instruction.
      left, right: (M, partial sums) and (partial sums, N) float32 scales of partial sums.
      facts: (4, 8) int32, from `fpsim.products.fused.fused_facts`.
    """
    if kind == "chained":
        loops = chained_row(terms, half)
    elif kind in ("avx512", "avx2"):
        loops = vector_row(terms, joined, half, scaled, kind == "avx512")
    else:
        loops = fused_row(terms, joined, half, scaled)
    join_rows = _joining_rows(kind != "plain")
    panel_of, decode, begin, step = loops.panel, loops.decode, loops.begin, loops.step
    room_of = loops.room
    fill, panel_classes = loops.fills[source], _panel_classes(source)
    columns: Any = i64(loops.columns)
    at_once: Any = i64(loops.rows)
    count: Any = i64(terms)  # not a constant to numba, which compiles functions once for all such
    has_scales = np.bool_(scaled)

    def product(
        stack_a: Any, stack_b: Any, stack_c: Any, parts: Any, scale_a: Any, scale_b: Any, left: Any, right: Any,
        facts: Any,
    ) -> None:  # fmt: skip
        promotion, cut, mode, n0, n1 = parts[0, 0], parts[0, 1], parts[0, 2], parts[0, 3], parts[0, 4]
        of_a, of_b, wide = facts[1], facts[2], facts[3]
        steps = (stack_a.shape[2] + terms - 1) // terms
        most = i64(1)
        for i in range(1, parts.shape[0]):
            most = max(most, i64(parts[i, 4] - parts[i, 3]))
        block = max(min(DECODED_BYTES // (5 * terms * steps), ROW_BLOCK, most), 1)
        u = row_facts(facts[0])
        a_values, a_exponents = np.empty((steps, block, terms), i32), np.empty((steps, block, terms), i8)
        a_flags = np.empty((steps, block), i32)
        b_values, b_exponents, b_floats, b_bytes = panel_of()
        b_codes = np.empty((terms, columns), stack_b.dtype)
        a_classes, b_classes = np.empty(terms, i32), np.empty((terms, columns), i32)
        tile, totals = np.empty((block, columns), i32), np.zeros((block if promotion else 0, columns), f32)
        merged = np.zeros((block if cut else 0, columns), f32)
        column_scales, column_factors = np.zeros(columns, i32), np.zeros(columns, f32)
        room = RowScratch(
            np.empty(at_once * columns, i8), np.empty(columns, i32), np.empty(columns, i32),
            np.empty((4, columns), i32), np.empty((at_once, columns), f32),
        )  # fmt: skip
        e, step_room = room.e, room_of(room)
        wide_e, wide_total = np.empty(columns, i32), np.empty(columns, f64)
        a_floats = a_values.view(f32)

        for i in range(1, parts.shape[0]):
            a, b, c = stack_a[parts[i, 0]], stack_b[parts[i, 1]], stack_c[parts[i, 2]]
            m0, m1 = parts[i, 3], parts[i, 4]
            for m in range(m0, m1, block):
                rows = min(block, m1 - m)
                for s in range(steps):
                    decode(a, m, rows, s * terms, of_a, a_values, a_exponents, s, a_flags)
                    for r in range(rows if scaled else 0):
                        a_flags[s, r] = i32(a_flags[s, r] | _scale_flags(scale_a[m + r, s]))
                for n in range(n0, n1, columns):
                    width = min(columns, n1 - n)
                    _begin_tile(c, (m, n, rows, width), promotion, cut, tile, totals, merged)
                    for s in range(steps):
                        k = s * terms
                        b_flags = fill(b, (k, n, width), of_b, b_values, b_exponents, b_floats, b_bytes, b_codes)
                        if scaled:
                            for j in range(width):
                                column_scales[j] = scale_b[s, n + j]
                                b_flags = i32(b_flags | _scale_flags(column_scales[j]))
                        have_classes, begun = False, False
                        ends_slice = s + 1 == steps or (cut and (s + 1) % cut == 0)
                        ends_sum = promotion and (ends_slice or (s % cut if cut else s) % promotion + 1 == promotion)
                        part = s // promotion if ends_sum else 0
                        for j in range(width if ends_sum and left.size else 0):
                            column_factors[j] = right[part, n + j]
                        a_step, a_bytes = a_floats[s], a_exponents[s]  # once, as making and releasing views takes time
                        for r in range(0, rows, at_once):
                            stop = min(r + at_once, rows)
                            flags = i32(b_flags | i32(a_flags[s, r] | a_flags[s, stop - 1]))  # a row, or two
                            if flags & i32(SPECIAL):
                                if not have_classes:
                                    left_over = min(count, a.shape[1] - k)
                                    panel_classes(b, k, n, width, left_over, of_b, column_scales, has_scales, b_classes)
                                    have_classes = True
                                _meet_specials(
                                    a, (m, r, stop, s, k), of_a[0], scale_a, has_scales, a_classes, b_classes, tile,
                                    room.specials,
                                )  # fmt: skip
                            if flags & i32(DEEP):
                                _wide_rows(
                                    a_values, (m, r, stop, s, has_scales), b_values, tile, scale_a, column_scales, wide,
                                    wide_e, wide_total,
                                )  # fmt: skip
                                begun = False
                            else:
                                if not begun:
                                    begin(a_bytes, r, rows, b_bytes, e)
                                    begun = True
                                scale = scale_a[m + r, s] if scaled else i32(0)
                                place = RowPlace(r, rows, width, scale)
                                step(a_step, a_bytes, b_floats, b_bytes, tile, column_scales, place, u, step_room)
                            if flags & i32(SPECIAL):
                                _override_rows(tile, r, stop, room.specials)
                            if ends_sum:
                                merges = cut != 0 and ends_slice
                                join_rows(merged, totals, tile, (m, r, stop, part), left, column_factors, mode, merges)
                    _end_tile(tile, totals, merged, (m, n, rows, width), promotion, cut, c)

    return kernel(product)
