"""The parts of an array with separate metrics: channels, the indices along an axis, or blocks of its last two axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.measures.candidates import Buffers, Candidate
from fpsim.analysis.measures.loops import RoundedPiece
from fpsim.analysis.measures.passes import PIECE, Groups, as_floats, whole_array
from fpsim.analysis.measures.sums import ErrorSums, nothing
from fpsim.arrays import Array
from fpsim.errors import is_integer, shown
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import Tiling, tiling


class Slab(NamedTuple):
    """Consecutive channels or blocks of equal length that are measured together.

    Attributes:
      first, number: index of the first channel or block, and number of channels or blocks.
      length: number of elements of each channel or block that are in the slab.
      columns: if the slab is a piece of one long channel or block, the range of its elements in that; else None.
      index: for blocks, (batch, slice of rows, first column, last column + 1, columns of a block); None for channels.
    """

    first: int
    number: int
    length: int
    columns: slice | None
    index: Any


class Layout:
    """The division of an array into channels or blocks.

    Args:
      shape: shape of the array.
      axis: the axis along which every index is a channel; None for blocks.
      block: the shape of a block in the last axes, as for `fpsim.Scaling`; -1 is a whole axis; None for channels.

    Attributes:
      count: number of channels or blocks.
      tiling: the grid of blocks; None for channels.

    Raises:
      ValueError: axis and block are both given, or the shape has no such axis or block.
    """

    def __init__(self, shape: tuple[int, ...], axis: int | None, block: Any) -> None:
        self.shape = shape
        self.axis, self.tiling = None, None
        if axis is not None:
            if block is not None:
                raise ValueError(
                    f"the parts of an array are given by axis or by block; got axis={shown(axis)} and "
                    f"block={shown(block)}. Leave one out."
                )
            if not is_integer(axis) or not -len(shape) <= axis < len(shape):
                raise ValueError(f"axis must be one of the {len(shape)} axes of x; got {shown(axis)}.")
            self.axis = int(axis) % len(shape)
            self.count = shape[self.axis]
        else:
            self.tiling = tiling(shape, Scaling(block=block).block)
            self.count = math.prod(self.tiling.grid)

    @property
    def name(self) -> str:
        """Kind of the parts into which the array is divided: "channel" or "block"."""
        return "channel" if self.axis is not None else "block"

    def sums(self, x: Array, candidate: Candidate) -> ErrorSums:
        """Return the ErrorSums of a cast, `candidate`, with a leading axis of channels or blocks.

        x: the array, float32 or float64 or a dtype that converts to them, with the shape of the layout.
        """
        buffers = Buffers()
        part_sums = nothing((self.count,))
        whole = whole_array(x, candidate) if candidate.by_position else None
        for slab in self.slabs():
            elements = as_floats(self.gather(x, slab))
            groups = Groups(elements, buffers)
            at = slice(slab.first, slab.first + slab.number)
            sums = ErrorSums(part_sums.counts[None, at], part_sums.totals[None, at], part_sums.maxima[None, at])
            groups.measure([candidate], sums, partial(self._rounded, slab, elements, whole, buffers))
        return part_sums

    def _rounded(
        self, slab: Slab, x: Array, whole: RoundedPiece | None, buffers: Buffers, candidate: Candidate
    ) -> RoundedPiece:
        """Return the elements x (parts, length) of a slab before and after rounding by a cast, the candidate.

        whole: the whole array before and after rounding, if results depend on an element's index; None if they do not.
        buffers: scratch arrays.
        """
        if whole is None:
            return candidate.rounded(x.reshape(-1), 0, buffers)
        return whole.each(lambda array: self.gather(array.reshape(self.shape), slab))

    def places(self) -> tuple[Any, ...]:
        """Return the index of each channel along the axis, or the indices of each block in the grid of blocks."""
        if self.tiling is None or len(self.tiling.grid) < 2:
            return tuple(range(self.count))
        return tuple(np.ndindex(self.tiling.grid))

    def slabs(self) -> Iterator[Slab]:
        """Yield slabs that together cover all channels or blocks.

        Several short channels or blocks share a slab; one of more than PIECE elements is divided into several slabs.
        """
        if self.tiling is not None:
            yield from _block_slabs(self.tiling)
            return
        length = math.prod(self.shape) // max(self.count, 1)
        if length == 0:
            return
        step = max(PIECE // length, 1)
        for part in range(0, self.count, step):
            yield from _cut(Slab(part, min(step, self.count - part), length, None, None))

    def gather(self, x: Array, slab: Slab) -> Array:
        """Return the elements of x in a slab as a contiguous array, (channels or blocks, length)."""
        if self.tiling is None:
            assert self.axis is not None
            rows_of_parts = np.moveaxis(x, self.axis, 0)[slab.first : slab.first + slab.number].reshape(slab.number, -1)
            return np.ascontiguousarray(rows_of_parts if slab.columns is None else rows_of_parts[:, slab.columns])
        batch, rows, first, last, width = slab.index
        band = x.reshape(self.tiling.shape)[batch, rows, first:last]
        tiles = band.reshape(band.shape[0], -1, width).swapaxes(0, 1).reshape(slab.number, -1)
        return np.ascontiguousarray(tiles if slab.columns is None else tiles[:, slab.columns])


def _block_slabs(tiles: Tiling) -> Iterator[Slab]:
    """Yield slabs that together cover the blocks of a tiling, in the order of the grid.

    A slab is a part of the array that is measured at once. It holds neighbouring blocks of full width in one row of the
    grid: as many as have at most PIECE elements together, or one larger block. A narrower block at the row's end is a
    slab alone. A block of more than PIECE elements is then divided into several slabs.
    """
    bands, across = tiles.tiles[1:]
    full = tiles.columns // tiles.tile_columns
    for batch in range(tiles.batch):
        for band in range(bands):
            rows = slice(band * tiles.tile_rows, min((band + 1) * tiles.tile_rows, tiles.rows))
            height = rows.stop - rows.start
            area = height * tiles.tile_columns
            number = (batch * bands + band) * across
            step = max(PIECE // max(area, 1), 1)
            for first in range(0, full, step):
                count = min(step, full - first)
                ends = first * tiles.tile_columns, (first + count) * tiles.tile_columns
                yield from _cut(Slab(number + first, count, area, None, (batch, rows, *ends, tiles.tile_columns)))
            rest = tiles.columns - full * tiles.tile_columns
            if rest:
                ends = full * tiles.tile_columns, tiles.columns
                yield from _cut(Slab(number + full, 1, height * rest, None, (batch, rows, *ends, rest)))


def _cut(slab: Slab) -> Iterator[Slab]:
    """Yield a slab unchanged; but divide one channel or block of more than PIECE elements, and yield its pieces.

    A piece is a slab of at most PIECE elements.
    """
    if slab.length <= PIECE:
        yield slab
        return
    for start in range(0, slab.length, PIECE):
        stop = min(start + PIECE, slab.length)
        yield slab._replace(length=stop - start, columns=slice(start, stop))
