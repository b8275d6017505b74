"""Compiling with numba: kernels, which Python calls and which are kept on disk, and the functions inside them."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numba

from fpsim.interrupts import interrupts_wait
from fpsim.runtime import numba_private
from fpsim.runtime.clock import compiling, spent
from fpsim.runtime.kernel_files import KernelFiles

Function = TypeVar("Function", bound=Callable[..., Any])

PATIENCE = 2.0  # seconds
SENTENCE = "fpsim is compiling for this processor, which it does once for each kind of call.\n"
_said: list[bool] = []

KERNELS: list[Any] = []  # every kernel of this process, for tables of what compiling costs


class _Flags(set[str]):
    """LLVM's fast-math flags as a set whose repr, part of a kernel's key, is the same in every process."""

    def __repr__(self) -> str:
        return repr(sorted(self))


SUMS = _Flags({"reassoc", "contract"})
WITHIN = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # for functions that only machine code calls
PRIVATE = None if numba.config.DISABLE_JIT else numba_private.names()
Dispatcher: Any = object if PRIVATE is None else PRIVATE.dispatcher


class Helper(Dispatcher):  # type: ignore[misc]
    """numba's dispatcher of a function that kernels call; a call from Python runs the function as plain Python.

    Compiling the function for calls from Python would take as long as compiling it for kernels.
    """

    def __call__(self, *args: Any) -> Any:
        """Run the function as plain Python, and return what it returns."""
        return self.py_func(*args)


class Kernel(Dispatcher):  # type: ignore[misc]
    """numba's dispatcher of a compiled loop that Python calls; Ctrl-C is deferred while it is compiled or loaded."""

    def compile(self, signature: Any) -> Any:
        """Return the entry point of the machine code for some argument types, loaded from the disk or compiled.

        signature: numba's types of the arguments, as a tuple or signature.
        """
        assert PRIVATE is not None
        # within the compiler's lock, for which forks wait: else a child would have no garbage collection
        with interrupts_wait(), numba_private.own_numbers(PRIVATE), garbage_waits(), announced(), compiling():
            return super().compile(signature)


def _helper(function: Any, **options: Any) -> Any:
    """Return numba's dispatcher of a function that kernels call, or the function itself if compiling is disabled.

    function: a plain Python function. options: numba's compile options, all passed explicitly, as numba would otherwise
    take a missing option from whichever caller compiles it first.
    """
    if numba.config.DISABLE_JIT:
        return function
    options = {"error_model": "numpy", "fastmath": False, **options}
    if PRIVATE is None:
        return numba.njit(**options)(function)
    return Helper(function, targetoptions={"nopython": True, "forceinline": False, **WITHIN, **options})


@cache
def _scalar(plain: Any) -> Any:
    """Return numba's dispatcher of a scalar function that kernels call, cached; plain: the Python function.

    LLVM is made to inline it, unless numba's private objects that this needs are missing (PRIVATE is None).
    """
    return _helper(plain) if PRIVATE is None else _helper(plain, forceinline=True)


def scalar(function: Function) -> Function:
    """Return numba's dispatcher of a scalar function that kernels call, on the CPU and on CUDA.

    It is compiled at the first call from a kernel, and inlined by LLVM. numba could inline it too, but would then copy
    and type it again for every call, which takes seconds. function: a Python function or its dispatcher; if numba's
    compiler is disabled, the Python function is returned.
    """
    compiled: Function = _scalar(getattr(function, "py_func", function))
    return compiled


def inner_loop(function: Function) -> Function:
    """Return numba's dispatcher of a loop over arrays that kernels call.

    Unless LLVM inlines it, a call takes some nanoseconds per array argument; so loops should have more than about a
    hundred elements.
    """
    compiled: Function = _helper(function)
    return compiled


def reordered_sums(function: Function) -> Function:
    """Return numba's dispatcher of a loop that kernels call and whose sums LLVM may reorder and fuse with products.

    LLVM can then use vector instructions, but the last bits of the sums may change. Operations that must keep their
    order belong in functions that the loop calls, which are not reordered.
    """
    compiled: Function = _helper(function, fastmath=SUMS)
    return compiled


def kernel(function: Function) -> Function:
    """Return numba's dispatcher of a loop over arrays that Python calls; it releases the GIL and uses no fast-math.

    It is compiled at its first call for each list of argument types, and kept on disk for later processes. If numba's
    compiler is disabled, the function is returned unchanged.
    """
    if numba.config.DISABLE_JIT:
        return function
    options = {"nogil": True, "error_model": "numpy", "fastmath": False}
    compiled: Any
    if PRIVATE is None:
        compiled = numba.njit(**options)(function)
    else:
        # the wrapper for C, which nothing uses, takes a tenth of the time of compiling
        compiled = Kernel(function, targetoptions={"nopython": True, "no_cfunc_wrapper": True, **options})
        compiled._cache = KernelFiles(function, compiled, PRIVATE)
    KERNELS.append(compiled)
    return compiled  # type: ignore[no-any-return]


@contextmanager
def announced() -> Iterator[None]:
    """Return a context for compiling kernels, in which a message on stderr says that kernels are being compiled.

    It is written only if stderr is a terminal, once per process, after PATIENCE (2) seconds of compiling in all
    contexts together.
    """
    if _said or not _is_terminal():
        yield
        return
    timer = threading.Timer(max(PATIENCE - spent(), 0.0), _say)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # the system takes no more threads
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_terminal() -> bool:
    """Return whether stderr is a terminal; False if a program has replaced or closed it."""
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, ValueError):
        return False


def _say() -> None:
    """Write the sentence that kernels are being compiled to stderr, once per process."""
    if not _said:
        _said.append(True)
        with contextlib.suppress(Exception):
            sys.stderr.write(SENTENCE)
            sys.stderr.flush()


@contextmanager
def garbage_waits() -> Iterator[None]:
    """Return a context without garbage collection, which would make compiling a tenth slower."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()
