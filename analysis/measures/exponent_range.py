"""Where the values of a tensor lie: counts per exponent, and what share of them a format reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.tensors.chunks import Array, as_float64, flat_chunks
from fpsim.arrays import float_array, without_gradient
from fpsim.display.optional import frame
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import format as find_format


@dataclass(frozen=True)
class RangeReport:
    """Counts of a tensor's elements by exponent; `merge` adds those of another part.

    Attributes:
      counts: of the exponents floor(log2|x|) that occur, from low to high, as pairs (exponent, count).
      zeros, infinities, nans: counts.
      amax: largest finite magnitude; 0 without any.
      smallest: smallest non-zero magnitude; Inf without any.
    """

    counts: tuple[tuple[int, int], ...]
    zeros: int
    infinities: int
    nans: int
    amax: float
    smallest: float

    @cached_property
    def count(self) -> int:
        """Elements in all."""
        return sum(number for _, number in self.counts) + self.zeros + self.infinities + self.nans

    def quantile(self, share: float) -> int | None:
        """The exponent that `share` (0 to 1) of the non-zero finite elements do not exceed; None without any."""
        total = sum(number for _, number in self.counts)
        seen = 0
        for exponent, number in self.counts:
            seen += number
            if seen >= share * total:
                return exponent
        return None

    def shares(self, fmt: FormatLike) -> dict[str, float]:
        """What share of all elements lies where in a format's range, counted by whole exponents.

        Returns:
          "below": non-zero, below the smallest subnormal; "subnormal"; "normal", which includes everything in the
          binade of the largest value; "above" that binade.

        Example:
          >>> import fpsim as fp
          >>> fp.analysis.exponents(np.float32([2.0**-12, 2.0**-8, 1.0, 512.0])).shares(fp.E4M3)
          {'below': 0.25, 'subnormal': 0.25, 'normal': 0.25, 'above': 0.25}
        """
        found = find_format(fmt)
        lowest, top = (math.frexp(value)[1] - 1 for value in (found.smallest_subnormal, found.max))
        parts = dict.fromkeys(("below", "subnormal", "normal", "above"), 0)
        for exponent, number in self.counts:
            if exponent < lowest:
                parts["below"] += number
            elif exponent < found.min_exponent:
                parts["subnormal"] += number
            else:
                parts["normal" if exponent <= top else "above"] += number
        return {name: number / self.count if self.count else math.nan for name, number in parts.items()}

    def merge(self, other: RangeReport) -> RangeReport:
        """The report of both parts together, exactly."""
        counts = dict(self.counts)
        for exponent, number in other.counts:
            counts[exponent] = counts.get(exponent, 0) + number
        return RangeReport(
            tuple(sorted(counts.items())),
            self.zeros + other.zeros,
            self.infinities + other.infinities,
            self.nans + other.nans,
            max(self.amax, other.amax),
            min(self.smallest, other.smallest),
        )

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns exponent, count and share (of all elements)."""
        return frame([{"exponent": e, "count": n, "share": n / self.count} for e, n in self.counts])

    def plot(self, ax: Any = None) -> Any:
        """Draw the histogram over the formats' ranges; returns the matplotlib axes."""
        from fpsim.analysis.measures.exponent_figure import exponent_axes

        return exponent_axes([("", self)], ax=ax)


EMPTY = RangeReport((), 0, 0, 0, 0.0, math.inf)


def exponents(x: npt.ArrayLike) -> RangeReport:
    """Count the elements of an array by their exponent floor(log2|x|).

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape; nothing of its size is
        allocated.
    Returns:
      The counts from -1074 to 1023, of zeros, infinities and NaNs, with the extreme magnitudes.
    Raises:
      TypeError: x is not an array of floats.

    Example:
      >>> import fpsim as fp
      >>> r = fp.analysis.exponents(np.float32([0.75, -1.5, 1.0, 0.0, np.nan]))
      >>> r.counts, r.zeros, r.nans, r.amax, r.smallest
      (((-1, 1), (0, 2)), 1, 1, 1.5, 0.75)
    """
    array, _ = float_array(without_gradient(x))
    report = EMPTY
    for chunk in flat_chunks(array):
        report = report.merge(chunk_exponents(chunk))
    return report


def chunk_exponents(x: Array) -> RangeReport:
    """The same for one chunk in native byte order, with temporaries of its size."""
    magnitude = np.abs(as_float64(x))
    fields = (magnitude.view(np.int64) >> 52).astype(np.intp)  # the sign is 0
    by_field = np.bincount(fields, minlength=2048)
    counts = {int(field) - 1023: int(by_field[field]) for field in np.flatnonzero(by_field[1:2047]) + 1}
    zeros = 0
    if by_field[0]:
        tiny = magnitude[fields == 0]
        zeros = int(np.count_nonzero(tiny == 0))
        found, numbers = np.unique(np.frexp(tiny[tiny > 0])[1] - 1, return_counts=True)  # float64's subnormals
        counts.update(zip(found.tolist(), numbers.tolist(), strict=True))
    infinities = nans = 0
    if by_field[2047]:
        infinities = int(np.count_nonzero(np.isinf(magnitude)))
        nans = int(by_field[2047]) - infinities
        magnitude = magnitude[fields < 2047]
    amax = float(magnitude.max(initial=0.0))
    if zeros:
        magnitude = magnitude[magnitude > 0]
    smallest = float(magnitude.min(initial=math.inf))
    return RangeReport(tuple(sorted(counts.items())), zeros, infinities, nans, amax, smallest)
