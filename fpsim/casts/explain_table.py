"""Explanation of one cast to a format given by a table: the neighbouring values, and the reason for the result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from fpsim.arrays import Array, words
from fpsim.casts.cast import encode
from fpsim.casts.explanation import HALF, Explanation, drawn_reason
from fpsim.formats.cast_options import TableOptions
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import TableFormat


@dataclass(frozen=True)
class TableExplanation(Explanation):
    """A cast of one value to a table format, which lists the value of each code.

    The attributes are those of Explanation. `inner` and `outer` are the neighbouring values in the table, toward and
    away from zero; None if there is none. `dropped_bits` is empty.
    """

    def _result(self) -> str:
        return _entry(self.result, self.code, self.fmt.bits)

    def _neighbour(self, value: float) -> str:
        fmt = cast(TableFormat, self.fmt)
        codes = {str(entry): code for entry, code in reversed(fmt.finite)}  # as text, 0.0 and -0.0 differ
        return _entry(value, codes[str(value)], fmt.bits)


def explain_table(source: Array, options: TableOptions) -> TableExplanation:
    """Return the explanation of the cast of one float to a table format, which lists the value of each code.

    source: a float array of one element. options: the checked options of the cast, its format included.
    """
    fmt = options.fmt
    code = int(encode(source, **options._asdict()).reshape(-1)[0])
    value, result = float(source.reshape(-1)[0]), fmt.value_of(code)
    inner, outer = _neighbours(value, fmt)
    fraction = None
    if inner is not None and outer is not None:
        fraction = (Fraction(value) - Fraction(inner)) / (Fraction(outer) - Fraction(inner))
    return TableExplanation(
        value=value,
        bits=f"{int(words(source).reshape(-1)[0]):#0{2 + 2 * source.dtype.itemsize}x}",
        fmt=cast(Any, fmt),
        options=cast(Any, options),
        exact=fraction == 0,
        inner=inner,
        outer=outer,
        fraction=fraction,
        dropped_bits="",
        tie=fraction == HALF,
        code=code,
        result=result,
        reason=_reason(value, result, options, fraction, inner),
    )


def _neighbours(value: float, fmt: TableFormat) -> tuple[float | None, float | None]:
    """Return the values of the table format `fmt` next to `value`: (the one toward zero, the one away from zero).

    A value in the table is its own first neighbour. A neighbour that does not exist is None. For Inf and NaN both are
    None.
    """
    if not math.isfinite(value):
        return None, None
    values = [one for one, _ in fmt.finite]
    if value < 0:
        inner, outer = [one for one in values if one >= value], [one for one in values if one < value]
        return (inner[0] if inner else None), (outer[-1] if outer else None)
    inner, outer = [one for one in values if one <= value], [one for one in values if one > value]
    return (inner[-1] if inner else None), (outer[0] if outer else None)


def _reason(value: float, result: float, options: TableOptions, fraction: Fraction | None, inner: float | None) -> str:
    """Return the reason why the cast of a value to a table format has the result `result`, as a clause.

    options: those of the cast. inner: the value of the table next to `value` toward zero, None if there is none.
    fraction: (value - inner) / (outer - inner), where outer is the next value away from zero; None if one of them is
    missing.
    """
    fmt, mode = options.fmt, options.rounding
    if math.isnan(value):
        return "NaN stays NaN" if fmt.has_nan else f"{fmt} has no NaN, and overflow={options.overflow!r} decides"
    if math.isinf(value):
        return f"the value is infinite, and overflow={options.overflow!r} decides what becomes of it in {fmt}"
    if fraction is None:
        if result == value:
            return f"{fmt} holds the value exactly"
        lowest, highest = fmt.finite[0][0], fmt.finite[-1][0]
        last = inner if inner is not None else highest if value > highest else lowest
        side = f"it lies beyond the last value, {last!r}"
        return f"{side}, and overflow={options.overflow!r} decides"
    if fraction == 0:
        return f"{fmt} holds the value exactly"
    if mode is Rounding.STOCHASTIC:
        return drawn_reason(options, fraction)
    if mode.is_nearest and fraction == HALF:
        sides = {
            "away": "the larger magnitude",
            "toward_zero": "the smaller magnitude",
            "down": "the lower value",
            "even": "the even code",
        }
        return f"the value lies halfway, and {fmt} takes {sides[fmt.ties]}"
    return "the nearer value is taken" if mode.is_nearest else mode.facts.sentence


def _entry(value: float, code: int, bits: int) -> str:
    """Return a value and its code as text, such as "1.5 = code 0x3"; bits: width of a code."""
    return f"{value!r} = code {code:#0{2 + -(-bits // 4)}x}"
