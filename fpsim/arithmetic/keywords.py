"""The operations on encoded arrays and the keywords that each takes: types, defaults and description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar

from fpsim.arithmetic.operands import Fillable, Formats
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.keywords import unknown_keyword, with_keywords
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
    out: Fillable | None


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
ALL = tuple(DEFAULTS)
ROUNDED = (
    "add", "subtract", "multiply", "divide", "remainder", "minimum", "maximum", "minimum_number", "maximum_number",
    "fma", "sqrt",
)  # fmt: skip

# Operation -> the keywords that it takes, here and on the GPU.
OPERATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(ROUNDED, ALL),
    **dict.fromkeys(("round_to_integral", "convert"), tuple(word for word in ALL if word != "out_fmt")),
    "from_int": tuple(word for word in ALL if word not in ("fmt", "out_fmt", "input_subnormals")),
    **dict.fromkeys(("equal", "less", "less_equal"), ("fmt", "input_subnormals", "flags", "out")),
    **dict.fromkeys(("next_up", "next_down"), ("fmt", "overflow", "flags", "out")),
    "negative": ("fmt", "overflow", "out"),
    **dict.fromkeys(("absolute", "classify"), ("fmt", "out")),
    "to_int": ("fmt", "rounding", "input_subnormals", "seed", "random_bits", "flags", "out"),
}

OPERANDS = """    Args:
      {names}: {arrays} of a float dtype, or unsigned codes with `fmt`{shapes}.

"""
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
      ValueError: unknown word or format, shapes that do not broadcast, formats that differ without out_fmt, codes out
        of range or without fmt.
      TypeError: operands that are neither codes nor arrays of a float dtype.

    Source: docs/arithmetic.md states every rule, after IEEE 754-2019.
"""


def rounded(function: Function) -> Function:
    """Show the keywords of an operation that rounds in its signature, and describe them and the operands."""
    words = OPERATIONS[function.__name__]
    summary, mark, example = (function.__doc__ or "").partition("    Example:")
    if "    Args:" not in summary:
        names = [name for name in ("a", "b", "c") if name in function.__code__.co_varnames]
        several = len(names) > 1
        summary += OPERANDS.format(
            names=", ".join(names),
            arrays="arrays" if several else "array",
            shapes="; their shapes broadcast" if several else "",
        )
    function.__doc__ = summary + mark + example
    described = "".join(text for word, text in DESCRIPTIONS.items() if word in words)
    shown = {word: default for word, default in DEFAULTS.items() if word in words}
    return with_keywords(Rounded, shown, f"    Keywords:\n{described}{ENDING}")(function)


def complete(name: str, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keywords of a call with defaults for the rest.

    Raises:
      TypeError: a keyword that the operation does not have.
    """
    if not keywords:
        return DEFAULTS
    for word in keywords:
        if word not in OPERATIONS[name]:
            raise unknown_keyword(name, word, OPERATIONS[name])
    return {**DEFAULTS, **keywords}
