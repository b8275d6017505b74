"""The float tensors in a model's output, which may be nested containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def floats_of(output: Any) -> Iterator[torch.Tensor]:
    """Yield the float tensors in nested mappings, lists, tuples and dataclasses, depth first.

    output: a tensor or such a container; other objects yield nothing.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.floats import floats_of
      >>> [x.shape[0] for x in floats_of({"logits": torch.ones(3), "more": (torch.ones(2), None, torch.arange(9))})]
      [3, 2]
    """
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from floats_of(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from floats_of(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from floats_of(getattr(output, field.name))


def logits_of(output: Any) -> torch.Tensor | None:
    """Return the logits in a model's output: its `logits` if it has any, else its first float tensor; None without one.

    output: a tensor, a mapping with or without the key "logits", an object with or without that attribute, or a
    container.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.floats import logits_of
      >>> logits_of({"loss": torch.ones(()), "logits": torch.ones(2, 3)}).shape
      torch.Size([2, 3])
    """
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, torch.Tensor) and named.is_floating_point():
        return named
    return next(floats_of(output), None)
