"""A slow, obvious oracle: exact fractions, one value at a time. It reads a format's facts and shares nothing else.

`value` and `encode` are the definition. `values` and `encode_all` say the same with sorted tables, so that complete
sweeps take seconds; oracles/test_casts.py compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import Format

Array = npt.NDArray[Any]
Kind = Literal["finite", "infinity", "nan"]

# Mode -> whether a magnitude goes to the next one: (the part of a unit that is dropped, 0 <= rest < 1; the significand
# that stays is odd; the value is negative), of one number or of arrays.
AWAY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "nearest_even": lambda rest, odd, negative: (rest > 0.5) | ((rest == 0.5) & odd),
    "nearest_away": lambda rest, odd, negative: rest >= 0.5,
    "toward_zero": lambda rest, odd, negative: rest < 0,
    "up": lambda rest, odd, negative: (rest > 0) & np.logical_not(negative),
    "down": lambda rest, odd, negative: (rest > 0) & negative,
    "odd": lambda rest, odd, negative: (rest > 0) & np.logical_not(odd),
}
MODES = tuple(AWAY)
OVERFLOWS = (
    "nonfinite", "saturate", "saturate_finite", "ml_dtypes", "torch", "torch<2.12",
    "p3109_satpropagate", "p3109_ovfinf",
)  # fmt: skip
SUBNORMALS = ("keep", "flush")


# ---- the code space


def width(fmt: Format) -> int:
    """Bits of a code."""
    return int(fmt.signed) + fmt.exponent_bits + fmt.mantissa_bits


def sign_of(fmt: Format) -> int:
    """Return the sign bit of a code, 0 where the format has none."""
    return 2 ** (fmt.exponent_bits + fmt.mantissa_bits) if fmt.signed else 0


def kind(fmt: Format, magnitude: int) -> Kind:
    """Return the kind of a magnitude code, apart from the NaN at the code of -0."""
    top = 2 ** (fmt.exponent_bits + fmt.mantissa_bits) - 1
    if fmt.nan == "ieee":
        field, fraction = divmod(magnitude, 2**fmt.mantissa_bits)
        if field < 2**fmt.exponent_bits - 1:
            return "finite"
        return "infinity" if fraction == 0 else "nan"
    specials: list[Kind] = []
    if fmt.nan == "top":
        specials.append("nan")
    if fmt.infinities:
        specials.append("infinity")
    return specials[top - magnitude] if top - magnitude < len(specials) else "finite"


@cache
def code_of_kind(fmt: Format, wanted: Kind) -> int | None:
    """Return the code of +Inf, of the canonical NaN, or of the largest finite value."""
    if wanted == "nan" and fmt.nan == "negative_zero":
        return sign_of(fmt)
    if fmt.nan == "ieee":
        infinity = (2**fmt.exponent_bits - 1) * 2**fmt.mantissa_bits
        quiet = 2 ** (fmt.mantissa_bits - 1)  # the first mantissa bit
        found: dict[Kind, int] = {"finite": infinity - 1, "infinity": infinity, "nan": infinity + quiet}
        return found[wanted]
    for magnitude in reversed(range(2 ** (fmt.exponent_bits + fmt.mantissa_bits))):
        if kind(fmt, magnitude) == wanted:
            return magnitude
    return None


@cache
def power(exponent: int) -> Fraction:
    """2**exponent."""
    return Fraction(2) ** exponent


def lowest_exponent(fmt: Format) -> int:
    """Exponent of the smallest normal value: of field 1, or of field 0 where that is an ordinary binade."""
    return (1 if fmt.subnormals else 0) - fmt.bias


def magnitude_value(fmt: Format, magnitude: int) -> Fraction:
    """Return the value of a finite magnitude code."""
    field, fraction = divmod(magnitude, 2**fmt.mantissa_bits)
    if fmt.subnormals and field == 0:
        return power(1 - fmt.bias) * Fraction(fraction, 2**fmt.mantissa_bits)
    return power(field - fmt.bias) * (1 + Fraction(fraction, 2**fmt.mantissa_bits))


@cache
def largest(fmt: Format) -> Fraction:
    """Return the largest finite value."""
    code = code_of_kind(fmt, "finite")
    assert code is not None
    return magnitude_value(fmt, code)


def value(fmt: Format, code: int) -> float:
    """Return the value of a code; float64 holds every one."""
    negative = bool(code & sign_of(fmt))
    magnitude = code - (sign_of(fmt) if negative else 0)
    found_kind = kind(fmt, magnitude)
    if found_kind == "nan" or (fmt.nan == "negative_zero" and negative and magnitude == 0):
        return math.nan
    found = math.inf if found_kind == "infinity" else float(magnitude_value(fmt, magnitude))
    return -found if negative else found


# ---- rounding


def exponent_of(exact: Fraction) -> int:
    """Return the exponent of a positive number: 2**exponent <= exact < 2**(exponent + 1)."""
    guess = exact.numerator.bit_length() - exact.denominator.bit_length()
    return guess if power(guess) <= exact else guess - 1


def spacing(fmt: Format, exact: Fraction) -> Fraction:
    """Distance of the format's values around a number, were the exponent range unbounded above."""
    exponent = exponent_of(exact) if exact else lowest_exponent(fmt)
    return power(max(exponent, lowest_exponent(fmt)) - fmt.mantissa_bits)


def code_of_value(fmt: Format, exact: Fraction) -> int:
    """Return the magnitude code of a value of the format, continued beyond the largest value."""
    if exact < power(lowest_exponent(fmt)):
        code = exact / power(lowest_exponent(fmt) - fmt.mantissa_bits)
    else:
        field = exponent_of(exact) + fmt.bias
        code = (field + exact / power(exponent_of(exact)) - 1) * 2**fmt.mantissa_bits
    assert code.denominator == 1
    return code.numerator


def is_odd(fmt: Format, exact: Fraction) -> bool:
    """Whether the significand of a value is odd; with one bit of precision only zero's is even, or the code says."""
    if fmt.mantissa_bits == 0 and not fmt.ties_to_even_code:
        return exact != 0
    return code_of_value(fmt, exact) % 2 == 1


def round_magnitude(exact: Fraction, negative: bool, fmt: Format, rounding: str, word: int, bits: int) -> Fraction:
    """One of the two neighbours of a magnitude, were the exponent range unbounded above."""
    unit = spacing(fmt, exact)
    below = exact // unit * unit
    rest = (exact - below) / unit  # of a unit, 0 <= rest < 1
    if not fmt.subnormals and exact < power(lowest_exponent(fmt)):
        return power(lowest_exponent(fmt))  # there is no zero to go to
    if rounding == "stochastic":  # the first `bits` bits of the fraction and of the random word carry
        away = math.floor(rest * 2**bits) + word // 2 ** (32 - bits) >= 2**bits
    else:
        away = AWAY[rounding](rest, is_odd(fmt, below), negative)
    return below + unit if away else below


# ---- what a format cannot hold


def too_large(fmt: Format) -> Kind:
    """Return the special for 'too large': Inf, NaN if there is no Inf, the largest finite value if there is neither."""
    return "infinity" if fmt.infinities else "nan" if fmt.nan != "none" else "finite"


def overflow_kind(fmt: Format, overflow: str) -> Kind:
    """Return the result for a finite value beyond the largest one."""
    if overflow in ("saturate", "saturate_finite", "p3109_satpropagate") or (
        overflow == "torch" and fmt.name == "E4M3"
    ):
        return "finite"
    if overflow == "p3109_ovfinf":
        return "infinity" if fmt.infinities else "finite"
    return too_large(fmt)


def infinite_kind(fmt: Format, overflow: str) -> Kind:
    """Return the result for an infinite value."""
    if overflow == "saturate" or (overflow == "torch" and fmt.name == "E4M3"):
        return "finite"
    if overflow in ("p3109_satpropagate", "p3109_ovfinf"):
        return "infinity" if fmt.infinities else "finite"
    return too_large(fmt)


def below_code(fmt: Format, overflow: str) -> int | None:
    """Return the result for a negative value in an unsigned format, or None if its sign is dropped."""
    if overflow in ("torch", "torch<2.12") and fmt.name == "E8M0":
        return None
    nan = code_of_kind(fmt, "nan")
    to_nan = overflow in ("nonfinite", "ml_dtypes", "torch", "torch<2.12") and nan is not None
    return nan if to_nan else 0


def nan_result(fmt: Format, overflow: str, negative: bool) -> int:
    """Return the result for NaN."""
    nan = code_of_kind(fmt, "nan")
    if nan is not None:
        return nan | (sign_of(fmt) if negative else 0)
    if overflow == "ml_dtypes":  # a zero with the opposite sign
        return 0 if negative else sign_of(fmt)
    most = code_of_kind(fmt, "finite")
    assert most is not None
    return most


def special_code(fmt: Format, special: Kind, negative: bool) -> int:
    """Return the code of a special, or of the largest value, with a sign."""
    code = code_of_kind(fmt, special)
    assert code is not None
    return code | (sign_of(fmt) if negative else 0)


def rounds_inward(rounding: str, negative: bool) -> bool:
    """Whether a mode rounds a value that is too large toward zero."""
    return rounding in ("toward_zero", "odd") or rounding == ("up" if negative else "down")


def encode(
    x: float,
    fmt: Format,
    rounding: str = "nearest_even",
    overflow: str = "nonfinite",
    subnormals: str = "keep",
    word: int = 0,
    random_bits: int = 32,
) -> int:
    """Return the code of one float, rounded once from its exact value. word: the random word of the stochastic mode."""
    negative = math.copysign(1, x) < 0
    if math.isnan(x):
        return nan_result(fmt, overflow, negative)
    below = below_code(fmt, overflow)
    if not fmt.subnormals and x == 0:
        return 0 if below is None else below
    if math.isinf(x):
        if negative and not fmt.signed and below is not None:
            return below
        return special_code(fmt, infinite_kind(fmt, overflow), negative)
    rounded = round_magnitude(abs(Fraction(x)), negative, fmt, rounding, word, random_bits)
    if subnormals == "flush" and fmt.subnormals and rounded < power(lowest_exponent(fmt)):
        rounded = Fraction(0)
    if negative and not fmt.signed and below is not None:
        return below if rounded else 0
    if rounded > largest(fmt):
        inward = rounds_inward(rounding, negative)
        return special_code(fmt, "finite" if inward else overflow_kind(fmt, overflow), negative)
    if rounded == 0 and not fmt.negative_zero:
        return 0
    return code_of_value(fmt, rounded) | (sign_of(fmt) if negative else 0)


# ---- the same for whole arrays, by looking up sorted tables


@lru_cache(maxsize=8)
def values(fmt: Format) -> Array:
    """float64 of every code."""
    codes = np.arange(2 ** width(fmt))
    fields, fractions = np.divmod(codes % 2 ** (fmt.exponent_bits + fmt.mantissa_bits), 2**fmt.mantissa_bits)
    subnormal = (fields == 0) & fmt.subnormals
    significands = np.where(subnormal, fractions, fractions + 2**fmt.mantissa_bits).astype(np.float64)
    exponents = np.where(subnormal, 1, fields) - fmt.bias - fmt.mantissa_bits
    with np.errstate(over="ignore"):  # specials
        found: Array = np.ldexp(significands, exponents)
    magnitudes = codes % 2 ** (fmt.exponent_bits + fmt.mantissa_bits)
    for magnitude in _special_magnitudes(fmt):
        found[magnitudes == magnitude] = math.inf if kind(fmt, magnitude) == "infinity" else math.nan
    if fmt.nan == "ieee":
        found[(fields == 2**fmt.exponent_bits - 1) & (fractions != 0)] = math.nan
    found[codes != magnitudes] *= -1
    if fmt.nan == "negative_zero":
        found[sign_of(fmt)] = math.nan
    return found


def _special_magnitudes(fmt: Format) -> Iterator[int]:
    """Return the two top magnitudes and, for IEEE layouts, that of Inf, where they are special."""
    top = 2 ** (fmt.exponent_bits + fmt.mantissa_bits) - 1
    for magnitude in {top, top - 1, (2**fmt.exponent_bits - 1) * 2**fmt.mantissa_bits}:
        if kind(fmt, magnitude) != "finite":
            yield magnitude


@lru_cache(maxsize=8)
def _grid(fmt: Format) -> tuple[Array, Array]:
    """Return the magnitudes of a format in order with the first one beyond, and the midpoints between them."""
    count = code_of_kind(fmt, "finite")
    assert count is not None
    finite = values(fmt)[: count + 1]
    last = largest(fmt) + spacing(fmt, largest(fmt))
    beyond = float(last) if last < power(1024) else math.inf
    middles = finite[:-1] + np.diff(finite) / 2
    return np.append(finite, beyond), np.append(middles, float((largest(fmt) + last) / 2))


@lru_cache(maxsize=4)
def _neighbours(fmt: Format, data: bytes) -> tuple[Array, Array, Array]:
    """Rank of the value at or below each magnitude, whether it is exact, and the comparison with the midpoint above."""
    grid, middles = _grid(fmt)
    magnitudes = np.abs(np.frombuffer(data))
    rank = np.maximum(np.searchsorted(grid, magnitudes, side="right") - 1, 0)
    exact = (grid[rank] == magnitudes) | (magnitudes < grid[0])
    middle = np.append(middles, math.inf)[rank]
    side = (magnitudes > middle).astype(np.int8) - (magnitudes < middle)
    return rank, exact, np.where(exact, -1, side)


def encode_all(
    x: Array, fmt: Format, rounding: str = "nearest_even", overflow: str = "nonfinite", subnormals: str = "keep"
) -> Array:
    """`encode` of every float64, for formats of up to 16 bits whose midpoints float64 holds."""
    x = np.ascontiguousarray(x, np.float64)
    negative = np.signbit(x)
    rank, exact, side = _neighbours(fmt, x.tobytes())
    if fmt.mantissa_bits == 0 and not fmt.ties_to_even_code:
        odd = (rank > 0) | (not fmt.subnormals)
    else:
        odd = rank % 2 == 1
    rest = np.where(exact, 0.0, np.where(side == 0, 0.5, np.where(side > 0, 0.75, 0.25)))
    code: Array = rank + AWAY[rounding](rest, odd, negative)
    if subnormals == "flush" and fmt.subnormals:
        code[code < 2**fmt.mantissa_bits] = 0
    is_zero = code == 0 if fmt.subnormals else np.zeros(x.shape, np.bool_)
    most = code_of_kind(fmt, "finite")
    assert most is not None
    for sign in (False, True):
        inward = rounds_inward(rounding, sign)
        result = special_code(fmt, "finite" if inward else overflow_kind(fmt, overflow), False)
        code[(code > most) & (negative == sign)] = result
    code[np.isinf(x)] = special_code(fmt, infinite_kind(fmt, overflow), False)
    signs = negative if fmt.negative_zero else negative & ~is_zero
    code |= np.where(signs, sign_of(fmt), 0)
    below = below_code(fmt, overflow)
    if not fmt.subnormals:
        code[x == 0] = 0 if below is None else below
    if not fmt.signed and below is not None:
        code[negative & ~is_zero & (x != 0)] = below
    for sign in (False, True):
        code[np.isnan(x) & (negative == sign)] = nan_result(fmt, overflow, sign)
    return code.astype(np.uint8 if width(fmt) <= 8 else np.uint16)
