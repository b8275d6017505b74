"""Norms of gradients, and clipping by value and by norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.torch.operators import Tensor, array_of, torch
from fpsim.train.operations import kernels

EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


class Clipping(NamedTuple):
    """The result of clipping gradients.

    Attributes:
      norm: the norm of all gradients together, after clipping by value and before clipping by norm.
      share: share of the elements that clip_value limited.
      factor: what clipping by norm multiplied all gradients by; 1.0 where it left them as they were.
    """

    norm: float
    share: float
    factor: float


def clip(gradients: Sequence[Tensor], recipe: OptimizerRecipe, specified: bool) -> Clipping:
    """Clip gradients in place, by value and then by norm, as torch.nn.utils does."""
    limit, most, limited = recipe.clip_value, recipe.clip_norm, 0
    if limit is not None:
        for gradient in gradients:
            limited += int(torch.count_nonzero(gradient.abs() > limit))
            gradient.clamp_(-limit, limit)
    count = sum(gradient.numel() for gradient in gradients)
    total, factor = norm(gradients, specified), np.float32(1)
    if most is not None:
        with np.errstate(all="ignore"):  # a norm that is Inf or NaN clips as torch's does
            factor = np.minimum(np.float32(most) / (np.float32(total) + np.float32(EPSILON)), np.float32(1))
        for gradient in gradients:
            gradient.mul_(float(factor))
    return Clipping(total, limited / count if count else 0.0, float(factor))


def norm(gradients: Sequence[Tensor], specified: bool) -> float:
    """Return the norm of all elements of some gradients together, a float32 number; specified, or torch's."""
    if specified:
        with np.errstate(over="ignore"):  # of large gradients it may be Inf
            return float(np.float32(math.sqrt(sum_of_squares(gradients))))
    norms = [torch.linalg.vector_norm(gradient, 2.0) for gradient in gradients]
    return float(torch.linalg.vector_norm(torch.stack(norms), 2.0)) if norms else 0.0


def sum_of_squares(tensors: Iterable[Tensor]) -> float:
    """Return the float64 sum of the squares of all elements of float32 tensors, by 32 lanes, tensor after tensor."""
    total = 0.0
    for tensor in tensors:
        flat = np.ascontiguousarray(array_of(tensor)).reshape(-1)
        total += float(kernels.sum_of_squares(flat, np.empty(-(-flat.size // kernels.CHUNK))))
    return total
