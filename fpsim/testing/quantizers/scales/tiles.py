"""Spreads one number per tile over the tile's elements, and reduces a tile's elements to one number."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array
from fpsim.scaling.tiling import tile_sizes


def spread_tiles(of_tiles: Array, shape: tuple[int, ...], block: tuple[int, ...]) -> Array:
    """Return one number per element of a matrix of a shape, from one number per tile."""
    height, width = tile_sizes(shape, block)
    return of_tiles.repeat(height, 0)[: shape[0]].repeat(width, 1)[:, : shape[1]]


def reduced_tiles(reduce: np.ufunc, x: Array, block: tuple[int, ...]) -> Array:
    """Return one number per tile of a matrix: the tile's elements reduced by np.maximum or np.minimum."""
    rows, columns = (np.arange(0, size, step) for size, step in zip(x.shape, tile_sizes(x.shape, block), strict=True))
    return np.asarray(reduce.reduceat(reduce.reduceat(x, rows, 0), columns, 1))
