"""Scalar core: the elementary functions of float32, correctly rounded to nearest even for every input.

Each evaluates in float64, with products, sums, quotients and roots only, to a relative error below 2**-46, and rounds
once; the few inputs that this rounds to the wrong side are in corrections.py. docs/elementary.md has the proof. NaN
becomes the quiet NaN without a sign. In this file, `wide` is a function's float64 evaluation and `name` its key in
CORRECTIONS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.core.elementary import circular, error_functions, exponentials, logarithms, roots
from fpsim.core.elementary.corrections import CORRECTIONS
from fpsim.core.elementary.steps import (
    INFINITY_32,
    MAGNITUDE_32,
    NAN_32,
    SIGN_32,
    bits_of,
    float_of,
    narrowed,
    replaced,
)
from fpsim.runtime.compile import scalar

f32, f64, u32 = np.float32, np.float64, np.uint32

ONE_32 = u32(0x3F800000)
ZERO_32 = u32(0)

Function = Callable[[Any], Any]


def _of_any(wide: Function, name: str) -> Function:
    """Return the compiled elementary function f of any float32 x, correctly rounded to float32.

    wide: the evaluation of f in float64, for any x including infinities. name: f's key in CORRECTIONS, which lists the
    inputs at which rounding `wide` to float32 is wrong. NaN becomes the quiet NaN without a sign.
    """
    correct = replaced(CORRECTIONS[name])

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        y = correct(bits, narrowed(wide(f64(x))))
        return float_of(NAN_32 if u32(bits & MAGNITUDE_32) > INFINITY_32 else y)

    return rounded


def _of_finite(wide: Function, name: str, below: float) -> Function:
    """Return the compiled elementary function f of any float32 x, correctly rounded to float32, with f(Inf) = Inf.

    wide: the evaluation of f in float64, for finite x. name: f's key in CORRECTIONS, which lists the inputs at which
    rounding `wide` to float32 is wrong. below: f(-Inf). NaN becomes the quiet NaN without a sign.
    """
    correct, at_minus_infinity = replaced(CORRECTIONS[name]), bits_of(f32(below))

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        magnitude = u32(bits & MAGNITUDE_32)
        finite = magnitude < INFINITY_32
        y = correct(bits, narrowed(wide(f64(x if finite else f32(1)))))
        y = y if finite else (bits if bits == INFINITY_32 else at_minus_infinity)
        return float_of(NAN_32 if magnitude > INFINITY_32 else y)

    return rounded


def _saturating(wide: Function, name: str, constant_from: float) -> Function:
    """Return the compiled odd elementary function f of any float32 x, correctly rounded to float32.

    f(-x) = -f(x), and f is constant from x = constant_from on. wide: the evaluation of f in float64, for x from 0 to
    constant_from. name: f's key in CORRECTIONS, which lists the inputs at which rounding `wide` to float32 is wrong.
    NaN becomes the quiet NaN without a sign.
    """
    correct, largest = replaced(CORRECTIONS[name]), bits_of(f32(constant_from))

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        magnitude = u32(bits & MAGNITUDE_32)
        y = correct(magnitude, narrowed(wide(f64(float_of(u32(min(magnitude, largest)))))))
        return float_of(NAN_32 if magnitude > INFINITY_32 else u32(y | u32(bits & SIGN_32)))

    return rounded


def _odd(wide: Function, name: str, at_zero: int, at_infinity: int) -> Function:
    """Return the compiled odd elementary function f, f(-x) = -f(x), of any float32 x, correctly rounded to float32.

    wide: the evaluation of f in float64, for finite x > 0. name: f's key in CORRECTIONS, which lists the inputs at
    which rounding `wide` to float32 is wrong. at_zero, at_infinity: f(+0) and f(Inf), as float32 bits. NaN becomes the
    quiet NaN without a sign.
    """
    correct, zero, infinite = replaced(CORRECTIONS[name]), u32(at_zero), u32(at_infinity)

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        magnitude = u32(bits & MAGNITUDE_32)
        ordinary = (magnitude > ZERO_32) & (magnitude < INFINITY_32)
        positive = float_of(magnitude if ordinary else ONE_32)
        y = correct(magnitude, narrowed(wide(f64(positive))))
        y = y if ordinary else (zero if magnitude == ZERO_32 else infinite)
        y = u32(y ^ u32(bits & SIGN_32))
        return float_of(NAN_32 if (magnitude > INFINITY_32) | (u32(y & MAGNITUDE_32) > INFINITY_32) else y)

    return rounded


def _even(wide: Function, name: str, at_infinity: int) -> Function:
    """Return the compiled even elementary function f, f(-x) = f(x), of any float32 x, correctly rounded to float32.

    wide: the evaluation of f in float64, for finite x >= 0. name: f's key in CORRECTIONS, which lists the inputs at
    which rounding `wide` to float32 is wrong. at_infinity: f(Inf), as float32 bits. NaN becomes the quiet NaN without a
    sign.
    """
    correct, infinite = replaced(CORRECTIONS[name]), u32(at_infinity)

    @scalar
    def rounded(x: Any) -> Any:
        magnitude = u32(bits_of(x) & MAGNITUDE_32)
        finite = magnitude < INFINITY_32
        y = correct(magnitude, narrowed(wide(f64(float_of(magnitude if finite else ONE_32)))))
        return float_of(y if finite else (NAN_32 if magnitude > INFINITY_32 else infinite))

    return rounded


def _near(wide: Function, name: str, sign: Any) -> Function:
    """Return the compiled odd or even elementary function f of a float32 |x| <= 2**20, correctly rounded to float32.

    wide: the evaluation of f in float64, for x >= 0. name: f's key in CORRECTIONS, which lists the inputs at which
    rounding `wide` to float32 is wrong. sign: uint32 mask of the sign bit if f(-x) = -f(x), 0 if f(-x) = f(x).
    """
    correct = replaced(CORRECTIONS[name])

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        magnitude = u32(bits & MAGNITUDE_32)
        y = correct(magnitude, narrowed(wide(f64(float_of(magnitude)))))
        return float_of(u32(y ^ u32(bits & sign)))

    return rounded


def _of_positive(wide: Function, name: str, at_zero: int, at_infinity: int) -> Function:
    """Return the compiled elementary function f of any float32 x, correctly rounded to float32; NaN for x < 0.

    wide: the evaluation of f in float64, for finite x > 0. name: f's key in CORRECTIONS, which lists the inputs at
    which rounding `wide` to float32 is wrong. at_zero, at_infinity: f(0) and f(Inf), as float32 bits. f(-0) is at_zero
    with the sign bit set.
    """
    correct, zero, infinite = replaced(CORRECTIONS[name]), u32(at_zero), u32(at_infinity)

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        magnitude = u32(bits & MAGNITUDE_32)
        ordinary = (bits > ZERO_32) & (bits < INFINITY_32)
        y = correct(bits, narrowed(wide(f64(float_of(bits if ordinary else ONE_32)))))
        y = y if ordinary else (infinite if bits == INFINITY_32 else NAN_32)
        return float_of(u32(zero | u32(bits & SIGN_32)) if magnitude == ZERO_32 else y)

    return rounded


def _log1p() -> Function:
    """Return the compiled function log(1 + x) of any float32 x, correctly rounded to float32: NaN for x < -1."""
    correct, wide, minus_one = replaced(CORRECTIONS["log1p"]), logarithms.log1p_of, u32(0xBF800000)

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        ordinary = (u32(bits & MAGNITUDE_32) > ZERO_32) & (
            (bits < INFINITY_32) | ((bits > SIGN_32) & (bits < minus_one))
        )
        y = correct(bits, narrowed(wide(f64(x if ordinary else f32(1)))))
        y = y if ordinary else (bits if (u32(bits & MAGNITUDE_32) == ZERO_32) | (bits == INFINITY_32) else NAN_32)
        return float_of(u32(INFINITY_32 | SIGN_32) if bits == minus_one else y)

    return rounded


_INF, _NAN, _MINUS_INF = 0x7F800000, 0x7FC00000, 0xFF800000

exp = _of_any(exponentials.exp_wide, "exp")
exp2 = _of_any(exponentials.exp2_wide, "exp2")
expm1 = _of_any(exponentials.expm1_wide, "expm1")
sigmoid = _of_any(exponentials.sigmoid_wide, "sigmoid")
erfc = _of_any(error_functions.erfc_wide, "erfc")
silu = _of_finite(exponentials.silu_wide, "silu", -0.0)
gelu = _of_finite(error_functions.gelu_wide, "gelu", -0.0)
softplus = _of_finite(logarithms.softplus_wide, "softplus", 0.0)
tanh = _saturating(exponentials.tanh_wide, "tanh", 20.0)
erf = _saturating(error_functions.erf_wide, "erf", 4.0)
sin = _odd(circular.sin_wide, "sin", 0, _NAN)
tan = _odd(circular.tan_wide, "tan", 0, _NAN)
cbrt = _odd(roots.cbrt_wide, "cbrt", 0, _INF)
reciprocal = _odd(roots.reciprocal_wide, "reciprocal", _INF, 0)
cos = _even(circular.cos_wide, "cos", _NAN)
log = _of_positive(logarithms.log_wide, "log", _MINUS_INF, _INF)
log2 = _of_positive(logarithms.log2_wide, "log2", _MINUS_INF, _INF)
rsqrt = _of_positive(roots.rsqrt_wide, "rsqrt", _INF, 0)
log1p = _log1p()

NEAR_FUNCTIONS: dict[str, Function] = {  # for |x| <= 2**20: see circular.py
    "sin": _near(circular.sin_near, "sin", SIGN_32),
    "cos": _near(circular.cos_near, "cos", ZERO_32),
    "tan": _near(circular.tan_near, "tan", SIGN_32),
}
WIDE: dict[str, Function] = {  # the evaluations in float64
    "exp": exponentials.exp_wide, "exp2": exponentials.exp2_wide, "expm1": exponentials.expm1_wide,
    "log": logarithms.log_wide, "log2": logarithms.log2_wide, "log1p": logarithms.log1p_of, "sin": circular.sin_wide,
    "cos": circular.cos_wide, "tan": circular.tan_wide, "tanh": exponentials.tanh_wide,
    "sigmoid": exponentials.sigmoid_wide, "erf": error_functions.erf_wide, "erfc": error_functions.erfc_wide,
    "rsqrt": roots.rsqrt_wide, "reciprocal": roots.reciprocal_wide, "cbrt": roots.cbrt_wide,
    "softplus": logarithms.softplus_wide, "gelu": error_functions.gelu_wide, "silu": exponentials.silu_wide,
}  # fmt: skip
FUNCTIONS: dict[str, Function] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": log2, "log1p": log1p, "sin": sin, "cos": cos,
    "tan": tan, "tanh": tanh, "sigmoid": sigmoid, "erf": erf, "erfc": erfc, "rsqrt": rsqrt, "reciprocal": reciprocal,
    "cbrt": cbrt, "softplus": softplus, "gelu": gelu, "silu": silu,
}  # fmt: skip
