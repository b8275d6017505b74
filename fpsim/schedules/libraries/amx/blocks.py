"""The segments into which oneDNN cuts K in a product of BF16 or FP16 by AMX: the choice among its rules."""

from __future__ import annotations

from functools import lru_cache

from fpsim.schedules.libraries.amx.chunks import chunk_blocks
from fpsim.schedules.libraries.amx.cycles import efficiency
from fpsim.schedules.libraries.amx.problem import (
    BLOCK,
    BYTES,
    SOURCE,
    TILE,
    AmxProduct,
    Caches,
    KBlocks,
    ceiling,
    divides,
    rounded_up,
    shares,
    takes_amx,
)
from fpsim.schedules.libraries.amx.walks import BlockWalk, divisions, walk_of

__all__ = ["SOURCE", "AmxProduct", "Caches", "amx_blocks"]

FEW_ROWS = 3  # kernels of columns from which odd operands are copied
COPIED = 128  # terms from which they are


@lru_cache(maxsize=4096)
def amx_blocks(product: AmxProduct) -> KBlocks | None:
    """Return the segments into which oneDNN cuts K of a product by AMX.

    oneDNN multiplies blocks of a by blocks of b, whose sizes it chooses so that the blocks and their results fit the L1
    or L2 cache. Return None if no sizes fit. product: an AmxProduct (sizes, layouts, threads and caches).

    The example has products with (m, n, k) = (72, 93, 1413) on one thread and (64, 64, 4096) on two; no operand is
    transposed. `.lengths` are the terms of each segment; `.parts` are the numbers of segments that each thread adds, ()
    if threads do not share K.

    Example:
      >>> from fpsim.schedules.libraries.amx.blocks import AmxProduct, Caches, amx_blocks
      >>> caches = Caches(48 << 10, 2 << 20)
      >>> amx_blocks(AmxProduct(72, 93, 1413, False, False, 1, caches)).lengths
      (480, 480, 453)
      >>> two = amx_blocks(AmxProduct(64, 64, 4096, False, False, 2, caches))
      >>> two.lengths, two.parts
      ((2048, 2048), (1, 1))
    """
    if not (product.caches.l1_budget and product.caches.l2_budget):
        return None
    if product.m == 1 or product.a_turned:
        return chunk_blocks(product)
    narrow = _narrow_rows(product)
    if narrow:
        return _listed(product, (product.k,), (), narrow, False)
    walk = _best_walk(product)
    if walk is None:
        return None
    by = walk.division
    step = walk.terms * walk.chunk
    chunks = ceiling(product.k, step)
    lengths = tuple(min(walk.terms, product.k - start) for start in range(0, product.k, walk.terms))
    parts: tuple[int, ...] = ()
    if by.by_k > 1 and chunks > 1:
        stop, counts = 0, []
        for count in shares(chunks, by.by_k):
            start, stop = stop, min(stop + count * walk.chunk, len(lengths))
            counts.append(stop - start)
        parts = tuple(count for count in counts if count)
    copied = walk.across and walk.wide >= FEW_ROWS * by.columns and walk.terms >= COPIED
    return _listed(product, lengths, parts, by.rows, copied)


def _listed(product: AmxProduct, lengths: tuple[int, ...], parts: tuple[int, ...], rows: int, copied: bool) -> KBlocks:
    """Return the KBlocks of a product whose K is cut into segments with the given lengths.

    parts: number of segments that each thread adds; () if threads don't share K. rows: rows of a block of a. copied:
    True if oneDNN copies a when K is no multiple of 32; all but the last instruction of a segment then have 32 terms.
    """
    equal = not copied and product.k % BLOCK != 0 and all(map(divides, {lengths[0], lengths[-1]}))
    return KBlocks(lengths, parts, equal, takes_amx(product, BYTES * rows * product.k, lengths[0]))


def _narrow_rows(product: AmxProduct) -> int:
    """Return the number of rows in a block of a if oneDNN does not cut K of `product`; 0 if it may.

    It does not in three cases, if at least 3/4 of the threads then have work: M <= 32 with a transposed b, where M * K
    must not exceed L2's budget (oneDNN compares this number of elements with bytes); else K <= 32; else N <= 32.
    """
    m, n, threads = product.m, product.n, product.threads
    most = 0.75 * threads  # threads that must have work
    if m <= BLOCK and product.b_turned:
        wide = rounded_up(ceiling(n, threads), min(n, BLOCK))
        return m if ceiling(n, wide) >= most and m * product.k <= product.caches.l2_budget else 0
    part = ceiling(m, threads)
    if product.k <= BLOCK:
        tall = ceiling(part, ceiling(part, TILE))
        return min(m, 2 * tall) if ceiling(m, part) >= most else 0
    if n <= BLOCK:
        rows = ceiling(part, ceiling(part, BLOCK))
        return rows if ceiling(m, rounded_up(part, rows)) >= most else 0
    return 0


def _best_walk(product: AmxProduct) -> BlockWalk | None:
    """Return the blocks of a product that oneDNN estimates as most efficient, over all divisions among threads.

    None if no blocks fit the caches.
    """
    best: BlockWalk | None = None
    for by in divisions(product):
        best = _better(walk_of(by), best)
    if best is None or product.b_turned or best.across:
        return best
    # b is copied: walks across are tried too, with the kernels of the division that was tried last
    by = best.division._replace(tall=by.tall, rows=by.rows, columns=by.columns)
    for keeps_copy in (False, True):
        best = _better(walk_of(by, across_only=True, keeps_copy=keeps_copy), best)
    return best


def _better(walk: BlockWalk | None, best: BlockWalk | None) -> BlockWalk | None:
    """Return the BlockWalk that oneDNN prefers: `walk`, or `best`, its choice so far.

    If one of them is None (no blocks fit), the result is the other.
    """
    if walk is None or best is None:
        return walk or best
    score, least = efficiency(walk), efficiency(best)
    return walk if score > least or (score == least and _wins_tie(walk, best)) else best


def _wins_tie(walk: BlockWalk, best: BlockWalk) -> bool:
    """Return whether oneDNN prefers the blocks `walk` to `best` if both have the same estimated efficiency."""
    if walk.across != best.across:
        across, down = (walk, best) if walk.across else (best, walk)
        by = down.division
        uses_l2 = by.m * (by.product.k + by.product.n) < by.product.caches.l2_budget
        return (uses_l2 and across.streams_a) != walk.across
    return walk.strips > best.strips
