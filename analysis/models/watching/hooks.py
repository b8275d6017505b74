"""Hooks of a watched model, and functions with which they ask for torch's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fpsim.arrays import Array, from_torch


class Hook:
    """A hook of one model; copies of the model, in memory and in files, get one that does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> Any:
        return Hook, (nothing,)

    def __deepcopy__(self, _: Any) -> Hook:
        return Hook(nothing)


def nothing(*_: Any) -> None:
    """Do nothing: the hook that copies of a watched model get."""


def in_backward() -> bool:
    """Return whether autograd runs a backward pass now, so that a forward pass is a checkpoint's recomputation."""
    return bool(torch._C._current_graph_task_id() != -1)


def as_floats_of(x: torch.Tensor) -> Array | None:
    """Return the elements of a tensor of floats as an array, without a copy if it is on the CPU; else None."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.is_meta:
        return None
    with torch.no_grad():
        if x.layout == torch.sparse_coo:
            x = x.coalesce().values()  # rows of zeros stay out, as of an embedding
        if x.layout != torch.strided or not x.numel():
            return None
        return from_torch(x.detach().contiguous())
