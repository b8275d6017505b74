"""Products whose terms are added one after another in float32, as many kernels that tests plant have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

TOGETHER = 64  # terms that are multiplied at once


def chained(
    a: npt.NDArray[Any], b: npt.NDArray[Any], terms: Sequence[int] | npt.NDArray[np.intp] | None = None
) -> npt.NDArray[np.float32]:
    """Return the product of float32 matrices, of which each element adds some terms of K, or all, in order, to zero."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    order = np.arange(a.shape[1]) if terms is None else np.asarray(terms, np.intp)
    for start in range(0, order.size, TOGETHER):
        some = order[start : start + TOGETHER]
        products = a.T[some, :, None] * b[some, None, :]
        products[0] += total
        total = np.add.accumulate(products, 0)[-1]  # it adds one after the other, as a sum need not
    return total
