"""CUDA twins of the array functions: same names, same arguments, same bits."""

from __future__ import annotations


def available() -> bool:
    """Whether this process can run the CUDA twins.

    Example:
      >>> import fpsim as fp
      >>> isinstance(fp.gpu.available(), bool)
      True
    """
    from numba import cuda

    return bool(cuda.is_available())
