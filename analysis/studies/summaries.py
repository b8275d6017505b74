"""Summaries of a study for its page and pictures: tensors that are hardest to store, candidates, steps, notes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.studies.candidates import scaling_words
from fpsim.analysis.studies.results import StudyResults, judged, worst_candidates
from fpsim.analysis.studies.rows import Recommendation
from fpsim.analysis.studies.worst import WorstMetrics, deficit, or_zero
from fpsim.display.wording import decibels, listed, plural
from fpsim.formats.integer_format import IntegerFormat

NOTABLE_DB = 3.0  # dB, half a bit: from this deficit on a tensor is listed as an exception
NAMED = 3  # names in a note on several tensors


def words(mode: str) -> str:
    """Return the name of a rounding with spaces: "nearest even" for "nearest_even"."""
    return mode.replace("_", " ")


def ideal_db(report: ErrorReport) -> float:
    """Return the SQNR in dB of a report's format on data that suits it: normal for floats, uniform for integers.

    Return NaN for formats that are neither.
    """
    fmt = report.fmt
    if isinstance(fmt, IntegerFormat):
        return 20 * math.log10(2 * fmt.max + 1)  # 2 max + 1 equal steps over the whole range
    return deficit(report, 0.0)


def operands(report: StudyResults) -> list[Recommendation]:
    """Return the recommendations for operands that were judged: those that met the limits, and those that failed.

    Left out are tensors of other roles, and those for which no candidate saves enough bits.
    """
    return [row for row in report.recommendations if row.operand and (row.met or row.failed)]


def hardest(report: StudyResults) -> list[Recommendation]:
    """Return the recommendations of operands, the hardest to store first.

    Operands without a good enough candidate come first. Within these, and within the others, the order is by how far
    the SQNR is below that of the format on normal data, the farthest first; equal ones are ordered by rising SQNR,
    those whose SQNR cannot be measured first.
    """

    def place(row: Recommendation) -> tuple[bool, float, float]:
        return row.met, -or_zero(row.deficit_db), -math.inf if math.isnan(row.sqnr_db) else row.sqnr_db

    return sorted(operands(report), key=place)


def specials(report: StudyResults, tensor: str) -> tuple[int, int]:
    """Return the number of NaNs and the number of infinities of the tensor named `tensor`, added over its steps."""
    rows = report.ranges_of[tensor]
    return sum(row.report.nans for row in rows), sum(row.report.infinities for row in rows)


def peculiarities(report: StudyResults, row: Recommendation) -> list[str]:
    """Return the reasons why a user should look at a tensor, as texts; [] for an ordinary tensor.

    The reasons are: no candidate is good enough for an operand; the tensor has NaN or Inf; its SQNR is at least 3 dB
    below that of the recommended format on normal data. row: the tensor's recommendation.
    """
    reasons = []
    nans, infinities = specials(report, row.tensor)
    if row.failed:
        reasons.append("no candidate is good enough")
    if nans or infinities:
        kinds = [f"{number:,} {kind}" for number, kind in ((nans, "NaN"), (infinities, "Inf")) if number]
        reasons.append(" and ".join(kinds))
    if row.met and row.deficit_db >= NOTABLE_DB:
        reasons.append(f"{row.deficit_db:.1f} dB below {row.format} on normal data")
    return reasons


def ordered(report: StudyResults) -> list[Recommendation]:
    """Return all recommendations: first operands, the hardest to store first, then other tensors."""
    first = hardest(report)
    names = {row.tensor for row in first}
    return [*first, *(row for row in report.recommendations if row.tensor not in names)]


def exceptions(report: StudyResults) -> list[tuple[Recommendation, list[str]]]:
    """Return the tensors that a user should look at, as pairs (recommendation, reasons of `peculiarities`).

    Operands of products come first, the hardest to store at the top; other tensors follow.
    """
    reasons = [(row, peculiarities(report, row)) for row in ordered(report)]
    return [(row, why) for row, why in reasons if why]


class Judged(NamedTuple):
    """A candidate (format with a scaling) for one operand, and whether it is good enough.

    Attributes:
      row: the operand's recommendation.
      worst: the candidate with its worst metrics over the training steps.
      good: whether these metrics meet the requirements.
    """

    row: Recommendation
    worst: WorstMetrics
    good: bool

    @property
    def chosen(self) -> bool:
        """True if the candidate is recommended for the operand."""
        return self.row.met and (self.row.format, self.row.scaling) == (self.worst.format, self.worst.scaling)


class CandidateSummary(NamedTuple):
    """The worst metrics of a candidate over the training steps, for one or more operands.

    Attributes:
      format, scaling: names of the candidate's format and scaling.
      bits: bits of an element.
      ideal_db: SQNR in dB of the format on normal data (for integers, uniform data).
      judged: the candidate's metrics for each operand.
    """

    format: str
    scaling: str
    bits: int
    ideal_db: float
    judged: tuple[Judged, ...]

    @property
    def name(self) -> str:
        """Name of the candidate, such as "E4M3 with 1x128 scales"."""
        return f"{self.format} {scaling_words(self.scaling)}"

    @property
    def good(self) -> int:
        """Number of operands for which the candidate meets the requirements."""
        return sum(one.good for one in self.judged)

    @property
    def chosen(self) -> int:
        """Number of operands for which the candidate is recommended."""
        return sum(one.chosen for one in self.judged)

    @property
    def values(self) -> int:
        """Number of values of all operands in `judged` together, each counted at one training step."""
        return sum(one.row.values for one in self.judged)

    @property
    def bits_per_value(self) -> float:
        """Mean number of bits per value over all operands, scales included."""
        return sum(one.row.values * one.worst.bits_per_value for one in self.judged) / self.values

    @property
    def sqnr_db(self) -> float:
        """SQNR in dB of the values of all operands together, as if each operand were scaled to a mean square of 1.

        Inf without error; NaN if the SQNR of an operand cannot be measured.
        """
        lowest = self.lowest_db if len(self._measured) == len(self.judged) else math.nan
        if not math.isfinite(lowest):
            return lowest
        noise = sum(one.row.values * 10 ** ((lowest - one.worst.sqnr_db) / 10) for one in self.judged)
        return lowest + 10 * math.log10(self.values / noise)

    @property
    def median_db(self) -> float:
        """Median over the operands of their lowest SQNR (over training steps), in dB; NaN if none can be measured."""
        return statistics.median(self._measured) if self._measured else math.nan

    @property
    def lowest_db(self) -> float:
        """Lowest SQNR of the operands in dB; NaN if none can be measured."""
        return min(self._measured, default=math.nan)

    @property
    def _measured(self) -> list[float]:
        """The lowest SQNR over the training steps, in dB, of every operand whose SQNR can be measured."""
        return [one.worst.sqnr_db for one in self.judged if not math.isnan(one.worst.sqnr_db)]


def candidate_summaries(report: StudyResults) -> list[CandidateSummary]:
    """Return a summary of every candidate (format with a scaling) over all operands, the fewest bits first."""
    judged_by: dict[tuple[str, str], list[Judged]] = {}
    for row in operands(report):
        for one in worst_candidates(report, row.tensor):
            good = not one.misses(report.requirements)
            judged_by.setdefault((one.format, one.scaling), []).append(Judged(row, one, good))
    summaries = [
        CandidateSummary(*key, rows[0].worst.bits, ideal_db(rows[0].worst.report), tuple(rows))
        for key, rows in judged_by.items()
    ]
    return sorted(summaries, key=lambda one: one.bits)  # candidates of equal bits keep the order of the study


def of_role(summaries: Sequence[CandidateSummary], role: str) -> list[CandidateSummary]:
    """Return the summaries restricted to operands of one role; candidates without such operands are left out.

    role: "matrix" (weights), "activation" or "gradient".
    """
    reduced = [
        one._replace(judged=tuple(operand for operand in one.judged if operand.row.role == role)) for one in summaries
    ]
    return [one for one in reduced if one.judged]


class RoundingSummary(NamedTuple):
    """The SQNR (dB) and gain of every operand in one format and rounding.

    Attributes:
      format, rounding: names of the format and of the rounding mode.
      scaling: "none" or "amax" (one scale per tensor).
      sqnr_db, gain: an entry for each tensor and step measured. The gain is the sum of x * (x rounded), divided by the
        sum of x^2; it is below 1 if rounding shrinks values.
    """

    format: str
    scaling: str
    rounding: str
    sqnr_db: tuple[float, ...]
    gain: tuple[float, ...]

    @property
    def median_db(self) -> float:
        """Median over tensors and steps of the SQNR in dB; NaN if nothing was measured."""
        return statistics.median(self.sqnr_db) if self.sqnr_db else math.nan

    @property
    def median_gain(self) -> float:
        """Median over tensors and steps of the gain; NaN if nothing was measured."""
        return statistics.median(self.gain) if self.gain else math.nan


def rounding_summaries(report: StudyResults) -> list[RoundingSummary]:
    """Return the SQNR and gain of all operands for each format and rounding; [] if the study has only one rounding.

    Each format is summarised with one scale per tensor if that was studied, else without a scale; formats that were
    studied with a scale per tile alone are left out.
    """
    if len(report.roundings) < 2:
        return []
    names = {row.tensor for row in operands(report)}
    rows = [row for row in report.errors if row.tensor in names and row.scaling in ("none", "amax")]
    scaling_of: dict[str, str] = {}
    for row in rows:
        if scaling_of.get(row.report.format) != "amax":
            scaling_of[row.report.format] = row.scaling
    summaries = []
    for fmt, scaling in scaling_of.items():
        for mode in report.roundings:
            mine = [
                row for row in rows if (row.report.format, row.scaling, row.report.rounding) == (fmt, scaling, mode)
            ]
            measured = [row.report for row in mine if not math.isnan(row.report.sqnr_db + row.report.gain)]
            if measured:
                figures = tuple(one.sqnr_db for one in measured), tuple(one.gain for one in measured)
                summaries.append(RoundingSummary(fmt, scaling, mode, *figures))
    return summaries


class Course(NamedTuple):
    """The amax (largest magnitude) of an operand, and the SQNR of its recommended candidate, at each training step.

    Attributes:
      tensor: name of the operand.
      steps: the steps in order.
      amax: the largest finite magnitude at each step.
      sqnr_db: the SQNR in dB at each step; NaN where unknown, as for a tensor that keeps its dtype.
    """

    tensor: str
    steps: tuple[int, ...]
    amax: tuple[float, ...]
    sqnr_db: tuple[float, ...]

    @property
    def moved(self) -> float:
        """The largest amax over the steps divided by the smallest; NaN if the smallest is 0."""
        return max(self.amax) / min(self.amax) if min(self.amax) > 0 else math.nan

    @property
    def worst_step(self) -> int | None:
        """The training step with the lowest SQNR in `sqnr_db`; None if no SQNR is known.

        The SQNR is that of the operand's values in the format and scaling that the study recommends for this operand.
        """
        known = [(sqnr, step) for sqnr, step in zip(self.sqnr_db, self.steps, strict=True) if not math.isnan(sqnr)]
        return min(known)[1] if known else None


def courses(report: StudyResults) -> list[Course]:
    """Return the amax and SQNR at each step of every operand that was studied at several training steps.

    Operands whose amax changes by the largest factor come first.
    """
    moving = []
    for row in operands(report):
        ranges = report.ranges_of[row.tensor]
        if len(ranges) < 2:
            continue
        sqnr = {
            one.step: one.report.sqnr_db
            for one in judged(report, row.tensor)
            if (one.report.format, one.scaling) == (row.format, row.scaling)
        }
        steps = tuple(one.step or 0 for one in ranges)
        amax = tuple(one.report.amax for one in ranges)
        moving.append(Course(row.tensor, steps, amax, tuple(sqnr.get(one.step, math.nan) for one in ranges)))
    return sorted(moving, key=lambda course: -or_zero(course.moved))


def rounding_sentence(rows: Sequence[RoundingSummary]) -> str:
    """Return a sentence with the median gain and SQNR in each rounding, for the format of the first row.

    rows: summaries of formats in roundings; if there are none, "" is returned. A gain below 1 means shrunk values.
    """
    if not rows:
        return ""
    first = [row for row in rows if row.format == rows[0].format]
    parts = [f"{words(row.rounding)} {row.median_gain:.4f} at {decibels(row.median_db)}" for row in first]
    return f"Median gain and SQNR of {first[0].format} {scaling_words(first[0].scaling)}: {', '.join(parts)}."


def folded(notes: Iterable[str]) -> list[str]:
    """Return the notes with one line for all tensors that were left out for the same reason.

    notes: texts of the form "NAME left out, REASON"; other texts are returned unchanged.

    Example:
      >>> from fpsim.analysis.studies.summaries import folded
      >>> folded(["a.n left out, it holds int64", "b.n left out, it holds int64", "c left out, it is empty"])
      ['2 tensors left out: each holds int64 (n)', 'c left out, it is empty']
    """
    kinds: dict[str, list[str]] = {}
    for note in notes:
        name, _, reason = note.rpartition(" left out, ")
        kinds.setdefault(reason if name else f"\n{note}", []).append(name or note)
    lines = []
    for reason, names in kinds.items():
        if reason.startswith("\n") or len(names) == 1:
            lines.append(names[0] if reason.startswith("\n") else f"{names[0]} left out, {reason}")
            continue
        last = list(dict.fromkeys(name.rpartition(": ")[2].rpartition(".")[2] for name in names))
        why = f"each {reason.removeprefix('it ')}" if reason.startswith("it ") else reason
        lines.append(f"{plural(len(names), 'tensor')} left out: {why} ({listed(last, NAMED)})")
    return lines
