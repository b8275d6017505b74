"""What a value is, in words that are the same in every process: cells of a sweep are found again by them."""

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
from fpsim.matrix_units.matrix_unit import MatrixUnit

PLAIN = (bool, int, float, str, type(None))
LONGEST = 10_000  # characters of an object's repr: a longer one is data, not a name


def plain(value: Any) -> Any:
    """The same with NumPy's integers, float64, truth values and texts as Python's, which say the same.

    Example:
      >>> from fpsim.analysis.studies.identity import plain
      >>> plain(np.int64(3)), plain(np.float32(0.5))
      (3, np.float32(0.5))
    """
    return value.item() if isinstance(value, (np.integer, np.float64, np.bool_, np.str_)) else value


def words(value: Any) -> str:
    """A text that tells a value from every other one, in every process.

    Args:
      value: a number, a text, None, a member of an Enum, a dataclass (formats, scalings, accumulators, units and
        schedules are), a function of a module, an object whose class writes a repr without an address, or tuples and
        lists of these.
    Raises:
      TypeError: it has no such text: an array, a set, a dictionary, a lambda, a repr with an address.

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
    if callable(value) and _stands_in_a_module(value):
        return f"{value.__module__}.{value.__qualname__}"
    return _own_words(value)


def _stands_in_a_module(value: Any) -> bool:
    """Whether a function or class is what its module has under its name."""
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in (getattr(value, "__qualname__", None) or "<none>").split("."):
        found = getattr(found, part, None)
    return found is value


def _own_words(value: Any) -> str:
    """The repr of an object, where that is a name."""
    data = isinstance(value, (set, frozenset, dict)) or (
        hasattr(value, "__array__") and not isinstance(value, np.generic)
    )
    text = "\n" if data or isinstance(value, FunctionType) else repr(value)
    if " at 0x" not in text and "\n" not in text and len(text) <= LONGEST:
        return text
    raise TypeError(
        "a value must be one that another process knows again: a number, a text, a format, a scaling, another "
        f"dataclass, or a tuple of these; got {shown(value)}. Pass its name, and look it up in the measure."
    )


def label(value: Any) -> Any:
    """What a table shows of a value: numbers, texts and None as they are, the name of a format, unit or
    member of an Enum, or the repr.

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
    if isinstance(value, (Format, IntegerFormat, LogFMT, MatrixUnit)):
        return value.name
    representation = getattr(type(value), "__repr__", object.__repr__)
    # a generated repr is as long as the words, which tell formats by their names
    return repr(value) if dataclasses.is_dataclass(value) and representation is not object.__repr__ else words(value)


def digest(*texts: str) -> str:
    """32 hexadecimal digits of some texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def name_of(measure: Callable[..., Any]) -> str:
    """What a function is called: its module and name.

    Example:
      >>> from fpsim.analysis.studies.identity import name_of
      >>> name_of(digest := lambda x: x).rpartition(".")[2]
      '<lambda>'
    """
    inner = _function(measure)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


def source_of(measure: Callable[..., Any]) -> str:
    """A digest of what a function does: its code, defaults and captured values, as far as these have words.

    Comments and the layout of a `def` do not count; of a lambda the compiled code does, which is that of one Python.
    What a function reads from its module, or a file, is not part of it.

    Example:
      >>> from fpsim.analysis.studies.identity import source_of
      >>> power = lambda n: lambda x: x**n
      >>> source_of(power(2)) == source_of(power(2)), source_of(power(2)) == source_of(power(3))
      (True, False)
    """
    return digest(*_texts(measure, frozenset()))


def _function(measure: Any) -> Any:
    """What a partial, a method or a decorated function calls in the end."""
    while True:
        if isinstance(measure, functools.partial):
            measure = measure.func
        elif isinstance(measure, MethodType):
            measure = measure.__func__
        elif hasattr(measure, "__wrapped__"):
            measure = measure.__wrapped__
        else:
            return measure


def _texts(value: Any, above: frozenset[int]) -> list[str]:
    """The texts that make up a function or a value that it captured."""
    if id(value) in above:  # a function that captured itself
        return ["again"]
    above |= {id(value)}
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *itertools.chain(*sorted(value.keywords.items()))]
    elif isinstance(value, MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        kept = [*(value.__defaults__ or ()), *itertools.chain(*sorted((value.__kwdefaults__ or {}).items())), *cells]
        return [_text(value), *itertools.chain.from_iterable(_texts(each, above) for each in kept)]
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [value.dtype.str, str(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    else:
        return [_words_or_kind(value)]
    return list(itertools.chain.from_iterable(_texts(each, above) for each in inner))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the name is given a value later
        return False


def _words_or_kind(value: Any) -> str:
    """The words of a value, or its class where it has none."""
    try:
        return words(value)
    except Exception:  # a repr may raise anything, and all that is lost is one way to see a change
        return type(value).__qualname__


def _text(function: FunctionType) -> str:
    """The source of a `def` without comments; of what has none, or shares its line with others, the code."""
    if "<lambda>" not in function.__qualname__:
        try:
            return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))
        except (OSError, TypeError, SyntaxError):  # typed into a prompt
            pass
    return f"{sys.version_info[:2]} {_code(function.__code__)}"


def _code(code: CodeType) -> str:
    """The instructions and constants of a compiled function, without where it stands."""
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _constant(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    # the order of a set of texts differs from process to process
    return f"{{{sorted(map(_constant, value))}}}" if isinstance(value, frozenset) else repr(value)
