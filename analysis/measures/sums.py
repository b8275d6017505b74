"""Counts, float64 sums and maxima from which the metrics of rounding errors are computed.

The sums of an array are the sums of its parts together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# The compared elements are the elements whose input and result are both finite.
COUNTS = (
    "count", "compared", "nonzero", "underflow", "subnormal", "overflow", "saturation", "finite_saturation", "nan",
    "exact",
)  # fmt: skip

# Over the compared elements: sums of x**2, of x * result, of result - x, of |result - x| in ulps, |result - x| / |x|;
# and sums of (result - x)**2, separately for results that are normal, subnormal, zero, or the largest value for an x
# beyond the range.
TOTALS = (
    "signal", "product", "error", "ulps", "relative", "normal_noise", "subnormal_noise", "lost", "clipped",
)  # fmt: skip

MAXIMA = ("max_ulp", "max_relative")


@dataclass(frozen=True, eq=False, slots=True)
class ErrorSums:
    """Counts, sums and maxima of the rounding errors of an array, or of each of its parts.

    Leading axes are those of the parts, such as (channels,); there are none for a whole array.

    Attributes:
      counts: int64, (..., len(COUNTS)), in the order of the names COUNTS.
      totals: float64, (..., len(TOTALS), 2), in the order of TOTALS: a sum, and the rounding error of that sum
        (compensated summation).
      maxima: float64, (..., len(MAXIMA)), in the order of MAXIMA; -1 without data.
    """

    counts: npt.NDArray[np.int64]
    totals: npt.NDArray[np.float64]
    maxima: npt.NDArray[np.float64]

    def __eq__(self, other: object) -> bool:
        """Return whether all numbers are equal bit by bit."""
        return isinstance(other, ErrorSums) and self._bytes() == other._bytes()

    def __hash__(self) -> int:
        return hash(self._bytes())

    def _bytes(self) -> tuple[bytes, ...]:
        """Return the bytes of counts, totals and maxima, for comparison bit by bit."""
        return self.counts.tobytes(), self.totals.tobytes(), self.maxima.tobytes()

    def __getitem__(self, name: str) -> Any:
        """Return the count, sum or maximum called `name` in COUNTS, TOTALS or MAXIMA, as an array of the leading axes.

        A maximum without data is NaN.
        """
        if name in COUNTS:
            return self.counts[..., COUNTS.index(name)]
        if name in TOTALS:
            return self.totals[..., TOTALS.index(name), :].sum(axis=-1)
        largest = self.maxima[..., MAXIMA.index(name)]
        return np.where(largest < 0, np.nan, largest)

    @property
    def noise(self) -> Any:
        """Sum of (result - x)**2 over the elements whose x and result are finite, for the array or each part."""
        return self["normal_noise"] + self["subnormal_noise"] + self["lost"] + self["clipped"]

    def merge(self, other: ErrorSums) -> ErrorSums:
        """Return the sums of the data of `self` and `other` together.

        Counts and maxima are exact; totals have errors of about 10**-32 relative to their terms.
        """
        counts = np.stack([self.counts, other.counts])
        totals, maxima = np.stack([self.totals, other.totals]), np.stack([self.maxima, other.maxima])
        return ErrorSums(counts, totals, maxima).over_first_axis()

    def over_first_axis(self) -> ErrorSums:
        """Return the sums of all parts along the first axis together, added in their order."""
        if len(self.counts) == 1:  # small arrays, for which the operations below would take most of the time
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
    """Return an ErrorSums to which no element has been added yet: counts and totals are 0, maxima are -1.

    parts: the leading axes of its arrays, such as (channels,); () for the sums of a whole array.
    """
    return ErrorSums(
        np.zeros((*parts, len(COUNTS)), np.int64),
        np.zeros((*parts, len(TOTALS), 2)),
        np.full((*parts, len(MAXIMA)), -1.0),
    )
