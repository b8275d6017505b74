"""The keywords of a cast: their types, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from fpsim.errors import shown, unknown
from fpsim.formats.keywords import check_keywords, with_keywords
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.formats.policies import SUBNORMALS, overflow_outcome
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.formats.table_format import TableFormat, refuse_without_tiles


class TorchDtype(Protocol):
    """A dtype of torch, described to type checkers by two of its attributes, without importing torch."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def is_complex(self) -> bool: ...


FormatLike = str | Format | TableFormat | npt.DTypeLike | TorchDtype


class AnyCastKeywords(TypedDict, total=False):
    """The keywords shared by casts of arrays and tensors, with and without scales.

    rounding: a rounding mode or its name. subnormals: "keep", or "flush" to turn subnormal results into zeros.
    random_bits: number of random bits, 1 to 32, that each stochastic rounding uses.
    """

    rounding: str | Rounding
    subnormals: str
    random_bits: int


class CastKeywords(AnyCastKeywords, total=False):
    """The keywords of a cast without scales, which `fpsim.encode` describes.

    overflow: name of the policy for values beyond the largest finite one. seed: key of the random numbers of stochastic
    rounding, 0 to 2**64 - 1; other modes need none. The base class adds rounding, subnormals and random_bits.
    """

    overflow: str
    seed: int | None


DEFAULTS: CastKeywords = {
    "rounding": "nearest_even",
    "overflow": "nonfinite",
    "subnormals": "keep",
    "seed": None,
    "random_bits": 32,
}
with_cast_keywords = with_keywords(CastKeywords, DEFAULTS)


class ElementKeywords(AnyCastKeywords, total=False):
    """The keywords of a cast of scaled elements, which `fpsim.encode_scaled` describes.

    overflow: name of the policy for values beyond the largest finite one; None stands for the policy of the scaling.
    seed: key of the random numbers of stochastic rounding, 0 to 2**64 - 1; other modes need none. The base class adds
    rounding, subnormals and random_bits.
    """

    overflow: str | None
    seed: int | None


ELEMENT_DEFAULTS: ElementKeywords = {**DEFAULTS, "overflow": None}
with_element_keywords = with_keywords(ElementKeywords, ELEMENT_DEFAULTS)


class CastOptions(NamedTuple):
    """The checked options of a cast to a format of exponent and mantissa.

    Attributes:
      fmt: the format.
      rounding: the rounding mode.
      overflow: name of the policy for values beyond the largest finite one.
      subnormals: "keep", or "flush" to zero.
      seed: key of the random numbers of stochastic rounding, 0 to 2**64 - 1, or None.
      random_bits: number of random bits, 1 to 32, that each stochastic rounding uses.
    """

    fmt: Format
    rounding: Rounding
    overflow: str
    subnormals: str
    seed: int | None
    random_bits: int

    def keywords(self) -> dict[str, Any]:
        """Return the options as a dict of keyword arguments for `fpsim.encode`, `fmt` included."""
        return self._asdict()

    def with_seed(self, seed: int | None) -> CastOptions:
        """Return a copy of these options with another seed, 0 to 2**64 - 1 or None; the seed is not checked."""
        fmt, rounding, overflow, subnormals, _, random_bits = self
        return CastOptions(fmt, rounding, overflow, subnormals, seed, random_bits)


class TableOptions(NamedTuple):
    """The checked options of a cast to a table format, which lists the value of each code.

    Attributes:
      fmt: the format.
      rounding: the rounding mode.
      overflow: name of the policy for values beyond the largest finite one.
      seed: key of the random numbers of stochastic rounding, 0 to 2**64 - 1, or None.
      random_bits: number of random bits, 1 to 32, that each stochastic rounding uses.
    """

    fmt: TableFormat
    rounding: Rounding
    overflow: str
    seed: int | None
    random_bits: int


@lru_cache(maxsize=4096, typed=True)  # True and 1.0 equal 1, but are not numbers of bits
def _checked(fmt: Any, rounding: Any, overflow: Any, subnormals: Any, random_bits: Any, seeded: bool) -> CastOptions:
    """Check the arguments that a user passed to a cast such as `fpsim.encode`, and return the options; cached.

    Each argument may be any object. seeded: True if the user passed a seed. The cached options then have the seed 0,
    which the caller replaces; without a seed they have None.

    Raises:
      ValueError: an unknown format or option, a stochastic mode without a seed, or random_bits outside of 1 .. 32.
    """
    mode = rounding_mode(rounding)
    target_fmt = find_format(fmt)
    overflow_outcome(overflow, target_fmt)
    if not isinstance(subnormals, str) or subnormals not in SUBNORMALS:
        raise unknown("subnormals", subnormals, SUBNORMALS)
    if mode is Rounding.STOCHASTIC and not seeded:
        raise ValueError("stochastic rounding needs a seed, so that results can be repeated; got None. Pass seed=0.")
    if not isinstance(random_bits, (int, np.integer)) or isinstance(random_bits, bool) or not 1 <= random_bits <= 32:
        raise ValueError(f"random_bits must be an integer in 1 .. 32; got {shown(random_bits)}.")
    return CastOptions(target_fmt, mode, overflow, subnormals, 0 if seeded else None, int(random_bits))


def checked_seed(seed: Any) -> int:
    """Return a seed as a Python integer; raise a ValueError unless it is an integer in 0 .. 2**64 - 1."""
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be an integer in 0 .. 2**64 - 1; got {shown(seed)}.")
    return int(seed)


def cast_options(
    fmt: FormatLike,
    rounding: str | Rounding = DEFAULTS["rounding"],
    overflow: str = DEFAULTS["overflow"],
    subnormals: str = DEFAULTS["subnormals"],
    seed: int | None = DEFAULTS["seed"],
    random_bits: int = DEFAULTS["random_bits"],
) -> CastOptions:
    """Check the options of a cast and return them; the arguments are those that `fpsim.encode` describes.

    Raises:
      ValueError: an unknown format or option, a stochastic mode without a seed, or a number out of range.
    """
    spec: Any = fmt
    try:
        options = _checked(spec, rounding, overflow, subnormals, random_bits, seed is not None)
    except TypeError:  # an unhashable object: the checks raise the right error
        options = _checked.__wrapped__(spec, rounding, overflow, subnormals, random_bits, seed is not None)
    return options if seed is None else options.with_seed(checked_seed(seed))


def options_of(function: Callable[..., Any], fmt: FormatLike, keywords: CastKeywords) -> CastOptions:
    """Check the keywords that were passed to a public function that casts to `fmt`, and return the options.

    function: the public function, which errors name. fmt: the format, by name, dtype or object.

    Raises:
      TypeError: the function has no such keyword.
      ValueError: an unknown format or option, a stochastic mode without a seed, or a number out of range.
    """
    if not keywords:
        spec: Any = fmt
        try:
            return _usual(spec)
        except TypeError:  # an unhashable object, or no format
            return cast_options(fmt)
    check_keywords(function, keywords, DEFAULTS)
    return cast_options(fmt, **keywords)


_usual = lru_cache(maxsize=1024, typed=True)(cast_options)  # options with default keywords, by format


def table_options(function: Callable[..., Any] | None, fmt: TableFormat, keywords: CastKeywords) -> TableOptions:
    """Check the keywords of a cast to a table format, and return the options.

    "nearest_even", the default everywhere, means the nearest value, with the ties of the table; "nearest_away" is
    refused unless the table's ties go away from zero.

    Args:
      function: the public function that was called, for errors; None if the keywords' names have been checked.
      fmt: the table format.
      keywords: the keywords of the cast.

    Raises:
      TypeError: the function has no such keyword.
      ValueError: an unknown option, a stochastic mode without a seed, or a number out of range; a rounding mode or
        subnormals that a table does not define; or, with `function`, a format whose values depend on a tile.
    """
    if function is not None:
        check_keywords(function, keywords, DEFAULTS)
        refuse_without_tiles(fmt)
    _, rounding, overflow, subnormals, seed, random_bits = cast_options(FP32, **keywords)
    if subnormals != "keep":
        raise ValueError(f"subnormals must be 'keep', as a table of values has none; got 'flush' with {fmt.name}.")
    if rounding is Rounding.ODD:
        raise ValueError(
            f"rounding 'odd' needs significands, which the table of {fmt.name} has none of. Use another mode."
        )
    if rounding is Rounding.NEAREST_AWAY and fmt.ties != "away":
        raise ValueError(
            f"{fmt.name} rounds ties {fmt.ties.replace('_', ' ')}; got rounding 'nearest_away'. Leave it out."
        )
    if rounding is Rounding.TOWARD_ZERO and not fmt.has_zero:
        raise ValueError(f"rounding 'toward_zero' needs a zero, which {fmt.name} does not have. Use another mode.")
    return TableOptions(fmt, rounding, overflow, seed, random_bits)
