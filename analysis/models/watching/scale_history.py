"""The scales of a watched model over the steps: the loss scale, and the delayed scales of quantized layers.

A delayed scale is computed from the amax of earlier steps.
"""

from __future__ import annotations

from typing import Any

import torch

from fpsim.analysis.models.monitors import HasScale, Scale
from fpsim.analysis.models.selection import joined

DELAYED = ("input", "weight", "output gradient")  # operands in the rows of fp.torch.QuantLinear's `scales`


class ScaleHistory:
    """History of the loss scale and of a model's delayed scales at the end of recorded steps.

    A delayed scale is computed from the amax of earlier steps.

    Args:
      model: a torch.nn.Module.
      scaler: an object with get_scale(), such as torch.amp.GradScaler, or None.
    Attributes:
      scales: a list of a `Scale` for each recorded step and scale, in the order of the steps.
    """

    def __init__(self, model: Any, scaler: HasScale | None) -> None:
        self.scales: list[Scale] = []
        self._model, self._scaler = model, scaler
        self._loss_scale = self._current()

    def _current(self) -> float | None:
        """Return the current loss scale, or None without a scaler."""
        return None if self._scaler is None else float(self._scaler.get_scale())

    def skipped(self, step: int, has_run: bool) -> bool:
        """Return whether the loss scale fell since the last call, which shows that the optimizer skipped an update.

        If so, the value before the fall is added to `scales`, marked as a fallback. step: the number of the step to
        which the update belongs. has_run: whether the model ran in this step; if not, the result is False.
        """
        before, self._loss_scale = self._loss_scale, self._current()
        if self._loss_scale is None or before is None or not self._loss_scale < before or not has_run:
            return False
        self.scales.append(Scale(step, "loss", before, True))
        return True

    def add(self, step: int, *, with_loss: bool = True) -> None:
        """Add the loss scale and the delayed scales of all quantized layers, as they are at the end of a recorded step.

        Args:
          step: the number of the step.
          with_loss: whether to add the loss scale; False if `skipped` has added it.
        """
        if with_loss and self._scaler is not None:
            self.scales.append(Scale(step, "loss", float(self._scaler.get_scale()), False))
        for name, module in self._model.named_modules():
            scales = getattr(module, "scales", None)
            if hasattr(module, "quant_name") and isinstance(scales, torch.Tensor):
                for operand, value in zip(DELAYED, scales[:, 0].tolist(), strict=True):
                    self.scales.append(Scale(step, joined(name, operand), value, False))
