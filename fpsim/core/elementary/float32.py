"""Scalar core: the elementary functions of float32, correctly rounded to nearest even for every input.

Each evaluates in float64, with products, sums, quotients and roots only, to a relative error below 2**-46, and rounds
once; the few inputs that this rounds to the wrong side are in corrections.py. docs/elementary.md has the proof. NaN
becomes the quiet NaN without a sign. In this file, `name` is a function's key in WIDE, the evaluations in float64, and
in CORRECTIONS.
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

WIDE: dict[str, Function] = {  # the evaluations in float64
    "exp": exponentials.exp_wide, "exp2": exponentials.exp2_wide, "expm1": exponentials.expm1_wide,
    "log": logarithms.log_wide, "log2": logarithms.log2_wide, "log1p": logarithms.log1p_of, "sin": circular.sin_wide,
    "cos": circular.cos_wide, "tan": circular.tan_wide, "tanh": exponentials.tanh_wide,
    "sigmoid": exponentials.sigmoid_wide, "erf": error_functions.erf_wide, "erfc": error_functions.erfc_wide,
    "rsqrt": roots.rsqrt_wide, "reciprocal": roots.reciprocal_wide, "cbrt": roots.cbrt_wide,
    "softplus": logarithms.softplus_wide, "gelu": error_functions.gelu_wide, "silu": exponentials.silu_wide,
}  # fmt: skip


def _of_any(name: str) -> Function:
    """Return the compiled elementary function f of any float32 x, correctly rounded to float32.

    name: the name of f, such as "exp". WIDE[name], the evaluation of f in float64, must take any x including
    infinities. NaN becomes the quiet NaN without a sign.
    """
    wide, correct = WIDE[name], replaced(CORRECTIONS[name])

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        y = correct(bits, narrowed(wide(f64(x))))
        return float_of(NAN_32 if u32(bits & MAGNITUDE_32) > INFINITY_32 else y)

    return rounded


def _of_finite(name: str, below: float) -> Function:
    """Return the compiled elementary function f of any float32 x, correctly rounded to float32, with f(Inf) = Inf.

    name: the name of f, such as "gelu". WIDE[name], the evaluation of f in float64, must take finite x. below: f(-Inf).
    NaN becomes the quiet NaN without a sign.
    """
    wide, correct, at_minus_infinity = WIDE[name], replaced(CORRECTIONS[name]), bits_of(f32(below))

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        magnitude = u32(bits & MAGNITUDE_32)
        finite = magnitude < INFINITY_32
        y = correct(bits, narrowed(wide(f64(x if finite else f32(1)))))
        y = y if finite else (bits if bits == INFINITY_32 else at_minus_infinity)
        return float_of(NAN_32 if magnitude > INFINITY_32 else y)

    return rounded


def _saturating(name: str, constant_from: float) -> Function:
    """Return the compiled odd elementary function f of any float32 x, correctly rounded to float32.

    f(-x) = -f(x), and f is constant from x = constant_from on. name: the name of f, such as "tanh". WIDE[name], the
    evaluation of f in float64, must take x from 0 to constant_from. NaN becomes the quiet NaN without a sign.
    """
    wide, correct, largest = WIDE[name], replaced(CORRECTIONS[name]), bits_of(f32(constant_from))

    @scalar
    def rounded(x: Any) -> Any:
        bits = bits_of(x)
        magnitude = u32(bits & MAGNITUDE_32)
        y = correct(magnitude, narrowed(wide(f64(float_of(u32(min(magnitude, largest)))))))
        return float_of(NAN_32 if magnitude > INFINITY_32 else u32(y | u32(bits & SIGN_32)))

    return rounded


def _odd(name: str, at_zero: int, at_infinity: int) -> Function:
    """Return the compiled odd elementary function f, f(-x) = -f(x), of any float32 x, correctly rounded to float32.

    name: the name of f, such as "sin". WIDE[name], the evaluation of f in float64, must take finite x > 0. at_zero,
    at_infinity: f(+0) and f(Inf), as float32 bits. NaN becomes the quiet NaN without a sign.
    """
    wide, correct, zero, infinite = WIDE[name], replaced(CORRECTIONS[name]), u32(at_zero), u32(at_infinity)

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


def _even(name: str, at_infinity: int) -> Function:
    """Return the compiled even elementary function f, f(-x) = f(x), of any float32 x, correctly rounded to float32.

    name: the name of f, such as "cos". WIDE[name], the evaluation of f in float64, must take finite x >= 0.
    at_infinity: f(Inf), as float32 bits. NaN becomes the quiet NaN without a sign.
    """
    wide, correct, infinite = WIDE[name], replaced(CORRECTIONS[name]), u32(at_infinity)

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


def _of_positive(name: str, at_zero: int, at_infinity: int) -> Function:
    """Return the compiled elementary function f of any float32 x, correctly rounded to float32; NaN for x < 0.

    name: the name of f, such as "log". WIDE[name], the evaluation of f in float64, must take finite x > 0. at_zero,
    at_infinity: f(0) and f(Inf), as float32 bits. f(-0) is at_zero with the sign bit set.
    """
    wide, correct, zero, infinite = WIDE[name], replaced(CORRECTIONS[name]), u32(at_zero), u32(at_infinity)

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
    wide, correct, minus_one = WIDE["log1p"], replaced(CORRECTIONS["log1p"]), u32(0xBF800000)

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

NEAR_FUNCTIONS: dict[str, Function] = {  # for |x| <= 2**20: see circular.py
    "sin": _near(circular.sin_near, "sin", SIGN_32),
    "cos": _near(circular.cos_near, "cos", ZERO_32),
    "tan": _near(circular.tan_near, "tan", SIGN_32),
}
FUNCTIONS: dict[str, Function] = {
    "exp": _of_any("exp"),
    "exp2": _of_any("exp2"),
    "expm1": _of_any("expm1"),
    "log": _of_positive("log", _MINUS_INF, _INF),
    "log2": _of_positive("log2", _MINUS_INF, _INF),
    "log1p": _log1p(),
    "sin": _odd("sin", 0, _NAN),
    "cos": _even("cos", _NAN),
    "tan": _odd("tan", 0, _NAN),
    "tanh": _saturating("tanh", 20.0),
    "sigmoid": _of_any("sigmoid"),
    "erf": _saturating("erf", 4.0),
    "erfc": _of_any("erfc"),
    "rsqrt": _of_positive("rsqrt", _INF, 0),
    "reciprocal": _odd("reciprocal", _INF, 0),
    "cbrt": _odd("cbrt", 0, _INF),
    "softplus": _of_finite("softplus", 0.0),
    "gelu": _of_finite("gelu", -0.0),
    "silu": _of_finite("silu", -0.0),
}
