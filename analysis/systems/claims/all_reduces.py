"""The sums that BF16 all-reduces compute over ranks, by a ring and by a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.formats.named import BF16
from fpsim.products.reduce import sum as total
from fpsim.sums.accumulators import Pairwise, Sequential


def ring(x: Any) -> np.ndarray:
    """Add the rows of x (ranks, n) as an all-reduce around a ring does, rounding to BF16 after each addition.

    The elements are split into one part for each rank; part p adds ranks p, p + 1, ... and, after the last rank, 0 to
    p - 1. Return float32 (n,).
    """
    ranks, n = x.shape
    parts = np.arange(n) * ranks // n
    order = (np.arange(ranks)[:, None] + parts) % ranks  # (ranks, n)
    return np.asarray(total(np.take_along_axis(x, order, axis=0), accumulate=Sequential(BF16), axis=0), np.float32)


def tree(x: Any) -> np.ndarray:
    """Add the rows of x (ranks, n) by a binary tree, neighbours first, rounding sums to BF16; return float32 (n,)."""
    return np.asarray(total(x, accumulate=Pairwise(BF16), axis=0), np.float32)
