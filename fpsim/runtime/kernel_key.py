"""The key of a compiled kernel: its code, constants, captured values, and all functions that it calls.

Docstrings, comments and line numbers are not part of it, so editing them does not recompile anything.
"""

from __future__ import annotations

import enum
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

OWN = ("fpsim", "tests", "benchmarks", "__main__")  # other packages are identified by their versions


class UnknownPart(TypeError):
    """The error for a function that refers to an object which this module cannot describe as text for a key.

    The kernels of such a function are not stored on disk.
    """


def key_of(function: Callable[..., Any]) -> str:
    """Return a hash, 40 hexadecimal digits, of all code that a function runs; it names the compiled function on disk.

    function: a Python function or a numba dispatcher.

    Raises:
      UnknownPart: the function refers to an object of a class that this module cannot describe.
    """
    parts = _Parts()
    whole = parts.reference(function)  # with the options that it is compiled with
    return hashlib.blake2b("\n".join([whole, *parts.texts]).encode(), digest_size=20).hexdigest()


def functions_of(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return the Python functions on which the key of a function depends: itself first, then all that it calls.

    function: a Python function or a numba dispatcher.

    Raises:
      UnknownPart: the function refers to an object of a class that this module cannot describe.
    """
    parts = _Parts()
    parts.reference(function)
    return parts.functions


class _Parts:
    """Texts that describe a function and all functions that it calls, directly or not, in the order of discovery.

    The argument `names` of its methods holds the names of globals and attributes in a function's code: of a module or
    an enumeration, only members with these names are described.
    """

    def __init__(self) -> None:
        self.functions: list[Callable[..., Any]] = []
        self.texts: list[str] = []
        self._places: dict[int, int] = {}

    def reference(self, function: Any) -> str:
        """Return a short reference to a function or numba dispatcher, such as "@3[('fastmath', 'True')]".

        The number is the index of the function's description in `self.texts`, which is added if it is new. The list has
        the dispatcher's compile options, sorted, as (name, repr of the value); it is empty for a plain function.
        """
        plain = getattr(function, "py_func", function)
        options = sorted((name, repr(value)) for name, value in getattr(function, "targetoptions", {}).items())
        place = self._places.get(id(plain))
        if place is None:
            place = self._places[id(plain)] = len(self.texts)
            self.functions.append(plain)
            self.texts.append("")
            self.texts[place] = f"{plain.__module__}.{plain.__qualname__} {self._text(plain)}"
        return f"@{place}{options}"

    def _text(self, function: Callable[..., Any]) -> str:
        """Return the description of a function: its code, defaults, captured values and the globals that it reads.

        Raises:
          UnknownPart: the function refers to an object that `describe` refuses, or imports a module of fpsim at a call.
        """
        code = function.__code__
        names = sorted(set(_names(code)))
        parts = [_code_text(code, function.__doc__, self), self.describe(function.__defaults__, names)]
        parts.append(self.describe(function.__kwdefaults__, names))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                parts.append(f"{name}={self.describe(cell.cell_contents, names)}")
            except ValueError:  # not bound yet: a function that refers to itself
                parts.append(f"{name}=empty")
        for name in names:
            if name in function.__globals__:
                parts.append(f"{name}={self.describe(function.__globals__[name], names)}")
            elif name.startswith("fpsim"):
                raise UnknownPart(f"{function.__qualname__} imports {name} when it runs.")
        return " ".join(parts)

    def describe(self, value: Any, names: list[str]) -> str:
        """Return a value as text that is the same in every process.

        names: names of attributes in a function's code; of a module or enumeration, only members with these names are
        described.

        Raises:
          UnknownPart: no text is known for the value's class.
        """
        if value is None or isinstance(value, (bool, int, str, bytes, complex, type(...))):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, float):
            return f"float:{value.hex()}"
        if isinstance(value, enum.Enum):
            return f"{_home(type(value))}.{value.name}={self.describe(value.value, names)}"
        if isinstance(value, np.generic):
            return f"{value.dtype.str}:{value.tobytes().hex()}"
        if isinstance(value, np.dtype):
            return f"dtype:{value!r}"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            content = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=20).hexdigest()
            return f"array:{value.dtype.str}{value.shape}{value.flags.f_contiguous}:{content}"
        if isinstance(value, (tuple, list)):
            return f"{_home(type(value))}({', '.join(self.describe(item, names) for item in value)})"
        if isinstance(value, (set, frozenset)):
            return f"set({', '.join(sorted(self.describe(item, names) for item in value))})"
        if isinstance(value, dict):
            pairs = (f"{self.describe(k, names)}: {self.describe(v, names)}" for k, v in value.items())
            return f"dict({', '.join(pairs)})"
        return self._describe_object(value, names)

    def _describe_object(self, value: Any, names: list[str]) -> str:
        """Return a module, class, function or object of numba or llvmlite as text that is the same in every process.

        names: names of attributes in a function's code; of a module or enumeration, only these members are described.

        Raises:
          UnknownPart: no text is known for the value's class.
        """
        if isinstance(value, types.ModuleType):
            if _is_library(value.__name__):
                return f"module:{value.__name__}"
            members = [f"{name}={self.describe(vars(value)[name], names)}" for name in names if name in vars(value)]
            return f"module:{value.__name__}({', '.join(members)})"
        if isinstance(value, type):
            return self._describe_class(value, names)
        if hasattr(value, "py_func"):
            return self.reference(value)
        if hasattr(value, "_defn"):  # an intrinsic of numba
            return f"intrinsic {self.reference(value._defn)}"
        if hasattr(value, "__wrapped__") and isinstance(value.__wrapped__, types.FunctionType):
            return f"wrapped {self.reference(value.__wrapped__)}"
        module = str(getattr(value, "__module__", None) or type(value).__module__)
        if isinstance(value, types.FunctionType) and not _is_library(module):
            return self.reference(value)
        if isinstance(value, types.BuiltinFunctionType | types.FunctionType | np.ufunc | types.BuiltinMethodType):
            return f"{module}.{getattr(value, '__qualname__', value.__name__)}"
        if _is_library(type(value).__module__):
            text = f"{_home(type(value))}:{value!s}"
            if " at 0x" not in text:
                return text
        raise UnknownPart(f"no key is known for {value!r} of {type(value).__module__}.{type(value).__qualname__}.")

    def _describe_class(self, kind: type, names: list[str]) -> str:
        """Return a class as text: its name, and for a class of fpsim also its members (enumeration) or fields (tuple).

        kind: the class. names: names of attributes in a function's code; of an enumeration, only members with these
        names are described.

        Raises:
          UnknownPart: the class is one of fpsim's, but neither an enumeration nor a named tuple.
        """
        if _is_library(kind.__module__):
            return f"class:{_home(kind)}"
        if issubclass(kind, enum.Enum):
            members = [f"{m.name}={self.describe(m.value, names)}" for m in kind if m.name in names]
            return f"enum:{_home(kind)}({', '.join(members)})"
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return f"tuple:{_home(kind)}{kind._fields}{self.describe(kind._field_defaults, names)}"  # type: ignore[attr-defined]
        raise UnknownPart(f"no key is known for the class {_home(kind)}.")


def _code_text(code: types.CodeType, doc: str | None, parts: _Parts) -> str:
    """Return the bytecode and constants of a function as text, without its docstring.

    code: the function's code object. doc: its docstring, or None. parts: describes the constants, and collects the
    functions among them.
    """
    constants = list(code.co_consts)
    if constants and doc is not None and constants[0] == doc:
        constants[0] = None
    inner = [
        _code_text(constant, None, parts) if isinstance(constant, types.CodeType) else parts.describe(constant, [])
        for constant in constants
    ]
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {shape} {names} [{', '.join(inner)}]"


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the global and attribute names that a code object uses, and those that functions defined in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_library(module: str) -> bool:
    """Return whether a module, named `module`, belongs to another package, whose version identifies its code."""
    return module.partition(".")[0] not in OWN


def _home(kind: type) -> str:
    """Return the module and qualified name of a class, joined by a dot."""
    return f"{kind.__module__}.{kind.__qualname__}"
