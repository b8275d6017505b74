"""CPU loops of the accumulators, over tiles of a row and up to LANES columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.sums.sum_order import number_levels, tile_by_pairs, tile_in_order, word_filler
from fpsim.runtime.compile import kernel, scalar, shared
from fpsim.sums.kernels.steps import LANES, lanes

DEPTH = 64  # levels of a pairwise sum

fill_words = kernel(word_filler(shared))
_number_levels = shared(number_levels)


@cache
def sequence_kernel(way: str, outer_way: str) -> Any:
    """The loop over tiles `first .. stop` of Sequential, FusedMultiplyAdd and Chunked.

    `(a, b, b's rows per row of a, c, out, first, stop, chunk, chained, fused, layouts of a, b, inner, outer target,
    mode, random words per output, low and high word of the seed)`: a (M, K), b (K, N) or (M * K, N) and c, out (M, N)
    are 64-bit words; c may be empty. chained: the one chunk starts from c, and its total is the result.
    """
    one_tile = scalar(tile_in_order(lanes(way), lanes(outer_way).add, fill_words))

    def sequence(
        a: Any, b: Any, rows: int, c: Any, out: Any, first: int, stop: int, chunk: int, chained: Any, fused: Any,
        la: Any, lb: Any, inner: Any, outer: Any, mode: int, stride: Any, k0: Any, k1: Any,
    ) -> None:  # fmt: skip
        columns = b.shape[1]
        tiles = (columns + LANES - 1) // LANES
        t = np.zeros((3, LANES), np.uint64)
        for_products = np.zeros((4, LANES), np.uint32)
        for_sums = np.zeros((4, LANES), np.uint32)
        for_joins = np.zeros((4, LANES), np.uint32)
        for tile in range(first, stop):
            i, j = tile // tiles, tile % tiles * LANES
            one_tile(
                a, b, i * rows, c, out, i, j, min(LANES, columns - j), chunk, chained, fused, la, lb, inner, outer,
                mode, stride, k0, k1, t, for_products, for_sums, for_joins,
            )  # fmt: skip

    return kernel(sequence)


@cache
def pairwise_kernel(way: str) -> Any:
    """The loop over tiles `first .. stop` of Pairwise, with the arguments of `sequence_kernel`."""
    one_tile = scalar(tile_by_pairs(lanes(way), fill_words))

    def pairwise(
        a: Any, b: Any, rows: int, c: Any, out: Any, first: int, stop: int, chunk: int, chained: Any, fused: Any,
        la: Any, lb: Any, inner: Any, outer: Any, mode: int, stride: Any, k0: Any, k1: Any,
    ) -> None:  # fmt: skip
        columns = b.shape[1]
        tiles = (columns + LANES - 1) // LANES
        numbers = np.zeros(DEPTH, np.int64)
        _number_levels(numbers, a.shape[1])
        stack = np.zeros((DEPTH, LANES), np.uint64)
        for_products = np.zeros((4, LANES), np.uint32)
        for_sums = np.zeros((4, LANES), np.uint32)
        for tile in range(first, stop):
            i, j = tile // tiles, tile % tiles * LANES
            one_tile(
                a, b, i * rows, c, out, i, j, min(LANES, columns - j), la, lb, inner, mode, stride, k0, k1, stack,
                numbers, for_products, for_sums,
            )  # fmt: skip

    return kernel(pairwise)
