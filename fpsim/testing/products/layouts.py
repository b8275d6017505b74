"""Memory layouts of operands other than C order: transposed, inside wider matrices, strided, reversed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import integers_of, is_torch


class OperandLayout(NamedTuple):
    """A memory layout of a pair of operands.

    Attributes:
      name: its name in reports.
      of_a, of_b: functions that return a, or b, with this layout; both take arrays or tensors in C order.
      torch: whether torch tensors can have it.
    """

    name: str
    of_a: Callable[[Any], Any]
    of_b: Callable[[Any], Any]
    torch: bool = True


def _transposed(x: Any) -> Any:
    """Return a copy of the matrix x, an array or torch tensor, whose columns are contiguous in memory."""
    if not is_torch(x):
        return np.asfortranarray(x)
    return integers_of(x).t().contiguous().t().view(x.dtype)


def _widened(x: Any) -> Any:
    """Return a copy of the matrix x, an array or torch tensor, as the inner columns of a wider matrix.

    Copies of x's outer columns are on either side.
    """
    if not is_torch(x):
        return np.concatenate([x[:, -1:], x, x[:, :1]], 1)[:, 1:-1]
    import torch

    words = integers_of(x)
    return torch.cat([words[:, -1:], words, words[:, :1]], 1)[:, 1:-1].view(x.dtype)


def _spaced(x: Any) -> Any:
    """Return a copy of the matrix x (array or torch tensor) in every other row and column of a larger matrix."""
    if not is_torch(x):
        return x.repeat(2, 0).repeat(2, 1)[::2, 1::2]
    return integers_of(x).repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, 1::2].view(x.dtype)


def _reversed(x: Any) -> Any:
    """Return a copy of the matrix x, a NumPy array, with negative strides along both axes and equal elements."""
    return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]


LAYOUTS = (
    OperandLayout("a transposed", _transposed, lambda x: x),
    OperandLayout("b transposed", lambda x: x, _transposed),
    OperandLayout("both transposed", _transposed, _transposed),
    OperandLayout("columns of wider matrices", _widened, _widened),
    OperandLayout("every other row and column", _spaced, _spaced),
    OperandLayout("reversed", _reversed, _reversed, torch=False),
)
