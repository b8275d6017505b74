"""Texts and digests of values and functions that are equal in every process, by which a sweep finds its results."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable
from enum import Enum
from types import CodeType, FunctionType, MethodType
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
    """Return a NumPy integer, float64, truth value or text as the Python object of equal value; others unchanged.

    Example:
      >>> from fpsim.analysis.studies.identity import plain
      >>> plain(np.int64(3)), plain(np.float32(0.5))
      (3, np.float32(0.5))
    """
    return value.item() if isinstance(value, (np.integer, np.float64, np.bool_, np.str_)) else value


def words(value: Any) -> str:
    """Return a text that identifies a value in every process.

    Args:
      value: a number, a text, None, a member of an Enum, a dataclass (such as formats, scalings, accumulators, units
        and schedules), a function of a module, an object whose repr has no address, or tuples and lists of these.
    Raises:
      TypeError: value has no such text: it is an array, a set, a dictionary, a lambda, or has a repr with an address.

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


def _is_found_by_name(value: Any) -> bool:
    """Return whether the name of a function or class leads to it in its module."""
    named: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in (getattr(value, "__qualname__", None) or "<none>").split("."):
        named = getattr(named, part, None)
    return named is value


def _own_words(value: Any) -> str:
    """Return the repr of an object if it names the same value in every process; raise a TypeError if not."""
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
    """Return a value as a cell of a table: numbers, texts and None unchanged, other objects as their name or repr.

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
    """Return a digest of some texts: 32 hexadecimal digits."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def name_of(measure: Callable[..., Any]) -> str:
    """Return the module and name of a function.

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
    """Return a digest of a function's code, defaults and captured values (of their types, if no text identifies them).

    Comments and the layout of a `def` do not count. For a lambda the compiled code counts, which depends on the version
    of Python. Values that a function reads from its module or from files do not count.

    Example:
      >>> from fpsim.analysis.studies.identity import source_of
      >>> power = lambda n: lambda x: x**n
      >>> source_of(power(2)) == source_of(power(2)), source_of(power(2)) == source_of(power(3))
      (True, False)
    """
    return digest(*_texts(measure, frozenset()))


def _texts(value: Any, above: frozenset[int]) -> list[str]:
    """Return the texts that make up a function, or a value that it captured."""
    if id(value) in above:  # a function that captures itself
        return ["again"]
    above |= {id(value)}
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *itertools.chain(*sorted(value.keywords.items()))]
    elif isinstance(value, MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        kept = [*(value.__defaults__ or ()), *itertools.chain(*sorted((value.__kwdefaults__ or {}).items())), *cells]
        return [_text(value), *itertools.chain.from_iterable(_texts(part, above) for part in kept)]
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [value.dtype.str, str(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    else:
        try:
            return [words(value)]
        except Exception:  # a repr may raise anything; all that is lost is one way to see a change
            return [type(value).__qualname__]
    return list(itertools.chain.from_iterable(_texts(part, above) for part in inner))


def _filled(cell: Any) -> bool:
    """Return whether a variable that a function captures has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the name has no value yet
        return False


def _text(function: FunctionType) -> str:
    """Return the source of a `def` without comments; the compiled code if there is no source, or for a lambda."""
    if "<lambda>" not in function.__qualname__:
        try:
            return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))
        except (OSError, TypeError, SyntaxError):  # typed into a prompt
            pass
    return f"{sys.version_info[:2]} {_code(function.__code__)}"


def _code(code: CodeType) -> str:
    """Return the instructions and constants of a compiled function, without its file name and line numbers."""
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _constant(value: Any) -> str:
    """Return a constant of a function's code as text that is equal in every process."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    # the order of a set of texts differs from process to process
    return f"{{{sorted(map(_constant, value))}}}" if isinstance(value, frozenset) else repr(value)
