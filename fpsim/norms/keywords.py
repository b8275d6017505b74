"""The keyword arguments that softmax and the norms share: types, defaults and description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fpsim.arithmetic.operands import Formats
from fpsim.formats.cast_options import DEFAULTS as CAST_DEFAULTS
from fpsim.formats.cast_options import CastKeywords, FormatLike
from fpsim.formats.keywords import with_keywords
from fpsim.formats.named import FP32
from fpsim.norms.lane_sum import LaneSum
from fpsim.sums.accumulators import Accumulator

Function = TypeVar("Function", bound=Callable[..., Any])


class NormKeywords(CastKeywords, total=False):
    """The keyword arguments of softmax, log_softmax, rms_norm and layer_norm.

    The keywords of CastKeywords set the rounding of the result. The text ENDING, which `with_norm_keywords` appends to
    the docstrings of these functions, says more.

    Attributes:
      axis: the axis along which the function is computed.
      fmt: format of operands that are codes, or a tuple with a format for each operand.
      out_fmt: format of the result; None for that of x.
      intermediate: format of intermediate results.
      accumulate: order and format of sums.
    """

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
      axis: the axis along which the function is computed; it has 1 to 2**24 elements.
      fmt: format of operands that are codes; a tuple with a format for each operand if they differ.
      out_fmt: format of the result; None for the format of x.
      intermediate: format of every intermediate result: FP32, or a signed format of up to 16 bits. Each is rounded to
        nearest even.
      accumulate: the order and format of sums: `fp.LaneSum()`, `fp.Sequential`, `fp.FusedMultiplyAdd`, `fp.Pairwise`,
        `fp.Chunked` or `fp.Exact`.
      rounding, overflow, subnormals, seed, random_bits: settings of the last rounding, as in `fpsim.encode`.

    Returns:
      Array of x's shape: of the result format's dtype if all operands have float dtypes, else codes. Every NaN is the
      canonical NaN, without a sign.

    Raises:
      ValueError: an unknown name of a mode or format, no such axis, codes out of range or without fmt, or an operand
        whose shape does not suit x.
      TypeError: operands that are neither codes nor arrays of a float dtype, or `accumulate` is not an accumulator.

    Source: docs/elementary.md lists every rounding.
"""
with_norm_keywords: Callable[[Function], Function] = with_keywords(NormKeywords, DEFAULTS, ENDING)
