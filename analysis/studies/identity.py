"""Texts and digests that identify values and functions equally in every process."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Mapping
from enum import Enum
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from fpsim.errors import shown
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import NAMED
from fpsim.formats.table_format import TableFormat
from fpsim.matrix_units.matrix_unit import MatrixUnit

PLAIN = (bool, int, float, str, type(None))
LONGEST = 10_000  # most characters of a repr that is taken as a name; a longer one is data


def plain(value: Any) -> Any:
    """Return a NumPy integer, float64, bool or str scalar as the equal Python object, and any other value unchanged.

    Example:
      >>> from fpsim.analysis.studies.identity import plain
      >>> plain(np.int64(3)), plain(np.float32(0.5))
      (3, np.float32(0.5))
    """
    return value.item() if isinstance(value, (np.integer, np.float64, np.bool_, np.str_)) else value


def words(value: Any) -> str:
    """Return a text that identifies a value, and is the same in every process.

    Args:
      value: a number, a text, None, a member of an Enum, a dataclass (such as formats, scalings, accumulators, units
        and schedules), a function or class that its module has under its name, another object whose repr is a single
        line without an address, or a tuple or list of these.
    Raises:
      TypeError: no text identifies the value: it is an array, a set, a dictionary or a lambda, or its repr contains an
        address, several lines or more than 10,000 characters.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.analysis.studies.identity import words
      >>> print(words("up"), words(1), words(1.0), words((fp.E4M3, None)), words(fp.formats.rounding.Rounding.UP))
      'up' 1 1.0 (E4M3, None) Rounding.UP
    """
    value = plain(value)
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) in PLAIN:
        return repr(value)
    if type(value) in (tuple, list):
        inner = ", ".join(map(words, value))
        return f"({inner}{',' * (len(value) == 1)})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, Format) and NAMED.get(value.name) == value:
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ", ".join(f"{field.name}={words(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"{type(value).__qualname__}({fields})"
    if callable(value) and _is_found_by_name(value):
        return f"{value.__module__}.{value.__qualname__}"
    return _own_words(value)


def words_or_class(value: Any) -> str:
    """Return the text that identifies a value (see `words`), or the name of its class if no text does.

    A function of C without a text, such as torch.relu, has its qualified name.
    """
    try:
        return words(value)
    except Exception:  # a repr may raise anything; all that is lost is one way to see a change
        named = value if isinstance(value, BuiltinFunctionType) else type(value)
        return str(named.__qualname__)


def _is_found_by_name(value: Any) -> bool:
    """Return whether a function or class `value` is the object that its module has under its qualified name."""
    named: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in (getattr(value, "__qualname__", None) or "<none>").split("."):
        named = getattr(named, part, None)
    return named is value


def _own_words(value: Any) -> str:
    """Return the repr of an object; raise a TypeError if the repr cannot identify it in another process.

    The error is raised for arrays, sets, dictionaries and functions, and for a repr with an address, with several lines
    or with more than 10,000 characters.
    """
    data = isinstance(value, (set, frozenset, dict)) or (
        hasattr(value, "__array__") and not isinstance(value, np.generic)
    )
    text = "\n" if data or isinstance(value, FunctionType) else repr(value)
    if " at 0x" not in text and "\n" not in text and len(text) <= LONGEST:
        return text
    raise TypeError(
        "a value must be one that another process recognises: a number, a text, a format, a scaling, another "
        f"dataclass, or a tuple of these; got {shown(value)}. Pass its name, and look it up in the measure."
    )


def label(value: Any) -> Any:
    """Return a value as a table shows it: numbers, texts, bools and None as Python objects, other objects as text.

    NumPy integers, float64, bools and texts become Python objects. The text of a format, matrix unit or Enum member is
    its name; that of another dataclass with a __repr__ method is its repr. Any other value has the text that `words`
    returns: the repr, "module.name" for functions and classes, and the texts of the elements for tuples and lists.

    Raises:
      TypeError: no text identifies the value in another process, as for an array, a dictionary or a lambda.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.analysis.studies.identity import label
      >>> label(0.5), label(fp.E4M3), label(fp.scalings.MX)
      (0.5, 'E4M3', 'fp.scalings.MX')
    """
    value = plain(value)
    if isinstance(value, Enum):
        return value.name
    if type(value) in PLAIN:
        return value
    if isinstance(value, (Format, IntegerFormat, LogFMT, MatrixUnit, TableFormat)):
        return value.name
    representation = getattr(type(value), "__repr__", object.__repr__)
    # the repr of other dataclasses is long, so that `words` is used, which names formats
    return repr(value) if dataclasses.is_dataclass(value) and representation is not object.__repr__ else words(value)


def digest(*texts: str) -> str:
    """Return a digest of some texts in their order: the first 32 hexadecimal digits of their SHA-256."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def name_of(measure: Callable[..., Any]) -> str:
    """Return "module.qualified_name" of a function, or of the class of a callable object.

    A partial, a bound method or a decorated function has the name of the function that it calls in the end.

    Example:
      >>> from fpsim.analysis.studies.identity import name_of
      >>> name_of(digest := lambda x: x).rpartition(".")[2]
      '<lambda>'
    """
    inner: Any = measure
    while True:  # what a partial, a method or a decorated function calls in the end
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif isinstance(inner, MethodType):
            inner = inner.__func__
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        else:
            break
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


def source_of(measure: Callable[..., Any]) -> str:
    """Return a digest (32 hexadecimal digits) of a function's source code, default arguments and captured values.

    A captured array counts by its contents, a value that no text identifies (see `words`) by its type. A callable
    object counts by its attributes and the code of its `__call__`, and what a decorator such as functools.cache or
    numba.njit made of a function by that function. Comments and the layout of a `def` do not count, nor does what a
    function reads from its module or from files. A lambda is digested by its compiled code, which depends on the
    version of Python.

    Example:
      >>> from fpsim.analysis.studies.identity import source_of
      >>> power = lambda n: lambda x: x**n
      >>> source_of(power(2)) == source_of(power(2)), source_of(power(2)) == source_of(power(3))
      (True, False)
    """
    return digest(*_texts(measure, frozenset()))


def _texts(value: Any, above: frozenset[int]) -> list[str]:
    """Return texts that describe a function, or a value that a function captured, for the digest of `source_of`.

    above: ids of the functions and values that contain this one. If `value` is among them, the result is ["again"],
    so that the recursion ends for a function that captures itself.
    """
    if id(value) in above:  # a function that captures itself
        return ["again"]
    above |= {id(value)}
    texts: list[str] = []
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *_items(value.keywords)]
    elif isinstance(value, MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [value.dtype.str, str(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]  # an empty cell
        texts = [_text(value)]
        inner = [*(value.__defaults__ or ()), *_items(value.__kwdefaults__), *cells, *_wrapped(value)]
    else:
        texts, inner = [words_or_class(value)], _wrapped(value)
        if not inner and callable(value) and not isinstance(value, type):
            call = getattr(type(value), "forward", type(value).__call__)  # forward: of a torch.nn.Module
            inner = [call, *_items(getattr(value, "__dict__", None))] if isinstance(call, FunctionType) else []
    return [*texts, *itertools.chain.from_iterable(_texts(part, above) for part in inner)]


def _items(named: Mapping[str, Any] | None) -> list[Any]:
    """Return the names and values of a mapping, or of None, as one list in the order of the names."""
    return list(itertools.chain(*sorted((named or {}).items())))


def _wrapped(value: Any) -> list[Any]:
    """Return a list of the function from which a decorator, such as functools.cache or numba.njit, made `value`.

    The list is empty for a value that no decorator made.
    """
    inner = getattr(value, "__wrapped__", None)
    return [inner] if isinstance(inner, FunctionType) else []


def _text(function: FunctionType) -> str:
    """Return the source of a function without comments, as `ast.unparse` writes it.

    For a lambda, or if the source is not available, return the version of Python and the compiled code as text.
    """
    if "<lambda>" not in function.__qualname__:
        try:
            code = function.__code__  # of a function made by functools.wraps, its own code
            return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(code))))
        except (OSError, TypeError, SyntaxError):  # typed into a prompt
            pass
    return f"{sys.version_info[:2]} {_code(function.__code__)}"


def _code(code: CodeType) -> str:
    """Return the instructions, names and constants of a compiled function as text, without file name and lines."""
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _constant(value: Any) -> str:
    """Return the repr of a constant in a function's code, with the items of frozensets sorted by their texts.

    They are sorted because the order of a frozenset of texts differs between processes, and the repr must not.
    """
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    # the order of a set of texts differs from process to process
    return f"{{{sorted(map(_constant, value))}}}" if isinstance(value, frozenset) else repr(value)
