"""Keyword arguments of `fpsim.matmul` that stacks, groups and convolutions share, and the arrays of Scaled operands."""

from __future__ import annotations

from typing import Any, TypedDict

from fpsim.arithmetic.operands import Formats
from fpsim.formats.cast_options import FormatLike
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
