"""Long arrays as flat chunks that fit into the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array

Floats = npt.NDArray[np.float64]
CHUNK = 1 << 16  # elements: a float64 temporary of a chunk has 512 KiB, so that a few of them stay in the cache


def flat_chunks(x: Array, size: int = CHUNK) -> Iterator[Array]:
    """Yield the elements of x, in C order and native byte order, as contiguous 1-d arrays of up to `size` elements."""
    native = x.dtype.newbyteorder("=")
    flat = x.reshape(-1) if x.flags.c_contiguous else x.flat  # a flatiter copies one slice at a time
    for start in range(0, x.size, size):
        yield np.ascontiguousarray(flat[start : start + size], native)
