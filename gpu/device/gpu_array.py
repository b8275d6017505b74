"""An array on the GPU as kernels take it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fpsim.formats.named import Format

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class GpuArray(NamedTuple):
    """An array on the GPU."""

    words: Any  # flat and contiguous, of unsigned integers
    shape: tuple[int, ...]
    fmt: Format | None  # of its dtype; None for integers
    like: Any  # what came in

    @property
    def matrix(self) -> Any:
        """The words with the axes that the array has, of which there is at least one."""
        return self.words.reshape(*self.shape) if self.shape else self.words

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)
