"""Kernels on the GPU: how they are compiled and launched, and what becomes of their errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.gpu.array import stream_of
from fpsim.gpu.device import device_number, is_simulated
from fpsim.gpu.failures import one_sentence, size_in_words

THREADS = 256  # of a block
MOST_BLOCKS = 1 << 14  # each thread takes as many elements as are left for it
SIMULATED = (2, 4)  # blocks and threads, for every simulated one is a Python thread

Words = npt.NDArray[Any]


def launch(kernel: Callable[..., Any], like: Any, size: int, *arguments: Any, each: int = 1) -> None:
    """Run a kernel over `size` elements on the stream of an array's owner; each: elements that a thread takes at once.

    Raises:
      GpuError: the GPU has no room, or the launch failed.
    """
    if size == 0:
        return
    threads = -(-size // each)
    shape = SIMULATED if is_simulated() else (min(-(-threads // THREADS), MOST_BLOCKS), THREADS)
    with one_sentence(f"a kernel over {size} elements"):
        kernel[(*shape, stream_of(like))](*arguments)  # type: ignore[index]


def gpu_kernel(function: Callable[..., Any]) -> Any:
    """Compile a loop over elements for the GPU; nothing is reordered."""
    return cuda.jit(function, fastmath=False)


@lru_cache(maxsize=1024)
def _uploaded(data: bytes, dtype: str, device: int) -> Any:
    with one_sentence("a layout"):
        sent = cuda.to_device(np.frombuffer(data, dtype).copy())
        cuda.synchronize()  # a stream of torch or cupy does not wait for the copy
        return sent


def uploaded(layout: Words) -> Any:
    """A layout on the GPU; the same one is sent once."""
    return _uploaded(layout.tobytes(), layout.dtype.str, device_number())


def scratch(size: int, dtype: npt.DTypeLike) -> Any:
    """Words on the GPU for what lies between two kernels."""
    with one_sentence(f"an intermediate array of {size_in_words(size * np.dtype(dtype).itemsize)}"):
        return cuda.device_array(size, dtype)


def fetched(array: Any) -> Words:
    """Words of the GPU on the CPU, once everything before is done."""
    with one_sentence("a copy to the CPU"):
        found: Words = array.copy_to_host()
        return found
