"""The rules by which one matrix instruction adds its terms to the accumulator."""

from __future__ import annotations

from enum import IntEnum

from fpsim.reload import reloadable


@reloadable
class Rule(IntEnum):
    """The rule by which one matrix instruction adds its terms to the accumulator; docs/matrix-units.md has the details.

    FUSED: all terms are aligned to the largest exponent, truncated, added exactly, and rounded once.
    SCALED: FUSED with the exponents of two block scales added to every product.
    GROUPED: exact dot products of 16 terms, each times two block scales, are added as in FUSED.
    TWO_PASSES: two FUSED steps of an FP16 unit over interleaved terms, then one addition to the accumulator.
    EXACT: products and accumulator are added exactly, and rounded once.
    FLUSHED_TREE: float32 products and additions in a tree, with subnormals flushed to zero.
    SEPARATE: products are truncated and added without the accumulator, which is added with a second truncation.
    EVEN_ODD: as SEPARATE, but even terms and odd terms are first truncated and added separately.
    REVERSED_CHAIN: fused multiply-adds onto the accumulator, the last term of a step first, subnormals flushed.
    TWO_CHAINS: fused multiply-adds of even and of odd terms, each from +0, then c + (even + odd); subnormals flushed.
    ODD_PAIR: two products, their sum, and its sum with c, each rounded to odd; subnormals flushed.
    FUSED_PAIR: two products are added and rounded once, then c is added.
    """

    FUSED = 0
    SCALED = 1
    GROUPED = 2
    TWO_PASSES = 3
    EXACT = 4
    FLUSHED_TREE = 5
    SEPARATE = 6
    EVEN_ODD = 7
    REVERSED_CHAIN = 8
    TWO_CHAINS = 9
    ODD_PAIR = 10
    FUSED_PAIR = 11
