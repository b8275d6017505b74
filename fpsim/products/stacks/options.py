"""Keyword arguments and arrays of operands that products of stacks, groups and convolutions share."""

from __future__ import annotations

from typing import Any, TypedDict

from fpsim.arithmetic.encoded_array import EncodedArray
from fpsim.arithmetic.operands import Formats
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES
from fpsim.scaling.scaled import Scaled


class ProductOptions(TypedDict, total=False):
    """Keyword arguments that stacks, groups and convolutions pass on to each product; `fpsim.matmul` describes them."""

    schedule: Any
    promote: int | None
    scale_order: str | None
    alpha: float | None
    out_fmt: FormatLike | None
    strict: bool
    fmt: Formats


def arrays_of(x: Scaled) -> dict[str, Any]:
    """Return the arrays of a Scaled array x by name: codes, and the scales, scale codes and zero points that x has."""
    names = ("codes", "scales", "scale_codes", "zero_points")
    return {name: getattr(x, name) for name in names if getattr(x, name) is not None}


def in_dtype(x: Any) -> Any:
    """Return an EncodedArray whose format has a dtype as an array of that dtype, in the same memory; else x itself.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.products.stacks.options import in_dtype
      >>> in_dtype(fp.array([1, 2], "bf16")).dtype
      dtype(bfloat16)
    """
    dtype = DTYPES.get(x.fmt) if isinstance(x, EncodedArray) else None
    return x if dtype is None else x.codes.view(dtype)
