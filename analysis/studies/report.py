"""The report of a study: ranges, errors and recommendations, as tables, pictures and a page."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpsim.analysis.studies.results import StudyResults
from fpsim.analysis.studies.worst import or_zero
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.errors import require_kind, require_same


@dataclass(frozen=True)
class StudyReport(StudyResults):
    """The measurements of a study (ranges, errors), the recommendations made from them, and tables and a page of both.

    Attributes:
      description: the tensors as text.
      candidates: the formats with scalings that were compared.
      roundings, seed: names of the rounding modes, and the seed of stochastic rounding. Up to two candidates without a
        scale per tile are measured in all modes; the others in nearest-even alone, or in the first mode if that is
        missing.
      requirements: the requirements that a recommended candidate meets.
      ranges: one RangeRow for each tensor and step, measured before rounding.
      errors: one ErrorRow for each tensor, step, format, scaling and rounding.
      losses: the losses of the training run that produced the tensors, one per step; () without a run.
      notes: a sentence for each tensor that was left out, with the reason.
      problems: a sentence for each file that could not be studied.
    """

    def compare(self, other: StudyReport) -> DataFrame:
        """Compare the recommendations with those of another study, for example of a later checkpoint.

        The result is a pandas DataFrame with a row for each tensor of either study. Its columns are tensor, role,
        choice, other_choice, sqnr_db, other_sqnr_db and change_db (SQNR of `other` minus that of this study). Cells are
        None or NaN if one study lacks the tensor. Rows whose choice differs come first, then those whose SQNR changed
        most. Raise a TypeError if `other` is not a StudyReport.
        """
        require_kind("other", other, StudyReport, "a StudyReport")
        mine = {row.tensor: row for row in self.recommendations}
        others = {row.tensor: row for row in other.recommendations}
        rows: list[dict[str, Any]] = []
        for name in dict.fromkeys([*mine, *others]):
            a, b = mine.get(name), others.get(name)
            change = b.sqnr_db - a.sqnr_db if a and b and a.sqnr_db != b.sqnr_db else 0.0 if a and b else math.nan
            rows.append(
                {
                    "tensor": name,
                    "role": (a or b).role,  # type: ignore[union-attr]
                    "choice": a.choice if a else None,
                    "other_choice": b.choice if b else None,
                    "sqnr_db": a.sqnr_db if a else math.nan,
                    "other_sqnr_db": b.sqnr_db if b else math.nan,
                    "change_db": change,
                }
            )
        rows.sort(key=lambda row: (row["choice"] == row["other_choice"], -or_zero(abs(row["change_db"]))))
        return frame(rows)

    def to_frame(self) -> DataFrame:
        """Return the errors as a pandas DataFrame with a row for each tensor, step, format, scaling and rounding."""
        return frame(list(self.error_rows()))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the SQNR deficit in dB of each operand in each candidate (format with a scaling), and return the axes.

        The deficit is how far the operand's SQNR is below that of the format on data that suits it: normal data for
        floats, uniform data for integers. `ax`: the matplotlib axes to draw into; None for new ones.
        """
        from fpsim.analysis.studies.figures import deficit_axes

        return deficit_axes(self, ax=ax)

    def merge(self, other: StudyReport) -> StudyReport:
        """Return one report on the tensors of this study and of `other`, as for shards that were studied separately.

        Raises:
          TypeError: other is not a StudyReport.
          ValueError: the studies have different settings, or have a tensor and step in common.
        """
        require_kind("other", other, StudyReport, "a StudyReport")
        require_same("studies", self, other, ("candidates", "roundings", "seed", "requirements"), _shown)
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
        """Write report.html and the tables into a folder, in place of those of an earlier study.

        Either all files are replaced or none. In the CSV files, an apostrophe is written before text that looks like a
        formula, such as the tensor name "=w".

        Args:
          folder: a folder, which is created if it is missing.
        Returns:
          The paths written, and a sentence for each output left out because an optional package is missing.
        """
        from fpsim.analysis.studies.saving import save

        return save(self, Path(folder))

    def _repr_html_(self) -> str:
        """Return the result in one sentence and a table of recommendations by group, as HTML for notebooks."""
        from fpsim.analysis.studies.page import recommendation_table

        return recommendation_table(self)


def _shown(value: Any) -> str:
    """Return a setting of a study as text: a number, or the names or values of a tuple, joined by commas."""
    names = (getattr(item, "name", item) for item in value) if isinstance(value, tuple) else (value,)
    return ", ".join(map(str, names))
