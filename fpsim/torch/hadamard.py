"""The random Hadamard transform, which spreads outliers over a block of terms."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array


def hadamard(x: Array, size: int, signs: int) -> Array:
    """Mix blocks of `size` rows: a change of signs, then the orthonormal Hadamard transform, in float32.

    x: (rows, columns), float32. size: a power of two that divides the rows. signs: bit i changes the sign of term i.
    Every sum of two terms is rounded to float32, in log2(size) rounds of pairs i and i + 1, 2, 4, ...; the factor
    1 / sqrt(size) is applied to the terms first, rounded to float32 where it is not a power of two.

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
