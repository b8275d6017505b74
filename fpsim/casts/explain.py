"""Explanation of one cast as text: the value, its neighbours, the dropped bits, and the reason for the result."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Unpack

import numpy.typing as npt

from fpsim.arrays import Array, float_array, words
from fpsim.casts.cast import encode
from fpsim.casts.explain_table import explain_table
from fpsim.casts.explanation import HALF, Explanation, drawn_reason
from fpsim.formats.cast_options import (
    CastKeywords,
    CastOptions,
    FormatLike,
    TableOptions,
    options_of,
    table_options,
    with_cast_keywords,
)
from fpsim.formats.named import Format
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import table_format
from fpsim.lazy import deferred

processor = deferred("fpsim.runtime.processor")  # imports numba


@with_cast_keywords
def explain(x: npt.ArrayLike, fmt: FormatLike, **keywords: Unpack[CastKeywords]) -> Explanation:
    """Explain the cast of one value: its neighbours in the format, the dropped bits, and the reason for the result.

    Args:
      x: one float (a Python float is a float64), alone or as an array of one element.
      fmt, keywords: as for `fpsim.encode`.

    Returns:
      An Explanation; print it. In the stochastic mode, the random number is that of an array's first element.

    Raises:
      ValueError: x is not a single value, or as for `fpsim.encode`.
      TypeError: x is not a float.

    Example:
      >>> import fpsim as fp
      >>> print(fp.explain(4.25, fp.E4M3))
      4.25 in E4M3, rounding nearest_even, overflow nonfinite, subnormals keep
        value    0b1.0001 x 2**2  (bits 0x4011000000000000)
        below    4.0 = code 0x48 = 0b0_1001_000
        above    4.5 = code 0x49 = 0b0_1001_001
        dropped  1, 1/2 of the way from 4.0 to 4.5: a tie
        result   4.0 = code 0x48 = 0b0_1001_000
        because  the value lies halfway, and nearest_even takes the neighbour with the even code
    """
    table = table_format(fmt)
    wanted = options_of(explain, fmt, keywords) if table is None else table_options(explain, table, keywords)
    source, _ = float_array(x)
    if source.size != 1:
        raise ValueError(f"explain takes one value; got {source.size}. Pass a single element, such as x[0].")
    with processor().ieee_arithmetic():  # else a subnormal float32 may be read as 0
        return explain_table(source, wanted) if isinstance(wanted, TableOptions) else _explain(source, wanted)


def _explain(source: Array, options: CastOptions) -> Explanation:
    """Return the Explanation of the cast of one float to a format of exponent and mantissa.

    source: a float array of one element. options: the checked options of the cast, its format included.
    """
    code = int(encode(source, **options.keywords()).reshape(-1)[0])
    value = float(source.reshape(-1)[0])
    inner, outer = _neighbours(value, options.fmt)
    fraction = None
    if inner is not None and outer is not None:
        fraction = (abs(Fraction(value)) - abs(inner)) / (abs(outer) - abs(inner))
    keeping = options._replace(subnormals="keep")
    kept = options.fmt.value_of(int(encode(source, **keeping.keywords()).reshape(-1)[0]))
    result = options.fmt.value_of(code)
    return Explanation(
        value=value,
        bits=f"{int(words(source).reshape(-1)[0]):#0{2 + 2 * source.dtype.itemsize}x}",
        fmt=options.fmt,
        options=options,
        exact=fraction == 0,
        inner=None if inner is None else _as_float(inner, value),
        outer=None if outer is None else _as_float(outer, value),
        fraction=fraction,
        dropped_bits=_digits(fraction),
        tie=fraction == HALF,
        code=code,
        result=result,
        reason=_reason(value, kept, result, options, fraction, inner),
    )


def _neighbours(value: float, fmt: Format) -> tuple[Fraction | None, Fraction | None]:
    """Return (the largest magnitude of the format `fmt` that is at most |value|, the smallest one above |value|).

    The format counts as having no largest exponent, so that values beyond its range have neighbours; below its smallest
    normal value it has its own subnormals. Both are None for Inf, NaN and, in an unsigned format, negative values. In a
    format without zero (E8M0) only the first is None, for a value below the smallest.
    """
    if not math.isfinite(value) or (value < 0 and not fmt.signed):
        return None, None
    magnitude = abs(Fraction(value))
    smallest = Fraction(fmt.smallest_normal)
    if not fmt.has_zero and magnitude < smallest:
        return None, smallest
    exponent = math.frexp(abs(value))[1] - 1 if value else fmt.min_exponent
    step = Fraction(2) ** (max(exponent, fmt.min_exponent) - fmt.mantissa_bits)
    inner = magnitude // step * step
    return inner, inner + step


def _as_float(magnitude: Fraction, value: float) -> float:
    """Return a magnitude as a float with the sign of `value`; Inf if it is beyond the range of float64."""
    try:
        return math.copysign(float(magnitude), value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _digits(fraction: Fraction | None) -> str:
    """Return the binary digits after the point of a fraction below 1, as text; "" for 0 or None.

    The fraction's denominator must be a power of two. More than sixty digits are cut, and "..." is appended.
    """
    if not fraction:
        return ""
    digits = fraction.denominator.bit_length() - 1
    text = f"{fraction.numerator:0{digits}b}"
    return text if len(text) <= 60 else text[:60] + "..."


def _reason(
    value: float, kept: float, result: float, options: CastOptions, fraction: Fraction | None, inner: Fraction | None
) -> str:
    """Return the reason why the cast of a value has the result `result`, as a clause.

    kept: the result that the cast would have with subnormals="keep". options: those of the cast. inner: the magnitude
    of the format next to |value| toward zero. fraction: (|value| - inner) / (outer - inner), where outer is the next
    magnitude after inner. Both are exact, and None if a neighbour is missing.
    """
    fmt, mode = options.fmt, options.rounding
    decides = f"overflow={options.overflow!r} decides"
    if math.isnan(value):
        return "NaN stays NaN" if fmt.has_nan else f"{fmt} has no NaN, and {decides}"
    if value < 0 and not fmt.signed:
        share = -Fraction(value) / Fraction(fmt.smallest_subnormal) if math.isfinite(value) else math.inf
        start = mode.goes_away(odd=False, negative=True)
        if result == 0 and (share < start.at or (share == start.at and not start.included)):
            decides = "this one rounds to zero"
        elif result == 0 and math.isnan(kept):
            decides = "subnormals='flush' makes this one zero"
        return f"{fmt} has no negative values, and {decides}"
    if math.isinf(value):
        return f"the value is infinite, and {decides} what becomes of it in {fmt}"
    if value == 0 and not fmt.has_zero:
        return f"{fmt} has no zero, and {decides}"
    if value == 0 and math.copysign(1, value) < 0 and not fmt.negative_zero:
        return f"{fmt} has no -0"
    if inner is None:
        return f"{fmt} has nothing below its smallest value"
    assert fraction is not None
    if _overflows(value, result, options, fraction, inner):
        beyond = f"it rounds to a magnitude beyond the largest finite value, {fmt.max:g}"
        stops = mode.inward(negative=value < 0)
        return f"{beyond}, where {mode.name.lower()} stops" if stops else f"{beyond}, and {decides}"
    if options.subnormals == "flush" and kept != result:
        return f"the result would be {kept:g}, a subnormal, and subnormals='flush' makes it zero"
    if fraction == 0:
        return f"{fmt} holds the value exactly"
    if mode is Rounding.STOCHASTIC:
        return drawn_reason(options, fraction)
    return _choice(mode, fmt, fraction, inner, negative=value < 0)


def _choice(mode: Rounding, fmt: Format, fraction: Fraction, inner: Fraction, negative: bool) -> str:
    """Return the clause that states how a deterministic mode chooses between two neighbours of a value.

    fmt: the format. inner: the neighbour nearer to zero, as a magnitude. fraction: (|value| - inner) / (outer - inner),
    where outer is the other neighbour. negative: whether the value is negative.
    """
    by_code = fmt.mantissa_bits > 0 or fmt.ties_to_even_code
    if mode is Rounding.ODD and not by_code and inner:
        return "odd truncates here: with one digit of precision every significand is odd"
    if mode is Rounding.ODD and by_code:
        return "odd takes the neighbour with the odd code"
    if fraction != HALF or not mode.is_nearest:
        return mode.facts.sentence
    start = mode.goes_away(odd=False, negative=negative)
    if start == mode.goes_away(odd=True, negative=negative):
        side = "away from" if start.included else "toward"
        return f"the value lies halfway, and {mode.name.lower()} takes the neighbour {side} zero"
    even = "the neighbour with the even code"
    if not by_code:
        even = "the larger magnitude (one digit of precision)" if inner else "zero, which is even"
    return f"the value lies halfway, and {mode.name.lower()} takes {even}"


def _overflows(value: float, result: float, options: CastOptions, fraction: Fraction, inner: Fraction) -> bool:
    """Return whether a finite value, rounded with an unbounded exponent, exceeds the largest finite magnitude.

    options: those of the cast. inner, outer: the largest magnitude that is at most |value| and the next one, in the
    format without its largest exponent. fraction: (|value| - inner) / (outer - inner). result: the value that the cast
    returns, read in the stochastic mode only: for a |value| between the largest finite magnitude and the next one, Inf
    or NaN means that it was rounded away from zero.
    """
    fmt, largest = options.fmt, Fraction(options.fmt.max)
    if inner != largest or fraction == 0:
        return inner > largest
    odd = fmt.max_code % 2 == 1 if fmt.mantissa_bits or fmt.ties_to_even_code else True
    if options.rounding is Rounding.STOCHASTIC:
        return not math.isfinite(result)  # a policy that saturates hides which way it went
    start = options.rounding.goes_away(odd, negative=value < 0)
    return fraction > start.at or (fraction == start.at and start.included)
