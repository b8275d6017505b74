"""Copies of arrays with unusual memory layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def unaligned(x: Array) -> Array:
    """Return a copy whose address is one byte past a natural one."""
    space = np.empty(x.nbytes + 1, np.uint8)
    copy = space[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def read_only(x: Array) -> Array:
    """Return a read-only copy."""
    copy = x.copy()
    copy.flags.writeable = False
    return copy
