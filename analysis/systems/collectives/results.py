"""Reports on collectives: errors of algorithms on one buffer, and their growth with the number of ranks."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

import numpy as np

from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import percent
from fpsim.errors import require_word


@dataclass(frozen=True)
class CollectiveRow:
    """The error of the sums of one algorithm, compared with the exact sums.

    Attributes:
      algorithm: name of the algorithm, with the accumulation format if it has one.
      relative_error: norm of the error / norm of the exact sums.
      max_relative: the largest |error| / |exact sum| of an element; NaN where every sum is 0.
      bias: sum of errors away from zero / sum of |exact sum|: negative where sums are too small.
      exact_share: share of elements that equal the correctly rounded exact sum.
      order_changed: share of elements whose bits change in some permutation of the ranks; NaN if none was tried.
      order_lowest, order_highest: the smallest and largest relative_error over the permutations.
      worst_rank: the rank whose shard of the buffer has the largest relative error; shards are those of ZeRO: n / ranks
        elements in ascending order. All ranks hold the same bits.
      worst_rank_error: the relative error of this shard.
      not_finite: share of sums that are Inf or NaN; the metrics above are of the others.
    """

    algorithm: str
    relative_error: float
    max_relative: float
    bias: float
    exact_share: float
    order_changed: float
    order_lowest: float
    order_highest: float
    worst_rank: int
    worst_rank_error: float
    not_finite: float


@dataclass(frozen=True)
class CollectiveReport(SavedReport):
    """A comparison of the sums that several algorithms compute from the same contributions.

    Attributes:
      rows: a CollectiveRow for each algorithm.
      differing: for each algorithm a tuple with the share of elements whose bits differ from each other algorithm's.
      format: the travelling format.
      ranks, size: number of ranks, and of elements of a contribution.
      permutations: number of random orders of the ranks that were tried in addition to the given one.
      average: None, or the way in which the mean was taken.
    """

    KIND = "a report on collectives"
    ROW = CollectiveRow

    rows: tuple[CollectiveRow, ...]
    differing: tuple[tuple[float, ...], ...]
    format: str
    ranks: int
    size: int
    permutations: int
    average: str | None

    @property
    def best(self) -> CollectiveRow:
        """The row with the smallest relative error."""
        return min(self.rows, key=lambda row: _or(row.relative_error, math.inf))

    @property
    def worst(self) -> CollectiveRow:
        """The row with the largest relative error."""
        return max(self.rows, key=lambda row: _or(row.relative_error, -math.inf))

    def to_frame(self, by: str = "algorithm") -> DataFrame:
        """Return a pandas DataFrame: a row for each algorithm, or with by="pair" the share of bits that differ.

        Raises:
          ValueError: by is another name.
        """
        require_word("by", by, ("algorithm", "pair"))
        if by == "algorithm":
            return super().to_frame()
        names = [row.algorithm for row in self.rows]
        return frame(
            [
                {"first": a, "second": b, "differing": self.differing[i][j]}
                for i, a in enumerate(names)
                for j, b in enumerate(names)
                if i < j
            ]
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative error of each algorithm and its range over orders, and return the matplotlib axes."""
        from fpsim.analysis.systems.collectives.figures import report_axes

        return report_axes(self, ax)

    def __str__(self) -> str:
        """Return the best and the worst algorithm in a sentence."""
        best, worst = self.best, self.worst
        if math.isnan(worst.relative_error):
            return (
                f"{self.size:,} {self.format} elements of {self.ranks:,} ranks: no relative error is defined, as all "
                "sums are 0 or not finite."
            )
        text = (
            f"{self.size:,} {self.format} elements of {self.ranks:,} ranks: {worst.algorithm} has the largest error, "
            f"{worst.relative_error:.2g}, {best.algorithm} the smallest, {best.relative_error:.2g}"
        )
        if self.permutations:
            text += f"; another order of ranks changes {percent(worst.order_changed)} of {worst.algorithm}'s elements"
        return text + "."


def _or(value: float, instead: float) -> float:
    """Return a value, or `instead` if the value is NaN."""
    return instead if math.isnan(value) else value


@dataclass(frozen=True)
class CollectiveGrowth(SavedReport):
    """The error of algorithms against the number of ranks.

    Attributes:
      algorithms: names of the algorithms.
      ranks: numbers of ranks, ascending.
      errors: for each algorithm a tuple with the relative error (of norms) for each number of ranks.
      format, distribution, size, seed: the travelling format, the distribution of the contributions, their number of
        elements, and the seed of the draws.
    """

    KIND = "a report on the growth of collectives' errors"

    algorithms: tuple[str, ...]
    ranks: tuple[int, ...]
    errors: tuple[tuple[float, ...], ...]
    format: str
    distribution: str
    size: int
    seed: int

    @property
    def exponents(self) -> dict[str, float]:
        """Exponent p of error ~ ranks ** p for each algorithm, by least squares; NaN where errors are 0."""
        x = np.log(self.ranks)
        return {
            name: float(np.polyfit(x, np.log(errors), 1)[0]) if min(errors) > 0 and len(errors) > 1 else math.nan
            for name, errors in zip(self.algorithms, self.errors, strict=True)
        }

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame of a row for each algorithm and number of ranks."""
        return frame(
            [
                {"algorithm": name, "ranks": ranks, "relative_error": error}
                for name, errors in zip(self.algorithms, self.errors, strict=True)
                for ranks, error in zip(self.ranks, errors, strict=True)
            ]
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the error of each algorithm against the ranks, and return the matplotlib axes."""
        from fpsim.analysis.systems.collectives.figures import growth_axes

        return growth_axes(self, ax)

    def __str__(self) -> str:
        """Return the growth of each algorithm in a sentence."""
        last = self.ranks[-1]
        parts = [
            f"{name} ~ ranks ** {round(p, 2) + 0.0:.2f} ({errors[-1]:.2g} at {last:,})"
            for (name, p), errors in zip(self.exponents.items(), self.errors, strict=True)
        ]
        return f"relative error of {self.format} all-reduces of {self.distribution} terms: {'; '.join(parts)}."

    def _repr_html_(self) -> str:
        """Return the answer and the errors by algorithm as HTML for notebooks."""
        head = ("algorithm", *(f"{n:,} ranks" for n in self.ranks))
        rows = ((name, *errors) for name, errors in zip(self.algorithms, self.errors, strict=True))
        return f"<p>{html.escape(str(self))}</p>{html_table(head, rows)}"
