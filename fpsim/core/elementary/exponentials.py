"""Scalar core: float64 values of exp, exp2, expm1, tanh, sigmoid and silu that round correctly: docs/elementary.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.elementary.coefficients import EXP, EXP2, LN2, LOG2_E
from fpsim.core.elementary.steps import SHIFTER, polynomial, power_of_two, sum_to_odd, times
from fpsim.runtime.compile import scalar

f64 = np.float64

LN2_HIGH, LN2_LOW, LOG2_OF_E = f64(LN2[0]), f64(LN2[1]), f64(LOG2_E)
EXP_LOWEST, EXP_HIGHEST = f64(-110), f64(90)  # beyond, float32 has 0 and Inf
EXP2_LOWEST, EXP2_HIGHEST = f64(-152), f64(129)
EXPM1_LOWEST = f64(-40)  # below, expm1 is -1 in float32
SIGMOID_FROM = f64(-0.3)  # below, the sum with 1/2 cancels
ZERO, HALF, ONE, TWO = f64(0), f64(0.5), f64(1), f64(2)

_exp_quotient = polynomial(EXP)
_exp2_quotient = polynomial(EXP2)


@scalar
def clamped(x: Any, lowest: Any, highest: Any) -> Any:
    """Return the float64 x clamped to lowest .. highest; NaN becomes lowest."""
    x = x if x > lowest else lowest
    return x if x < highest else highest


@scalar
def exp_parts(x: Any) -> Any:
    """Return (2**k, p), two float64 with exp(x) = 2**k * (1 + p), integer k, |p| < 0.42, for a float64 |x| < 700."""
    shifted = times(x, LOG2_OF_E) + SHIFTER
    k = shifted - SHIFTER
    r = (x - times(k, LN2_HIGH)) - times(k, LN2_LOW)
    return power_of_two(shifted), times(r, _exp_quotient(r))


@scalar
def exp_of(x: Any) -> Any:
    """Return exp(x) in float64, for a float64 |x| < 700."""
    scale, p = exp_parts(x)
    return times(scale, ONE + p)


@scalar
def exp_wide(x: Any) -> Any:
    """Return exp(x) in float64, for a float32 x passed as float64.

    x is first clamped to -110 .. 90; beyond them the result in float32 is 0 or Inf anyway. NaN becomes -110.
    """
    scale, p = exp_parts(clamped(x, EXP_LOWEST, EXP_HIGHEST))
    return times(scale, ONE + p)


@scalar
def exp2_wide(x: Any) -> Any:
    """Return 2**x in float64, for a float32 x passed as float64; exact for integers.

    x is first clamped to -152 .. 129; beyond them the result in float32 is 0 or Inf anyway. NaN becomes -152.
    """
    x = clamped(x, EXP2_LOWEST, EXP2_HIGHEST)
    shifted = x + SHIFTER
    r = x - (shifted - SHIFTER)
    return times(power_of_two(shifted), ONE + times(r, _exp2_quotient(r)))


@scalar
def expm1_of(x: Any) -> Any:
    """Return exp(x) - 1 in float64 for a float64 x in -40 .. 700, with a small relative error near 0 too."""
    scale, p = exp_parts(x)
    return times(scale, p) + (scale - ONE)


@scalar
def expm1_wide(x: Any) -> Any:
    """Return exp(x) - 1 in float64, for a float32 x passed as float64; a zero keeps its sign.

    x is first clamped to -40 .. 90; beyond them the result in float32 is -1 or Inf anyway. NaN becomes -40.
    """
    y = expm1_of(clamped(x, EXPM1_LOWEST, EXP_HIGHEST))
    return x if x == ZERO else y  # a zero keeps its sign


@scalar
def tanh_wide(x: Any) -> Any:
    """Return tanh(x) in float64, for a float32 x in 0 .. 20 passed as float64."""
    e = expm1_of(times(x, TWO))
    return e / (e + TWO)


@scalar
def sigmoid_wide(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) in float64, for a float32 x passed as float64.

    x is first clamped to -110 .. 110; beyond them the result in float32 is 0 or 1 anyway. NaN becomes -110.
    """
    scale, p = exp_parts(clamped(x, EXP_LOWEST, -EXP_LOWEST))
    e = times(scale, p) + (scale - ONE)
    # for x near 0, 1/2 + x/4 - x**3 / 48 is near the middle of two float32 numbers: the sum is rounded to odd
    middle = sum_to_odd(HALF, times(e / (e + TWO), HALF))
    power = times(scale, ONE + p)
    return power / (ONE + power) if x < SIGMOID_FROM else middle


@scalar
def silu_wide(x: Any) -> Any:
    """Return x / (1 + exp(-x)) in float64, for a finite float32 x passed as float64."""
    near = clamped(x, EXP_LOWEST, -EXP_LOWEST)
    scale, p = exp_parts(near)
    e = times(scale, p) + (scale - ONE)
    middle = sum_to_odd(times(x, HALF), times(times(x, HALF), e / (e + TWO)))
    power = times(scale, ONE + p)
    return times(near, power) / (ONE + power) if x < SIGMOID_FROM else middle
