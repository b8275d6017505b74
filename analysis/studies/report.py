"""The result of a study: rows of ranges, errors and recommendations, as tables, pictures and a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fpsim.analysis.studies.recommend import ErrorRow, RangeRow, Recommendation, recommend
from fpsim.display.optional import frame
from fpsim.formats.named import Format


@dataclass(frozen=True)
class StudyReport:
    """What a study measured.

    Attributes:
      description: what the tensors are.
      formats, roundings, scales, seed: how each was rounded.
      ranges: one row for each tensor and step.
      errors: one row for each tensor, step, format, rounding and scaling.
      losses: of the training run that the tensors come from, if any.
      notes, problems: tensors left out, and files that could not be studied, one line each.
    """

    description: str
    formats: tuple[Format, ...]
    roundings: tuple[str, ...]
    scales: tuple[str, ...]
    seed: int
    ranges: tuple[RangeRow, ...] = dataclasses.field(repr=False)
    errors: tuple[ErrorRow, ...] = dataclasses.field(repr=False)
    losses: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def judged_rounding(self) -> str:
        """The rounding that recommendations and pictures are based on: nearest-even where it was studied."""
        return "nearest_even" if "nearest_even" in self.roundings else self.roundings[0]

    @property
    def element_count(self) -> int:
        """Elements of all tensors and steps."""
        return sum(row.report.count for row in self.ranges)

    @cached_property
    def ranges_of(self) -> dict[str, tuple[RangeRow, ...]]:
        """Tensor name -> its rows in the order of the steps."""
        found: dict[str, list[RangeRow]] = {}
        for row in self.ranges:
            found.setdefault(row.tensor, []).append(row)
        return {name: tuple(sorted(rows, key=lambda row: row.step or 0)) for name, rows in found.items()}

    @cached_property
    def errors_of(self) -> dict[str, tuple[ErrorRow, ...]]:
        """Tensor name -> its rows in the order of the steps."""
        found: dict[str, list[ErrorRow]] = {}
        for row in self.errors:
            found.setdefault(row.tensor, []).append(row)
        return {name: tuple(sorted(rows, key=lambda row: row.step or 0)) for name, rows in found.items()}

    @cached_property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """The smallest format and simplest scaling for each tensor that meet the requirements at every step."""
        return tuple(
            recommend(
                name,
                [row for row in self.errors_of.get(name, ()) if row.report.rounding == self.judged_rounding],
                rows,
            )
            for name, rows in self.ranges_of.items()
        )

    def error_rows(self) -> Iterator[dict[str, Any]]:
        """The table of errors, one dict of figures for each row."""
        facts = {(row.tensor, row.step): (row.layer, row.role) for row in self.ranges}
        for tensor, step, scaling, report in self.errors:
            layer, role = facts[tensor, step]
            names = {"tensor": tensor, "layer": layer, "role": role, "step": step, "scaling": scaling}
            yield {**names, **report.to_dict()}

    def range_rows(self) -> Iterator[dict[str, Any]]:
        """The table of ranges: amax, smallest value, special values, and exponents at 1 %, 50 % and 99 %."""
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
        """The exponent histograms, one dict for each tensor, step and exponent."""
        for row in self.ranges:
            for exponent, count in row.report.counts:
                yield {"tensor": row.tensor, "step": row.step, "exponent": exponent, "count": count}

    def recommendation_rows(self) -> Iterator[dict[str, Any]]:
        """The table of recommendations."""
        for row in self.recommendations:
            yield dataclasses.asdict(row)

    def to_frame(self) -> Any:
        """The table of errors as a pandas DataFrame."""
        return frame(list(self.error_rows()))

    def plot(self, ax: Any = None) -> Any:
        """Draw the heat map of underflow, tensor by format; returns the matplotlib axes."""
        from fpsim.analysis.studies.figures import underflow_axes

        return underflow_axes(self, list(self.ranges_of), ax=ax)

    def merge(self, other: StudyReport) -> StudyReport:
        """One report of both studies' tensors, for example of shards that were studied apart.

        Raises:
          ValueError: they were made differently, or share a tensor's name and step.
        """
        for name in ("formats", "roundings", "scales", "seed"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(
                    f"studies to merge must have the same {name}; got {_shown(mine)} and {_shown(others)}."
                )
        shared = {(r.tensor, r.step) for r in self.ranges} & {(r.tensor, r.step) for r in other.ranges}
        if shared:
            raise ValueError(f"studies to merge must hold different tensors; both have {min(t for t, _ in shared)!r}.")
        texts = dict.fromkeys((self.description, other.description))
        return dataclasses.replace(
            self,
            description="; ".join(texts),
            ranges=self.ranges + other.ranges,
            errors=self.errors + other.errors,
            losses=self.losses or other.losses,
            notes=self.notes + other.notes,
            problems=self.problems + other.problems,
        )

    def save(self, folder: str | Path) -> tuple[list[Path], list[str]]:
        """Write report.html and the tables, in the place of an earlier study's: all of them or none.

        In the CSV files text that begins like a formula, such as the tensor name "=w", begins with an apostrophe.

        Args:
          folder: made if needed.
        Returns:
          The files, and a line for each thing that an absent optional package left out.
        """
        from fpsim.analysis.studies.saving import save

        return save(self, Path(folder))

    def _repr_html_(self) -> str:
        from fpsim.analysis.studies.page import recommendation_table

        return recommendation_table(self)


def _shown(value: Any) -> str:
    """A setting in words."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
