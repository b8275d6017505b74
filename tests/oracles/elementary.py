"""A slow oracle for elementary functions: mpmath's own functions of real numbers, rounded by fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from mpmath import mp

from tests.oracles.arithmetic import DIVIDE_BY_ZERO, Exact, Operand, nan

REAL: dict[str, Callable[[Any], Any]] = {
    "exp": mp.exp,
    "exp2": lambda x: mp.power(2, x),
    "expm1": mp.expm1,
    "log": mp.log,
    "log2": lambda x: mp.log(x) / mp.ln2,
    "log1p": mp.log1p,
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "tanh": mp.tanh,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "erf": mp.erf,
    "erfc": mp.erfc,
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "silu": lambda x: x / (1 + mp.exp(-x)),
}
DIGITS = 60  # decimal: 200 bits
ODD = ("expm1", "log1p", "sin", "tan", "tanh", "erf", "cbrt", "gelu", "silu")  # zero at zero, with its sign
# Limits at +Inf and -Inf, None for an invalid operation.
LIMITS: dict[str, tuple[float | None, float | None]] = {
    "exp": (math.inf, 0.0), "exp2": (math.inf, 0.0), "expm1": (math.inf, -1.0), "log": (math.inf, None),
    "log2": (math.inf, None), "log1p": (math.inf, None), "sin": (None, None), "cos": (None, None), "tan": (None, None),
    "tanh": (1.0, -1.0), "sigmoid": (1.0, 0.0), "erf": (1.0, -1.0), "erfc": (0.0, 2.0), "rsqrt": (0.0, None),
    "reciprocal": (0.0, -0.0), "cbrt": (math.inf, -math.inf), "softplus": (math.inf, 0.0), "gelu": (math.inf, -0.0),
    "silu": (math.inf, -0.0),
}  # fmt: skip
TINY = Fraction(1, 2**400)  # stands for every distance that no format and no random word sees
# Where a function differs from its limit, or a line, by too little for DIGITS: (side of x, from, limit, sign of rest)
CLOSE: dict[str, list[tuple[int, float, Callable[[Fraction], Fraction], int]]] = {
    "tanh": [(1, 40, lambda x: Fraction(1), -1), (-1, 40, lambda x: Fraction(-1), 1)],
    "erf": [(1, 9, lambda x: Fraction(1), -1), (-1, 9, lambda x: Fraction(-1), 1)],
    "erfc": [(-1, 9, lambda x: Fraction(2), -1)],
    "sigmoid": [(1, 80, lambda x: Fraction(1), -1)],
    "expm1": [(-1, 80, lambda x: Fraction(-1), 1)],
    "softplus": [(1, 80, lambda x: x, 1)],
    "silu": [(1, 80, lambda x: x, -1)],
    "gelu": [(1, 13, lambda x: x, -1)],
}
# From which |x| on a function is below every positive number of a format, or beyond the largest one.
FAR = {
    "exp": 2000, "exp2": 2000, "expm1": 2000, "sigmoid": 2000, "softplus": 2000, "silu": 2000, "erfc": 40, "gelu": 60,
}  # fmt: skip
HUGE = Fraction(2) ** 2000


def real(name: str, x: float, digits: int = DIGITS) -> Any:
    """Return the value of a function at a finite number of its domain, to a few digits less than `digits`."""
    with mp.workdps(digits):
        return REAL[name](mp.mpf(x))


def fraction(value: Any) -> Fraction:
    """Return a number of mpmath as a fraction."""
    sign, mantissa, exponent, _ = value._mpf_
    size: Fraction = Fraction(int(mantissa)) * Fraction(2) ** exponent
    return -size if sign else size


def nearest_float32(value: Any) -> np.float32:
    """Return the float32 nearest to a number, ties to even."""
    exact = fraction(value)
    sign, exact = (-1, -exact) if exact < 0 else (1, exact)
    if exact == 0:
        return np.float32(0)
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    exponent -= exact < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(exact / unit) * unit  # Python rounds fractions to even
    result = np.float32(np.inf) if rounded >= Fraction(2) ** 128 else np.float32(float(rounded))
    return np.float32(sign * result)


def value_at(name: str, x: Fraction) -> Fraction:
    """Return a function's value at a number of its domain other than 0, or one that rounds as it does."""
    side = 1 if x > 0 else -1
    if name == "log2" and (abs(x.numerator - 1) == 0 or x.denominator == 1) and _is_power(x):
        return Fraction(x.numerator.bit_length() - x.denominator.bit_length())
    if name == "exp2" and x.denominator == 1 and abs(x) < FAR[name]:
        return Fraction(2) ** int(x)
    for of_side, start, limit, sign in CLOSE.get(name, ()):
        if side == of_side and abs(x) >= start:
            return limit(x) + sign * TINY * abs(limit(x))
    if abs(x) >= FAR.get(name, math.inf):
        grows = side > 0 and name in ("exp", "exp2", "expm1")
        size = HUGE if grows else 1 / HUGE
        return -size if name in ("silu", "gelu") else size
    if name == "reciprocal":
        return 1 / x
    root = {"rsqrt": 2, "cbrt": 3}.get(name)
    if root is not None:
        exact = fraction(real(name, float(x)))
        short = exact.limit_denominator(2**40) if exact.denominator < 2**400 else exact
        if short**root * (x if name == "rsqrt" else 1) == (1 if name == "rsqrt" else x):
            return short
    digits = DIGITS + (150 if abs(x) < Fraction(1, 2**60) else 0)  # of 1 + x, say
    return fraction(real(name, float(x), digits + 400 if abs(x) < Fraction(1, 2**300) else digits))


def _is_power(x: Fraction) -> bool:
    return x > 0 and x.numerator & (x.numerator - 1) == 0 and x.denominator & (x.denominator - 1) == 0


def exact(name: str, a: Operand) -> Exact:
    """Return the exact result of a function."""
    if a.kind == "nan":
        return nan(a)
    if a.kind == "infinity":
        limit = LIMITS[name][a.negative]
        return nan(invalid=True) if limit is None else _of_float(limit)
    if a.is_zero:
        if name in ("log", "log2"):
            return Exact("infinity", True, raised=DIVIDE_BY_ZERO)
        if name in ("rsqrt", "reciprocal"):
            return Exact("infinity", a.negative, raised=DIVIDE_BY_ZERO)
        if name in ODD:
            return Exact("finite", a.negative)
        known: dict[str, int | Fraction] = {"exp": 1, "exp2": 1, "cos": 1, "erfc": 1, "sigmoid": Fraction(1, 2)}
        return _of_fraction(Fraction(known[name]) if name in known else fraction(real(name, 0.0)))
    x = a.exact
    if x < {"log": 0, "log2": 0, "rsqrt": 0, "log1p": -1}.get(name, -math.inf):
        return nan(invalid=True)
    if name == "log1p" and x == -1:
        return Exact("infinity", True, raised=DIVIDE_BY_ZERO)
    if name in ("log", "log2") and x == 1:
        return Exact("finite")
    return _of_fraction(value_at(name, x))


def _of_float(value: float) -> Exact:
    negative = math.copysign(1, value) < 0
    return Exact("infinity", negative) if math.isinf(value) else Exact("finite", negative, abs(Fraction(value)))


def _of_fraction(value: Fraction) -> Exact:
    return Exact("finite", value < 0, abs(value))
