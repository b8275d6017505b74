"""Compiled loops over the magnitudes of an array: extremes, amax, and a histogram with 32 bins in each binade."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.analysis.measures.loops import INFINITE, in_order
from fpsim.runtime.compile import inner_loop, kernel

u32, u64, i64 = np.uint32, np.uint64, np.int64
f32, f64 = np.float32, np.float64

LOWEST_EXPONENT = -1074  # of float64's smallest subnormal
BINS_PER_BINADE = 32
BINS = (1024 - LOWEST_EXPONENT) * BINS_PER_BINADE
SUBNORMAL_LIFT = 64  # binades


@cache
def extremes_loop(width: int) -> Any:
    """Return the loop `(values)` that returns (largest magnitude, smallest magnitude other than 0), as float64.

    The largest is NaN if an element is NaN; the smallest is Inf if all elements are 0. width: bits of a value.
    """
    word: Any = u32 if width == 32 else u64
    real: Any = f32 if width == 32 else f64

    @inner_loop
    def extremes_of(values: Any) -> Any:
        largest, above = word(0), ~word(0)
        for i in range(values.size):
            order = word(real(abs(values[i])).view(word))
            largest = max(largest, order)
            above = min(above, word(order - word(1)))  # 0 comes last
        smallest = f64(word(above + word(1)).view(real))
        return f64(word(largest).view(real)), smallest if smallest != 0.0 else np.inf

    return extremes_of


@inner_loop
def largest_finite_of(values: Any) -> Any:
    """Return the largest finite magnitude of an array, as float64; 0 if there is none."""
    largest = i64(0)
    for i in range(values.size):
        order = in_order(abs(f64(values[i])))
        largest = max(largest, order if order < INFINITE else i64(0))
    return i64(largest).view(f64)


@cache
def amax_kernel(width: int) -> Any:
    """Return the loop `(x)` that returns the largest finite magnitude, 0 if there is none; width: bits of a value."""
    extremes_of = extremes_loop(width)

    def amax(x: Any) -> Any:
        largest, _ = extremes_of(x)
        return largest if largest < np.inf else largest_finite_of(x)

    return kernel(amax)


SMALLEST_NORMAL_32 = 2.0**-126


@inner_loop
def count_normal(x: Any, table: Any) -> Any:
    """Add float32 values, all normal or zero, to a histogram of magnitudes, in place; return the number of zeros.

    x: 1-D float32. table: int64 (BINS,), the counts. A value other than 0 adds 1 to the count at index 32 * (exponent +
    1074) + i, where i is the number in the upper five bits of its mantissa. Zeros are not counted in `table`.
    """
    offset = i64((-127 - LOWEST_EXPONENT) * BINS_PER_BINADE)
    before = table[offset]  # count in the bin of 2**-127, to which the loop adds zeros
    for i in range(x.size):
        table[i64(u32(f32(x[i]).view(u32) & u32(0x7FFFFFFF)) >> u32(23 - 5)) + offset] += 1
    zeros = table[offset] - before
    table[offset] = before
    return zeros


@inner_loop
def count_any(x: Any, table: Any, specials: Any) -> None:
    """Count floats by magnitude in `table`, and zeros, infinities and NaNs in `specials` (3,), in place.

    table, specials: int64 counts, `table` (BINS,). A magnitude is counted at index 32 * (exponent + 1074) + the upper
    five bits of its mantissa, normalised if it is subnormal in float64.
    """
    shift = i64(52 - 5)  # the upper five bits of the mantissa select one of 32 bins of a binade
    offset = i64((1023 + LOWEST_EXPONENT) * BINS_PER_BINADE)
    for i in range(x.size):
        size = abs(f64(x[i]))
        order = in_order(size)
        if order >= INFINITE:
            specials[1 if order == INFINITE else 2] += 1
        elif order == 0:
            specials[0] += 1
        elif order >= i64(1 << 52):
            table[i64(order >> shift) - offset] += 1
        else:  # subnormal in float64
            lifted = in_order(size * f64(2.0**SUBNORMAL_LIFT))
            table[i64(lifted >> shift) - offset - i64(SUBNORMAL_LIFT * BINS_PER_BINADE)] += 1


@cache
def histogram_kernel(width: int) -> Any:
    """Return the loop `(x, table, specials, extremes)` that adds the magnitudes of x to a histogram, in place.

    table: int64 (BINS,), counts of finite magnitudes other than 0, at index 32 * (exponent + 1074) + the upper five
    bits of the mantissa. specials: int64 (3,), numbers of zeros, infinities, NaNs. extremes: float64 (2,), largest
    finite and smallest nonzero magnitude. width: bits of a value of x.
    """
    extremes_of = extremes_loop(width)

    def histogram(x: Any, table: Any, specials: Any, extremes: Any) -> None:
        largest, smallest = extremes_of(x)
        if width == 32 and largest < np.inf and smallest >= SMALLEST_NORMAL_32:
            specials[0] += count_normal(x, table)
        else:
            count_any(x, table, specials)
            if not largest < np.inf:
                largest = largest_finite_of(x)
        extremes[0] = max(extremes[0], largest)
        extremes[1] = min(extremes[1], smallest)

    return kernel(histogram)
