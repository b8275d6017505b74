"""Operands of a matrix product as panels: the terms of one instruction for some columns of b, and their exponents.

A product works on PANEL_COLUMNS columns at a time, so that a panel of b stays in the L1 cache while it is multiplied by
all rows of a. Exponents are bytes relative to a base. Bytes suffice for formats of up to five exponent bits, and for
other values within WINDOW binades below the largest. A panel with a smaller value has the flag DEEP. One that had a NaN
or Inf, which are replaced by zero, has the flag SPECIAL.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.runtime.compile import inner_loop, kernel, scalar

i8, i32, i64, u32, f32 = np.int8, np.int32, np.int64, np.uint32, np.float32

PANEL_COLUMNS = 128
WINDOW = 40  # binades; the sum of two exponents fits a byte, and stays apart from sums with a zero term
HIGHEST = 20  # largest relative exponent, of the base
ZERO_EXPONENT = -64  # relative exponent of a zero: with any other below 2 * (HIGHEST - WINDOW)
NO_TERM = -42  # relative exponents of products are above this, sums with a zero's exponent below

SPECIAL, DEEP = 1, 2  # bits: what a row of a panel contains

MAGNITUDE, INFINITE = i32(0x7FFFFFFF), i32(0x7F800000)
MANTISSA_BITS, FIELD, BIAS = i32(23), i32(0xFF), i32(127)


def _fill_row(source: Any, kept: Any, least: Any, base: Any, values: Any, exponents: Any) -> Any:
    """Write a row's finite float32 patterns to `values`, and their exponents minus `base` to `exponents`; return flags.

    source: 1-D int32, float32 patterns. kept: mask of the bits that the unit reads. values: int32, filled with the
    patterns and-ed with `kept`; 0 for NaN and Inf. exponents: int8, filled with exponents minus `base`. An exponent
    below `least`, the format's smallest, counts as `least`. ZERO_EXPONENT stands for values that are or become 0.

    The flags are an int32, 0 or a sum: SPECIAL if the row has a NaN or Inf; DEEP if an exponent minus base is outside
    HIGHEST - WINDOW .. HIGHEST (-20 .. 20), the range that the fast loops require.
    """
    specials, lowest, highest = i32(0), i32(HIGHEST), i32(0)
    for j in range(source.size):
        bits = i32(source[j] & kept)
        magnitude = i32(bits & MAGNITUDE)
        finite = magnitude < INFINITE
        specials = i32(specials | i32(not finite))
        bits = bits if finite else i32(0)
        values[j] = bits
        exponent = i32(max(i32(i32(magnitude >> MANTISSA_BITS) - BIAS), least) - base)
        counts = finite & (magnitude != i32(0))
        lowest = min(lowest, exponent if counts else i32(HIGHEST))
        highest = max(highest, exponent if counts else i32(0))
        exponents[j] = i8(exponent) if counts & (exponent > i32(ZERO_EXPONENT)) else i8(ZERO_EXPONENT)
    deep = (lowest < i32(HIGHEST - WINDOW)) | (highest > i32(HIGHEST))
    return (i32(SPECIAL) if specials else i32(0)) | (i32(DEEP) if deep else i32(0))


fill_row = scalar(_fill_row)


@scalar  # called for each row and step: as a function of its own it would count references for a sixth of the time
def fill_rows(source: Any, k: Any, terms: Any, facts: Any, values: Any, exponents: Any) -> Any:
    """Decode `terms` terms of a row of a, from term k on, to values and exponents; return flags.

    The flags are an int32, 0 or a sum: SPECIAL for a NaN or Inf (which become 0), DEEP for a stored exponent outside
    -20 .. 20, the range of the fast loops. source: (K,) float32 patterns as int32. facts: (mask of the bits that the
    unit reads, the format's smallest exponent, base). values, exponents: (terms,), filled with masked float32 patterns,
    int32, and with exponents minus base, int8; with zeros after the row's end.
    """
    stop = min(k + terms, source.size)
    flags = fill_row(source[k:stop], facts[0], facts[1], facts[2], values, exponents)
    for i in range(stop - k, terms):
        values[i] = i32(0)
        exponents[i] = i8(ZERO_EXPONENT)
    return flags


@inner_loop
def fill_panel(source: Any, k: Any, j: Any, width: Any, terms: Any, facts: Any, values: Any, exponents: Any) -> Any:
    """Decode `terms` rows of b from row k on, `width` columns from j on, to `values` and `exponents`; return flags.

    The flags are an int32, 0 or a sum: SPECIAL for a NaN or Inf (which become 0), DEEP for a stored exponent outside
    -20 .. 20, the range of the fast loops. source: (K, N) float32 patterns as int32. facts: (mask of the bits that the
    unit reads, the format's smallest exponent, `base` of stored exponents). values, exponents: (terms, columns), filled
    with masked float32 patterns, int32, and with exponents minus base, int8; with zeros beyond K and `width`.
    """
    flags = i32(0)
    for i in range(terms):
        filled = width if k + i < source.shape[0] else 0
        if filled:
            flags = i32(
                flags | fill_row(source[k + i, j : j + width], facts[0], facts[1], facts[2], values[i], exponents[i])
            )
        for x in range(filled, values.shape[1]):
            values[i, x] = i32(0)
            exponents[i, x] = i8(ZERO_EXPONENT)
    return flags


@scalar
def class_of(pattern: Any, kept: Any) -> Any:
    """Return the class of a float32 pattern as float32 bits (int32): -1, -0, 0 or 1 for finite values, Inf or NaN.

    A finite value has the class with its sign, +-1 for nonzero values and +-0 for zeros. kept: mask of the bits that
    the unit reads. If operands are Inf or NaN, the sum of the products of all classes shows whether they make the sum
    of the operands' products Inf, NaN or neither; for example 1 * Inf + -0 * NaN gives NaN.
    """
    bits = i32(pattern & kept)
    magnitude = i32(bits & MAGNITUDE)
    sign = i32(bits & ~MAGNITUDE)
    one = i32(0x3F800000) if magnitude != i32(0) else i32(0)
    return i32(sign | one) if magnitude < INFINITE else bits


@cache
def largest_exponent() -> Any:
    """Return the kernel (patterns, infinity, mantissa_bits) -> largest exponent of a matrix's finite values, as int32.

    patterns: (M, K) bits of float32, or codes of a format with float32's exponents (BF16). infinity: the code of +Inf.
    mantissa_bits: number of them in the format. For a matrix of zeros the result is -127.
    """

    def largest(patterns: Any, infinity: Any, mantissa_bits: Any) -> Any:
        # a mask of all bits below the sign
        top, mask = i32(0), i32(i32(infinity) | i32(i32(1 << mantissa_bits) - i32(1)))
        for m in range(patterns.shape[0]):
            row = patterns[m]
            for j in range(row.size):
                magnitude = i32(row[j] & mask)
                top = max(top, magnitude if magnitude < infinity else i32(0))
        return i32(i32(top >> mantissa_bits) - BIAS)

    return kernel(largest)


@cache
def canonical_nan() -> Any:
    """Return the kernel (words, infinity, sign, nan) -> None that replaces every NaN by the pattern `nan`, in place.

    words: 1-D unsigned float bits. infinity: the bits of +Inf. sign: mask of the sign bit.
    """

    def replace(words: Any, infinity: Any, sign: Any, nan: Any) -> None:
        for i in range(words.size):
            words[i] = nan if (words[i] & ~sign) > infinity else words[i]

    return kernel(replace)
