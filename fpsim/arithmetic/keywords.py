"""The signatures of the operations on encoded arrays: operands and keywords, with types, defaults and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from fpsim.arithmetic.operands import Fillable, Formats
from fpsim.arithmetic.operation import COMPARISONS, ELEMENTARY
from fpsim.formats.cast_options import DEFAULTS as CAST_DEFAULTS
from fpsim.formats.cast_options import CastKeywords, FormatLike
from fpsim.formats.keywords import unknown_keyword, with_keywords

Function = TypeVar("Function", bound=Callable[..., Any])
WantedFlags = bool | Literal["any"]


class Rounded(CastKeywords, total=False):
    """The keywords of operations whose result is rounded, such as `fp.add`; `DESCRIPTIONS` and `ENDING` explain each.

    Besides those of `fp.encode` (rounding, overflow, subnormals, seed, random_bits): fmt, the format of operands that
    are codes, or one per operand; out_fmt, the format of the result; input_subnormals, "keep" or "flush" (operands are
    read as zeros); flags, False, True (per element) or "any" (of all); tininess, "after" or "before" rounding; out, the
    array to fill.
    """

    fmt: Formats
    out_fmt: FormatLike | None
    input_subnormals: str
    flags: WantedFlags
    tininess: str
    out: Fillable | None


DEFAULTS: Rounded = {
    "fmt": None,
    "out_fmt": None,
    **CAST_DEFAULTS,
    "input_subnormals": "keep",
    "flags": False,
    "tininess": "after",
    "out": None,
}


class ArrayOperation(NamedTuple):
    """The signature of an elementwise operation, on the CPU and on the GPU.

    Attributes:
      operands: the names of its arrays.
      keywords: the names of its keywords, in the order of its signature.
      target: the name of the parameter for the result's format or dtype, after the operands; empty if it has none.
    """

    operands: tuple[str, ...]
    keywords: tuple[str, ...]
    target: str = ""


ALL = tuple(DEFAULTS)
WITHOUT_OUT_FMT = tuple(word for word in ALL if word != "out_fmt")
OF_INTEGERS = tuple(word for word in WITHOUT_OUT_FMT if word not in ("fmt", "input_subnormals"))
TO_INTEGERS = ("fmt", "rounding", "input_subnormals", "seed", "random_bits", "flags", "out")
COMPARING = ("fmt", "input_subnormals", "flags", "out")
NEXT = ("fmt", "overflow", "flags", "out")

TWO_OPERANDS = (
    "add", "subtract", "multiply", "divide", "remainder", "minimum", "maximum", "minimum_number", "maximum_number",
)  # fmt: skip
OPERATIONS = {
    **dict.fromkeys(TWO_OPERANDS, ArrayOperation(("a", "b"), ALL)),
    "fma": ArrayOperation(("a", "b", "c"), ALL),
    "sqrt": ArrayOperation(("a",), ALL),
    "round_to_integral": ArrayOperation(("a",), WITHOUT_OUT_FMT),
    "convert": ArrayOperation(("a",), WITHOUT_OUT_FMT, "to"),
    "from_int": ArrayOperation(("n",), OF_INTEGERS, "fmt"),
    "to_int": ArrayOperation(("a",), TO_INTEGERS, "dtype"),
    **dict.fromkeys(COMPARISONS, ArrayOperation(("a", "b"), COMPARING)),
    "next_up": ArrayOperation(("a",), NEXT),
    "next_down": ArrayOperation(("a",), NEXT),
    "negative": ArrayOperation(("a",), ("fmt", "overflow", "out")),
    "absolute": ArrayOperation(("a",), ("fmt", "out")),
    "classify": ArrayOperation(("a",), ("fmt", "out")),
    **dict.fromkeys(ELEMENTARY, ArrayOperation(("a",), ALL)),
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
ENDING = """      rounding, overflow, subnormals, seed, random_bits: as in `fpsim.encode`.
      flags: True to return (result, flags) with uint8 flags per element, "any" for one `fpsim.Flags` of all.
      tininess: "after" or "before" rounding, which decides UNDERFLOW.
      out: array to fill, of the result's shape and dtype (or of its codes'); it may be an operand.

    Returns:
      Array of the operands' common shape: of the result format's dtype where all operands came in a float dtype, else
      codes. With flags, a tuple of it and them. NaN, Inf and division by zero raise flags, never warnings.

    Raises:
      ValueError: unknown option or format, shapes that do not broadcast, formats that differ without out_fmt, codes out
        of range or without fmt.
      TypeError: operands that are neither codes nor arrays of a float dtype.

    Source: docs/arithmetic.md states every rule, after IEEE 754-2019.
"""


def rounded(function: Function) -> Function:
    """Return an operation after adding its keywords to its signature and its docstring.

    It is the decorator of the public functions, such as `fp.add`, whose written docstrings omit the keywords and the
    errors. Signature and docstring of the function are changed in place. Its name must be a key of `OPERATIONS`.
    """
    operation = OPERATIONS[function.__name__]
    described = "".join(text for word, text in DESCRIPTIONS.items() if word in operation.keywords)
    shown = {word: default for word, default in DEFAULTS.items() if word in operation.keywords}
    return with_keywords(Rounded, shown, f"    Keywords:\n{described}{ENDING}")(function)


def complete(name: str, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keywords of a call of the operation `name`, completed with the defaults in `DEFAULTS`.

    Raises:
      TypeError: the operation does not have one of the keywords.
    """
    if not keywords:
        return DEFAULTS
    valid = OPERATIONS[name].keywords
    for word in keywords:
        if word not in valid:
            raise unknown_keyword(name, word, valid)
    return {**DEFAULTS, **keywords}
