"""Numba's compiler options: for the functions inside kernels, and for kernels, which are kept on disk."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numba
from numba.core import sigutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import CPUDispatcher
from numba.core.runtime import rtsys
from numba.core.typed_passes import NopythonRewrites
from numba.core.untyped_passes import InlineClosureLikes

from fpsim.runtime.clock import compiling
from fpsim.runtime.code_libraries import InternalLibrary, KernelLibrary, LoopLibrary, PartLibrary, libraries
from fpsim.runtime.kernel_files import KernelFiles
from fpsim.runtime.kernel_key import UnknownPart, key_of

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

    Variants of one function that captured other values would else look like edits of each other to `kernel_key`, which
    keeps no kernel that an edited function is part of.
    """
    cells = function.__closure__ or ()
    if cells:
        captured = ",".join(_stable(cell.cell_contents) for cell in cells)
        digest = hashlib.sha256(captured.encode()).hexdigest()[:16]
        function.__qualname__ = f"{function.__qualname__}_{digest}"
    return function


class _Flags(set[str]):
    """LLVM's fast-math flags, whose text is the same in every process: it is part of a kernel's key."""

    def __repr__(self) -> str:
        return repr(sorted(self))


SUMS = _Flags({"reassoc", "contract"})


class _KernelCompiler(CompilerBase):  # type: ignore[misc]
    """numba's compiler, for kernels."""

    library: type[JITCodeLibrary] = KernelLibrary

    def define_pipelines(self) -> list[PassManager]:
        """numba's passes, but for two that look for what no kernel has: functions within functions, sums of arrays."""
        passes = PassManager("kernel")
        for each, description in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if each not in (InlineClosureLikes, NopythonRewrites):
                passes.add_pass(each, description)
        passes.finalize()
        return [passes]

    def _compile_core(self) -> Any:
        if self.state.library is None:
            if self.library is not PartLibrary:
                self._name_by_content()
            self.state.library = self.library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            self.state.library.enable_object_caching()  # before the code is made, or it could not be kept
        return super()._compile_core()

    def _name_by_content(self) -> None:
        """Call machine code after all that it is made of: code of the same name may have come from the disk.

        An edited function would meet the one before, as numba counts compilations, and its numbers begin anew in every
        process. What has no key is not kept on disk, and has a name that no other process gives.
        """
        function = self.state.func_id
        try:
            content = f"{key_of(function.func)}{self.state.flags.fastmath!r}"
        except UnknownPart:
            content = os.urandom(20).hex()
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        function.func_qualname, function.unique_name = (
            f"{name}.{digest}" for name in (function.func_qualname, function.unique_name)
        )


class _LoopCompiler(_KernelCompiler):
    """numba's compiler, for loops inside kernels."""

    library = LoopLibrary


class _PartCompiler(_KernelCompiler):
    """numba's compiler, for parts."""

    library = PartLibrary


class Part(CPUDispatcher):  # type: ignore[misc]
    """A function inside kernels. Called from Python it runs as plain Python, so that it needs no entrance from there.

    The entrances that numba makes for every function take as long to compile as the functions themselves.
    """

    def __call__(self, *args: Any) -> Any:
        return self.py_func(*args)

    def compile(self, signature: Any) -> Any:
        """Compile for some argument types, as numba does, without its clocks, of which each level of calls sets two.

        These are called for every call of LLVM, which is a twentieth of the time.
        """
        types, result = sigutils.normalize_signature(signature)
        compiled = self.overloads.get(tuple(types))
        if compiled is None:
            with global_compiler_lock, self._compiling_counter:
                compiled = self._compiler.compile(types, result)
                self.add_overload(compiled)
        return compiled.entry_point


def _part(function: Any, compiler: type[CompilerBase], **options: Any) -> Any:
    """A function inside kernels with options of numba's; plain Python where nothing is compiled."""
    if numba.config.DISABLE_JIT:
        return function
    entrances = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    options = {"nopython": True, "error_model": "numpy", **entrances, **options}
    return Part(_named(function), targetoptions=options, pipeline_class=compiler)


@cache
def _scalar(plain: Any) -> Any:
    return _part(plain, _PartCompiler, forceinline=True)


def scalar(function: Function) -> Function:
    """A scalar function inside kernels, on the CPU and on CUDA: compiled once for all of them, and inlined by LLVM.

    Numba could inline it too, but then would copy and type it again for every call, which takes seconds.
    """
    compiled: Function = _scalar(getattr(function, "py_func", function))
    return compiled


def inner_loop(function: Function) -> Function:
    """A loop over arrays inside kernels, compiled once for all of them. Not inlined, which saves compiling it again.

    A call takes some nanoseconds for each array, so the loop should be longer than a hundred elements or so.
    """
    compiled: Function = _part(function, _LoopCompiler)
    return compiled


def reordered_sums(function: Function) -> Function:
    """An inner loop whose own sums may be added in another order and with fused products, so that they go by vectors.

    Functions that it calls keep their order: whatever must not be rearranged, differences above all, stands in one.
    """
    compiled: Function = _part(function, _LoopCompiler, fastmath=SUMS)
    return compiled


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A loop that Python calls. Ctrl-C waits until it is compiled or loaded."""

    def compile(self, signature: Any) -> Any:
        with interrupts_wait(), garbage_waits(), compiling(), global_compiler_lock:
            rtsys.initialize(self.targetctx)  # its own code is called from outside kernels
            with libraries(self.targetctx, InternalLibrary):
                return super().compile(signature)


def kernel(function: Function) -> Function:
    """Compile a loop over arrays: no GIL, no fast-math, kept on disk for later processes."""
    if numba.config.DISABLE_JIT:
        return function
    # numba's entrance for C, which nothing uses, is a tenth of what compiling costs
    options = {"nopython": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    compiled = Kernel(_named(function), targetoptions=options, pipeline_class=_KernelCompiler)
    compiled._cache = KernelFiles(function, compiled)
    KERNELS.append(compiled)
    return compiled


@contextmanager
def garbage_waits() -> Iterator[None]:
    """Search for garbage later: compiling makes so many objects that Python would search for a tenth of the time."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back until the end.

    llvmlite has one lock for all of LLVM. A signal that arrives during one of its calls becomes an exception before the
    lock is given back, and whatever another thread compiles then would wait for ever.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    caught: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])
