"""oneDNN's estimate of the efficiency of blocks, in float32 arithmetic as its source computes it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fpsim.schedules.libraries.amx.problem import BYTES, FLOATS, LINE, TILE, ceiling, lines, rounded_up
from fpsim.schedules.libraries.amx.walks import BlockWalk, Division, copy_fits

f32 = np.float32
LOAD, MISS, STORE_MISS = f32(106.41), f32(106.41 / 2.28), f32(106.41 / 2.85)  # bytes a cycle of L1, in oneDNN's model
LAST_LEVEL = f32(6.0)  # bytes a cycle of the last cache
MEMORY = ((1, f32(2.28)), (2, f32(0.9)), (4, f32(2.39)), (8, f32(2.98)), (16, f32(3.31)), (32, f32(4.06)))
REDUCTION = f32(25000)  # cycles of starting to add the sums of several threads


def efficiency(walk: BlockWalk) -> np.float32:
    """Return oneDNN's estimate, float32, of how efficient it is to compute a product in the blocks of `walk`.

    oneDNN takes the blocks with the highest estimate. It is the cycles of the multiply-adds alone, divided by the
    cycles with loads and stores; or 0 if threads share K although their sums do not fit L2. walk: sizes of the blocks,
    and the order in which a thread visits them.
    """
    by, product = walk.division, walk.division.product
    m, n, k = product.m, product.n, product.k
    added = _reduction_cycles(by)
    if added is None:
        return f32(0)
    peak = f32(f32(m * k * n) / f32(512 * product.threads))
    return f32(peak / f32(_product_cycles(walk) + added))


def _product_cycles(walk: BlockWalk) -> np.float32:
    """Return oneDNN's estimate, float32, of the cycles that a thread takes to compute all its blocks.

    walk: sizes of the blocks, and the order in which the thread visits them.
    """
    by = walk.division
    side, length = (by.rows, by.n) if walk.across else (by.columns, by.m)
    streamed = f32(length * by.k * BYTES)  # of the operand that is kept in L2
    panel = f32(side * by.k * BYTES)
    result = f32(side * length * (BYTES if by.by_k == 1 else FLOATS))
    first_shared, shared = (by.by_m, by.by_n) if walk.across else (by.by_n, by.by_m)
    tiles = f32(side * by.k * length // (by.tall * by.deep * TILE))
    compute = f32(tiles * f32(by.tall))
    in_l1 = _l1_cycles(walk, panel, streamed)
    if walk.across:
        memory = f32(f32(panel / _memory(shared)) + f32(result / _memory(1)))
        last = f32(f32(result + panel) / LAST_LEVEL)
    else:
        memory, last = f32(result / _memory(1)), f32(result / LAST_LEVEL)
    middle = max(memory, last, in_l1, compute)
    if walk.across:
        copied = f32(streamed / _memory(first_shared))
        first = middle if copy_fits(walk) else f32(streamed / LAST_LEVEL)
        return f32(f32(copied + first) + f32(f32(walk.strips - 1) * middle))
    middle = f32(f32(panel / _memory(shared)) + middle)
    private = f32(side * by.k * BYTES + side * length * (BYTES if by.by_k == 1 else FLOATS))
    first = f32(f32(streamed / _memory(first_shared)) + f32(private / _memory(1)))
    return f32(first + f32(f32(walk.strips - 1) * middle))


def _l1_cycles(walk: BlockWalk, panel: np.float32, streamed: np.float32) -> np.float32:
    """Return oneDNN's estimate of the cycles, float32, of L1's loads and stores for one strip of the result.

    walk: the blocks; a strip is rows of the result if `walk.across`, else columns. panel: bytes of the strip's rows of
    a, or columns of b, which stay in L1. streamed: bytes of the other operand.
    """
    by = walk.division
    rows, columns = (by.rows, walk.wide) if walk.across else (walk.wide, by.columns)
    reuse = f32(ceiling(walk.wide, by.columns if walk.across else by.rows))
    sums = f32(rows * columns)
    kernels = rows * ceiling(columns, by.columns)
    missed = f32(kernels * lines(by.columns))
    hit = f32(f32(kernels * ceiling(by.columns, TILE) * LINE) - missed)
    kept = f32(f32(f32(FLOATS) * sums) * f32(walk.chunk))
    partial = f32(kept / (LOAD if walk.terms == by.product.k else STORE_MISS))
    stored = f32(f32(f32(missed / STORE_MISS) + f32(hit / LOAD)) + f32(f32(sums * f32(FLOATS)) / LOAD))
    loaded = f32(f32(f32(panel * f32(2)) / MISS) + f32(f32(panel * f32(reuse - f32(1))) / LOAD))
    return f32(f32(loaded + f32(streamed / MISS)) + f32(stored + partial))


def _reduction_cycles(by: Division) -> np.float32 | None:
    """Return the estimated cycles, float32, of adding the sums of threads that share K in the division `by`.

    The result is 0 if no threads share K, and None if the sums of a thread don't fit L2.
    """
    product, budget = by.product, by.product.caches.l2_budget
    if by.by_k == 1:
        return f32(0)
    if 2 * by.m * by.n * FLOATS >= budget:
        return None
    read = f32(product.m * rounded_up(product.n, TILE) * FLOATS * (by.by_k - 1) // (by.by_m * by.by_n))
    used = (by.m * by.k + by.n * by.k + by.m * by.n) * BYTES
    read_cycles = f32(read / (_memory(2) if used < budget else LAST_LEVEL))
    written = f32(product.m * product.n * BYTES // (by.by_m * by.by_n))
    return f32(f32(read_cycles + f32(written / _memory(1))) + REDUCTION)


def _memory(cores: int) -> np.float32:
    """Return the bytes per cycle, float32, that memory delivers to `cores` cores that load the same data.

    It is interpolated linearly between the points of MEMORY.
    """
    for (x0, y0), (x1, y1) in pairwise(MEMORY):
        if cores in (x0, x1):
            return y0 if cores == x0 else y1
        if x0 < cores < x1:
            return f32(y0 + f32(f32(f32(y1 - y0) * f32(cores - x0)) / f32(x1 - x0)))
    return MEMORY[-1][1]
