"""Activations that wait for the backward pass in a format of their own."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from fpsim.recipes.cast_text import spec_text
from fpsim.recipes.parts import Stored
from fpsim.torch.operators import Tensor, quantize_op, torch

nn: Any = torch.nn
Stash = Callable[[Tensor], Tensor]  # what waits for the backward pass in place of a tensor


class Storing(nn.Module):  # type: ignore[misc]
    """A module whose activations a recipe may keep in a format."""

    def store(self, stash: Stash) -> None:
        """Keep `stash(x)` of each activation x for the backward pass; weights and row statistics stay as they are."""
        module: Any = self
        inner = module.forward

        def pack(x: Tensor) -> Tensor:
            activations = x.is_floating_point() and x.dim() >= 2 and x.shape[-1] > 1
            return stash(x) if activations and not isinstance(x, nn.Parameter) else x

        def forward(*arguments: Any) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                return inner(*arguments)

        module.forward = forward


def quantizer(spec: str) -> Stash:
    """Return a function that quantises a tensor over its last two axes, by a cast described as text."""
    return lambda x: quantize_op(x.detach(), spec, None, None).to(x.dtype)


def store_activations(model: Any, row: Stored) -> None:
    """Make the modules that a `Stored` names keep their activations for the backward pass in its format."""
    spec = spec_text(row.fmt, row.scaling, "nearest_even", None, "keep", 32)
    for name, module in model.named_modules():
        if isinstance(module, Storing) and fnmatchcase(name, row.modules):
            module.store(quantizer(spec))
