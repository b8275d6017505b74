"""The range of an array's values: counts by magnitude, quantiles, and the share inside a format's range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.magnitude_loops import BINS, BINS_PER_BINADE, LOWEST_EXPONENT, histogram_kernel
from fpsim.analysis.measures.parts import Layout
from fpsim.analysis.measures.passes import float_pieces
from fpsim.arrays import Array, float_array, without_gradient
from fpsim.display.optional import Axes, DataFrame, frame, load
from fpsim.display.tables import html_pairs
from fpsim.display.wording import plural, power_of_two
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import format as find_format
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.threads import over_spans

QUANTILES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, eq=False, repr=False)
class RangeParts:
    """The range of each channel or block of an array, as arrays with one number for each.

    Attributes:
      name: "channel" or "block".
      places: the index of each part along the axis, or its indices in the grid of blocks.
      amax: largest finite magnitude; 0 if there is none.
      smallest: smallest finite magnitude other than 0; Inf if there is none.
      zeros: share of zeros.
    """

    name: str
    places: tuple[Any, ...]
    amax: npt.NDArray[np.float64]
    smallest: npt.NDArray[np.float64]
    zeros: npt.NDArray[np.float64]

    @property
    def dynamic_range(self) -> npt.NDArray[np.float64]:
        """Dynamic range of each part, log2(amax / smallest), in binades; NaN without a finite value other than 0."""
        with np.errstate(all="ignore"):
            return np.where(self.amax > 0, np.log2(self.amax) - np.log2(self.smallest), np.nan)

    def __len__(self) -> int:
        return len(self.places)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each part."""
        columns = {"amax": self.amax, "smallest": self.smallest, "zeros": self.zeros}
        columns["dynamic_range"] = self.dynamic_range
        return load("pandas", "to_frame()").DataFrame({self.name: list(self.places), **columns})

    def __repr__(self) -> str:
        return f"<ranges of {plural(len(self), self.name)}>"


@dataclass(frozen=True)
class RangeReport:
    """Counts of an array's elements by magnitude; `merge` adds those of another part.

    Attributes:
      bins: pairs (32 * exponent + part, count), ascending: the non-empty ones of the 32 equal parts of each binade.
      zeros, infinities, nans: their numbers; -0 is a zero.
      amax: largest finite magnitude; 0 if there is none.
      smallest: smallest non-zero magnitude; Inf if there is none.
      parts: the ranges of channels or blocks, where `axis` or `block` asked for them.
    """

    bins: tuple[tuple[int, int], ...]
    zeros: int
    infinities: int
    nans: int
    amax: float
    smallest: float
    parts: RangeParts | None = None

    @cached_property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Pairs (exponent, count) of the exponents floor(log2|x|) that occur, ascending."""
        counts: dict[int, int] = {}
        for place, number in self.bins:
            exponent = place // BINS_PER_BINADE
            counts[exponent] = counts.get(exponent, 0) + number
        return tuple(counts.items())

    @cached_property
    def count(self) -> int:
        """Number of all elements."""
        return sum(number for _, number in self.bins) + self.zeros + self.infinities + self.nans

    @property
    def dynamic_range(self) -> float:
        """Dynamic range, log2(amax / smallest), in binades; NaN without a finite value other than 0."""
        return math.log2(self.amax) - math.log2(self.smallest) if self.amax > 0 else math.nan

    def quantile(self, share: float) -> int | None:
        """Return the exponent that `share` (0 to 1) of the non-zero finite elements do not exceed; None for none."""
        place = self._place(share)
        return None if place is None else place // BINS_PER_BINADE

    def magnitude(self, share: float) -> float:
        """Return the magnitude that `share` (0 to 1) of the non-zero finite elements do not exceed; NaN for none.

        It is rounded up to a 32nd of a binade, by at most 3.1 %.

        Example:
          >>> import fpsim as fp
          >>> fp.analysis.range(np.float32([1, 2, 4, 1000])).magnitude(0.5)
          2.0625
        """
        place = self._place(share)
        if place is None:
            return math.nan
        exponent, part = divmod(place, BINS_PER_BINADE)
        return min(math.ldexp(1 + (part + 1) / BINS_PER_BINADE, exponent), self.amax)

    def _place(self, share: float) -> int | None:
        """Return the lowest bin with `share` of the non-zero finite elements in it or below; None if there are none."""
        total = sum(number for _, number in self.bins)
        seen = 0
        for place, number in self.bins:
            seen += number
            if seen >= share * total:
                return place
        return None

    @property
    def quantiles(self) -> dict[float, float]:
        """Magnitudes that 0.1, 1, 10, 50, 90, 99 and 99.9 % of the non-zero finite elements do not exceed."""
        return {share: self.magnitude(share) for share in QUANTILES}

    def shares(self, fmt: FormatLike) -> dict[str, float]:
        """Return the shares of all elements below, inside and above a format's range, counted by whole exponents.

        Returns:
          "below": non-zero, below the smallest subnormal; "subnormal"; "normal", which includes everything in the
          binade of the largest value; "above" that binade.

        Example:
          >>> import fpsim as fp
          >>> fp.analysis.exponents(np.float32([2.0**-12, 2.0**-8, 1.0, 512.0])).shares(fp.E4M3)
          {'below': 0.25, 'subnormal': 0.25, 'normal': 0.25, 'above': 0.25}
        """
        target = find_format(fmt)
        lowest, top = (math.frexp(value)[1] - 1 for value in (target.smallest_subnormal, target.max))
        parts = dict.fromkeys(("below", "subnormal", "normal", "above"), 0)
        for exponent, number in self.counts:
            if exponent < lowest:
                parts["below"] += number
            elif exponent < target.min_exponent:
                parts["subnormal"] += number
            else:
                parts["normal" if exponent <= top else "above"] += number
        return {name: number / self.count if self.count else math.nan for name, number in parts.items()}

    def merge(self, other: RangeReport) -> RangeReport:
        """Return the report of both parts together, which is exact."""
        bins = dict(self.bins)
        for place, number in other.bins:
            bins[place] = bins.get(place, 0) + number
        return RangeReport(
            tuple(sorted(bins.items())),
            self.zeros + other.zeros,
            self.infinities + other.infinities,
            self.nans + other.nans,
            max(self.amax, other.amax),
            min(self.smallest, other.smallest),
        )

    def __str__(self) -> str:
        """Return the number of values, their range and the special values in one line.

        Example:
          >>> import fpsim as fp
          >>> print(fp.analysis.range(np.float32([0.75, -1.5, 1.0, 0.0, np.nan])))
          5 values from 2⁻¹ to 2⁰, 1 binade; 1 zero, 1 NaN
        """
        if not self.amax > 0:
            spread = "none finite but 0"
        else:
            binades = plural(round(self.dynamic_range), "binade")
            spread = f"from {power_of_two(self.smallest)} to {power_of_two(self.amax)}, {binades}"
        kinds = ((self.zeros, "zero"), (self.infinities, "Inf"), (self.nans, "NaN"))
        special = ", ".join(plural(n, kind) if kind == "zero" else f"{n:,} {kind}" for n, kind in kinds if n)
        return f"{plural(self.count, 'value')} {spread}" + (f"; {special}" if special else "")

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: exponent, count and share of all elements, or a row for each channel or block."""
        if self.parts is not None:
            return self.parts.to_frame()
        return frame([{"exponent": e, "count": n, "share": n / self.count} for e, n in self.counts])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the histogram over the formats' ranges, and return the matplotlib axes."""
        from fpsim.analysis.measures.exponent_figure import exponent_axes

        return exponent_axes([("", self)], ax=ax)

    def _repr_html_(self) -> str:
        """Return counts, limits and quantiles as an HTML table for notebooks."""
        rows = {"values": f"{self.count:,}", "zeros": f"{self.zeros:,}", "NaN": f"{self.nans:,}"}
        rows |= {"Inf": f"{self.infinities:,}", "amax": f"{self.amax:.6g}", "smallest": f"{self.smallest:.6g}"}
        rows |= {f"{100 * share:g} % up to": f"{value:.4g}" for share, value in self.quantiles.items()}
        return html_pairs(rows)


EMPTY = RangeReport((), 0, 0, 0, 0.0, math.inf)


def range(x: npt.ArrayLike, *, axis: int | None = None, block: tuple[int, ...] | None = None) -> RangeReport:
    """Count the elements of an array by their magnitude.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape; nothing of its size is
        allocated.
      axis: also give the range of each index along that axis, in `parts`.
      block: also give the range of each block of that shape of the last axes, as in `fp.Scaling`; -1 is a whole axis.
    Returns:
      A RangeReport: counts by magnitude from 2**-1074 on, counts of zeros, infinities and NaNs, extremes and quantiles.
    Raises:
      TypeError: x is not an array of floats.
      ValueError: axis and block are both given, or x has no such axis or block.

    Example:
      >>> import fpsim as fp
      >>> r = fp.analysis.range(np.float32([0.75, -1.5, 1.0, -0.0, np.nan]))
      >>> r.counts, r.zeros, r.nans, r.amax, r.smallest
      (((-1, 1), (0, 2)), 1, 1, 1.5, 0.75)
      >>> fp.analysis.range(np.float32([[1, 8], [2, 2]]), axis=0).parts.dynamic_range
      array([3., 0.])
    """
    array, _ = float_array(without_gradient(x))
    layout = Layout(array.shape, axis, block) if axis is not None or block is not None else None
    report = range_of_pieces(float_pieces(array))
    if layout is None:
        return report
    return dataclasses.replace(report, parts=_ranges_of_parts(array, layout))


exponents = range  # its first name


def _ranges_of_parts(x: Array, layout: Layout) -> RangeParts:
    """Return the ranges of the channels or blocks of `x` that a layout divides it into."""
    amax, smallest, zeros = np.zeros(layout.count), np.full(layout.count, math.inf), np.zeros(layout.count)
    sizes = np.zeros(layout.count)
    for slab in layout.slabs():
        size = np.abs(layout.gather(x, slab).astype(np.float64))
        at = slice(slab.first, slab.first + slab.number)
        finite = np.isfinite(size)
        amax[at] = np.maximum(amax[at], size.max(axis=1, initial=0.0, where=finite))
        smallest[at] = np.minimum(smallest[at], size.min(axis=1, initial=math.inf, where=finite & (size > 0)))
        zeros[at] += np.count_nonzero(size == 0, axis=1)
        sizes[at] += size.shape[1]
    places = layout.places()
    with np.errstate(all="ignore"):
        return RangeParts(layout.name, places, amax, smallest, zeros / sizes)


class Histogram:
    """Counts of magnitudes, to which pieces of an array are added."""

    def __init__(self) -> None:
        self.table = np.zeros(BINS, np.int64)
        self.specials = np.zeros(3, np.int64)  # zeros, infinities, NaNs
        self.extremes = np.array([0.0, math.inf])  # largest and smallest finite magnitude but 0

    def add(self, pieces: Iterable[Array]) -> None:
        """Count 1-d pieces of float32 or float64."""
        with wrapping():
            for piece in pieces:
                histogram_kernel(piece.dtype.itemsize * 8)(piece, self.table, self.specials, self.extremes)

    def report(self) -> RangeReport:
        """Return the counts so far as a RangeReport."""
        used = self._used()
        places = np.flatnonzero(self.table[used]) + used.start
        bins = zip((places + LOWEST_EXPONENT * BINS_PER_BINADE).tolist(), self.table[places].tolist(), strict=True)
        zeros, infinities, nans = self.specials.tolist()
        largest, smallest = self.extremes.tolist()
        return RangeReport(tuple(bins), zeros, infinities, nans, largest, smallest)

    def clear(self) -> None:
        """Set all counts to zero."""
        self.table[self._used()] = 0
        self.specials[:] = 0
        self.extremes[:] = 0.0, math.inf

    def _used(self) -> slice:
        """Return the slice of the table from the smallest to the largest magnitude; counts are zero elsewhere."""
        largest, smallest = self.extremes.tolist()
        if largest == 0:
            return slice(0, 0)
        low, high = ((math.frexp(x)[1] - 1 - LOWEST_EXPONENT) * BINS_PER_BINADE for x in (smallest, largest))
        return slice(low, high + BINS_PER_BINADE)


def range_of_pieces(pieces: Iterable[Array]) -> RangeReport:
    """Return the range of an array given as 1-d pieces of float32 or float64, counted on all cores."""
    idle: list[Histogram] = []  # one for each thread: their tables are larger than a piece
    batch: list[Array] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) == BATCH:
            _count_batch(batch, idle)
            batch = []
    _count_batch(batch, idle)
    report = EMPTY
    for histogram in idle:  # in any order: counts and extremes do not depend on it
        report = report.merge(histogram.report())
    return report


BATCH = 16  # pieces that are counted at once


def _count_batch(batch: list[Array], idle: list[Histogram]) -> None:
    """Count a batch of pieces on several threads, each with a histogram from `idle` or a new one."""

    def work(start: int, stop: int) -> None:
        try:
            histogram = idle.pop()
        except IndexError:
            histogram = Histogram()
        histogram.add(batch[start:stop])
        idle.append(histogram)

    over_spans(len(batch), work, alignment=1, weight=2.0 * max((piece.size for piece in batch), default=0))
