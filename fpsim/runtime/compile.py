"""Numba's compiler options: for scalar functions, for shared ones, and for kernels that are kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba

from fpsim.runtime.kernel_files import KernelFiles

Function = TypeVar("Function", bound=Callable[..., Any])

KERNELS: list[Any] = []  # every kernel of this process, for tables of what compiling costs


def _stable(value: Any) -> str:
    """A name for a captured value that is the same in every process."""
    inner = getattr(value, "py_func", value)
    if callable(inner) and hasattr(inner, "__closure__"):
        return f"{inner.__module__}.{inner.__qualname__}"  # which tells what it captured: see _named
    return repr(value)


def _named(function: Function) -> Function:
    """The function under a name that tells what it captured.

    numba names machine code after the function and a number that counts compilations in this process. Code from the
    disk brings the numbers of another process, so two variants of one loop could meet under one name, and calls of the
    one would reach the other.
    """
    cells = function.__closure__ or ()
    if cells:
        captured = ",".join(_stable(cell.cell_contents) for cell in cells)
        digest = hashlib.sha256(captured.encode()).hexdigest()[:16]
        function.__qualname__ = f"{function.__qualname__}_{digest}"
    return function


def scalar(function: Function) -> Function:
    """Compile a scalar function of the core; it is inlined where it is called, on the CPU and on CUDA."""
    compiled: Function = numba.njit(inline="always")(_named(function))
    return compiled


def shared(function: Function) -> Function:
    """A scalar function of the core, compiled once for all CPU kernels that call it: LLVM inlines it, not numba.

    Long functions take seconds to compile where numba inlines them; the machine code is the same.
    """
    plain = getattr(function, "py_func", None) or _named(function)
    compiled: Function = numba.njit(error_model="numpy", forceinline=True)(plain)
    return compiled


def kernel(function: Function) -> Function:
    """Compile a loop over arrays: no GIL, no fast-math, kept on disk for later processes."""
    compiled = numba.njit(nogil=True, error_model="numpy")(_named(function))
    if not numba.config.DISABLE_JIT:
        compiled._cache = KernelFiles(function, compiled)
        KERNELS.append(compiled)
    return compiled  # type: ignore[no-any-return]
