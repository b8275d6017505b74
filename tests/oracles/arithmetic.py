"""A slow, obvious oracle for arithmetic: exact fractions, one element at a time.

Three steps, each on its own: `read` gives an operand its exact value, an operation such as `exact_sum` gives the exact
result, and `deliver` rounds it once into a format and says which flags that raises. `compute` does the three in turn.
The rules are those of docs/arithmetic.md; a format's facts come from oracles/casts.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy.typing as npt

from fpsim.formats.named import Format
from tests.oracles import casts
from tests.oracles.casts import Kind

Array = npt.NDArray[Any]

INEXACT, UNDERFLOW, OVERFLOW, DIVIDE_BY_ZERO, INVALID = 1, 2, 4, 8, 16
TININESS = ("after", "before")


class Options(NamedTuple):
    """The words of a call, and the random word of the element."""

    rounding: str = "nearest_even"
    overflow: str = "nonfinite"
    subnormals: str = "keep"
    input_subnormals: str = "keep"
    tininess: str = "after"
    random_bits: int = 32
    word: int = 0


class Operand(NamedTuple):
    """What a code stands for."""

    kind: Kind
    negative: bool = False
    magnitude: Fraction = Fraction(0)
    signalling: bool = False

    @property
    def is_zero(self) -> bool:
        return self.kind == "finite" and self.magnitude == 0

    @property
    def number(self) -> Fraction | float:
        """The value, to be compared; not for NaN."""
        size = self.magnitude if self.kind == "finite" else math.inf
        return -size if self.negative else size

    @property
    def exact(self) -> Fraction:
        """The value of a finite operand."""
        return -self.magnitude if self.negative else self.magnitude


class Exact(NamedTuple):
    """What an operation yields before it is rounded."""

    kind: Kind
    negative: bool = False
    magnitude: Fraction = Fraction(0)
    raised: int = 0  # INVALID or DIVIDE_BY_ZERO, by the operation itself
    cancelled: bool = False  # a sum that is zero and whose terms have two signs: the rounding mode gives its sign


ZERO = Fraction(0)
PLAIN = Options()


# ---- operands


@lru_cache(maxsize=1 << 18)
def read(fmt: Format, code: int, input_subnormals: str = "keep") -> Operand:
    """Return the exact value of a code."""
    sign = casts.sign_of(fmt)
    negative = bool(code & sign)
    magnitude = code - sign if negative else code
    kind = casts.kind(fmt, magnitude)
    if fmt.nan == "negative_zero" and code == sign:
        return Operand("nan")  # the one NaN of these formats has no sign
    if kind == "nan":
        first_bit = magnitude // 2 ** (fmt.mantissa_bits - 1) % 2 if fmt.nan == "ieee" else 1
        return Operand("nan", negative, signalling=first_bit == 0)
    if kind == "infinity":
        return Operand("infinity", negative)
    size = casts.magnitude_value(fmt, magnitude)
    if input_subnormals == "flush" and size < smallest_normal(fmt):
        size = ZERO
    return Operand("finite", negative, size)


@cache
def power(exponent: int) -> Fraction:
    """2**exponent."""
    return Fraction(2) ** exponent


def in_units(size: Fraction, exponent: int) -> tuple[int, Fraction]:
    """How often 2**exponent goes into a number, and what is left, as a part of 2**exponent."""
    n, d = size.numerator << max(-exponent, 0), size.denominator << max(exponent, 0)
    below, rest = divmod(n, d)
    return below, Fraction(rest, d) if rest else ZERO


@cache
def smallest_normal(fmt: Format) -> Fraction:
    """Return the smallest value with full precision."""
    return power(casts.lowest_exponent(fmt))


def first_normal_code(fmt: Format) -> int:
    """Its code."""
    return 2**fmt.mantissa_bits if fmt.subnormals else 0


@cache
def largest(fmt: Format) -> Fraction:
    """Return the largest finite value."""
    return casts.largest(fmt)


# ---- exact results


def nan(*operands: Operand, invalid: bool = False) -> Exact:
    """NaN without a sign, from an invalid operation or from NaN operands, of which a signalling one is invalid too."""
    return Exact("nan", raised=INVALID if invalid or any(a.signalling for a in operands) else 0)


def any_nan(*operands: Operand) -> bool:
    return any(a.kind == "nan" for a in operands)


def signed(value: Fraction) -> Exact:
    """Return a finite result other than zero as an outcome."""
    return Exact("finite", value.numerator < 0, abs(value))


def exact_sum(a: Operand, b: Operand) -> Exact:
    if any_nan(a, b):
        return nan(a, b)
    if a.kind == b.kind == "infinity" and a.negative != b.negative:
        return nan(invalid=True)
    for term in (a, b):
        if term.kind == "infinity":
            return Exact("infinity", term.negative)
    total = a.exact + b.exact
    if total != 0:
        return signed(total)
    if a.is_zero and a.negative == b.negative:
        return Exact("finite", a.negative)
    return Exact("finite", cancelled=True)


def exact_difference(a: Operand, b: Operand) -> Exact:
    return exact_sum(a, b._replace(negative=not b.negative))


def exact_product(a: Operand, b: Operand) -> Exact:
    if any_nan(a, b):
        return nan(a, b)
    negative = a.negative != b.negative
    if "infinity" in (a.kind, b.kind):
        return nan(invalid=True) if a.is_zero or b.is_zero else Exact("infinity", negative)
    return Exact("finite", negative, a.magnitude * b.magnitude)


def exact_quotient(a: Operand, b: Operand) -> Exact:
    if any_nan(a, b):
        return nan(a, b)
    negative = a.negative != b.negative
    if (a.is_zero and b.is_zero) or a.kind == b.kind == "infinity":
        return nan(invalid=True)
    if a.kind == "infinity":
        return Exact("infinity", negative)
    if b.kind == "infinity":
        return Exact("finite", negative)
    if b.is_zero:
        return Exact("infinity", negative, raised=DIVIDE_BY_ZERO)
    return Exact("finite", negative, a.magnitude / b.magnitude)


def exact_fma(a: Operand, b: Operand, c: Operand) -> Exact:
    product = exact_product(a, b)
    if product.raised == INVALID or any_nan(a, b, c):
        return nan(a, b, c, invalid=product.raised == INVALID)
    return exact_sum(Operand(product.kind, product.negative, product.magnitude), c)


def exact_remainder(a: Operand, b: Operand) -> Exact:
    if any_nan(a, b):
        return nan(a, b)
    if a.kind == "infinity" or b.is_zero:
        return nan(invalid=True)
    if b.kind == "infinity":
        return Exact("finite", a.negative, a.magnitude)
    value = a.exact
    rest = value - round(value / b.magnitude) * b.magnitude  # Python rounds a tie to the even integer
    return signed(rest) if rest else Exact("finite", a.negative)  # IEEE 754, 5.3.1: a zero has the sign of a


ROOT_BITS = 200  # more than any format has with 32 random bits below it


def root(square: Fraction) -> Fraction:
    """Return the square root of n / 2**k; if irrational, a number between the same neighbours at any precision."""
    n, d = square.numerator, square.denominator
    if d.bit_length() % 2 == 0:  # 2 to an odd power
        n, d = 2 * n, 2 * d
    scaled = math.isqrt(n << 2 * ROOT_BITS)
    sticky = scaled**2 != n << 2 * ROOT_BITS
    return Fraction(2 * scaled + sticky, 2 * math.isqrt(d) << ROOT_BITS)


def exact_root(a: Operand) -> Exact:
    if any_nan(a):
        return nan(a)
    if a.is_zero:
        return Exact("finite", a.negative)
    if a.negative:
        return nan(invalid=True)
    return Exact("infinity") if a.kind == "infinity" else Exact("finite", False, root(a.magnitude))


def as_result(a: Operand) -> Exact:
    """Return an operand as the result; a NaN keeps its sign."""
    return Exact(a.kind, a.negative, a.magnitude, INVALID if a.signalling else 0)


def extremum(a: Operand, b: Operand, larger: bool, numbers_win: bool) -> Exact:
    """Return the smaller or larger operand, -0 below +0."""
    if any_nan(a, b):
        raised = nan(a, b).raised
        if numbers_win and a.kind != b.kind:
            number = b if a.kind == "nan" else a
            if number.kind != "nan":
                return as_result(number)._replace(raised=raised)
        return nan(a, b)
    pick = max if larger else min
    return as_result(pick(a, b, key=lambda x: (x.number, not x.negative)))


OPERATIONS: dict[str, Callable[..., Exact]] = {
    "add": exact_sum,
    "subtract": exact_difference,
    "multiply": exact_product,
    "divide": exact_quotient,
    "remainder": exact_remainder,
    "fma": exact_fma,
    "sqrt": exact_root,
    "minimum": lambda a, b: extremum(a, b, False, False),
    "maximum": lambda a, b: extremum(a, b, True, False),
    "minimum_number": lambda a, b: extremum(a, b, False, True),
    "maximum_number": lambda a, b: extremum(a, b, True, True),
    "convert": as_result,
}
BINARY = ("add", "subtract", "multiply", "divide", "remainder")
EXTREMA = ("minimum", "maximum", "minimum_number", "maximum_number")


# ---- rounding


def goes_up(rest: Fraction, odd: bool, negative: bool, options: Options) -> bool:
    """Whether a magnitude goes to its upper neighbour, `rest` of a unit above the lower one, which is odd or even."""
    if options.rounding == "stochastic":  # the first bits of the fraction and of the random word carry
        bits = options.random_bits
        return bool(math.floor(rest * 2**bits) + (options.word >> 32 - bits) >= 2**bits)
    return bool(casts.AWAY[options.rounding](rest, odd, negative))


class Place(NamedTuple):
    """Where a magnitude lies between two neighbours."""

    code: int  # magnitude code of the lower neighbour
    rest: Fraction  # what is left, 0 <= rest < 1 units in the last place
    odd: bool  # whether the significand of the lower neighbour is odd


@lru_cache(maxsize=1 << 18)
def place(size: Fraction, fmt: Format, bounded: bool = True) -> Place:
    """Return the place of a positive number with unbounded range above and, unless `bounded`, below.

    Codes go on beyond the largest value, and below the smallest normal one, as if exponent fields did.
    """
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size.numerator << max(-exponent, 0) < size.denominator << max(exponent, 0):
        exponent -= 1
    lowest = casts.lowest_exponent(fmt)
    exponent = max(exponent, lowest) if bounded else exponent
    below, rest = in_units(size, exponent - fmt.mantissa_bits)
    code = below + (exponent - lowest) * 2**fmt.mantissa_bits - (0 if fmt.subnormals else 2**fmt.mantissa_bits)
    by_code = fmt.mantissa_bits > 0 or fmt.ties_to_even_code
    return Place(code, rest, code % 2 == 1 if by_code else below != 0)


def is_tiny(size: Fraction, negative: bool, fmt: Format, options: Options) -> bool:
    """Whether a result other than zero lies below the smallest normal value, after rounding or before."""
    if options.tininess == "before" or size >= smallest_normal(fmt):
        return size < smallest_normal(fmt)
    code, rest, odd = place(size, fmt, bounded=False)
    return code + goes_up(rest, odd, negative, options) < first_normal_code(fmt)


def deliver(exact: Exact, fmt: Format, options: Options) -> tuple[int, int]:
    """Return the code of an exact result, rounded once, and the flags."""
    if exact.kind == "nan":
        is_number = casts.code_of_kind(fmt, "nan") is None
        raised = INVALID if is_number else exact.raised
        return casts.nan_result(fmt, options.overflow, exact.negative), raised
    if exact.kind == "infinity":
        return deliver_infinity(exact, fmt, options)
    if exact.magnitude == 0:
        raised = exact.raised
        if not fmt.subnormals:  # no zero to give
            return casts.below_code(fmt, options.overflow) or 0, INVALID
        negative = options.rounding == "down" if exact.cancelled else exact.negative
        return casts.sign_of(fmt) if negative and fmt.negative_zero else 0, raised
    code, flags = deliver_finite(exact.magnitude, exact.negative, fmt, options)
    return code, INVALID if exact.raised else flags


def deliver_infinity(exact: Exact, fmt: Format, options: Options) -> tuple[int, int]:
    """Return the result for Inf, and its flags; if it isn't Inf it is an overflow, except after a division by zero."""
    below = casts.below_code(fmt, options.overflow)
    kind = casts.infinite_kind(fmt, options.overflow)
    if exact.negative and not fmt.signed:
        code = casts.special_code(fmt, kind, False) if below is None else below
        return code, exact.raised or INVALID
    flags = exact.raised or (0 if kind == "infinity" else OVERFLOW | INEXACT)
    return casts.special_code(fmt, kind, exact.negative), flags


@lru_cache(maxsize=1 << 18)
def deliver_finite(size: Fraction, negative: bool, fmt: Format, options: Options) -> tuple[int, int]:
    """Return the code of a number other than zero, rounded once, and the flags."""
    code, rest, odd = place(size, fmt)
    code += goes_up(rest, odd, negative, options)
    exact = rest == 0
    if code < 0:  # there is no zero to go to
        code, exact = 0, False
    if options.subnormals == "flush" and code < first_normal_code(fmt):
        code, exact = 0, False
    too_large = code > (casts.code_of_kind(fmt, "finite") or 0)
    flags = 0 if exact else INEXACT
    if not exact and is_tiny(size, negative, fmt, options):
        flags |= UNDERFLOW
    if too_large:
        flags |= OVERFLOW | INEXACT
    is_zero = code == 0 and fmt.subnormals
    if negative and not fmt.signed and not is_zero:
        flags, below = INVALID, casts.below_code(fmt, options.overflow)
        if below is not None:
            return below, flags
    if too_large:
        inward = casts.rounds_inward(options.rounding, negative)
        kind = "finite" if inward else casts.overflow_kind(fmt, options.overflow)
        return casts.special_code(fmt, kind, negative), flags
    has_sign = negative and (fmt.negative_zero or not is_zero)
    return code | (casts.sign_of(fmt) if has_sign else 0), flags


def compute(
    operation: str, codes: Sequence[int], fmts: Sequence[Format], out: Format, options: Options = PLAIN
) -> tuple[int, int]:
    """Return the result's code and the flags of one element."""
    operands = [read(fmt, code, options.input_subnormals) for fmt, code in zip(fmts, codes, strict=True)]
    return deliver(OPERATIONS[operation](*operands), out, options)
