"""The report of a drift: a row for each accumulator and length, and the regime of each curve."""

from __future__ import annotations

import dataclasses
import html
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.drift.bounds import Bounds, Chance
from fpsim.analysis.tensors.chunks import Floats
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import plural
from fpsim.errors import shown

FIGURES = (
    "trials", "mean_relative", "rms_relative", "max_relative", "bias", "norm_relative", "deterministic_bound",
    "probabilistic_bound", "norm_deterministic", "norm_probabilistic", "coverage", "stagnated", "overflowed", "reason",
)  # fmt: skip
LINEAR, SQUARE_ROOT = 0.75, 0.25  # exponents of the growth above which a curve is called linear, or a square root


@dataclass(frozen=True)
class DriftRow:
    """The error of the sums of one accumulator and length. A relative error is (sum - exact) / |exact|.

    Metrics that cannot be measured are NaN, and `reason` says why: sums that overflow, exact sums of 0, bounds that
    theory does not give, accumulators without a last addition.

    Attributes:
      accumulator: name of the accumulator.
      length: number of terms of a sum.
      trials: number of sums.
      mean_relative, rms_relative, max_relative: mean, root mean square and maximum of the absolute relative errors.
        Where terms cancel, a few exact sums near 0 dominate these.
      bias: mean of the signed relative errors.
      norm_relative: root mean square of the errors over that of the exact sums, which sums near 0 do not dominate.
      deterministic_bound, probabilistic_bound: the largest relative bound of a trial, to compare with max_relative.
      norm_deterministic, norm_probabilistic: root mean squares of the bounds over that of the exact sums, to compare
        with norm_relative.
      coverage: share of trials whose error is within their own probabilistic bound.
      stagnated: share of trials whose last addition changed nothing (docs/drift.md).
      overflowed: share of trials whose sum is Inf or NaN.
      reason: why metrics are NaN; "" where none is.
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
        """Return a row from the errors, the magnitudes of the exact sums and the bounds of its trials."""
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
        """Return the row of both rows' trials together."""
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
        """Return the row of a table: accumulator, length, then every metric."""
        return {name: getattr(self, name) for name in ("accumulator", "length", *FIGURES)}


def _norms(squares: tuple[float, ...]) -> dict[str, float]:
    """Return norm_relative and the norms of both bounds from sums of squares; NaN if the exact sums are 0."""
    error, exact, *bounds = squares
    names = ("norm_relative", "norm_deterministic", "norm_probabilistic")
    return {name: math.sqrt(x / exact) if exact else math.nan for name, x in zip(names, (error, *bounds), strict=True)}


@dataclass(frozen=True)
class Regime:
    """The growth of an accumulator's error with the length.

    Attributes:
      accumulator: name of the accumulator.
      word: "exact", "flat", "square root", "linear", "stagnating", or "unknown".
      exponent: exponent of the growth over the longer half of the lengths, norm_relative ~ length ** exponent; NaN if
        unknown.
      onset: the length from which on the last addition changes nothing in at least half of the trials, if errors also
        have one sign; None: there is no such length.
      sentence: a sentence that says all this.
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
    """The error of sums against their length; `merge` adds other trials, accumulators or lengths.

    Attributes:
      rows: a DriftRow for each accumulator and length.
      a, b: the terms: names of distributions, "an array", or None for a plain sum.
      format: the format of the operands of accumulators that are not matrix units.
      chance: the confidence of the probabilistic bound, or its factor.
      seeds: seeds of the trials.
    """

    rows: tuple[DriftRow, ...]
    a: str
    b: str | None
    format: str
    chance: Chance
    seeds: tuple[int, ...]

    @property
    def accumulators(self) -> tuple[str, ...]:
        """Names of the accumulators, in the order of the rows."""
        return tuple(dict.fromkeys(row.accumulator for row in self.rows))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths, in ascending order."""
        return tuple(sorted({row.length for row in self.rows}))

    def of(self, accumulator: object) -> tuple[DriftRow, ...]:
        """Return the rows of one accumulator, by its name or the object, from short to long.

        Raises:
          ValueError: the report does not have the accumulator.
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
        """The growth of each accumulator's error, a Regime for each.

        Example:
          >>> import fpsim as fp
          >>> lengths = [2**i for i in range(7, 13)]
          >>> report = fp.analysis.drift("uniform", accumulators=[fp.Sequential(fp.BF16)], lengths=lengths)
          >>> report.regimes[0].word, report.regimes[0].onset
          ('stagnating', 512)
        """
        return tuple(_regime(self.of(name)) for name in self.accumulators)

    def merge(self, other: DriftReport) -> DriftReport:
        """Return the report of both parts together: rows of the same accumulator and length pool their trials.

        Raises:
          ValueError: the terms, the format or the confidence differ, or both have rows from the same draws.
        """
        for name in ("a", "b", "format", "chance"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(f"reports to merge must have the same {name}; got {mine} and {others}.")
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
        """Return a pandas DataFrame with a row for each accumulator and length, with the metrics of DriftRow."""
        return frame([row.to_dict() for row in self.rows])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw norm_relative against the length, with its bounds, and return the matplotlib axes."""
        from fpsim.analysis.measures.drift.figure import drift_axes

        return drift_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence on the regime of each accumulator."""
        terms = self.a if self.b is None else f"{self.a} x {self.b}"
        trials = plural(max(row.trials for row in self.rows), "trial")
        return f"sums of {terms} ({trials}): " + "; ".join(regime.sentence for regime in self.regimes) + "."

    def _repr_html_(self) -> str:
        """Return the answer and the rows as HTML for notebooks."""
        names = ("accumulator", "length", *FIGURES)
        rows = ([row.to_dict()[name] for name in names] for row in self.rows)
        return f"<p>{html.escape(str(self))}</p>{html_table(names, rows)}"


def _regime(rows: tuple[DriftRow, ...]) -> Regime:
    """Return the regime of a curve, from its rows in ascending order of length."""
    name, last = rows[0].accumulator, rows[-1]
    if math.isnan(last.norm_relative):
        words = f"{name} has no measured error at {last.length} terms ({last.reason})"
        return Regime(name, "unknown", math.nan, None, words)
    if all(row.norm_relative == 0 for row in rows):
        return Regime(name, "exact", 0.0, None, f"{name} is exact up to {last.length} terms")
    exponent, here = _exponent(rows), f"{last.norm_relative:.2g} at {last.length} terms"
    one_sided = abs(last.bias) > 0.9 * last.mean_relative
    onset = _onset(rows) if one_sided else None  # stochastic additions change nothing often, and enough at times
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
    """Return the shortest length from which on half or more of the trials' last additions change nothing, or None."""
    onset = None
    for row in reversed(rows):
        if not row.stagnated >= 0.5:
            break
        onset = row.length
    return onset


def _exponent(rows: tuple[DriftRow, ...]) -> float:
    """Return the slope of log error over log length in the longer half of the lengths (at least 2 of them)."""
    points = [(row.length, row.norm_relative) for row in rows if row.norm_relative > 0]
    points = points[-max(2, (len(points) + 1) // 2) :]
    if len(points) < 2:
        return math.nan
    x, y = np.log([point[0] for point in points]), np.log([point[1] for point in points])
    return float(np.polyfit(x, y, 1)[0])
