"""Makes numba-cuda find the compiler library, libnvvm, of a CUDA toolkit that is installed on this machine."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

PACKAGES = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")  # with libnvvm, which numba-cuda finds by itself
VARIABLES = ("CUDA_HOME", "CUDA_PATH")  # where numba-cuda looks next
PLACES = ("nvvm/lib64", "lib64", "lib")  # folders of the library in toolkits of NVIDIA and of Linux distributions
LIBRARY = "libnvvm.so*"
USUAL = Path("/usr/local/cuda")


@cache
def point_to_toolkit() -> None:
    """Make numba-cuda find libnvvm, the compiler library, in a CUDA toolkit that is installed on this machine.

    Toolkits do not register libnvvm with Linux's loader, so that numba-cuda would not find it by itself. If neither
    CUDA_HOME nor CUDA_PATH is set, CUDA_HOME is set to the toolkit's folder. If libnvvm is in another subfolder than
    NVIDIA's nvvm/lib64, it is loaded here. Nothing is changed if a Python package contains libnvvm.

    Example:
      >>> from fpsim.gpu.device.toolkit import point_to_toolkit
      >>> point_to_toolkit()
    """
    if any(map(_is_installed, PACKAGES)):
        return
    named = next(filter(None, map(os.environ.get, VARIABLES)), None)
    root = Path(named) if named else _found()
    if root is None:
        return
    if not named:
        os.environ[VARIABLES[0]] = str(root)
    libraries = [library for place in PLACES for library in sorted((root / place).glob(LIBRARY))]
    if libraries and PLACES[0] not in str(libraries[0]):
        try:
            ctypes.CDLL(str(libraries[0]))  # numba-cuda uses a library that is loaded already
        except OSError:
            return  # numba-cuda reports the missing library


@cache
def lend_row_stack() -> None:
    """Make numba-cuda 0.30 import with NumPy 2.5, which lacks the `numpy.row_stack` that numba-cuda uses.

    The name, an alias of `vstack`, is set only while numba-cuda's module is imported. Nothing is done if NumPy has it.

    Example:
      >>> from fpsim.gpu.device.toolkit import lend_row_stack
      >>> lend_row_stack()
    """
    if hasattr(np, "row_stack"):
        return
    vars(np)["row_stack"] = np.vstack
    try:
        importlib.import_module("numba.cuda.np.arrayobj")
    except ImportError:
        return  # a numba-cuda with other modules, which reports errors itself
    finally:
        del vars(np)["row_stack"]


def _is_installed(package: str) -> bool:
    """Return whether a Python package is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _found() -> Path | None:
    """Return the folder of the toolkit that `nvcc` belongs to, or else /usr/local/cuda; None if neither has libdevice.

    libdevice is the folder nvvm/libdevice with NVIDIA's device library.
    """
    nvcc = shutil.which("nvcc")
    roots = [*([Path(nvcc).resolve().parent.parent] if nvcc else []), USUAL]
    return next((root for root in roots if (root / "nvvm" / "libdevice").is_dir()), None)
