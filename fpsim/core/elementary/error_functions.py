"""Scalar core: float64 values of erf, erfc and gelu of a float32 that round correctly: docs/elementary.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.elementary.coefficients import ERF, ERFC, SQRT_HALF, TWO_OVER_SQRT_PI
from fpsim.core.elementary.exponentials import clamped, exp_of
from fpsim.core.elementary.steps import polynomial, sum_to_odd, times
from fpsim.runtime.compile import scalar

f64 = np.float64

ZERO, HALF, ONE, TWO, FOUR = f64(0), f64(0.5), f64(1), f64(2), f64(4)
SLOPE_HIGH, SLOPE_LOW = f64(TWO_OVER_SQRT_PI[0]), f64(TWO_OVER_SQRT_PI[1])
ROOT_HALF = f64(SQRT_HALF)
FARTHEST = f64(10.25)  # beyond, erfc is 0 in float32
GELU_FARTHEST = f64(14.375)  # beyond, the normal distribution is 0 in float32
GELU_FROM, GELU_TO = f64(-0.3), f64(1.375)  # outside, the sum with 1/2 cancels, or erf has another form

_erf_rest = polynomial(ERF)
_scaled_erfc = polynomial(ERFC)


@scalar
def _tail(x: Any, square: Any) -> Any:
    """Return exp(x**2 - square) * erfc(x) in float64, for a float64 x in 0 .. 10.25.

    square: float64, x**2 rounded or a number close to it; if it is x**2, the result is erfc(x).
    """
    scaled = _scaled_erfc((x - FOUR) / (x + FOUR))
    return times(exp_of(-square), scaled / (ONE + times(x, TWO)))


@scalar
def _near(x: Any, square: Any) -> Any:
    """Return (large, small), two float64 whose sum is erf(x), for a float64 |x| <= 1; square: x**2 in float64."""
    # where x has 24 bits, its product with the first 28 of 2 / sqrt(pi) is exact
    return times(x, SLOPE_HIGH), times(times(x, square), _erf_rest(square)) + times(x, SLOPE_LOW)


@scalar
def erf_wide(x: Any) -> Any:
    """Return erf(x) in float64, for a float32 x in 0 .. 4 passed as float64; beyond 4, erf is 1 in float32."""
    square = times(x, x)
    large, small = _near(x, square)
    return sum_to_odd(large, small) if x < ONE else sum_to_odd(ONE, -_tail(x, square))


@scalar
def erfc_wide(x: Any) -> Any:
    """Return 1 - erf(x) in float64, for any float32 x passed as float64."""
    magnitude = clamped(x if x > ZERO else -x, ZERO, FARTHEST)
    tail = _tail(magnitude, times(magnitude, magnitude))
    return sum_to_odd(TWO, -tail) if x < ZERO else tail


@scalar
def gelu_wide(x: Any) -> Any:
    """Return x * (1 + erf(x / sqrt(2))) / 2 in float64, for a finite float32 x passed as float64.

    Results for x below -14.375 are -0 in float32.
    """
    magnitude = clamped(x if x > ZERO else -x, ZERO, GELU_FARTHEST)
    half_square = times(times(magnitude, magnitude), HALF)
    scaled = times(magnitude, ROOT_HALF)
    product = times(magnitude, times(_tail(scaled, half_square), HALF))  # for x < 0 the result
    # near 0 the sum with x / 2 is rounded to odd: halves of subnormal numbers are in the middle of two
    half = times(x, HALF)
    large, small = _near(times(x, ROOT_HALF), half_square)
    near = sum_to_odd(half, times(half, large + small))
    far = sum_to_odd(x, -product) if x > ZERO else -product
    return near if (x > GELU_FROM) & (x < GELU_TO) else far
