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

import numpy as np
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


# ---- integers


def nearest_integer(size: Fraction, negative: bool, options: Options) -> int:
    """Return the magnitude of the integer that the rounding mode picks."""
    below = math.floor(size)
    return below + goes_up(size - below, below % 2 == 1, negative, options)


def round_to_integral(code: int, fmt: Format, out: Format, options: Options = PLAIN) -> tuple[int, int]:
    """Return the code of the integer that the rounding mode picks, and the flags; a zero keeps the sign."""
    a = read(fmt, code, options.input_subnormals)
    if a.kind == "nan":
        return deliver(nan(a), out, options)
    if a.kind == "infinity":
        return deliver(as_result(a), out, options)
    integer = Fraction(nearest_integer(a.magnitude, a.negative, options))
    result, flags = deliver(Exact("finite", a.negative, integer), out, options)
    if flags & INVALID:
        return result, flags
    return result, (flags & ~UNDERFLOW) | (INEXACT if integer != a.magnitude else 0)


def to_int(code: int, fmt: Format, low: int, high: int, options: Options = PLAIN) -> tuple[int, int]:
    """Return a value rounded to an integer of low .. high, and the flags."""
    a = read(fmt, code, options.input_subnormals)
    if a.kind == "nan":
        return high, INVALID
    if a.kind == "infinity":
        return (low if a.negative else high), INVALID
    size = nearest_integer(a.magnitude, a.negative, options)
    integer = -size if a.negative else size
    if not low <= integer <= high:
        return (low if integer < low else high), INVALID
    return integer, 0 if size == a.magnitude else INEXACT


def from_int(integer: int, fmt: Format, options: Options = PLAIN) -> tuple[int, int]:
    """Return the code of an integer, rounded once, and the flags."""
    return deliver(Exact("finite", integer < 0, Fraction(abs(integer))), fmt, options)


# ---- codes alone


def neighbour(code: int, fmt: Format, up: bool, options: Options = PLAIN) -> tuple[int, int]:
    """Return the next value above or below, and the flags."""
    a = read(fmt, code, options.input_subnormals)
    if a.kind == "nan":
        return deliver(nan(a), fmt, options)
    outward = a.negative != up
    if a.kind == "infinity":
        return casts.special_code(fmt, "infinity" if outward else "finite", a.negative), 0
    if a.is_zero:
        a, outward = Operand("finite", not up), True
    magnitude = place(a.magnitude, fmt).code if a.magnitude else 0
    below_all = not fmt.signed and not up and magnitude == 0
    if below_all:
        return casts.below_code(fmt, options.overflow) or 0, 0
    magnitude += 1 if outward else -1
    if outward and magnitude > (casts.code_of_kind(fmt, "finite") or 0):
        return casts.special_code(fmt, casts.infinite_kind(fmt, options.overflow), a.negative), 0
    has_sign = a.negative and (magnitude > 0 or fmt.negative_zero)
    return magnitude | (casts.sign_of(fmt) if has_sign else 0), 0


def compare(operation: str, codes: Sequence[int], fmts: Sequence[Format], options: Options) -> tuple[bool, int]:
    """Whether a is equal to, less than, at most b, and the flags."""
    a, b = (read(fmt, code, options.input_subnormals) for fmt, code in zip(fmts, codes, strict=True))
    if any_nan(a, b):
        quiet = operation == "equal" and not (a.signalling or b.signalling)
        return False, 0 if quiet else INVALID
    x, y = a.number, b.number
    return {"equal": x == y, "less": x < y, "less_equal": x <= y}[operation], 0


def classify(code: int, fmt: Format) -> str:
    """Return the name of the code's class in IEEE 754-2019, 5.7.2."""
    a = read(fmt, code)
    if a.kind == "nan":
        return "SIGNALING_NAN" if a.signalling else "QUIET_NAN"
    sign = "NEGATIVE_" if a.negative else "POSITIVE_"
    if a.kind == "infinity":
        return sign + "INFINITY"
    if a.is_zero:
        return sign + "ZERO"
    return sign + ("SUBNORMAL" if a.magnitude < smallest_normal(fmt) else "NORMAL")


# ---- the same for whole arrays, in the deterministic modes: equal results are rounded once


def simplify(size: Fraction, fmt: Format) -> Fraction:
    """Return a simpler number that every deterministic mode rounds alike: eighths of a unit, odd ones between quarters.

    Quarters, or halves of them, because the unit of the rounding that finds tiny results is half as large.
    """
    if size > 4 * largest(fmt):
        return 5 * largest(fmt)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, casts.lowest_exponent(fmt))
    quarter = exponent - fmt.mantissa_bits - 2
    below, rest = in_units(size, quarter)
    eighths = 2 * below + (rest != 0)
    return Fraction(eighths << max(quarter - 1, 0), 1 << max(1 - quarter, 0))


class Places(NamedTuple):
    """`place` of many numbers, bounded and not, as columns."""

    code: Array
    rest: Array  # in sixteenths of a unit in the last place
    odd: Array


class Outcomes(NamedTuple):
    """The different results of an operation on many operands, not yet rounded, and which one each element has."""

    results: list[Exact]
    which: Array  # (n,)
    out: Format  # what they will be rounded to
    finite: Array  # which results are numbers other than zero, whose columns follow
    negative: Array
    raised: Array
    is_small: Array  # below the smallest normal value
    bounded: Places
    unbounded: Places


def outcomes(
    operation: str, columns: Sequence[Array], fmts: Sequence[Format], out: Format, input_subnormals: str = "keep"
) -> Outcomes:
    """Return the outcomes of an operation on columns of codes."""
    exact = OPERATIONS[operation]
    operands = []
    for column, fmt in zip(columns, fmts, strict=True):
        codes = column.reshape(-1).tolist()
        known = {code: read(fmt, code, input_subnormals) for code in set(codes)}
        operands.append([known[code] for code in codes])
    numbered: dict[Exact, int] = {}
    which = [numbered.setdefault(exact(*row), len(numbered)) for row in zip(*operands, strict=True)]
    simple: dict[Exact, int] = {}
    numbers = []
    for result in numbered:
        if result.kind == "finite" and result.magnitude:
            result = result._replace(magnitude=simplify(result.magnitude, out))
        numbers.append(simple.setdefault(result, len(simple)))
    results = list(simple)
    is_finite = [result.kind == "finite" and result.magnitude != 0 for result in results]
    finite = [result for result, yes in zip(results, is_finite, strict=True) if yes]
    bounded = [place(result.magnitude, out) for result in finite]
    is_small = [row.code < first_normal_code(out) for row in bounded]
    unbounded = [
        place(result.magnitude, out, bounded=False) if small else row
        for result, small, row in zip(finite, is_small, bounded, strict=True)
    ]
    signs, raised = [x.negative for x in finite], [x.raised != 0 for x in finite]
    return Outcomes(
        results,
        np.array(numbers)[np.array(which)],
        out,
        np.array(is_finite, bool),
        np.array(signs, bool),
        np.array(raised, bool),
        np.array(is_small, bool),
        columns_of(bounded, out),
        columns_of(unbounded, out),
    )


def columns_of(rows: Sequence[Place], fmt: Format) -> Places:
    """Return the places of numbers that `simplify` returned, whose rest is a multiple of a sixteenth.

    Codes beyond that of the largest value are the next one, so that FP64's fit into 64 bits.
    """
    beyond = (casts.code_of_kind(fmt, "finite") or 0) + 1
    assert all(16 % row.rest.denominator == 0 for row in rows)
    rests = [row.rest.numerator * (16 // row.rest.denominator) for row in rows]
    columns = [min(row.code, beyond) for row in rows], rests, [row.odd for row in rows]
    return Places(*(np.array(column, dtype) for column, dtype in zip(columns, (np.int64, np.int64, bool), strict=True)))


def go_up(at: Places, negative: Array, rounding: str) -> Array:
    """`goes_up` of every number, in a deterministic mode."""
    above: Array = casts.AWAY[rounding](at.rest / 16, at.odd, negative)
    return above


def deliver_all(found: Outcomes, fmt: Format, options: Options = PLAIN) -> tuple[Array, Array]:
    """Codes and flags of outcomes in a deterministic mode."""
    assert fmt == found.out
    codes, flags = np.zeros(len(found.results), np.uint64), np.zeros(len(found.results), np.uint8)
    for i in np.flatnonzero(~found.finite).tolist():
        codes[i], flags[i] = deliver(found.results[i], fmt, options)
    codes[found.finite], flags[found.finite] = deliver_finite_all(found, options)
    return codes.astype(fmt.storage)[found.which], flags[found.which]


def deliver_finite_all(found: Outcomes, options: Options) -> tuple[Array, Array]:
    """`deliver_finite` of every outcome that is a number other than zero; what the operation raised is INVALID."""
    fmt, negative = found.out, found.negative
    code = found.bounded.code + go_up(found.bounded, negative, options.rounding)
    lost = code < 0  # there is no zero to go to
    if options.subnormals == "flush":
        lost |= code < first_normal_code(fmt)
    code[lost] = 0
    exact = (found.bounded.rest == 0) & ~lost
    is_tiny = found.is_small
    if options.tininess == "after":
        rounded = found.unbounded.code + go_up(found.unbounded, negative, options.rounding)
        is_tiny = is_tiny & (rounded < first_normal_code(fmt))
    too_large = code > (casts.code_of_kind(fmt, "finite") or 0)
    flags = np.where(exact, 0, INEXACT) | np.where(~exact & is_tiny, UNDERFLOW, 0)
    flags |= np.where(too_large, OVERFLOW | INEXACT, 0)
    is_zero = (code == 0) & fmt.subnormals
    codes = code.astype(np.uint64)
    for sign in (False, True):
        inward = casts.rounds_inward(options.rounding, sign)
        kind = "finite" if inward else casts.overflow_kind(fmt, options.overflow)
        codes[too_large & (negative == sign)] = casts.special_code(fmt, kind, False)
    has_sign = negative & (~is_zero | fmt.negative_zero)
    codes |= np.where(has_sign, np.uint64(casts.sign_of(fmt)), np.uint64(0))
    if not fmt.signed:
        below, is_below = casts.below_code(fmt, options.overflow), negative & ~is_zero
        flags[is_below] = INVALID
        if below is not None:
            codes[is_below] = below
    flags[found.raised] = INVALID
    return codes, flags
