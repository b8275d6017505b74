"""Operations on float32 matrices that schedules and epilogues are made of, each rounded once, on NumPy arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fpsim.arrays import Array
from fpsim.kernels.fma import fma


class FloatOperations(Protocol):
    """Operations on matrices of a processor or a GPU; operands broadcast, and may be NumPy's numbers and arrays."""

    def add(self, x: Any, y: Any, out: Any = None) -> Any:
        """x + y."""

    def multiply(self, x: Any, y: Any, out: Any = None) -> Any:
        """x * y."""

    def fma(self, x: Any, y: Any, z: Any, out: Any = None) -> Any:
        """x * y + z."""


class NumpyOperations:
    """`FloatOperations` on NumPy arrays."""

    def add(self, x: Any, y: Any, out: Array | None = None) -> Array:
        """x + y."""
        total: Array = np.add(x, y, out=out)
        return total

    def multiply(self, x: Any, y: Any, out: Array | None = None) -> Array:
        """x * y."""
        product: Array = np.multiply(x, y, out=out)
        return product

    def fma(self, x: Any, y: Any, z: Any, out: Array | None = None) -> Array:
        """x * y + z."""
        return fma(x, y, z, out)
