"""Scalar core: float64 values of sin, cos and tan of a float32 that round correctly: docs/elementary.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.elementary.coefficients import COSINE, HALF_PI, HALF_PI_PAIR, SINE, TWO_OVER_PI, TWO_OVER_PI_WORDS
from fpsim.core.elementary.steps import SHIFTER, polynomial, sum_to_odd, times
from fpsim.runtime.compile import scalar

f64 = np.float64
i64, u32, u64 = np.int64, np.uint32, np.uint64

INVERSE = f64(TWO_OVER_PI)
FIRST, SECOND, THIRD = (f64(part) for part in HALF_PI)
NEAR_LIMIT = f64(2.0**20)  # up to here products of k and the first two parts of pi/2 are exact
PAIR_HIGH, PAIR_LOW = f64(HALF_PI_PAIR[0]), f64(HALF_PI_PAIR[1])
SPLITTER = f64(2.0**27 + 1)
WORDS = np.array(TWO_OVER_PI_WORDS, np.uint64)
ZERO, HALF, ONE = f64(0), f64(0.5), f64(1)
LOW_32, LOW_53 = u64(0xFFFFFFFF), u64(0x7FF)
MANTISSA, HIDDEN = u64(0x7FFFFF), u64(0x800000)
SCALE_64, SCALE_128 = f64(2.0**-64), f64(2.0**-128)

_sine_rest = polynomial(SINE)
_cosine_rest = polynomial(COSINE)


@scalar
def _near_angle(x: Any) -> Any:
    """Return (quadrant, r, rest) with x = quadrant * pi/2 + r + rest and |r| < 0.786, for a float32 |x| <= 2**20.

    x is passed as float64; r and rest are float64. quadrant is a uint64 that is correct modulo 4.
    """
    shifted = times(x, INVERSE) + SHIFTER
    k = shifted - SHIFTER
    left = x - times(k, FIRST)  # exact
    second = times(k, SECOND)
    middle = left - second
    lost = ((left - middle) - second) - times(k, THIRD)
    r = middle + lost
    return u64(i64(f64(shifted).view(np.int64))), r, (middle - r) + lost


@scalar
def _product_pair(x: Any, y: Any, y_low: Any) -> Any:
    """Return (high, low), two float64 whose sum is x * (y + y_low) to about 106 bits, by Dekker's product.

    x, y, y_low: float64, where y_low is a small correction of y.
    """
    high = times(x, y)
    c, d = times(x, SPLITTER), times(y, SPLITTER)
    x1, y1 = c - (c - x), d - (d - y)
    x2, y2 = x - x1, y - y1
    low = ((times(x1, y1) - high) + times(x1, y2) + times(x2, y1)) + times(x2, y2)
    return high, low + times(x, y_low)


@scalar
def _far_angle(x: Any) -> Any:
    """Return (quadrant, r, rest) with x = quadrant * pi/2 + r + rest and |r| < 0.786, for a float32 x >= 2**20.

    x is passed as float64; r and rest are float64. quadrant is a uint64 that is correct modulo 4. x is M * 2**e with an
    integer M of 24 bits, so only 128 bits of 2 / pi matter: earlier ones contribute multiples of four quadrants, later
    ones less than 2**-100.
    """
    bits = u64(f64(x).view(np.uint64))
    m = u64(u64(u64(bits >> u64(29)) & MANTISSA) | HIDDEN)
    place = u64(u64(bits >> u64(52)) - u64(1023 + 23 - 30))  # of the window in WORDS, which begin with 32 zeros: e + 30
    index, shift = i64(place >> u64(5)), u64(place & u64(31))
    back = u64(u64(32) - shift)
    w0, w1, w2, w3, w4 = WORDS[index], WORDS[index + 1], WORDS[index + 2], WORDS[index + 3], WORDS[index + 4]
    p3 = u64(m * u64(u64(u64(w3 << shift) | u64(w4 >> back)) & LOW_32))
    p2 = u64(u64(m * u64(u64(u64(w2 << shift) | u64(w3 >> back)) & LOW_32)) + u64(p3 >> u64(32)))
    p1 = u64(u64(m * u64(u64(u64(w1 << shift) | u64(w2 >> back)) & LOW_32)) + u64(p2 >> u64(32)))
    p0 = u64(u64(m * u64(u64(u64(w0 << shift) | u64(w1 >> back)) & LOW_32)) + u64(p1 >> u64(32)))
    high = u64(u64(p0 << u64(32)) | u64(p1 & LOW_32))
    low = u64(u64(p2 << u64(32)) | u64(p3 & LOW_32))
    quadrant = u64(u64(high + u64(1 << 61)) >> u64(62))
    fraction = u64(u64(high << u64(2)) | u64(low >> u64(62)))  # of a quadrant, in two's complement
    rest = u64(low << u64(2))
    first = times(f64(i64(fraction & u64(~LOW_53))), SCALE_64)  # exact, of 53 bits
    second = times(f64(fraction & LOW_53), SCALE_64) + times(f64(rest), SCALE_128)
    a = first + second
    b = (first - a) + second if abs(first) >= abs(second) else (second - a) + first
    r, tail = _product_pair(a, PAIR_HIGH, PAIR_LOW)
    return quadrant, r, tail + times(b, PAIR_HIGH)


@scalar
def _sine(r: Any, rest: Any) -> Any:
    """Return (large, small), two float64 whose sum is sin(r + rest) to more than 53 bits.

    r, rest: float64, |r| < 0.786 and rest much smaller.
    """
    z = times(r, r)
    return r, times(times(r, z), _sine_rest(z)) + rest


@scalar
def _cosine(r: Any, rest: Any) -> Any:
    """Return (large, small), two float64 whose sum is cos(r + rest) to more than 53 bits.

    r, rest: float64, |r| < 0.786 and rest much smaller.
    """
    z = times(r, r)
    half = times(z, HALF)
    near = ONE - half
    lost = (ONE - near) - half
    return near, (times(times(z, z), _cosine_rest(z)) + lost) - times(r, rest)


@scalar
def _angle(x: Any) -> Any:
    """Return (quadrant, r, rest) with x = quadrant * pi/2 + r + rest and |r| < 0.786, for a finite float32 x >= 0.

    x is passed as float64; r and rest are float64. quadrant is a uint64 that is correct modulo 4.
    """
    if x <= NEAR_LIMIT:
        return _near_angle(x)
    return _far_angle(x)


def _sine_of(angle: Any, turn: int) -> Any:
    """Return the compiled function sin(x + turn * pi/2) of a finite float32 x >= 0, passed and returned as float64.

    turn: 0 for sin, 1 for cos. angle: the function that writes x as quadrant * pi/2 + r + rest, `_near_angle` (for
    x <= 2**20) or `_angle`.
    """
    turn_word = u64(turn)

    @scalar
    def sine(x: Any) -> Any:
        """Return sin(x + turn * pi/2) in float64, rounded to odd, for a float32 x passed as float64.

        turn: the argument of `_sine_of`, 0 or 1. Rounding the result to float32 equals rounding the exact sine once.
        """
        quadrant, r, rest = angle(x)
        quadrant = u64(quadrant + turn_word)
        s, s_small = _sine(r, rest)
        c, c_small = _cosine(r, rest)
        swapped = u64(quadrant & u64(1)) != u64(0)
        value = sum_to_odd(c if swapped else s, c_small if swapped else s_small)
        return -value if u64(quadrant & u64(2)) != u64(0) else value

    return sine


def _tangent_of(angle: Any) -> Any:
    """Return the compiled function tan of a finite float32 x >= 0, passed and returned as float64.

    angle: the function that writes x as quadrant * pi/2 + r + rest, `_near_angle` (for x <= 2**20) or `_angle`.
    """

    @scalar
    def tangent(x: Any) -> Any:
        """Return tan(x) in float64, for a finite float32 x >= 0 passed as float64."""
        quadrant, r, rest = angle(x)
        s, s_small = _sine(r, rest)
        c, c_small = _cosine(r, rest)
        swapped = u64(quadrant & u64(1)) != u64(0)
        s, c = s + s_small, c + c_small
        return (-c if swapped else s) / (s if swapped else c)

    return tangent


sin_wide, cos_wide, tan_wide = _sine_of(_angle, 0), _sine_of(_angle, 1), _tangent_of(_angle)
# The same functions for x <= 2**20, which loops compute by vectors.
sin_near, cos_near, tan_near = _sine_of(_near_angle, 0), _sine_of(_near_angle, 1), _tangent_of(_near_angle)
