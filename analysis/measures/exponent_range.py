"""`fp.analysis.range`: counts an array's elements by magnitude, for quantiles and shares inside a format's range."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.measures.magnitude_loops import BINS, BINS_PER_BINADE, LOWEST_EXPONENT, histogram_kernel
from fpsim.analysis.measures.parts import Layout
from fpsim.analysis.measures.passes import as_floats, float_pieces
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
class RangeParts(EqualByValue):
    """The range of each channel or block of an array: arrays with one number for each.

    Attributes:
      name: "channel" (an index along an axis) or "block".
      places: the index of each channel along the axis, or the indices of each block in the grid of blocks.
      amax: largest finite magnitude; 0 if there is none.
      smallest: smallest finite magnitude other than 0; Inf if there is none.
      zeros: zeros as a share of the elements of the channel or block.
    """

    name: str
    places: tuple[Any, ...]
    amax: npt.NDArray[np.float64]
    smallest: npt.NDArray[np.float64]
    zeros: npt.NDArray[np.float64]

    @property
    def dynamic_range(self) -> npt.NDArray[np.float64]:
        """Dynamic range of each channel or block, log2(amax / smallest), in binades; NaN without finite nonzeros."""
        with np.errstate(all="ignore"):
            return np.where(self.amax > 0, np.log2(self.amax) - np.log2(self.smallest), np.nan)

    def __len__(self) -> int:
        return len(self.places)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each channel or block: amax, smallest, zeros, dynamic_range."""
        columns = {"amax": self.amax, "smallest": self.smallest, "zeros": self.zeros}
        columns["dynamic_range"] = self.dynamic_range
        return load("pandas", "to_frame()").DataFrame({self.name: list(self.places), **columns})

    def __repr__(self) -> str:
        return f"<ranges of {plural(len(self), self.name)}>"


@dataclass(frozen=True)
class RangeReport:
    """Counts of an array's elements by magnitude; `merge` adds the counts of another part of the array.

    Attributes:
      bins: pairs (32 * exponent + i, count), ascending, for the non-empty bins. Each binade is divided into 32 bins of
        equal width, i = 0 .. 31.
      zeros, infinities, nans: numbers of zeros (0 and -0), of Inf and -Inf, and of NaNs.
      amax: largest finite magnitude; 0 if there is none.
      smallest: smallest magnitude other than 0; Inf if there is none.
      parts: the ranges of channels or blocks; None unless `axis` or `block` was given.
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
        """Pairs (exponent, count), ascending, for each exponent floor(log2|x|) of a finite element other than 0."""
        counts = Counter[int]()
        for place, number in self.bins:
            counts[place // BINS_PER_BINADE] += number
        return tuple(counts.items())

    @cached_property
    def count(self) -> int:
        """Number of all elements of the array."""
        return sum(number for _, number in self.bins) + self.zeros + self.infinities + self.nans

    @property
    def dynamic_range(self) -> float:
        """Dynamic range of the array, log2(amax / smallest), in binades; NaN without a finite value other than 0."""
        return math.log2(self.amax) - math.log2(self.smallest) if self.amax > 0 else math.nan

    def quantile(self, share: float) -> int | None:
        """Return the lowest exponent that `share` (0 to 1) of the nonzero finite elements do not exceed.

        Return None if there are no such elements.
        """
        place = self._place(share)
        return None if place is None else place // BINS_PER_BINADE

    def magnitude(self, share: float) -> float:
        """Return a magnitude that `share` (0 to 1) of the nonzero finite elements do not exceed.

        The magnitude is rounded up to the end of a bin, a 32nd of a binade, by at most 3.1 %. Return NaN if there are
        no such elements.

        Example:
          >>> import fpsim as fp
          >>> fp.analysis.range(np.float32([1, 2, 4, 1000])).magnitude(0.5)
          2.0625
        """
        place = self._place(share)
        if place is None:
            return math.nan
        exponent, part = divmod(place, BINS_PER_BINADE)
        start, width = math.ldexp(1 + part / BINS_PER_BINADE, exponent), math.ldexp(1 / BINS_PER_BINADE, exponent)
        return min(start + width, self.amax)  # the sum is Inf for the last bin of float64

    def _place(self, share: float) -> int | None:
        """Return the lowest bin that, with all lower bins, holds `share` (0 to 1) of the nonzero finite elements.

        Return None if the array has no nonzero finite elements. The bin is a number 32 * exponent + i, as in `bins`:
        each binade is divided into 32 bins, i = 0 .. 31.
        """
        total = sum(number for _, number in self.bins)
        seen = 0
        for place, number in self.bins:
            seen += number
            if seen >= share * total:
                return place
        return None

    @property
    def quantiles(self) -> dict[float, float]:
        """Dict {share: `magnitude(share)`} for the shares 0.001, 0.01, 0.1, 0.5, 0.9, 0.99 and 0.999."""
        return {share: self.magnitude(share) for share in QUANTILES}

    def shares(self, fmt: FormatLike) -> dict[str, float]:
        """Return the shares of all elements below, inside and above a format's range, counted by whole exponents.

        Returns:
          Shares of all elements: "below": nonzero elements below the smallest subnormal; "subnormal"; "normal", up to
          the end of the binade of the largest value; "above": finite elements above that binade. NaN for an empty
          array.

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
        """Return the report on the data of `self` and `other` together, with exact counts and without `parts`."""
        bins = Counter(dict(self.bins)) + Counter(dict(other.bins))
        return RangeReport(
            tuple(sorted(bins.items())),
            self.zeros + other.zeros,
            self.infinities + other.infinities,
            self.nans + other.nans,
            max(self.amax, other.amax),
            min(self.smallest, other.smallest),
        )

    def __str__(self) -> str:
        """Return one line of text: the number of values, their range, and numbers of zeros, Inf and NaN.

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
        """Return a pandas DataFrame with a row for each exponent: exponent, count, share of all elements.

        If the report has `parts`, return their frame instead, with a row for each channel or block.
        """
        if self.parts is not None:
            return self.parts.to_frame()
        return frame([{"exponent": e, "count": n, "share": n / self.count} for e, n in self.counts])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the histogram of exponents over ranges of formats; return the matplotlib axes (ax None: new ones)."""
        from fpsim.analysis.measures.exponent_figure import exponent_axes

        return exponent_axes([("", self)], ax=ax)

    def _repr_html_(self) -> str:
        """Return counts, extreme magnitudes and quantiles as an HTML table for notebooks."""
        rows = {"values": f"{self.count:,}", "zeros": f"{self.zeros:,}", "NaN": f"{self.nans:,}"}
        rows |= {"Inf": f"{self.infinities:,}", "amax": f"{self.amax:.6g}", "smallest": f"{self.smallest:.6g}"}
        rows |= {f"{100 * share:g} % up to": f"{value:.4g}" for share, value in self.quantiles.items()}
        return html_pairs(rows)


EMPTY = RangeReport((), 0, 0, 0, 0.0, math.inf)


def range(x: npt.ArrayLike, *, axis: int | None = None, block: tuple[int, ...] | None = None) -> RangeReport:
    """Count the elements of an array by their magnitude.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape; no copy of x is allocated.
      axis: an axis; the range of each index along it is also measured, and returned as the report's `parts`.
      block: the shape of blocks in the last axes, as in `fp.Scaling`, where -1 is a whole axis, and a first size of -1
        covers all earlier axes as well; the range of each block is also measured, and returned as `parts`.
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


exponents = range  # earlier name, kept as an alias


def _ranges_of_parts(x: Array, layout: Layout) -> RangeParts:
    """Return amax, smallest magnitude and share of zeros of each channel or block into which `layout` divides x."""
    amax, smallest, zeros = np.zeros(layout.count), np.full(layout.count, math.inf), np.zeros(layout.count)
    sizes = np.zeros(layout.count)
    for slab in layout.slabs():
        size = np.abs(as_floats(layout.gather(x, slab)))
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
    """Running counts of magnitudes: `add` counts pieces of an array, and `report` returns the counts so far."""

    def __init__(self) -> None:
        self.table = np.zeros(BINS, np.int64)
        self.specials = np.zeros(3, np.int64)  # zeros, infinities, NaNs
        self.extremes = np.array([0.0, math.inf])  # largest finite and smallest nonzero magnitude

    def add(self, pieces: Iterable[Array]) -> None:
        """Count the elements of 1-d pieces of float32 or float64."""
        with wrapping():
            for piece in pieces:
                histogram_kernel(piece.dtype.itemsize * 8)(piece, self.table, self.specials, self.extremes)

    def report(self) -> RangeReport:
        """Return the counts of all pieces added so far as a RangeReport."""
        used = self._used()
        places = np.flatnonzero(self.table[used]) + used.start
        bins = zip((places + LOWEST_EXPONENT * BINS_PER_BINADE).tolist(), self.table[places].tolist(), strict=True)
        zeros, infinities, nans = self.specials.tolist()
        largest, smallest = self.extremes.tolist()
        return RangeReport(tuple(bins), zeros, infinities, nans, largest, smallest)

    def clear(self) -> None:
        """Set all counts of the histogram to zero."""
        self.table[self._used()] = 0
        self.specials[:] = 0
        self.extremes[:] = 0.0, math.inf

    def _used(self) -> slice:
        """Return the slice of `table` from the smallest to the largest magnitude; outside it, all counts are zero."""
        largest, smallest = self.extremes.tolist()
        if largest == 0:
            return slice(0, 0)
        low, high = ((math.frexp(x)[1] - 1 - LOWEST_EXPONENT) * BINS_PER_BINADE for x in (smallest, largest))
        return slice(low, high + BINS_PER_BINADE)


def range_of_pieces(pieces: Iterable[Array]) -> RangeReport:
    """Return the RangeReport of an array that is given as 1-d pieces of float32 or float64; counts on all cores."""
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
    """Count a batch of pieces on several threads, each of which adds to one histogram of `idle`.

    A thread takes a histogram from `idle`, or makes one if `idle` is empty, and appends it to `idle` at the end.
    """

    def work(start: int, stop: int) -> None:
        try:
            histogram = idle.pop()
        except IndexError:
            histogram = Histogram()
        histogram.add(batch[start:stop])
        idle.append(histogram)

    over_spans(len(batch), work, alignment=1, weight=2.0 * max((piece.size for piece in batch), default=0))
