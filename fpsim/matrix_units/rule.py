"""The rules by which one matrix instruction adds its terms to the accumulator."""

from __future__ import annotations

from enum import IntEnum

from fpsim.reload import reloadable


@reloadable
class Rule(IntEnum):
    """The rule by which one matrix instruction adds its terms to the accumulator.

    A comment here sums up each rule; docs/matrix-units.md states them in full.
    """

    FUSED = 0  # all terms aligned to the largest exponent, cut toward zero, added exactly, rounded once
    SCALED = 1  # FUSED with the exponents of two block scales added to every product
    GROUPED = 2  # exact dot products of 16, each times two block scales, then as FUSED
    TWO_PASSES = 3  # two FUSED steps of an FP16 unit over interleaved terms, then one addition to the accumulator
    EXACT = 4  # products and accumulator added exactly, rounded once
    FLUSHED_TREE = 5  # float32 products and additions in a tree, subnormals flushed
    SEPARATE = 6  # products cut and added apart from the accumulator, which joins in a second cut
    EVEN_ODD = 7  # SEPARATE, with even and odd terms cut apart first
    REVERSED_CHAIN = 8  # fused multiply-adds onto the accumulator, the last term of a step first, subnormals flushed
    TWO_CHAINS = 9  # fused multiply-adds of even and of odd terms, each from +0, then c + (even + odd); flushed
    ODD_PAIR = 10  # two products and their sum, and then c, each rounded to odd; subnormals flushed
    FUSED_PAIR = 11  # two products added and rounded once, then c
