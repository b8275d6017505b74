"""Kernel of the exact accumulator in float64: sums that one or two floats hold exactly.

The products of a strip of rows and a panel of columns are multiples of 2**L below 2**E. If a sum of K of them fits 53
bits, they are added directly. Otherwise there are two sums, both exact for E - L of up to 104 - 2 * log2(K). The first
starts at 1.5 * 2**q so that its last place never moves, and collects the upper part of every product; the second
collects the remainders (Rump, Ogita and Oishi 2008, extraction of high order parts). All other strips, and sums that
are zero, whose sign depends on their terms, are added by digits (core/sums/long_sum.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.number import FINITE
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.philox import random_word
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.sums.exact_sum import exact_sum, sum_layouts
from fpsim.core.sums.long_sum import add_term, add_word, clear, total
from fpsim.core.sums.sum_order import Randomness, Rows
from fpsim.core.sums.term import term_of
from fpsim.runtime.compile import inner_loop, kernel, scalar
from fpsim.runtime.float_steps import fused as fma

i64, f64, u64 = np.int64, np.float64, np.uint64

STRIP = 64  # rows
COLUMNS = 64  # of a panel
TERMS = 32  # of a block of a panel: 16 KiB
ONE_BIN = i64(53)  # bits that a float holds
TWO_BINS = i64(104)
REACH = i64(900)  # largest magnitude of exponents for which all numbers here are normal

MAGNITUDE, INFINITE = u64((1 << 63) - 1), u64(0x7FF << 52)
MANTISSA_BITS, BIAS = u64(52), i64(1023)
ZERO, ONE = u64(0), u64(1)
DIGITS_ALONE = i64(0)  # in place of the number of floats that hold a sum


def _range_of(x: Any, i: int, rows: int, j: int, columns: int) -> Any:
    """Return the largest and the smallest nonzero magnitude of a part of a matrix, as bits of float64 (uint64).

    The part is rows i .. i + rows - 1 and columns j .. j + columns - 1 of x, uint64 bits of float64. 1 is
    subtracted from the bits of the smallest, so that a zero wraps around to the largest integer and is never smallest.
    """
    most, least = ZERO, MAGNITUDE
    for r in range(i, i + rows):
        row = x[r, j : j + columns]
        for c in range(row.size):
            magnitude = u64(row[c] & MAGNITUDE)
            most = max(most, magnitude)
            least = min(least, u64(magnitude - ONE))  # zero wraps around to the largest word
    return most, least


range_of = inner_loop(_range_of)


@scalar
def _exponent(bits: Any) -> Any:
    """Return the unbiased exponent of a positive float64; bits: its bits as uint64."""
    return i64(i64(bits >> MANTISSA_BITS) - BIAS)


@scalar
def _power(exponent: Any) -> Any:
    """Return 2**exponent as a float64; the exponent must be that of a normal float64."""
    return u64(u64(exponent + BIAS) << MANTISSA_BITS).view(f64)


@scalar  # the kernel knows that its arrays share no memory, which a loop by itself looks at for every k
def one_bin(a: Any, b: Any, s: Any) -> None:
    """Add the products a[k] * b[k, j], k < TERMS, to s[j] in place.

    a: (TERMS,), b: (TERMS, COLUMNS), s: (COLUMNS,), float64. The caller ensures that no addition rounds.
    """
    for k in range(0, TERMS, 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for j in range(COLUMNS):
            s[j] = fma(a3, b3[j], fma(a2, b2[j], fma(a1, b1[j], fma(a0, b0[j], s[j]))))


@scalar
def _split(x: Any, y: Any, a: Any, b: Any) -> Any:
    """Return (x + h, y + l), both exact float64: h is a * b rounded to multiples of x's last place, and l = a * b - h.

    x, y, a, b: float64.
    """
    after = f64(fma(a, b, x))
    return after, f64(y + fma(a, b, f64(x - after)))


@scalar
def two_bins(a: Any, b: Any, s: Any, t: Any) -> None:
    """Add the products a[k] * b[k, j], k < TERMS, to two sums in place: upper parts to s[j], remainders to t[j].

    a: (TERMS,), b: (TERMS, COLUMNS), s, t: (COLUMNS,), float64. An upper part is the product rounded to multiples of
    the last place of s[j], which never moves. No addition rounds.
    """
    for k in range(0, TERMS, 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for j in range(COLUMNS):
            x, y = _split(s[j], t[j], a0, b0[j])
            x, y = _split(x, y, a1, b1[j])
            x, y = _split(x, y, a2, b2[j])
            s[j], t[j] = _split(x, y, a3, b3[j])


def _fill(source: Any, i: int, rows: int, j: int, columns: int, target: Any) -> None:
    """Copy a part of a matrix to target[:rows, :columns] and set the rest of target to 0; all are float64.

    The part is rows i .. i + rows - 1 and columns j .. j + columns - 1 of source.
    """
    target[:, :] = f64(0)
    for r in range(rows):
        for c in range(columns):
            target[r, c] = source[i + r, j + c]


fill = inner_loop(_fill)


@scalar
def _add_float(digits: Any, origin: Any, value: Any, unit: Any) -> None:
    """Add the float64 `value`, a multiple of 2**unit below 2**(unit + 63), to the digits of an exact sum in place.

    digits: int64; digit i counts units of 2**(origin + 32 * i).
    """
    count = i64(f64(value * _power(i64(-unit))))
    add_word(digits, origin, i64(count < i64(0)), u64(abs(count)), unit)


@cache
def strips_kernel() -> Any:
    """Return the kernel that computes exact sums in float64, for blocks of up to 64 rows by 64 columns of the result.

    The kernel is `(x, a, b, out, first, stop, spans, plan, r)`, and computes blocks first .. stop - 1, counted along
    rows of blocks. x: a Rows with the operands' codes. a (M, K), b (K, N): float64 values of x.a and x.b. out: (M, N)
    uint64 codes, written. spans: (2, 2); the first row has the exponents of the smallest values of the formats of a and
    b, the second their precisions. plan: an ExactPlan, which says how sums are held and rounded. r: a Randomness,
    rounding mode and seed.
    """

    def strips(x: Rows, a: Any, b: Any, out: Any, first: int, stop: int, spans: Any, plan: Any, r: Randomness) -> None:
        f = sum_layouts(plan.layouts, r.mode, plan.rules)
        terms, columns, origin = a.shape[1], out.shape[1], i64(plan.lowest)
        panels = (columns + COLUMNS - 1) // COLUMNS
        doublings = i64(0)
        while (1 << doublings) < terms:
            doublings += i64(1)
        a_bits, b_bits = a.view(u64), b.view(u64)
        digits = np.zeros(plan.digits, np.int64)
        left, right = np.empty((STRIP, TERMS), f64), np.empty((TERMS, COLUMNS), f64)
        upper, lower = np.empty((STRIP, COLUMNS), f64), np.empty((STRIP, COLUMNS), f64)
        for strip in range(first, stop):
            i, j = strip // panels * STRIP, strip % panels * COLUMNS
            height, width = min(STRIP, out.shape[0] - i), min(COLUMNS, columns - j)
            a_most, a_least = range_of(a_bits, i, height, 0, terms)
            b_most, b_least = range_of(b_bits, 0, terms, j, width)
            highest = i64(i64(_exponent(a_most) + _exponent(b_most)) + i64(2))
            unit = i64(
                max(i64(i64(_exponent(u64(a_least + ONE)) + i64(1)) - spans[1, 0]), spans[0, 0])
                + max(i64(i64(_exponent(u64(b_least + ONE)) + i64(1)) - spans[1, 1]), spans[0, 1])
            )
            last = i64(highest + doublings) - i64(50)  # the exponent of the first sum's last place
            bins = DIGITS_ALONE
            finite = (a_most < INFINITE) & (b_most < INFINITE) & (a_most != ZERO) & (b_most != ZERO)
            if finite & (abs(highest) < REACH) & (abs(unit) < REACH):
                if i64(highest - unit) <= i64(TWO_BINS - i64(doublings + doublings)):
                    bins = i64(2)
                if i64(i64(highest + doublings) - unit) <= ONE_BIN:
                    bins = i64(1)
            start = f64(1.5) * _power(i64(last + i64(52))) if bins == i64(2) else f64(0)
            if bins != DIGITS_ALONE:
                upper[:, :], lower[:, :] = start, f64(0)
                for k in range(0, terms, TERMS):
                    count = min(TERMS, terms - k)
                    fill(a, i, height, k, count, left)
                    fill(b, k, count, j, width, right)
                    for row in range(height):
                        if bins == i64(1):
                            one_bin(left[row], right, upper[row])
                        else:
                            two_bins(left[row], right, upper[row], lower[row])
            for row in range(height):
                for lane in range(width):
                    output = (i + row) * columns + j + lane
                    word = u64(random_word(u64(u64(output) + r.first), r.k0, r.k1)) if r.mode == STOCHASTIC else ZERO
                    high = f64(upper[row, lane] - start)
                    if bins == DIGITS_ALONE or (high == f64(0) and lower[row, lane] == f64(0)):
                        out[i + row, j + lane] = exact_sum(x, i + row, j + lane, True, digits, origin, f, word)
                        continue
                    clear(digits)
                    _add_float(digits, origin, high, max(unit, last) if bins == i64(2) else unit)
                    _add_float(digits, origin, lower[row, lane], unit)
                    ends = False
                    if x.c.size > 0:
                        z = term_of(u64(x.c[i + row, j + lane]), f.c)
                        ends = z.kind != i64(FINITE)
                        add_term(digits, origin, z, i64(f.c.mantissa_bits))
                    value = total(digits, origin, ZERO)
                    if ends or value.significand == ZERO:
                        out[i + row, j + lane] = exact_sum(x, i + row, j + lane, True, digits, origin, f, word)
                    else:
                        out[i + row, j + lane], _ = pack(value, NO_FLAG, word, f.result, f.mode, f.rules)

    return kernel(strips)
