"""Loss scaling in training: a policy applied step by step, its trace, and the reasons why overflows end a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from fpsim.errors import require_kind, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP16
from fpsim.formats.named import format as find_format
from fpsim.recipes.loss_scaling import LossScalingPolicy, Seen, State, loss_scaling_policy
from fpsim.torch.operators import Tensor, array_of, torch
from fpsim.train.settings import FRUITLESS, FRUITLESS_FIXED
from fpsim.train.updates import sum_of_squares


class TraceRow(NamedTuple):
    """The loss scale of one step.

    Attributes:
      step: the number of the step.
      scale: the factor of the step's loss.
      overflowed: whether a scaled gradient was Inf or NaN.
      skipped: whether the step must not change the weights.
      grew: whether the next scale is larger.
    """

    step: int
    scale: float  # of the loss in this step
    overflowed: bool  # whether a scaled gradient was Inf or NaN
    skipped: bool  # whether this step must not change the weights
    grew: bool  # whether the next scale is larger


class LossScaler:
    """The loss scale of a training run: it unscales gradients, and follows a policy from step to step.

    Each step: multiply the loss by `scale`, run the backward pass, `unscale` the gradients, update the weights unless
    `skipped`, and call `update`. Under "dynamic" scales and gradients have the bits of torch.amp.GradScaler. Faulty
    policies show what goes wrong: they leave gradients scaled, or apply steps that overflowed.

    Args:
      policy: a `fpsim.analysis.LossScalingPolicy`, or the name of one: "none" (no scale); "static" (2**15); "dynamic"
        (doubled after 2000 steps without overflow, halved after an overflow); "ema" (from a running average of the
        largest gradients); or a faulty one: "eager" (grows at every step, applies steps that overflowed), "inverted"
        (grows after an overflow, shrinks otherwise) or "norm_driven" (shrinks if gradients are small).
      fmt: the format of the scaled gradients, by name, dtype or object.

    Attributes:
      trace: list of a `TraceRow` for each finished step.

    Raises:
      ValueError: an unknown policy or format.

    Example:
      >>> import torch
      >>> from fpsim.train.loss_scale import LossScaler
      >>> scaler = LossScaler("dynamic", "fp16")
      >>> gradients = {"w": torch.tensor([1.0, 2.0]) * scaler.scale}
      >>> scaler.unscale(gradients), gradients["w"], scaler.skipped
      (False, tensor([1., 2.]), False)
      >>> scaler.update()
      >>> scaler.unscale({"w": torch.tensor([1.0, torch.inf])}), scaler.skipped
      (True, True)
      >>> scaler.update()
      >>> scaler.scale, scaler.trace[1]
      (32768.0, TraceRow(step=1, scale=65536.0, overflowed=True, skipped=True, grew=False))
    """

    def __init__(self, policy: str | LossScalingPolicy = "dynamic", fmt: FormatLike = FP16) -> None:
        self.policy = loss_scaling_policy(policy)
        self.fmt = find_format(fmt)
        self.trace: list[TraceRow] = []
        self._state = self.policy.start()
        self._seen: Seen | None = None

    @property
    def scale(self) -> float:
        """Factor, rounded to float32, by which the current step's loss is multiplied."""
        return float(np.float32(self._state.scale))

    @property
    def skipped(self) -> bool:
        """True if the current step must not change the weights; known between `unscale` and `update`.

        Raises:
          RuntimeError: no gradients were unscaled in the current step.
        """
        return self._seen_now("skipped").overflowed and self.policy.skips

    @torch.no_grad()
    def unscale(self, gradients: Mapping[str, Tensor]) -> bool:
        """Divide gradients by the scale in place, and return whether any scaled gradient was Inf or NaN.

        Gradients are multiplied by the scale's inverse, which is computed in float64 and rounded to float32. Some
        policies limit them to the largest value of `fmt` before that; a faulty policy may leave them scaled.

        Args:
          gradients: name -> float32 tensor on the CPU: all scaled gradients of the step.

        Returns:
          Whether a gradient was Inf or NaN before it was divided.

        Raises:
          TypeError: a gradient is not a float32 tensor on the CPU.
          RuntimeError: this step's gradients were unscaled before.
        """
        if self._seen is not None:
            raise RuntimeError("unscale was called twice in a step; call update after the first one.")
        require_kind("gradients", gradients, Mapping, "a dict of tensors by name")
        for name, gradient in gradients.items():
            if not isinstance(gradient, Tensor) or gradient.dtype != torch.float32 or gradient.device.type != "cpu":
                description = gradient.dtype if isinstance(gradient, Tensor) else shown(gradient)
                raise TypeError(f"gradients[{name!r}] must be a float32 tensor on the CPU; got {description}.")
        self._seen = self._look(gradients)
        if self.policy.clamps and not self.skipped:
            for gradient in gradients.values():
                gradient.clamp_(-self.fmt.max, self.fmt.max)
        if self.policy.unscales:
            with np.errstate(divide="ignore", over="ignore"):  # a scale near 0 has the inverse Inf, as torch's
                inverse = float(np.float32(1 / np.float64(self.scale)))
            for gradient in gradients.values():
                gradient.mul_(inverse)
        return self._seen.overflowed

    def _look(self, gradients: Mapping[str, Tensor]) -> Seen:
        """Summarise scaled gradients as a `Seen`, from which the policy chooses the next scale.

        gradients: {name: tensor}. The `Seen` holds whether an element is Inf or NaN, the largest magnitude, the norm
        (NaN unless the policy uses it), and the largest value of the gradients' format.
        """
        amax = 0.0
        for gradient in gradients.values():
            array = array_of(gradient)
            amax = max(amax, float(np.max(np.abs(array), initial=0.0))) if np.isfinite(array).all() else math.inf
        norm = math.sqrt(sum_of_squares(gradients.values())) if self.policy.rule == "by_norm" else math.nan
        return Seen(math.isinf(amax), amax, norm, self.fmt.max)

    def update(self) -> None:
        """End the step: set the next scale by the policy, and append a `TraceRow` to `trace`.

        Raises:
          RuntimeError: no gradients were unscaled in this step.
        """
        seen, scale, skipped = self._seen_now("update"), self.scale, self.skipped
        self._state, self._seen = self.policy.after(self._state, seen), None
        self.trace.append(TraceRow(len(self.trace), scale, seen.overflowed, skipped, self.scale > scale))

    def _seen_now(self, call: str) -> Seen:
        """Return the summary of the current step's gradients; raise a RuntimeError if `unscale` was not called yet.

        call: the name of the calling method, for the message.
        """
        if self._seen is None:
            raise RuntimeError(f"{call} needs the gradients of this step; call unscale first.")
        return self._seen

    def state(self) -> dict[str, Any]:
        """Return the scale, everything else that later steps depend on, and the trace, as fields for JSON.

        Raises:
          RuntimeError: called between `unscale` and `update`.
        """
        if self._seen is not None:
            raise RuntimeError("state is taken between steps; call update first.")
        average = None if math.isnan(self._state.average) else self._state.average
        fields = {"scale": self._state.scale, "clean": self._state.clean, "average": average}
        return {"policy": self.policy.name, "fmt": str(self.fmt), **fields, "trace": [list(row) for row in self.trace]}

    def load(self, facts: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned.

        Raises:
          ValueError: `facts` is the state of another policy or format, or not a state.
          TypeError: `facts` is not a dict.
        """
        require_kind("facts", facts, Mapping, "a dict that LossScaler.state returned")
        for key, wanted in (("policy", self.policy.name), ("fmt", str(self.fmt))):
            if facts.get(key) != wanted:
                raise ValueError(f"facts[{key!r}] must be {wanted!r}, as in this scaler; got {shown(facts.get(key))}.")
        try:
            average = math.nan if facts["average"] is None else float(facts["average"])
            state = State(float(facts["scale"]), int(facts["clean"]), average)
            trace = [TraceRow(*row) for row in facts["trace"]]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"facts must be what LossScaler.state returned; got {shown(dict(facts))}.") from None
        self._state, self.trace, self._seen = state, trace, None


def reason_to_stop(
    step: int, loss: float, scaler: LossScaler, gradients: Mapping[str, Tensor], suspect: bool
) -> str:  # fmt: skip
    """Return the reason why training must stop before a step changes the weights; "" if it may go on.

    The reasons are a loss that is Inf or NaN, gradients with Inf or NaN in a step that is not skipped, and too many
    skipped steps in a row: 10 with a fixed loss scale, else 64. With a fixed scale of 1 no step counts as skipped.

    Args:
      step: the number of the step.
      loss: the loss of the step.
      scaler: the loss scale, after it has unscaled the gradients.
      gradients: the unscaled gradients.
      suspect: True if gradients may be Inf or NaN, so that all elements are checked.
    """
    policy = scaler.policy
    skips = scaler.skipped and (policy.rule != "fixed" or policy.scale != 1)  # as loss scaling does
    patience = FRUITLESS_FIXED if policy.rule == "fixed" else FRUITLESS
    if not math.isfinite(loss):
        return f"the loss of step {step} is {loss}"
    if suspect and not skips and not all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values()):
        return f"gradients of step {step} are Inf or NaN, and would have been applied"
    lost = 1 + len(list(takewhile(lambda row: row.skipped, reversed(scaler.trace)))) if skips else 0
    if lost >= patience:
        return (
            f"steps {step - lost + 1} to {step} all overflowed and were left out, this one with a loss scale of "
            f"{scaler.scale:g}"
        )
    return ""
