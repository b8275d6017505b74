"""The GPU of this process: whether there is one, and the error where there is none that can do the work."""

from __future__ import annotations

from functools import cache

from fpsim.gpu.device.toolkit import lend_row_stack, point_to_toolkit
from fpsim.matrix_units.chips import capability_of

FP8_CAPABILITY = capability_of("ada")  # the first tensor cores that multiply FP8 (CUDA C++ Programming Guide, 5.4)


class GpuError(RuntimeError):
    """No GPU, one that is too old, or one that has no room left."""


def available() -> bool:
    """Whether this process finds a GPU that numba can compile for.

    Example:
      >>> import fpsim as fp
      >>> isinstance(fp.gpu.available(), bool)
      True
    """
    return not _missing()


def _missing() -> str:
    """Why there is no GPU to work on, "" where there is one."""
    from numba import cuda

    if not is_simulated():
        point_to_toolkit()
        lend_row_stack()
    try:
        if not cuda.is_available():
            return "found no CUDA device"
        return "" if is_simulated() else _trial()
    except Exception as reason:  # numba-cuda without CUDA's own libraries: the types of its errors differ by version
        said = str(reason).strip().splitlines() or [type(reason).__name__]
        return (
            f"numba-cuda does not find what it needs ({said[0].rstrip('.')}; pip install 'numba-cuda[cu13]' brings it)"
        )


OLD_DRIVER = "UNSUPPORTED_PTX_VERSION"  # CUDA's error for code of a compiler that is newer than the driver


@cache
def _trial() -> str:
    """What keeps a small kernel from running, "" where it runs: a driver can be older than numba-cuda's compiler."""
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
    from numba import cuda

    cuda.jit(lambda: None)[1, 1]()
    cuda.synchronize()


@cache  # success is cached, an error is not
def require_device() -> None:
    """A GpuError unless there is a GPU.

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
    """A GpuError unless the GPU has a compute capability."""
    require_device()
    found = capability()
    if found < needed:
        raise GpuError(
            f"{noun} needs a GPU of compute capability {needed[0]}.{needed[1]} or later; this one has "
            f"{found[0]}.{found[1]}. The emulated functions of fpsim.gpu work on it."
        )


def capability() -> tuple[int, int]:
    """The compute capability of the GPU."""
    from numba import cuda

    major, minor = cuda.get_current_device().compute_capability
    return int(major), int(minor)


def device_number() -> int:
    """The number of the GPU that numba works on."""
    from numba import cuda

    return 0 if is_simulated() else int(cuda.get_current_device().id)


def is_simulated() -> bool:
    """Whether numba simulates the GPU (NUMBA_ENABLE_CUDASIM=1), one Python thread per CUDA thread."""
    from numba import config

    return bool(config.ENABLE_CUDASIM)
