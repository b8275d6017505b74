"""The product of one layer in a run of `diff`, with errors that name the layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OF_MATMUL = "strict=False computes it all the same."  # the advice of `fp.matmul`, whose keywords `diff` does not have
OF_DIFF = "Take another schedule, or a recipe= whose operands this one takes."


class LayerError(ValueError):
    """The error raised if a layer's product cannot be computed; its message names the layer."""


def product_of(layer: str, operator: Callable[..., Any], *args: Any) -> Any:
    """Return operator(*args), which computes the product of a layer; raise a LayerError if it cannot be computed."""
    try:
        return operator(*args)
    except (ValueError, TypeError) as reason:
        raise LayerError(f"layer {layer!r}: {reason}".replace(OF_MATMUL, OF_DIFF)) from reason
