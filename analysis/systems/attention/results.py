"""Reports on attention: errors relative to float64, underflow of weights, and a comparison of caches."""

from __future__ import annotations

import html
import math
import os
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.arrays import Array
from fpsim.deprecation import warn_renamed
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word
from fpsim.exact_json import from_json, to_json
from fpsim.scaling.file import ScaledFileError, load, save

KIND = "a report on attention"


@dataclass(frozen=True, eq=False)
class AttentionFigures(EqualByValue):
    """The errors of an attention in the formats of a recipe, relative to float64.

    A row is one query of one head; means are over the rows of all heads. "Exact" means computed in float64. Output
    elements whose error is Inf or NaN are left out of the first four metrics.

    Attributes:
      relative_error: norm of the error of the outputs / norm of the exact outputs.
      input_error: the relative error if only q, k and v are rounded (and cached), and all else is float64.
      max_error: the largest |error| of an output element.
      bias: sum of error * sign(exact output) / sum of |exact outputs|; positive where outputs are too large.
      score_max: the largest |q.k| before the scale, in float64.
      score_overflow: share of scores that are Inf or NaN although they are finite in float64.
      score_resolution: the spacing of the score format at a row's largest score, in nats, the median over rows. The
        relative error of a probability is up to half of it.
      kl: mean over rows of KL(computed || exact), in nats, of softmax weights that are divided by their sum.
      total_variation: mean over rows of half the sum of |computed - exact| weights.
      lost_weights: share of the exact weights other than 0 that the recipe rounds to 0.
      lost_mass: mean over rows of the sum of the exact weights that the recipe rounds to 0.
      weight_sum: mean over rows of (sum of the rounded weights / divisor of the outputs) - 1: a bias of the outputs.
      repeated_rows: share of rows whose largest rounded score occurs more than once.
      bias_repeated, bias_single: mean of error * sign(exact output), in ulps of the output format, over the rows whose
        largest score occurs more than once and over the other rows; NaN where there are no such rows. The ulp is that
        of the exact output's magnitude.
    """

    relative_error: float
    input_error: float
    max_error: float
    bias: float
    score_max: float
    score_overflow: float
    score_resolution: float
    kl: float
    total_variation: float
    lost_weights: float
    lost_mass: float
    weight_sum: float
    repeated_rows: float
    bias_repeated: float
    bias_single: float


@dataclass(frozen=True, eq=False)
class AttentionReport:
    """The output of an attention in a recipe's formats, and its errors.

    Attributes:
      figures: the errors (an AttentionFigures), such as `relative_error`; each is also an attribute of the report.
      recipe: field -> value of the recipe, as strings.
      heads, queries, keys, channels: sizes; heads are q's heads in all batches together, channels those of v.
      output: float32 array (..., heads, queries, channels).
      row_errors: float64 array (heads, queries): norm of the error of an output row / norm of the exact row.
    """

    figures: AttentionFigures
    recipe: dict[str, str]
    heads: int
    queries: int
    keys: int
    channels: int
    output: Array = field(repr=False)
    row_errors: Array = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        """Return the metric `name` of `figures`; raise AttributeError for other names."""
        if name in AttentionFigures.__dataclass_fields__:
            return getattr(self.figures, name)
        names = ", ".join(AttentionFigures.__dataclass_fields__)
        raise AttributeError(f"an AttentionReport has no {name!r}; its metrics are {names}.")

    def __eq__(self, other: object) -> bool:
        """Return whether two reports have equal metrics, recipes and outputs (NaN equals NaN)."""
        if not isinstance(other, AttentionReport):
            return NotImplemented
        mine, others = (to_json([*asdict(x.figures).values(), x.recipe]) for x in (self, other))
        return mine == others and bool(np.array_equal(self.output, other.output, equal_nan=True))

    __hash__ = None  # type: ignore[assignment]

    def to_frame(self, by: str = "report") -> DataFrame:
        """Return a pandas DataFrame: one row with every metric, or a row for each head with its mean error.

        by: "report" or "head". A head's error is the mean of the relative errors of its queries' output rows.

        Raises:
          ValueError: by is another name.
        """
        require_word("by", by, ("report", "head"))
        if by == "report":
            return frame([asdict(self.figures)])
        known = (errors[~np.isnan(errors)] for errors in self.row_errors)
        means = (float(errors.mean()) if errors.size else math.nan for errors in known)
        return frame([{"head": head, "mean_row_error": mean} for head, mean in enumerate(means)])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative error of each query's row, median and range over heads; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.attention.figures import attention_axes

        return attention_axes(self, ax)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report into a file, .npz or .safetensors, whole or not at all.

        Raises:
          ValueError: the path ends in neither .npz nor .safetensors.
          OSError: the file cannot be written.
        """
        sizes = {name: getattr(self, name) for name in ("heads", "queries", "keys", "channels")}
        header = {"kind": KIND, "recipe": self.recipe, "figures": to_json(asdict(self.figures)), **sizes}
        save(path, {"output": self.output, "row_errors": self.row_errors}, header)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> AttentionReport:
        """Load a report that `save` wrote, bit for bit.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, or does not hold an AttentionReport.
        """
        arrays, header = load(path)
        if header.pop("kind", None) != KIND:
            raise ScaledFileError(f"{path}: wanted {KIND}, got a file of another kind. Save one with .save(path).")
        try:
            figures = AttentionFigures(**from_json(header.pop("figures")))
            return AttentionReport(figures, **{**header, **arrays})
        except (KeyError, TypeError, ValueError):
            raise ScaledFileError(
                f"{path}: wanted {KIND} as save() wrote it; parts are missing or have other types. Save it again."
            ) from None

    def __str__(self) -> str:
        """Return a sentence with the relative error, and the shares of overflow and underflow if any."""
        x = self.figures
        queries = plural(self.queries, "query", "queries")
        text = f"{plural(self.heads, 'head')} of {queries} and {plural(self.keys, 'key')}: "
        if math.isnan(x.relative_error):
            text += "no relative error is defined, as outputs are 0, Inf or NaN"
        else:
            text += f"relative error {x.relative_error:.2g} ({x.input_error:.2g} from rounding q, k and v alone)"
        if x.score_overflow > 0:
            text += f"; {percent(x.score_overflow)} of the scores overflow"
        if x.lost_weights > 0:
            text += f"; {percent(x.lost_weights)} of the weights, {percent(x.lost_mass)} of their sum, become 0"
        return text + "."

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the text of `str()`, and a table of all metrics."""
        return f"<p>{html.escape(str(self))}</p>{html_table(['metric', 'value'], asdict(self.figures).items())}"


@dataclass(frozen=True)
class WeightUnderflowRow:
    """The underflow of softmax weights in a format, for one standard deviation of the scores.

    Attributes:
      spread: standard deviation of the scores, in nats.
      below: measured share of weights for which weight * scale is less than half the format's smallest positive value.
      law: `below` as predicted from the normal distribution of the scores.
      lost: share of all weights that are not 0 and are rounded to 0.
      lost_mass: (sum of the weights rounded to 0) / (sum of all weights) of a query, averaged over queries.
    """

    spread: float
    below: float
    law: float
    lost: float
    lost_mass: float


@dataclass(frozen=True)
class WeightUnderflow(SavedReport):
    """The shares of attention weights that a format rounds to 0, as a function of the scores' standard deviation.

    Attributes:
      rows: a WeightUnderflowRow for each standard deviation of the scores.
      format, scale, keys, trials, normalised, seed: the arguments of `fp.analysis.attention_underflow`.
      threshold: the weight below which weight * scale is rounded to 0.
      sink: the score of one more key in every row of scores, in nats; None if there is no such key.
    """

    KIND = "a report on the underflow of attention weights"
    ROW = WeightUnderflowRow

    rows: tuple[WeightUnderflowRow, ...]
    format: str
    scale: float
    keys: int
    trials: int
    normalised: bool
    seed: int
    threshold: float
    sink: float | None = None

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw measured and predicted shares against the scores' standard deviation; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.attention.figures import underflow_axes

        return underflow_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence on the last of `rows`: measured and predicted shares for the last standard deviation."""
        last = self.rows[-1]
        return (
            f"weights of {plural(self.keys, 'key')} in {self.format} at a standard deviation of {last.spread:g} nats: "
            f"{percent(last.below)} are below half the smallest value (the law predicts {percent(last.law)}), and "
            f"{percent(last.lost_mass)} of their sum is lost."
        )


@dataclass(frozen=True, eq=False)
class CacheRow(EqualByValue):
    """The errors of an attention whose keys and values one cache stores, with all else in float64.

    Attributes:
      cache: name of the cache.
      bits_per_value: bits of a stored element, its share of the scales included.
      key_error, value_error: norm of the error of the stored keys or values / norm of the exact ones.
      score_error: norm of the error of q.k / norm of the exact q.k.
      output_error: norm of the error of the outputs / norm of the exact outputs.
      kl: mean over queries of KL(computed || exact) of the softmax weights, in nats.

    Queries whose keys are all masked have no output, and do not count.
    """

    cache: str
    bits_per_value: float
    key_error: float
    value_error: float
    score_error: float
    output_error: float
    kl: float

    @property
    def bits(self) -> float:
        """Deprecated name of `bits_per_value`; using it warns."""
        warn_renamed("CacheRow.bits", "bits_per_value")
        return self.bits_per_value


@dataclass(frozen=True)
class CacheReport(SavedReport):
    """The errors of attention with several caches, which store keys and values in low precision.

    Attributes:
      rows: a CacheRow for each cache.
      heads, queries, keys, channels: sizes; heads are q's heads in all batches together, channels those of v.
    """

    KIND = "a report on caches of keys and values"
    ROW = CacheRow
    RENAMED: ClassVar[dict[str, str]] = {"bits": "bits_per_value"}

    rows: tuple[CacheRow, ...]
    heads: int
    queries: int
    keys: int
    channels: int

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the output error of each cache as a bar, labelled with its bits per value; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.attention.figures import cache_axes

        return cache_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence that names the cache with the smallest output error, or says that no error is defined."""
        best = min(self.rows, key=lambda row: (math.isnan(row.output_error), row.output_error))
        caches, error = plural(len(self.rows), "cache"), best.output_error
        if math.isnan(error):
            return f"of {caches}, none has a defined error: outputs are 0, Inf or NaN."
        return f"of {caches}, {best.cache} has the smallest output error, {error:.2g}."
