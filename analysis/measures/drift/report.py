"""The report on the error of sums: a row for each accumulator and number of terms, and the growth of each curve."""

from __future__ import annotations

import dataclasses
import html
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.drift.bounds import Bounds, Chance
from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.tensors.chunks import Floats
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import plural
from fpsim.errors import require_same, shown

FIGURES = (
    "trials", "mean_relative", "rms_relative", "max_relative", "bias", "norm_relative", "deterministic_bound",
    "probabilistic_bound", "norm_deterministic", "norm_probabilistic", "coverage", "stagnated", "overflowed", "reason",
)  # fmt: skip
LINEAR, SQUARE_ROOT = 0.75, 0.25  # exponents of the growth above which a curve is called linear, or a square root


@dataclass(frozen=True, eq=False)
class DriftRow(EqualByValue):
    """The error of the sums of one accumulator and number of terms, over all trials.

    The relative error of a trial is (sum - exact sum) / |exact sum|. Metrics that cannot be measured are NaN, and
    `reason` says why: sums overflow, exact sums are 0, no bound is known, or no addition is the last one (`stagnated`),
    as for Exact, which adds all terms at once.

    Attributes:
      accumulator: name of the accumulator.
      length: number of terms of a sum.
      trials: number of sums.
      mean_relative, rms_relative, max_relative: mean, root mean square and maximum of |relative error|. If terms
        cancel, a few exact sums near 0 dominate these.
      bias: mean of the signed relative errors.
      norm_relative: root mean square of the errors / root mean square of the exact sums; sums near 0 do not dominate.
      deterministic_bound, probabilistic_bound: the largest bound / |exact sum| of a trial, to compare with
        max_relative.
      norm_deterministic, norm_probabilistic: root mean square of the bounds / root mean square of the exact sums, to
        compare with norm_relative.
      coverage: share of trials whose |error| is within their own probabilistic bound.
      stagnated: share of trials whose last addition changed nothing (docs/drift.md).
      overflowed: share of trials whose sum is Inf or NaN.
      reason: why metrics are NaN; "" if none is.
      squares: sums over trials of the squares of errors, exact sums, deterministic and probabilistic bounds.
    """

    accumulator: str
    length: int
    trials: int
    mean_relative: float
    rms_relative: float
    max_relative: float
    bias: float
    norm_relative: float
    deterministic_bound: float
    probabilistic_bound: float
    norm_deterministic: float
    norm_probabilistic: float
    coverage: float
    stagnated: float
    overflowed: float
    reason: str
    squares: tuple[float, float, float, float] = dataclasses.field(repr=False, default=(0.0, 0.0, 0.0, 0.0))

    @classmethod
    def of(
        cls, accumulator: str, length: int, error: Floats, exact: Floats, bounds: Bounds,
        unchanged: npt.NDArray[np.bool_] | None, why: str,
    ) -> DriftRow:  # fmt: skip
        """Return the row for an accumulator and number of terms, from arrays (trials,).

        error, exact, bounds: sum - exact sum, |exact sum|, and bounds of |error|. unchanged: whether the last addition
        of a trial changed nothing; None if no addition is the last one. why: the reason for None, else "".
        """
        reasons = [bounds.reason, why]
        trials = len(error)
        lost = int(np.count_nonzero(~np.isfinite(error)))
        zero = int(np.count_nonzero(exact == 0))
        if lost:
            reasons.insert(0, f"{lost} of {plural(trials, 'sum')} overflowed")
            error = np.full_like(error, math.nan)
            bounds = Bounds(error, error)
        if zero:
            reasons.insert(0, f"{zero} of {plural(trials, 'exact sum')} are 0, so that no relative error is defined")
        with np.errstate(all="ignore"):
            relative = error / np.where(exact == 0, math.nan, exact)
            largest, likely = (bound / np.where(exact == 0, math.nan, exact) for bound in bounds[:2])
            squares = tuple(float(np.sum(x * x)) for x in (error, exact, *bounds[:2]))
            within = np.abs(error) <= bounds.probabilistic
        unknown = bool(np.isnan(bounds.probabilistic).any())
        size = np.abs(relative)
        return cls(
            accumulator, length, trials,
            mean_relative=float(size.mean()),
            rms_relative=float(np.sqrt(np.mean(size * size))),
            max_relative=float(size.max()),
            bias=float(relative.mean()),
            deterministic_bound=float(largest.max()),
            probabilistic_bound=float(likely.max()),
            **_norms(squares),
            coverage=math.nan if unknown else float(within.mean()),
            stagnated=math.nan if unchanged is None else float(unchanged.mean()),
            overflowed=lost / trials,
            reason="; ".join(filter(None, reasons)),
            squares=squares,  # type: ignore[arg-type]
        )  # fmt: skip

    def merge(self, other: DriftRow) -> DriftRow:
        """Return the row for all trials of `self` and `other`, rows of the same accumulator and length."""
        trials = self.trials + other.trials

        def mean(name: str, power: int = 1) -> float:
            mine, others = getattr(self, name) ** power, getattr(other, name) ** power
            value: float = ((mine * self.trials + others * other.trials) / trials) ** (1 / power)
            return value

        def largest(name: str) -> float:
            return float(np.maximum(getattr(self, name), getattr(other, name)))  # NaN stays

        means = ("mean_relative", "bias", "coverage", "stagnated", "overflowed")
        maxima = ("max_relative", "deterministic_bound", "probabilistic_bound")
        squares = tuple(x + y for x, y in zip(self.squares, other.squares, strict=True))
        reasons = dict.fromkeys(filter(None, (self.reason, other.reason)))
        figures: dict[str, Any] = {
            **{name: mean(name) for name in means}, **{name: largest(name) for name in maxima},
            "rms_relative": mean("rms_relative", 2), "squares": squares, **_norms(squares),
        }  # fmt: skip
        return dataclasses.replace(self, trials=trials, reason="; ".join(reasons), **figures)

    def to_dict(self) -> dict[str, Any]:
        """Return column -> value: accumulator, length, then every metric."""
        return {name: getattr(self, name) for name in ("accumulator", "length", *FIGURES)}


def _norms(squares: tuple[float, ...]) -> dict[str, float]:
    """Return the metrics norm_relative, norm_deterministic and norm_probabilistic of a DriftRow, as a dict by name.

    They are NaN if all exact sums are 0. squares: sums over trials of the squares of errors, exact sums, deterministic
    and probabilistic bounds.
    """
    error, exact, *bounds = squares
    names = ("norm_relative", "norm_deterministic", "norm_probabilistic")
    return {name: math.sqrt(x / exact) if exact else math.nan for name, x in zip(names, (error, *bounds), strict=True)}


@dataclass(frozen=True, eq=False)
class Regime(EqualByValue):
    """The growth of an accumulator's error with the number of terms, the length.

    Attributes:
      accumulator: name of the accumulator.
      word: kind of growth: "exact" (no error), "stagnating" (`onset` is not None), or by `exponent` "flat" (below
        0.25), "square root" (below 0.75) or "linear"; "unknown" if too little was measured.
      exponent: p in norm_relative ~ length ** p, fitted to the longer half of the lengths; NaN if unknown.
      onset: the shortest length from which on, in at least half of the trials, the last addition changes nothing; None
        if there is none, or if errors have both signs.
      sentence: a sentence with all this.
    """

    accumulator: str
    word: str
    exponent: float
    onset: int | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class DriftReport:
    """The error of sums against their number of terms; `merge` adds other trials, accumulators or lengths.

    Attributes:
      rows: a DriftRow for each accumulator and length.
      a, b: the operands of the terms: name of a distribution, or "an array"; b is None for sums of a alone.
      format: name of the format of the operands of accumulators that are not matrix units.
      chance: the Chance of the probabilistic bound: its `confidence` (probability), and its `factor` lambda (None if
        computed from the confidence).
      seeds: seeds of the trials, ascending.
    """

    rows: tuple[DriftRow, ...]
    a: str
    b: str | None
    format: str
    chance: Chance
    seeds: tuple[int, ...]

    @property
    def accumulators(self) -> tuple[str, ...]:
        """Names of the accumulators, each once, in the order of `rows`."""
        return tuple(dict.fromkeys(row.accumulator for row in self.rows))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of terms of the sums, in ascending order."""
        return tuple(sorted({row.length for row in self.rows}))

    def of(self, accumulator: object) -> tuple[DriftRow, ...]:
        """Return the rows of one accumulator (an object or its name), by ascending number of terms.

        Raises:
          ValueError: the report has no such accumulator.
        """
        names = (accumulator, repr(accumulator), getattr(accumulator, "name", None))
        rows = [row for row in self.rows if row.accumulator in names]
        if not rows:
            raise ValueError(
                f"the report has {', '.join(self.accumulators)}; got {shown(accumulator)}. Take one of these."
            )
        return tuple(sorted(rows, key=lambda row: row.length))

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """The growth of the error with the number of terms, a Regime for each accumulator.

        Example:
          >>> import fpsim as fp
          >>> lengths = [2**i for i in range(7, 13)]
          >>> report = fp.analysis.drift("uniform", accumulators=[fp.Sequential(fp.BF16)], lengths=lengths)
          >>> report.regimes[0].word, report.regimes[0].onset
          ('stagnating', 512)
        """
        return tuple(_regime(self.of(name)) for name in self.accumulators)

    def merge(self, other: DriftReport) -> DriftReport:
        """Return a report with the rows of `self` and `other`; rows of one accumulator and length become one row.

        That row is computed from the trials of both rows.

        Raises:
          ValueError: the terms, the format or the confidence differ, or both have rows from the same draws.
        """
        require_same("reports", self, other, ("a", "b", "format", "chance"))
        rows = {(row.accumulator, row.length): row for row in self.rows}
        for row in other.rows:
            key = row.accumulator, row.length
            if key in rows and "an array" not in (self.a, self.b) and set(self.seeds) & set(other.seeds):
                raise ValueError(
                    f"reports to merge must not hold the same trials twice; both have {row.accumulator} at "
                    f"{row.length} terms from seed {min(set(self.seeds) & set(other.seeds))}. Take another seed."
                )
            rows[key] = rows[key].merge(row) if key in rows else row
        seeds = tuple(sorted({*self.seeds, *other.seeds}))
        return dataclasses.replace(self, rows=tuple(rows.values()), seeds=seeds)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each accumulator and length, with the columns of `DriftRow.to_dict`."""
        return frame([row.to_dict() for row in self.rows])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw norm_relative against the length, with its bounds; return the matplotlib axes (ax None: new ones)."""
        from fpsim.analysis.measures.drift.figure import drift_axes

        return drift_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence on the growth of each accumulator's error."""
        terms = self.a if self.b is None else f"{self.a} x {self.b}"
        trials = plural(max(row.trials for row in self.rows), "trial")
        return f"sums of {terms} ({trials}): " + "; ".join(regime.sentence for regime in self.regimes) + "."

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the text of `str()`, and a table of the rows."""
        names = ("accumulator", "length", *FIGURES)
        rows = ([row.to_dict()[name] for name in names] for row in self.rows)
        return f"<p>{html.escape(str(self))}</p>{html_table(names, rows)}"


def _regime(rows: tuple[DriftRow, ...]) -> Regime:
    """Return the kind of growth of one accumulator's error, from its rows in ascending order of length.

    "exact": no error at any length; "stagnating": `_onset` finds a length, and |bias| of the longest sums exceeds 0.9
    times their mean |relative error|; else, by the fitted exponent, "flat" below 0.25, "square root" below 0.75,
    "linear" from there on; "unknown" without an error of the longest sums or an exponent.
    """
    name, last = rows[0].accumulator, rows[-1]
    terms = plural(last.length, "term")
    if math.isnan(last.norm_relative):
        words = f"{name} has no measured error at {terms} ({last.reason})"
        return Regime(name, "unknown", math.nan, None, words)
    if all(row.norm_relative == 0 for row in rows):
        return Regime(name, "exact", 0.0, None, f"{name} is exact up to {terms}")
    exponent, here = _exponent(rows), f"{last.norm_relative:.2g} at {terms}"
    one_sided = abs(last.bias) > 0.9 * last.mean_relative
    onset = _onset(rows) if one_sided else None  # stochastic additions often change nothing, yet are right on average
    if onset is not None:
        words = f"{name} stagnates from {onset} terms on, as further additions change nothing: error {here}"
        return Regime(name, "stagnating", exponent, onset, words)
    if math.isnan(exponent):
        words = f"{name} has too few lengths to estimate the growth of its error: error {here}"
        return Regime(name, "unknown", exponent, None, words)
    if exponent < SQUARE_ROOT:
        return Regime(name, "flat", exponent, None, f"the error of {name} hardly grows with the length: error {here}")
    word, law = ("linear", "linear") if exponent >= LINEAR else ("square root", "square-root")
    why = "errors have one sign" if one_sided else "errors add up" if word == "linear" else "errors cancel in part"
    words = f"the error of {name} grows as length ** {exponent:.2f}, close to {law} growth, as {why}: error {here}"
    return Regime(name, word, exponent, None, words)


def _onset(rows: tuple[DriftRow, ...]) -> int | None:
    """Return the shortest length from which on, in at least half of the trials, the last addition changes nothing.

    rows: in ascending order of length. Return None if there is no such length.
    """
    onset = None
    for row in reversed(rows):
        if not row.stagnated >= 0.5:
            break
        onset = row.length
    return onset


def _exponent(rows: tuple[DriftRow, ...]) -> float:
    """Return p in norm_relative ~ length ** p, fitted to the longer half of the lengths (at least 2) with an error.

    norm_relative: root mean square error of a row's sums, relative to the exact sums. NaN with fewer than 2 such rows.
    """
    points = [(row.length, row.norm_relative) for row in rows if row.norm_relative > 0]
    points = points[-max(2, (len(points) + 1) // 2) :]
    if len(points) < 2:
        return math.nan
    x, y = np.log([point[0] for point in points]), np.log([point[1] for point in points])
    return float(np.polyfit(x, y, 1)[0])
