"""Reports on collectives: errors of algorithms on the same contributions, and their growth with the number of ranks."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word


@dataclass(frozen=True, eq=False)
class CollectiveRow(EqualByValue):
    """The errors of the sums of one all-reduce algorithm, relative to exact sums of the unrounded contributions.

    Attributes:
      algorithm: name of the algorithm, with the accumulation format if it has one.
      relative_error: norm of the error / norm of the exact sums.
      max_relative: the largest |error| / |exact sum| of an element; NaN if every sum is 0.
      bias: sum of error * sign(exact sum) / sum of |exact sum|: negative where sums are too small.
      exact_share: share of elements that equal the exact sum of the rounded contributions, rounded once to the format
        (to nearest even); with average="divide_after" that rounded sum divided by the ranks and rounded again.
      order_changed: share of elements whose bits change in some permutation of the ranks; NaN if none was tried.
      order_lowest, order_highest: the smallest and largest relative_error over the given order and the permutations.
      worst_rank: the rank whose shard of the buffer has the largest relative error; as in ZeRO, rank r owns the r-th of
        `ranks` nearly equal parts of the buffer. (All ranks hold the same bits.)
      worst_rank_error: the relative error of this shard.
      not_finite: share of sums that are Inf or NaN, which the errors above leave out.
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
      differing: `differing[i][j]` is the share of elements whose bits differ between the algorithms of rows i and j.
      format: name of the format of messages between ranks.
      ranks, size: number of ranks, and of elements of a contribution.
      permutations: number of random orders of the ranks that were tried in addition to the given one.
      average: the argument `average` of `collectives.report`; None for sums.
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
        """The row of the algorithm with the smallest relative error."""
        return min(self.rows, key=lambda row: (math.isnan(row.relative_error), row.relative_error))

    @property
    def worst(self) -> CollectiveRow:
        """The row of the algorithm with the largest relative error."""
        return max(self.rows, key=lambda row: (not math.isnan(row.relative_error), row.relative_error))

    def to_frame(self, by: str = "algorithm") -> DataFrame:
        """Return a pandas DataFrame with a row for each algorithm, or for each pair of algorithms with by="pair".

        A pair's row has the names `first` and `second` and the share `differing` of elements whose bits differ.

        Raises:
          ValueError: by is another name.
        """
        require_word("by", by, ("algorithm", "pair"))
        if by == "algorithm":
            return super().to_frame()
        names = [row.algorithm for row in self.rows]
        pairs = combinations(range(len(names)), 2)
        return frame([{"first": names[i], "second": names[j], "differing": self.differing[i][j]} for i, j in pairs])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative error of each algorithm and its range over orders of ranks; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.collectives.figures import report_axes

        return report_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence with the algorithms of the largest and the smallest error, or that no error is defined."""
        best, worst = self.best, self.worst
        text = f"{plural(self.size, f'{self.format} element')} of {plural(self.ranks, 'rank')}: "
        if math.isnan(worst.relative_error):
            return text + "no relative error is defined, as all sums are 0 or not finite."
        if best.relative_error == worst.relative_error:
            name = f"{worst.algorithm} has" if len(self.rows) == 1 else f"all {len(self.rows)} algorithms have"
            text += f"{name} a relative error of {worst.relative_error:.2g}"
        else:
            text += f"{worst.algorithm} has the largest error, {worst.relative_error:.2g}, "
            text += f"{best.algorithm} the smallest, {best.relative_error:.2g}"
        if self.permutations:
            text += f"; another order of ranks changes {percent(worst.order_changed)} of {worst.algorithm}'s elements"
        return text + "."


@dataclass(frozen=True, eq=False)
class CollectiveGrowth(EqualByValue, SavedReport):
    """The growth of the errors of all-reduce algorithms with the number of ranks.

    Attributes:
      algorithms: names of the algorithms.
      ranks: numbers of ranks, ascending.
      errors: `errors[i][j]` is norm of the error / norm of the exact sums of algorithm i on `ranks[j]` ranks.
      format: name of the format of messages between ranks.
      distribution, size, seed: distribution of the contributions, their number of elements, and the seed of the draws.
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
        """Name of an algorithm -> exponent p of relative error ~ ranks ** p, by least squares.

        It is NaN if an error is 0, or there is only one number of ranks.
        """
        x = np.log(self.ranks)
        return {
            name: float(np.polyfit(x, np.log(errors), 1)[0]) if min(errors) > 0 and len(errors) > 1 else math.nan
            for name, errors in zip(self.algorithms, self.errors, strict=True)
        }

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each algorithm and number of ranks, with the relative error."""
        return frame(
            [
                {"algorithm": name, "ranks": ranks, "relative_error": error}
                for name, errors in zip(self.algorithms, self.errors, strict=True)
                for ranks, error in zip(self.ranks, errors, strict=True)
            ]
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative error of each algorithm against the number of ranks; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.collectives.figures import growth_axes

        return growth_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence: each algorithm's exponent of growth if known, and its error on the most ranks."""
        last = self.ranks[-1]
        parts = [
            f"{name} {'' if math.isnan(p) else f'~ ranks ** {round(p, 2) + 0.0:.2f} '}({errors[-1]:.2g} at {last:,})"
            for (name, p), errors in zip(self.exponents.items(), self.errors, strict=True)
        ]
        return f"relative error of {self.format} all-reduces of {self.distribution} terms: {'; '.join(parts)}."

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the text of `str()`, and a table of errors by algorithm and number of ranks."""
        head = ("algorithm", *(f"{n:,} ranks" for n in self.ranks))
        rows = ((name, *errors) for name, errors in zip(self.algorithms, self.errors, strict=True))
        return f"<p>{html.escape(str(self))}</p>{html_table(head, rows)}"
