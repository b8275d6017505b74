"""Kernels on the GPU: compilation, launches, and memory for intermediate results."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.arrays import is_cupy, is_torch
from fpsim.gpu.device.device import GpuError, device_number, is_recording, is_simulated
from fpsim.gpu.device.failures import one_sentence, size_in_words
from fpsim.runtime.records import as_rows

THREADS = 256  # threads of a block
MOST_BLOCKS = 1 << 14  # most blocks of a launch; for larger arrays, threads process several elements
SIMULATED = (2, 4)  # blocks and threads in the simulator, where every thread is a Python thread

SHARING = 512  # threads of a block with a table in shared memory: three blocks of 64 KiB fit into a multiprocessor
STATIC_BYTES = 48 << 10  # shared memory of every kernel; more must be requested (CUDA guide, 16.8.3)
WARNS = "CUDA_LOW_OCCUPANCY_WARNINGS"

_REFUSED: set[tuple[int, int]] = set()
_ALLOWED: set[tuple[Any, ...]] = set()  # (kernel, bytes, device, types of arguments) whose shared memory was granted

Words = npt.NDArray[Any]


def stream_of(like: Any) -> Any:
    """Return the current stream of the library (torch or cupy) of an array; 0, the default stream, for numba."""
    if is_torch(like):
        return cuda.external_stream(sys.modules["torch"].cuda.current_stream().cuda_stream)
    if is_cupy(like):
        return cuda.external_stream(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0


def launch(kernel: Callable[..., Any], like: Any, size: int, *arguments: Any, each: int = 1) -> None:
    """Run a kernel over `size` elements on the stream of the library of the array `like`; do nothing if `size` is 0.

    arguments: the arguments of the kernel. each: number of elements that a thread processes at once. It determines the
    number of blocks; blocks have 256 threads.

    Raises:
      GpuError: the GPU's memory is full, or the launch failed.
    """
    if size == 0:
        return
    threads = -(-size // each)
    shape = SIMULATED if is_simulated() else (min(-(-threads // THREADS), MOST_BLOCKS), THREADS)
    with one_sentence(f"a kernel over {size} elements"):
        _configured(kernel, *shape, stream_of(like))(*arguments)


def _configured(kernel: Any, *configuration: Any) -> Any:
    """Return a kernel configured for a launch, without numba's warning about too few blocks.

    configuration: number of blocks, threads of a block, stream, and optionally bytes of dynamic shared memory.
    """
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
    """Run a kernel in `blocks` blocks of `threads` threads, on the stream of the library of the array `like`.

    arguments: the arguments of the kernel. If `blocks` is 0, nothing is run.

    Raises:
      GpuError: the GPU's memory is full, or the launch failed.
    """
    if blocks == 0:
        return
    with one_sentence(f"a kernel in {blocks} blocks of {threads} threads"):
        _configured(kernel, blocks, threads, stream_of(like))(*arguments)


def launch_shared(
    kernel: Callable[..., Any], like: Any, size: int, shared: int, *arguments: Any, each: int = 1
) -> bool:
    """Run a kernel with `shared` bytes of dynamic shared memory per block; return whether the GPU allows so much.

    If it returns False, the kernel has not run. Every block first fills its shared memory, so there are only as many
    blocks as the multiprocessors hold at once.

    like: an array, on whose library's stream the kernel runs. size: number of elements; if it is 0, nothing is run and
    True returned. arguments: the arguments of the kernel. each: number of elements that a thread processes at once.
    Raises a GpuError if a launch with at most 48 KiB of shared memory fails.
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
        _REFUSED.add((int(device.id), shared))  # a launch with too much shared memory fails before it starts
        return False
    return True


def _allow_shared(kernel: Any, shared: int, arguments: tuple[Any, ...]) -> bool:
    """Request `shared` bytes of shared memory for a kernel, more than the default; return whether it was granted.

    arguments: those of the coming call; their types select the compiled version of the kernel. Other versions of numba
    or of the driver may lack the private parts of numba that are used; then the request is not granted.
    """
    try:
        from numba.cuda.cudadrv import driver

        # arrays of one kernel differ in their dtypes alone; a single request saves a fifth of a call's time on the CPU
        types = (getattr(argument, "dtype", type(argument)) for argument in arguments)
        request = (kernel, shared, device_number(), *types)
        if request in _ALLOWED:
            return True
        compiled = kernel.compile(tuple(kernel.typeof_pyval(argument) for argument in arguments))
        function = compiled._codelibrary.get_cufunc()
        wanted = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.driver.cuKernelSetAttribute(wanted, shared, function.handle, function.device.id)
        _ALLOWED.add(request)
    except Exception:  # another numba or driver: the caller uses a slower kernel
        return False
    return True


def gpu_kernel(function: Callable[..., Any], registers: int | None = None) -> Any:
    """Return a function compiled for the GPU without fast math.

    registers: largest number of registers that a thread may use; None for no limit.
    """
    limits = {} if registers is None or is_simulated() else {"max_registers": registers}
    return cuda.jit(function, fastmath=False, **limits)


@lru_cache(maxsize=1024)
def _uploaded(data: bytes, dtype: str, shape: tuple[int, ...], device: int) -> Any:
    """Return a copy on the GPU of an array with the bytes `data`, a NumPy dtype string and a shape; cached.

    device: index of the current GPU, so that each GPU has its own copy.
    """
    refuse_capture()
    with one_sentence("a layout"):
        sent = cuda.to_device(np.frombuffer(data, dtype).reshape(shape).copy())
        cuda.synchronize()  # a stream of torch or cupy does not wait for the copy
        return sent


def uploaded(layout: Words) -> Any:
    """Return a copy on the GPU of a NumPy array that never changes; equal arrays are copied once and share the copy."""
    return _uploaded(layout.tobytes(), layout.dtype.str, layout.shape, device_number())


def uploaded_rows(*layouts: Words) -> Any:
    """Copy flat NumPy arrays of one dtype to the GPU as the rows of a matrix, and return the matrix.

    The arrays must never change: equal matrices are copied once and share the copy. Shorter arrays are padded with
    zeros at the end.
    """
    return uploaded(as_rows(*layouts))


def scratch(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    """Return an uninitialised GPU array of this shape and NumPy dtype for an intermediate result.

    Raises:
      GpuError: the GPU's memory is full, or a CUDA graph is being recorded.
    """
    refuse_capture()  # memory can't be allocated while a graph is recorded
    size = shape if isinstance(shape, int) else math.prod(shape)
    with one_sentence(f"an intermediate array of {size_in_words(size * np.dtype(dtype).itemsize)}"):
        return cuda.device_array(shape, dtype)


def zeroed(size: int, dtype: npt.DTypeLike) -> Any:
    """Return a flat GPU array of `size` zeros of `dtype`, which kernels on every stream can read at once.

    Raises:
      GpuError: the GPU's memory is full, or torch is recording a CUDA graph.
    """
    refuse_capture()
    with one_sentence("an intermediate array"):
        sent = cuda.to_device(np.zeros(size, dtype))
        cuda.synchronize()
        return sent


def refuse_capture() -> None:
    """Raise a GpuError if torch is recording a CUDA graph, which cannot contain waits and allocations."""
    if is_recording():
        raise GpuError(
            "this call waits for the GPU or allocates memory, which a CUDA graph can't record. Make the same call once "
            "before the graph, or outside of it."
        )


def fetched(array: Any) -> Words:
    """Return a GPU array of numba as a NumPy array, after the work of all streams is done.

    Raises:
      GpuError: the copy failed, or torch is recording a CUDA graph.
    """
    refuse_capture()
    with one_sentence("a copy to the CPU"):
        cuda.synchronize()
        words: Words = array.copy_to_host()
        return words
