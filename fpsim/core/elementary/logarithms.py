"""Scalar core: float64 values of log, log2, log1p and softplus that round correctly: docs/elementary.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.elementary.coefficients import INVERSE_LN2, LN2, LOG
from fpsim.core.elementary.exponentials import EXP_HIGHEST, EXP_LOWEST, clamped, exp_of
from fpsim.core.elementary.steps import polynomial, sum_to_odd, times
from fpsim.runtime.compile import scalar

f64, i64, u64 = np.float64, np.int64, np.uint64

LN2_HIGH, LN2_LOW = f64(LN2[0]), f64(LN2[1])
INVERSE_HIGH, INVERSE_LOW = f64(INVERSE_LN2[0]), f64(INVERSE_LN2[1])
INVERSE = f64(INVERSE_LN2[0] + INVERSE_LN2[1])
ZERO, HALF, ONE, TWO = f64(0), f64(0.5), f64(1), f64(2)
SQRT_HALF_BITS = i64(0x3FE6A09E667F3BCD)
MANTISSA_MASK = i64((1 << 52) - 1)
EXPONENT_SHIFT = i64(52)

_log_rest = polynomial(LOG)


@scalar
def split_at_root(x: Any) -> Any:
    """Return (k, f) with x = 2**k * (1 + f) and sqrt(1/2) <= 1 + f < sqrt(2), for a normal float64 x > 0.

    k and f are float64, both exact; k is an integer.
    """
    offset = i64(i64(f64(x).view(np.int64)) - SQRT_HALF_BITS)
    k = i64(offset >> EXPONENT_SHIFT)
    m = i64(i64(offset & MANTISSA_MASK) + SQRT_HALF_BITS).view(np.float64)
    return f64(k), m - ONE


@scalar
def log_tail(f: Any) -> Any:
    """Return log(1 + f) - f in float64, for a float64 f with 1 + f from sqrt(1/2) to sqrt(2)."""
    s = f / (TWO + f)
    z = times(s, s)
    half_square = times(times(f, f), HALF)
    return times(s, half_square + times(z, _log_rest(z))) - half_square


@scalar
def log_wide(x: Any) -> Any:
    """Return log(x) in float64, for a finite float32 x > 0 passed as float64."""
    k, f = split_at_root(x)
    large = times(k, LN2_HIGH)
    total = large + f
    error = f - (total - large)  # |large| > |f|, or large is 0
    return sum_to_odd(total, (log_tail(f) + times(k, LN2_LOW)) + error)


@scalar
def log2_wide(x: Any) -> Any:
    """Return log2(x) in float64, for a finite float32 x > 0 passed as float64; exact for powers of two."""
    k, f = split_at_root(x)
    head = times(f, INVERSE_HIGH)  # exact: f is a float32, less than 27 bits
    total = k + head
    error = head - (total - k)
    return sum_to_odd(total, (times(log_tail(f), INVERSE) + times(f, INVERSE_LOW)) + error)


@scalar
def log1p_of(t: Any) -> Any:
    """Return log(1 + t) in float64, for a finite float64 t > -1, with a small relative error near 0 too."""
    u = ONE + t
    k, f = split_at_root(u)
    near = k == ZERO
    lost = t - (u - ONE) if t < ONE else ONE - (u - t)  # rounding error of the sum u
    f = t if near else f
    total = times(k, LN2_HIGH) + f
    error = f - (total - times(k, LN2_HIGH))
    correction = ZERO if near else lost / u
    return sum_to_odd(total, ((log_tail(f) + times(k, LN2_LOW)) + correction) + error)


@scalar
def softplus_wide(x: Any) -> Any:
    """Return log(1 + exp(x)) in float64, for a finite float32 x passed as float64."""
    magnitude = x if x < ZERO else -x
    rest = log1p_of(exp_of(clamped(magnitude, EXP_LOWEST, EXP_HIGHEST)))
    return sum_to_odd(x, rest) if x > ZERO else rest
