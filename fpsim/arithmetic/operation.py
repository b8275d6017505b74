"""One elementwise operation with its checked keywords, independent of the loop that computes it."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.errors import require_word, shown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options, checked_seed
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.named import FP32, FP64, Format, format_argument
from fpsim.formats.named import format as find_format
from fpsim.formats.policies import SUBNORMALS
from fpsim.formats.rounding import Rounding

TININESS = ("after", "before")


class Operation(NamedTuple):
    """An elementwise operation with its checked keywords, which decide its results.

    Attributes:
      name: the function's name in `fpsim`, such as "add".
      formats: the operands' formats, () for from_int.
      result: the result's format and how it is rounded.
      input_subnormals, tininess: as in `fpsim.add`.
      integer: the dtype that from_int reads or to_int returns; None for other operations.
    """

    name: str
    formats: tuple[Format, ...]
    result: CastOptions
    input_subnormals: str = "keep"
    tininess: str = "after"
    integer: np.dtype[Any] | None = None

    def with_seed(self, seed: int | None) -> Operation:
        """Return this operation with another seed of stochastic rounding: 0 to 2**64 - 1, or None for no seed."""
        return self._replace(result=self.result.with_seed(seed))

    @property
    def is_stochastic(self) -> bool:
        """True if results depend on random numbers."""
        return self.result.rounding is Rounding.STOCHASTIC

    @property
    def operand_bits(self) -> int:
        """Number of bits of all operands together, which index a table of all results.

        The operand of from_int, an integer, counts as 64 bits.
        """
        return sum(fmt.bits for fmt in self.formats) or 64

    @property
    def holds_codes(self) -> bool:
        """True if results are codes, not truth values, classes or integers."""
        return self.name not in FOUND and self.name != "to_int"

    @property
    def word(self) -> np.dtype[Any]:
        """The dtype of results: the storage dtype of codes, bool, uint8 (classes) or an integer dtype."""
        if self.name == "to_int":
            assert self.integer is not None
            return self.integer
        return FOUND.get(self.name) or self.result.fmt.storage


COMPARISONS = ("equal", "less", "less_equal")
FOUND = {**dict.fromkeys(COMPARISONS, np.dtype(np.bool_)), "classify": np.dtype(np.uint8)}  # results that are not codes
TO_INTEGERS = ("round_to_integral", "to_int")
ELEMENTARY = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "erfc", "rsqrt",
    "reciprocal", "cbrt", "softplus", "gelu", "silu",
)  # fmt: skip
NARROW_ONLY = ("multiply", "divide", "remainder", "fma")  # operations on significands of up to 31 bits


def operation(name: str, formats: tuple[Format, ...], out_fmt: Format, **keywords: Any) -> Operation:
    """Return an operation after checking its formats and options.

    Args:
      name: the function's name in `fpsim`, such as "add".
      formats: the operands' formats; () for from_int.
      out_fmt: the format of the result.
      keywords: rounding, overflow, subnormals, seed, random_bits, input_subnormals, tininess, and integer (a dtype).

    Raises:
      ValueError: an unknown option, a stochastic mode without a seed, or a format that the operation does not accept.
    """
    seed = keywords.pop("seed", None)
    if seed is not None:
        keywords["seed"] = 0  # one cache entry for all seeds
    words = [item for keyword in keywords.items() for item in keyword]
    try:
        checked = _checked(name, formats, out_fmt, *words)
    except TypeError:  # an argument cannot be hashed: the checks raise an error that names it
        checked = _checked.__wrapped__(name, formats, out_fmt, *words)
    return checked if seed is None else checked.with_seed(checked_seed(seed))


@lru_cache(maxsize=4096, typed=True)  # True and 1.0 equal 1, but are not numbers of bits
def _checked(name: str, formats: tuple[Format, ...], out_fmt: Format, *words: Any) -> Operation:
    """Return an operation after checking its formats and options, from a cache whose key is all arguments.

    name: the operation. formats, out_fmt: the formats of the operands and of the result. words: keyword, value,
    keyword, value, ...

    Raises:
      ValueError: an unknown option, a stochastic mode without a seed, or a format that the operation does not accept.
      TypeError: an argument cannot be hashed.
    """
    keywords = dict(zip(words[::2], words[1::2], strict=True))
    input_subnormals, tininess = keywords.pop("input_subnormals", "keep"), keywords.pop("tininess", "after")
    integer = keywords.pop("integer", None)
    result = cast_options(out_fmt, **keywords)
    require_word("input_subnormals", input_subnormals, SUBNORMALS)
    require_word("tininess", tininess, TININESS)
    if name in NARROW_ONLY and FP64 in formats:
        raise ValueError(
            f"{name} takes formats of up to 32 bits; got FP64. Use NumPy, or round the operands first with fpsim.cast."
        )
    if out_fmt == FP64 and result.rounding is Rounding.STOCHASTIC and name not in TO_INTEGERS:
        raise ValueError("stochastic rounding works for results of up to 32 bits; got FP64. Choose another out_fmt.")
    if name in ELEMENTARY and formats[0] != FP32 and formats[0].bits > 16:
        raise ValueError(
            f"{name} takes formats of up to 16 bits, and FP32; got {formats[0]}. "
            "Round the operand first with fpsim.cast."
        )
    rounds_as_float32 = result[:4] == (FP32, Rounding.NEAREST_EVEN, "nonfinite", "keep") and input_subnormals == "keep"
    if name in ELEMENTARY and formats[0] == FP32 and not rounds_as_float32:
        raise ValueError(
            f"{name} of FP32 rounds to nearest even into FP32 and keeps Inf and subnormals; got another rounding, "
            "out_fmt, overflow or subnormals. Leave them out, or round the operand to 16 bits first with fpsim.cast."
        )
    return Operation(name, formats, result, input_subnormals, tininess, integer)


WORDS = ("rounding", "overflow", "subnormals", "seed", "random_bits", "input_subnormals", "tininess")
deciding = itemgetter("out_fmt", *WORDS)  # those of a call's complete keywords that decide results


def operation_of(
    name: str, formats: tuple[Format, ...], target: Any, integer: np.dtype[Any] | None, out_fmt: Any, *words: Any
) -> Operation:
    """Return the operation of a call after choosing the result's format and checking the options.

    name: the operation's name. formats: the operands' formats. target: the format that convert and from_int round
    to, not read for other operations. integer: the dtype of from_int's operand or to_int's result, else None. out_fmt:
    as passed to the call.
    words: the values of rounding, overflow, subnormals, seed, random_bits, input_subnormals and tininess, in this
    order.

    Raises:
      ValueError: an unknown option or format, or operands in different formats without out_fmt.
    """
    fmt = _result_format(name, formats, out_fmt, target)
    return operation(name, formats, fmt, integer=integer, **dict(zip(WORDS, words, strict=True)))


def _result_format(name: str, formats: tuple[Format, ...], out_fmt: FormatLike | None, target: Any) -> Format:
    """Return the format of a result: the target of a conversion, else out_fmt, else that of all operands.

    name: the operation's name; for comparisons the formats may differ, and the first one is returned. formats: the
    operands' formats. out_fmt: as passed by the caller, or None. target: the format that convert and from_int round to;
    not read for other operations.

    Raises:
      ValueError: the operands have different formats, and out_fmt is None.
    """
    if name in ("convert", "from_int"):
        return find_format(target)
    if out_fmt is not None:
        return format_argument("out_fmt", out_fmt)
    if len(set(formats)) > 1 and name not in COMPARISONS:
        names = ", ".join(str(fmt) for fmt in formats)
        raise ValueError(
            f"{name} got operands in different formats ({names}): say which one the result is rounded to, "
            f"as in out_fmt={formats[0].name!r}."
        )
    return formats[0]


def integer_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype after checking that it is an integer dtype.

    Raises:
      ValueError: dtype is not an integer dtype.
    """
    target = dtype_of(dtype)
    if target is None or target.kind not in "iu":
        raise ValueError(f"dtype must be an integer dtype such as np.int32 or np.uint8; got {shown(dtype)}.")
    return target
