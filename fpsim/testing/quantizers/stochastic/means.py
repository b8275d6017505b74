"""Means of stochastic rounding for fractions of the spacing, in every binade, and for single random bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import encode
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.testing.quantizers.report import Broken, broken_at
from fpsim.testing.quantizers.stochastic.chance import detectable_bias, level_of_one_test, unlikely
from fpsim.testing.quantizers.stochastic.draws import CALLS, REPEATS, binades_of, counted_shares, drawn_shares
from fpsim.testing.quantizers.stochastic.report import StochasticMeasurements
from fpsim.testing.quantizers.stochastic.shares import Shares, random_bits
from fpsim.testing.quantizers.stochastic.source import WORD_BITS, RandomSource, Values

LADDER = 1 << 13  # elements of a call for each fraction 2**-j
IN_BINADES = (0.25, 0.5, 0.75)  # fractions of the spacing in each binade


def means_in_binades(
    source: RandomSource, fmt: Format, measured: StochasticMeasurements
) -> Iterator[tuple[str, Broken | None]]:
    """Yield "neighbours" and "mean", each with the result that breaks it or None, for inputs in every binade.

    In each binade the inputs are at the fractions IN_BINADES between two neighbouring values; the share of results away
    from zero must equal the fraction. source: the quantizer. fmt: the format of its results. measured: receives the
    detectable bias if shares are from draws.
    """
    cells = np.array(binades_of(fmt))
    low, high = (np.repeat(cells[:, end], len(IN_BINADES)) for end in (0, 1))
    fraction = np.tile(IN_BINADES, len(cells))
    x = (low + fraction * (high - low)).astype(np.float32)
    kept = x.astype(np.float64) == low + fraction * (high - low)
    x, low, high, fraction = x[kept], low[kept], high[kept], fraction[kept]
    if source.driven in ("bits", "uniform"):
        away, stray = counted_shares(source, x, low, high)
        wrong = away != fraction
    else:
        away, stray = drawn_shares(source, x, low, high, calls=1)
        wrong = unlikely(np.round(away * REPEATS), REPEATS, fraction, x.size)
        measured.detects_in_binades = detectable_bias(REPEATS, x.size)
    yield "neighbours", stray
    broken = None
    if wrong.any():
        worst = int(np.argmax(np.where(wrong, np.abs(away - fraction), 0)))
        one = broken_at("mean", x[[worst]], np.uint64(0), np.uint64(0), source.box.fmt, source.box.name)
        ends = np.abs(low[wrong])
        where = f"binades from {ends.min():.6g} to {ends.max():.6g}" if ends.min() < ends.max() else f"{ends.min():.6g}"
        share = f"it rounds away from zero with a share of {away[worst]:.6g}, not {fraction[worst]:.6g}"
        why = f"{share}; wrong are {where}"
        broken = Broken(
            "mean", why, input_bits=one.input_bits, input=one.input, got=f"{away[worst]:.6g}",
            want=f"{fraction[worst]:.6g}", count=int(wrong.sum()), of=x.size,
        )  # fmt: skip
    yield "mean", broken


def biased_mean(source: RandomSource, x: Array, away: Values, fraction: Values, detects: float) -> Broken | None:
    """Return the broken property "mean" if one input, or all together, are rounded away from zero too often or seldom.

    Return None if chance allows all differences between shares; exact shares must not differ at all.
    away, fraction: for each of the inputs x, the share of draws that round it away from zero, and the right share, its
    fraction of the spacing. detects: the smallest bias that these draws show; 0 if the shares are exact.
    """
    if source.driven in ("bits", "uniform"):
        wrong = away != fraction
        how = "over all random words"
    else:
        draws = REPEATS * CALLS
        wrong = unlikely(np.round(away * draws), draws, fraction, x.size)
        how = f"of {draws:,} draws"
    if not wrong.any():
        return None if detects == 0 else _all_means(away, fraction)
    worst = int(np.argmax(np.where(wrong, np.abs(away - fraction), 0)))
    one = broken_at("mean", x[[worst]], np.uint64(0), np.uint64(0), source.box.fmt, source.box.name)
    return Broken(
        "mean",
        f"it rounds away from zero with a share of {away[worst]:.6g} {how}, not {fraction[worst]:.6g}",
        input_bits=one.input_bits, input=one.input, got=f"{away[worst]:.6g}", want=f"{fraction[worst]:.6g}",
        count=int(wrong.sum()), of=x.size,
    )  # fmt: skip


def _all_means(away: Values, fraction: Values) -> Broken | None:
    """Return the broken property "mean" if the sum of all shares differs from the right one beyond chance, else None.

    away, fraction: the share of draws that round each input away from zero, and its fraction of the spacing.
    """
    from scipy.special import ndtri

    spread = math.sqrt(float((fraction * (1 - fraction)).sum()) / (REPEATS * CALLS))
    off = float((away - fraction).sum())
    if abs(off) <= -float(ndtri(level_of_one_test(1) / 2)) * spread:
        return None
    why = f"over all fractions its share of results away from zero is off by {off / away.size:+.2g}"
    return Broken("mean", f"{why}, {abs(off) / spread:.0f} standard deviations")


def shares_of_cells(away: Values, fraction: Values, x: Array, low: Values, fmt: Format) -> Shares:
    """Return the measured and right shares of roundings away from zero, with properties of the inputs.

    x: the inputs. away, fraction: their measured and right shares. low: each input's neighbour of smaller magnitude.
    fmt: the format of the neighbours.
    """
    subnormal = np.abs(low) < fmt.smallest_normal
    odd = (encode(low, fmt) & 1).astype(np.bool_)
    return Shares(away, fraction, np.signbit(x), subnormal, odd)


def fit_test(driven: str) -> Callable[[Shares, Values], bool]:
    """Return the function (shares, expected shares) -> whether the measured shares equal the expected ones.

    driven: kind of random numbers; for "bits" and "uniform" shares must be equal exactly, for others within chance.
    """
    if driven in ("bits", "uniform"):
        return lambda shares, share: bool((shares.away == share).all())
    draws = REPEATS * CALLS

    def fits(shares: Shares, share: Values) -> bool:
        counts = np.round(shares.away * draws)
        return not unlikely(counts, draws, np.clip(share, 0, 1), max(share.size, 1)).any()

    return fits


def deciding_bits(source: RandomSource, cells: list[tuple[float, float]], fmt: Format) -> tuple[int, bool]:
    """Return (number of random bits that affect results, whether it may be larger).

    An input at the fraction 2**-j of the spacing is rounded away from zero with a share of 2**-j only if j random bits
    count. source: the quantizer. cells: pairs of neighbouring values between which the inputs are, smaller magnitude
    first. fmt: the format of these values.
    """
    low, high = cells[0]
    places = np.arange(1, FP32.mantissa_bits - fmt.mantissa_bits + 1)
    if source.driven in ("bits", "uniform"):
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
