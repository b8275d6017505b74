"""Causes of wrong shares of results rounded away from zero, and the number of random bits that shares show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.display.wording import plural
from fpsim.testing.quantizers.rounder import Flags

MOST_BITS, MOST_PLACES = 12, 4  # largest number of random bits, and of places by which they are shifted, to try


class Shares(NamedTuple):
    """Measured shares of results that were rounded away from zero, one for each input.

    Attributes:
      away: the measured shares.
      fraction: the right shares, which are the inputs' fractions of the spacing.
      negative: whether the input is negative.
      subnormal: whether its neighbour of smaller magnitude is below the smallest normal value.
      odd: whether the code of that neighbour is odd.
    """

    away: Array
    fraction: Array
    negative: Flags
    subnormal: Flags
    odd: Flags

    def part(self, chosen: Flags) -> Shares:
        """Return the shares of the inputs that the mask `chosen` selects."""
        return Shares(*(array[chosen] for array in self))


Share = Callable[[Shares], Array]  # shares that a fault causes
Fits = Callable[[Shares, Array], bool]  # whether measured shares equal given ones, within chance


def hypotheses() -> Iterator[tuple[str, Share]]:
    """Yield known faults of stochastic rounding, as (clause that describes the fault, function).

    The function maps `Shares` to one number per input: the share of results rounded away from zero that the fault
    causes.
    """
    yield from _ALWAYS.items()
    for places in range(1, MOST_PLACES + 1):
        ends = f"fractions up to {1 - 2.0**-places:g} never go away from zero"
        yield f"adds its random bits {plural(places, 'place')} too low: {ends}", partial(_too_low, places)
    for bits in range(1, MOST_BITS + 1):
        compares = f"compares {plural(bits, 'random bit')}"
        yield f"{compares}: it cuts the fraction to them", partial(_to_bits, bits, np.floor)
        yield f"{compares}: it rounds the fraction up to them", partial(_to_bits, bits, np.ceil)
        yield f"rounds the fraction to {plural(bits, 'bit')} first", partial(_to_bits, bits, np.rint)
    for bits in (*range(3, MOST_BITS + 1), 16, 23, 24, 31, 32):
        words = f"compares {bits} random bits by <=, not by <: it goes away 2**-{bits} too often"
        yield words, partial(_one_more, bits)


_ALWAYS: dict[str, Share] = {
    "is not random: it rounds toward zero": lambda s: 0 * s.fraction,
    "is not random: it rounds away from zero": lambda s: 1.0 * (s.fraction > 0),
    "is not random: it rounds up, toward +Inf": lambda s: 1.0 * ~s.negative,
    "is not random: it rounds down, toward -Inf": lambda s: 1.0 * s.negative,
    "is not random: it rounds to nearest, ties to the even code":
        lambda s: 1.0 * ((s.fraction > 0.5) | ((s.fraction == 0.5) & s.odd)),
    "is not random: it rounds to nearest, ties away from zero": lambda s: 1.0 * (s.fraction >= 0.5),
    "is not random: it rounds to nearest, ties toward zero": lambda s: 1.0 * (s.fraction > 0.5),
    "goes either way half of the time, whatever the fraction": lambda s: 0 * s.fraction + 0.5,
    "goes away from zero with the probability of the other neighbour": lambda s: 1 - s.fraction,
    "goes up with the probability with which it should go away from zero":
        lambda s: np.where(s.negative, 1 - s.fraction, s.fraction),
    "adds noise of one unit and rounds to nearest, where it should cut":
        lambda s: np.where(s.fraction < 0.5, s.fraction + 0.5, 1.5 - s.fraction),
    "adds noise of half a unit, not of one, and rounds to nearest": lambda s: np.clip(2 * s.fraction - 0.5, 0, 1),
}  # fmt: skip


def _too_low(places: int, s: Shares) -> Array:
    """Return the shares rounded away from zero by a quantizer that adds random bits `places` bit positions too low."""
    return np.asarray(np.maximum(0.0, 1 - (1 - s.fraction) * 2**places))


def _one_more(bits: int, s: Shares) -> Array:
    """Return the shares rounded away from zero by a quantizer that tests random bits <= fraction, not <.

    bits: number of random bits.
    """
    return np.minimum(1.0, (np.floor(s.fraction * 2.0**bits) + 1) / 2.0**bits)


def _to_bits(bits: int, cut: Callable[[Array], Array], s: Shares) -> Array:
    """Return the shares rounded away from zero by a quantizer that first reduces fractions to `bits` bits.

    cut: rounding of fraction * 2**bits to integers, such as np.floor.
    """
    return np.asarray(cut(s.fraction * 2**bits) / 2**bits)


def causes_of(shares: Shares, fits: Fits) -> tuple[str, ...]:
    """Return the fault that explains wrong shares, as a tuple of one clause; () if none does.

    A fault may affect all inputs, or only those of one class (negative, positive, subnormal or normal) if the shares of
    all other inputs are right. fits: function (`Shares`, expected shares) -> whether the measured shares equal them.
    """
    for chosen, where in (
        (np.ones_like(shares.negative), ""), (shares.negative, ", for negative values"),
        (shares.subnormal, ", where the result is subnormal"),
        (~shares.subnormal, ", where the result is a normal value"), (~shares.negative, ", for positive values"),
    ):  # fmt: skip
        rest, part = shares.part(~chosen), shares.part(chosen)
        if not chosen.any() or not fits(rest, rest.fraction):
            continue
        for words, share in hypotheses():
            if fits(part, share(part)):
                return (f"{words}{where}",)
    return ()


def random_bits(places: Any, wrong: Flags, last: int) -> tuple[int, bool]:
    """Return (number of random bits that a quantizer uses according to its shares, whether there may be more).

    places: the exponents j = 1, 2, ... of the fractions 2**-j. wrong: for each j, whether the share differs from 2**-j.
    last: the largest j that can be measured.
    """
    for place, is_wrong in zip(places, wrong, strict=True):
        if place > last:
            break
        if is_wrong:
            return int(place) - 1, False
    return int(min(last, max(places))), True
