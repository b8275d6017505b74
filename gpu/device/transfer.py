"""Copies between CPU and GPU, and fills, on the stream of an array's library."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.gpu.device.array import dtype_name, gpu_array
from fpsim.gpu.device.launch import gpu_kernel, launch, stream_of


def host_array(x: Any, name: str = "x") -> npt.NDArray[Any]:
    """Copy a GPU array of torch, cupy or numba to a NumPy array of the same shape and dtype, and return it.

    The copy waits for the work that the array's library has queued. name: the argument's name, for error messages.
    """
    array = gpu_array(x, name)
    stream = stream_of(array.like)
    words: npt.NDArray[Any] = array.words.copy_to_host(stream=stream)
    if stream != 0:
        stream.synchronize()
    return words.view(np.dtype(dtype_name(x))).reshape(array.shape)


def sent(like: Any, source: npt.NDArray[Any], words: Any) -> None:
    """Copy the bits of a NumPy array to `words`, a flat GPU array, on the stream of the library of the array `like`.

    words: unsigned integers of the same number and size as the elements of `source`.
    """
    if source.size:
        flat = np.ascontiguousarray(source).reshape(-1).view(f"u{source.dtype.itemsize}")
        words.copy_to_device(flat, stream=stream_of(like))


def cleared(like: Any, words: Any) -> None:
    """Fill `words`, a flat numba GPU array, with zeros, on the stream of the library of the array `like`."""
    launch(fill_kernel(), like, words.size, words, words.dtype.type(0))


@cache
def fill_kernel() -> Any:
    """Return the GPU kernel (out, word), which sets all elements of the flat array `out` to `word`."""

    def fill(out: Any, word: Any) -> None:
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            out[i] = word

    return gpu_kernel(fill)
