"""The keywords that every rounded operation takes: their types, defaults and description, once for all of them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypedDict, TypeVar

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.rounding import Rounding

Function = TypeVar("Function", bound=Callable[..., Any])
WantedFlags = bool | Literal["any"]


class Rounded(TypedDict, total=False):
    """Keywords of an operation whose result is rounded."""

    fmt: Formats
    out_fmt: FormatLike | None
    rounding: str | Rounding
    overflow: str
    subnormals: str
    input_subnormals: str
    seed: int | None
    random_bits: int
    flags: WantedFlags
    tininess: str
    out: Array | None


DEFAULTS: Rounded = {
    "fmt": None,
    "out_fmt": None,
    "rounding": "nearest_even",
    "overflow": "nonfinite",
    "subnormals": "keep",
    "input_subnormals": "keep",
    "seed": None,
    "random_bits": 32,
    "flags": False,
    "tininess": "after",
    "out": None,
}

DESCRIPTIONS = {
    "fmt": """      fmt: format of operands that are codes; a tuple where they differ. Arrays of a float dtype
        (float16, float32, bfloat16, ml_dtypes) have theirs already.
""",
    "out_fmt": """      out_fmt: format of the result; needed where the operands' formats differ.
""",
    "input_subnormals": """      input_subnormals: "keep", or "flush" to read subnormal operands as zeros.
""",
}

HELP = """      rounding, overflow, subnormals, seed, random_bits: as in `fpsim.encode`.
      flags: True to return (result, flags) with uint8 flags per element, "any" for one `fpsim.Flags` of all.
      tininess: "after" or "before" rounding, which decides UNDERFLOW.
      out: array to fill, of the result's shape and dtype (or of its codes'); it may be an operand.

    Returns:
      Array of the operands' common shape: of the result format's dtype where all operands came in a float dtype, else
      codes. With flags, a tuple of it and them. NaN, Inf and division by zero raise flags, never warnings.

    Raises:
      ValueError: unknown word or format, shapes that do not broadcast, formats that differ without out_fmt, codes out
        of range or without fmt.
      TypeError: operands that are neither codes nor arrays of a float dtype.

    Source: docs/arithmetic.md states every rule, after IEEE 754-2019.
"""


def rounded(function: Function, ending: str = HELP) -> Function:
    """Show the keywords in a function's signature, and describe them in its docstring, which ends as given."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in DEFAULTS.items()
        if name not in LACKS.get(function.__name__, ())
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    own_words = [text for name, text in DESCRIPTIONS.items() if name not in LACKS.get(function.__name__, ())]
    function.__doc__ = (function.__doc__ or "").rstrip() + "\n\n    Keywords:\n" + "".join(own_words) + ending
    return function


# Operations for which the arguments, or nothing, decide these.
LACKS = {
    "convert": ("out_fmt",),
    "round_to_integral": ("out_fmt",),
    "from_int": ("fmt", "out_fmt", "input_subnormals"),
}


def complete(name: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call with defaults for the rest.

    Raises:
      TypeError: a keyword that the operation does not have.
    """
    if not keywords.keys() <= _valid(name):
        valid = [word for word in DEFAULTS if word in _valid(name)]
        wrong = next(word for word in keywords if word not in valid)
        near = difflib.get_close_matches(wrong, valid, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{name} takes the keywords {', '.join(valid)}; got {wrong!r}.{hint}")
    return {**DEFAULTS, **keywords}


@cache
def _valid(name: str) -> frozenset[str]:
    return frozenset(DEFAULTS) - frozenset(LACKS.get(name, ()))
