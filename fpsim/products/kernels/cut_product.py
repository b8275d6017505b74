"""The product kernel of units that truncate products apart from the accumulator (`Rule.SEPARATE`, `Rule.EVEN_ODD`).

Products are truncated relative to their largest exponent, as in fused_row.py: exactly in float32, and added up in an
int32. The sum is added to the accumulator as in step_rows.py, which also computes rows with NaN, Inf or exponents
outside the range of panel.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.products.kernels.fused_product import DECODED_BYTES
from fpsim.products.kernels.fused_row import add_eight, add_four, largest
from fpsim.products.kernels.panel import (
    BIAS,
    INFINITE,
    MAGNITUDE,
    MANTISSA_BITS,
    NO_TERM,
    PANEL_COLUMNS,
    fill_panel,
    fill_rows,
)
from fpsim.products.kernels.step_rows import (
    CUT_BITS,
    LEAST,
    RESULT_BITS,
    SUM_BITS,
    StepFacts,
    StepRoom,
    even_odd_row,
    separate_row,
)
from fpsim.products.kernels.vector_cut import PART, vector_cut_rows
from fpsim.products.kernels.wide_row import LEADING_BITS, LONG_BIAS, float_exponent
from fpsim.runtime.compile import inner_loop, kernel, scalar
from fpsim.runtime.float_steps import down, fused

i8, u32, i32, i64, f32, f64 = np.int8, np.uint32, np.int32, np.int64, np.float32, np.float64

ROW_BLOCK = 256
SIZES = 4, 8  # of a sum of products
BELOW = i64((1 << int(LEADING_BITS - RESULT_BITS)) - 1)  # bits of a float64 below those that a total keeps
FAR = i32(-60)  # binades below the accumulator where a sum of products is as good as nothing, or just below nothing
INVERSE = i64(2 * int(LONG_BIAS) << int(LEADING_BITS))  # minus the pattern of a power gives that of its inverse
CARRY = f64(2.0 ** int(CUT_BITS - SUM_BITS))


@scalar
def _power(exponent: Any) -> Any:
    """Return the float64 bits, as int64, of 2.0**exponent for an int32 exponent.

    The bias is added in 32 bits, of which a vector holds twice as many numbers as of 64.
    """
    return i64(i64(u32(i32(exponent + i32(LONG_BIAS)))) << LEADING_BITS)


@scalar
def _joined(c: Any, e: Any, total: Any, drops: Any) -> Any:
    """Return float32 c plus a sum of finite, normal products, as AMD's units align and round them (step_rows._join).

    With `top` the larger exponent of c and the products, the products' sum is rounded down to units of 2**(top - 32)
    and c to units of 2**(top - 24). Their sum is rounded down to 32 bits, and then to nearest even float32. e: largest
    exponent of the products, int32. total: the products' sum, float64, in units of 2**(e - 24). drops: if True, a c
    with an exponent below top - 25 counts as 0 (`Rule.EVEN_ODD`).
    """
    exponent = float_exponent(i32(f32(c).view(i32)), LEAST)
    top = max(e, exponent)
    units = _power(i32(CUT_BITS - top))
    place = _power(i32(max(i32(e - top), FAR) + i32(SUM_BITS - CUT_BITS)))
    mine = down(f64(f64(c) * i64(units).view(f64)))
    mine = f64(0.0) if drops & (exponent < i32(i32(top - CUT_BITS) - i32(1))) else mine
    # never -0: no products are +0
    whole = i64(f64(fused(down(f64(total * i64(place).view(f64))), CARRY, mine)).view(i64))
    # what lies below RESULT_BITS is cut downward, which for a negative number adds to its magnitude
    kept = i64(i64(whole + i64(i64(whole >> i64(63)) & BELOW)) & ~BELOW)
    return f32(i64(kept).view(f64) * i64(INVERSE - units).view(f64))


@scalar
def _new_or_old(c: Any, none: Any, new: Any) -> Any:
    """Return the new sum, or the old accumulator c if c is NaN or Inf, or if `none` is True (all products are zero).

    c, new: float32. An old c of -0 is returned as +0.
    """
    bits = i32(f32(c).view(i32))
    magnitude = i32(bits & MAGNITUDE)
    old = i32(bits if magnitude != i32(0) else i32(0)).view(f32)
    return old if none | (magnitude >= INFINITE) else new


def _usual_rows(terms: int, halves: int, vectors: bool) -> Any:
    """Return the kernel that adds products to rows of c, for finite terms whose int8 exponents are in -20 .. 20.

    Its arguments are (a, ea, b, eb, c, (first, stop, base, parts), e8, other, words). It adds the products of rows
    first .. stop - 1 of a with b to the same rows of c. terms: products of one instruction. halves: 2 to sum even and
    odd terms separately, else 1. vectors: use AVX-512.

    a, ea: (rows, terms) float32 values and int8 exponents. b, eb: (terms, PANEL_COLUMNS) of these dtypes. c: (rows,
    PANEL_COLUMNS) float32. base: the exponent of a product minus the int8 exponents of its factors. parts: number of
    blocks of PART (64) columns that are computed with AVX-512. Scratch buffers: e8, other: (PANEL_COLUMNS,) int8;
    words: (3, PANEL_COLUMNS) int32.
    """
    size, two = terms // halves, halves == 2

    def cut(ea: Any, b: Any, eb: Any, a: Any, first: Any, base: Any, e8: Any, power: Any, sums: Any) -> None:
        """Set e8[j] to the largest exponent of the products in column j, and sums[j] to the sum of truncated products.

        The products are those of terms // halves terms from `first` on. a, ea: (terms,) float32 and int8; b, eb:
        (terms, PANEL_COLUMNS) of these dtypes. base: exponent of a product minus the int8 exponents of its factors. e8,
        power, sums: (PANEL_COLUMNS,): int8; int32 scratch buffer; int32, in units of 2**(e8[j] + base - 24).
        """
        at, end = first, first + size
        largest(ea[at:end], eb[at:end], size, e8)
        for j in range(PANEL_COLUMNS):
            power[j] = i32(i32(i32(BIAS + CUT_BITS) - i32(i32(e8[j]) + base)) << MANTISSA_BITS)
            sums[j] = i32(0)
        if size == 4:
            add_four(a[at:end], b[at:end], 0, power.view(f32), sums)
        else:
            add_eight(a[at:end], b[at:end], 0, power.view(f32), sums)

    cut = scalar(cut)

    def fast_row(
        a: Any, ea: Any, b: Any, eb: Any, c: Any, base: Any, e8: Any, other: Any, words: Any
    ) -> None:  # fmt: skip
        """Add an instruction's products to c (PANEL_COLUMNS,) float32, one row of a tile of results, in place.

        a, ea: (terms,) float32 values and int8 exponents. b, eb: (terms, PANEL_COLUMNS) of these dtypes. base: exponent
        of a product minus the int8 exponents of its factors. Scratch buffers: e8, other: (PANEL_COLUMNS,) int8; words:
        (3, PANEL_COLUMNS) int32.
        """
        power, sums, odd = words[0], words[1], words[2]
        cut(ea, b, eb, a, 0, base, e8, power, sums)
        if not two:
            for j in range(PANEL_COLUMNS):
                none = i32(e8[j]) <= i32(NO_TERM)
                new = _joined(c[j], i32(i32(e8[j]) + base), f64(sums[j]), False)
                c[j] = _new_or_old(c[j], none, new)
            return
        cut(ea, b, eb, a, size, base, other, power, odd)
        for j in range(PANEL_COLUMNS):
            e, f = i32(max(e8[j], NO_TERM)), i32(max(other[j], NO_TERM))
            top = max(e, f)
            left = f64(sums[j]) if e > i32(NO_TERM) else f64(0.0)
            right = f64(odd[j]) if f > i32(NO_TERM) else f64(0.0)
            total = f64(
                down(f64(left * i64(_power(i32(e - top))).view(f64)))
                + down(f64(right * i64(_power(i32(f - top))).view(f64)))
            )
            c[j] = _new_or_old(c[j], top <= i32(NO_TERM), _joined(c[j], i32(top + base), total, True))

    in_vectors: Any = vector_cut_rows(terms, halves) if vectors else None

    def vector_rows(a: Any, ea: Any, b: Any, eb: Any, c: Any, place: Any, _e8: Any, _other: Any, _words: Any) -> None:
        first, stop, base, parts = place
        in_vectors(a, ea, b, eb, c, (i64(first), i64(stop), base, parts))

    fast_row = scalar(fast_row)

    def fast_rows(a: Any, ea: Any, b: Any, eb: Any, c: Any, place: Any, e8: Any, other: Any, words: Any) -> None:
        first, stop, base, _ = place
        for r in range(first, stop):
            fast_row(a[r], ea[r], b, eb, c[r], base, e8, other, words)

    return scalar(vector_rows if vectors else fast_rows)


def _in_halves(terms: int, halves: int) -> Any:
    """Return the function that copies the terms of an instruction, for separate sums of even and odd terms.

    Its arguments are (values, exponents, other_values, other_exponents): it copies the first two to the last two.
    terms: number of terms of an instruction. halves: 2 to copy first the even terms, then the odd ones; 1 to copy all
    in order.
    """
    order = np.array([i for half in range(halves) for i in range(half, terms, halves)])

    def ordered(values: Any, exponents: Any, other_values: Any, other_exponents: Any) -> None:
        for i in range(terms):
            other_values[i], other_exponents[i] = values[order[i]], exponents[order[i]]

    return scalar(ordered)


def _row_by_terms(terms: int, halves: int) -> Any:
    """Return the kernel that adds an instruction's terms to one row of results; NaN, Inf and all exponents are allowed.

    Its arguments are (a, b, place, panel_is_raw, raw_a, raw_b, tile, u, room), which `careful_row` below explains.
    terms: number of terms of an instruction. halves: 2 for separate sums of even and odd terms (`Rule.EVEN_ODD`), else
    1.
    """
    row_by_terms = even_odd_row if halves == 2 else separate_row

    def careful_row(
        a: Any, b: Any, place: Any, panel_is_raw: Any, raw_a: Any, raw_b: Any, tile: Any, u: StepFacts, room: StepRoom
    ) -> None:
        """Add an instruction's terms from k on to row r of `tile`, a block of results, in place.

        a: (M, K), b: (K, N) float32. place: (first row of the tile in a, first column of the tile in b, k, r, number of
        columns). panel_is_raw: True if raw_b already has the floats of these terms of b. raw_a: (terms,), raw_b:
        (terms, PANEL_COLUMNS), float32 buffers for these terms of a and b. tile: (rows, PANEL_COLUMNS) float32. u:
        facts on the operands' formats. room: scratch buffers.
        """
        m, n, k, r, width = place
        count = min(terms, a.shape[1] - k)
        for i in range(count):
            raw_a[i] = a[m + r, k + i]
            for j in range(0 if panel_is_raw else width):
                raw_b[i, j] = b[k + i, n + j]
        row_by_terms(raw_a, raw_b, tile[r], count, u, room)

    return inner_loop(careful_row)


@cache
def cut_product(terms: int, halves: int, vectors: bool) -> Any:
    """Return the kernel (a, b, c, of_a, of_b, base, facts, (m0, m1, n0, n1)) -> None, which adds a @ b to part of c.

    terms: number of terms of an instruction. halves: 1, or 2 for separate sums of even and odd terms. vectors: use
    AVX-512.

    Arguments of the kernel:
      a, b: (M, K) and (K, N) float32 patterns as int32. c: (M, N) float32, of which rows m0 .. m1 - 1 and columns n0
        .. n1 - 1 change.
      of_a, of_b: int32 (mask of the bits that the unit reads, smallest exponent, base exponent) of each operand.
      base: the sum of both base exponents, which are subtracted from exponents so that they fit a byte.
      facts: (5,) float64: both formats' smallest exponents, their smallest normal values, the sum of their mantissa
        bits.
    """
    count: Any = i64(terms)
    usual_rows = _usual_rows(terms, halves, vectors)
    ordered, careful_row = _in_halves(terms, halves), _row_by_terms(terms, halves)

    def product(a: Any, b: Any, c: Any, of_a: Any, of_b: Any, base: Any, facts: Any, part: Any) -> None:
        m0, m1, n0, n1 = part
        steps = (a.shape[1] + terms - 1) // terms
        block = max(min(DECODED_BYTES // (5 * terms * steps), ROW_BLOCK, m1 - m0), 1)
        u = StepFacts(i32(facts[0]), i32(facts[1]), f32(facts[2]), f32(facts[3]), i32(facts[4]))
        a_values, a_exponents = np.empty((steps, block, terms), i32), np.empty((steps, block, terms), i8)
        b_values, b_exponents = np.empty((terms, PANEL_COLUMNS), i32), np.empty((terms, PANEL_COLUMNS), i8)
        read_values, read_exponents = np.empty((terms, PANEL_COLUMNS), i32), np.empty((terms, PANEL_COLUMNS), i8)
        a_flags, tile = np.empty((steps, block), i32), np.zeros((block, PANEL_COLUMNS), f32)
        raw_a, raw_b = np.zeros(terms, f32), np.zeros((terms, PANEL_COLUMNS), f32)
        e8, other, words = np.empty(PANEL_COLUMNS, i8), np.empty(PANEL_COLUMNS, i8), np.empty((3, PANEL_COLUMNS), i32)
        room = StepRoom(
            np.empty((2, PANEL_COLUMNS), i32), np.empty((2, PANEL_COLUMNS), f64), np.empty(PANEL_COLUMNS, f64)
        )
        a_row, b_floats, a_floats = a.view(f32), b_values.view(f32), a_values.view(f32)
        b_rows = b.view(f32)
        for m in range(m0, m1, block):
            rows = min(block, m1 - m)
            for s in range(steps):
                for r in range(rows):
                    a_flags[s, r] = fill_rows(a[m + r], s * terms, count, of_a, read_values[0], read_exponents[0])
                    ordered(read_values[0], read_exponents[0], a_values[s, r], a_exponents[s, r])
            for n in range(n0, n1, PANEL_COLUMNS):
                width = min(PANEL_COLUMNS, n1 - n)
                parts = i64((width + PART - 1) // PART)
                for r in range(rows):
                    for j in range(width):
                        tile[r, j] = c[m + r, n + j]
                for s in range(steps):
                    k, panel_is_raw = s * terms, False
                    b_flags = fill_panel(b, k, n, width, count, of_b, read_values, read_exponents)
                    ordered(read_values, read_exponents, b_values, b_exponents)
                    a_step, a_bytes, r = a_floats[s], a_exponents[s], 0
                    while r < rows:
                        stop = r
                        while stop < rows and i32(b_flags | a_flags[s, stop]) == i32(0):
                            stop += 1
                        usual_rows(
                            a_step, a_bytes, b_floats, b_exponents, tile, (r, stop, base, parts), e8, other, words
                        )
                        r = stop
                        if r < rows:
                            careful_row(a_row, b_rows, (m, n, k, r, width), panel_is_raw, raw_a, raw_b, tile, u, room)
                            panel_is_raw = True
                            r += 1
                for r in range(rows):
                    for j in range(width):
                        c[m + r, n + j] = tile[r, j]

    return kernel(product)
