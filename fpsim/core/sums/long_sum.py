"""Scalar core: an exact sum of any finite numbers, kept as digits of 32 bits that span the numbers' whole range.

Source: the long accumulator of Kulisch, "Computer Arithmetic and Validity" (2013), 8. Digits are stored in 64-bit
words, so that 2**30 additions need no carry. Digit i counts units of 2**(origin + 32 * i).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.number import BIAS, FIELD_OF_ZERO, FINITE, TOP, ZERO, Number, leading_place, normalise
from fpsim.core.sums.term import Term
from fpsim.runtime.compile import scalar

i64, u64 = np.int64, np.uint64

DIGIT = 32
SPARE_DIGITS = 4  # for the split of a word over three digits, and for carries
LOW = u64(0xFFFFFFFF)
I_LOW = i64(0xFFFFFFFF)
HALF = u64(32)


def digits_for(lowest: int, highest: int) -> int:
    """Return the number of 32-bit digits that hold any exact sum of up to 2**30 terms.

    The terms are multiples of 2**lowest and less than 2**highest in magnitude.
    """
    return (highest - lowest) // DIGIT + SPARE_DIGITS


@scalar
def clear(digits: Any) -> None:
    """Set all elements of the int64 array `digits` to 0 in place."""
    for i in range(digits.size):
        digits[i] = i64(0)


@scalar
def add_word(digits: Any, origin: Any, negative: Any, word: Any, exponent: Any) -> None:
    """Add (-1)**negative * word * 2**exponent to an exact sum, in place; word: uint64; exponent: at least origin.

    Digit i of the sum, in the int64 array `digits`, counts units of 2**(origin + 32 * i) and may be negative.
    """
    place = i64(exponent - origin)
    digit, shift = i64(place >> i64(5)), u64(place & i64(31))
    low = u64(u64(word & LOW) << shift)
    high = u64(u64(u64(word >> HALF) << shift) + u64(low >> HALF))
    sign = i64(1) - i64(negative + negative)
    digits[digit] += i64(sign * i64(u64(low & LOW)))
    digits[digit + i64(1)] += i64(sign * i64(u64(high & LOW)))
    digits[digit + i64(2)] += i64(sign * i64(u64(high >> HALF)))


@scalar
def add_term(digits: Any, origin: Any, x: Term, mantissa_bits: Any) -> None:
    """Add the finite Term x to an exact sum, in place; mantissa_bits: number of mantissa bits of the term's format.

    Digit i of the sum, in the int64 array `digits`, counts units of 2**(origin + 32 * i).
    """
    add_word(digits, origin, x.negative, u64(x.significand), i64(x.exponent - mantissa_bits))


@scalar
def add_product(digits: Any, origin: Any, x: Term, y: Term, mantissa_bits: Any) -> None:
    """Add the product of two finite Terms (core/sums/term.py: sign, significand, exponent) to an exact sum, in place.

    digits: int64 array of the sum; digit i counts units of 2**(origin + 32 * i). x, y: the factors; mantissa_bits:
    those of both formats, added.
    A Term is a finite or special value: sign, integer significand, exponent, and kind (finite, Inf, NaN).
    """
    negative = i64(x.negative ^ y.negative)
    exponent = i64(i64(x.exponent + y.exponent) - mantissa_bits)
    x_low, x_high = u64(u64(x.significand) & LOW), u64(u64(x.significand) >> HALF)
    y_low, y_high = u64(u64(y.significand) & LOW), u64(u64(y.significand) >> HALF)
    add_word(digits, origin, negative, u64(x_low * y_low), exponent)
    if u64(x_high | y_high) != ZERO:
        add_word(digits, origin, negative, u64(x_low * y_high), i64(exponent + i64(32)))
        add_word(digits, origin, negative, u64(x_high * y_low), i64(exponent + i64(32)))
        add_word(digits, origin, negative, u64(x_high * y_high), i64(exponent + i64(64)))


@scalar
def _carry(digits: Any) -> Any:
    """Bring every element of the int64 array `digits` into 0 .. 2**32 - 1 in place, and return the last carry.

    The carry out of the last digit is an int64: 0, or -1 for a negative sum.
    """
    carry = i64(0)
    for i in range(digits.size):
        value = i64(digits[i] + carry)
        digits[i] = i64(value & I_LOW)
        carry = i64(value >> i64(32))
    return carry


@scalar
def total(digits: Any, origin: Any, zero_negative: Any) -> Number:
    """Return an exact sum as a Number with 62 significant bits; bit 0 is also set if any bit after them is nonzero.

    digits: int64 array of the sum, which is overwritten; digit i counts units of 2**(origin + 32 * i). zero_negative:
    sign, 0 or 1, of the result if the sum is zero.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    negative = u64(_carry(digits) < i64(0))
    if negative != ZERO:
        for i in range(digits.size):
            digits[i] = i64(-digits[i])
        _carry(digits)
    top = i64(digits.size) - i64(1)
    while (top > i64(0)) & (digits[top] == i64(0)):
        top = i64(top - i64(1))
    if digits[top] == i64(0):
        return Number(u64(zero_negative), u64(FIELD_OF_ZERO), ZERO, u64(FINITE))
    first = u64(digits[top])
    second = u64(digits[top - i64(1)]) if top > i64(0) else ZERO
    third = u64(digits[top - i64(2)]) if top > i64(1) else ZERO
    room = u64(u64(31) - leading_place(first))  # leading zeros of the first digit
    word = u64(u64(u64(u64(first << HALF) | second) << room) | u64(third >> u64(HALF - room)))
    sticky = u64(u64(third << room) & LOW)
    for i in range(i64(top - i64(2))):
        sticky = u64(sticky | u64(digits[i]))
    word = u64(word | u64(sticky != ZERO))
    exponent = i64(origin + i64(i64(top - i64(1)) * i64(32))) - i64(room)
    return normalise(negative, u64(i64(exponent + i64(BIAS + TOP))), word)
