"""Where numba puts the code of functions: intermediate code for what goes into kernels, machine code for kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.environment import lookup_environment

ENTRANCE = "_ZN7cpython"  # how the names of entrances from Python begin


class _CodegenOfParts:
    """numba's code generator, but for the environments of functions, whose place is in the kernel's machine code."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, env: Any) -> None:
        """Nothing: the kernel does, once it has a place for it."""


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a part as LLVM's intermediate code, for the kernels that it goes into.

    numba would optimise it, with all that it calls, and make machine code of it: once for every level of calls, of
    which a kernel has up to eight. Here LLVM sees everything once, in the kernel, which takes a third less time.
    """

    @property
    def codegen(self) -> Any:
        """What made this."""
        return _CodegenOfParts(self._codegen)

    def _optimize_final_module(self) -> None:
        """Leave it to the kernel."""

    def _finalize_final_module(self) -> None:
        """Be ready for kernels, without machine code."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Null: there is no machine code."""
        return 0


class InternalLibrary(PartLibrary):
    """The code of a function of numba's own that a kernel calls: a part too, unless Python can call it."""

    _is_part = True  # until the end of the code is known

    def finalize(self) -> None:
        """End the code; what has an entrance from Python becomes machine code."""
        self._is_part = not any(function.name.startswith(ENTRANCE) for function in self._final_module.functions)
        super().finalize()

    @property
    def codegen(self) -> Any:
        """What made this."""
        return super().codegen if self._is_part else self._codegen

    def _optimize_final_module(self) -> None:
        if not self._is_part:
            JITCodeLibrary._optimize_final_module(self)

    def _finalize_final_module(self) -> None:
        super()._finalize_final_module() if self._is_part else JITCodeLibrary._finalize_final_module(self)

    def get_pointer_to_function(self, name: str) -> Any:
        """Where a function begins, null in a part."""
        self._ensure_finalized()  # which tells what this is
        return 0 if self._is_part else JITCodeLibrary.get_pointer_to_function(self, name)


class KernelLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a kernel, which LLVM optimises once all parts are in it.

    numba would have its functions optimised one by one before. That takes time, and some loops come out longer.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _finalize_final_module(self) -> None:
        """Make machine code, and give its parts their environments, without which they cannot word an error."""
        super()._finalize_final_module()
        for name in [each.name for each in self._final_module.global_variables]:
            environment = lookup_environment(name)
            if environment is not None:
                self._codegen.set_env(name, environment)


@contextmanager
def libraries(context: Any, kind: type[JITCodeLibrary]) -> Iterator[None]:
    """Let numba put what it compiles or loads into such libraries; only with numba's lock."""
    codegen = context.codegen()
    before = codegen._library_class
    codegen._library_class = kind
    try:
        yield
    finally:
        codegen._library_class = before
