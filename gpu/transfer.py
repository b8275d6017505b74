"""Copies between the CPU and the GPU, on the stream of an array's owner."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.gpu.array import gpu_array, stream_of
from fpsim.gpu.launch import gpu_kernel, launch


def dtype_name(x: Any) -> str:
    """The name of an array's dtype, as NumPy and ml_dtypes have it."""
    return str(x.dtype).removeprefix("torch.")


def host_array(x: Any) -> npt.NDArray[Any]:
    """An array of the GPU in the memory of the CPU, once all that is queued before is done."""
    given = gpu_array(x, "x")
    stream = stream_of(given.like)
    words: npt.NDArray[Any] = given.words.copy_to_host(stream=stream)
    if stream != 0:
        stream.synchronize()
    return words.view(np.dtype(dtype_name(x))).reshape(given.shape)


def sent(like: Any, source: npt.NDArray[Any], words: Any) -> None:
    """Fill words of the GPU with the elements of an array."""
    if source.size:
        flat = np.ascontiguousarray(source).reshape(-1).view(f"u{source.dtype.itemsize}")
        words.copy_to_device(flat, stream=stream_of(like))


def cleared(like: Any, words: Any) -> None:
    """Fill words of the GPU with zeros."""
    launch(_clear_kernel(), like, words.size, words)


@cache
def _clear_kernel() -> Any:
    """The kernel `(words)`, which become 0."""

    def clear(words: Any) -> None:
        for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
            words[i] = 0

    return gpu_kernel(clear)
