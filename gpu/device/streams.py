"""The CUDA stream on which the library of a GPU array queues its work."""

from __future__ import annotations

import sys
from typing import Any

from fpsim.arrays import is_cupy, is_torch


def stream_of(like: Any) -> Any:
    """Return the current stream of the library (torch or cupy) of an array; 0, the default stream, for numba."""
    from numba import cuda

    if is_torch(like):
        return cuda.external_stream(sys.modules["torch"].cuda.current_stream().cuda_stream)
    if is_cupy(like):
        return cuda.external_stream(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0
