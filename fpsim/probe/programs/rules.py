"""The settings of a sum's additions (AdditionRule), and of the factor that multiplies a sum or its terms (SumScale)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fpsim.formats.named import Format

# Numbers whose subnormals may be flushed: products before they are added, sums, the sum of +0 and the first term of
# each chain, and results in their own format.
FLUSHES = ("products", "sums", "starts", "results")


@dataclass(frozen=True)
class AdditionRule:
    """The arithmetic of every addition in an order.

    Args:
      fmt: the format of every sum.
      rounding: the rounding mode of sums, as for `fp.encode`.
      alignment: "exact": the numbers of an addition are added exactly, and the sum is rounded once. "truncate",
        "floor", "nearest": they are first cut to `fraction_bits` below the largest exponent among them.
      fraction_bits: fraction bits that aligned numbers keep; None if nothing is cut.
      result_bits: mantissa bits of a sum; None for those of the format.
      flushes: the numbers whose subnormals become zeros of their sign: "products" (rounded ones, or the terms of a
        plain sum), "sums", "starts" (the terms with which chains of additions begin) and "results" (after the cast).
      least_inputs: for each operand, the smallest magnitude that is not flushed to zero; () to flush no input.
      overflow: the overflow mode of sums, as for `fp.encode`.
      zeros: "kept": a sum of -0 alone is -0. "added": +0 is added to the result. "begin": a sum begins at +0, to
        which its first product is added unrounded, as in fused multiply-adds; a negative product may round to -0 then.
      product: the format that products are rounded to before they are added; None for the format of the sums.
      operand_exponents: lower limits of both operands' exponents, if products are aligned by the sum of their operands'
        exponents; None if products are aligned by their own exponents.
    """

    fmt: Format  # the format of every sum
    rounding: str = "nearest_even"  # the rounding mode of sums, as for `fp.encode`
    alignment: str = "exact"
    fraction_bits: int | None = None  # fraction bits that aligned numbers keep; None if nothing is cut
    result_bits: int | None = None  # mantissa bits of a sum; None for those of the format
    flushes: tuple[str, ...] = ()
    least_inputs: tuple[float, ...] = ()
    overflow: str = "nonfinite"  # the overflow mode of sums, as for `fp.encode`
    zeros: str = "added"
    product: Format | None = None
    operand_exponents: tuple[int, int] | None = None


class SumScale(NamedTuple):
    """The factor of a sum.

    Attributes:
      how: "times" multiplies the sum by the factor, "over" divides it, "terms" multiplies each term (or operand a).
      by: the factor or divisor.
      fmt: the format to which the sum is rounded both before and after the scaling, or a term after it; to nearest
        even.
    """

    how: str  # "times" multiplies the sum by the factor, "over" divides it, "terms" multiplies each term (or operand a)
    by: float  # the factor or divisor
    fmt: Format  # the format to which the sum and the scaled number are rounded, to nearest even
