"""Kernels on the GPU: how they are compiled and launched, and what becomes of their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.gpu.array import stream_of
from fpsim.gpu.device import GpuError, is_simulated

THREADS = 256  # of a block
MOST_BLOCKS = 1 << 14  # each thread takes as many elements as are left for it
SIMULATED = (2, 4)  # blocks and threads, for every simulated one is a Python thread

Words = npt.NDArray[Any]


def launch(kernel: Callable[..., Any], like: Any, size: int, *arguments: Any) -> None:
    """Run a kernel over `size` elements on the stream of an array's owner.

    Raises:
      GpuError: the GPU has no room, or the launch failed.
    """
    if size == 0:
        return
    blocks, threads = SIMULATED if is_simulated() else (min(-(-size // THREADS), MOST_BLOCKS), THREADS)
    launch_blocks(kernel, like, blocks, threads, *arguments)


def launch_blocks(kernel: Callable[..., Any], like: Any, blocks: int, threads: int, *arguments: Any) -> None:
    """Run a kernel in so many blocks of so many threads, on the stream of an array's owner.

    Raises:
      GpuError: the GPU has no room, or the launch failed.
    """
    if blocks == 0:
        return
    with _gpu_errors(f"did not run the kernel in {blocks} blocks of {threads} threads"):
        kernel[blocks, threads, stream_of(like)](*arguments)  # type: ignore[index]


def downloaded(array: Any, like: Any) -> Words:
    """An array from the GPU, after all that was launched before on the stream of `like`'s owner.

    Raises:
      GpuError: what was launched failed.
    """
    with _gpu_errors("did not finish its work"):
        stream = stream_of(like)
        if stream:
            stream.synchronize()
        words: Words = array.copy_to_host()
        return words


@contextmanager
def _gpu_errors(what: str) -> Iterator[None]:
    """Errors of CUDA as a GpuError that says what the GPU did not do."""
    try:
        yield
    except Exception as reason:
        if "CUDA" not in type(reason).__name__ and "Cuda" not in type(reason).__name__:
            raise
        raise GpuError(f"the GPU {what}: {reason}.") from None


def gpu_kernel(function: Callable[..., Any], registers: int | None = None) -> Any:
    """Compile a kernel for the GPU, for at most so many registers a thread; nothing is reordered."""
    limits = {} if registers is None or is_simulated() else {"max_registers": registers}
    return cuda.jit(function, fastmath=False, **limits)


@lru_cache(maxsize=1024)
def _uploaded(data: bytes, dtype: str) -> Any:
    return cuda.to_device(np.frombuffer(data, dtype).copy())


def uploaded(layout: Words) -> Any:
    """A layout on the GPU; the same one is sent once."""
    return _uploaded(layout.tobytes(), layout.dtype.str)
