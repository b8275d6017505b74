"""Products with few outputs on threads without matrix units: each output's partial sums (lanes), and their total."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fpsim.products.kernels.lane_dots import WIDTH, lane_sums, room_of, transposition
from fpsim.products.kernels.lane_rows import BLOCKS, BUTTERFLY, LAST, THREADS, WARP, LaneFacts
from fpsim.products.result_parts import MACS
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import over_spans

Floats = npt.NDArray[np.float32]

ROOM = 1 << 16  # most sums of lanes that are computed at a time, unless one row has more
FULL = 8  # lanes that fill a vector; with fewer lanes, contiguous chunks are computed side by side instead


def lane_dots(x: Floats, y: Floats, facts: LaneFacts) -> Floats:
    """Return the dot product of each row of x with each row of y over terms facts.start .. facts.stop - 1 of K.

    x, y: (M, K) and (N, K) float32 in C order. facts: the order of additions of one or more terms: which lane
    (partial sum) adds which terms, and how lanes are joined. The result is (M, N) float32 in C order; a NaN may have
    any pattern.

    Example:
      >>> import numpy as np
      >>> from fpsim.products.kernels.lane_rows import FORWARD, LaneFacts
      >>> from fpsim.products.lane_dots import lane_dots
      >>> x, y = np.float32([[1, 2, 3]]), np.float32([[1, 1, 1], [1, 0, 2]])
      >>> lane_dots(x, y, LaneFacts(2, 1, 0, 1, -0.0, FORWARD, -0.0, 1, 3, 0, 3, 0)).tolist()
      [[6.0, 7.0]]
    """
    m, n = len(x), len(y)
    total, terms = np.empty((m, n), np.float32), facts.stop - facts.start

    def work(m0: int, m1: int, n0: int, n1: int) -> None:
        with ieee_arithmetic(), np.errstate(all="ignore"):  # NaN and Inf are regular results
            rows = max(ROOM // (facts.lanes * (n1 - n0)), 1)
            for m in range(m0, m1, rows):
                part = np.s_[m : min(m + rows, m1)]
                total[part, n0:n1] = _dots(x[part], y[n0:n1], facts)

    if m >= n:
        over_spans(m, lambda first, last: work(first, last, 0, n), 1, weight=n * terms / MACS)
    else:
        over_spans(n, lambda first, last: work(0, m, first, last), 1, weight=m * terms / MACS)
    return total


def transposed(b: Floats) -> Floats:
    """Return the transpose of a C-ordered float32 matrix as a C-ordered copy (a view if b has one column)."""
    if b.shape[1] == 1:
        return b.reshape(1, -1)
    target = np.empty(b.shape[::-1], np.float32)
    transposition()(b, target)
    return target


def _dots(x: Floats, y: Floats, u: LaneFacts) -> Floats:
    """Return the dot product of each row of x with each row of y, computed on this thread alone.

    x: (m, K) float32. y: (n, K) float32. u: the order of additions. Result: (m, n) float32.
    """
    if u.merge == BLOCKS:
        return _blocks_joined(x, y, u)
    contiguous = u.lanes * u.run >= u.stop - u.start
    lanes = _sums_by_chunks(x, y, u) if u.chunk and contiguous and u.lanes < FULL else _sums(x, y, u)
    if u.merge == BUTTERFLY:
        lanes = _halved(lanes, 1)
    total = np.full(lanes.shape[:-1], u.lanes_start, np.float32)
    for lane in range(lanes.shape[-1]):
        total += lanes[..., lane]
    return total


def _sums(x: Floats, y: Floats, u: LaneFacts) -> Floats:
    """Return the sum of every lane (partial sum) of the dot products of rows of x with rows of y.

    x: (m, K) float32. y: (n, K) float32. u: the order of additions. Result: (m, n, lanes) float32.
    """
    m, n = len(x), len(y)
    u = u._replace(run=1) if u.lanes == 1 else u  # a lane alone has its terms side by side
    out = np.empty((m, n, u.lanes), np.float32)
    rows = min(max(ROOM // (min(u.lanes, WIDTH) * n), 1), m)
    run, room = lane_sums(), room_of(u, rows, n)
    for first in range(0, m, rows):
        run(x, y, out, u, room, first, min(first + rows, m), 0, n)
    return out


def _sums_by_chunks(x: Floats, y: Floats, u: LaneFacts) -> Floats:
    """Return the sum of every lane (partial sum), (m, n, lanes) float32, for lanes with contiguous terms in chunks.

    Lane i adds the u.run terms from u.start + i * u.run on. Each chunk of u.chunk of these terms is summed separately;
    then the lane adds the sums of its chunks in order, from u.chunks_start. x: (m, K) float32. y: (n, K) float32. u:
    the order of additions.
    """
    out = np.empty((len(x), len(y), u.lanes), np.float32)
    for lane in range(u.lanes):
        start = min(u.start + lane * u.run, u.stop)
        stop = min(start + u.run, u.stop)
        count = max(-(-(stop - start) // u.chunk), u.chunks)
        chunks = u._replace(lanes=count, run=u.chunk, chunk=0, chunks=1, start=start, stop=stop)
        parts = _sums(x, y, chunks)  # (m, n, chunks)
        parts[..., 0] += np.float32(u.chunks_start)
        out[..., lane] = np.add.accumulate(parts, axis=-1, out=parts)[..., -1]  # in order, unlike np.sum
    return out


def _halved(sums: Floats, left: int) -> Floats:
    """Return sums after repeatedly adding the upper half of the last axis to the lower half, down to length `left`.

    left and the length are powers of two.
    """
    half = sums.shape[-1] // 2
    while half >= left:
        sums = sums[..., :half] + sums[..., half : 2 * half]
        half //= 2
    return sums


def _blocks_joined(x: Floats, y: Floats, u: LaneFacts) -> Floats:
    """Return dot products as cuBLAS's dot_kernel and reduce_1Block_kernel add them (docs/schedules.md), (m, n) float32.

    x: (m, K), y: (n, K). In `u`, groups are thread blocks of 128 threads, and lanes are the chains of additions of a
    block's threads. The order, where "by halves" adds the upper half of the sums to the lower half:

    1. A thread adds its chains in order. A block adds its threads' sums by halves to one sum, and adds that to the zero
       u.lanes_start (+0 or -0).
    2. The sum of block i is added to that of block i mod 128, for ascending i. Missing blocks count as +0.
    3. These 128 sums are added by halves down to 32. Sums i, i + 4, ..., i + 28 are added in order for i = 0 to 3, and
       then the four results in order.
    """
    groups = min(u.groups, -(-(u.stop - u.start) // u.tile))  # those that have terms
    sums = _sums(x, y, u._replace(lanes=groups * u.lanes))
    sums = sums.reshape((*sums.shape[:2], groups, THREADS, -1))
    threads = sums[..., 0]
    for chain in range(1, sums.shape[-1]):
        threads = threads + sums[..., chain]
    parts = np.zeros((*sums.shape[:2], max(u.groups, THREADS)), np.float32)
    parts[..., :groups] = np.float32(u.lanes_start) + _halved(threads, 1)[..., 0]
    q = parts[..., :THREADS]
    for first in range(THREADS, u.groups, THREADS):
        more = parts[..., first : first + THREADS]
        q[..., : more.shape[-1]] += more
    q = _halved(q, WARP)
    last = q[..., :LAST]
    for first in range(LAST, WARP, LAST):
        last = last + q[..., first : first + LAST]
    total = last[..., 0]
    for i in range(1, LAST):
        total = total + last[..., i]
    return total
