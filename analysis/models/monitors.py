"""Monitors of a training run: gradient norms, sizes of updates, lost updates, and scales over the steps."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word


class HasScale(Protocol):
    """The type of objects that know the loss scale, such as a torch.amp.GradScaler."""

    def get_scale(self) -> float:
        """Return the current loss scale."""
        ...


class Update(NamedTuple):
    """The effect of one optimizer step on one parameter.

    Attributes:
      step: the number of the step.
      parameter: the parameter's qualified name.
      gradient, weight, update: sums of squares of the gradient, of the weight before the step, and of its change.
      asked: number of elements whose gradient is not 0.
      lost: number of these elements that the step did not change.
    """

    step: int
    parameter: str
    gradient: float
    weight: float
    update: float
    asked: int
    lost: int

    def to_dict(self) -> dict[str, Any]:
        """Return a table row, column -> value: step, parameter, gradient_norm, update_ratio and lost_updates."""
        return {"step": self.step, "parameter": self.parameter, **_metrics([self])}


class Scale(NamedTuple):
    """Value of the loss scale, or of a delayed scale of a quantized layer, at the end of a training step.

    Attributes:
      step: the number of the step.
      name: "loss"; for a delayed scale, the layer's name and the operand, such as "fc.input".
      scale: the scale's value.
      fallback: whether the optimizer's step was skipped because of overflow, so that the loss scale was reduced.
    """

    step: int
    name: str
    scale: float
    fallback: bool


@dataclass(frozen=True)
class Monitors:
    """The effects of a training run's optimizer on the weights, step by step.

    Iteration yields a dictionary for each step, with the keys step, gradient_norm, update_ratio and lost_updates. The
    metrics are over all parameters together. "gradient_norm" is the norm of the gradient. "update_ratio" is the
    norm of the weights' change divided by that of the weights. "lost_updates" is the share of elements with a nonzero
    gradient that the step did not change.

    Attributes:
      updates: an Update for each step and parameter.
      scales: a Scale for each step and scale.
    """

    updates: tuple[Update, ...] = ()
    scales: tuple[Scale, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield a dictionary for each step: step, gradient_norm, update_ratio and lost_updates, over all parameters."""
        by_step: dict[int, list[Update]] = {}
        for update in self.updates:
            by_step.setdefault(update.step, []).append(update)
        for step, updates in sorted(by_step.items()):
            yield {"step": step, **_metrics(updates)}

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the training steps for which an update of a parameter is stored, in ascending order."""
        return tuple(sorted({update.step for update in self.updates}))

    def merge(self, other: Monitors) -> Monitors:
        """Return one Monitors with the updates and scales of this Monitors and of `other`.

        Two updates of one step and parameter count once if all their fields are equal, as those of data-parallel ranks
        are; otherwise their sums of squares and numbers of elements are added.

        Example:
          >>> from fpsim.analysis.models.monitors import Monitors, Update
          >>> one = Monitors((Update(1, "w", 9.0, 1.0, 1.0, 4, 1),))
          >>> one.merge(one) == one, list(one)[0]["gradient_norm"]
          (True, 3.0)
        """
        merged = {(update.step, update.parameter): update for update in self.updates}
        for update in other.updates:
            mine = merged.get((update.step, update.parameter), update)
            sums = update[2:] if mine == update else tuple(a + b for a, b in zip(mine[2:], update[2:], strict=True))
            merged[update.step, update.parameter] = Update(update.step, update.parameter, *sums)
        updates = tuple(sorted(merged.values(), key=lambda update: update.step))
        return Monitors(
            updates, tuple(sorted(dict.fromkeys((*self.scales, *other.scales)), key=lambda update: update.step))
        )

    def to_frame(self, by: str = "step") -> DataFrame:
        """Return a pandas DataFrame with one row per step, or per step and parameter.

        Args:
          by: "step" for the columns step, gradient_norm, update_ratio and lost_updates, over all parameters together;
            "parameter" for a row with these and the parameter's name for each step and parameter.
        Raises:
          ValueError: by is neither.
        """
        require_word("by", by, ("step", "parameter"))
        return frame(list(self) if by == "step" else [update.to_dict() for update in self.updates])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the gradient norm, the size of updates and the share of lost updates over the steps.

        A lost update is an element with a nonzero gradient that the step did not change.

        Args:
          ax: matplotlib axes; None for those of a new figure.
        Returns:
          The axes.
        Raises:
          ValueError: no step of an optimizer was seen.
        """
        from fpsim.analysis.models.monitors_figure import monitors_axes

        rows = list(self)
        if not rows:
            raise ValueError("no step of an optimizer was seen. Call optimizer.step() in the block of record().")
        return monitors_axes(rows, ax)

    def _repr_html_(self) -> str:
        """Return the metrics of the last step as HTML for notebooks."""
        return f"<p>{html.escape(str(self))}</p>"

    def __str__(self) -> str:
        """Return the metrics of the last step in one line."""
        rows = list(self)
        if not rows:
            return "no step of an optimizer was seen"
        last = rows[-1]
        lost = f", and {percent(last['lost_updates'])} of the updates were rounded away"
        return (
            f"{plural(len(rows), 'step')}; in the last, the gradient norm is {last['gradient_norm']:.3g}, update / "
            f"weight norm {last['update_ratio']:.2g}{'' if math.isnan(last['lost_updates']) else lost}"
        )


def _metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Return gradient_norm, update_ratio and lost_updates, name -> value, over all given updates together.

    A quotient 0 / 0 is NaN. See `Monitors` for the metrics.
    """
    gradient = math.fsum(one.gradient for one in updates)
    weight, update = math.fsum(one.weight for one in updates), math.fsum(one.update for one in updates)
    with_gradient = sum(one.asked for one in updates)
    return {
        "gradient_norm": math.sqrt(gradient),
        "update_ratio": math.sqrt(update / weight) if weight else math.nan,
        "lost_updates": sum(one.lost for one in updates) / with_gradient if with_gradient else math.nan,
    }
