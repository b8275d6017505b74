"""Candidates (formats with scalings), each with its worst metrics over the training steps of one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.studies.candidates import scaling_words
from fpsim.analysis.studies.rows import ErrorRow, Requirements
from fpsim.display.wording import decibels, percent
from fpsim.formats.named import Format

# Nine of ten channels reach the required SQNR of the whole tensor less this margin: where a few channels have nearly
# all of the energy, the SQNR of the whole says nothing about the others.
CHANNEL_MARGIN_DB = 3.0
HEADROOM = 2.0  # without a scale the format's largest value is this factor above the tensor's, for batches to come

# SQNR of a float format on normal data whose range fits, by precision (nearest-even, N(0, 1), exponent unbounded).
# Measured; others are taken from the rule 6.02 p + 7.4, which these follow to 0.3 dB.
IDEAL_DB = {2: 19.69, 3: 25.54, 4: 31.51, 5: 37.53, 7: 49.56, 8: 55.57, 11: 73.65, 14: 91.72, 24: 151.9}


@dataclass(frozen=True)
class WorstMetrics:
    """A candidate (format with a scaling) with its worst metrics over the training steps of one tensor.

    Attributes:
      report: the metrics at the step of lowest SQNR.
      scaling: "none", "amax" or the repr of an fp.Scaling.
      sqnr_db: the lowest SQNR over the steps, in dB.
      channel_sqnr_db: the lowest over the steps of the SQNR in dB that nine of ten rows and columns reach or exceed.
      lost_energy: largest share (0 to 1) of the energy (sum of squares) in values that become 0.
      beyond_rate: largest share (0 to 1) of finite values that overflow or saturate.
      headroom: the format's largest value divided by the tensor's largest magnitude; Inf with scales.
      bits_per_value: bits per element, scales included.
    """

    report: ErrorReport
    scaling: str
    sqnr_db: float
    channel_sqnr_db: float
    lost_energy: float
    beyond_rate: float
    headroom: float
    bits_per_value: float

    @property
    def bits(self) -> int:
        """Bits of an element in the format, without scales."""
        return self.report.fmt.bits

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.report.format

    @property
    def is_float(self) -> bool:
        """True if the format is a float format."""
        return isinstance(self.report.fmt, Format)

    @property
    def has_tiles(self) -> bool:
        """True if the candidate has a scale per tile."""
        return self.scaling not in ("none", "amax")

    @property
    def name(self) -> str:
        """Name of the candidate, such as "E4M3 with 1x128 scales"."""
        return f"{self.format} {scaling_words(self.scaling)}"

    def misses(self, wanted: Requirements) -> list[str]:
        """Return the requirements that the candidate fails, as texts; [] if it is good enough.

        Besides the numbers in `wanted`, nine of ten rows and columns must have an SQNR of at least `min_sqnr` - 3 dB.
        Without scales, moreover, no value may be beyond the format's range, and the format's largest value must be at
        least twice the tensor's largest magnitude.
        """
        failed = []
        if wanted.budget_bits is not None and self.bits_per_value > wanted.budget_bits:
            failed.append(f"{self.bits_per_value:.4g} bits per value (more than {wanted.budget_bits:g})")
        if self.scaling == "none" and self.beyond_rate > 0:
            failed.append(f"{percent(self.beyond_rate)} of the values beyond its range")
        elif self.scaling == "none" and self.headroom < HEADROOM:
            failed.append(f"a largest value of only {self.headroom:.2g} times the tensor's")
        if math.isnan(self.sqnr_db):
            squares = "an SQNR that cannot be measured, since squares are beyond float64's range"
            failed.append(squares if self.report.sums["compared"] else "no finite result")
        elif self.sqnr_db < wanted.min_sqnr:
            failed.append(decibels(self.sqnr_db))
        elif self.channel_sqnr_db < wanted.min_sqnr - CHANNEL_MARGIN_DB:
            failed.append(f"{decibels(self.channel_sqnr_db)} or less in a tenth of the channels")
        if self.lost_energy > wanted.max_lost:
            failed.append(f"{percent(self.lost_energy)} of the energy lost")
        return failed


def deficit(report: ErrorReport, sqnr_db: float) -> float:
    """Return how many dB `sqnr_db` is below the SQNR that the report's format has on normal data; at least 0.

    Return NaN for integer formats. The normal data are N(0, 1), rounded to nearest even without overflow or underflow.
    sqnr_db: the SQNR of a tensor in this format.
    """
    if not isinstance(report.fmt, Format):
        return math.nan
    ideal = IDEAL_DB.get(report.fmt.precision, 6.02 * report.fmt.precision + 7.4)
    return max(0.0, ideal - sqnr_db)


def or_zero(value: float) -> float:
    """Return the value, or 0 if it is NaN."""
    return 0.0 if math.isnan(value) else value


def worst_of(errors: Sequence[ErrorRow], amax: float) -> list[WorstMetrics]:
    """Return a WorstMetrics for every candidate (format with a scaling): its worst metrics over a tensor's steps.

    `errors`: the tensor's errors in every candidate at every training step, all in one rounding. `amax`: the tensor's
    largest finite magnitude over all steps, above 0.
    """
    groups: dict[tuple[str, str], list[ErrorRow]] = {}
    for row in errors:
        groups.setdefault((row.report.format, row.scaling), []).append(row)
    candidates: list[WorstMetrics] = []
    for (_, scaling), rows in groups.items():
        reports = [row.report for row in rows]
        judged = [report for report in reports if report.sums["signal"] > 0] or reports  # without all-zero steps
        worst = min(judged, key=lambda report: -math.inf if math.isnan(report.sqnr_db) else report.sqnr_db)
        candidates.append(
            WorstMetrics(
                worst,
                scaling,
                worst.sqnr_db,
                min((r.channel_sqnr_db for r in rows if not math.isnan(r.channel_sqnr_db)), default=math.nan),
                max(or_zero(report.lost_energy) for report in judged),
                max(report.beyond_rate for report in reports),
                worst.fmt.max / amax if scaling == "none" and isinstance(worst.fmt, Format) else math.inf,
                max(report.bits_per_value for report in judged),
            )
        )
    return candidates


def rank(candidate: WorstMetrics) -> tuple[float, float]:
    """Return a sort key: of two candidates, the one nearer to meeting the requirements has the larger key.

    The key is a tuple. Its first item is minus the share of values beyond the format's range, or 0 if the candidate
    has scales. Its second item is the SQNR in dB, or -Inf if that is NaN.
    """
    beyond = candidate.beyond_rate if candidate.scaling == "none" else 0.0
    return (-beyond, candidate.sqnr_db if not math.isnan(candidate.sqnr_db) else -math.inf)
