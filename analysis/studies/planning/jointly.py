"""Joint measurements of plans: all products run in their recipes at once. Each is saved as soon as it is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpsim.analysis.studies.cells import Cells, SweepCell
from fpsim.analysis.studies.identity import digest
from fpsim.analysis.studies.planning.evidence import FIGURES, Evidence, Measured
from fpsim.analysis.studies.planning.problem import Slot
from fpsim.analysis.studies.sensitivity.row import SPREADS


class Jointly:
    """Joint measurements of plans: all products of the model run in their recipes at once; each plan only once.

    Args:
      evidence: the evidence of a plan, whose `together` runs the model.
      out: a folder that stores each measurement, or None.
    Raises:
      ValueError: the folder's measurements are of another model, data or recipes, or there is a folder, but no model to
        measure.
    """

    def __init__(self, evidence: Evidence, out: Path | None) -> None:
        self._evidence = evidence
        self._known: dict[str, dict[str, Any]] = {}
        self._cells: Cells | None = None
        if out is None:
            return
        if not evidence.identity:
            raise ValueError("out must be None for budgets, which have no model to measure jointly. Leave it out.")
        self._cells = Cells(
            out, "fpsim.analysis.plan", evidence.identity, ["assignment"], kind="plan",
            changed="with another model, data or recipes",
        )  # fmt: skip
        self._known = {key: cell.result for key, cell in self._cells.finished.items() if cell.result is not None}

    def __enter__(self) -> Jointly:
        return self

    def __exit__(self, *_: object) -> None:
        if self._cells is not None:
            self._cells.close()

    def of(self, assignment: Mapping[Slot, str]) -> Measured | None:
        """Return the metric measured with an assignment, (layer, product) -> recipe name; None without a model to run.

        The metric is read from the folder if it was measured before.
        """
        words = "; ".join(f"{layer} {product}: {name}" for (layer, product), name in sorted(assignment.items()))
        key = digest(words)
        if key not in self._known:
            if self._evidence.together is None:
                return None
            row = self._evidence.together(assignment)
            figures = {name: float(getattr(row, name)) for name in (*FIGURES, *SPREADS.values())}
            self._known[key] = figures
            if self._cells is not None:
                self._cells.add(SweepCell(key, {"assignment": words}, figures))
        metrics, figure = self._known[key], self._evidence.figure
        return Measured.of(figure, metrics[figure], metrics[SPREADS[figure]])
