"""The faults of stochastic rounding that shares of results away from zero show, and the number of its random bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
MOST_BITS, MOST_PLACES = 12, 4  # random bits, and places by which they are shifted, that are tried


class Shares(NamedTuple):
    """Shares of results that were rounded away from zero, one for each input."""

    away: Values
    fraction: Values  # fraction of a unit, the right share
    negative: Flags
    subnormal: Flags  # whether the smaller neighbour is below the smallest normal value
    odd: Flags  # whether that neighbour is odd

    def part(self, chosen: Flags) -> Shares:
        """Return some of the shares."""
        return Shares(*(array[chosen] for array in self))


Share = Callable[[Shares], Values]
Fits = Callable[[Shares, Values], bool]  # whether measured shares equal given ones, as far as draws show


def hypotheses() -> Iterator[tuple[str, Share]]:
    """Yield known faults: a clause ("it ..."), and the shares of results away from zero that the fault gives."""
    yield from _ALWAYS.items()
    for places in range(1, MOST_PLACES + 1):
        said = f"{places} place{'s' if places > 1 else ''}"
        ends = f"fractions up to {1 - 2.0**-places:g} never go away from zero"
        yield f"adds its random bits {said} too low: {ends}", _too_low(places)
    for bits in range(1, MOST_BITS + 1):
        said = f"{bits} random bit{'s' if bits > 1 else ''}"
        yield f"compares {said}: it cuts the fraction to them", _to_bits(bits, np.floor)
        yield f"compares {said}: it rounds the fraction up to them", _to_bits(bits, np.ceil)
        yield f"rounds the fraction to {said.replace(' random', '')} first", _to_bits(bits, np.rint)
    for bits in (*range(3, MOST_BITS + 1), 16, 23, 24, 31, 32):
        yield f"compares {bits} random bits by <=, not by <: it goes away 2**-{bits} too often", _one_more(bits)


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


def _too_low(places: int) -> Share:
    """Return the share of roundings away from zero if random bits are added `places` too low."""
    return lambda s: np.maximum(0.0, 1 - (1 - s.fraction) * 2**places)


def _one_more(bits: int) -> Share:
    """Return the share of roundings away from zero if random bits are compared by <=, not by <."""
    return lambda s: np.minimum(1.0, (np.floor(s.fraction * 2.0**bits) + 1) / 2.0**bits)


def _to_bits(bits: int, cut: Callable[[Values], Values]) -> Share:
    """Return the share of roundings away from zero if `cut` reduces the fraction to some bits first."""
    return lambda s: cut(s.fraction * 2**bits) / 2**bits


def causes_of(shares: Shares, fits: Fits) -> tuple[str, ...]:
    """Return the fault that explains wrong shares, for all inputs or one kind, as a clause ("it ..."); else ().

    fits: whether measured shares of some inputs equal given ones.
    """
    for words, share in hypotheses():
        if fits(shares, share(shares)):
            return (words,)
    for chosen, where in (
        (shares.negative, "for negative values"), (shares.subnormal, "where the result is subnormal"),
        (~shares.subnormal, "where the result is a normal value"), (~shares.negative, "for positive values"),
    ):  # fmt: skip
        rest, part = shares.part(~chosen), shares.part(chosen)
        if not chosen.any() or not fits(rest, rest.fraction):
            continue
        for words, share in hypotheses():
            if fits(part, share(part)):
                return (f"{words}, {where}",)
    return ()


def random_bits(places: Any, wrong: Flags, last: int) -> tuple[int, bool]:
    """Return the number of random bits that results show, and whether it may be larger.

    Args:
      places: exponents j of fractions 2**-j, ascending from 1.
      wrong: whether the share of each is not 2**-j.
      last: the last place that can be measured.
    """
    for place, is_wrong in zip(places, wrong, strict=True):
        if place > last:
            break
        if is_wrong:
            return int(place) - 1, False
    return int(min(last, max(places))), True
