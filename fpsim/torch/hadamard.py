"""The random Hadamard transform, which spreads outliers over a block of terms."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array


def hadamard(x: Array, size: int, signs: int) -> Array:
    """Transform each block of `size` rows: change signs, then apply the orthonormal Hadamard matrix, in float32.

    Rows are first multiplied by 1 / sqrt(size), rounded to float32, and by their signs. Then there are log2(size)
    passes with the distances d = 1, 2, 4, ...: each pass replaces pairs of rows i and i + d of a block by their sum and
    difference, rounded to float32.

    Args:
      x: float32 (rows, columns).
      size: a power of two that divides the number of rows.
      signs: an integer whose bit i changes the sign of row i of each block.

    Returns:
      float32 (rows, columns).

    Source: "Pretraining Large Language Models with NVFP4" (arXiv:2509.25149), 4.2.

    Example:
      >>> from fpsim.torch.hadamard import hadamard
      >>> hadamard(np.float32([[1], [1], [0], [2]]), 4, 0b1000)[:, 0].tolist()
      [0.0, 1.0, 2.0, -1.0]
    """
    rows, columns = x.shape
    sign = np.array([-1.0 if signs >> i & 1 else 1.0 for i in range(size)], np.float32)
    factor = np.float32(1.0) / np.sqrt(np.float32(size))
    y = x.astype(np.float32, copy=False).reshape(rows // size, size, columns) * (sign * factor)[:, None]
    half = 1
    while half < size:
        pairs = y.reshape(rows // size, size // (2 * half), 2, half, columns)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        y = np.stack((first + second, first - second), axis=2)
        half *= 2
    return np.ascontiguousarray(y.reshape(rows, columns))
