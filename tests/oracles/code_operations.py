"""Operations on codes that are no sums or products: integers, neighbours, comparisons, classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from fpsim.formats.named import Format
from tests.oracles import casts
from tests.oracles.arithmetic import (
    INEXACT,
    INVALID,
    PLAIN,
    UNDERFLOW,
    Exact,
    Operand,
    Options,
    any_nan,
    as_result,
    deliver,
    goes_up,
    nan,
    place,
    read,
    smallest_normal,
)

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
