"""The keywords that softmax and the norms share: their types, defaults and description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fpsim.arithmetic.operands import Formats
from fpsim.formats.cast_options import DEFAULTS as CAST_DEFAULTS
from fpsim.formats.cast_options import CastKeywords, FormatLike
from fpsim.formats.keywords import check_keywords, with_keywords
from fpsim.formats.named import FP32
from fpsim.norms.lane_sum import LaneSum
from fpsim.sums.accumulators import Accumulator

Function = TypeVar("Function", bound=Callable[..., Any])


class NormKeywords(CastKeywords, total=False):
    """The keywords of softmax and of the norms."""

    axis: int
    fmt: Formats
    out_fmt: FormatLike | None
    intermediate: FormatLike
    accumulate: LaneSum | Accumulator


DEFAULTS: NormKeywords = {
    "axis": -1,
    "fmt": None,
    "out_fmt": None,
    "intermediate": FP32,
    "accumulate": LaneSum(),
    **CAST_DEFAULTS,
}
ENDING = """    Keywords:
      axis: the axis along which elements belong together; it has 1 to 2**24 elements.
      fmt: format of operands that are codes; a tuple where they differ.
      out_fmt: format of the result; by default that of x.
      intermediate: format of every result between: FP32, or a signed one of up to 16 bits. Each is rounded to nearest
        even.
      accumulate: the order and format of sums: `fp.LaneSum()`, `fp.Sequential`, `fp.FusedMultiplyAdd`, `fp.Pairwise`,
        `fp.Chunked` or `fp.Exact`.
      rounding, overflow, subnormals, seed, random_bits: of the last operation, as in `fpsim.encode`.

    Returns:
      Array of x's shape: of the result format's dtype where all operands came in a float dtype, else codes. NaN is the
      canonical one, without a sign.

    Raises:
      ValueError: an unknown word or format, no such axis, codes out of range or without fmt, or shapes that do not
        broadcast to x's.
      TypeError: operands that are neither codes nor arrays of a float dtype, or `accumulate` is no accumulator.

    Source: docs/elementary.md lists every rounding.
"""
with_norm_keywords: Callable[[Function], Function] = with_keywords(NormKeywords, DEFAULTS, ENDING)


def complete(function: Callable[..., Any], keywords: NormKeywords) -> dict[str, Any]:
    """Return the keywords of a call with defaults for the rest.

    Raises:
      TypeError: the function does not have one of the keywords.
    """
    check_keywords(function, keywords, DEFAULTS)
    return {**DEFAULTS, **keywords}
