"""Operands of a matrix product as panels: the terms of one step of a unit, and their exponents.

A product works on PANEL_COLUMNS columns at a time, so that a panel of B stays in the L1 cache while it is multiplied by
all rows of A. Exponents are bytes relative to a base. That suffices for formats of up to five exponent bits, and for
other terms within WINDOW binades below the largest. A smaller term marks the panel as deep, a NaN or Inf marks it as
special, and the panel has a zero in the place of either.
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
NO_TERM = -42  # relative exponents of products lie above, those with a zero below

SPECIAL, DEEP = 1, 2  # what a row of a panel holds: bits

MAGNITUDE, INFINITE = i32(0x7FFFFFFF), i32(0x7F800000)
MANTISSA_BITS, FIELD, BIAS = i32(23), i32(0xFF), i32(127)


def _fill_row(source: Any, kept: Any, least: Any, base: Any, values: Any, exponents: Any) -> Any:
    """Fill values and relative exponents from float32 patterns, and return flags of what the row holds.

    Return flags: SPECIAL if the row has NaN or Inf, DEEP if exponents don't fit the window of the fast loops.
    kept: mask of the bits that the unit reads; least: the smallest exponent of the format.
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
    """Fill values and exponents of a row of A from term k on, zeros after its end; return flags of what it holds."""
    stop = min(k + terms, source.size)
    flags = fill_row(source[k:stop], facts[0], facts[1], facts[2], values, exponents)
    for i in range(stop - k, terms):
        values[i] = i32(0)
        exponents[i] = i8(ZERO_EXPONENT)
    return flags


@inner_loop
def fill_panel(source: Any, k: Any, j: Any, width: Any, terms: Any, facts: Any, values: Any, exponents: Any) -> Any:
    """Fill a panel with rows k .. of B from column j on, zeros around it, and return flags of what it holds."""
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
    """Return a float32 pattern as -1, 0, 1, Inf or NaN: sums of products of these show what NaN and Inf lead to."""
    bits = i32(pattern & kept)
    magnitude = i32(bits & MAGNITUDE)
    sign = i32(bits & ~MAGNITUDE)
    one = i32(0x3F800000) if magnitude != i32(0) else i32(0)
    return i32(sign | one) if magnitude < INFINITE else bits


@cache
def largest_exponent() -> Any:
    """Return the function `(patterns, infinity, mantissa bits) -> exponent` of the largest finite value of a matrix.

    patterns: of float32, or codes of a format with its exponents; infinity: the one of Inf. Of zeros it is -127.
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
    """Return the loop `(words, infinity, sign, nan)` that replaces every NaN of an array of float patterns by one."""

    def replace(words: Any, infinity: Any, sign: Any, nan: Any) -> None:
        for i in range(words.size):
            words[i] = nan if (words[i] & ~sign) > infinity else words[i]

    return kernel(replace)
