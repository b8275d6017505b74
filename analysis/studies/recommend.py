"""Which format a tensor needs: the smallest that meets the requirements as measured, with the reason in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.analysis.measures.rounding_error import ErrorReport
from fpsim.display.wording import decibels, percent
from fpsim.formats.named import Format


class Requirement(NamedTuple):
    """What a format of up to `bits` bits must reach on every recorded step."""

    bits: int
    sqnr_db: float  # at least
    underflow_rate: float  # at most


# A format's own precision sets how much is worth asking of it: E5M2 gives 25.5 dB on normal data whose range fits,
# E4M3 31.5, BF16 55.6, FP16 73.7. At 20 dB the noise is a tenth of the signal, at 25 dB a seventeenth, at 40 dB a
# hundredth.
REQUIREMENTS = (Requirement(4, 20.0, 0.01), Requirement(8, 25.0, 0.01), Requirement(16, 40.0, 0.01))
SCALE_GAIN_DB = 1.0  # a scale that wins less than this is not worth its extra pass over the data
HEADROOM = 2.0  # without a scale the largest value stays this factor below the format's, for the batches to come


def requirement(bits: int) -> Requirement:
    """The requirement for a format of that width.

    Example:
      >>> from fpsim.analysis.studies.recommend import requirement
      >>> requirement(8).sqnr_db, requirement(6).bits
      (25.0, 8)
    """
    return next((row for row in REQUIREMENTS if bits <= row.bits), REQUIREMENTS[-1])


class ErrorRow(NamedTuple):
    """One measurement: a tensor at a step, rounded in one way."""

    tensor: str
    step: int | None
    scaling: str  # "none" or "amax"
    report: ErrorReport


class RangeRow(NamedTuple):
    """One tensor at a step, before rounding."""

    tensor: str
    layer: str
    role: str
    step: int | None
    dtype: str
    shape: tuple[int, ...]
    report: RangeReport


@dataclass(frozen=True)
class Recommendation:
    """The choice for one tensor over all its steps.

    Attributes:
      tensor: its name.
      format: the choice; the tensor's own dtype where no studied format meets the requirements.
      scaling: "none" or "amax".
      scale: decode scale at the last step; 1 without one.
      sqnr_db, underflow_rate: of the choice at its worst step; where none meets them of the closest miss.
      met: whether a studied format meets the requirements.
      reason: what the choice is based on, in one or two sentences.
    """

    tensor: str
    format: str
    scaling: str
    scale: float
    sqnr_db: float
    underflow_rate: float
    met: bool
    reason: str


@dataclass(frozen=True)
class Candidate:
    """A format and scaling with its worst figures over the steps of one tensor."""

    fmt: Format
    scaling: str
    scale: float
    sqnr_db: float
    underflow_rate: float
    beyond_rate: float  # overflow or saturation of finite values
    headroom: float  # format's largest value over the largest value that it gets

    @property
    def name(self) -> str:
        return self.fmt.name + (" with an amax scale" if self.scaling == "amax" else " without a scale")

    def misses(self) -> list[str]:
        """What it fails, in words; empty where it meets the requirements."""
        wanted = requirement(self.fmt.bits)
        failed = []
        if self.beyond_rate > 0:
            failed.append(f"{percent(self.beyond_rate)} beyond its range")
        elif self.scaling == "none" and self.headroom < HEADROOM:
            failed.append(f"its largest value is only {self.headroom:.2g} times the tensor's")
        if self.underflow_rate > wanted.underflow_rate:
            failed.append(f"{percent(self.underflow_rate)} underflow")
        if math.isnan(self.sqnr_db):
            failed.append("an SQNR that cannot be measured, as squares leave float64's range")
        elif self.sqnr_db < wanted.sqnr_db:
            failed.append(decibels(self.sqnr_db))
        return failed


def recommend(name: str, errors: Sequence[ErrorRow], ranges: Sequence[RangeRow]) -> Recommendation:
    """Choose for one tensor.

    Args:
      name: of the tensor.
      errors: its rows of one rounding, every step.
      ranges: its rows, in the order of the steps.
    """
    total = ranges[0].report
    for row in ranges[1:]:
        total = total.merge(row.report)
    if total.amax == 0:
        contents = "no finite value other than 0" if total.count else "no elements"
        dtype = ranges[0].dtype
        return Recommendation(name, dtype, "none", 1.0, math.nan, 0.0, False, f"It holds {contents}; nothing to judge.")
    candidates = _candidates(errors, total.amax)
    passing = [candidate for candidate in candidates if not candidate.misses()]
    if not passing:
        return _nothing_fits(name, ranges[0].dtype, candidates, total)
    fewest = min(candidate.fmt.bits for candidate in passing)
    width = [candidate for candidate in passing if candidate.fmt.bits == fewest]
    best = max(width, key=lambda candidate: (candidate.sqnr_db, candidate.scaling == "none"))
    simple = [candidate for candidate in width if candidate.fmt == best.fmt and candidate.scaling == "none"]
    if simple and not best.sqnr_db - simple[0].sqnr_db > SCALE_GAIN_DB:
        best = simple[0]
    reason = " ".join(
        part for part in (_figures(best), _why_not(best, candidates), _drift(best, ranges), _specials(total)) if part
    )
    return Recommendation(
        name, best.fmt.name, best.scaling, best.scale, best.sqnr_db, best.underflow_rate, True, reason
    )


def _candidates(errors: Sequence[ErrorRow], amax: float) -> list[Candidate]:
    groups: dict[tuple[Format, str], list[ErrorReport]] = {}
    for row in errors:
        groups.setdefault((row.report.fmt, row.scaling), []).append(row.report)
    found = []
    for (fmt, scaling), reports in groups.items():
        judged = [report for report in reports if report.sums.signal > 0] or reports  # a step of zeros says nothing
        found.append(
            Candidate(
                fmt,
                scaling,
                reports[-1].scale,
                min((report.sqnr_db for report in judged), key=lambda value: -math.inf if math.isnan(value) else value),
                max(report.underflow_rate for report in reports),
                max(report.beyond_rate for report in reports),
                fmt.max / amax if scaling == "none" else 1.0,
            )
        )
    return found


def _figures(candidate: Candidate) -> str:
    wanted = requirement(candidate.fmt.bits)
    return (
        f"{decibels(candidate.sqnr_db)} (at least {wanted.sqnr_db:g}) and {percent(candidate.underflow_rate)} "
        f"underflow (at most {percent(wanted.underflow_rate)})."
    )


def _why_not(best: Candidate, candidates: list[Candidate]) -> str:
    """Why not fewer bits, why not without a scale, and why not the more precise format of the same width."""
    parts = []
    narrower = [candidate for candidate in candidates if candidate.fmt.bits < best.fmt.bits]
    if narrower:
        closest = max(narrower, key=_rank)
        parts.append(f"Fewer bits fall short: {closest.name}, {' and '.join(closest.misses())}.")
    if best.scaling == "amax":
        plain = [candidate for candidate in candidates if candidate.fmt == best.fmt and candidate.scaling == "none"]
        if plain and plain[0].misses():
            parts.append(f"Without a scale: {' and '.join(plain[0].misses())}.")
        elif plain:
            parts.append(f"The scale wins {best.sqnr_db - plain[0].sqnr_db:.1f} dB.")
    finer = [
        candidate
        for candidate in candidates
        if candidate.fmt.bits == best.fmt.bits
        and candidate.fmt.precision > best.fmt.precision
        and candidate.scaling == best.scaling
    ]
    if finer and finer[0].misses():
        parts.append(f"{finer[0].fmt} is finer but has too little range: {' and '.join(finer[0].misses())}.")
    return " ".join(parts)


def _rank(candidate: Candidate) -> tuple[float, float]:
    return (-candidate.beyond_rate, candidate.sqnr_db if not math.isnan(candidate.sqnr_db) else -math.inf)


def _drift(best: Candidate, ranges: Sequence[RangeRow]) -> str:
    """How far the amax moves between steps, which a scale taken from an earlier step has to cover."""
    found = [row.report.amax for row in ranges if row.report.amax > 0]
    if best.scaling == "none" or len(found) < 2 or max(found) < 2 * min(found):
        return ""
    return (
        f"Its amax moves by a factor of {max(found) / min(found):.2g} between the steps, which an old scale would miss."
    )


def _specials(total: RangeReport) -> str:
    parts = [f"{n} {kind}" for n, kind in ((total.nans, "NaN"), (total.infinities, "Inf")) if n]
    return f"Not judged: {' and '.join(parts)} in the data." if parts else ""


def _nothing_fits(name: str, dtype: str, candidates: list[Candidate], total: RangeReport) -> Recommendation:
    closest = max(candidates, key=_rank)
    reason = f"No studied format meets the requirements. Closest: {closest.name}, {' and '.join(closest.misses())}."
    return Recommendation(
        name,
        dtype,
        "none",
        1.0,
        closest.sqnr_db,
        closest.underflow_rate,
        False,
        f"{reason} {_specials(total)}".strip(),
    )
