"""Arrays on the GPU in the form in which they are passed to kernels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fpsim.formats.named import Format

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class GpuArray(NamedTuple):
    """An array on the GPU, as kernels read it.

    Attributes:
      words: its elements as a flat contiguous numba array of unsigned integers with the same bits.
      shape: its shape.
      fmt: the format of its elements; None for integers.
      like: the caller's array, whose library and stream are used.
    """

    words: Any
    shape: tuple[int, ...]
    fmt: Format | None
    like: Any

    @property
    def matrix(self) -> Any:
        """The field `words` in the shape of the array; in the shape (1,) if the array has no axes."""
        return self.words.reshape(*self.shape) if self.shape else self.words

    @property
    def dtype(self) -> Any:
        """Dtype of the caller's array: a torch dtype or a NumPy dtype."""
        return self.like.dtype

    @property
    def size(self) -> int:
        """Number of the array's elements."""
        return math.prod(self.shape)
