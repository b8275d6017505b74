"""Scalar core: products and fused sums of numbers with up to 53 significant bits, in pairs of 64-bit words.

A wide number (field, high, low) has the value (high * 2**64 + low) * 2**(field - BIAS - 2 * TOP).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.exact_arithmetic import add, multiply, zero
from fpsim.core.number import BIAS, FINITE, ONE, TOP, ZERO, Number, leading_place, normalise
from fpsim.core.pack import NO_FLAG
from fpsim.core.rounding import DOWN
from fpsim.runtime.compile import scalar

u64 = np.uint64

WORD, HALF, LAST = u64(64), u64(32), u64(63)
LOW = u64(0xFFFFFFFF)
ABOVE = u64(64 - TOP)  # bits of a wide number's high word above the word that keeps its leading bits


@scalar
def _wide_product(x: Any, y: Any) -> Any:
    """Return the 128-bit product of the uint64 x and y as two uint64, (high, low)."""
    x0, x1, y0, y1 = u64(x & LOW), u64(x >> HALF), u64(y & LOW), u64(y >> HALF)
    low, middle = u64(x0 * y0), u64(x1 * y0)
    middle = u64(middle + u64(low >> HALF))
    other = u64(u64(x0 * y1) + u64(middle & LOW))
    high = u64(u64(u64(x1 * y1) + u64(middle >> HALF)) + u64(other >> HALF))
    return high, u64(u64(other << HALF) | u64(low & LOW))


@scalar
def _shift_right_jam(high: Any, low: Any, n: Any) -> Any:
    """Return the 128-bit word (high, low) shifted right by n >= 0 bits, as (high, low); all are uint64.

    Bit 0 of the result is also set if any bit that was lost is 1.
    """
    far = n >= WORD
    first, second = (ZERO, high) if far else (high, low)
    sticky = u64(far & (low != ZERO))
    near = u64(min(u64(n - WORD) if far else n, LAST))
    carried = u64(u64(first << u64(LAST - near)) << ONE)  # in two steps, as near may be zero
    kept = u64(carried | u64(second >> near))
    lost = u64(u64(second << u64(LAST - near)) << ONE)
    return u64(first >> near), u64(kept | u64(u64(lost != ZERO) | sticky))


@scalar
def _narrowed(negative: Any, field: Any, high: Any, low: Any) -> Number:
    """Return the Number (-1)**negative * (high * 2**64 + low) * 2**(field - BIAS - 2 * TOP).

    BIAS is 2**14 and TOP 61. Of the 128-bit word, the leading 62 bits are kept; bit 0 is also set if any bit after them
    is 1. high, low: two uint64, not both 0, together below 2**126; field: exponent plus BIAS; negative: 0 or 1.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    left = u64(LAST - leading_place(high if high != ZERO else ONE))
    word = u64(u64(high << left) | u64(low >> u64(WORD - left)))
    word = u64(word | u64(u64(low << left) != ZERO))
    if high == ZERO:
        return normalise(negative, u64(field - u64(TOP)), low)
    return normalise(negative, u64(u64(field + ABOVE) - left), word)


@scalar
def _is_ordinary(x: Number) -> Any:
    """Return whether the Number x is finite and not zero.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return (x.kind == u64(FINITE)) & (x.significand != ZERO)


@scalar
def multiply_double(x: Number, y: Number) -> Any:
    """Return (x * y, flags): a Number and a uint64 of bits of `fp.Flags`; significands may have all 62 bits.

    Bit 0 of the product is sticky: it is also set if any bit that was dropped is 1. flags: INVALID for 0 * Inf and for
    signalling NaNs, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    high, low = _wide_product(x.significand, y.significand)
    exact = _narrowed(u64(x.negative ^ y.negative), u64(u64(x.field + y.field) - u64(BIAS)), high, low)
    special, raised = multiply(x, y)
    return (exact if _is_ordinary(x) & _is_ordinary(y) else special), raised


@scalar
def fma_double(x: Number, y: Number, z: Number, mode: int) -> Any:
    """Return (x * y + z, flags): a Number and a uint64 of bits of `fp.Flags`, for Numbers of up to 53 significant bits.

    Bit 0 of the result is sticky: it is also set if any bit that was dropped is 1. mode: a Rounding; an exact zero from
    a product and a z of unlike signs is -0 if it is DOWN, else +0. flags: INVALID for 0 * Inf, Inf - Inf and signalling
    NaNs, else 0. A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    product, raised = multiply_double(x, y)
    if not (_is_ordinary(x) & _is_ordinary(y) & _is_ordinary(z)):
        total, raised_by_sum = add(product, z, mode)
        return total, u64(raised | raised_by_sum)
    high, low = _wide_product(x.significand, y.significand)
    field = u64(u64(x.field + y.field) - u64(BIAS))
    other_high, other_low = u64(z.significand >> ABOVE), u64(z.significand << u64(TOP))
    # the addend with the smaller field is shifted: bits that it loses are below all bits that a cancellation can leave
    if field >= z.field:
        other_high, other_low = _shift_right_jam(other_high, other_low, u64(field - z.field))
    else:
        high, low = _shift_right_jam(high, low, u64(z.field - field))
    field, opposite = u64(max(field, z.field)), u64(product.negative ^ z.negative)
    if opposite == ZERO:
        total_low = u64(low + other_low)
        total_high = u64(u64(high + other_high) + u64(total_low < low))
        return _narrowed(product.negative, field, total_high, total_low), NO_FLAG
    smaller = (high < other_high) | ((high == other_high) & (low < other_low))
    large_high, large_low = (other_high, other_low) if smaller else (high, low)
    small_high, small_low = (high, low) if smaller else (other_high, other_low)
    total_low = u64(large_low - small_low)
    total_high = u64(u64(large_high - small_high) - u64(large_low < small_low))
    if u64(total_high | total_low) == ZERO:
        return zero(u64(mode == DOWN)), NO_FLAG
    return _narrowed(z.negative if smaller else product.negative, field, total_high, total_low), NO_FLAG
