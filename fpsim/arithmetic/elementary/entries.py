"""Exact results of elementary functions: the first 61 bits of each, and a bit that is set if any nonzero bit follows.

The 61 bits are proven by Ziv's test: an evaluation with an error bound is accepted if all numbers within the bound have
the same 61 bits; otherwise it is repeated with twice the precision. Results with few bits are known beforehand, by
integer arithmetic or by theorem, so that the test always ends. Loads mpmath.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from mpmath.libmp import from_float

from fpsim.arithmetic.elementary.real import FUNCTIONS, MARGIN_BITS, magnitude
from fpsim.core.number import TOP

KEPT = TOP  # bits of a result; one more is set if any later bit is
FIRST_PRECISION, MOST_PRECISION = KEPT + 30, 1 << 14
FARTHEST = 16000  # exponents are limited to this magnitude, which is far beyond every format
# From these magnitudes on a function differs from its limit by less than 2**-70 of it: erfc(7) is 2**-74.
NEAREST_LIMIT = 7.0
LIMIT_FROM = {"tanh": 64.0, "sigmoid": 64.0, "expm1": 64.0, "silu": 64.0, "softplus": 64.0, "gelu": 12.0}
LIMIT_FROM |= {"erf": NEAREST_LIMIT, "erfc": NEAREST_LIMIT}
BELOW_LIMIT = {"sigmoid": (False, 1.0), "expm1": (True, -1.0), "erfc": (True, 2.0)}  # at the infinity of one sign
# From these magnitudes on, the exponent of its result (or of the difference from its limit) may be beyond FARTHEST.
FAR_FROM = dict.fromkeys(("exp", "exp2", "expm1", "sigmoid", "softplus", "silu"), 2.0**14) | {
    "erfc": 128.0,
    "gelu": 256.0,
}


ONE = Fraction(1)
AT_ZERO = {"exp": ONE, "cos": ONE, "erfc": ONE, "sigmoid": ONE / 2}


class ExactResult(NamedTuple):
    """A nonzero result, (-1)**negative * significand * 2**(exponent - TOP), with 2**TOP <= significand < 2**(TOP + 1).

    TOP is 61. The lowest bit of the significand is sticky: it is also set if any bit after it is 1.
    """

    negative: bool
    exponent: int
    significand: int


def exact_result(name: str, x: float) -> ExactResult:
    """Return the result of the function `name` at x as an ExactResult: sign, exponent, 61 bits and a sticky bit.

    x: a finite value of the function's domain, at which the result is neither zero nor infinite. name: one of the
    elementary functions, such as "exp".
    """
    extreme = _extreme(name, x)
    if extreme is not None:
        return extreme
    known = _exact(name, x)
    return _by_ziv(name, x) if known is None else _of_fraction(known)


def _by_ziv(name: str, x: float) -> ExactResult:
    """Return the ExactResult of function `name` at x, evaluated with more and more bits until 61 are proven.

    The exact result must have more than 61 bits; an AssertionError says that MOST_PRECISION bits do not suffice.
    """
    function, argument = FUNCTIONS[name], from_float(x)
    precision = FIRST_PRECISION
    while precision <= MOST_PRECISION:
        value = function(argument, precision)
        lacking = precision - value[3]
        digits = int(value[1]) << lacking if lacking >= 0 else int(value[1]) >> -lacking  # `precision` bits
        below = precision - KEPT
        rest = digits & ((1 << below) - 1)
        if 1 << MARGIN_BITS < rest < (1 << below) - (1 << MARGIN_BITS):
            exponent = max(min(magnitude(value) - 1, FARTHEST), -FARTHEST)
            return ExactResult(bool(value[0]), exponent, (digits >> below) << 1 | 1)
        precision *= 2
    raise AssertionError(f"{name}({x!r}) is closer to a number of {KEPT} bits than 2**-{MOST_PRECISION}")


def _of_fraction(value: Fraction) -> ExactResult:
    """Return a nonzero rational result as an ExactResult: sign, exponent, 61 significant bits and a sticky bit."""
    negative, value = value < 0, abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= value < Fraction(2) ** exponent
    scaled = value / Fraction(2) ** (exponent - TOP)
    whole, rest = divmod(scaled.numerator, scaled.denominator)
    return ExactResult(negative, exponent, whole | (rest != 0))


def _exact(name: str, x: float) -> Fraction | None:
    """Return the result of function `name` at x if it is rational and known without an evaluation, else None.

    By the theorem of Lindemann and Weierstrass exp, log, sin, cos, tan and tanh of a rational number are irrational,
    except at 0 (1 for log); a power 2**x is rational for integers alone, and log2 for powers of two.
    """
    if name == "reciprocal":
        return 1 / Fraction(x)
    if name == "exp2" and x.is_integer():
        return Fraction(2) ** int(x)
    if name == "log2":
        mantissa, exponent = math.frexp(x)
        return Fraction(exponent - 1) if mantissa == 0.5 else None
    if name == "rsqrt":
        root = _root(Fraction(x), 2)
        return 1 / root if root is not None else None
    if name == "cbrt":
        return _root(Fraction(x), 3)
    return AT_ZERO.get(name) if x == 0 else None


def _root(value: Fraction, degree: int) -> Fraction | None:
    """Return the square root (degree 2) or cube root (degree 3) of a nonzero `value` if it is rational, else None."""
    negative, value = value < 0, abs(value)
    roots = []
    for part in (value.numerator, value.denominator):
        zeros = (part & -part).bit_length() - 1
        odd = part >> zeros
        guess = round(odd ** (1 / degree))  # odd parts have up to 53 bits, and their exact roots fewer than 27
        if zeros % degree or guess**degree != odd:
            return None
        roots.append(guess << (zeros // degree))
    return Fraction(-roots[0] if negative else roots[0], roots[1])


def _extreme(name: str, x: float) -> ExactResult | None:
    """Return the ExactResult of function `name` at x if it is extremely close to a limit, or extremely large or small.

    The limit is what the function tends to for large |x|, such as 1 for tanh and x itself for silu. Extremely close
    means a relative distance below 2**-70; extremely large or small, an exponent beyond +-16000 (FARTHEST). Return None
    for all other results: they must be evaluated.
    An ExactResult is a sign, an exponent and a significand of 61 bits with a sticky bit.
    """
    size = abs(x)
    if size < NEAREST_LIMIT:
        return None
    sign = x < 0
    if name in ("tanh", "erf") and size >= LIMIT_FROM[name]:
        return _below(math.copysign(1.0, x))
    if name in BELOW_LIMIT and size >= LIMIT_FROM[name] and sign == BELOW_LIMIT[name][0]:
        return _below(BELOW_LIMIT[name][1])
    if name in ("silu", "gelu") and not sign and size >= LIMIT_FROM[name]:
        return _below(x)
    if name == "softplus" and not sign and size >= LIMIT_FROM[name]:
        at = _of_fraction(Fraction(x))
        return at._replace(significand=at.significand | 1)
    if size >= FAR_FROM.get(name, math.inf):
        grows = not sign and name in ("exp", "exp2", "expm1")
        return ExactResult(name in ("silu", "gelu"), FARTHEST if grows else -FARTHEST, 1 << TOP | 1)
    return None


def _below(limit: float) -> ExactResult:
    """Return the ExactResult of a number that is closer to zero than `limit`, by a relative distance of at most 2**-70.

    All these numbers have one ExactResult (sign, exponent, 61 bits and a sticky bit): the 61 bits are the next ones
    below |limit|'s, and the sticky bit is set.
    """
    at = _of_fraction(Fraction(limit))
    if at.significand > 1 << TOP:
        return at._replace(significand=at.significand - 1)
    return ExactResult(at.negative, at.exponent - 1, (2 << TOP) - 1)
