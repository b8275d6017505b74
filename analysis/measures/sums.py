"""Sums behind the metrics of an error: counts, float64 sums and maxima, which add up over the parts of an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# The compared elements are those whose input and result are both finite.
COUNTS = (
    "count", "compared", "nonzero", "underflow", "subnormal", "overflow", "saturation", "finite_saturation", "nan",
    "exact",
)  # fmt: skip

# Over the compared elements: sums of x**2, of x times result, of result - x, of |result - x| in ulps and relative to
# |x|; and of (result - x)**2, apart for results that are normal, subnormal, zero, and the largest value for an input
# beyond the range.
TOTALS = (
    "signal", "product", "error", "ulps", "relative", "normal_noise", "subnormal_noise", "lost", "clipped",
)  # fmt: skip

MAXIMA = ("max_ulp", "max_relative")


@dataclass(frozen=True, eq=False, slots=True)
class ErrorSums:
    """The sums of one array, or of each of its parts: arrays with one more axis than there are axes of parts.

    Attributes:
      counts: int64, (..., COUNTS).
      totals: float64, (..., TOTALS, 2): a sum and what its rounding left over.
      maxima: float64, (..., MAXIMA); -1 without data.
    """

    counts: npt.NDArray[np.int64]
    totals: npt.NDArray[np.float64]
    maxima: npt.NDArray[np.float64]

    def __eq__(self, other: object) -> bool:
        """Return whether all numbers are the same."""
        return isinstance(other, ErrorSums) and self._bytes() == other._bytes()

    def __hash__(self) -> int:
        return hash(self._bytes())

    def _bytes(self) -> tuple[bytes, ...]:
        """Return the memory of the sums, by which two are compared bit by bit."""
        return self.counts.tobytes(), self.totals.tobytes(), self.maxima.tobytes()

    def __getitem__(self, name: str) -> Any:
        """Return a count, sum or maximum by its name; NaN for the maximum of nothing."""
        if name in COUNTS:
            return self.counts[..., COUNTS.index(name)]
        if name in TOTALS:
            return self.totals[..., TOTALS.index(name), :].sum(axis=-1)
        largest = self.maxima[..., MAXIMA.index(name)]
        return np.where(largest < 0, np.nan, largest)

    @property
    def noise(self) -> Any:
        """Sum of (result - x)**2 over the compared elements."""
        return self["normal_noise"] + self["subnormal_noise"] + self["lost"] + self["clipped"]

    def merge(self, other: ErrorSums) -> ErrorSums:
        """Return the sums of both: exact counts and maxima, and others with an error of 10**-32 of their terms."""
        counts = np.stack([self.counts, other.counts])
        totals, maxima = np.stack([self.totals, other.totals]), np.stack([self.maxima, other.maxima])
        return ErrorSums(counts, totals, maxima).over_first_axis()

    def over_first_axis(self) -> ErrorSums:
        """Return the sums over the first axis of parts, added in its order."""
        if len(self.counts) == 1:  # of a small array, whose time is that of calls like these
            return ErrorSums(self.counts[0], self.totals[0], self.maxima[0])
        total, rest = self.totals[0, ..., 0].copy(), self.totals[0, ..., 1].copy()
        with np.errstate(all="ignore"):
            for term, left_over in zip(self.totals[1:, ..., 0], self.totals[1:, ..., 1], strict=True):
                added = total + term
                back = added - total
                lost = (total - (added - back)) + (term - back)
                rest += np.where(np.isfinite(added), lost, 0.0) + left_over
                total = added
        return ErrorSums(self.counts.sum(axis=0), np.stack([total, rest], axis=-1), self.maxima.max(axis=0))


def nothing(parts: tuple[int, ...] = ()) -> ErrorSums:
    """Return the sums of no data, for an array of parts of the shape `parts`."""
    return ErrorSums(
        np.zeros((*parts, len(COUNTS)), np.int64),
        np.zeros((*parts, len(TOTALS), 2)),
        np.full((*parts, len(MAXIMA)), -1.0),
    )
