"""Checks of the mean of stochastic rounding: at fractions of the spacing, in every binade, per random bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.testing.quantizers.report import Broken, input_fields
from fpsim.testing.quantizers.stochastic.chance import detectable_bias, level_of_one_test, unlikely
from fpsim.testing.quantizers.stochastic.draws import (
    CALLS,
    REPEATS,
    binades_of,
    counted_shares,
    inputs_between,
    shares_away,
)
from fpsim.testing.quantizers.stochastic.report import StochasticMeasurements
from fpsim.testing.quantizers.stochastic.shares import random_bits
from fpsim.testing.quantizers.stochastic.source import WORD_BITS, RandomSource, Values

LADDER = 1 << 13  # elements of a call for each fraction 2**-j
IN_BINADES = (0.25, 0.5, 0.75)  # fractions of the spacing in each binade


def wrong_shares(source: RandomSource, away: Values, share: Values, draws: int = REPEATS * CALLS) -> Any:
    """Return a mask of the measured shares `away` that differ from the expected ones, `share`.

    If `source`, the quantizer, takes random bits or uniform numbers, shares are exact and must be equal. Otherwise each
    is measured from `draws` draws, and must be as near as chance allows.
    """
    if source.takes_words:
        return away != share
    return unlikely(np.round(away * draws), draws, np.clip(share, 0, 1), max(share.size, 1))


def means_in_binades(
    source: RandomSource, fmt: Format, measured: StochasticMeasurements
) -> Iterator[tuple[str, Broken | None]]:
    """Yield "neighbours" and "mean", each with the result that breaks it or None, for inputs in every binade.

    In each binade the inputs are at the fractions IN_BINADES between two neighbouring values; the share of results away
    from zero must equal the fraction. source: the quantizer. fmt: the format of its results. measured: receives the
    detectable bias if shares are from draws.
    """
    x, low, high, fraction = inputs_between(binades_of(fmt), IN_BINADES)
    away, stray = shares_away(source, x, low, high, calls=1)
    wrong = wrong_shares(source, away, fraction, REPEATS)
    if not source.takes_words:
        measured.detects_in_binades = detectable_bias(REPEATS, x.size)
    yield "neighbours", stray
    broken = None
    if wrong.any():
        ends = np.abs(low[wrong])
        where = f"binades from {ends.min():.6g} to {ends.max():.6g}" if ends.min() < ends.max() else f"{ends.min():.6g}"
        broken = _broken_mean(x, away, fraction, wrong, more=f"; wrong are {where}")
    yield "mean", broken


def _broken_mean(x: Array, away: Values, fraction: Values, wrong: Any, how: str = "", more: str = "") -> Broken:
    """Return the broken property "mean", as shown by the input whose share is farthest from the right one.

    away, fraction: for each of the inputs x, the measured and the right share of results rounded away from zero. wrong:
    mask of the wrong shares. The property's sentence reads "it rounds away from zero with a share of 0.6{how}, not
    0.5{more}", with the texts `how` and `more`.
    """
    worst = int(np.argmax(np.where(wrong, np.abs(away - fraction), 0)))
    got, want = f"{away[worst]:.6g}", f"{fraction[worst]:.6g}"
    why = f"it rounds away from zero with a share of {got}{how}, not {want}{more}"
    return Broken(
        "mean", why, **input_fields(x[[worst]]), got=got, want=want, count=int(wrong.sum()), of=x.size
    )  # fmt: skip


def biased_mean(source: RandomSource, x: Array, away: Values, fraction: Values) -> Broken | None:
    """Return the broken property "mean" if one input, or all together, round away from zero too often or too seldom.

    source: the quantizer. away, fraction: for each of the inputs x, the share that `shares_away` measured, and the
    right share. The result is None if all shares are right.
    """
    from scipy.special import ndtri

    wrong = wrong_shares(source, away, fraction)
    if wrong.any():
        how = " over all random words" if source.takes_words else f" of {REPEATS * CALLS:,} draws"
        return _broken_mean(x, away, fraction, wrong, how)
    spread = math.sqrt(float((fraction * (1 - fraction)).sum()) / (REPEATS * CALLS))
    off = float((away - fraction).sum())
    if source.takes_words or abs(off) <= -float(ndtri(level_of_one_test(1) / 2)) * spread:
        return None
    why = f"over all fractions its share of results away from zero is off by {off / away.size:+.2g}"
    return Broken("mean", f"{why}, {abs(off) / spread:.0f} standard deviations")


def deciding_bits(source: RandomSource, cells: list[tuple[float, float]], fmt: Format) -> tuple[int, bool]:
    """Return (number of random bits that affect results, whether it may be larger).

    An input at the fraction 2**-j of the spacing is rounded away from zero with a share of 2**-j only if j random bits
    count. source: the quantizer. cells: pairs of neighbouring values between which the inputs are, smaller magnitude
    first. fmt: the format of these values.
    """
    low, high = cells[0]
    places = np.arange(1, FP32.mantissa_bits - fmt.mantissa_bits + 1)
    if source.takes_words:
        bits, more = random_bits(places, _of_one_bit(source, low, high, places), int(places[-1]))
        subnormal = next(((zero, smallest) for zero, smallest in cells if zero == 0), None)
        if more and subnormal is not None:  # subnormals have fractions with more bits
            places = np.arange(1, min(WORD_BITS, 149 + int(math.log2(subnormal[1]))) + 1)
            further, beyond = random_bits(places, _of_one_bit(source, *subnormal, places), int(places[-1]))
            if further > bits:
                bits, more = further, beyond and further < WORD_BITS
        return bits, more
    draws = LADDER * CALLS
    x = (low + (high - low) * 2.0**-places).astype(np.float32)
    count = np.zeros(places.size)
    for number in range(CALLS):
        got = source(np.repeat(x, LADDER), 5000 + number).reshape(x.size, LADDER)
        count += (got == high).sum(1)
    told = int(np.log2(draws / -math.log(level_of_one_test(places.size) / 2)))  # smaller shares give no draw
    return random_bits(places, unlikely(count, draws, 2.0**-places, places.size), told)


def _of_one_bit(source: RandomSource, low: float, high: float, places: Any) -> Any:
    """Return a bool mask of exponents j in `places` for which the input low + (high - low) * 2**-j is rounded wrongly.

    An input is rounded wrongly if the share of random numbers that round it away from zero is not 2**-j. source: the
    quantizer. low, high: neighbouring values. places: integer array.
    """
    x = (low + (high - low) * 2.0**-places).astype(np.float32)
    away, _ = counted_shares(source, x, np.full(x.shape, low), np.full(x.shape, high))
    return away != 2.0**-places
