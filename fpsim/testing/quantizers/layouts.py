"""Memory layouts of the arrays that quantizers are called with: strided, offset, Fortran order, reversed, permuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array


class MemoryLayout(NamedTuple):
    """A memory layout of arrays.

    Attributes:
      axes: number of axes of the arrays that it applies to.
      expression: Python expression that makes it, with {x} for the array.
      make: function that returns an array, equal in its elements, with this layout.
    """

    axes: int
    expression: str
    make: Callable[[Array], Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with `axes` axes to which 8 * n elements are reshaped for this layout; -1 stands for the last axis."""
        return {1: (-1,), 2: (4, -1), 3: (2, 2, -1)}[self.axes]


def _spaced(x: Array) -> Array:
    """Return a copy of x whose elements are three apart in memory, with zeros between them."""
    wide = np.zeros((*x.shape, 3), x.dtype)
    wide[..., 1] = x
    return wide[..., 1]


def _late(x: Array) -> Array:
    """Return a copy of x whose data begin one element after the start of the memory block."""
    late = np.zeros(x.size + 1, x.dtype)
    late[1:] = x.ravel()
    return late[1:].reshape(x.shape)


LAYOUTS: dict[str, MemoryLayout] = {
    "strided": MemoryLayout(2, "np.stack([{x}] * 3, axis=-1)[..., 1]", _spaced),
    "offset by one element": MemoryLayout(
        2, "np.append(0, {x}).astype({x}.dtype)[1:].reshape(4, -1)", _late
    ),
    "Fortran order": MemoryLayout(2, "np.asfortranarray({x})", lambda x: np.asfortranarray(x)),
    "submatrix": MemoryLayout(2, "np.pad({x}, 1)[1:-1, 1:-1]", lambda x: np.pad(x, 1)[1:-1, 1:-1]),
    "rows reversed": MemoryLayout(2, "{x}[::-1].copy()[::-1]", lambda x: x[::-1].copy()[::-1]),
    "columns reversed": MemoryLayout(2, "{x}[:, ::-1].copy()[:, ::-1]", lambda x: x[:, ::-1].copy()[:, ::-1]),
    "both axes reversed": MemoryLayout(
        2, "{x}[::-1, ::-1].copy()[::-1, ::-1]", lambda x: x[::-1, ::-1].copy()[::-1, ::-1]
    ),
    "Fortran order reversed": MemoryLayout(
        2, "np.asfortranarray({x}[::-1, ::-1])[::-1, ::-1]", lambda x: np.asfortranarray(x[::-1, ::-1])[::-1, ::-1]
    ),
    "vector reversed": MemoryLayout(1, "{x}[::-1].copy()[::-1]", lambda x: x[::-1].copy()[::-1]),
    "vector strided": MemoryLayout(1, "np.repeat({x}, 3)[1::3]", _spaced),
    "vector strided and reversed": MemoryLayout(
        1, "np.repeat({x}[::-1], 3)[1::3][::-1]", lambda x: _spaced(x[::-1].copy())[::-1]
    ),
    "vector offset by one element": MemoryLayout(1, "np.append(0, {x}).astype({x}.dtype)[1:]", _late),
    "axes permuted": MemoryLayout(
        3, "np.moveaxis({x}, 0, -1).copy().transpose(2, 0, 1)",
        lambda x: np.moveaxis(x, 0, -1).copy().transpose(2, 0, 1),
    ),
}  # fmt: skip
