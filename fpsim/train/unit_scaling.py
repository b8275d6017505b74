"""Unit scaling: factors with which every tensor of a model has a variance of 1 at the start, gradients too.

Source: Blake et al., arXiv:2303.11257.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fpsim.torch.operators import Tensor, torch

nn: Any = torch.nn
Function: Any = torch.autograd.Function
SILU = 0.35577551981  # mean of silu(x)^2 over normal x: the variance of silu(x) * y


class _Factors(Function):  # type: ignore[misc]
    """A torch function that multiplies values by one factor, and gradients by another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forwards: float, backwards: float) -> Tensor:
        ctx.backwards = backwards
        return x * forwards

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return dy * ctx.backwards, None, None


def scaled(x: Tensor, forwards: float, backwards: float) -> Tensor:
    """Return x times a factor, with gradients that are multiplied by another one."""
    result: Tensor = _Factors.apply(x, forwards, backwards)
    return result


class UnitLinear(nn.Module):  # type: ignore[misc]
    """A linear layer of unit scaling: weights of variance 1, results over sqrt(inputs), gradients over sqrt(outputs).

    Weight gradients are not scaled, as AdamW's updates do not depend on their size.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inputs, outputs = self.linear.in_features, self.linear.out_features
        forwards, backwards = 1 / math.sqrt(inputs), 1 / math.sqrt(outputs)
        return scaled(self.linear(scaled(x, 1.0, backwards)), forwards, 1.0)


def linear(inputs: int, outputs: int, unit: bool) -> Any:
    """Return a linear layer without bias, with unit scaling if `unit`."""
    return UnitLinear(inputs, outputs) if unit else nn.Linear(inputs, outputs, bias=False)


def unmixed(length: int) -> float:
    """Return the factor by which causal attention's result gets, before training, the variance of the values.

    Scores of variance 1 over t tokens have shares p with a sum of p^2 of about e / (t + e - 1).
    """
    return 1 / math.sqrt(sum(math.e / (t + math.e - 1) for t in range(1, length + 1)) / length)


def add_branch(x: Tensor, branch: Callable[[Tensor], Tensor], number: int, owed: float) -> Tensor:
    """Add the n-th residual branch to x, as (sqrt(n) x + branch(x)) / sqrt(n + 1), so that all weigh the same.

    Within a branch gradients have a variance of 1; where it began they are multiplied by what makes them the gradients
    of that sum, and then all of them, which all lower layers see alike, by what gives them a variance of 1 again.

    Args:
      x: the residual.
      branch: what is computed from it.
      number: n, from 1.
      owed: product of sqrt(outputs / inputs) over the branch's layers.
    """
    keep, share = math.sqrt(number / (number + 1)), math.sqrt(1 / (number + 1))
    back = share * owed
    x = scaled(x, 1.0, 1 / math.sqrt(keep * keep + back * back))
    return x * keep + scaled(branch(scaled(x, 1.0, back)), share, 1.0)
