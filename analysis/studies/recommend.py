"""The choice of a format and scaling for each tensor of a study: among those that are good enough, the fewest bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.analysis.studies.reasons import DEAR_SCALES, JudgedCandidates, reason_of, why_none
from fpsim.analysis.studies.rows import ErrorRow, RangeRow, Recommendation, Requirements
from fpsim.analysis.studies.worst import WorstMetrics, deficit, rank, worst_of
from fpsim.analysis.tensors.roles import ROLES, SPOKEN
from fpsim.display.wording import plural

SCALE_GAIN_DB = 1.0  # scales that add less than this are not worth their bits and their pass over the data
UNIFORM_SHARE = 0.95  # share of the operands' values from which a candidate that suits them is chosen for all ...
UNIFORM_SCALES = 1.25  # ... if it takes at most this multiple of the fewest bits, as where rows are short ...
CLEAR_DB = 3.0  # ... and unless another float candidate of as many bits is better by half a bit
SMALL, SMALL_SHARE = 4096, 1e-3  # a tensor with fewer values, and no larger a share of the study, keeps its format
NO_FLOATS = (
    "Not judged: the study has activations or gradients, whose products are computed in floats, and no candidate is in "
    "a float format."
)
WORTHWHILE = 0.1  # a candidate saves at least this share of the stored bits: less is not worth a second rounding


def recommend(
    name: str, errors: Sequence[ErrorRow], ranges: Sequence[RangeRow], wanted: Requirements, floats_only: bool,
    values: int, uniform: str = "",
) -> Recommendation:  # fmt: skip
    """Return the recommended format and scaling of one tensor.

    The tensor keeps its dtype if no candidate is both good enough and at least a tenth smaller.

    Args:
      name: name of the tensor.
      errors: the tensor's errors in every candidate (format with a scaling) at every step, all in the one rounding that
        recommendations are based on.
      ranges: the tensor's ranges, in the order of the steps.
      wanted: the requirements of the study.
      floats_only: whether integer formats are excluded, since the study has activations or gradients, whose products
        are computed in floats.
      values: number of values of all tensors of the study, at one step. A tensor of fewer than 4,096 values keeps its
        dtype if it has at most a thousandth of these.
      uniform: name of a candidate that many operands share; "" for none. It is preferred to the tensor's best candidate
        if it is good enough, has no more bits per element, and has at most 1.25 times the bits with scales. It is not
        preferred if a float candidate is at least 3 dB better for at most 5 % more bits.
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
    unjudged = _why_unjudged(first.role, spread, nothing.values, values)
    if unjudged:
        return replace(nothing, reason=unjudged)
    candidates = [c for c in worst_of(errors, spread.amax) if c.is_float or not floats_only]
    if not candidates:
        return replace(nothing, reason=NO_FLOATS)
    passing = [candidate for candidate in candidates if not candidate.misses(wanted)]
    counts = [f"{n:,} {kind}" for n, kind in ((spread.nans, "NaN"), (spread.infinities, "Inf")) if n]
    specials = f"Not judged: {' and '.join(counts)} in the data." if counts else ""
    if not passing:
        limit = max(wanted.budget_bits or math.inf, min(candidate.bits_per_value for candidate in candidates))
        closest = max((candidate for candidate in candidates if candidate.bits_per_value <= limit), key=rank)
        reason = f"{why_none(closest, wanted)} {specials}".strip()
        return replace(nothing, sqnr_db=closest.sqnr_db, lost_energy=closest.lost_energy, reason=reason)
    smaller = [candidate for candidate in passing if candidate.bits_per_value <= (1 - WORTHWHILE) * stored]
    if not smaller:
        cheapest = min(passing, key=lambda candidate: candidate.bits_per_value)
        reason = (
            f"It is stored in {stored:.4g} bits a value. The cheapest candidate that is good enough takes "
            f"{cheapest.bits_per_value:.4g}: {cheapest.name}."
        )
        return replace(nothing, reason=f"{reason} {specials}".strip())
    passing = smaller
    best = alone = _best(passing)
    dear = UNIFORM_SCALES * best.bits_per_value
    one = next((c for c in passing if c.name == uniform and c.bits <= best.bits and c.bits_per_value <= dear), None)
    if one is not None and not any(_clearly_better(c, one) for c in passing):
        best = one
    others = [c for c in candidates if c.bits == best.bits and c.format != best.format and not math.isnan(c.sqnr_db)]
    runner_up = max(others, key=lambda candidate: candidate.sqnr_db, default=None)
    margin = math.nan
    if runner_up is not None:
        margin = best.sqnr_db - runner_up.sqnr_db if best.sqnr_db != runner_up.sqnr_db else 0.0  # also for two Inf
    reason = reason_of(JudgedCandidates(best, alone, runner_up, candidates, passing, wanted, uniform))
    return replace(
        nothing, format=best.format, scaling=best.scaling, bits_per_value=best.bits_per_value, sqnr_db=best.sqnr_db,
        lost_energy=best.lost_energy, deficit_db=deficit(best.report, best.sqnr_db),
        runner_up=runner_up.name if runner_up else "", margin_db=margin, met=True,
        reason=f"{reason} {specials}".strip(),
    )  # fmt: skip


def _why_unjudged(role: str, spread: RangeReport, count: int, values: int) -> str:
    """Return the sentences saying why a tensor keeps its dtype without being judged; "" if it is to be judged.

    It is not judged in three cases: it is no operand of a product, it has no finite value other than 0, or it has fewer
    than 4,096 values and at most a thousandth of `values`. `role`: the tensor's role, such as "bias". `spread`: the
    tensor's range over all steps. `count`: the tensor's number of values. `values`: number of values of all tensors of
    the study.
    """
    why = ROLES.get(role)
    if why is not None:
        spoken = SPOKEN.get(role, role)
        article = "An" if spoken[0] in "aeio" else "A"
        kind = "Statistics" if role == "statistics" else f"{article} {spoken}"
        return f"{kind}: {why}. Keep it in 16 or 32 bits."
    if spread.amax == 0:
        contents = "no finite value other than 0" if spread.count else "no elements"
        return f"It holds {contents}, so there is nothing to judge."
    if count < SMALL and count <= SMALL_SHARE * values:
        return f"Its {plural(count, 'value')} are too few to be worth a format of their own."
    return ""


def _best(passing: Sequence[WorstMetrics]) -> WorstMetrics:
    """Return the best of the candidates that are good enough.

    Bits are bits per value, scales included. Of the candidates that need at most 5 % more bits than the one that needs
    the fewest, that of highest SQNR decides the format. Of these candidates in that format whose SQNR is within 1 dB
    of the highest, the one of fewest bits is returned. passing: the candidates, at least one.
    """
    least = min(candidate.bits_per_value for candidate in passing)
    width = [candidate for candidate in passing if candidate.bits_per_value <= DEAR_SCALES * least]
    best = max(width, key=lambda candidate: (candidate.sqnr_db, -candidate.bits_per_value))
    similar = [c for c in width if c.format == best.format and c.sqnr_db >= best.sqnr_db - SCALE_GAIN_DB]
    return min(similar, key=lambda candidate: candidate.bits_per_value)


def _clearly_better(candidate: WorstMetrics, one: WorstMetrics) -> bool:
    """Return whether a tensor should get `candidate` rather than `one`, the candidate that many operands share.

    Both must be floats, and `candidate` must have an SQNR at least 3 dB higher for at most 5 % more bits per value,
    scales included. Integers never replace a common float candidate, since no library multiplies integers by floats.
    """
    if not one.is_float:
        return False
    cheap = candidate.bits_per_value <= DEAR_SCALES * one.bits_per_value
    return candidate.is_float and cheap and candidate.sqnr_db >= one.sqnr_db + CLEAR_DB


class Uniform(NamedTuple):
    """A candidate (format with a scaling) that all operands of a study could share.

    Attributes:
      name: name of the candidate.
      share: share (0 to 1) of the values that are in operands for which this candidate is good enough; values of
        operands for which no candidate is good enough do not count.
      sqnr_db: its lowest SQNR, in dB, over the operands for which it is good enough.
    """

    name: str
    share: float
    sqnr_db: float


def uniform_choice(
    worst: Mapping[str, Sequence[WorstMetrics]], rows: Sequence[Recommendation], wanted: Requirements
) -> Uniform | None:
    """Return the candidate (format with a scaling) of the fewest bits that is good enough for nearly all operands.

    Return None if no candidate is good enough for any operand. Operands for which no candidate is good enough do not
    count. A candidate must be good enough for operands that together have 95 % of the values. If none is, those that
    are good enough for the largest share of the values are compared. Of candidates that need up to 5 % more bits than
    the one that needs the fewest, the one whose lowest SQNR over the operands is highest decides the format. Of these
    candidates in that format whose lowest SQNR is within 1 dB of the highest, the one of fewest bits is returned.

    Args:
      worst: tensor name -> its candidates, each with its worst metrics over the training steps.
      rows: recommendations, from which the number of values of each tensor is read.
      wanted: the requirements of the study.
    """
    judged = {row.tensor: row.values for row in rows if row.tensor in worst}
    suited: dict[str, list[tuple[int, WorstMetrics]]] = {}
    total = 0  # values of operands that some candidate suits
    for tensor, values in judged.items():
        good_enough = [candidate for candidate in worst[tensor] if not candidate.misses(wanted)]
        total += values if good_enough else 0
        for candidate in good_enough:
            suited.setdefault(candidate.name, []).append((values, candidate))
    if not suited:
        return None

    shares = {name: round(sum(values for values, _ in good) / total, 3) for name, good in suited.items()}
    enough = min(max(shares.values()), UNIFORM_SHARE)
    bits = {
        name: math.fsum(values * one.bits_per_value for values, one in good) / sum(values for values, _ in good)
        for name, good in suited.items() if shares[name] >= enough
    }  # fmt: skip
    least = min(bits.values())
    width = {name: suited[name] for name in bits if bits[name] <= DEAR_SCALES * least}
    lowest = {name: min(c.sqnr_db for _, c in good) for name, good in width.items()}
    best = max(lowest, key=lowest.__getitem__)
    fmt = width[best][0][1].format
    similar = [n for n, good in width.items() if good[0][1].format == fmt and lowest[n] >= lowest[best] - SCALE_GAIN_DB]
    name = min(similar, key=bits.__getitem__)
    return Uniform(name, sum(values for values, _ in width[name]) / total, lowest[name])
