"""Which library an array on the GPU belongs to, and the stream that its work is queued on."""

from __future__ import annotations

import sys
from typing import Any


def is_torch(x: Any) -> bool:
    """Whether x is a tensor of torch, a parameter of a module too, without importing it."""
    return library_of(x) == "torch"


def is_cupy(x: Any) -> bool:
    """Whether x is an array of cupy, without importing it."""
    return library_of(x) == "cupy"


def library_of(x: Any) -> str:
    """The library whose array x is."""
    return type(x).__module__.partition(".")[0]


def _is_numba(x: Any) -> bool:
    return bool(getattr(x, "__cuda_ndarray__", False))


def stream_of(like: Any) -> Any:
    """The stream on which the owner of an array works now; 0 for the default one."""
    from numba import cuda

    if is_torch(like):
        return cuda.external_stream(sys.modules["torch"].cuda.current_stream().cuda_stream)
    if is_cupy(like):
        return cuda.external_stream(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0
