"""Effects of optimizer steps: weights before and after a step, compared element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from fpsim.analysis.measures.passes import float_pieces
from fpsim.analysis.models.monitors import Update
from fpsim.analysis.models.watching.update_loops import compare_weights, note_gradient
from fpsim.arrays import Array, from_torch
from fpsim.runtime.pipeline import wrapping


class Before(NamedTuple):
    """A parameter before an optimizer step.

    Attributes:
      name: the parameter's qualified name.
      weight: the parameter itself, which the step changes.
      copy: the parameter's elements before the step.
      gradient: the sum of squares of the parameter's gradient.
      nonzero: bool for each element, True if the gradient is not 0.
      nonzeros: number of True elements of `nonzero`.
    """

    name: str
    weight: torch.Tensor
    copy: Array
    gradient: float
    nonzero: Array
    nonzeros: int


class Updates:
    """Comparison of a model's parameters before and after an optimizer step.

    Args:
      names: id of each parameter -> its qualified name.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._before: list[Before] = []

    def before(self, optimizer: Any) -> None:
        """Copy the parameters that an optimizer, a torch.optim.Optimizer, is about to update, for `after` to compare.

        Only float parameters that have a gradient, and a name in this object, are copied. The sum of squares of the
        gradient and a bool mask of its nonzero elements are stored with each copy. Copies of an earlier call are
        dropped.
        """
        self._before = []
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        with torch.no_grad(), wrapping():
            for p in parameters:
                if id(p) not in self._names or p.grad is None or not p.is_floating_point():
                    continue
                gradient = p.grad.to_dense() if p.grad.layout != torch.strided else p.grad  # as an embedding's
                nonzero = np.empty(p.numel(), bool)
                squares, nonzeros, start = 0.0, 0, 0
                for piece in float_pieces(_elements(gradient)):
                    energy, count = note_gradient(piece, nonzero[start : start + piece.size])
                    squares, nonzeros, start = squares + energy, nonzeros + count, start + piece.size
                weight = p.detach()
                copied = np.array(_elements(weight))
                self._before.append(Before(self._names[id(p)], weight, copied, squares, nonzero, nonzeros))

    def after(self, step: int) -> list[Update]:
        """Return an Update for each copied parameter, from its values before and after the step; drop the copies.

        step: the number of the step.
        """
        updates = []
        with torch.no_grad(), wrapping():
            for one in self._before:
                weight, update, lost, start = 0.0, 0.0, 0, 0
                pieces = zip(float_pieces(one.copy), float_pieces(_elements(one.weight)), strict=True)
                for before, after in pieces:
                    squares, changes, kept = compare_weights(before, after, one.nonzero[start : start + before.size])
                    weight, update, lost, start = weight + squares, update + changes, lost + kept, start + before.size
                updates.append(Update(step, one.name, one.gradient, weight, update, one.nonzeros, lost))
        self._before = []
        return updates


def _elements(x: torch.Tensor) -> Array:
    """Return the elements of a dense tensor as an array, without a copy if it is contiguous and on the CPU."""
    return from_torch(x.detach().contiguous())
