"""The scales of a watched model over the steps: the loss scale, and the delayed scales of quantised layers."""

from __future__ import annotations

from typing import Any

import torch

from fpsim.analysis.models.monitors import HasScale, Scale
from fpsim.analysis.models.selection import joined

DELAYED = ("input", "weight", "output gradient")  # rows of the delayed scales of fp.torch.QuantLinear


class ScaleHistory:
    """The scales of a model and of its loss at the end of recorded steps.

    Args:
      model: a torch.nn.Module.
      scaler: None, or an object with get_scale(), such as torch.amp.GradScaler.
    """

    def __init__(self, model: Any, scaler: HasScale | None) -> None:
        self.scales: list[Scale] = []
        self._model, self._scaler = model, scaler
        self._loss_scale = self._current()

    def _current(self) -> float | None:
        """Return the loss scale, or None without a scaler."""
        return None if self._scaler is None else float(self._scaler.get_scale())

    def skipped(self, step: int, has_run: bool) -> bool:
        """Note a step's loss scale, and return whether it fell, so that the optimizer skipped the step's update."""
        before, self._loss_scale = self._loss_scale, self._current()
        if self._loss_scale is None or before is None or not self._loss_scale < before or not has_run:
            return False
        self.scales.append(Scale(step, "loss", before, True))
        return True

    def add(self, step: int, *, with_loss: bool = True) -> None:
        """Add the scales at the end of a recorded step.

        Args:
          step: the number of the step.
          with_loss: False where `skipped` has added the loss scale.
        """
        if with_loss and self._scaler is not None:
            self.scales.append(Scale(step, "loss", float(self._scaler.get_scale()), False))
        for name, module in self._model.named_modules():
            scales = getattr(module, "scales", None)
            if hasattr(module, "quant_name") and isinstance(scales, torch.Tensor):
                for operand, value in zip(DELAYED, scales[:, 0].tolist(), strict=True):
                    self.scales.append(Scale(step, joined(name, operand), value, False))
