"""Products without matrix units: the lanes that share an output, their chunks, and how the lanes are joined.

A lane is one of the partial sums that share an output, as threads of a GPU keep them. A tile is a block of rows by
PANEL_COLUMNS adjacent outputs. Every lane has PANEL_COLUMNS sums per row of the tile. Terms are added in ascending
order, a panel (64 terms of the second operand) at a time, each to the sums of its lane. Operands and sums are float32.
Every product and its addition are one fused multiply-add.

A total that starts at its first part starts at -0, as -0 + x is x for every x; any other total starts at +0.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.products.kernels.transpose import SIDE, transpose_square
from fpsim.reload import reloadable
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.float_steps import fused

f32, i64 = np.float32, np.int64

FORWARD, BUTTERFLY, BLOCKS = range(3)  # how lanes are joined
THREADS = 128  # of a block of cuBLAS's dot_kernel and of its reduce_1Block_kernel (docs/schedules.md)
WARP, LAST = 32, 4  # sums that reduce_1Block_kernel still has after its butterfly, and after the chains behind it
TERMS = 64  # of a panel, which stays in the L1 cache for all rows


@reloadable
class LaneFacts(NamedTuple):
    """The order of additions of one slice of K: groups of lanes (partial sums of an output) that take turns over tiles.

    A tile is a block of consecutive terms. Only merges by BLOCKS have several groups and tiles.

    Attributes:
      lanes: lanes of a group.
      run: consecutive terms that a lane adds before the next lane's turn.
      chunk: terms that a lane adds up before that sum (chain) is added to the lane's total and starts again; 0 if each
        lane has one chain.
      chunks: the least number of chains of a lane; those without terms add +0.
      chunks_start, lanes_start: the start of a lane's total, and of the sum of the lanes: +0, or -0 to keep the first
        part unchanged.
      merge: how lanes are joined: FORWARD, one after the other; BUTTERFLY, the upper half added to the lower half until
        one is left; BLOCKS, as cuBLAS's dot_kernel and reduce_1Block_kernel do (see `_merge` and `_reduce_block`).
      groups: number of groups.
      tile: terms of a tile.
      start, stop: the terms of K in the slice, start .. stop - 1.
      transposed: 1 if the second operand of `lane_product` is (N, K), 0 if it is (K, N).
    """

    lanes: int
    run: int
    chunk: int
    chunks: int
    chunks_start: float
    merge: int
    lanes_start: float
    groups: int
    tile: int
    start: int
    stop: int
    transposed: int


@reloadable
class RowRoom(NamedTuple):
    """Scratch buffers for a block of outputs, float32 and for counts int64.

    Attributes:
      panel: (TERMS, PANEL_COLUMNS), terms of the second operand.
      chains: (rows, lanes, PANEL_COLUMNS), the running sum (chain) of each lane.
      totals: of the same shape, the sums of finished chains; (rows, 1, PANEL_COLUMNS) if lanes have one chain.
      terms, closed: (lanes,) counts of the terms in a lane's running chain, and of its finished chains.
      groups: (rows, groups, PANEL_COLUMNS), for each group of lanes the sum of its lanes.
    """

    panel: Any
    chains: Any
    totals: Any
    terms: Any
    closed: Any
    groups: Any


def room_of(facts: LaneFacts, rows: int) -> RowRoom:
    """Return scratch buffers for a block of `rows` by PANEL_COLUMNS outputs.

    facts: the order of additions of the outputs' partial sums (lanes).
    """
    closed = facts.lanes if facts.chunk else 1
    groups = max(facts.groups, THREADS) if facts.merge == BLOCKS else 1
    return RowRoom(
        np.zeros((TERMS, PANEL_COLUMNS), f32), np.empty((rows, facts.lanes, PANEL_COLUMNS), f32),
        np.empty((rows, closed, PANEL_COLUMNS), f32), np.empty(facts.lanes, i64), np.empty(facts.lanes, i64),
        np.empty((rows, groups, PANEL_COLUMNS), f32),
    )  # fmt: skip


def _add_terms(x: Any, panel: Any, sums: Any) -> None:
    """Add x[i] * panel[i, j] to sums[j] for all terms i in order, by fused multiply-adds.

    x: (terms,), panel: (terms, PANEL_COLUMNS), sums: (PANEL_COLUMNS,), float32.
    """
    fours = i64(x.size // 4 * 4)
    for i in range(0, fours, 4):
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        y0, y1, y2, y3 = panel[i], panel[i + 1], panel[i + 2], panel[i + 3]
        for j in range(PANEL_COLUMNS):
            two = fused(x1, y1[j], fused(x0, y0[j], sums[j]))
            sums[j] = fused(x3, y3[j], fused(x2, y2[j], two))
    for i in range(fours, x.size):
        x0, y0 = x[i], panel[i]
        for j in range(PANEL_COLUMNS):
            sums[j] = fused(x0, y0[j], sums[j])


def _add_row(total: Any, part: Any) -> None:
    """Add `part` to `total` in place, both (PANEL_COLUMNS,) float32."""
    for j in range(PANEL_COLUMNS):
        total[j] = f32(total[j] + part[j])


def _fill_rows(rows: Any, value: Any) -> None:
    """Set all elements of `rows`, (count, PANEL_COLUMNS) float32, to `value`."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(PANEL_COLUMNS):
            row[j] = value


def _fill_panel(source: Any, k: Any, terms: Any, n: Any, width: Any, transposed: Any, panel: Any) -> None:
    """Copy terms k .. k + terms - 1 of outputs n .. n + width - 1 to `panel` (TERMS, PANEL_COLUMNS).

    The copy is the upper left corner of `panel`; other elements do not change. source: (K, N) float32, or (N, K) if
    `transposed`.
    """
    if not transposed:
        for i in range(terms):
            row, x = panel[i], source[k + i, n : n + width]
            for j in range(width):
                row[j] = x[j]
        return
    high, wide = i64(terms // SIDE * SIDE), i64(width // SIDE * SIDE)
    for j in range(0, wide, SIDE):
        for i in range(0, high, SIDE):
            transpose_square(source, n + j, k + i, panel, i, j)
    for j in range(width):
        for i in range(high if j < wide else 0, terms):
            panel[i, j] = source[n + j, k + i]


_add_terms, _add_row, _fill_rows, _fill_panel = (
    scalar(_add_terms), scalar(_add_row), scalar(_fill_rows), scalar(_fill_panel),
)  # fmt: skip


def _close(room: RowRoom, rows: Any, lane: Any) -> None:
    """Add the running sum (chain) of a lane to the lane's total, and start the chain again at +0, in `rows` rows.

    room: the buffers that hold chains, totals and the counts of finished chains, to which 1 is added. lane: number of
    the lane, a partial sum of every output.
    """
    for r in range(rows):
        chain, total = room.chains[r, lane], room.totals[r, lane]
        for j in range(PANEL_COLUMNS):
            total[j] = f32(total[j] + chain[j])
            chain[j] = f32(0.0)
    room.closed[lane] += 1
    room.terms[lane] = 0


_close = scalar(_close)


def _add_tile(x: Any, source: Any, room: RowRoom, u: LaneFacts, n: Any, width: Any, k0: Any, k1: Any) -> None:
    """Add the products of terms k0 .. k1 - 1 to the running sums (chains) of their lanes; term k0 belongs to lane 0.

    A lane is a partial sum of an output. x: (rows, K) float32. source: (K, N) float32, or (N, K) if u.transposed; its
    outputs n .. n + width - 1 are used. room: the buffers that hold the chains, which change. u: the order of
    additions.
    """
    panel, rows, lane, left = room.panel, x.shape[0], i64(0), u.run
    for k in range(k0, k1, TERMS):
        count = min(TERMS, k1 - k)
        _fill_panel(source, k, count, n, width, u.transposed, panel)
        i = i64(0)
        while i < count:
            part = min(left, count - i)
            if u.chunk:
                if room.terms[lane] == u.chunk:
                    _close(room, rows, lane)
                part = min(part, u.chunk - room.terms[lane])
                room.terms[lane] += part
            for r in range(rows):
                _add_terms(x[r, k + i : k + i + part], panel[i : i + part], room.chains[r, lane])
            i += part
            left -= part
            if left == 0:
                lane, left = i64(0) if lane + 1 == u.lanes else i64(lane + 1), u.run


def _close_all(room: RowRoom, rows: Any, u: LaneFacts) -> None:
    """Add the running sum (chain) of every lane to the lane's total, in the first `rows` rows of the buffers in `room`.

    A lane is a partial sum of every output. One that has ended fewer than u.chunks chains adds +0 for each missing one.
    """
    for lane in range(u.lanes):
        while room.terms[lane] or room.closed[lane] < u.chunks:
            _close(room, rows, lane)


def _halve(sums: Any, count: Any, left: Any, step: Any) -> None:
    """Add the upper half of the rows 0, step, 2 * step, ... of `sums` to the lower half, until `left` rows are left.

    sums: (rows, PANEL_COLUMNS) float32. count: number of these rows, a power of two.
    """
    half = i64(count // 2)
    while half >= left:
        for i in range(half):
            _add_row(sums[i * step], sums[(i + half) * step])
        half = i64(half // 2)


_add_tile, _close_all, _halve = scalar(_add_tile), scalar(_close_all), scalar(_halve)


def _merge(sums: Any, u: LaneFacts, total: Any) -> None:
    """Add the lanes (partial sums) of a group to `total` (PANEL_COLUMNS,), in the order of u.merge.

    FORWARD adds one lane after the other to `total`. BUTTERFLY adds the upper half of the lanes to the lower half until
    one is left, and adds that. BLOCKS first adds up every lanes / THREADS adjacent lanes, the sum of a thread, and then
    does as BUTTERFLY. sums: (lanes, PANEL_COLUMNS) float32, overwritten.
    """
    # a thread of dot_kernel adds its chains to +0; that the total starts there has the same effect
    chains = i64(u.lanes // THREADS) if u.merge == BLOCKS else i64(1)
    for t in range(0, u.lanes, chains):
        for s in range(1, chains):
            _add_row(sums[t], sums[t + s])
    left = u.lanes if u.merge == FORWARD else i64(1)
    _halve(sums, u.lanes // chains, left, chains)
    for lane in range(left):
        _add_row(total, sums[lane])


def _reduce_block(sums: Any, groups: Any) -> None:
    """Add up the sums of groups into sums[0], in the order of cuBLAS's reduce_1Block_kernel.

    Row g >= 128 is added to row g % 128; the upper half of the 128 rows to the lower half, until 32 are left; row g of
    4 .. 31 to row g % 4; rows 1 .. 3 to row 0. sums: (max(groups, 128), PANEL_COLUMNS) float32, overwritten.
    """
    for g in range(THREADS, groups):
        _add_row(sums[g % THREADS], sums[g])
    _halve(sums, i64(THREADS), i64(WARP), i64(1))
    for g in range(LAST, WARP):
        _add_row(sums[g % LAST], sums[g])
    for g in range(1, LAST):
        _add_row(sums[0], sums[g])


_merge, _reduce_block = scalar(_merge), scalar(_reduce_block)


@cache
def lane_product() -> Any:
    """Return the kernel (x, source, out, facts, room, m0, m1, n0, n1) -> None that writes x @ source to `out`.

    Only terms facts.start .. facts.stop - 1 of K are added, as GPU threads without matrix units add them: each output
    is computed by several lanes (partial sums), which are then joined. Every multiply-add is one rounding to float32.

    x, source, out: float32 matrices: (M, K); (K, N), or (N, K) if facts.transposed; (M, N). Only rows m0 .. m1 - 1 and
    columns n0 .. n1 - 1 are written; n0 is a multiple of PANEL_COLUMNS (128). facts: a LaneFacts, the order of
    additions. room: a RowRoom, scratch arrays.
    """

    def product(x: Any, source: Any, out: Any, u: Any, room: Any, m0: Any, m1: Any, n0: Any, n1: Any) -> None:
        row_block = room.groups.shape[0]
        for n in range(n0, n1, PANEL_COLUMNS):
            width = min(PANEL_COLUMNS, n1 - n)
            for m in range(m0, m1, row_block):
                rows = min(row_block, m1 - m)
                for r in range(rows):
                    _fill_rows(room.groups[r], f32(0.0 if u.stop == u.start else u.lanes_start))
                for g in range(min(u.groups, -(-(u.stop - u.start) // u.tile))):  # those that have terms
                    for lane in range(u.lanes):
                        room.terms[lane], room.closed[lane] = 0, 0
                    for r in range(rows):
                        _fill_rows(room.chains[r], f32(0.0))
                        _fill_rows(room.totals[r], f32(u.chunks_start))
                    for k in range(u.start + g * u.tile, u.stop, u.groups * u.tile):
                        _add_tile(x[m : m + rows], source, room, u, n, width, k, min(k + u.tile, u.stop))
                    if u.chunk:
                        _close_all(room, rows, u)
                    for r in range(rows):
                        _merge(room.totals[r] if u.chunk else room.chains[r], u, room.groups[r, g])
                for r in range(rows):
                    if u.merge == BLOCKS:
                        _reduce_block(room.groups[r], u.groups)
                    total, row = room.groups[r, 0], out[m + r]
                    for j in range(width):
                        row[n + j] = total[j]

    return kernel(product)
