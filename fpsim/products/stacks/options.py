"""The keyword arguments of products that several functions share with `fpsim.matmul`."""

from __future__ import annotations

from typing import Any, TypedDict

from fpsim.arithmetic.operands import Formats
from fpsim.formats.cast_options import FormatLike


class ProductOptions(TypedDict, total=False):
    """Keyword arguments of `fpsim.matmul` that stacks, groups and convolutions pass on to each product."""

    schedule: Any
    promote: int | None
    scale_order: str | None
    alpha: float | None
    out_fmt: FormatLike | None
    strict: bool
    fmt: Formats
