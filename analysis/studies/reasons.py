"""Sentences that say why a study recommends a format and scaling for a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fpsim.analysis.measures.comparison import scaling_name
from fpsim.analysis.studies.rows import Requirements
from fpsim.analysis.studies.worst import WorstMetrics, rank
from fpsim.display.wording import decibels, listed, percent
from fpsim.scaling.recipes import ROW

DEAR_SCALES = 1.05  # candidates within this factor of the fewest bits are compared by SQNR
VISIBLE_DB = 0.05  # smaller differences count as equal


class JudgedCandidates(NamedTuple):
    """The candidates (formats with scalings) of one tensor, and the decision on them.

    Attributes:
      best: the candidate that is recommended.
      alone: the candidate that would be recommended if the study had no other operands.
      runner_up: the candidate of the highest SQNR in another format of equally many bits; None if there is none.
      candidates: all candidates.
      passing: the candidates that meet the requirements and need at least a tenth fewer bits than the tensor takes as
        stored.
      wanted: the requirements of the study.
      uniform: name of the candidate that most operands of the study get; "" if there is none.
    """

    best: WorstMetrics
    alone: WorstMetrics
    runner_up: WorstMetrics | None
    candidates: Sequence[WorstMetrics]
    passing: Sequence[WorstMetrics]
    wanted: Requirements
    uniform: str


def reason_of(judged: JudgedCandidates) -> str:
    """Return sentences saying why `judged.best` was chosen for a tensor.

    The sentences give the candidate's metrics, the runner-up, and the reasons against fewer bits, against other scales,
    and against the candidate of most operands.
    """
    best, required = judged.best, judged.wanted.min_sqnr
    lost = f", {percent(best.lost_energy)} of the energy lost" if best.lost_energy else ""
    metrics = f"{decibels(best.sqnr_db)} (required: {required:g}) at {best.bits_per_value:.4g} bits{lost}."
    narrower = _why_not_fewer_bits(judged)
    plain = _why_not_fewer_scales(judged)
    apart = "" if judged.uniform and plain.startswith(f"{judged.uniform} has") else _why_not_uniform(judged)
    parts = (metrics, _runner_up(judged), narrower, plain, _why_not_finer_scales(judged), apart)
    return " ".join(filter(None, parts))


def why_none(closest: WorstMetrics, wanted: Requirements) -> str:
    """Return the sentences saying that no candidate is good enough for a tensor.

    `closest`: the candidate that is nearest to being good enough; those of the requirements `wanted` that it fails are
    named.
    """
    return f"No candidate is good enough. The closest, {closest.name}, has {listed(closest.misses(wanted))}."


def _runner_up(judged: JudgedCandidates) -> str:
    """Return the sentence that compares the SQNR of the runner-up with that of the chosen candidate.

    If the runner-up's SQNR is higher, the sentence says why it was not chosen. Return "" if there is no runner-up.
    """
    best, rival = judged.best, judged.runner_up
    if rival is None:
        return ""
    sqnr = _difference(rival.sqnr_db, best.sqnr_db)
    if rival.sqnr_db <= best.sqnr_db:
        return f"Runner-up: {rival.name}, {sqnr}."
    failed = rival.misses(judged.wanted)
    if failed:
        return f"Runner-up: {rival.name}, {sqnr}, but {listed(failed)}."
    shares = best is not judged.alone
    few = best.bits_per_value if shares else min(candidate.bits_per_value for candidate in judged.passing)
    dear = rival.bits_per_value > DEAR_SCALES * few or all(rival is not candidate for candidate in judged.passing)
    if dear or (not shares and rival.bits_per_value > best.bits_per_value):
        return f"Runner-up: {rival.name}, {sqnr}, but {rival.bits_per_value:.4g} bits with its scales."
    if shares:
        return f"Runner-up: {rival.name}, {sqnr}, which other operands do not have."
    top = max((c for c in judged.passing if c.format == best.format), key=lambda candidate: candidate.sqnr_db)
    return f"Runner-up: {rival.name}, {sqnr}, but {top.name} has more."


def _difference(sqnr_db: float, other_db: float) -> str:
    """Return an SQNR in dB compared with another one as text, such as "1.5 dB more" or "the same SQNR".

    A difference below 0.05 dB is "the same SQNR". If only one of the two is Inf, return the first SQNR itself as text.
    """
    more_db = sqnr_db - other_db
    if sqnr_db == other_db or abs(more_db) < VISIBLE_DB:
        return "the same SQNR"
    return decibels(sqnr_db) if math.isinf(more_db) else f"{abs(more_db):.1f} dB {'more' if more_db > 0 else 'less'}"


def _why_not_fewer_bits(judged: JudgedCandidates) -> str:
    """Return the sentence saying why no format of fewer bits was chosen for a tensor; "" if none was studied."""
    narrower = [candidate for candidate in judged.candidates if candidate.bits < judged.best.bits]
    if not narrower:
        return ""
    closest = max(narrower, key=rank)
    why = listed(closest.misses(judged.wanted)) or f"{closest.bits_per_value:.4g} bits with its scales"
    return f"Formats of fewer bits are not good enough: {closest.name} has {why}."


def _why_not_fewer_scales(judged: JudgedCandidates) -> str:
    """Return the sentence saying why the chosen format does not have a scaling of fewer bits.

    The sentence names the requirements that the format with such a scaling fails, or the dB of SQNR that it loses. If
    it fails none and loses no SQNR, the sentence says that other operands do not have this scaling. Return "" if that
    is not the reason either, or if no candidate of this format has fewer bits.
    """
    best = judged.best
    plain = [c for c in judged.candidates if c.format == best.format and c.bits_per_value < best.bits_per_value]
    if not plain:
        return ""
    closest = max(plain, key=rank)
    failed = closest.misses(judged.wanted)
    difference = _difference(closest.sqnr_db, best.sqnr_db)
    if failed or closest.sqnr_db < best.sqnr_db - VISIBLE_DB:
        return f"{closest.name} has {listed(failed) if failed else difference}."
    if best is judged.alone:
        return ""
    return f"{closest.name} has {difference} at {closest.bits_per_value:.4g} bits, but other operands do not have it."


def _why_not_finer_scales(judged: JudgedCandidates) -> str:
    """Return the sentence on how many dB smaller tiles would gain over a scale per row, and how many bits they add.

    Return "" if the chosen scaling is not a scale per row, or if no smaller tiles are good enough.
    """
    best = judged.best
    if best.scaling != scaling_name(ROW):
        return ""
    others = [c for c in judged.passing if c.format == best.format and c.scaling != best.scaling and c.has_tiles]
    finer = [c for c in others if c.bits_per_value >= best.bits_per_value]
    if not finer:
        return ""
    closest = max(finer, key=lambda candidate: candidate.sqnr_db)
    gain, added = closest.sqnr_db - best.sqnr_db, closest.bits_per_value - best.bits_per_value
    only = "only " if VISIBLE_DB <= gain < math.inf else ""
    bits = f" for another {added:.2g} bits" if added >= 0.005 else ""
    return f"{closest.name} has {only}{_difference(closest.sqnr_db, best.sqnr_db)}{bits}."


def _why_not_uniform(judged: JudgedCandidates) -> str:
    """Return the sentence saying why a tensor does not get `judged.uniform`, the candidate that most operands get.

    Return "" if it gets that candidate.
    """
    best, uniform = judged.best, judged.uniform
    common = next((candidate for candidate in judged.candidates if candidate.name == uniform != best.name), None)
    if common is None:
        return ""
    saved = common.bits_per_value - best.bits_per_value
    better = f"{saved:.3g} bits more" if saved > 0.05 else _difference(common.sqnr_db, best.sqnr_db)
    return f"Most operands have {common.name}, which has {listed(common.misses(judged.wanted)) or better} here."
