"""Seeds of stochastic casts as tensors, and a mark for functions whose results torch.compile treats as constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from fpsim.errors import shown
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.torch.operators import Tensor, torch

Seed = int | Tensor | None
Function = TypeVar("Function", bound=Callable[..., Any])


def constant_in_graphs(function: Function) -> Function:
    """Mark a function so that torch.compile treats its results as constants, and return the function.

    Marking a function does not import torch's compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_graphs
def is_stochastic(rounding: Any) -> bool:
    """Return whether a rounding mode draws random numbers."""
    return rounding_mode(rounding) is Rounding.STOCHASTIC


def seed_tensor(seed: Seed, rounding: str | Rounding, name: str) -> Tensor | None:
    """Return a seed as an integer tensor of one element for the operators; None if the rounding mode is not stochastic.

    A tensor is returned itself; an integer becomes an int64 tensor with the same 64 bits. name: the argument's name,
    for error messages.

    Raises:
      ValueError: the seed is neither an integer in 0 .. 2**64 - 1 nor an integer tensor of one element, or it is None
        although the mode is stochastic.
    """
    if isinstance(seed, Tensor):
        if seed.numel() != 1 or seed.is_floating_point() or seed.is_complex() or seed.dtype == torch.bool:
            raise ValueError(
                f"{name} must be an integer or a tensor of one integer; got shape {tuple(seed.shape)}, {seed.dtype}."
            )
    elif seed is None:
        if is_stochastic(rounding):
            raise ValueError(f"stochastic rounding needs a {name}, so that results can be repeated; got None. Pass 0.")
    elif isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 1 << 64:
        raise ValueError(f"{name} must be an integer in 0 .. 2**64 - 1 or an integer tensor; got {shown(seed)}.")
    if seed is None or not is_stochastic(rounding):
        return None
    if isinstance(seed, Tensor):
        return seed
    return torch.tensor(int(seed) - (1 << 64) if seed >= 1 << 63 else int(seed), dtype=torch.int64)
