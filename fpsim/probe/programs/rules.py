"""The rule of the additions of a revealed order, and the factor of a scaled sum, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fpsim.formats.named import Format

# Numbers whose subnormals may be flushed: products before they are added, sums, the sum of +0 and the first term of
# each chain, and results in their own format.
FLUSHES = ("products", "sums", "starts", "results")


@dataclass(frozen=True)
class AdditionRule:
    """The rule of the additions of an order.

    Args:
      fmt: the format of every sum.
      rounding: a rounding of `fp.encode`.
      alignment: "exact": the numbers of a node are added exactly and rounded once. "truncate", "floor", "nearest":
        they are first cut to `fraction_bits` below the largest exponent among them.
      fraction_bits: fraction bits that are kept; None where nothing is cut.
      result_bits: mantissa bits of a sum; None for those of the format.
      flushes: names of FLUSHES: numbers whose subnormals become zeros of their sign.
      least_inputs: for each operand the smallest magnitude that is not flushed to zero; empty where none is flushed.
      overflow: as for `fp.encode`.
      zeros: "kept": a sum of -0 alone is -0. "added": +0 is added to the result. "begin": a sum begins at +0, to
        which its first product is added unrounded, as in fused multiply-adds; a negative product may round to -0 then.
      product: the format that products are rounded to before they are added; None for that of the sums.
      operand_exponents: the smallest exponents of both operands if products are aligned by the sum of their operands'
        exponents; None if they are aligned by their own.
    """

    fmt: Format
    rounding: str = "nearest_even"
    alignment: str = "exact"
    fraction_bits: int | None = None
    result_bits: int | None = None
    flushes: tuple[str, ...] = ()
    least_inputs: tuple[float, ...] = ()
    overflow: str = "nonfinite"
    zeros: str = "added"
    product: Format | None = None
    operand_exponents: tuple[int, int] | None = None


class SumScale(NamedTuple):
    """The factor of a sum: "times" multiplies the sum, "over" divides it, "terms" multiplies each term or operand a.

    The sum is rounded to `fmt`, and so is the product or quotient, to nearest even.
    """

    how: str
    by: float
    fmt: Format
