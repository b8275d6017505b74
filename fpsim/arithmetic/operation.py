"""One elementwise operation with its keywords, checked: what is to be computed, not how."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.errors import unknown
from fpsim.formats.cast_options import CastOptions, cast_options
from fpsim.formats.named import FP64, Format
from fpsim.formats.policies import SUBNORMALS
from fpsim.formats.rounding import Rounding

TININESS = ("after", "before")


class Operation(NamedTuple):
    """A name, the operands' formats, and how the result is rounded into a format."""

    name: str
    formats: tuple[Format, ...]
    result: CastOptions
    input_subnormals: str = "keep"
    tininess: str = "after"
    integer: np.dtype[Any] | None = None  # what from_int reads and to_int gives

    @property
    def is_stochastic(self) -> bool:
        """Whether results depend on random words."""
        return self.result.rounding is Rounding.STOCHASTIC

    @property
    def operand_bits(self) -> int:
        """Bits of all operands together: those of an index into a table of every result."""
        return sum(fmt.bits for fmt in self.formats) or 64


TO_INTEGERS = ("round_to_integral", "to_int")
NARROW_ONLY = ("multiply", "divide", "remainder", "fma")  # take significands of up to 31 bits


def operation(name: str, formats: tuple[Format, ...], out_fmt: Format, **keywords: Any) -> Operation:
    """Check the keywords of an operation.

    Args:
      keywords: rounding, overflow, subnormals, seed, random_bits, input_subnormals, tininess, and integer.
    Raises:
      ValueError: an unknown word, a stochastic mode without a seed, or a format that the operation does not take.
    """
    try:
        return _checked(name, formats, out_fmt, **keywords)
    except TypeError:  # something that cannot be hashed: let the checks say what is wrong with it
        return _checked.__wrapped__(name, formats, out_fmt, **keywords)


@lru_cache(maxsize=4096, typed=True)  # True and 1.0 equal 1, and are no seeds
def _checked(
    name: str,
    formats: tuple[Format, ...],
    out_fmt: Format,
    rounding: str | Rounding = "nearest_even",
    overflow: str = "nonfinite",
    subnormals: str = "keep",
    seed: int | None = None,
    random_bits: int = 32,
    input_subnormals: str = "keep",
    tininess: str = "after",
    integer: np.dtype[Any] | None = None,
) -> Operation:
    result = cast_options(out_fmt, rounding, overflow, subnormals, seed, random_bits)
    check_word("input_subnormals", input_subnormals, SUBNORMALS)
    check_word("tininess", tininess, TININESS)
    if name in NARROW_ONLY and FP64 in formats:
        raise ValueError(
            f"{name} takes formats of up to 32 bits; got FP64. Use NumPy, or round the operands first with fpsim.cast."
        )
    if out_fmt == FP64 and result.rounding is Rounding.STOCHASTIC and name not in TO_INTEGERS:
        raise ValueError("stochastic rounding works for results of up to 32 bits; got FP64. Choose another out_fmt.")
    return Operation(name, formats, result, input_subnormals, tininess, integer)


def check_word(what: str, got: object, valid: tuple[str, ...]) -> None:
    """A ValueError unless a keyword has one of its values."""
    if not isinstance(got, str) or got not in valid:
        raise unknown(what, got, valid)
