"""Kernels on the GPU: how they are compiled and launched."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.gpu.device.device import GpuError, device_number, is_simulated
from fpsim.gpu.device.failures import one_sentence, size_in_words
from fpsim.gpu.device.streams import stream_of

THREADS = 256  # of a block
MOST_BLOCKS = 1 << 14  # each thread takes as many elements as are left for it
SIMULATED = (2, 4)  # blocks and threads, for every simulated one is a Python thread

SHARING = 512  # threads of a block that fills shared memory: three with 64 KiB each fit into a multiprocessor
STATIC_BYTES = 48 << 10  # of shared memory that every kernel may have; for more it has to ask (CUDA guide, 16.8.3)
WARNS = "CUDA_LOW_OCCUPANCY_WARNINGS"

_REFUSED: set[tuple[int, int]] = set()
_ALLOWED: set[tuple[Any, ...]] = set()  # kernels and types of arguments that may have their shared memory

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
        _configured(kernel, *shape, stream_of(like))(*arguments)


def _configured(kernel: Any, *configuration: Any) -> Any:
    """A kernel with its grid, without numba's warning that few blocks leave a GPU idle: the array has no more to do."""
    config = getattr(sys.modules.get(type(kernel).__module__), "config", None)
    wanted = getattr(config, WARNS, None)
    if not wanted:
        return kernel[configuration]
    setattr(config, WARNS, 0)
    try:
        return kernel[configuration]
    finally:
        setattr(config, WARNS, wanted)


def launch_blocks(kernel: Callable[..., Any], like: Any, blocks: int, threads: int, *arguments: Any) -> None:
    """Run a kernel in so many blocks of so many threads, on the stream of an array's owner.

    Raises:
      GpuError: the GPU has no room, or the launch failed.
    """
    if blocks == 0:
        return
    with one_sentence(f"a kernel in {blocks} blocks of {threads} threads"):
        _configured(kernel, blocks, threads, stream_of(like))(*arguments)


def launch_shared(
    kernel: Callable[..., Any], like: Any, size: int, shared: int, *arguments: Any, each: int = 1
) -> bool:
    """Run a kernel with some bytes of dynamic shared memory in every block; whether the GPU has so much.

    Every block fills the memory first, so there are only as many blocks as the multiprocessors hold at once.
    """
    if size == 0:
        return True
    if is_simulated():
        kernel[(*SIMULATED, stream_of(like), shared)](*arguments)  # type: ignore[index]
        return True
    device = cuda.get_current_device()
    most = int(getattr(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", 0) or STATIC_BYTES)
    refused = (int(device.id), shared) in _REFUSED
    if refused or shared > most or (shared > STATIC_BYTES and not _allow_shared(kernel, shared, arguments)):
        return False
    resident = int(device.MULTIPROCESSOR_COUNT) * max(min(2048 // SHARING, most // (shared + 1024)), 1)
    blocks = min(-(-size // (each * SHARING)), resident)
    try:
        with one_sentence(f"a kernel over {size} elements"):
            _configured(kernel, blocks, SHARING, stream_of(like), shared)(*arguments)
    except GpuError:
        if shared <= STATIC_BYTES:
            raise
        _REFUSED.add((int(device.id), shared))  # a launch with too much memory is refused before it starts
        return False
    return True


def _allow_shared(kernel: Any, shared: int, arguments: tuple[Any, ...]) -> bool:
    """Ask for more shared memory than every kernel has; numba has no public way to."""
    try:
        from numba.cuda.cudadrv import driver

        # arrays of one kernel differ in their dtypes alone; asking once saves a fifth of a call's time on the CPU
        request = (kernel, shared, device_number(), *(getattr(each, "dtype", type(each)) for each in arguments))
        if request in _ALLOWED:
            return True
        compiled = kernel.compile(tuple(kernel.typeof_pyval(argument) for argument in arguments))
        function = compiled._codelibrary.get_cufunc()
        wanted = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.driver.cuKernelSetAttribute(wanted, shared, function.handle, function.device.id)
        _ALLOWED.add(request)
    except Exception:  # another numba, or another driver: the table stays where it is, which is slower
        return False
    return True


def gpu_kernel(function: Callable[..., Any], registers: int | None = None) -> Any:
    """Compile a kernel for the GPU, for at most so many registers a thread; nothing is reordered."""
    limits = {} if registers is None or is_simulated() else {"max_registers": registers}
    return cuda.jit(function, fastmath=False, **limits)


@lru_cache(maxsize=1024)
def _uploaded(data: bytes, dtype: str, device: int) -> Any:
    with one_sentence("a layout"):
        sent = cuda.to_device(np.frombuffer(data, dtype).copy())
        cuda.synchronize()  # a stream of torch or cupy does not wait for the copy
        return sent


def uploaded(layout: Words) -> Any:
    """A layout on the GPU; the same one is sent once."""
    return _uploaded(layout.tobytes(), layout.dtype.str, device_number())


def scratch(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    """Words on the GPU for an intermediate result, with any content."""
    refuse_capture()  # memory can't be taken while a graph is recorded
    size = shape if isinstance(shape, int) else math.prod(shape)
    with one_sentence(f"an intermediate array of {size_in_words(size * np.dtype(dtype).itemsize)}"):
        return cuda.device_array(shape, dtype)


def zeroed(size: int, dtype: npt.DTypeLike) -> Any:
    """Zeros on the GPU, which every stream sees."""
    refuse_capture()
    with one_sentence("an intermediate array"):
        sent = cuda.to_device(np.zeros(size, dtype))
        cuda.synchronize()
        return sent


def refuse_capture() -> None:
    """Refuse to wait for the GPU, or to take memory, while torch records a CUDA graph, which would spoil the graph.

    Raises:
      GpuError: a CUDA graph is being recorded.
    """
    torch = sys.modules.get("torch")
    if torch is not None and not is_simulated() and torch.cuda.is_current_stream_capturing():
        raise GpuError(
            "this call waits for the GPU or takes memory, which a CUDA graph can't record; call it outside the graph."
        )


def fetched(array: Any) -> Words:
    """Words of the GPU on the CPU, once everything before is done, on every stream."""
    refuse_capture()
    with one_sentence("a copy to the CPU"):
        cuda.synchronize()
        found: Words = array.copy_to_host()
        return found
