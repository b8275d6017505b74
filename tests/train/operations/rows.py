"""Rows of float32 numbers that the tests of this folder share: usual ones, and those at every edge."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

SIZES = (1, 31, 32, 33, 64, 65)  # a sum by 32 lanes without and with a rest
EDGES = np.array(
    [0.0, -0.0, 2.0**-149, -(2.0**-149), 3e-39, -1e-40, 2.0**-126, 1.0, -1.0, 1 + 2.0**-23, -103.5, 89.0, 3e38, -3e38],
    np.float32,
)
SPECIAL = (np.inf, -np.inf, np.nan)
ROWS = 7


def rows(size: int, seed: int = 0) -> Array:
    """Return rows of `size` numbers (7, size): usual, small, at the edges, with Inf, -Inf or NaN once, and all -Inf."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal((ROWS, size)).astype(np.float32) * np.float32(3)
    numbers[1] *= np.float32(1e-39)  # subnormals
    numbers[2] = random.choice(EDGES, size)
    for i, special in enumerate(SPECIAL):
        numbers[3 + i, random.integers(size)] = special
    numbers[6] = -np.inf
    return numbers


def usual(shape: tuple[int, ...], seed: int) -> Array:
    """Return normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
