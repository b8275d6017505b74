"""Faults that affect only a part of the inputs: one sign, or some binades."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.rounder import Flags, SplitInputs, Words
from fpsim.testing.quantizers.steps import Through


@dataclass(frozen=True)
class Region:
    """Inputs of one sign, or of both, with magnitudes in a range.

    Attributes:
      negative: True for inputs with a minus sign, False for others; None for both.
      low, high: exponents of the limits; magnitudes are from 2**low to below 2**high. None for no limit.
    """

    negative: bool | None = None
    low: int | None = None
    high: int | None = None

    @property
    def ends(self) -> int:
        """Number of limits that the region has, 0 to 3: sign, lower and upper limit of magnitudes."""
        return sum(end is not None for end in (self.negative, self.low, self.high))

    def holds(self, inputs: SplitInputs) -> Flags:
        """Return a mask of the inputs in the region; NaN is inside only if magnitudes have no limit."""
        inside = np.ones(inputs.negative.shape, np.bool_)
        if self.negative is not None:
            inside &= inputs.negative == self.negative
        if self.low is not None:
            inside &= inputs.magnitude >= np.ldexp(1.0, self.low)
        if self.high is not None:
            inside &= inputs.magnitude < np.ldexp(1.0, self.high)
        return inside

    def __str__(self) -> str:
        sign = {None: "", True: "negative ", False: "positive "}[self.negative]
        ends = {
            (False, False): "values",
            (True, False): f"magnitudes from 2**{self.low} on",
            (False, True): f"magnitudes below 2**{self.high}",
            (True, True): f"magnitudes from 2**{self.low} to 2**{self.high}",
        }[self.low is not None, self.high is not None]
        return f"for {sign}{ends if not sign else ends.replace('magnitudes', 'values of magnitude')}"


@dataclass(frozen=True)
class Restricted:
    """A quantizer that follows one model in a region of its inputs, and another model elsewhere.

    Attributes:
      start: the model for inputs outside the region.
      faulty: the model for inputs in the region.
      region: the region.
    """

    start: QuantizerModel
    faulty: QuantizerModel
    region: Region

    @property
    def through(self) -> Through | None:
        """Format to which values of the region are rounded first, or None."""
        return self.faulty.through

    def run(self, inputs: SplitInputs) -> Words:
        """Return the results for inputs as bit patterns of float64, with one pattern for all NaNs."""
        return np.where(self.region.holds(inputs), self.faulty.run(inputs), self.start.run(inputs))


def regions(inputs: SplitInputs, differ: Flags) -> Iterator[Region]:
    """Yield the regions with the tightest limits that contain all inputs with wrong results, fewest limits first.

    Magnitudes are limited by powers of two. No limit is set that would exclude a wrong zero or Inf; with a wrong NaN,
    only the sign is limited. differ: mask of the inputs with wrong results.
    """
    part = inputs.part(differ)
    sign = bool(part.negative[0]) if part.negative.all() or not part.negative.any() else None
    if sign is not None:
        yield Region(sign)
    magnitude = part.magnitude[part.magnitude > 0]
    if np.isnan(part.magnitude).any() or not magnitude.size:
        return
    low = None if (part.magnitude == 0).any() else int(np.frexp(magnitude.min())[1]) - 1
    high = None if np.isinf(magnitude).any() else int(np.frexp(magnitude.max())[1])
    for negative in dict.fromkeys([None, sign]):
        if high is not None:
            yield Region(negative, None, high)
        if low is not None:
            yield Region(negative, low, None)
        if low is not None and high is not None:
            yield Region(negative, low, high)


def region_of(inputs: SplitInputs, start: Words, faulty: Words, got: Words) -> Region | None:
    """Return a region such that `got` equals `faulty` for inputs inside it and `start` for all others, or None.

    start, faulty: results of the promised and of a faulty model for all inputs, as bit patterns of float64. got:
    results of the quantizer.
    """
    differ = got != start
    if (faulty != got)[differ].any():
        return None
    for region in regions(inputs, differ):
        if (np.where(region.holds(inputs), faulty, start) == got).all():
            return region
    return None
