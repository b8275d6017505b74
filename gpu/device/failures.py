"""Conversion of errors of CUDA, torch or cupy to a GpuError of one sentence, after which the process stays usable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fpsim.gpu.device.device import GpuError

NO_ROOM = 2  # CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation (CUDA driver and runtime API)
# Further error types without CUDA in their name, of torch, cupy, and numba's compiler and linker.
TYPES = (
    "OutOfMemoryError", "AcceleratorError", "NvvmError", "NvvmSupportError", "NVRTCError", "LinkerError",
    "DynamicLibNotFoundError",
)  # fmt: skip


@contextmanager
def one_sentence(noun: str) -> Iterator[None]:
    """Raise a GpuError in place of errors of the GPU in a `with` block; noun: the work, such as "a result of 4 MiB"."""
    try:
        yield
    except Exception as reason:
        if not is_of_gpu(reason):
            raise
        raise GpuError(_sentence(reason, noun)) from None


def is_of_gpu(reason: Exception) -> bool:
    """Return whether an exception comes from the GPU or its libraries."""
    names = [kind.__name__ for kind in type(reason).__mro__]
    if any("cuda" in name.lower() or name in TYPES for name in names):
        return True
    return isinstance(reason, RuntimeError) and str(reason).startswith("CUDA")  # torch before 2.8


def is_no_room(reason: Exception) -> bool:
    """Return whether an exception means that the GPU's memory is full."""
    code = getattr(reason, "code", getattr(reason, "status", None))
    text = str(reason).lower()
    return code == NO_ROOM or "out_of_memory" in text or "out of memory" in text or "memoryallocation" in text


def _sentence(reason: Exception, noun: str) -> str:
    """Return the message of a GpuError for the exception `reason`; noun: the failed work."""
    if is_no_room(reason):
        return (
            f"the GPU has no room for {noun}. Delete arrays that you no longer need (torch.cuda.empty_cache() "
            "frees the memory that torch caches), or work on pieces."
        )
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    said = lines[0].rstrip(".") if lines else type(reason).__name__
    return f"the GPU failed at {noun}: {said}."


def size_in_words(count: float) -> str:
    """Return a number of bytes as text, such as "4.0 MiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
