"""The search for the first Inf or NaN of a step, and the rules by which a run stops because of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.torch.operators import Tensor, array_of, torch
from fpsim.torch.trace import ProductCall, watching
from fpsim.train.hooks.measurements import OPERANDS
from fpsim.train.loss_scale import LossScaler
from fpsim.train.settings import FRUITLESS, FRUITLESS_FIXED


class Overflows:
    """A search for the first Inf or NaN of a step, in a quantised product or any other module.

    Args:
      modules: the modules to watch, by the names that the message has for them.

    Example:
      >>> import torch
      >>> from fpsim.train.hooks.overflow import Overflows
      >>> layer = torch.nn.Linear(2, 1, bias=False)
      >>> with Overflows({"head": layer}) as overflows:
      ...     y = layer(torch.tensor([[torch.inf, 1.0]]))
      >>> overflows.first
      'head, forwards: 1 of 1 values of its result are Inf or NaN'
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self.first = ""
        self._modules = modules
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Overflows:
        self._stack.enter_context(watching(self._see_product))
        for name, module in self._modules.items():
            if not any(module.children()):
                self._stack.callback(module.register_forward_hook(partial(self._see_module, name)).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def _see_product(self, call: ProductCall) -> None:
        names = (*OPERANDS[call.product], "result")
        for role, array in zip(names, (call.a.source, call.b.source, call.result), strict=True):
            self._look(f"{call.layer}, {call.product}", role, array)

    def _see_module(self, name: str, module: Any, inputs: Any, result: Any) -> None:
        self._look(f"{name}, forwards", "result", array_of(result.detach()))
        if result.requires_grad:
            result.register_hook(lambda gradient: self._look(f"{name}, backwards", "gradient", array_of(gradient)))

    def _look(self, where: str, role: str, array: Array) -> None:
        wrong = 0 if self.first else int(np.count_nonzero(~np.isfinite(array)))
        if wrong:
            self.first = f"{where}: {wrong} of {array.size} values of its {role} are Inf or NaN"


def reason_to_stop(
    step: int, loss: float, scaler: LossScaler, gradients: Mapping[str, Tensor], suspect: bool
) -> str:  # fmt: skip
    """Return why training must stop before a step changes the weights; "" if it goes on.

    Args:
      step: the number of the step.
      loss: the loss of the step.
      scaler: the loss scale, after it has unscaled the gradients.
      gradients: the unscaled gradients.
      suspect: whether gradients may be Inf or NaN.
    """
    policy = scaler.policy
    skips = scaler.skipped and (policy.rule != "fixed" or policy.scale != 1)  # as loss scaling does
    patience = FRUITLESS_FIXED if policy.rule == "fixed" else FRUITLESS
    if not math.isfinite(loss):
        return f"the loss of step {step} is {loss}"
    if suspect and not skips and not _all_finite(gradients):
        return f"gradients of step {step} are Inf or NaN, and would have been applied"
    if skips and (lost := _skipped_in_a_row(scaler)) >= patience:
        return (
            f"steps {step - lost + 1} to {step} all overflowed and were left out, this one with a loss scale of "
            f"{scaler.scale:g}"
        )
    return ""


def _all_finite(gradients: Mapping[str, Tensor]) -> bool:
    """Return whether all elements of all gradients are finite."""
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())


def _skipped_in_a_row(scaler: LossScaler) -> int:
    """Return the number of consecutive skipped steps, a current one included."""
    lost = 1
    for row in reversed(scaler.trace):
        if not row.skipped:
            break
        lost += 1
    return lost
