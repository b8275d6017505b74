"""The measurements and recommendations of a study, from which its page, pictures and files are made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from fpsim.analysis.studies.candidates import CastCandidate
from fpsim.analysis.studies.recommend import Uniform, recommend, uniform_choice
from fpsim.analysis.studies.rows import ErrorRow, RangeRow, Recommendation, Requirements, TensorGroup, groups_of
from fpsim.analysis.studies.worst import WorstMetrics, worst_of
from fpsim.display.wording import bytes_in_words, decibels, percent, plural
from fpsim.formats.element import Element


@dataclass(frozen=True)
class StudyResults:
    """Settings and measurements of a study, and the recommendations made from them.

    This is the base class of StudyReport, whose documentation describes the attributes, and which writes and draws
    them.
    """

    description: str
    candidates: tuple[CastCandidate, ...]
    roundings: tuple[str, ...]
    seed: int
    requirements: Requirements
    ranges: tuple[RangeRow, ...] = dataclasses.field(repr=False)
    errors: tuple[ErrorRow, ...] = dataclasses.field(repr=False)
    losses: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def formats(self) -> tuple[Element, ...]:
        """The formats of the candidates, without repetitions."""
        return tuple(dict.fromkeys(candidate.element for candidate in self.candidates))

    @property
    def judged_rounding(self) -> str:
        """Name of the rounding that recommendations are based on: "nearest_even" if studied, else the first studied."""
        return "nearest_even" if "nearest_even" in self.roundings else self.roundings[0]

    @property
    def element_count(self) -> int:
        """Number of elements of all tensors, added over all training steps."""
        return sum(row.report.count for row in self.ranges)

    @cached_property
    def ranges_of(self) -> dict[str, tuple[RangeRow, ...]]:
        """Tensor name -> its ranges before rounding, in the order of the steps."""
        return _by_tensor(self.ranges)

    @cached_property
    def errors_of(self) -> dict[str, tuple[ErrorRow, ...]]:
        """Tensor name -> its errors in every candidate (format with a scaling) and rounding, in order of the steps."""
        return _by_tensor(self.errors)

    @cached_property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """The format and scaling chosen for each tensor: those of the fewest bits, then of the highest SQNR.

        A candidate is judged at the training step at which its SQNR is lowest. Only operands of products get fewer
        bits. Operands whose best formats have equally many bits share one candidate (format with a scaling). An operand
        gets its own best candidate instead in three cases: the shared one is not good enough for it, or needs over a
        quarter more bits than the best one, or another float candidate of at most 5 % more bits is 3 dB better.
        Integers are chosen only if no tensor is an activation or gradient, whose products need float units.
        """
        return tuple(
            self._recommended(name, one.name if (one := self._uniforms.get(self._bits_of.get(name, 0))) else "")
            for name in self.ranges_of
        )

    @cached_property
    def _each_alone(self) -> tuple[Recommendation, ...]:
        """The recommendation for each tensor alone, without preferring a candidate that others share."""
        return tuple(self._recommended(name) for name in self.ranges_of)

    @cached_property
    def _values(self) -> int:
        """Number of values of all tensors together, each counted at its last training step."""
        return sum(rows[-1].report.count for rows in self.ranges_of.values())

    def _recommended(self, name: str, uniform: str = "") -> Recommendation:
        """Return the recommendation for the tensor `name`, preferring the candidate named `uniform` ("" for none)."""
        rows, wanted = self.ranges_of[name], self.requirements
        return recommend(name, judged(self, name), rows, wanted, self._floats_only, self._values, uniform)

    @property
    def _floats_only(self) -> bool:
        """True if the study has activations or gradients; then integers are not recommended for any tensor."""
        return any(row.role in ("activation", "gradient") for row in self.ranges)

    @cached_property
    def _worst(self) -> dict[str, list[WorstMetrics]]:
        """Name of a tensor -> the tensor's candidates, each with its worst metrics over the training steps.

        Only operands of products that were judged are included. If the study has activations or gradients, candidates
        of integer formats are left out.
        """
        worst = {}
        for row in self._each_alone:
            candidates = worst_candidates(self, row.tensor)
            if row.operand and candidates and (row.met or row.failed):
                worst[row.tensor] = [c for c in candidates if c.is_float or not self._floats_only]
        return worst

    @cached_property
    def _bits_of(self) -> dict[str, int]:
        """Operand name -> bits per element of the format recommended for it alone; operands that keep their dtype are
        left out."""
        return {
            row.tensor: next(c.bits for c in self._worst[row.tensor] if c.format == row.format)
            for row in self._each_alone
            if row.met and row.tensor in self._worst
        }

    @cached_property
    def _uniforms(self) -> dict[int, Uniform]:
        """Bits per element -> the best common candidate of all operands whose own recommended format has that many
        bits."""
        uniforms = {}
        for bits in set(self._bits_of.values()):
            worst = {name: self._worst[name] for name, of_name in self._bits_of.items() if of_name == bits}
            one = uniform_choice(worst, self._each_alone, self.requirements)
            if one is not None:
                uniforms[bits] = one
        return uniforms

    @cached_property
    def uniform(self) -> Uniform | None:
        """The best candidate (format with a scaling) for all operands together; None if no candidate is good enough for
        any."""
        return uniform_choice(self._worst, self._each_alone, self.requirements)

    @cached_property
    def groups(self) -> tuple[TensorGroup, ...]:
        """The tensors grouped by role and recommendation (see `groups_of`)."""
        return groups_of(self.recommendations)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors at one training step, as they are stored in the source."""
        return round(sum(row.values * row.stored_bits for row in self.recommendations) / 8)

    @property
    def recommended_bytes(self) -> int:
        """Bytes of all tensors at one training step in the recommended formats, scales included."""
        return round(sum(row.values * row.bits_per_value for row in self.recommendations) / 8)

    @cached_property
    def answer(self) -> str:
        """The result in one sentence: the main recommended formats, their share of the values, and the bytes saved."""
        total = sum(row.values for row in self.recommendations)
        chosen = [group for group in self.groups if group.met]
        if not total:
            return "There is no value to judge."
        if not chosen:
            many = len(self.recommendations)
            which = f"None of the {many:,} tensors should" if many > 1 else "The tensor should not"
            return f"{which} be stored in fewer bits with these candidates and requirements."
        named = []
        for group in chosen[:2]:
            sqnr = "without error" if group.sqnr_db == math.inf else f"at {decibels(group.sqnr_db)} or more"
            sqnr = f"at {decibels(group.sqnr_db)}" if len(group.rows) == 1 and sqnr != "without error" else sqnr
            named.append(f"{group.choice} for {group.title} ({percent(group.values / total)} of the values, {sqnr})")
        more = len(chosen) - 2
        text = ", ".join(named) + (f", and {plural(more, 'smaller group')}" if more > 0 else "")
        before, after = self.stored_bytes, self.recommended_bytes
        saved = f"{bytes_in_words(before)} become {bytes_in_words(after)}"
        if after < before:
            saved += f", {percent(1 - after / before)} less"
        high = sum(row.values for row in self.recommendations if not row.met)
        stays = f"; {percent(high / total)} of the values keep their dtype" if high else ""
        return f"{text}: {saved}{stays}."

    def error_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table of errors as dictionaries.

        The keys are tensor, layer, role, step and scaling, every metric of the row's ErrorReport, and channel_sqnr_db.
        """
        names_of = {(row.tensor, row.step): (row.layer, row.role) for row in self.ranges}
        for tensor, step, scaling, report, channels in self.errors:
            layer, role = names_of[tensor, step]
            names = {"tensor": tensor, "layer": layer, "role": role, "step": step, "scaling": scaling}
            # reports with a scale per tile have a scaling too
            yield {**names, **report.to_dict(), "scaling": scaling, "channel_sqnr_db": channels}

    def range_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table of ranges as dictionaries, one for each tensor and step.

        The keys are tensor, layer, role, step, dtype and shape (text such as "64x128"); count, zeros, infinities and
        nans (numbers of elements); amax and smallest (magnitudes); and exponent_1_percent, exponent_median and
        exponent_99_percent, which 1 %, 50 % and 99 % of the nonzero finite values do not exceed.
        """
        for row in self.ranges:
            report = row.report
            yield {
                "tensor": row.tensor, "layer": row.layer, "role": row.role, "step": row.step, "dtype": row.dtype,
                "shape": "x".join(map(str, row.shape)), "count": report.count, "zeros": report.zeros,
                "infinities": report.infinities, "nans": report.nans, "amax": report.amax,
                "smallest": report.smallest, "exponent_1_percent": report.quantile(0.01),
                "exponent_median": report.quantile(0.5), "exponent_99_percent": report.quantile(0.99),
            }  # fmt: skip

    def exponent_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the histograms of exponents as dictionaries, one for each tensor, step and binary exponent.

        The keys are tensor, step, exponent, and count, the number of values with this exponent.
        """
        for row in self.ranges:
            for exponent, count in row.report.counts:
                yield {"tensor": row.tensor, "step": row.step, "exponent": exponent, "count": count}

    def recommendation_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table of recommendations as dictionaries, one for each tensor.

        The keys are every field of Recommendation, and `operand`, whether the tensor is an operand of products.
        """
        for row in self.recommendations:
            yield {**dataclasses.asdict(row), "operand": row.operand}


Row = TypeVar("Row", RangeRow, ErrorRow)


def _by_tensor(rows: Sequence[Row]) -> dict[str, tuple[Row, ...]]:
    """Return a dictionary, tensor name -> the rows of this tensor in the order of the training steps."""
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        rows_of.setdefault(row.tensor, []).append(row)
    return {name: tuple(sorted(rows, key=lambda row: row.step or 0)) for name, rows in rows_of.items()}


def judged(report: StudyResults, tensor: str) -> Sequence[ErrorRow]:
    """Return a tensor's errors for each candidate and step, in the rounding on which recommendations are based.

    This rounding is nearest-even if it was studied, else the first one studied. Return [] for an unknown tensor.
    `tensor`: name of the tensor.
    """
    return [row for row in report.errors_of.get(tensor, ()) if row.report.rounding == report.judged_rounding]


def worst_candidates(report: StudyResults, tensor: str) -> list[WorstMetrics]:
    """Return a WorstMetrics for every candidate (format with a scaling): its worst metrics over a tensor's steps.

    tensor: name of the tensor. Return [] if the tensor has no finite value other than 0.
    """
    amax = max(row.report.amax for row in report.ranges_of[tensor])
    return worst_of(judged(report, tensor), amax) if amax > 0 else []
