"""A slow, obvious oracle for sums of products of integers: Python's integers, one term after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def in_range(total: int, dtype: Any, saturates: bool) -> int:
    """Return an integer as a dtype holds it: its nearest end, or the number that is equal to it modulo 2**bits."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if saturates:
        return low if total < low else high if total > high else total
    while total > high:
        total -= high - low + 1
    while total < low:
        total += high - low + 1
    return total


def chain(
    a: Sequence[int], b: Sequence[int], c: int, terms: int, dtype: Any, saturates: bool, pair: Any = None
) -> int:  # fmt: skip
    """Return c plus all products, brought into range after each `terms` of them.

    pair: the dtype in which the sum of every two products saturates; None for none.
    """
    total = c
    products = [x * y for x, y in zip(a, b, strict=True)]
    if pair is not None:
        sums = [in_range(sum(products[k : k + 2]), pair, saturates=True) for k in range(0, len(a), 2)]
        products, terms = sums, terms // 2
    for start in range(0, len(products), terms):
        total += sum(products[start : start + terms])
        total = in_range(total, dtype, saturates)
    return total


def dot_add_rows(
    a: Array, b: Array, c: Array, terms: int, dtype: Any, saturates: bool, pair: Any = None
) -> Array:  # fmt: skip
    """Return the chain of each row of a and b (N, K), from c (N,)."""
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    sums = [chain(x, y, z, terms, dtype, saturates, pair) for x, y, z in rows]
    return np.array(sums, dtype)


def product(
    a: Array, b: Array, c: Array | None, terms: int, dtype: Any, saturates: bool, pair: Any = None
) -> Array:  # fmt: skip
    """Return c + a @ b, each element a chain: a (M, K), b (K, N), c (M, N) or None for zeros."""
    (m, _), n = a.shape, b.shape[1]
    starts = np.zeros((m, n), dtype) if c is None else c
    rows = []
    for i in range(m):
        left = np.broadcast_to(a[i], b.T.shape)
        rows.append(dot_add_rows(left, b.T, starts[i], terms, dtype, saturates, pair))
    return np.array(rows, dtype).reshape(m, n)
