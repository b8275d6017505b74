"""Elementary functions of real numbers to any precision, by mpmath's integers; loads mpmath.

A Real is mpmath's number (sign, mantissa, exponent, bits), with the value (-1)**sign * mantissa * 2**exponent. Each
function takes a Real and a precision in bits, and returns a Real with a relative error below 2**(MARGIN_BITS -
precision).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpmath.libmp import (
    MPZ_ONE,
    fhalf,
    fone,
    from_int,
    from_man_exp,
    ftwo,
    mpf_add,
    mpf_cbrt,
    mpf_cos,
    mpf_div,
    mpf_exp,
    mpf_ln2,
    mpf_log,
    mpf_mul,
    mpf_neg,
    mpf_pi,
    mpf_shift,
    mpf_sin,
    mpf_sqrt,
    mpf_sub,
    mpf_tan,
    mpf_tanh,
    to_fixed,
)

Real = tuple[int, Any, int, int]
Function = Callable[[Real, int], Real]

SERIES_BELOW = 20  # bits: log(1 + x) for |x| < 2**-20 is a short series
MARGIN_BITS = 8  # the errors of a few operations, each less than 2**(1 - precision)


def magnitude(x: Real) -> int:
    """Return the integer e for which 2**(e - 1) <= |x| < 2**e.

    x: a nonzero mpmath number (sign, mantissa, exponent, bits).
    """
    return int(x[2] + x[3])


def _extra(x: Real) -> int:
    """Return the number of bits by which exp(x) amplifies a relative rounding error of x, plus 8.

    x: a number of mpmath, (sign, mantissa, exponent, bits).
    """
    return max(magnitude(x), 0) + 8


def _exp2(x: Real, precision: int) -> Real:
    """Return 2**x, computed as exp(x * log(2)), with a relative error below 2**(8 - precision).

    x and the result are mpmath's number tuples. The larger |x|, the more extra bits the product is computed with.
    """
    working = precision + _extra(x)
    return mpf_exp(mpf_mul(x, mpf_ln2(working), working), precision)  # type: ignore[no-any-return]


def _expm1(x: Real, precision: int) -> Real:
    """Return exp(x) - 1 with a relative error below 2**(8 - precision), for x other than 0.

    x and the result are mpmath's number tuples. The exponential is computed with extra bits for those that the
    difference cancels.
    """
    working = precision + max(-magnitude(x), 0) + 8  # as many bits as the difference cancels
    return mpf_sub(mpf_exp(x, working), fone, precision)  # type: ignore[no-any-return]


def _log1p(x: Real, precision: int) -> Real:
    """Return log(1 + x) with a relative error below 2**(8 - precision); x and the result are mpmath's number tuples.

    Near 0 it is computed by its series, since 1 + x would have too many bits.
    """
    if magnitude(x) > -SERIES_BELOW:
        return mpf_log(mpf_add(fone, x), precision)  # type: ignore[no-any-return]  # the sum is exact
    working = precision + 8
    total, power, count = x, x, 1
    while magnitude(power) > magnitude(x) - working:  # x - x**2 / 2 + x**3 / 3 - ...
        count += 1
        power = mpf_neg(mpf_mul(power, x, working))
        total = mpf_add(total, mpf_div(power, from_int(count), working), working)
    return total


def _logistic(top: Real, x: Real, precision: int) -> Real:
    """Return top / (1 + exp(-x)) with a relative error below 2**(8 - precision); all are mpmath's number tuples."""
    working = precision + 8
    return mpf_div(top, mpf_add(fone, mpf_exp(mpf_neg(x), working), working), precision)  # type: ignore[no-any-return]


def _half_gauss(square: Real, working: int) -> tuple[Any, Real]:
    """Return two factors of erf(x): (sum of (2 * square)**n / (1 * 3 * ... * (2n + 1)) over n >= 0, exp(-square)).

    square: x**2. It and exp(-square) are mpmath's number tuples. The sum is an integer in units of 2**-working.
    working: the precision in bits.
    """
    twice = to_fixed(mpf_shift(square, 1), working)
    term = total = MPZ_ONE << working
    count = 1
    while term:  # all terms are positive
        count += 2
        term = (term * twice >> working) // count
        total += term
    return total, mpf_exp(mpf_neg(square), working)


def _erf_of(x: Real, square: Real, precision: int) -> Real:
    """Return erf(x) with a relative error below 2**(8 - precision); square: x**2. All are mpmath's number tuples.

    square is exact. erf(x) = 2 / sqrt(pi) * x * exp(-x**2) * (sum of (2 * x**2)**n / (1 * 3 * ... * (2n + 1)) over n >=
    0).
    """
    working = precision + 2 * _extra(x)
    total, power = _half_gauss(square, working)
    slope = mpf_div(ftwo, mpf_sqrt(mpf_pi(working), working), working)
    product = mpf_mul(mpf_mul(x, slope, working), power, working)
    return mpf_mul(product, from_man_exp(total, -working), precision)  # type: ignore[no-any-return]


def _erfc_of(x: Real, square: Real, precision: int) -> Real:
    """Return 1 - erf(x) with a relative error below 2**(8 - precision); square: x**2. All are mpmath's number tuples.

    square is exact. For large x the result is computed by the asymptotic series, whose error is less than the first
    omitted term.
    """
    size = int(to_fixed(mpf_shift(square, 10), 0)) / 1024  # x**2, rounded
    if x[0] or size * 1.4 < precision + 20:
        lost = 0 if x[0] else int(1.5 * size) + 8  # bits that 1 - erf(x) cancels
        return mpf_sub(fone, _erf_of(x, square, precision + lost), precision)  # type: ignore[no-any-return]
    working = precision + 20
    inverse = to_fixed(mpf_div(fhalf, square, working), working)  # 1 / (2 * x**2)
    term = total = MPZ_ONE << working
    count = -1
    while term:
        count += 2
        term = -(term * inverse * count >> working)
        if abs(term) <= 1:
            break
        total += term
    power = mpf_exp(mpf_neg(square), working)
    root = mpf_mul(x, mpf_sqrt(mpf_pi(working), working), working)
    return mpf_mul(mpf_div(power, root, working), from_man_exp(total, -working), precision)  # type: ignore[no-any-return]


def _gelu(x: Real, precision: int) -> Real:
    """Return x * erfc(-x / sqrt(2)) / 2 with a relative error below 2**(8 - precision), as an mpmath tuple, like x.

    x**2 / 2 is exact, so that no error of it is amplified.
    """
    working = precision + 8
    longer = 3 * working + 64  # where erfc is 1 - erf, more bits cancel than the result has
    scaled = mpf_neg(mpf_mul(x, mpf_sqrt(fhalf, longer), longer))
    tail = _erfc_of(scaled, mpf_shift(mpf_mul(x, x), -1), working)
    return mpf_mul(x, mpf_shift(tail, -1), precision)  # type: ignore[no-any-return]


FUNCTIONS: dict[str, Function] = {
    "exp": mpf_exp, "exp2": _exp2, "expm1": _expm1, "log": mpf_log, "log1p": _log1p,
    "log2": lambda x, precision: mpf_div(mpf_log(x, precision + 8), mpf_ln2(precision + 8), precision),
    "sin": mpf_sin, "cos": mpf_cos, "tan": mpf_tan, "tanh": mpf_tanh,
    "sigmoid": lambda x, precision: _logistic(fone, x, precision),
    "erf": lambda x, precision: _erf_of(x, mpf_mul(x, x), precision),
    "erfc": lambda x, precision: _erfc_of(x, mpf_mul(x, x), precision),
    "rsqrt": lambda x, precision: mpf_div(fone, mpf_sqrt(x, precision + 8), precision),
    "reciprocal": lambda x, precision: mpf_div(fone, x, precision), "cbrt": mpf_cbrt,
    "softplus": lambda x, precision: _log1p(mpf_exp(x, precision + 8), precision + 8),
    "gelu": _gelu, "silu": lambda x, precision: _logistic(x, x, precision),
}  # fmt: skip
