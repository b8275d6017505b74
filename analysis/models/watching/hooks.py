"""Hooks of a watched model, and the queries of torch's state that they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fpsim.arrays import Array, from_torch


class Hook:
    """A hook of one model, which passes its arguments to the function `call`.

    Deep copies and pickles of the model get a hook that does nothing.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> Any:
        return Hook, (nothing,)

    def __deepcopy__(self, _: Any) -> Hook:
        return Hook(nothing)


def nothing(*_: Any) -> None:
    """Do nothing; this is the function that hooks call in copies of a watched model."""


def in_backward() -> bool:
    """Return whether autograd is running a backward pass in this thread.

    A forward pass that runs then is the recomputation of a checkpoint.
    """
    return bool(torch._C._current_graph_task_id() != -1)


def as_floats_of(x: torch.Tensor) -> Array | None:
    """Return the elements of a float tensor as an array, without a copy if it is contiguous on the CPU.

    Of a `torch.sparse_coo` tensor, only stored values are returned. Return None for tensors that are empty, of another
    layout, on the meta device or not of floats, and for other objects.
    """
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.is_meta:
        return None
    with torch.no_grad():
        if x.layout == torch.sparse_coo:
            x = x.coalesce().values()  # rows of zeros stay out, as of an embedding
        if x.layout != torch.strided or not x.numel():
            return None
        return from_torch(x.detach().contiguous())
