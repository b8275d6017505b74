"""CUDA's toolkit on this machine: where numba-cuda finds its compiler, libnvvm, that no Python package brought."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

PACKAGES = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")  # that bring libnvvm; numba-cuda finds it there by itself
VARIABLES = ("CUDA_HOME", "CUDA_PATH")  # where it looks next
PLACES = ("nvvm/lib64", "lib64", "lib")  # of the library, in the toolkits of NVIDIA and of Linux distributions
LIBRARY = "libnvvm.so*"
USUAL = Path("/usr/local/cuda")


@cache
def point_to_toolkit() -> None:
    """Let numba-cuda find libnvvm where nvcc is installed but neither a Python package nor a variable says so.

    Toolkits do not tell Linux's loader of libnvvm, and numba-cuda then says that there is none. Nothing happens where a
    package or a variable is there, other than that a library which lies in another place than NVIDIA's is loaded.

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
    libraries = [found for place in PLACES for found in sorted((root / place).glob(LIBRARY))]
    if libraries and PLACES[0] not in str(libraries[0]):
        try:
            ctypes.CDLL(str(libraries[0]))  # what is loaded already is what numba-cuda takes
        except OSError:
            return  # numba-cuda says what it misses


@cache
def lend_row_stack() -> None:
    """Let numba-cuda 0.30 load beside NumPy 2.5: it registers `numpy.row_stack`, which that NumPy has no longer.

    NumPy has the name, another one for `vstack`, only until numba-cuda's module is loaded. Nothing happens with a NumPy
    that has it.

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
        return  # a numba-cuda of other modules, which says what it misses
    finally:
        del vars(np)["row_stack"]


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _found() -> Path | None:
    """The toolkit that nvcc belongs to, or the one in the usual place; None without its compiler's library."""
    nvcc = shutil.which("nvcc")
    roots = [*([Path(nvcc).resolve().parent.parent] if nvcc else []), USUAL]
    return next((root for root in roots if (root / "nvvm" / "libdevice").is_dir()), None)
