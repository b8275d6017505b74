"""The size of the difference between two runs of a model: at every product, and in the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fpsim.analysis.measures.log_probabilities import divergence, log_softmax
from fpsim.arrays import Array, differing
from fpsim.errors import shown


@dataclass(frozen=True)
class LayerDifference:
    """The difference between two runs in the result of one product (or one module's output).

    Attributes:
      layer, product: name of the layer; "fprop", "dgrad" or "wgrad", or "output" for a module's output.
      call: number of times that the layer had computed this product before.
      size: number of elements of the result.
      differing: share (0 to 1) of the elements whose bits differ.
      relative: norm of the difference divided by the norm of the first run's result, over elements that are finite in
        both results; NaN if no element is.
    """

    layer: str
    product: str
    call: int
    size: int
    differing: float
    relative: float


def layer_difference(layer: str, product: str, call: int, x: Array, y: Array) -> LayerDifference:
    """Return the difference between two results x and y, of equal shape, of the same product in two runs.

    `call`: how many times the layer had computed the product before.
    """
    share = float(np.count_nonzero(differing(x, y))) / x.size if x.size else 0.0
    return LayerDifference(layer, product, call, x.size, share, relative_norm(x, y))


def relative_norm(x: Array, y: Array) -> float:
    """Return |y - x| / |x| over elements that are finite in both float arrays, computed in float64.

    Return NaN if no element is finite in both, 0 if they are equal there (or empty), and Inf if x is 0 but not y.

    Example:
      >>> from fpsim.analysis.studies.differences.growth import relative_norm
      >>> relative_norm(np.float32([3, 4, np.inf]), np.float32([3, 4.5, 1]))
      0.1
    """
    both = np.isfinite(x) & np.isfinite(y)
    if both.size and not both.any():
        return float("nan")
    p, q = (array[both].astype(np.float64) for array in (x, y))
    apart, norm = float(np.linalg.norm(q - p)), float(np.linalg.norm(p))
    if apart == 0.0:
        return 0.0
    return apart / norm if norm else float("inf")


Logits = bool | Callable[[Any], Any] | None


def kl_of(x: Any, y: Any, logits: Logits) -> float | None:
    """Return the mean KL divergence KL(first || second) of two outputs in nats; None if they are not logits.

    Softmax is along the last axis, and the mean over all others.

    Args:
      x, y: the outputs of the model in both runs: tensors, mappings or other objects.
      logits: None for the part of the output that is called `logits`, False for no KL divergence, True for the whole
        output, or a function that returns the logits of an output.
    Raises:
      ValueError: logits were requested, but the output has none; or those of the two runs differ in shape.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.differences.growth import kl_of
      >>> round(kl_of(torch.zeros(1, 2), torch.tensor([[0.0, float(np.log(3))]]), True), 6)  # log(2 / sqrt(3))
      0.143841
    """
    if logits is False:
        return None
    p, q = (_logits(output, logits) for output in (x, y))
    if p is None or q is None:
        return None
    if p.shape != q.shape:
        raise ValueError(f"logits must have one shape in both runs; got {p.shape} and {q.shape}.")
    with np.errstate(all="ignore"):
        return float(divergence(*(log_softmax(array) for array in (p, q))).mean())


def _logits(output: Any, logits: Logits) -> Array | None:
    """Return the logits of a model's output, a float tensor with two or more classes on its last axis, as float64.

    `logits`: a function that takes the logits from the output; None for the part of the output called "logits"; True
    for that part or, without one, the whole output. If there is no such tensor, return None if `logits` is None, else
    raise a ValueError.
    """
    chosen: Any = output if logits is True else None
    if callable(logits):
        chosen = logits(output)
    elif isinstance(output, Mapping) and "logits" in output:
        chosen = output["logits"]
    elif isinstance(getattr(output, "logits", None), torch.Tensor):
        chosen = output.logits
    fits = isinstance(chosen, torch.Tensor) and chosen.is_floating_point() and chosen.dim() >= 1 and chosen.numel() > 0
    if fits and chosen.shape[-1] >= 2:
        array: Array = chosen.detach().double().numpy()
        return array
    if logits is None:
        return None
    raise ValueError(
        f"logits must be a tensor of floats with two or more classes along its last axis; got {shown(chosen)}. Pass a "
        "function that takes them from the output, or logits=False."
    )
