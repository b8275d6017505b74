"""Division of an array of tiles into areas, the parts on each of which one block of GPU threads works at a time.

Neighbouring threads process neighbouring columns, of one tile or of several, so that a warp reads contiguous memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.gpu.device import launch
from fpsim.gpu.device.device import is_simulated
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of
from fpsim.scaling.tiling import Tiling

i64, u64 = np.int64, np.uint64
BATCH = 4  # elements that a thread reads at once

PER_THREAD = 8  # elements of a narrow tile per thread, whose loads overlap
NARROW = 8  # threads that share even the narrowest row, so that they read whole sectors of memory
SEGMENT = 32  # columns of whole memory transactions
TILE_PART = 1 << 14  # elements of a block's part of a tile, if several blocks share it
LARGEST_AREA = 1 << 16  # elements that stay in the cache between two reads by one block


class Areas(NamedTuple):
    """An array as (batch, rows, columns), its tiles, and the areas, each of which one block of threads processes.

    An area is `across` whole tiles, neighbours in a row of tiles. If tiles are divided by rows, it is one part of each
    of these tiles; if tiles are divided by columns too, it is one part of a single tile.

    Attributes:
      rows, columns: size of a matrix of the batch.
      tile_rows, tile_columns: size of a tile.
      bands, tiles: number of rows of tiles in a matrix (at least 1), and of tiles in such a row.
      part_rows, part_columns: size of the part of a tile that a block processes.
      row_parts, column_parts: number of such parts along the rows and the columns of a tile.
      across: number of neighbouring tiles in an area.
      threads_x, threads_y: number of threads along the columns and along the rows of a tile.
      shift_x, shift_y, shift_across: log2 of threads_x, threads_y and across.
      groups: number of areas in a row of tiles.
      count: number of areas.
    """

    rows: Any
    columns: Any
    tile_rows: Any
    tile_columns: Any
    bands: Any
    tiles: Any
    part_rows: Any
    part_columns: Any
    row_parts: Any
    column_parts: Any
    across: Any
    threads_x: Any
    threads_y: Any
    shift_x: Any
    shift_y: Any
    shift_across: Any
    groups: Any
    count: Any

    @property
    def stays_in_cache(self) -> bool:
        """True if an area has up to 2**16 elements, so that it stays in the cache between two reads by a block."""
        return bool(self.part_rows * self.part_columns * self.across <= LARGEST_AREA)

    @property
    def layout(self) -> npt.NDArray[Any]:
        """The fields of this object as an int64 array, the form in which kernels read them."""
        return np.array(self, np.int64)


area_fields = fields_of(Areas)


class TilePart(NamedTuple):
    """The part of one tile on which a block of threads works, and the first element of one thread in it.

    The thread processes elements that are threads_y rows and threads_x columns apart.

    Attributes:
      tile: flat index of the tile among all tiles.
      is_tile: False for threads beyond the last tile or beyond the area.
      top, bottom: first row of the part and the row after its last one, counted over all matrices of the batch.
      left, right: first column of the part and the column after its last one.
      row, column: the thread's first element.
    """

    tile: Any
    is_tile: Any
    top: Any
    bottom: Any
    left: Any
    right: Any
    row: Any
    column: Any


@scalar
def part_of(area: Any, thread: Any, g: Areas) -> TilePart:
    """Return the part of a tile that a thread works on.

    area: index of the area on which the thread's block works. thread: index of the thread in its block. g: how the
    array is divided into areas.
    """
    thread_x = i64(thread & i64(g.threads_x - 1))
    place = i64(i64(thread >> g.shift_x) & i64(g.across - 1))
    thread_y = i64(thread >> i64(g.shift_x + g.shift_across))
    above, beside = i64(0), i64(area)
    if g.groups < g.count:  # divisions take as much time as the rest, and most arrays need none
        above = i64(area // g.groups)
        beside = i64(area - i64(above * g.groups))
    row_part, column_part = i64(0), i64(0)
    if g.row_parts > 1:
        all_bands = i64(above // g.row_parts)
        row_part = i64(above - i64(all_bands * g.row_parts))
        above = all_bands
    if g.column_parts > 1:
        tile = i64(beside // g.column_parts)
        column_part = i64(beside - i64(tile * g.column_parts))
        beside = tile
    first_row, band = i64(0), above
    if g.bands < above + 1:
        batch = i64(above // g.bands)
        band = i64(above - i64(batch * g.bands))
        first_row = i64(batch * g.rows)
    tile = i64(i64(beside * g.across) + place)
    last_row = i64(first_row + min(i64(i64(band + 1) * g.tile_rows), g.rows))
    top = i64(first_row + i64(i64(band * g.tile_rows) + i64(row_part * g.part_rows)))
    last_column = i64(min(i64(i64(tile + 1) * g.tile_columns), g.columns))
    left = i64(i64(tile * g.tile_columns) + i64(column_part * g.part_columns))
    bottom, right = i64(min(i64(top + g.part_rows), last_row)), i64(min(i64(left + g.part_columns), last_column))
    is_tile = (tile < g.tiles) & (thread_y < g.threads_y)
    return TilePart(
        i64(i64(above * g.tiles) + tile), is_tile, top, bottom, left, right, i64(top + thread_y),
        i64(left + thread_x) if is_tile else right,
    )  # fmt: skip


class Walk(NamedTuple):
    """The elements that one thread processes, row by row.

    Attributes:
      count: number of elements.
      first, column: flat index and column of the first element.
      right: column after the last one that the thread may process.
      threads_x: number of columns from one element to the next.
      span: number of columns to go back at the end of a row.
      jump: number added to the flat index at the end of a row, to reach the thread's next row.
    """

    count: Any
    first: Any
    column: Any
    right: Any
    threads_x: Any
    span: Any
    jump: Any


@scalar
def walk_of(part: TilePart, g: Areas) -> Walk:
    """Return the Walk of a thread: the number and the order of the elements that it processes.

    part: the thread's part of a tile. g: how the array is divided among blocks of threads.
    """
    wide = i64(i64(i64(part.right - part.column) + i64(g.threads_x - 1)) >> g.shift_x)
    high = i64(i64(i64(part.bottom - part.row) + i64(g.threads_y - 1)) >> g.shift_y)
    wide, high = wide if wide > 0 else i64(0), high if high > 0 else i64(0)
    span = i64(wide << g.shift_x)
    return Walk(
        i64(wide * high), i64(i64(part.row * g.columns) + part.column), part.column, part.right, g.threads_x, span,
        i64(i64(g.threads_y * g.columns) - span),
    )  # fmt: skip


@scalar
def step_of(i: Any, column: Any, w: Walk) -> Any:
    """Return (flat index, column) of the element that a thread processes after the one at flat index i in `column`.

    w: a Walk, the order of the thread's elements.
    """
    i, column = i64(i + w.threads_x), i64(column + w.threads_x)
    if column >= w.right:
        i, column = i64(i + w.jump), i64(column - w.span)
    return i, column


@scalar
def batch_of(i: Any, column: Any, left: Any, w: Walk) -> Any:
    """Return the flat indices of a thread's next four elements, then flat index and column of the element after them.

    i, column: flat index and column of the first of the four. left: number of the thread's elements from i on; if fewer
    than four are left, i takes the place of those that are missing. w: a Walk, the order of the thread's elements. The
    four indices come together, so that loads of the four elements can overlap.
    """
    i1, column = step_of(i, column, w)
    i2, column = step_of(i1, column, w)
    i3, column = step_of(i2, column, w)
    i4, column = step_of(i3, column, w)
    return u64(i), u64(i1 if left > 1 else i), u64(i2 if left > 2 else i), u64(i3 if left > 3 else i), i4, column


def block_threads() -> int:
    """Return the number of threads in a block: 256 on a GPU, 4 in numba's simulator."""
    return launch.SIMULATED[1] if is_simulated() else launch.THREADS


def _power(x: int, most: int) -> int:
    """Return the largest power of two that is at most x and at most `most`; 1 if x is below 1."""
    return 1 << min(max(x, 1).bit_length() - 1, most.bit_length() - 1)


def merged(tiling: Tiling) -> Tiling:
    """Return `tiling` with all tiles in a single row if each tile is a contiguous part of memory, else unchanged.

    Tiles are contiguous if they are one row high, and their width divides that of the array.
    """
    if tiling.tile_rows == 1 and tiling.columns and tiling.columns % tiling.tile_columns == 0:
        return tiling._replace(batch=1, rows=1, columns=tiling.batch * tiling.rows * tiling.columns)
    return tiling


@lru_cache(maxsize=4096)
def areas_of(tiling: Tiling, threads: int, *, cut: bool) -> Areas:
    """Return how an array of tiles is divided into areas for blocks of threads; cached.

    tiling: shape of the array and of its tiles. threads: number of threads of a block, a power of two. cut: whether a
    tile may be divided among several blocks.
    """
    tiling = merged(tiling)
    batch, bands, tiles = tiling.tiles
    high, wide = min(tiling.tile_rows, max(tiling.rows, 1)), min(tiling.tile_columns, max(tiling.columns, 1))
    row_parts = column_parts = 1
    if cut:
        part_columns = min(wide, TILE_PART)
        part_rows = min(high, max(TILE_PART // max(part_columns, SEGMENT), 1))
        row_parts, column_parts = -(-high // part_rows), -(-wide // part_columns)
        high, wide = part_rows, part_columns
    if high > 1:
        threads_x = _power(wide, min(threads, SEGMENT))
        threads_y = _power(-(-high // PER_THREAD), threads // min(max(threads_x, SEGMENT), threads))
    else:
        threads_x = _power(max(-(-wide // PER_THREAD), min(wide, NARROW)), threads)
        threads_y = 1
    across = threads // (threads_x * threads_y)
    if column_parts > 1:
        across = 1
    while across > 1 and across // 2 >= tiles:
        across //= 2
    threads_y = _power(high, threads // (threads_x * across))
    groups = max(-(-tiles // across) * column_parts, 1)
    return Areas(
        tiling.rows, tiling.columns, tiling.tile_rows, tiling.tile_columns, max(bands, 1), tiles, high, wide,
        row_parts, column_parts, across, threads_x, threads_y, threads_x.bit_length() - 1,
        threads_y.bit_length() - 1, across.bit_length() - 1, groups,
        batch * bands * row_parts * groups if tiles else 0,
    )  # fmt: skip
