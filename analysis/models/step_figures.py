"""Metrics of one recorded step, which functions given to `Recording.listen` receive when the step ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from fpsim.analysis.models.monitors import Monitors
from fpsim.analysis.models.rows import RecordedRow


class StepFigures(NamedTuple):
    """Metrics of one recorded step.

    Attributes:
      step: the number of the step.
      gradient_norm: norm of the gradient; this and the next two are None if no optimizer updated weights.
      update_ratio: norm of the weights' change / norm of the weights.
      lost_updates: share of the elements with a nonzero gradient that the step did not change.
      scales: name -> value of the scales that last from step to step: "loss", and delayed scales of layers.
      fallback: whether the optimizer's step was skipped because of overflow, so that the loss scale was reduced.
      smallest, amax: smallest nonzero and largest finite magnitude of all activations; NaN without activations.
      overflow: (layer, tensor) of the first tensor with Inf or NaN, in the order in which products ran, or None.
    """

    step: int
    gradient_norm: float | None
    update_ratio: float | None
    lost_updates: float | None
    scales: dict[str, float]
    fallback: bool
    smallest: float
    amax: float
    overflow: tuple[str, str] | None

    def __str__(self) -> str:
        """Return the metrics of the step as one line of text.

        Example:
          >>> from fpsim.analysis.models.step_figures import StepFigures
          >>> print(StepFigures(3, 0.5, 1e-3, None, {"loss": 1024.0}, False, 1e-6, 40.0, None))
          step 3: gradient norm 0.5, update / weight norm 0.001, activations 1e-06 to 40, loss scale 1024
        """
        parts = []
        if self.gradient_norm is not None and self.update_ratio is not None:
            share = math.nan if self.lost_updates is None else self.lost_updates
            lost = "" if math.isnan(share) else f" ({100 * share:.3g} % rounded away)"
            parts += [f"gradient norm {self.gradient_norm:.3g}", f"update / weight norm {self.update_ratio:.2g}{lost}"]
        if not math.isnan(self.amax):
            parts.append(f"activations {self.smallest:.2g} to {self.amax:.3g}")
        if "loss" in self.scales:
            parts.append(f"loss scale {self.scales['loss']:g}" + (", step skipped" if self.fallback else ""))
        if self.overflow is not None:
            layer, tensor = self.overflow
            parts.append(f"Inf or NaN first in the {tensor.replace('_', ' ')} of layer {layer}")
        return f"step {self.step}: " + ", ".join(parts or ["nothing was measured"])


def figures_of(step: int, rows: Iterable[RecordedRow], monitors: Monitors) -> StepFigures:
    """Return the metrics of a recorded step.

    step: the step's number. rows: rows of all recorded steps, in the order in which products ran. monitors: the
    optimizer's effects in all steps.
    """
    mine = [row for row in rows if row.step == step]
    updates = Monitors(tuple(item for item in monitors.updates if item.step == step))
    sums = next(iter(updates), {})
    scales = [item for item in monitors.scales if item.step == step]
    activations = [row.range for row in mine if row.role == "activation"]
    finite = [item.amax for item in activations if math.isfinite(item.amax)]
    small = [item.smallest for item in activations if item.smallest and math.isfinite(item.smallest)]
    broken = next((row for row in mine if row.range.infinities or row.range.nans), None)
    return StepFigures(
        step, sums.get("gradient_norm"), sums.get("update_ratio"), sums.get("lost_updates"),
        {item.name: item.scale for item in scales},
        any(item.fallback for item in scales), min(small, default=math.nan), max(finite, default=math.nan),
        None if broken is None else (broken.layer, broken.tensor),
    )  # fmt: skip
