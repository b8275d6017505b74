"""Conversion between matrices of one number per tile and of one per element."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array
from fpsim.scaling.tiling import tile_sizes


def spread_tiles(of_tiles: Array, shape: tuple[int, ...], block: tuple[int, ...]) -> Array:
    """Return a matrix of `shape` in which each element is the number that `of_tiles` has for the element's tile.

    of_tiles: one number per tile, as a matrix. block: rows and columns of a tile.
    """
    height, width = tile_sizes(shape, block)
    return of_tiles.repeat(height, 0)[: shape[0]].repeat(width, 1)[:, : shape[1]]


def reduced_tiles(reduce: np.ufunc, x: Array, block: tuple[int, ...]) -> Array:
    """Return one number per tile of a matrix: its elements reduced by `reduce`, np.maximum or np.minimum.

    block: rows and columns of a tile.
    """
    rows, columns = (np.arange(0, size, step) for size, step in zip(x.shape, tile_sizes(x.shape, block), strict=True))
    return np.asarray(reduce.reduceat(reduce.reduceat(x, rows, 0), columns, 1))
