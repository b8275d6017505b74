"""Properties of the additions of a candidate or a program, which are attributes of a model."""

from __future__ import annotations

from typing import NamedTuple

from fpsim.formats.named import FP32, Format
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.probe.candidates import ALIGNMENT, AdderCandidate, spine
from fpsim.probe.programs.program import Program
from fpsim.schedules.schedule import Lanes
from fpsim.sums.accumulators import Accumulator

ALL_FLUSHES = ("inputs", "products", "sums")
# of the units whose subnormals become zero; products of fused steps are not rounded
FLUSHES = {
    Rule.FLUSHED_TREE: ALL_FLUSHES, Rule.REVERSED_CHAIN: ("inputs", "sums"), Rule.TWO_CHAINS: ("inputs", "sums"),
    Rule.ODD_PAIR: ALL_FLUSHES,
}  # fmt: skip


class AdditionTraits(NamedTuple):
    """Properties of a model's additions, described in `fpsim.probe.Model`; each is None if it is unknown.

    A property is also None if several candidates reproduce the black box's bits, and differ in this property.
    """

    terms_per_step: int | None = None
    fraction_bits: int | None = None
    alignment: str | None = None
    rounding: str | None = None
    accumulator: Format | None = None
    promotion: int | None = None
    flushes_subnormals: bool | None = None
    flushes: tuple[str, ...] | None = None
    saturates: bool | None = None


def traits_of(alike: tuple[AdderCandidate, ...], program: Program | None) -> AdditionTraits:
    """Return the properties of the additions of a program, or if it is None, of the candidates `alike`.

    alike: candidates with the same bits. A property in which they differ is None.
    """
    if program is not None:
        rule = program.rule
        parts = spine(program.order.branch)
        even = len(parts) > 1 and len(set(parts[:-1])) == 1 and parts[-1] <= parts[0]
        sides = [name for name, x in zip("ab", rule.least_inputs, strict=False) if x > 0]
        inputs = ["inputs"] if len(sides) == len(rule.least_inputs) else [f"inputs of {name}" for name in sides]
        others = [name for name in ("products", "sums", "results") if name in rule.flushes]
        return AdditionTraits(
            program.order.terms_at_once, rule.fraction_bits, rule.alignment, rule.rounding,
            None if program.formats else rule.fmt, parts[0] if even else None,
            "sums" in rule.flushes, (*(inputs if sides else ()), *others), rule.overflow == "saturate",
        )  # fmt: skip
    traits = [_of_candidate(candidate) for candidate in alike]
    return AdditionTraits(*(values[0] if len(set(values)) == 1 else None for values in zip(*traits, strict=True)))


def _of_candidate(candidate: AdderCandidate) -> AdditionTraits:
    """Return the properties of a candidate's additions."""
    how = candidate.how
    if isinstance(how, Accumulator):
        return AdditionTraits(
            1, None, "exact", how.rounding.name.lower(), how.fmt, candidate.promotion, how.subnormals == "flush",
            ("sums",) if how.subnormals == "flush" else (), how.overflow != "nonfinite",
        )  # fmt: skip
    if candidate.schedule is not None and isinstance(candidate.schedule.sums, Lanes):
        return AdditionTraits(1, None, "exact", "nearest_even", FP32, None, False, (), False)
    return AdditionTraits(
        how.terms, how.fraction_bits or None, ALIGNMENT[how.rule], how.rounding, how.d.fmt, candidate.promotion,
        how.rule in FLUSHES, FLUSHES.get(how.rule, ()), False,
    )  # fmt: skip
