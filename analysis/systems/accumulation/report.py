"""The report on sums of gradients of micro-batches: a row for each way of adding and number of micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.arrays import Array
from fpsim.display.optional import Axes
from fpsim.display.tables import html_table
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word

LARGE = "large batch"


@dataclass(frozen=True, eq=False)
class AccumulationRow(EqualByValue):
    """The errors of the mean gradient of the first micro-batches, compared with their float64 mean.

    Attributes:
      way: name of the way of adding: the format of a micro-batch's gradient, and the format of the sums.
      micro_batches: number of micro-batches in the mean.
      relative_error: norm of the difference from the float64 mean / norm of the float64 mean; NaN where this norm is 0
        or elements overflowed.
      bias: sum of (mean - float64 mean) * sign(float64 mean) / sum of |float64 mean|: -0.5 says that half of the
        gradient is lost; NaN where `relative_error` is NaN.
      unchanged: share of the elements of the sum that the last micro-batch did not change, although its gradient of
        that element is not 0.
      overflowed: share of the elements that are Inf or NaN.
      equal: share of the elements whose bits equal those of the large batch's gradient (all examples as one batch);
        NaN without a large batch, and in rows that do not include all micro-batches.
      drift: norm of the difference from the large batch's gradient / norm of that gradient; NaN where `equal` is NaN.
    """

    way: str
    micro_batches: int
    relative_error: float
    bias: float
    unchanged: float
    overflowed: float
    equal: float = math.nan
    drift: float = math.nan


@dataclass(frozen=True)
class AccumulationReport(SavedReport):
    """The errors of gradients that are added micro-batch by micro-batch, in several formats of terms and sums.

    Attributes:
      rows: an AccumulationRow for each way of adding and number of micro-batches.
      elements: number of elements of a gradient.
      divide: "before" if each gradient is divided by the sum of weights and then added, "after" if the sum is divided.
      values: way of adding -> mean gradient of all micro-batches, float32 of the gradients' shape (for a model flat,
        in the order of its parameters); empty after `load`.
    """

    KIND = "fpsim accumulation"
    ROW = AccumulationRow
    UNSAVED = ("values",)  # as they may be large

    rows: tuple[AccumulationRow, ...]
    elements: int
    divide: str = "after"
    values: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ways(self) -> tuple[str, ...]:
        """Names of the ways of adding gradients, such as "BF16 sums", each once, in the order of `rows`."""
        return tuple(dict.fromkeys(row.way for row in self.rows))

    @property
    def micro_batches(self) -> int:
        """Number of all micro-batches, whose gradients are in the complete sums."""
        return max(row.micro_batches for row in self.rows)

    def of(self, way: str) -> tuple[AccumulationRow, ...]:
        """Return the rows of one way of adding gradients, by ascending number of micro-batches.

        Raises:
          ValueError: there is no such way.
        """
        require_word("way", way, self.ways)
        return tuple(sorted((row for row in self.rows if row.way == way), key=lambda row: row.micro_batches))

    def final(self, way: str) -> AccumulationRow:
        """Return the row for all micro-batches added in the given way.

        Raises:
          ValueError: there is no such way.
        """
        return self.of(way)[-1]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative error against the number of micro-batches; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.accumulation.figure import accumulation_axes

        return accumulation_axes(self, ax)

    def __str__(self) -> str:
        """Return a text of one line for each way of adding gradients: its errors after all micro-batches."""
        head = f"{plural(self.micro_batches, 'micro-batch', 'micro-batches')} of {plural(self.elements, 'element')}"
        width = max(map(len, self.ways))
        return "\n".join([f"{head}:", *(f"  {way:<{width}}  {_words(self.final(way))}" for way in self.ways)])

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks: the errors of each way of adding gradients after all micro-batches."""
        return html_table(["way", "relative error"], ([way, _words(self.final(way))] for way in self.ways))


def _words(row: AccumulationRow) -> str:
    """Return the errors in one row of the report as text: the share that overflowed, or else the relative error.

    The share of elements that the last micro-batch left unchanged follows unless it is 0; then, with a large batch, the
    relative difference from its gradient and the share of elements with equal bits.
    """
    if row.overflowed:
        return f"{percent(row.overflowed)} of the elements overflowed"
    known = not math.isnan(row.relative_error)
    said = f"relative error {row.relative_error:.2g}" if known else "no relative error, as the exact mean is 0"
    if row.unchanged:
        said += f"; the last micro-batch left {percent(row.unchanged)} of the elements unchanged"
    if not math.isnan(row.equal):
        said += f"; relative difference from the large batch {row.drift:.2g}"
        said += f", equal bits in {percent(row.equal)} of the elements"
    return said


def accumulation_row(
    way: str, count: int, mean: Array, before: Array | None, exact: Array, last: Array
) -> AccumulationRow:  # fmt: skip
    """Compare the mean gradient of the first `count` micro-batches with float64's, and return an AccumulationRow.

    way: name of the way of adding gradients. mean, exact: flat means in float32 and float64. before: the sum before the
    last addition, divided by the same number as `mean`; None if there was no addition. last: the last micro-batch's
    gradient.
    """
    finite = np.isfinite(mean)
    overflowed = 1 - float(np.mean(finite))
    unchanged = 0.0 if before is None else float(np.mean((mean == before) & (last != 0)))
    error, bias = math.nan, math.nan
    norm, size = float(np.linalg.norm(exact)), float(np.abs(exact).sum())
    if not overflowed and norm:
        difference = mean.astype(np.float64) - exact
        error = float(np.linalg.norm(difference)) / norm
        bias = float((difference * np.sign(exact)).sum()) / size
    return AccumulationRow(way, count, error, bias, unchanged, overflowed)
