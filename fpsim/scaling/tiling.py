"""Tiles of an array, which is viewed as a batch of matrices, each cut into rows and columns of tiles."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array


class Tiling(NamedTuple):
    """An array viewed as (batch, rows, columns) in C order, the size of its tiles, and the shape of its scales.

    tile_rows, tile_columns: the size of a tile. grid: the shape of the scales, one per tile, with as many axes as the
    array.
    """

    batch: int
    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    grid: tuple[int, ...]  # shape of the scales

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the array viewed as a batch of matrices: (batch, rows, columns)."""
        return self.batch, self.rows, self.columns

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Shape of the scales viewed as a batch of matrices: (batch, rows of tiles, tiles in a row)."""
        return self.batch, -(-self.rows // self.tile_rows), -(-self.columns // self.tile_columns)


def block_sizes(shape: tuple[int, ...], block: tuple[int, ...]) -> list[int]:
    """Return the size of a full block along each axis of an array of `shape`, even where the axis is shorter.

    block: as in `Scaling.block`, for the last axes; along other axes it is 1, or the whole axis if block[0] is -1.
    """
    missing = len(shape) - len(block)
    sizes = [-1 if block[0] == -1 else 1] * max(missing, 0) + list(block[max(-missing, 0) :])
    return [length if size == -1 else size for size, length in zip(sizes, shape, strict=True)]


def tile_sizes(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size of a tile (block of elements with one scale) along each axis of an array.

    shape: shape of the array. block: as in `Scaling.block`, for the last axes; -1 for a whole axis. Along other axes
    the size is 1, or the whole axis if block[0] is -1. No size exceeds the axis or is below 1.
    """
    sizes = block_sizes(shape, block)
    return tuple(max(min(size, length), 1) for size, length in zip(sizes, shape, strict=True))


@lru_cache(maxsize=4096)
def tiling(shape: tuple[int, ...], block: tuple[int, ...]) -> Tiling:
    """Return the view of an array of `shape` as a batch of matrices, with tiles of size `block`; cached.

    block: as in `Scaling.block`, for the last axes; -1 for a whole axis.

    Raises:
      ValueError: tiles extend along more than two axes that cannot be merged to two.

    Example:
      >>> from fpsim.scaling.tiling import tiling
      >>> tiling((4, 300, 256), (1, 128)).grid, tiling((4, 300, 256), (-1, 1)).shape
      ((4, 300, 2), (1, 1200, 256))
    """
    sizes = tile_sizes(shape, block)
    grid = tuple(math.ceil(length / size) for length, size in zip(shape, sizes, strict=True))
    merged: list[tuple[int, int]] = [(1, 1)]
    for axis in zip(shape, sizes, strict=True):
        merged.append(axis)
        while len(merged) > 1:
            (outer, outer_tile), (inner, inner_tile) = merged[-2:]
            if inner_tile == max(inner, 1):  # whole inner axes: tiles stay contiguous
                merged[-2:] = [(outer * inner, max(outer_tile * inner, 1))]
            elif (outer_tile == 1 and inner_tile == 1) or outer == 1:
                merged[-2:] = [(outer * inner, inner_tile)]
            else:
                break
    merged = [(1, 1)] * (3 - len(merged)) + merged
    if len(merged) > 3 or merged[0][1] > 1:
        raise ValueError(
            f"tiles may extend along two axes, or along neighbouring whole ones; got block {block} for shape {shape}. "
            "Reshape the array, or loop over an axis."
        )
    (batch, _), (rows, tile_rows), (columns, tile_columns) = merged
    return Tiling(batch, rows, columns, tile_rows, tile_columns, grid)


def matrix_block(block: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, columns) of a matrix's tiles; -1 for a whole axis.

    block: as in `Scaling.block`. A block of one axis has tiles of one row, or of all rows if it is (-1,).

    Example:
      >>> from fpsim.scaling.tiling import matrix_block
      >>> matrix_block((1, 128)), matrix_block((32,)), matrix_block((-1,))
      ((1, 128), (1, 32), (-1, -1))
    """
    first = -1 if block[0] == -1 else 1
    rows, columns = (first, *block)[-2:]
    return rows, columns


def spread(per_tile: Array, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return an array of `shape` in which each element has its tile's entry of `per_tile`.

    per_tile: one entry per tile, with as many axes as `shape`. sizes: the size of a tile along each axis.
    """
    for axis, (size, length) in enumerate(zip(sizes, shape, strict=True)):
        per_tile = np.repeat(per_tile, size, axis=axis)[(slice(None),) * axis + (slice(length),)]
    return per_tile
