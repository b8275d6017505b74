"""Shares of results that are rounded away from zero, measured from many draws or from all random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.testing.quantizers.report import Broken, broken_at
from fpsim.testing.quantizers.rounder import words_of
from fpsim.testing.quantizers.stochastic.source import WORD_BITS, RandomSource, Values

REPEATS, CALLS = 2048, 32  # draws of each input: elements per call, and calls


def cells_of(fmt: Format) -> list[tuple[float, float]]:
    """Return pairs of neighbouring values, smaller magnitude first, from all parts of a format's range.

    The first pair begins at 1, or at the smallest normal value if 1 is subnormal or the largest value is below 4. In
    formats with mantissa bits the next pair follows it: (1, 1 + ulp), (1 + ulp, 1 + 2 * ulp). In formats with
    subnormals, pairs begin at 0 and at the smallest normal value. The last pair ends at the largest value. In signed
    formats, the first and the last pair are also returned with negative signs.
    """
    start = 1.0 if fmt.smallest_normal <= 1 <= fmt.max / 4 else fmt.smallest_normal
    ulp = float(fmt.ulp(start))
    cells = [(start, start + ulp), (start + ulp, start + 2 * ulp)] if fmt.mantissa_bits else [(start, 2 * start)]
    if fmt.subnormals:
        low = fmt.smallest_subnormal
        cells += [(0.0, low), (fmt.smallest_normal, fmt.smallest_normal + float(fmt.ulp(fmt.smallest_normal)))]
    cells += [(float(fmt.value_of(fmt.max_code - 1)), fmt.max)]
    if fmt.signed:
        cells += [(-cells[0][0], -cells[0][1]), (-cells[-1][0], -cells[-1][1])]
    return list(dict.fromkeys(cells))


def binades_of(fmt: Format) -> list[tuple[float, float]]:
    """Return for each binade of each sign two neighbouring values in its middle, the smaller magnitude first."""
    half = 1 << fmt.mantissa_bits >> 1
    starts = range(0, fmt.max_code, 1 << fmt.mantissa_bits)
    codes = [min(start + half, fmt.max_code - 1) for start in starts]
    positive = [(float(fmt.value_of(code)), float(fmt.value_of(code + 1))) for code in codes]
    return positive + [(-low, -high) for low, high in positive if fmt.signed]


def inputs_between(cells: list[tuple[float, float]], fractions: Sequence[float]) -> tuple[Array, ...]:
    """Return (inputs, their lower neighbours, their upper neighbours, their fractions of the spacing), flat.

    There is a float32 input at each of `fractions` between the values of each pair in `cells`; inputs that float32
    cannot represent exactly are left out.
    """
    low, high = (np.repeat(np.array(cells)[:, end], len(fractions)) for end in (0, 1))
    fraction = np.tile(fractions, len(cells))
    exact = low + fraction * (high - low)
    x = exact.astype(np.float32)
    kept = x.astype(np.float64) == exact
    return x[kept], low[kept], high[kept], fraction[kept]


def shares_away(
    source: RandomSource, x: Array, low: Values, high: Values, calls: int = CALLS
) -> tuple[Values, Broken | None]:
    """Return (share of results that round each input away from zero, broken property "neighbours" or None).

    Shares are exact for quantizers that take random bits or uniform numbers; others are called `calls` times with 2,048
    copies of each input. source: the quantizer. low, high: the neighbours of each of the inputs x, smaller magnitude
    first.
    """
    if source.takes_words:
        return counted_shares(source, x, low, high)
    away = np.zeros(x.size)
    bad: Broken | None = None
    for number in range(calls):
        got = source(np.repeat(x, REPEATS), number).reshape(x.size, REPEATS)
        bad = bad or _stray(source, x, got, low, high)
        away += (got == high[:, None]).sum(1)
    return away / (REPEATS * calls), bad


def _stray(source: RandomSource, x: Array, got: Values, low: Values, high: Values) -> Broken | None:
    """Return the broken property "neighbours" if a result is not a neighbour of its input, else None.

    source: the quantizer. got: its results, (inputs, draws). low, high: the two neighbours of each of the inputs x.
    """
    stray = (got != low[:, None]) & (got != high[:, None])
    if not stray.any():
        return None
    at, draw = (int(i) for i in np.argwhere(stray)[0])
    return broken_at(
        "neighbours", x[[at]], words_of(got[at])[draw], words_of(low)[at], source.box.fmt, source.box.name,
        count=int(stray.sum()), of=stray.size, why="a result is neither neighbour of its input (want: one of them)",
    )  # fmt: skip


def counted_shares(source: RandomSource, x: Array, low: Values, high: Values) -> tuple[Values, Broken | None]:
    """Return (share of random numbers that round each input away from zero, broken property "neighbours" or None).

    "neighbours" is broken if an input was ever rounded to another value than its two neighbours. The share is exact,
    and found by bisection, if all random numbers below a threshold round an input to one neighbour and all others to
    the other. If 129 evenly spaced random numbers show otherwise, it is estimated from these. The share is float64, one
    for each of the inputs x. source: the quantizer. low, high: the neighbours of each input, smaller magnitude first.
    """
    bits = WORD_BITS if source.driven == "bits" else 24
    shift = WORD_BITS - bits
    bad: Broken | None = None

    def goes(words: Any) -> Any:
        nonlocal bad
        got = source(x, 0, (np.asarray(words, np.uint64) << np.uint64(shift)).astype(np.uint32))
        bad = bad or _stray(source, x, got[:, None], low, high)
        return got == high

    last = (1 << bits) - 1
    at_zero, at_last = goes(np.zeros(x.size)), goes(np.full(x.size, last))
    start, end = np.zeros(x.size, np.int64), np.full(x.size, last, np.int64)
    for _ in range(bits):
        middle = (start + end) // 2
        same = goes(middle) == at_zero
        start, end = (
            np.where(same & (end - start > 1), middle, start),
            np.where(same, end, np.maximum(middle, start + 1)),
        )
    first_part = end.astype(np.float64)  # number of words that round like word 0
    share = np.where(at_zero, first_part, 2.0**bits - first_part) / 2.0**bits
    share = np.where(at_zero == at_last, at_zero.astype(np.float64), share)
    grid = np.linspace(0, last, 129).astype(np.int64)  # to see whether a threshold decides
    systematic = np.mean([goes(np.full(x.size, word)) for word in grid], axis=0)
    return np.where(np.abs(systematic - share) > 2 / grid.size, systematic, share), bad
