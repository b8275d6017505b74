"""Relative error and cosine of two lists of tensors, each list taken as one long float64 vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

Tensors = Sequence[Any]


class Distance(NamedTuple):
    """Two metrics of a vector x compared with y: `error`, |x - y| / |y|, and `cosine`, the cosine of their angle.

    The error is infinite if an element of x or y is not finite, or if only y is 0. The cosine is 1 if the vectors are
    equal. The cosine is NaN if x or y alone is 0, or if one of them is not finite.
    """

    error: float
    cosine: float


SAME, UNKNOWN = Distance(0.0, 1.0), Distance(math.nan, math.nan)


def distance(got: Tensors, wanted: Tensors) -> Distance:
    """Return |got - wanted| / |wanted| and the cosine of two lists of tensors, each list taken as one float64 vector.

    None in a list stands for a tensor of zeros. Lists or tensors of different shapes have an infinite error and a
    cosine of NaN.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.compare import distance
      >>> distance([torch.tensor([3.0, 0.0])], [torch.tensor([3.0, 4.0])])
      Distance(error=0.8, cosine=0.6)
      >>> distance([torch.tensor([torch.nan])], [torch.ones(1)])
      Distance(error=inf, cosine=nan)
    """
    if len(got) != len(wanted):
        return Distance(math.inf, math.nan)
    apart = got_size = size = product = 0.0
    for one, other in zip(got, wanted, strict=True):
        if one is None and other is None:
            continue
        if one is not None and other is not None and one.shape != other.shape:
            return Distance(math.inf, math.nan)
        x, y = (torch.zeros_like(b) if a is None else a for a, b in ((one, other), (other, one)))
        x, y = x.detach().double(), y.detach().double()
        apart += _dot(x - y, x - y)
        got_size, size, product = got_size + _dot(x, x), size + _dot(y, y), product + _dot(x, y)
    return from_sums(apart, got_size, size, product)


def from_sums(apart: float, got_size: float, size: float, product: float) -> Distance:
    """Return the Distance (relative error and cosine) of a vector x from a vector y.

    `apart`: |x - y|^2. `got_size`: |x|^2. `size`: |y|^2. `product`: <x, y>.
    """
    if not math.isfinite(apart) or not math.isfinite(got_size):
        return Distance(math.inf, math.nan)
    if apart == 0:
        return SAME
    if size == 0:
        return Distance(math.inf, math.nan)
    both = got_size * size
    lengths = math.sqrt(both) if 0 < both < math.inf else math.sqrt(got_size) * math.sqrt(size)
    return Distance(math.sqrt(apart / size), min(1.0, product / lengths) if lengths else math.nan)


def _dot(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the dot product of the elements of two tensors of equal shape and dtype."""
    return float(torch.dot(x.reshape(-1), y.reshape(-1)))
