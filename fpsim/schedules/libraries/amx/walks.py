"""The blocks that oneDNN considers for products by AMX of two or more rows and columns, with a in C order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fpsim.schedules.libraries.amx.problem import (
    BLOCK,
    BYTES,
    FLOATS,
    PAGE,
    TILE,
    WAYS,
    AmxProduct,
    ceiling,
    lines,
    rounded_up,
)

LEAST_K, LEAST_SIDE = 256 // BYTES, 64 // BYTES  # terms, and rows or columns, of a thread
LEAST_COLUMNS = 256 // BYTES  # of a thread, where it adds fewer than LEAST_K terms


class Division(NamedTuple):
    """A division of a product among threads, and the sizes of a tile and of a kernel.

    Attributes:
      product: the product.
      by_m, by_k, by_n: numbers of parts into which M, K and N are cut; by_m * by_k * by_n threads compute one
        combination of parts each.
      tall: rows of a tile (a register of AMX).
      rows, columns: rows and columns of the result that a kernel computes at a time, at most two tiles each.
    """

    product: AmxProduct
    by_m: int
    by_k: int
    by_n: int
    tall: int
    rows: int
    columns: int

    @property
    def m(self) -> int:
        """Number of rows of the result that a thread computes."""
        return ceiling(self.product.m, self.by_m)

    @property
    def k(self) -> int:
        """Number of terms of K that a thread adds."""
        return ceiling(self.product.k, self.by_k)

    @property
    def n(self) -> int:
        """Number of columns of the result that a thread computes."""
        return ceiling(self.product.n, self.by_n)

    @property
    def deep(self) -> int:
        """Terms of K in a tile: 32, or all of a shorter K."""
        return min(BLOCK, self.product.k)


class BlockWalk(NamedTuple):
    """The sizes of the blocks of a product that oneDNN computes with AMX, and the order in which a thread visits them.

    Attributes:
      division: the division of the product among threads.
      across: True if blocks are visited row by row, False if column by column.
      terms: number of terms of K in a block; each block of K is one segment.
      chunk: number of blocks of K that stay in the L2 cache together.
      wide: number of columns of b (if `across`) or rows of a that stay in L2.
      streams_a: True if a kernel's rows of a do not fit L1 with all K terms.
    """

    division: Division
    across: bool
    terms: int
    chunk: int
    wide: int
    streams_a: bool

    @property
    def strips(self) -> int:
        """Number of strips of the result, of rows if `across`, else of columns, that a thread visits one by one."""
        by = self.division
        return ceiling(by.m, by.rows) if self.across else ceiling(by.n, by.columns)


def divisions(product: AmxProduct) -> Iterator[Division]:
    """Yield the divisions of a product among threads that oneDNN tries, in the order in which it tries them.

    A Division cuts M, N and K into parts; each thread computes one combination of parts. Divisions among all
    product.threads threads come first, then those among fewer.
    """
    for threads in range(product.threads, 0, -1):
        for by_m in (i for i in range(1, threads + 1) if threads % i == 0):
            left = threads // by_m
            part = ceiling(product.m, by_m)
            tall = ceiling(part, ceiling(part, TILE))
            for by_k in (i for i in range(1, left + 1) if left % i == 0):
                kernel = min(product.m, 2 * tall), min(product.n, BLOCK)
                by = Division(product, by_m, by_k, left // by_k, tall, *kernel)
                narrowest = LEAST_COLUMNS if by_k == 1 and by.k < LEAST_K else LEAST_SIDE
                lacks_rows = by_m > 1 and rounded_up(by.m, tall) < LEAST_SIDE
                lacks_columns = by.by_n > 1 and rounded_up(by.n, TILE) < narrowest
                if not (lacks_rows or lacks_columns or (by_k > 1 and by.k < LEAST_K)):
                    yield by


def walk_of(by: Division, *, across_only: bool = False, keeps_copy: bool = False) -> BlockWalk | None:
    """Return the blocks that oneDNN chooses for a division of a product among threads.

    None if no blocks fit the caches, or all would leave a thread without work. by: the division. across_only: True
    leaves out orders that visit blocks column by column. keeps_copy: True counts a copy of b's block in L2.
    """
    along_a, along_b = _fitting(by, by.rows), _fitting(by, by.columns)
    if not along_a or not along_b:
        return None
    across = _best_across(by, along_a, keeps_copy=keeps_copy)
    across = across if across is not None and _is_shared_out(by, True, along_a, across) else None
    down = None if across_only else _best_down(by, along_b)
    if down is None and across is None:
        return None
    prefers_across = by.m < 2 * by.tall or by.m >= by.n >= 2 * TILE
    if across is not None and (down is None or prefers_across):
        return _across(by, along_a, across, keeps_copy)
    assert down is not None
    rows = min(down[1] * by.rows, by.product.m)
    return BlockWalk(by, False, along_b, down[0], rows, True)


def _fitting(by: Division, side: int) -> int:
    """Return the number of terms of K in the longest block that fits the L1 cache; 0 if none does.

    L1 must hold `side` rows of a, or columns of b, over these terms, and the result of a kernel. by: the division of
    the product among threads.
    """
    sums = by.rows * by.columns * FLOATS
    space = by.product.caches.l1_budget - 2 * sums - by.rows * lines(by.columns)
    tiles = space // (side * BYTES) // by.deep
    if tiles < 1:
        return 0
    whole = ceiling(ceiling(by.product.k, by.deep), by.by_k)
    return min(ceiling(whole, ceiling(whole, tiles)) * by.deep, by.product.k)


def _best_across(by: Division, terms: int, *, least: int = 0, keeps_copy: bool = False) -> tuple[int, int] | None:
    """Return the chunk of blocks with the most multiply-adds per byte moved, for blocks visited row by row.

    A chunk is (blocks of K, number of kernels along the columns). The result is None if no chunk fits the L2 cache, or
    if a thread would have no rows or terms. by: the division of the product among threads. terms: terms of K in a
    block. least: the fewest blocks of K that are allowed. keeps_copy: True counts a copy of b's block in L2.
    """
    product = by.product
    if rounded_up(by.m, by.rows) * (by.by_m - 1) >= product.m or rounded_up(by.k, terms) * (by.by_k - 1) >= product.k:
        return None
    return _best_chunk(by, True, terms, least=least, keeps_copy=keeps_copy)


def _best_down(by: Division, terms: int) -> tuple[int, int] | None:
    """Return the chunk of blocks with the most multiply-adds per byte moved, for blocks visited column by column.

    A chunk is (blocks of K, number of kernels along the rows). The result is None where oneDNN does not visit blocks
    column by column: no chunk fits the L2 cache; a thread would have no work; K needs several chunks, unless each of
    the threads that share K has one and these fit L2 together; or the rows of the result, whose distance in bytes
    modulo 4096 divides the size of a way of L2, would take 3/4 of the ways.
    by: the division of the product among threads. terms: terms of K in a block.
    """
    product, budget = by.product, by.product.caches.l2_budget
    if (
        rounded_up(by.n, by.columns) * (by.by_n - 1) >= product.n
        or rounded_up(by.k, terms) * (by.by_k - 1) >= product.k
    ):
        return None
    chunk = _best_chunk(by, False, terms)
    if chunk is None or not _is_shared_out(by, False, terms, chunk):
        return None
    blocks, rows = chunk[0], chunk[1] * by.rows
    used = _all_bytes(by, False, terms, (blocks, rows))
    used = used if used <= budget else _l2_bytes(by, False, terms, (blocks, rows))
    chunks = ceiling(product.k, terms * blocks)
    if chunks != 1 and (chunks != by.by_k or used * by.by_k >= budget):
        return None
    sets = product.caches.l2 // WAYS
    stride = product.n * BYTES % PAGE or PAGE
    crowds = sets % stride == 0 and ceiling(stride * by.m, sets) >= 3 * WAYS // 4
    return None if crowds else chunk


def _is_shared_out(by: Division, across: bool, terms: int, chunk: tuple[int, int]) -> bool:
    """Return whether every thread gets work if each thread's part of the product is rounded up to whole chunks.

    by: the division of M, N and K among the threads. across: True if a thread visits its blocks of the result row by
    row; chunks then extend along the columns, otherwise along the rows. terms: terms of K in a block. chunk: (number of
    blocks of K, number of kernels along the columns or rows). A kernel computes by.rows x by.columns results at a time.
    """
    side, parts, size = (by.n, by.by_n, by.product.n) if across else (by.m, by.by_m, by.product.m)
    wide = chunk[1] * (by.columns if across else by.rows)
    has_sides = rounded_up(side, wide) * (parts - 1) < size
    return has_sides and rounded_up(by.k, chunk[0] * terms) * (by.by_k - 1) < by.product.k


def _across(by: Division, terms: int, chunk: tuple[int, int], keeps_copy: bool) -> BlockWalk | None:
    """Return the BlockWalk (sizes of blocks) of a thread that visits its blocks row by row; None if none fits L2.

    A block has `terms` terms of K if L1 holds a kernel's rows of a with all K terms; otherwise L2 decides the number.
    by: the division of the product among threads. terms: the most terms of a block that fits L1. chunk: (blocks of K,
    number of kernels along the columns), as `_best_across` returns it. keeps_copy: True counts a copy of b's block in
    L2.
    """
    product = by.product
    panel = terms * by.rows * BYTES * ceiling(product.k, terms)
    result = 2 * by.columns * by.rows * FLOATS + by.rows * lines(by.columns)
    if terms >= product.k or panel + result <= product.caches.l1_budget:
        return BlockWalk(by, True, terms, chunk[0], min(chunk[1] * by.columns, product.n), False)
    other = _best_across(by, BLOCK, least=terms // BLOCK, keeps_copy=keeps_copy)
    if other is None:
        return None
    return BlockWalk(by, True, min(BLOCK * other[0], product.k), 1, min(other[1] * by.columns, product.n), True)


def _best_chunk(
    by: Division, across: bool, terms: int, *, least: int = 0, keeps_copy: bool = False
) -> tuple[int, int] | None:
    """Return the chunk of blocks with the most multiply-adds per byte moved; None if none fits L2.

    A chunk is (blocks of K, number of kernels along the columns if `across`, else along the rows). by: the division of
    the product among threads. across: blocks are visited row by row. terms: terms of K in a block. least: the fewest
    blocks of K that are allowed. keeps_copy: True counts a copy of b's block in L2.
    """
    size, side = (by.n, by.columns) if across else (by.m, by.rows)
    best, chosen = np.float32(0), None
    for wide in _groups(size, side):
        for blocks in _groups(by.k, terms):
            value = _intensity(by, across, terms, (blocks, wide * side), keeps_copy)
            if value > best and blocks >= least:
                best, chosen = value, (blocks, wide)
    return chosen


def _groups(size: int, length: int) -> Iterator[int]:
    """Yield the numbers of blocks per chunk that oneDNN tries, the largest first, each once.

    They are ceil(blocks / g) for g = 1 to blocks, where blocks = ceil(size / length) is the number of blocks of
    `length` elements that hold `size` elements. Size 5 and length 1 give 5, 3, 2, 1.
    """
    blocks = ceiling(size, length)
    yield from sorted({ceiling(blocks, groups) for groups in range(1, blocks + 1)}, reverse=True)


def _intensity(by: Division, across: bool, terms: int, chunk: tuple[int, int], keeps_copy: bool) -> np.float32:
    """Return the multiply-adds per byte moved for a chunk of blocks; 0 if the chunk does not fit L2.

    by: the division of the product among threads. across: blocks are visited row by row. terms: terms of K in a block.
    chunk: (blocks of K, columns if `across`, else rows). keeps_copy: True counts a copy of b's block in L2.
    """
    product, budget = by.product, by.product.caches.l2_budget
    if _l2_bytes(by, across, terms, chunk, keeps_copy) > budget:
        return np.float32(0)
    rows, columns = (by.rows, chunk[1]) if across else (chunk[1], by.columns)
    kept = min(terms * chunk[0], by.k)
    stays = by.by_k == 1 and (kept == product.k or _all_bytes(by, across, terms, chunk) < budget)
    moved = (rows + columns) * kept * BYTES + (0 if stays else rows * columns * FLOATS)
    return np.float32(np.float32(rows * kept * columns) / np.float32(moved))


def _l2_bytes(by: Division, across: bool, terms: int, chunk: tuple[int, int], keeps_copy: bool = False) -> int:
    """Return the bytes of L2 that a chunk of blocks occupies: its parts of a and b, a copy, the result, float32 sums.

    by: the division of the product among threads. across: blocks are visited row by row. terms: terms of K in a block.
    chunk: (blocks of K, columns if `across`, else rows). keeps_copy: True counts a copy of b's block.
    """
    side, kept = by.rows if across else by.columns, min(terms * chunk[0], by.k)
    used = (2 * side + chunk[1]) * kept * BYTES
    if keeps_copy:
        used += chunk[1] * terms * chunk[0] * BYTES
    used += 2 * by.rows * lines(chunk[1]) if across else 2 * lines(by.columns) * chunk[1]
    kernel = terms == by.product.k  # sums of one kernel; else of the chunk
    return used + 2 * FLOATS * (by.rows * by.columns if kernel else side * chunk[1])


def _all_bytes(by: Division, across: bool, terms: int, chunk: tuple[int, int]) -> int:
    """Return the bytes that a chunk of blocks takes in L2 if all its float32 sums stay there.

    by: the division of the product among threads. across: blocks are visited row by row. terms: terms of K in a block.
    chunk: (blocks of K, columns if `across`, else rows).
    """
    size, kept = by.m if across else by.n, min(terms * chunk[0], by.k)
    return 2 * (size + chunk[1]) * kept * BYTES + size * chunk[1] * FLOATS


def copy_fits(walk: BlockWalk) -> bool:
    """Return whether the L2 cache holds the blocks of `walk`, visited row by row, and a copy of b's block."""
    used = _l2_bytes(walk.division, True, walk.terms, (walk.chunk, walk.wide), True)
    return used < walk.division.product.caches.l2_budget
