"""Reports on encoding: counts of tiles and scales, and counts of saturated and underflowed elements."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from functools import lru_cache
from operator import add
from typing import Self


@dataclass(frozen=True)
class _Counts:
    """Base class of dataclasses whose fields are counts."""

    def merge(self, other: Self) -> Self:
        """Return an object of the same class whose counts are the sums of this one's and the other's."""
        return type(self)(*map(add, astuple(self), astuple(other)))

    def to_dict(self) -> dict[str, int]:
        """Return the counts as a dict, by the names of the attributes."""
        return asdict(self)


@dataclass(frozen=True)
class ScaleReport(_Counts):
    """Counts of an array's tiles (blocks of elements with one scale), in all and by the special cases of their scales.

    Attributes:
      tiles: the number of all tiles.
      zero_tiles: tiles with an amax (largest magnitude) of 0.
      nan_tiles: tiles with a NaN.
      infinite_tiles: tiles with an infinite element.
      clamped_low: tiles whose scale was raised to the smallest one allowed.
      clamped_high: tiles whose scale was lowered to the largest value of the scale format.
    """

    tiles: int = 0
    zero_tiles: int = 0
    nan_tiles: int = 0
    infinite_tiles: int = 0
    clamped_low: int = 0
    clamped_high: int = 0


@lru_cache(maxsize=1024)
def report_of(*counts: int) -> ScaleReport:
    """Return a ScaleReport with these counts, in the order of its fields; cached, because most calls repeat them."""
    return ScaleReport(*counts)


@dataclass(frozen=True)
class ScaleCounts(_Counts):
    """Counts of elements and scales over a number of encoding steps; `merge` adds those of other steps.

    Attributes:
      elements: the number of all elements.
      saturated: elements that were infinite, or beyond the format's range after rounding with an unbounded exponent,
        whatever the overflow policy turned them into. NaN does not count.
      underflowed: elements that are not zero and whose code is that of 0 or -0.
      steps: the number of calls with at least one element.
      recalibrations: steps in which a scale was computed from an amax (largest magnitude of a tile).

    Example:
      >>> import fpsim as fp
      >>> state = fp.OnlineScaling("e4m3")
      >>> y = state.quantize(np.float32([448, 1, 1e-4, -1e-4, 0]))
      >>> state.counts
      ScaleCounts(elements=5, saturated=0, underflowed=2, steps=1, recalibrations=1)
      >>> state.counts.underflow_rate
      0.4
    """

    elements: int = 0
    saturated: int = 0
    underflowed: int = 0
    steps: int = 0
    recalibrations: int = 0

    @property
    def saturation_rate(self) -> float:
        """Number of saturated elements, divided by that of all elements; NaN for none."""
        return self.saturated / self.elements if self.elements else float("nan")

    @property
    def underflow_rate(self) -> float:
        """Number of nonzero elements that were encoded as zero, divided by that of all elements; NaN for none."""
        return self.underflowed / self.elements if self.elements else float("nan")
