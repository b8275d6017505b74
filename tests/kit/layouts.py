"""Copies of arrays that lie in memory as few do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def unaligned(x: Array) -> Array:
    """A copy that starts one byte off its natural address."""
    space = np.empty(x.nbytes + 1, np.uint8)
    copy = space[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def read_only(x: Array) -> Array:
    """A copy that cannot be written."""
    copy = x.copy()
    copy.flags.writeable = False
    return copy
