"""Where a step first computes Inf or NaN, and when a run has to stop because of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.torch.operators import array_of
from fpsim.torch.trace import ProductCall, watching
from fpsim.train.hooks.measurements import OPERANDS


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
