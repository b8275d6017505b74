"""The steps of optimizers: weights before and after, compared element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from fpsim.analysis.models.monitors import Update

PIECE = 1 << 16  # elements that are compared at once, in the cache


class Before(NamedTuple):
    """A parameter before a step: its memory, a copy of it, and its gradient's sum of squares and non-zero mask."""

    name: str
    live: torch.Tensor
    copy: torch.Tensor
    gradient: float
    nonzero: torch.Tensor


class Updates:
    """The parameters of a model before and after one step of an optimizer.

    Args:
      names: id of each parameter -> its qualified name.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._before: list[Before] = []

    def before(self, optimizer: Any) -> None:
        """Remember the optimizer's weights before a step, and which elements have a gradient other than 0."""
        with torch.no_grad():
            self._before = [
                _before(self._names[id(p)], p.detach(), _dense(p.grad))
                for group in optimizer.param_groups
                for p in group["params"]
                if id(p) in self._names and p.grad is not None and p.is_floating_point()
            ]

    def after(self, step: int) -> list[Update]:
        """Return an Update for each remembered parameter, from its values before and after the step."""
        with torch.no_grad():
            updates = [_compared(step, parameter) for parameter in self._before]
        self._before = []
        return updates


def _before(name: str, weight: torch.Tensor, gradient: torch.Tensor) -> Before:
    """Return a copy of a parameter before a step, with the facts of its gradient."""
    return Before(name, weight, weight.clone(), _squares(gradient), gradient != 0)


def _compared(step: int, one: Before) -> Update:
    """Return the Update of one parameter, compared before and after a step piece by piece."""
    weight = update = 0.0
    lost = 0
    for start in range(0, one.copy.numel(), PIECE):
        before, now, nonzero = (x.reshape(-1)[start : start + PIECE] for x in (one.copy, one.live, one.nonzero))
        weight += _squares(before)
        update += _squares(_wide(now) - _wide(before))
        lost += int(torch.count_nonzero(nonzero & (now == before)))
    return Update(step, one.name, one.gradient, weight, update, int(torch.count_nonzero(one.nonzero)), lost)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as float32, unchanged if float64, since differences of 16-bit floats would be rounded."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _squares(x: torch.Tensor) -> float:
    """Return the sum of squares of a tensor, in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2 if x.numel() else 0.0


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its zeros stored; a dense one unchanged."""
    return x.to_dense() if x.layout != torch.strided else x
