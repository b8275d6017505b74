"""Formats given by a table again, slowly: every value is compared with every entry, in fractions."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache

from fpsim.formats.table_format import TableFormat

MODES = ("nearest_even", "toward_zero", "up", "down")


def hif8_value(code: int) -> float:
    """Return the value of a code of HiF8, read bit by bit as text (arXiv:2409.16626)."""
    text = f"{code:08b}"
    sign, rest = -1 if text[0] == "1" else 1, text[1:]
    if text == "10000000":
        return math.nan
    if rest == "1101111":
        return sign * math.inf
    if rest.startswith("0000"):
        number = int(rest[4:], 2)
        return sign * 2.0 ** (number - 23) if number else 0.0
    dot = next(d for d in ("11", "10", "01", "001", "0001") if rest.startswith(d))
    width = {"11": 4, "10": 3, "01": 2, "001": 1, "0001": 0}[dot]
    field, mantissa = rest[len(dot) : len(dot) + width], rest[len(dot) + width :]
    exponent = 0
    if width:
        exponent = int("1" + field[1:], 2) * (-1 if field[0] == "1" else 1)
    return float(sign * Fraction(2) ** exponent * (1 + Fraction(int(mantissa, 2), 2 ** len(mantissa))))


def encode(
    x: float, fmt: TableFormat, mode: str = "nearest_even", overflow: str = "nonfinite", word: int = 0,
    random_bits: int = 32,
) -> int:  # fmt: skip
    """Return the code that x rounds to."""
    sign = math.copysign(1.0, x)
    finite = [value for value in fmt.values if math.isfinite(value)]
    last = fmt.values.index(max(finite) if sign > 0 else min(finite))
    if math.isnan(x):
        nan = [code for code, value in enumerate(fmt.values) if math.isnan(value)]
        return nan[0] if nan else fmt.values.index(max(finite))
    if math.isinf(x):
        return last if overflow == "saturate" else _special(fmt, sign)
    levels, order = _levels(fmt, mode, overflow)
    exact = Fraction(x)
    at = bisect_left(order, exact)
    above = order[min(at, len(order) - 1)]
    below = above if above == exact else order[max(at - 1, 0)]
    chosen = _chosen(exact, below, above, fmt, mode, word >> (32 - random_bits), 2**random_bits, levels)
    return _zero(sign, fmt) if chosen == 0 else levels[chosen]


def _special(fmt: TableFormat, sign: float) -> int:
    """Return the code of what is too large: Inf, else NaN, else the last value."""
    finite = [value for value in fmt.values if math.isfinite(value)]
    for code, value in enumerate(fmt.values):
        if value == sign * math.inf:
            return code
    nan = [code for code, value in enumerate(fmt.values) if math.isnan(value)]
    return nan[0] if nan else fmt.values.index(max(finite) if sign > 0 else min(finite))


@cache
def _levels(fmt: TableFormat, mode: str, overflow: str) -> tuple[dict[Fraction, int], list[Fraction]]:
    """Return the code of every result, by value, and the values in order."""
    levels = {Fraction(value): code for code, value in enumerate(fmt.values) if math.isfinite(value)}
    has_special = any(not math.isfinite(value) for value in fmt.values)
    saturates = overflow != "nonfinite" or not has_special
    inward = {"toward_zero": (True, True), "up": (True, False), "down": (False, True)}.get(mode, (False, False))
    magnitudes = sorted({abs(value) for value in levels})
    edge = Fraction(fmt.beyond) if fmt.beyond is not None else 2 * magnitudes[-1] - magnitudes[-2]
    if not saturates and not inward[0]:
        levels[-edge] = _special(fmt, -1.0)
    if not saturates and not inward[1]:
        levels[edge] = _special(fmt, 1.0)
    return levels, sorted(levels)


def _chosen(
    x: Fraction, below: Fraction, above: Fraction, fmt: TableFormat, mode: str, draw: int, draws: int,
    codes: dict[Fraction, int],
) -> Fraction:  # fmt: skip
    ties = fmt.ties
    if below == above or not below <= x <= above:
        return below if abs(below - x) <= abs(above - x) else above
    if mode == "up":
        return above
    if mode == "down":
        return below
    inner, outer = (below, above) if x >= 0 else (above, below)
    if mode == "toward_zero":
        return inner
    if mode == "stochastic":
        return outer if math.floor((x - inner) / (outer - inner) * draws) + draw >= draws else inner
    if x - below != above - x:
        return below if x - below < above - x else above
    if ties == "down":
        return below
    even = [value for value in (below, above) if codes[value] % 2 == 0]
    if ties == "even" and len(even) == 1:
        return even[0]
    larger = above if abs(above) >= abs(below) else below
    return larger if ties in ("away", "even") else (above if larger == below else below)


def _zero(sign: float, fmt: TableFormat) -> int:
    zeros = {math.copysign(1, value): code for code, value in enumerate(fmt.values) if value == 0}
    return zeros.get(sign, zeros.get(1.0, zeros.get(-1.0, -1)))
