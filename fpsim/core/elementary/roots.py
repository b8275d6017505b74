"""Scalar core: float64 values of rsqrt, reciprocal and cbrt of a float32 that round correctly: docs/elementary.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.core.elementary.coefficients import CBRT, CBRT_2, CBRT_4
from fpsim.core.elementary.steps import polynomial, times
from fpsim.runtime.compile import scalar

f64, i64 = np.float64, np.int64

ONE, TWO, FOUR, THIRD = f64(1), f64(2), f64(4), f64(1 / 3)
ROOT_2, ROOT_4 = f64(CBRT_2), f64(CBRT_4)
MANTISSA_MASK, ONE_BITS = i64((1 << 52) - 1), i64(1023 << 52)
EXPONENT_SHIFT = i64(52)

_first_cbrt = polynomial(CBRT)


@scalar
def rsqrt_wide(x: Any) -> Any:
    """Return 1 / sqrt(x) in float64, for a finite float32 x > 0 passed as float64; exact for powers of four."""
    return ONE / f64(math.sqrt(x))


@scalar
def reciprocal_wide(x: Any) -> Any:
    """Return 1 / x in float64, for a finite float32 x > 0 passed as float64."""
    return ONE / x


@scalar
def cbrt_wide(x: Any) -> Any:
    """Return the cube root of x in float64, for a finite float32 x > 0 passed as float64."""
    bits = i64(f64(x).view(np.int64))
    m = i64(i64(bits & MANTISSA_MASK) | ONE_BITS).view(np.float64)
    exponent = i64(i64(bits >> EXPONENT_SHIFT) + i64(3000 - 1023))  # positive, and a multiple of 3 more
    third = i64(i64(exponent * i64(21846)) >> i64(16))  # exponent // 3 for exponents of up to 2**14
    left = i64(exponent - i64(third * i64(3)))
    # m, 2m or 4m, whose root is that of m times a constant
    factor = ROOT_2 if left == i64(1) else (ROOT_4 if left == i64(2) else ONE)
    scaled = times(m, TWO if left == i64(1) else (FOUR if left == i64(2) else ONE))
    y = times(_first_cbrt(m), factor)  # to 2**-16
    y = y - times(y - scaled / times(y, y), THIRD)  # to 2**-31
    y = y - times(y - scaled / times(y, y), THIRD)  # to the rounding of the last step
    scale = i64(i64(third + i64(1023 - 1000)) << EXPONENT_SHIFT).view(np.float64)
    return times(y, scale)
