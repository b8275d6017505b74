"""The place of the CUDA twins of the array functions. So far it says whether a GPU is there."""

from __future__ import annotations


def available() -> bool:
    """Whether this process finds a GPU that numba can compile for.

    Example:
      >>> import fpsim as fp
      >>> isinstance(fp.gpu.available(), bool)
      True
    """
    from numba import cuda

    return bool(cuda.is_available())
