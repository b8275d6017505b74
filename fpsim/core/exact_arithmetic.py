"""Scalar core: operations on exact numbers (core/number.py). Integers only, so CPU and CUDA agree.

Operations return (number, flags): the exact result, or a truncated one whose bit 0 is set (sticky), and the operation's
own flags, a uint64 of bits of `fp.Flags`. `pack` rounds the result and adds the flags of rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.number import (
    BIAS,
    FIELD_OF_ZERO,
    FINITE,
    INFINITE,
    NAN,
    ONE,
    SIGNALLING,
    TOP,
    ZERO,
    Number,
    infinite,
    normalise,
    shift_right_jam,
)
from fpsim.core.pack import DIVIDE_BY_ZERO, INEXACT, INVALID, NO_FLAG
from fpsim.core.rounding import DOWN, rounds_up_64, split_64
from fpsim.runtime.compile import scalar

u64 = np.uint64

HALF_WORD = u64(TOP - 30)  # leaves 31 bits of a significand, enough for formats of up to 32 bits
SQRT_STEPS = 60  # bits of a square root: 24 of the result, 32 for a random word, and some to spare


@scalar
def _is_nan(x: Number) -> Any:
    """Return whether the Number x is a NaN, quiet or signalling.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return x.kind >= u64(NAN)


@scalar
def _is_infinite(x: Number) -> Any:
    """Return whether the Number x is Inf or -Inf.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return x.kind == u64(INFINITE)


@scalar
def _is_zero(x: Number) -> Any:
    """Return whether the Number x is +0 or -0.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return (x.significand == ZERO) & (x.kind == u64(FINITE))


@scalar
def nan() -> Number:
    """Return the Number that results from an invalid operation: a quiet NaN without a sign.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return Number(ZERO, u64(FIELD_OF_ZERO), ZERO, u64(NAN))


@scalar
def zero(negative: Any) -> Number:
    """Return a zero as a Number; negative: its sign as uint64, 0 or 1.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return Number(negative, u64(FIELD_OF_ZERO), ZERO, u64(FINITE))


@scalar
def flushed(x: Number, least: Any) -> Number:
    """Return the Number x, or a zero of its sign if it is below the smallest normal value.

    least: field (exponent + 2**14) of the smallest normal value, uint64. Inf and NaN are returned unchanged.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return zero(x.negative) if (x.kind == u64(FINITE)) & (x.field < least) else x


@scalar
def signals(x: Number) -> Any:
    """Return the flag INVALID, a bit of `fp.Flags`, if x is a signalling NaN, else 0; as a uint64.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return INVALID if x.kind == u64(SIGNALLING) else NO_FLAG


@scalar
def negated(x: Number) -> Number:
    """Return the Number x with the other sign, also if it is a zero, Inf or NaN.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return Number(u64(x.negative ^ ONE), x.field, x.significand, x.kind)


@scalar
def add(x: Number, y: Number, mode: int) -> Any:
    """Return (x + y, flags): a Number, exact but for its sticky bit 0, and a uint64 of bits of `fp.Flags`.

    An exact zero from operands of unlike signs is -0 if the rounding mode is DOWN, else +0. mode: a Rounding. flags:
    INVALID for Inf - Inf and for signalling NaNs, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    raised = u64(signals(x) | signals(y))
    if _is_nan(x) | _is_nan(y):
        return nan(), raised
    if _is_infinite(x) | _is_infinite(y):
        if _is_infinite(x) & _is_infinite(y) & (x.negative != y.negative):
            return nan(), INVALID
        return infinite(x.negative if _is_infinite(x) else y.negative), NO_FLAG

    swap = y.field > x.field
    large = y.significand if swap else x.significand
    small = x.significand if swap else y.significand
    field = u64(max(x.field, y.field))
    small = shift_right_jam(small, u64(field - min(x.field, y.field)))
    negative = y.negative if swap else x.negative
    opposite = u64(x.negative ^ y.negative)
    crosses = u64(opposite & u64(small > large))  # only if fields are equal, so that no bit was lost
    flip = u64(ZERO - opposite)
    total = u64(u64(large + u64(small ^ flip)) + opposite)  # large - small where signs differ
    total = u64(ZERO - total) if crosses != ZERO else total
    vanishes = (opposite != ZERO) & (total == ZERO)
    negative = u64(mode == DOWN) if vanishes else u64(negative ^ crosses)
    return normalise(negative, field, total), NO_FLAG


@scalar
def multiply(x: Number, y: Number) -> Any:
    """Return (x * y, flags): a Number and a uint64 of bits of `fp.Flags`.

    Only the upper 31 bits of each significand are used, so the product is exact for values of up to 31 significant
    bits. flags: INVALID for 0 * Inf and for signalling NaNs, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    raised = u64(signals(x) | signals(y))
    negative = u64(x.negative ^ y.negative)
    if _is_nan(x) | _is_nan(y):
        return nan(), raised
    if _is_infinite(x) | _is_infinite(y):
        if _is_zero(x) | _is_zero(y):
            return nan(), INVALID
        return infinite(negative), NO_FLAG
    product = u64(u64(x.significand >> HALF_WORD) * u64(y.significand >> HALF_WORD))
    return normalise(negative, u64(u64(x.field + y.field) - u64(BIAS - 1)), product), NO_FLAG


@scalar
def divide(x: Number, y: Number) -> Any:
    """Return (x / y, flags): a Number and a uint64 of bits of `fp.Flags`.

    x and y must have at most 31 significant bits. The quotient has at least 60 bits, and bit 0 is set if any bit after
    them is nonzero. flags: INVALID for 0 / 0, Inf / Inf and signalling NaNs; DIVIDE_BY_ZERO for a finite x / 0; else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    raised = u64(signals(x) | signals(y))
    negative = u64(x.negative ^ y.negative)
    if _is_nan(x) | _is_nan(y):
        return nan(), raised
    if _is_infinite(x):
        return (nan(), INVALID) if _is_infinite(y) else (infinite(negative), NO_FLAG)
    if _is_zero(y):
        return (nan(), INVALID) if _is_zero(x) else (infinite(negative), DIVIDE_BY_ZERO)
    if _is_infinite(y):
        return zero(negative), NO_FLAG
    divisor = u64(y.significand >> HALF_WORD)
    dividend = u64(u64(x.significand >> HALF_WORD) << u64(31))
    high = u64(dividend // divisor)
    rest = u64(u64(dividend - u64(high * divisor)) << u64(30))
    low = u64(rest // divisor)
    sticky = u64(u64(low * divisor) != rest)
    quotient = u64(u64(u64(high << u64(30)) | low) | sticky)
    return normalise(negative, u64(u64(x.field + u64(BIAS)) - y.field), quotient), NO_FLAG


@scalar
def fma(x: Number, y: Number, z: Number, mode: int) -> Any:
    """Return (x * y + z, flags): a Number, exact but for its sticky bit 0, and a uint64 of bits of `fp.Flags`.

    x and y must have at most 31 significant bits. An exact zero from a product and a z of unlike signs is -0 if the
    rounding mode is DOWN, else +0. mode: a Rounding. flags: INVALID for 0 * Inf, Inf - Inf and signalling NaNs, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    product, raised = multiply(x, y)
    total, raised_by_sum = add(product, z, mode)
    return total, u64(raised | raised_by_sum)


@scalar
def sqrt(x: Number) -> Any:
    """Return (square root of x, flags): a Number and a uint64 of bits of `fp.Flags`.

    The root has 60 bits, and bit 0 is set if any bit after them is nonzero. The root of -0 is -0. flags: INVALID for
    negative numbers, -Inf and signalling NaNs, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    if _is_nan(x):
        return nan(), signals(x)
    if _is_zero(x):
        return x, NO_FLAG
    if x.negative != ZERO:
        return nan(), INVALID
    if _is_infinite(x):
        return x, NO_FLAG
    # digit by digit: the next two bits of the radicand join the rest, and a bit of the root is 1 if it fits
    odd = u64(x.field & ONE)
    radicand = u64(x.significand << odd)
    root, rest = ZERO, ZERO
    for _ in range(SQRT_STEPS):
        rest = u64(u64(rest << u64(2)) | u64(u64(radicand >> u64(TOP)) & u64(3)))
        radicand = u64(radicand << u64(2))
        trial = u64(u64(root << u64(2)) | ONE)
        fits = rest >= trial
        rest = u64(rest - trial) if fits else rest
        root = u64(u64(root + root) | u64(fits))
    significand = u64(u64(root << u64(TOP + 1 - SQRT_STEPS)) | u64(rest != ZERO))
    field = u64(u64(u64(x.field - odd) >> ONE) + u64(BIAS // 2))
    return Number(ZERO, field, significand, u64(FINITE)), NO_FLAG


@scalar
def remainder(x: Number, y: Number) -> Any:
    """Return (x - n * y, flags), where n is the integer nearest to x / y, ties to even: an exact Number, and a uint64.

    x and y must have at most 31 significant bits. A zero result has the sign of x. flags: INVALID, a bit of `fp.Flags`,
    if x is infinite, y is zero or an operand is a signalling NaN, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    raised = u64(signals(x) | signals(y))
    if _is_nan(x) | _is_nan(y):
        return nan(), raised
    if _is_infinite(x) | _is_zero(y):
        return nan(), INVALID
    if _is_infinite(y) | _is_zero(x) | (u64(x.field + ONE) < y.field):  # |x| < |y| / 2
        return x, NO_FLAG
    below = u64(y.field > x.field)  # |x| may be less than |y| by one binade: then its unit is the smaller one
    divisor = u64(u64(y.significand >> HALF_WORD) << below)
    twice = u64(divisor + divisor)  # the remainder of a division by it shows whether a multiple of the divisor is odd
    rest = u64(u64(x.significand >> HALF_WORD) % twice)
    left = u64(u64(x.field + below) - y.field)
    while left > ZERO:
        step = u64(min(left, u64(31)))
        rest = u64(u64(rest << step) % twice)
        left = u64(left - step)
    odd = rest >= divisor
    rest = u64(rest - divisor) if odd else rest
    doubled = u64(rest + rest)
    beyond = (doubled > divisor) | ((doubled == divisor) & odd)
    rest = u64(divisor - rest) if beyond else rest
    negative = u64(x.negative ^ u64(beyond))
    field = u64(u64(y.field - below) + HALF_WORD)
    if rest == ZERO:
        return zero(x.negative), NO_FLAG
    return normalise(negative, field, rest), NO_FLAG


@scalar
def less(x: Number, y: Number) -> Any:
    """Return whether x < y, for two Numbers that are not NaN; -0 is not less than +0.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    smaller = (x.field < y.field) | ((x.field == y.field) & (x.significand < y.significand))
    larger = (x.field > y.field) | ((x.field == y.field) & (x.significand > y.significand))
    both_zero = (x.significand == ZERO) & (y.significand == ZERO)
    if x.negative != y.negative:
        return (x.negative != ZERO) & (not both_zero)
    return smaller if x.negative == ZERO else larger


@scalar
def equal(x: Number, y: Number) -> Any:
    """Return whether x == y, for two Numbers that are not NaN; -0 equals +0.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    same = (x.field == y.field) & (x.significand == y.significand)
    return same & ((x.negative == y.negative) | (x.significand == ZERO))


@scalar
def _first_is_smaller(x: Number, y: Number) -> Any:
    """Return whether x is the minimum of two Numbers x and y that are not NaN; -0 counts as less than +0.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return (x.negative > y.negative) if equal(x, y) else less(x, y)


@scalar
def extremum(x: Number, y: Number, largest: Any, number: Any) -> Any:
    """Return (minimum or maximum of the Numbers x and y, flags); -0 counts as less than +0.

    largest: True for the maximum, False for the minimum. number: if exactly one operand is NaN, True returns the other
    operand and False returns NaN. flags: INVALID, a bit of `fp.Flags`, if an operand is a signalling NaN, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    raised = u64(signals(x) | signals(y))
    if _is_nan(x) & _is_nan(y):
        return nan(), raised
    if _is_nan(x) | _is_nan(y):
        if number:
            return (y if _is_nan(x) else x), raised
        return nan(), raised
    return (x if _first_is_smaller(x, y) != largest else y), raised


@scalar
def round_to_integral(x: Number, random: Any, random_mask: Any, mode: int) -> Any:
    """Return (x rounded to an integer, flags): a Number and a uint64 of bits of `fp.Flags`.

    mode: the Rounding to apply. random: 32-bit random number for stochastic rounding; random_mask: mask of the bits of
    `random` that count, the top ones. flags: INEXACT if a finite x is not an integer, INVALID for a signalling NaN,
    else 0. Inf and zeros are returned unchanged; a NaN becomes the quiet NaN without a sign.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    if _is_nan(x):
        return nan(), signals(x)
    if _is_infinite(x) | _is_zero(x) | (x.field >= u64(BIAS + TOP)):
        return x, NO_FLAG
    kept, rest = split_64(x.significand, u64(u64(BIAS + TOP) - x.field), mode)
    up = rounds_up_64(u64(kept & ONE), rest, x.negative, random, random_mask, mode)
    integer = normalise(x.negative, u64(BIAS + TOP), u64(kept + up))
    same = (integer.field == x.field) & (integer.significand == x.significand)
    return integer, (NO_FLAG if same else INEXACT)


@scalar
def from_integer(negative: Any, magnitude: Any) -> Number:
    """Return the integer (-1)**negative * magnitude as a Number.

    negative: 0 or 1; magnitude: any integer; both are uint64. A magnitude of more than 62 bits is truncated, with a
    sticky bit 0. A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return normalise(negative, u64(BIAS + TOP), magnitude)


@scalar
def to_integer(x: Number, lowest: Any, highest: Any, random: Any, random_mask: Any, mode: int) -> Any:
    """Return (integer, flags): x rounded to an integer and clamped to -lowest .. highest; NaN becomes highest.

    integer: uint64 in two's complement; lowest, highest: magnitudes of the bounds, uint64. mode: the Rounding to apply.
    random: 32-bit random number for stochastic rounding; random_mask: mask of the bits of `random` that count, the top
    ones. flags: a uint64 of bits of `fp.Flags`: INVALID if x is NaN or was clamped, else INEXACT if x is not an
    integer, else 0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    if _is_nan(x):
        return highest, INVALID
    integer, raised = round_to_integral(x, random, random_mask, mode)
    bound = lowest if x.negative != ZERO else highest
    top = u64(BIAS + 63)
    shift = u64(min(u64(top - min(integer.field, top)), u64(63)))
    magnitude = u64(u64(integer.significand << u64(63 - TOP)) >> shift)
    magnitude = ZERO if integer.significand == ZERO else magnitude
    outside = (integer.field > top) | (magnitude > bound)
    magnitude = bound if outside else magnitude
    word = u64(ZERO - magnitude) if x.negative != ZERO else magnitude
    return word, (INVALID if outside else raised)
