"""Where numba puts the code of functions: kernels and loops become machine code, and what goes into them stays LLVM's.

A loop is compiled once for all kernels that call it, which have its machine code beside theirs on disk. numba would put
a copy of its intermediate code into each of them, and compile it again there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.environment import lookup_environment

ENTRANCE = "_ZN7cpython"  # how the names of entrances from Python begin
# What numba calls the places of pointers that hold in one process only; it keeps no code on disk that has one.
POINTER = "numba.dynamic.globals.fpsim"
NEVER_RAISES = ".never_raises"  # how the names of loops end that always return 0, for no error
# What functions return in LLVM's text. With places in the source behind it (NUMBA_DEBUGINFO=1) no loop counts as one.
RETURNED = re.compile(r"^ +ret (.*)$", re.MULTILINE)


class _CodegenOfParts:
    """numba's code generator, but for the environments of functions, whose place is in the kernel's machine code."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, env: Any) -> None:
        """Nothing: the kernel does, once it has a place for it."""


class _CallingLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code that calls machine code by name, where numba would take its intermediate code in."""

    _dynamic_globals: list[str]

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.called: dict[_MachineLibrary, None] = {}  # all that it needs, each after what it needs itself

    def add_linking_library(self, library: Any) -> None:
        """Take a part in; of machine code only note that it is called."""
        library._ensure_finalized()
        self.called |= getattr(library, "called", {})
        if isinstance(library, _MachineLibrary):
            if hasattr(self, "_reload_init"):  # since numba 0.62
                self._reload_init.update(library._reload_init)
            self.called[library] = None
        else:
            super().add_linking_library(library)

    def _finalize_dynamic_globals(self) -> None:
        super()._finalize_dynamic_globals()
        self._dynamic_globals = [name for name in self._dynamic_globals if name != POINTER]  # see _callable

    @property
    def has_dynamic_globals(self) -> bool:
        """Whether it or what it calls has pointers that hold in this process only."""
        return super().has_dynamic_globals or any(each.has_dynamic_globals for each in self.called)


def _callable(*libraries: _MachineLibrary) -> Any:
    """What a library of numba's links to call machine code: it finds the name in this process, and must not be kept."""
    texts = [text for library in libraries for text in library.for_callers]
    return llvm.parse_assembly("\n".join([f"@{POINTER} = weak_odr constant i8 0", *texts]))


class PartLibrary(_CallingLibrary):
    """The code of a part as LLVM's intermediate code, for the loops and kernels that it goes into.

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
        if self.called:
            self._final_module.link_in(_callable(*self.called))
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


class MachineCode(NamedTuple):
    """The machine code of a kernel or a loop, for the disk."""

    name: str
    binary: bytes  # an object file
    functions: list[str]  # that it defines
    environments: list[Any]  # of numba, from which its functions word errors
    called: list[MachineCode]  # of all loops and kernels that it needs, each after those that it needs itself


class _MachineLibrary(_CallingLibrary):
    """Machine code, which other code calls by name.

    for_callers: intermediate code that callers take in to call it, by function; none where they call it by its name.
    """

    for_callers: tuple[str, ...] = ()

    def _get_module_for_linking(self) -> Any:
        return _callable(self)

    def machine_code(self) -> MachineCode:
        """This and all that it calls."""
        raise NotImplementedError

    def serialize_using_object_code(self) -> tuple[str, str, MachineCode]:
        """What `LoadedLibrary` needs."""
        return self.name, "machine", self.machine_code()


class KernelLibrary(_MachineLibrary):
    """The code of a kernel or of a loop, which LLVM optimises once all parts are in it.

    numba would have its functions optimised one by one before. That takes time, and some loops come out longer.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Optimise what may come from the disk too: the first of two functions of one name is then taken."""
        for text in dict.fromkeys(text for library in self.called for text in library.for_callers):
            self._final_module.link_in(llvm.parse_assembly(text))
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "weak_odr"
        super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        """Make machine code, and give its parts their environments, without which they cannot word an error."""
        super()._finalize_final_module()
        for environment in self._environments():
            _set_environment(self._codegen, environment)

    def machine_code(self) -> MachineCode:
        """This and all that it calls."""
        functions = [each.name for each in self._final_module.functions if not each.is_declaration]
        environments = [each for each in self._environments() if each.can_cache()]
        called = [each.machine_code()._replace(called=[]) for each in self.called]
        return MachineCode(self.name, self._get_compiled_object(), functions, environments, called)

    def get_asm_str(self) -> str:
        """The assembly of this and of what it calls."""
        return "\n".join([*(each.get_asm_str() for each in self.called), super().get_asm_str()])

    def _environments(self) -> list[Any]:
        found = [lookup_environment(each.name) for each in self._final_module.global_variables]
        return [each for each in found if each is not None]


class LoopLibrary(KernelLibrary):
    """The code of a loop that kernels call. Where it never raises, callers are told.

    A caller that must look for an error counts references to arrays for the loop, a few dozen nanoseconds for each.
    """

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self._own: list[str] = []

    def add_ir_module(self, ir_module: Any) -> None:
        """Take the loop in."""
        # its helpers have a linkage, and may be gone in the end
        self._own += [each.name for each in ir_module.functions if not each.is_declaration and not each.linkage]
        super().add_ir_module(ir_module)

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        for name in self._own:
            function = self._final_module.get_function(name)
            if set(RETURNED.findall(str(function))) == {"i32 0"}:
                function.name = name + NEVER_RAISES
                self.for_callers += (_unfailing(name, function.global_value_type),)

    def get_pointer_to_function(self, name: str) -> Any:
        """Where a function begins."""
        return super().get_pointer_to_function(self._called_here(name))

    def get_function(self, name: str) -> Any:
        """A function's intermediate code."""
        return super().get_function(self._called_here(name))

    def get_function_cfg(self, name: str, **options: Any) -> Any:
        """The picture of a function's flow."""
        return super().get_function_cfg(self._called_here(name), **options)

    def _called_here(self, name: str) -> str:
        self._ensure_finalized()
        defined = {function.name for function in self._final_module.functions}
        return name if name in defined else name + NEVER_RAISES


def _unfailing(name: str, kind: Any) -> str:
    """A function of that name and type, which calls the one that never raises and says so."""
    types = ", ".join(map(str, kind.get_function_parameters()))
    arguments = ", ".join(f"{each} %{i}" for i, each in enumerate(kind.get_function_parameters()))
    return f"""
        declare i32 @"{name}{NEVER_RAISES}"({types})
        define linkonce_odr i32 @"{name}"({arguments}) alwaysinline {{
          call i32 @"{name}{NEVER_RAISES}"({arguments})
          ret i32 0
        }}
    """


class LoadedLibrary(_MachineLibrary):
    """The machine code of a kernel or of a loop from the disk."""

    @classmethod
    def _unserialize(cls, codegen: Any, state: tuple[str, str, MachineCode]) -> LoadedLibrary:
        _, kind, code = state
        if kind != "machine":
            raise ValueError(f"no machine code, but {kind}")  # of an earlier version
        return cls._load(codegen, code)

    @classmethod
    def _load(cls, codegen: Any, code: MachineCode) -> LoadedLibrary:
        """Load machine code to where calls find it, unless an earlier kernel did."""
        called = [cls._load(codegen, each) for each in code.called]
        library = cls(codegen, code.name)
        library.called = dict.fromkeys(called)
        library._code = code
        engine = codegen._engine
        # numba numbers what it compiles anew in every process, and names environments by these numbers: functions of the
        # same names may lack the environments that this file was written with
        symbols = [*code.functions, *(environment.env_name for environment in code.environments)]
        if all(map(engine.is_symbol_defined, symbols)):
            library._finalized = True
        else:
            library.enable_object_caching()
            library._set_compiled_object(code.binary)
            library._finalize_final_module()
            engine._defined_symbols.update(symbols)
        for environment in code.environments:
            _set_environment(codegen, environment)
        return library

    def machine_code(self) -> MachineCode:
        """What was loaded."""
        code: MachineCode = self._code
        return code


def _set_environment(codegen: Any, environment: Any) -> None:
    """Give machine code the environment that it words errors with; numba would write to address 0 where it has none."""
    if not codegen._engine.get_global_value_address(environment.env_name):
        raise RuntimeError(f"no machine code has a place for the environment {environment.env_name}.")
    codegen.set_env(environment.env_name, environment)


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
