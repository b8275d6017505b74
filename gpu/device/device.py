"""The GPU of this process: its detection, its compute capability, and the error raised without a suitable GPU."""

from __future__ import annotations

import sys
from functools import cache

from fpsim.gpu.device.toolkit import lend_row_stack, point_to_toolkit
from fpsim.matrix_units.chips import capability_of

FP8_CAPABILITY = capability_of("ada")  # the first tensor cores that multiply FP8 (CUDA C++ Programming Guide, 5.4)


class GpuError(RuntimeError):
    """Raised if there is no GPU, if it is too old, if its memory is full, or if its work fails."""


def available() -> bool:
    """Return whether this process has a GPU on which numba can compile and run a kernel.

    Example:
      >>> import fpsim as fp
      >>> isinstance(fp.gpu.available(), bool)
      True
    """
    return not _missing()


def _missing() -> str:
    """Return the reason why there is no usable GPU, as a clause; "" if there is one."""
    from numba import cuda

    if not is_simulated():
        point_to_toolkit()
        lend_row_stack()
    try:
        if not cuda.is_available():
            return "found no CUDA device"
        if is_simulated():
            return ""
        if is_recording() and not _trial.cache_info().currsize:
            return "torch is recording a CUDA graph, where a first call can't run (call a function of fpsim.gpu before)"
        return _trial()
    except Exception as reason:  # numba-cuda without CUDA's libraries raises errors whose types differ by version
        said = str(reason).strip().splitlines() or [type(reason).__name__]
        return (
            f"numba-cuda does not find its libraries ({said[0].rstrip('.')}; pip install 'numba-cuda[cu13]' brings "
            "them)"
        )


OLD_DRIVER = "UNSUPPORTED_PTX_VERSION"  # CUDA's error for code of a compiler that is newer than the driver


@cache
def _trial() -> str:
    """Return the reason why a trial kernel fails, such as a driver older than the compiler, as a clause; else ""."""
    try:
        _run_nothing()
    except Exception as reason:
        if OLD_DRIVER not in str(reason):
            return f"a first kernel did not run ({str(reason).strip().splitlines()[0].rstrip('.')})"
        return (
            "its driver is older than the CUDA of numba-cuda's compiler (update the driver, or take the compiler of "
            "CUDA 12: pip install 'numba-cuda[cu12]')"
        )
    return ""


def _run_nothing() -> None:
    """Compile and run an empty kernel."""
    from numba import cuda

    cuda.jit(lambda: None)[1, 1]()
    cuda.synchronize()


@cache  # success is cached, an error is not
def require_device() -> None:
    """Raise a GpuError if there is no usable GPU.

    Example:
      >>> from fpsim.gpu.device.device import available, require_device
      >>> if available():
      ...     require_device()
    """
    missing = _missing()
    if missing:
        raise GpuError(
            f"fpsim.gpu needs an NVIDIA GPU with its driver; {missing}. The functions of fpsim itself give the same "
            "bits on the CPU."
        )


def require_capability(needed: tuple[int, int], noun: str) -> None:
    """Raise a GpuError if there is no usable GPU, or if its compute capability (major, minor) is lower than `needed`.

    noun: the subject of the message, such as "an FP8 product".
    """
    require_device()
    has = capability()
    if has < needed:
        raise GpuError(
            f"{noun} needs a GPU of compute capability {needed[0]}.{needed[1]} or later; this one has "
            f"{has[0]}.{has[1]}. The emulated functions of fpsim.gpu work on it."
        )


def capability() -> tuple[int, int]:
    """Return the compute capability of the current GPU as (major, minor)."""
    from numba import cuda

    major, minor = cuda.get_current_device().compute_capability
    return int(major), int(minor)


def device_number() -> int:
    """Return the index of numba's current GPU; 0 in the simulator."""
    from numba import cuda

    return 0 if is_simulated() else int(cuda.get_current_device().id)


def is_recording() -> bool:
    """Return whether torch is recording a CUDA graph on its current stream."""
    torch = sys.modules.get("torch")
    if torch is None or is_simulated() or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


def is_simulated() -> bool:
    """Return whether numba simulates the GPU on the CPU (NUMBA_ENABLE_CUDASIM=1)."""
    from numba import config

    return bool(config.ENABLE_CUDASIM)
