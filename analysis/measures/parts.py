"""The parts of an array that figures are given for: the places along an axis, or blocks of its last two axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.measures.candidates import Buffers, Candidate, RoundedPiece
from fpsim.analysis.measures.passes import PIECE, Groups, as_floats, whole_array
from fpsim.analysis.measures.sums import ErrorSums, nothing
from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import Tiling, tiling


class Slab(NamedTuple):
    """Some parts of one length, neighbours in the order of parts, and which elements of the array they are."""

    first: int
    number: int
    length: int
    columns: slice | None  # of one long part: which of its elements
    index: Any


class Layout:
    """How an array of a shape is cut into parts.

    Args:
      shape: of the array.
      axis: the axis of which every place is a part; or
      block: the shape of the parts, as for `fpsim.Scaling`: of the last axes, -1 for a whole one.

    Raises:
      ValueError: both, or one that the shape does not have.
    """

    def __init__(self, shape: tuple[int, ...], axis: int | None, block: Any) -> None:
        self.shape = shape
        self.axis, self.tiling = None, None
        if axis is not None:
            if block is not None:
                raise ValueError(f"error takes axis or block; got axis={axis!r} and block={block!r}. Leave one out.")
            is_integer = isinstance(axis, (int, np.integer)) and not isinstance(axis, bool)
            if not is_integer or not -len(shape) <= axis < len(shape):
                raise ValueError(f"axis must be one of the {len(shape)} axes of x; got {shown(axis)}.")
            self.axis = int(axis) % len(shape)
            self.count = shape[self.axis]
        else:
            self.tiling = tiling(shape, Scaling(block=block).block)
            self.count = math.prod(self.tiling.grid)

    @property
    def name(self) -> str:
        """What a part is called."""
        return "channel" if self.axis is not None else "block"

    def sums(self, x: Array, candidate: Candidate) -> ErrorSums:
        """What a candidate costs in each part of an array of this shape."""
        buffers = Buffers()
        found = nothing((self.count,))
        whole = whole_array(x, candidate) if candidate.by_position else None
        for slab in self.slabs():
            elements = as_floats(self.gather(x, slab))
            groups = Groups(elements, buffers)
            at = slice(slab.first, slab.first + slab.number)
            sums = ErrorSums(found.counts[None, at], found.totals[None, at], found.maxima[None, at])
            groups.measure([candidate], sums, partial(self._rounded, slab, elements, whole, buffers))
        return found

    def _rounded(
        self, slab: Slab, x: Array, whole: RoundedPiece | None, buffers: Buffers, candidate: Candidate
    ) -> RoundedPiece:
        """What a candidate makes of a slab; whole: of the whole array, where places matter."""
        if whole is None:
            return candidate.rounded(x.reshape(-1), 0, buffers)
        return whole.each(partial(self._gather_flat, slab))

    def _gather_flat(self, slab: Slab, x: Array) -> Array:
        return self.gather(x.reshape(self.shape), slab)

    def places(self) -> tuple[Any, ...]:
        """Where each part is: its index along the axis, or in the grid of blocks."""
        if self.tiling is None or len(self.tiling.grid) < 2:
            return tuple(range(self.count))
        return tuple(np.ndindex(self.tiling.grid))

    def slabs(self) -> Iterator[Slab]:
        """Every part, some at a time."""
        if self.tiling is not None:
            yield from _block_slabs(self.tiling)
            return
        length = math.prod(self.shape) // max(self.count, 1)
        if length == 0:
            return
        if length > PIECE:
            for part in range(self.count):
                for start in range(0, length, PIECE):
                    stop = min(start + PIECE, length)
                    yield Slab(part, 1, stop - start, slice(start, stop), None)
            return
        step = PIECE // length
        for part in range(0, self.count, step):
            yield Slab(part, min(step, self.count - part), length, None, None)

    def gather(self, x: Array, slab: Slab) -> Array:
        """The elements of a slab's parts, (count, length), contiguous."""
        if self.tiling is None:
            assert self.axis is not None
            found = np.moveaxis(x, self.axis, 0)[slab.first : slab.first + slab.number].reshape(slab.number, -1)
            return np.ascontiguousarray(found if slab.columns is None else found[:, slab.columns])
        batch, rows, first, last, width = slab.index
        band = x.reshape(self.tiling.shape)[batch, rows, first:last]
        tiles = band.reshape(band.shape[0], -1, width).swapaxes(0, 1).reshape(slab.number, -1)
        return np.ascontiguousarray(tiles if slab.columns is None else tiles[:, slab.columns])


def _block_slabs(tiles: Tiling) -> Iterator[Slab]:
    """Blocks in the order of the grid: full ones of a band together, and the narrower one at its end."""
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
    """A slab in pieces, where one part alone is long."""
    if slab.length <= PIECE:
        yield slab
        return
    for start in range(0, slab.length, PIECE):
        stop = min(start + PIECE, slab.length)
        yield slab._replace(length=stop - start, columns=slice(start, stop))
