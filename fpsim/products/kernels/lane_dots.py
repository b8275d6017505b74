"""Products without matrix units that have few outputs: vectors hold the lanes of one output, not several outputs.

A lane is one of the partial sums that share an output, as threads of a GPU keep them. Step t of a lane is its t-th
term; all lanes advance together. If consecutive terms belong to consecutive lanes, the terms of a step are contiguous
in memory. Otherwise they are copied to panels, (steps, lanes), in which they are contiguous. In the last step only the
first lanes may have a term.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.products.kernels.lane_rows import LaneFacts
from fpsim.products.kernels.transpose import SIDE, transpose_square
from fpsim.reload import reloadable
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.float_steps import fused

f32, i64, u64 = np.float32, np.int64, np.uint64

WIDTH = 512  # lanes at a time, at most
FOUR = 4  # the shortest run of a lane in cuBLAS, except for single terms
TERMS_AT_ONCE = 4096  # of an operand, at most: they stay in the L1 cache


@reloadable
class DotRoom(NamedTuple):
    """Scratch buffers: terms of both operands in the order of lanes (partial sums), and unfinished sums.

    Attributes:
      x, y: (1, TERMS_AT_ONCE) and (columns, TERMS_AT_ONCE) float32; without elements if consecutive terms belong to
        consecutive lanes.
      chains: (rows, columns, lanes) float32, the running sums of up to WIDTH (512) lanes.
    """

    x: Any
    y: Any
    chains: Any


def room_of(facts: LaneFacts, rows: int, columns: int) -> DotRoom:
    """Return scratch buffers for the partial sums (lanes) of rows * columns outputs; facts: the order of additions."""
    width, terms = min(facts.lanes, WIDTH), TERMS_AT_ONCE if facts.run > 1 else 0
    return DotRoom(np.empty((1, terms), f32), np.empty((columns, terms), f32), np.empty((rows, columns, width), f32))


def _add_rounds(x: Any, y: Any, first: Any, apart: Any, rounds: Any, sums: Any) -> None:
    """Add x[i] * y[i] to sums[l] in place for i = first + l, then first + apart + l, ..., for each lane l.

    A lane is a partial sum, to which `rounds` products are added. x, y, sums: 1-D float32; there are sums.size lanes.
    Each product and addition are one fused multiply-add.
    """
    width = i64(sums.size)
    if width == 1 and apart == 1:
        total, x0, y0 = sums[0], x[first : first + rounds], y[first : first + rounds]
        for i in range(x0.size):
            total = fused(x0[i], y0[i], total)
        sums[0] = total
        return
    fours = i64(rounds // 4 * 4)
    for i in range(0, fours, 4):
        p0 = first + i * apart
        p1, p2, p3 = p0 + apart, p0 + 2 * apart, p0 + 3 * apart
        x0, x1, x2, x3 = x[p0 : p0 + width], x[p1 : p1 + width], x[p2 : p2 + width], x[p3 : p3 + width]
        y0, y1, y2, y3 = y[p0 : p0 + width], y[p1 : p1 + width], y[p2 : p2 + width], y[p3 : p3 + width]
        for j in range(width):
            two = fused(x1[j], y1[j], fused(x0[j], y0[j], sums[j]))
            sums[j] = fused(x3[j], y3[j], fused(x2[j], y2[j], two))
    for i in range(fours, rounds):
        p0 = first + i * apart
        x0, y0 = x[p0 : p0 + width], y[p0 : p0 + width]
        for j in range(width):
            sums[j] = fused(x0[j], y0[j], sums[j])


def _lanes_at(u: LaneFacts, t: Any) -> Any:
    """Return the number of lanes (partial sums of an output) that have a t-th term, counted from 0, as int64.

    These lanes are the first ones. u: the order of the lanes' additions.
    """
    tile = t // u.run * u.run * u.lanes
    return i64(max(min(-((tile + t % u.run - (u.stop - u.start)) // u.run), u.lanes), 0))


def _steps_of(u: LaneFacts, lane: Any) -> Any:
    """Return how many terms lane number `lane` (a partial sum) adds; u: the order of the lanes' additions."""
    tiles, rest = divmod(u.stop - u.start, u.run * u.lanes)
    return i64(tiles * u.run + max(min(rest - lane * u.run, u.run), 0))


def _transpose(rows: Any, step: Any, count: Any, panel: Any) -> None:
    """Set panel[s, l] = rows[l, step + s] for s < count and all l; float32 matrices."""
    high, wide = i64(count // SIDE * SIDE), i64(rows.shape[0] // SIDE * SIDE)
    for lane in range(0, wide, SIDE):
        for s in range(0, high, SIDE):
            transpose_square(rows, lane, step + s, panel, s, lane)
    for lane in range(wide):
        for s in range(high, count):
            panel[s, lane] = rows[lane, step + s]
    for lane in range(wide, rows.shape[0]):
        for s in range(count):
            panel[s, lane] = rows[lane, step + s]


def _deal(terms: Any, p0: Any, p1: Any, p2: Any, p3: Any) -> None:
    """Split a float32 array into four, by index modulo 4.

    p0 gets elements 0, 4, 8, ... of `terms`, p1 elements 1, 5, 9, ..., and so on. Compilers turn this loop into
    shuffles of registers.
    """
    for j in range(terms.size // FOUR):
        i = u64(u64(FOUR) * u64(j))
        p0[j], p1[j] = terms[i], terms[u64(i + u64(1))]
        p2[j], p3[j] = terms[u64(i + u64(2))], terms[u64(i + u64(3))]


_add_rounds, _lanes_at, _steps_of, _transpose, _deal = (
    scalar(_add_rounds), scalar(_lanes_at), scalar(_steps_of), scalar(_transpose), scalar(_deal),
)  # fmt: skip


def _fill_panel(source: Any, u: LaneFacts, lane: Any, t0: Any, t1: Any, missing: Any, panel: Any) -> None:
    """Set panel[t - t0, l] to term t (t0 <= t < t1) of lane `lane` + l, or to `missing` if the lane has no such term.

    A lane is a partial sum; its terms are counted from 0. source: (K,) float32. u: which lane adds which terms. panel:
    (t1 - t0, lanes) float32.
    """
    width, t, step = i64(panel.shape[1]), t0, i64(t0 % u.run)
    first = u.start + (t0 - step) * u.lanes + lane * u.run
    while t < t1:
        count, left = min(u.run - step, t1 - t), max(u.stop - first, i64(0))
        whole = width if left >= width * u.run else i64(left // u.run)  # lanes with all terms of their run
        runs, part = source[first : first + whole * u.run], panel[t - t0 : t - t0 + count]
        if u.run == FOUR and count == FOUR:
            _deal(runs, part[0], part[1], part[2], part[3])
        else:
            _transpose(runs.reshape((whole, u.run)), step, count, part)
        if whole < width:
            rest = source[u.stop - (left - whole * u.run) : u.stop]  # of the lane behind them
            for s in range(count):
                part[s, whole] = rest[step + s] if step + s < rest.size else missing
                for j in range(whole + 1, width):
                    part[s, j] = missing
        t, step = t + count, i64(0)
        first += u.run * u.lanes


def _join(total: Any, chain: Any) -> None:
    """Add chain[j], a running sum, to total[j] for j < total.size, then set all of `chain` to +0; float32 arrays."""
    for j in range(total.size):
        total[j] = f32(total[j] + chain[j])
    for j in range(chain.size):
        chain[j] = f32(0.0)


_fill_panel, _join = scalar(_fill_panel), scalar(_join)


def _add_steps(x: Any, y: Any, first: Any, apart: Any, u: LaneFacts, steps: Any, chain: Any, total: Any) -> None:
    """Add the terms of steps t .. end - 1 to the running sums (chains) of an output's lanes, in place.

    A step is one term of every lane (partial sum). A chain that reaches the length of a chunk is added to `total` and
    starts again at +0. x, y: 1-D float32; the terms of step t begin at element `first`, those of each next step `apart`
    elements later. u: the order of additions. steps: (first lane, t, end). chain, total: (lanes,) float32, changed in
    place.
    """
    (lane, t, end), width = steps, i64(chain.size)
    while t < end:
        stop = min(end, (t // u.chunk + 1) * u.chunk) if u.chunk else end
        have = min(i64(max(_lanes_at(u, stop - 1) - lane, 0)), width) if u.run == 1 else width
        full = i64(stop if have == width else stop - 1)
        _add_rounds(x, y, first, apart, full - t, chain)
        if full < stop:  # panels have terms for all lanes
            _add_rounds(x, y, first + (full - t) * apart, apart, 1, chain[:have])
        if u.chunk and stop % u.chunk == 0:
            _join_chunk(u, lane, stop - u.chunk, chain, total)
        first += (stop - t) * apart
        t = stop


def _join_chunk(u: LaneFacts, lane: Any, t: Any, chain: Any, total: Any) -> None:
    """Add the running sums (chains) of some lanes, begun at step t, to their totals, and start them again at +0.

    u: the order of additions. lane: number of the first of these lanes, partial sums of an output. chain, total:
    (lanes,) float32. If only some lanes have a term at step t, they are the first ones, and only they are added.
    """
    width = i64(chain.size)
    have = width if t < u.chunks * u.chunk else min(_lanes_at(u, t) - lane, width)
    _join(total[:have], chain)


_join_chunk = scalar(_join_chunk)
_add_steps = scalar(_add_steps)


def _add_lanes(x: Any, y: Any, u: LaneFacts, room: DotRoom, at: Any, t: Any, end: Any, out: Any) -> None:
    """Add steps t .. end - 1 of some lanes of outputs to their chains in `room` and their totals in `out`.

    A lane is a partial sum of an output, a step one term of every lane, and a chain the running sum of a lane's chunk.
    x: (M, K), y: (N, K), out: (M, N, lanes) float32. u: the order of additions. at: (m0, m1, n0, n1, first lane, number
    of lanes), for the outputs of rows m0 .. m1 - 1 and columns n0 .. n1 - 1.
    """
    m0, m1, n0, n1, lane, width = at
    if u.run == 1:
        first = u.start + t * u.lanes + lane
        for m in range(m0, m1):
            for n in range(n0, n1):
                chain, total = room.chains[m - m0, n - n0, :width], out[m, n, lane : lane + width]
                _add_steps(x[m], y[n], first, u.lanes, u, (lane, t, end), chain, total)
        return
    size, shape = (end - t) * width, (end - t, width)
    for n in range(n0, n1):
        _fill_panel(y[n], u, lane, t, end, f32(0.0), room.y[n - n0, :size].reshape(shape))
    for m in range(m0, m1):
        # -0 times +0 is -0, which changes no sum
        _fill_panel(x[m], u, lane, t, end, f32(-0.0), room.x[0, :size].reshape(shape))
        for n in range(n0, n1):
            chain, total = room.chains[m - m0, n - n0, :width], out[m, n, lane : lane + width]
            _add_steps(room.x[0], room.y[n - n0], i64(0), width, u, (lane, t, end), chain, total)


def _end_lanes(u: LaneFacts, room: DotRoom, at: Any, steps: Any, out: Any) -> None:
    """Add the running sums (chains) that are unfinished after `steps` steps to the lanes' totals in `out`.

    A step adds one term to every lane (partial sum); lanes without a term add +0. u: the order of additions. room:
    buffers, which hold the chains. at: (m0, m1, n0, n1, first lane, number of lanes) for the outputs of rows m0 .. m1 -
    1 and columns n0 .. n1 - 1. out: (M, N, lanes) float32.
    """
    m0, m1, n0, n1, lane, width = at
    for m in range(m0, m1):
        for n in range(n0, n1):
            chain, total = room.chains[m - m0, n - n0, :width], out[m, n, lane : lane + width]
            if not u.chunk:
                _join(total, chain)
                continue
            if steps % u.chunk:
                _join_chunk(u, lane, steps // u.chunk * u.chunk, chain, total)
            if steps <= (u.chunks - 1) * u.chunk:
                _join(total, chain)  # +0, and once is enough


_add_lanes, _end_lanes = scalar(_add_lanes), scalar(_end_lanes)


@cache
def transposition() -> Any:
    """Return the kernel (source, target) -> None that writes the transpose of `source` to `target`.

    source: (M, N), target: (N, M), float32.
    """

    def transpose(source: Any, target: Any) -> None:
        for n in range(
            0, target.shape[0], SIDE
        ):  # rows of a power of two of terms contend for a few lines of the cache
            _transpose(source, n, min(i64(SIDE), target.shape[0] - n), target[n : n + SIDE])

    return kernel(transpose)


@cache
def lane_sums() -> Any:
    """Return the kernel (x, y, out, facts, room, m0, m1, n0, n1) -> None that writes each lane's sum to `out`.

    A lane is a partial sum of an output. x: (M, K), y: (N, K), out: (M, N, lanes) float32; rows m0 .. m1 - 1 of x and
    n0 .. n1 - 1 of y are multiplied. facts: a LaneFacts, of which the fields on how lanes are joined (merge,
    lanes_start, groups, tile) are not read. room: a DotRoom, scratch buffers for these rows.
    """

    def sums(x: Any, y: Any, out: Any, u: LaneFacts, room: DotRoom, m0: Any, m1: Any, n0: Any, n1: Any) -> None:
        for lane in range(0, u.lanes, WIDTH):
            width: Any = i64(min(WIDTH, u.lanes - lane))
            steps, t = _steps_of(u, lane), i64(0)
            at, most = (m0, m1, n0, n1, lane, width), i64(max(TERMS_AT_ONCE // width, 1))
            room.chains[: m1 - m0] = f32(0.0)
            out[m0:m1, n0:n1, lane : lane + width] = f32(u.chunks_start if u.chunk else -0.0)
            while t < steps:
                end = min(t + most, steps)
                _add_lanes(x, y, u, room, at, t, end, out)
                t = end
            _end_lanes(u, room, at, steps, out)

    return kernel(sums)
