"""Finds out, without importing any, which library an array belongs to and whether its memory is a GPU's."""

from __future__ import annotations

import sys
from typing import Any

DLPACK_CUDA = (2, 13)  # kDLCUDA and kDLCUDAManaged of dlpack.h


def is_torch(x: object) -> bool:
    """Return whether x is a torch tensor (a parameter is one)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_cupy(x: object) -> bool:
    """Return whether x is an array of cupy."""
    return library_of(x) == "cupy"


def is_numba(x: object) -> bool:
    """Return whether x is an array that numba keeps on the GPU."""
    return bool(getattr(x, "__cuda_ndarray__", False))


def library_of(x: object) -> str:
    """Return the name of the library that defines the class of x, "torch" for every subclass of its tensors."""
    return "torch" if is_torch(x) else type(x).__module__.partition(".")[0]


def lies_on_gpu(x: Any) -> bool:
    """Return whether x is an array in the memory of a CUDA GPU, of any library."""
    if is_torch(x):
        return bool(x.is_cuda)
    return has_cuda_interface(x) or exports_gpu_memory(x)


def has_cuda_interface(x: object) -> bool:
    """Return whether x tells numba where its memory on the GPU is."""
    return is_numba(x) or hasattr(x, "__cuda_array_interface__")


def exports_gpu_memory(x: Any) -> bool:
    """Return whether x offers memory of a CUDA GPU by DLPack."""
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        return False
    return int(x.__dlpack_device__()[0]) in DLPACK_CUDA
