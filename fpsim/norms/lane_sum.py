"""Sums in float32 in lanes, 32 by default: an order of additions that GPU warps and CPU vector registers can share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fpsim.arrays import Array
from fpsim.errors import integer_fields, shown
from fpsim.lazy import deferred
from fpsim.reload import reloadable

processor = deferred("fpsim.runtime.processor")  # imports numba


@reloadable
@dataclass(frozen=True)
class LaneSum:
    """An order of additions in lanes (parallel partial sums), for softmax and norms.

    Lane l adds the terms l, l + lanes, l + 2 * lanes, ... one after another, starting from +0. Then the upper half of
    the lanes is added to the lower half, lane l + lanes / 2 to lane l, and so on until one sum remains. Terms and sums
    are float32, rounded to nearest even. For a sum of squares, exact float64 products are added in float64 in the same
    order, and the sum is rounded to float32 once. With 32 lanes this is the order of a warp that exchanges by xor, of
    two AVX-512 registers, and of four AVX2 registers.

    Args:
      lanes: the number of lanes, a power of two from 1 to 1024.

    Raises:
      ValueError: lanes is not such a power of two.

    Source: docs/elementary.md.

    Example:
      >>> import fpsim as fp
      >>> fp.softmax(np.float16([1, 2, 3]), accumulate=fp.LaneSum(8))
      array([0.09  , 0.2448, 0.665 ], dtype=float16)
    """

    lanes: int = 32

    def __post_init__(self) -> None:
        integer_fields(self, "lanes")
        if not 1 <= self.lanes <= 1024 or self.lanes & (self.lanes - 1):
            raise ValueError(f"lanes must be a power of two from 1 to 1024; got {self.lanes}.")

    def sum(self, values: Array) -> Array:
        """Return the sum of each row of `values`, (rows, n) float32, as float32 (rows,)."""
        return self._added(values, np.float32, squares=False)

    def sum_of_squares(self, values: Array) -> Array:
        """Return the sum of squares of each row of `values`, (rows, n) float32, as (rows,) float32 added in float64."""
        with processor().ieee_arithmetic(), np.errstate(all="ignore"):
            return self._added(values, np.float64, squares=True).astype(np.float32)

    def _added(self, values: Array, dtype: type[np.floating], squares: bool) -> Array:
        """Return the sum of each row of `values`, (rows, n) floats, computed in `dtype`, as (rows,) of this dtype.

        squares: True adds the squares of the elements instead.
        """
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.ndim != 2:
            raise TypeError(f"values must be a float32 array of two axes; got {shown(values)}.")
        rows, n = values.shape
        totals = np.zeros((rows, self.lanes), dtype)
        with processor().ieee_arithmetic(), np.errstate(all="ignore"):
            for start in range(0, n, self.lanes):
                terms = values[:, start : start + self.lanes].astype(dtype, copy=False)
                totals[:, : terms.shape[1]] += terms * terms if squares else terms
            width = self.lanes
            while width > 1:  # lanes without a term hold +0, which changes no sum except -0 + -0
                width //= 2
                totals[:, :width] += totals[:, width : 2 * width]
        return totals[:, 0]
