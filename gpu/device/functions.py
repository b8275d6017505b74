"""Functions inside kernels of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda

from fpsim.gpu.device.device import is_simulated


def gpu_function(function: Callable[..., Any]) -> Any:
    """A scalar function of the core, compiled once for all kernels: CUDA's compiler inlines it, not numba.

    Long functions take seconds to compile where numba inlines them, as it does with scalar functions otherwise.
    """
    plain = getattr(function, "py_func", function)
    return plain if is_simulated() else cuda.jit(device=True, forceinline=True)(plain)
