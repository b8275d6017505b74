"""Kernels of the accumulators, over tiles of results: up to TILE_COLUMNS (256) columns of one row."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.sums.sum_order import (
    ChainOrder,
    Randomness,
    Rows,
    SumTile,
    Targets,
    Words,
    fill_words,
    number_levels,
    tile_by_pairs,
    tile_in_order,
)
from fpsim.runtime.compile import inner_loop, kernel, scalar
from fpsim.sums.kernels.steps import TILE_COLUMNS, lanes
from fpsim.sums.kernels.stochastic import (
    BLOCK,
    GROUP,
    LEVELS,
    PairsAhead,
    WordsAhead,
    blocks_ahead,
    largest_of_tiles,
    subtree_ahead,
)

DEPTH = 64  # levels of a pairwise sum

_fill_words = inner_loop(fill_words)


@scalar
def _tiles(columns: int) -> Any:
    """Return the number of tiles, runs of up to TILE_COLUMNS (256) columns, in a row of `columns` results."""
    return (columns + TILE_COLUMNS - 1) // TILE_COLUMNS


@scalar
def _tile(number: int, columns: int) -> SumTile:
    """Return the tile with the index `number`, as a SumTile: up to 256 neighbouring results of one row.

    The index counts from 0 along the tiles of a row, then row by row. columns: number of results in a row.
    """
    tiles = _tiles(columns)
    i, j = number // tiles, number % tiles * TILE_COLUMNS
    return SumTile(i, j, min(TILE_COLUMNS, columns - j), np.uint64(i * columns + j))


@scalar
def _numbers() -> Any:
    """Return an array for 32-bit random numbers of four terms of every sum in a tile, (4, 256) uint32."""
    return np.zeros((4, TILE_COLUMNS), np.uint32)


@scalar
def _words(_x: Rows, _columns: int) -> Words:
    """Return scratch arrays for random numbers: those of products, of sums and of outer sums; arguments: not used."""
    return Words(_numbers(), _numbers(), _numbers())


@scalar
def _largest(x: Rows, columns: int) -> Any:
    """Return the largest magnitude of b in each tile of a result's `columns` columns, (tiles,) float64 patterns."""
    largest = np.zeros(_tiles(columns), np.uint64)
    largest_of_tiles(x.b, largest)
    return largest


@scalar
def _words_ahead(x: Rows, columns: int) -> WordsAhead:
    """Return the scratch arrays of `blocks_ahead`. x: the operands. columns: number of results in a row."""
    fours = np.zeros((8, TILE_COLUMNS), np.uint64)
    return WordsAhead(_numbers(), _numbers(), _numbers(), fours, _largest(x, columns))


@scalar
def _pairs_ahead(x: Rows, columns: int) -> PairsAhead:
    """Return the scratch arrays of `subtree_ahead`. x: the operands. columns: number of results in a row."""
    fours, totals = np.zeros((12, TILE_COLUMNS), np.uint64), np.zeros((BLOCK // GROUP, TILE_COLUMNS), np.uint64)
    return PairsAhead(_numbers(), _numbers(), fours, totals, _largest(x, columns))


@cache
def sequence_kernel(way: str, outer_way: str) -> Any:
    """Return the kernel that computes sums of Sequential, FusedMultiplyAdd and Chunked, for tiles first .. stop - 1.

    A tile is a run of up to 256 columns of one row of `out`; tiles are counted along rows, from 0.

    Arguments: `(x, out, first, stop, chunk, single, fused, f, r)`. x: a Rows, the operands. out: (M, N), written. Both
    hold 64-bit words. chunk: terms of a partial sum. single: True if one chunk has all terms. fused: True if products
    are not rounded. f: a Targets, constants of the formats. r: a Randomness, rounding mode and seed.

    way: representation of sums: "core" (codes, added in integer arithmetic), "double" (FP64 sums, as float64), or the
    name of a rounding mode, such as "nearest" or "any" (values in float64, rounded to the format in that mode).
    outer_way: that of Chunked's outer sums.
    """
    ahead = (blocks_ahead,) if way == "stochastic" else ()
    one_tile = scalar(tile_in_order(lanes(way), lanes(outer_way).add, _fill_words, *ahead))
    words_of = _words_ahead if ahead else _words

    def sequence(
        x: Rows, out: Any, first: int, stop: int, chunk: int, single: Any, fused: Any, f: Targets, r: Randomness
    ) -> None:
        columns = out.shape[1]
        t, chain = np.zeros((3, TILE_COLUMNS), np.uint64), ChainOrder(chunk, single, fused)
        words = words_of(x, columns)
        for tile in range(first, stop):
            one_tile(x, out, _tile(tile, columns), chain, f, r, t, words)

    return kernel(sequence)


@cache
def pairwise_kernel(way: str) -> Any:
    """Return the kernel that computes Pairwise sums, for tiles first .. stop - 1 of the results.

    A tile is a run of up to 256 columns of one row of `out`; tiles are counted along rows, from 0.

    Arguments: `(x, out, first, stop, chunk, single, fused, f, r)`. x: a Rows, the operands. out: (M, N), written. Both
    hold 64-bit words. chunk, single, fused: not used. f: a Targets, constants of the formats. r: a Randomness, rounding
    mode and seed.

    way: representation of sums: "core" (codes, added in integer arithmetic), "double" (FP64 sums, as float64), or the
    name of a rounding mode, such as "nearest" or "any" (values in float64, rounded to the format in that mode).
    """
    ahead = (subtree_ahead, LEVELS) if way == "stochastic" else ()
    one_tile = scalar(tile_by_pairs(lanes(way), _fill_words, *ahead))
    words_of = _pairs_ahead if ahead else _words

    def pairwise(
        x: Rows, out: Any, first: int, stop: int, chunk: int, single: Any, fused: Any, f: Targets, r: Randomness
    ) -> None:
        columns = out.shape[1]
        numbers = np.zeros(DEPTH, np.int64)
        number_levels(numbers, x.a.shape[1])
        stack = np.zeros((DEPTH, TILE_COLUMNS), np.uint64)
        words = words_of(x, columns)
        for tile in range(first, stop):
            one_tile(x, out, _tile(tile, columns), f, r, stack, numbers, words)

    return kernel(pairwise)
