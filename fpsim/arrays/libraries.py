"""Tests of which library an array belongs to and whether it is in a GPU's memory, without importing any library."""

from __future__ import annotations

import sys
from typing import Any

DLPACK_CUDA = (2, 13)  # kDLCUDA and kDLCUDAManaged of dlpack.h


def is_torch(x: object) -> bool:
    """Return whether x is a torch tensor (parameters included)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_cupy(x: object) -> bool:
    """Return whether x is a cupy array."""
    return library_of(x) == "cupy"


def is_numba(x: object) -> bool:
    """Return whether x is a numba array in a GPU's memory."""
    return bool(getattr(x, "__cuda_ndarray__", False))


def library_of(x: object) -> str:
    """Return the top-level package that defines the class of x, such as "numpy"; "torch" for every torch tensor."""
    return "torch" if is_torch(x) else type(x).__module__.partition(".")[0]


def lies_on_gpu(x: Any) -> bool:
    """Return whether x is an array of any library in the memory of a CUDA GPU."""
    if is_torch(x):
        return bool(x.is_cuda)
    return has_cuda_interface(x) or exports_gpu_memory(x)


def has_cuda_interface(x: object) -> bool:
    """Return whether x exposes its GPU memory to numba, by being a numba array or by `__cuda_array_interface__`."""
    return is_numba(x) or hasattr(x, "__cuda_array_interface__")


def exports_gpu_memory(x: Any) -> bool:
    """Return whether x exports memory of a CUDA GPU by DLPack."""
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        return False
    return int(x.__dlpack_device__()[0]) in DLPACK_CUDA
