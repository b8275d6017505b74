"""The interface of a study for its page, pictures and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from fpsim.analysis.studies.candidates import CastCandidate
from fpsim.analysis.studies.rows import ErrorRow, RangeRow, Recommendation, Requirements, TensorGroup
from fpsim.formats.element import Element


class StudyResults(Protocol):
    """The part of a study that its page, pictures and files read; see `StudyReport`."""

    @property
    def description(self) -> str: ...

    @property
    def candidates(self) -> tuple[CastCandidate, ...]: ...

    @property
    def formats(self) -> tuple[Element, ...]: ...

    @property
    def roundings(self) -> tuple[str, ...]: ...

    @property
    def seed(self) -> int: ...

    @property
    def requirements(self) -> Requirements: ...

    @property
    def ranges(self) -> tuple[RangeRow, ...]: ...

    @property
    def errors(self) -> tuple[ErrorRow, ...]: ...

    @property
    def losses(self) -> tuple[float, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def problems(self) -> tuple[str, ...]: ...

    @property
    def judged_rounding(self) -> str: ...

    @property
    def element_count(self) -> int: ...

    @property
    def ranges_of(self) -> dict[str, tuple[RangeRow, ...]]: ...

    @property
    def errors_of(self) -> dict[str, tuple[ErrorRow, ...]]: ...

    @property
    def recommendations(self) -> tuple[Recommendation, ...]: ...

    @property
    def groups(self) -> tuple[TensorGroup, ...]: ...

    @property
    def answer(self) -> str: ...

    def error_rows(self) -> Iterator[dict[str, Any]]: ...

    def range_rows(self) -> Iterator[dict[str, Any]]: ...

    def exponent_rows(self) -> Iterator[dict[str, Any]]: ...

    def recommendation_rows(self) -> Iterator[dict[str, Any]]: ...


def judged(report: StudyResults, tensor: str) -> Sequence[ErrorRow]:
    """Return a tensor's errors with the rounding that recommendations and pictures are based on."""
    return [row for row in report.errors_of.get(tensor, ()) if row.report.rounding == report.judged_rounding]
