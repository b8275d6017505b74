"""Which tensors may be stored in few bits, and in which format: judged by energy lost, SQNR and the runner-up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fpsim.analysis.measures.comparison import scaling_name
from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.analysis.studies.candidates import scaling_words
from fpsim.analysis.tensors.roles import OPERANDS, ROLES, SPOKEN
from fpsim.display.wording import decibels, percent, plural
from fpsim.errors import shown
from fpsim.formats.named import Format
from fpsim.scaling.recipes import ROW

SCALE_GAIN_DB = 1.0  # scales that win less than this are not worth their bits and their pass over the data
DEAR_SCALES = 1.05  # times the bits of the cheapest candidate, scales included: more is another class
UNIFORM_SHARE = 0.95  # of the operands' values that one candidate suits, from which all have that one ...
UNIFORM_SCALES = 1.25  # times the bits that would do, as where rows are short: less is not worth a second format
CLEAR_DB = 3.0  # ... unless another float format of as many bits is better by half a bit
SMALL = 4096  # values: fewer, where they are a thousandth of the study or less, are not worth a format of their own
SMALL_SHARE = 1e-3
WORTHWHILE = 0.1  # share of the stored bits that a candidate saves at least: less is not worth a second rounding
CHANNEL_MARGIN_DB = 3.0  # nine of ten channels stay within this of the SQNR that is wanted of the whole tensor: where
# a few channels have nearly all of the energy, the SQNR of the whole says nothing of the others
HEADROOM = 2.0  # without a scale the largest value stays this factor below the format's, for the batches to come

# SQNR of a float format on normal data whose range fits, by precision (nearest-even, N(0, 1), exponent unbounded).
# Measured; others are taken from the rule 6.02 p + 7.4, which these follow to 0.3 dB.
IDEAL_DB = {2: 19.69, 3: 25.54, 4: 31.51, 5: 37.53, 7: 49.56, 8: 55.57, 11: 73.65, 14: 91.72, 24: 151.9}


class Requirements(NamedTuple):
    """What a candidate must reach on every step of an operand to be recommended."""

    min_sqnr: float = 25.0  # the noise is a seventeenth of the signal: E4M3 and INT8 reach it, 4 bits do not
    max_lost: float = 1e-3  # share of the energy in what becomes zero
    budget_bits: float | None = None  # bits per value, scales included

    def checked(self) -> Requirements:
        """The same as floats.

        Raises:
          ValueError: one that is no number in its range.
        """
        limits = {"min_sqnr": (-math.inf, 400.0), "max_lost": (0.0, 1.0), "budget_bits": (1.0, 64.0)}
        found = {}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if name == "budget_bits" and value is None:
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise ValueError(f"{name} must be a number from {low:g} to {high:g}; got {shown(value)}.")
            found[name] = float(value)
        return self._replace(**found)


class ErrorRow(NamedTuple):
    """One measurement: a tensor at a step, rounded in one way."""

    tensor: str
    step: int | None
    scaling: str  # "none", "amax" or the repr of an fp.Scaling
    report: ErrorReport
    channel_sqnr_db: float = math.nan  # what nine of ten rows and columns reach, in a sample; operands only


class RangeRow(NamedTuple):
    """One tensor at a step, before rounding."""

    tensor: str
    layer: str
    role: str
    step: int | None
    dtype: str
    shape: tuple[int, ...]
    report: RangeReport
    stored_bits: float  # of an element as it is stored, with its share of scales


@dataclass(frozen=True)
class Recommendation:
    """The choice for one tensor over all its steps.

    Attributes:
      tensor, role: its name, and what it is for.
      format: the choice; the tensor's own dtype where it stays as it is.
      scaling: "none", "amax" or the repr of an fp.Scaling.
      bits_per_value: of the choice, scales included.
      sqnr_db, lost_energy: of the choice at its worst step; where none is good enough of the closest.
      deficit_db: what it lacks to the format's SQNR on normal data; NaN for integers and for what stays.
      runner_up: the next best candidate of another format in as many bits, in words; "" without one.
      margin_db: its SQNR less than the choice's.
      met: whether a candidate is good enough.
      values, stored_bits: elements of one step, and bits of one as it is stored.
      reason: what the choice is based on, in a few sentences.
    """

    tensor: str
    role: str
    format: str
    scaling: str
    bits_per_value: float
    sqnr_db: float
    lost_energy: float
    deficit_db: float
    runner_up: str
    margin_db: float
    met: bool
    values: int
    stored_bits: float
    reason: str

    @property
    def operand(self) -> bool:
        """Whether it is an operand of products, of which alone few bits are recommended."""
        return self.role in OPERANDS

    @property
    def choice(self) -> str:
        """The choice in words."""
        return f"{self.format} {scaling_words(self.scaling)}" if self.met else self.format


@dataclass(frozen=True)
class WorstFigures:
    """A candidate with its worst figures over the steps of one tensor."""

    report: ErrorReport  # of the worst step
    scaling: str
    sqnr_db: float
    channel_sqnr_db: float
    lost_energy: float
    beyond_rate: float  # overflow or saturation of finite values
    headroom: float  # the format's largest value over the tensor's; Inf with scales
    bits_per_value: float

    @property
    def bits(self) -> int:
        return self.report.fmt.bits

    @property
    def format(self) -> str:
        return self.report.format

    @property
    def is_float(self) -> bool:
        return isinstance(self.report.fmt, Format)

    @property
    def has_tiles(self) -> bool:
        return self.scaling not in ("none", "amax")

    @property
    def name(self) -> str:
        return f"{self.format} {scaling_words(self.scaling)}"

    def misses(self, wanted: Requirements) -> list[str]:
        """What it fails, in words; empty where it is good enough."""
        failed = []
        if wanted.budget_bits is not None and self.bits_per_value > wanted.budget_bits:
            failed.append(f"{self.bits_per_value:.3g} bits per value")
        if self.scaling == "none" and self.beyond_rate > 0:
            failed.append(f"{percent(self.beyond_rate)} beyond its range")
        elif self.scaling == "none" and self.headroom < HEADROOM:
            failed.append(f"its largest value is only {self.headroom:.2g} times the tensor's")
        if math.isnan(self.sqnr_db):
            failed.append("an SQNR that cannot be measured, as squares leave float64's range")
        elif self.sqnr_db < wanted.min_sqnr:
            failed.append(decibels(self.sqnr_db))
        elif self.channel_sqnr_db < wanted.min_sqnr - CHANNEL_MARGIN_DB:
            failed.append(f"{decibels(self.channel_sqnr_db)} or less in a tenth of the channels")
        if self.lost_energy > wanted.max_lost:
            failed.append(f"{percent(self.lost_energy)} of the energy lost")
        return failed


def recommend(
    name: str,
    errors: Sequence[ErrorRow],
    ranges: Sequence[RangeRow],
    wanted: Requirements,
    floats_only: bool,
    values: int,
    uniform: str = "",
) -> Recommendation:
    """Choose for one tensor.

    Args:
      name: of the tensor.
      errors: its rows of the judged rounding, every step.
      ranges: its rows, in the order of the steps.
      wanted: what is good enough.
      floats_only: whether integers are out of the question, as where activations meet weights in float products.
      values: of the whole study, one step.
      uniform: the name of a candidate for all operands, which is preferred where it is good enough.
    """
    spread = ranges[0].report
    for row in ranges[1:]:
        spread = spread.merge(row.report)
    first = ranges[0]
    stored = first.stored_bits
    nothing = Recommendation(
        tensor=name, role=first.role, format=first.dtype, scaling="none", bits_per_value=stored,
        sqnr_db=math.nan, lost_energy=math.nan, deficit_db=math.nan, runner_up="", margin_db=math.nan, met=False,
        values=ranges[-1].report.count, stored_bits=stored, reason="",
    )  # fmt: skip
    why = ROLES.get(first.role)
    if why is not None:
        spoken = SPOKEN.get(first.role, first.role)
        article = "An" if spoken[0] in "aeio" else "A"
        kind = "Statistics" if first.role == "statistics" else f"{article} {spoken}"
        return _because(nothing, f"{kind}: {why}. Keep it in 16 or 32 bits.")
    if spread.amax == 0:
        contents = "no finite value other than 0" if spread.count else "no elements"
        return _because(nothing, f"It holds {contents}; nothing to judge.")
    if nothing.values < SMALL and nothing.values <= SMALL_SHARE * values:
        return _because(
            nothing, f"Its {plural(nothing.values, 'value')} are too few to be worth a format of their own."
        )
    candidates = [c for c in worst_of(errors, spread.amax) if c.is_float or not floats_only]
    passing = [candidate for candidate in candidates if not candidate.misses(wanted)]
    specials = _specials(spread)
    if not passing:
        closest = max(candidates, key=_rank)
        reason = f"No candidate is good enough. Closest: {closest.name}, {' and '.join(closest.misses(wanted))}."
        figures = {**vars(nothing), "sqnr_db": closest.sqnr_db, "lost_energy": closest.lost_energy}
        return _because(Recommendation(**figures), f"{reason} {specials}".strip())
    smaller = [candidate for candidate in passing if candidate.bits_per_value <= (1 - WORTHWHILE) * stored]
    if not smaller:
        cheapest = min(passing, key=lambda candidate: candidate.bits_per_value)
        reason = (
            f"It is stored in {stored:.4g} bits a value. The cheapest candidate that is good enough takes "
            f"{cheapest.bits_per_value:.4g}: {cheapest.name}."
        )
        return _because(nothing, f"{reason} {specials}".strip())
    passing = smaller
    best = _best(passing)
    dear = UNIFORM_SCALES * best.bits_per_value
    one = next((c for c in passing if c.name == uniform and c.bits <= best.bits and c.bits_per_value <= dear), None)
    if one is not None and not any(_clearly_better(c, one) for c in passing):
        best = one
    runner_up = _runner_up(best, candidates)
    why_not = _why_not(best, candidates, wanted)
    apart = "" if f"{uniform}: " in why_not else _why_apart(best, candidates, uniform, wanted)
    finer = _why_no_finer_scales(best, passing)
    parts = (_figures(best, wanted), _margin(best, runner_up, wanted), why_not, finer, apart, specials)
    return Recommendation(
        tensor=name, role=first.role, format=best.format, scaling=best.scaling, bits_per_value=best.bits_per_value,
        sqnr_db=best.sqnr_db, lost_energy=best.lost_energy, deficit_db=deficit(best.report, best.sqnr_db),
        runner_up=runner_up.name if runner_up else "",
        margin_db=best.sqnr_db - runner_up.sqnr_db if runner_up else math.nan, met=True,
        values=nothing.values, stored_bits=nothing.stored_bits, reason=" ".join(part for part in parts if part),
    )  # fmt: skip


def _because(row: Recommendation, reason: str) -> Recommendation:
    return Recommendation(**{**vars(row), "reason": reason})


def deficit(report: ErrorReport, sqnr_db: float) -> float:
    """How far an SQNR is below that of the format on normal data; NaN where the format has none to compare with."""
    if not isinstance(report.fmt, Format):
        return math.nan
    ideal = IDEAL_DB.get(report.fmt.precision, 6.02 * report.fmt.precision + 7.4)
    return max(0.0, ideal - sqnr_db)


def worst_of(errors: Sequence[ErrorRow], amax: float) -> list[WorstFigures]:
    """Every candidate of a tensor whose largest magnitude is amax, with its worst figures over the steps."""
    groups: dict[tuple[str, str], list[ErrorRow]] = {}
    for row in errors:
        groups.setdefault((row.report.format, row.scaling), []).append(row)
    found: list[WorstFigures] = []
    for (_, scaling), rows in groups.items():
        reports = [row.report for row in rows]
        judged = [report for report in reports if report.sums["signal"] > 0] or reports  # zeros say nothing
        worst = min(judged, key=lambda report: -math.inf if math.isnan(report.sqnr_db) else report.sqnr_db)
        found.append(
            WorstFigures(
                worst,
                scaling,
                worst.sqnr_db,
                min((r.channel_sqnr_db for r in rows if not math.isnan(r.channel_sqnr_db)), default=math.nan),
                max(_number(report.lost_energy) for report in judged),
                max(report.beyond_rate for report in reports),
                worst.fmt.max / amax if scaling == "none" and isinstance(worst.fmt, Format) else math.inf,
                max(report.bits_per_value for report in judged),
            )
        )
    return found


def _number(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _best(passing: Sequence[WorstFigures]) -> WorstFigures:
    """Of those of the fewest bits the highest SQNR; about equal ones of its format yield to the fewest scales.

    Scales count: those of short rows can take more bits than a wider format without any.
    """
    least = min(candidate.bits_per_value for candidate in passing)
    width = [candidate for candidate in passing if candidate.bits_per_value <= DEAR_SCALES * least]
    best = max(width, key=lambda candidate: (candidate.sqnr_db, -candidate.bits_per_value))
    similar = [c for c in width if c.format == best.format and c.sqnr_db >= best.sqnr_db - SCALE_GAIN_DB]
    return min(similar, key=lambda candidate: candidate.bits_per_value)


def _clearly_better(candidate: WorstFigures, one: WorstFigures) -> bool:
    """Return whether a float candidate is so much better than that for all operands that a tensor should have it.

    Beside integers it is not: no library multiplies the one by the other, and what is good enough need not be better.
    """
    if not one.is_float:
        return False
    cheap = candidate.bits_per_value <= DEAR_SCALES * one.bits_per_value
    return candidate.is_float and cheap and candidate.sqnr_db >= one.sqnr_db + CLEAR_DB


def _runner_up(best: WorstFigures, candidates: Sequence[WorstFigures]) -> WorstFigures | None:
    """The best candidate of another format in as many bits."""
    others = [c for c in candidates if c.bits == best.bits and c.format != best.format and not math.isnan(c.sqnr_db)]
    return max(others, key=lambda candidate: candidate.sqnr_db, default=None)


def _figures(best: WorstFigures, wanted: Requirements) -> str:
    lost = f", {percent(best.lost_energy)} of the energy lost" if best.lost_energy else ""
    return f"{decibels(best.sqnr_db)} (at least {wanted.min_sqnr:g}) at {best.bits_per_value:.4g} bits{lost}."


def _margin(best: WorstFigures, runner_up: WorstFigures | None, wanted: Requirements) -> str:
    if runner_up is None:
        return ""
    margin = best.sqnr_db - runner_up.sqnr_db
    words = "as good" if abs(margin) < 0.05 else f"{abs(margin):.1f} dB {'less' if margin > 0 else 'more'}"
    words = decibels(runner_up.sqnr_db) if math.isinf(margin) else words
    failed = runner_up.misses(wanted)
    but = " and ".join(failed) or "not what other operands have"
    if not failed and runner_up.bits_per_value > DEAR_SCALES * best.bits_per_value:
        but = f"in {runner_up.bits_per_value:.4g} bits with its scales"
    but = f", but {but}" if margin < 0 else ""
    return f"Runner-up: {runner_up.name}, {words}{but}."


def _why_not(best: WorstFigures, candidates: Sequence[WorstFigures], wanted: Requirements) -> str:
    """Why not fewer bits, and why not without scales: the candidates that failed, with their figures."""
    parts = []
    narrower = [candidate for candidate in candidates if candidate.bits < best.bits]
    if narrower:
        closest = max(narrower, key=_rank)
        why = " and ".join(closest.misses(wanted)) or f"{closest.bits_per_value:.4g} bits with its scales"
        parts.append(f"Formats of fewer bits fall short: {closest.name}, {why}.")
    plain = [c for c in candidates if c.format == best.format and c.bits_per_value < best.bits_per_value]
    if plain:
        closest = max(plain, key=_rank)
        failed = closest.misses(wanted)
        loss = best.sqnr_db - closest.sqnr_db
        if failed or loss >= 0.05:
            parts.append(f"{closest.name}: {' and '.join(failed) if failed else f'{loss:.1f} dB less'}.")
    return " ".join(parts)


def _why_no_finer_scales(best: WorstFigures, passing: Sequence[WorstFigures]) -> str:
    """Return why a choice with a scale per row has no smaller tiles, the best of them; "" for other choices."""
    if best.scaling != scaling_name(ROW):
        return ""
    others = [c for c in passing if c.format == best.format and c.scaling != best.scaling and c.has_tiles]
    finer = [c for c in others if c.bits_per_value >= best.bits_per_value]
    if not finer:
        return ""
    closest = max(finer, key=lambda candidate: candidate.sqnr_db)
    gain = closest.sqnr_db - best.sqnr_db
    words = f"only {gain:.1f} dB more" if gain >= 0.05 else "as good" if gain > -0.05 else f"{-gain:.1f} dB less"
    added = closest.bits_per_value - best.bits_per_value
    return f"{closest.name}: {words}{f' for another {added:.2g} bits' if added >= 0.005 else ''}."


def _why_apart(best: WorstFigures, candidates: Sequence[WorstFigures], uniform: str, wanted: Requirements) -> str:
    """Return why a tensor has not what most operands have; "" where it has."""
    common = next((candidate for candidate in candidates if candidate.name == uniform != best.name), None)
    if common is None:
        return ""
    failed = " and ".join(common.misses(wanted))
    saved = common.bits_per_value - best.bits_per_value
    better = f"{saved:.3g} bits more" if saved > 0.05 else f"{best.sqnr_db - common.sqnr_db:.1f} dB less"
    return f"Most operands have {common.name}, here {failed or better}."


def _rank(candidate: WorstFigures) -> tuple[float, float]:
    beyond = candidate.beyond_rate if candidate.scaling == "none" else 0.0
    return (-beyond, candidate.sqnr_db if not math.isnan(candidate.sqnr_db) else -math.inf)


def _specials(total: RangeReport) -> str:
    parts = [f"{n:,} {kind}" for n, kind in ((total.nans, "NaN"), (total.infinities, "Inf")) if n]
    return f"Not judged: {' and '.join(parts)} in the data." if parts else ""


class Uniform(NamedTuple):
    """One candidate for all operands, how much of them it is good enough for, and its lowest SQNR there."""

    name: str
    share: float  # of the values of the operands that some candidate is good enough for
    sqnr_db: float  # the lowest among those that it is good enough for


def uniform_choice(
    worst: Mapping[str, Sequence[WorstFigures]], rows: Sequence[Recommendation], wanted: Requirements
) -> Uniform | None:
    """The best candidate in the fewest bits that suits nearly all operands; worst: of each tensor, every candidate."""
    judged = {row.tensor: row.values for row in rows if row.tensor in worst}
    found: dict[str, list[tuple[int, WorstFigures]]] = {}
    total = 0  # of operands that some candidate suits: others tell of none
    for tensor, values in judged.items():
        good_enough = [candidate for candidate in worst[tensor] if not candidate.misses(wanted)]
        total += values if good_enough else 0
        for candidate in good_enough:
            found.setdefault(candidate.name, []).append((values, candidate))
    if not found:
        return None

    shares = {name: round(sum(values for values, _ in good) / total, 3) for name, good in found.items()}
    enough = min(max(shares.values()), UNIFORM_SHARE)
    bits = {name: _mean_bits(good) for name, good in found.items() if shares[name] >= enough}
    least = min(bits.values())
    width = {name: found[name] for name in bits if bits[name] <= DEAR_SCALES * least}
    lowest = {name: min(c.sqnr_db for _, c in good) for name, good in width.items()}
    best = max(lowest, key=lowest.__getitem__)
    fmt = width[best][0][1].format
    similar = [n for n, good in width.items() if good[0][1].format == fmt and lowest[n] >= lowest[best] - SCALE_GAIN_DB]
    name = min(similar, key=bits.__getitem__)
    return Uniform(name, sum(values for values, _ in width[name]) / total, lowest[name])


def _mean_bits(good: Sequence[tuple[int, WorstFigures]]) -> float:
    """Bits a value of some tensors, each with its number of values."""
    return math.fsum(values * one.bits_per_value for values, one in good) / sum(values for values, _ in good)


class TensorGroup(NamedTuple):
    """Tensors with the same recommendation, as one row of a table."""

    role: str
    choice: str
    met: bool
    rows: tuple[Recommendation, ...]

    @property
    def values(self) -> int:
        """Elements of all its tensors."""
        return sum(row.values for row in self.rows)

    @property
    def sqnr_db(self) -> float:
        """The lowest SQNR among them; NaN where nothing was judged."""
        return min((row.sqnr_db for row in self.rows if not math.isnan(row.sqnr_db)), default=math.nan)

    @property
    def title(self) -> str:
        """How many tensors of which role."""
        noun = {"statistics": "statistic", "matrix": "weight"}.get(self.role, SPOKEN.get(self.role, self.role))
        return plural(len(self.rows), noun, {"bias": "biases"}.get(noun, ""))


def groups_of(rows: Sequence[Recommendation]) -> tuple[TensorGroup, ...]:
    """Equal recommendations together, those with the most values first."""
    found: dict[tuple[str, str, bool], list[Recommendation]] = {}
    for row in rows:
        key = (row.role, row.choice if row.met else "stay as they are", row.met)
        found.setdefault(key, []).append(row)
    groups = [TensorGroup(role, choice, met, tuple(rows)) for (role, choice, met), rows in found.items()]
    return tuple(sorted(groups, key=lambda group: (not group.met, -group.values)))
