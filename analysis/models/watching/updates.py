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
      name: its qualified name.
      weight: the parameter itself, which the step changes.
      copy: its elements before the step.
      gradient: the sum of squares of its gradient.
      nonzero: bool for each element, True if the gradient is not 0.
      nonzeros: number of these elements.
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

        They are its float parameters with a gradient and a name in this object. The sum of squares of the gradient and
        a bool mask of its nonzero elements are stored with each copy. Copies of an earlier call are dropped.
        """
        with torch.no_grad():
            self._before = [
                _before(self._names[id(p)], p.detach(), p.grad)
                for group in optimizer.param_groups
                for p in group["params"]
                if id(p) in self._names and p.grad is not None and p.is_floating_point()
            ]

    def after(self, step: int) -> list[Update]:
        """Return an Update for each copied parameter, from its values before and after the step; drop the copies.

        step: the number of the step.
        """
        with torch.no_grad():
            updates = [_compared(step, parameter) for parameter in self._before]
        self._before = []
        return updates


def _before(name: str, weight: torch.Tensor, gradient: torch.Tensor) -> Before:
    """Return the `Before` of the parameter `weight`, which is called `name`.

    gradient: its gradient, a dense or sparse tensor in the shape of `weight`.
    """
    gradient = gradient.to_dense() if gradient.layout != torch.strided else gradient  # as an embedding's
    nonzero = np.empty(weight.numel(), bool)
    squares, nonzeros, start = 0.0, 0, 0
    with wrapping():
        for piece in float_pieces(_elements(gradient)):
            energy, count = note_gradient(piece, nonzero[start : start + piece.size])
            squares, nonzeros, start = squares + energy, nonzeros + count, start + piece.size
    return Before(name, weight, np.array(_elements(weight)), squares, nonzero, nonzeros)


def _compared(step: int, one: Before) -> Update:
    """Return the Update that the optimizer step number `step` has made to one parameter.

    one: the parameter before the step; the tensor one.weight has the new values now.
    """
    weight, update, lost, start = 0.0, 0.0, 0, 0
    with wrapping():
        for before, after in zip(float_pieces(one.copy), float_pieces(_elements(one.weight)), strict=True):
            squares, changes, kept = compare_weights(before, after, one.nonzero[start : start + before.size])
            weight, update, lost, start = weight + squares, update + changes, lost + kept, start + before.size
    return Update(step, one.name, one.gradient, weight, update, one.nonzeros, lost)


def _elements(x: torch.Tensor) -> Array:
    """Return the elements of a dense tensor as an array, without a copy if it is contiguous and on the CPU."""
    return from_torch(x.detach().contiguous())
