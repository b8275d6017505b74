"""Prediction of the block sizes of K in oneDNN's AMX products from cache sizes, for one thread and BF16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

SOURCE = "oneDNN 3.12, src/cpu/x64/matmul: amx_blocking_heuristics.cpp, brgemm_matmul_utils.cpp"
BLOCK = 32  # terms of an instruction, and columns of two tiles
TILE, LINE, PAGE = 16, 64, 4096  # rows of a tile; bytes of a cache line and of a page
WAYS = 16  # of L2
BYTES, FLOATS = 2, 4  # of a BF16 number and of a float32 sum
LOAD, MISS, STORE_MISS = 106.41, 106.41 / 2.28, 106.41 / 2.85  # bytes a cycle of L1, as oneDNN's model has them
LAST_LEVEL, MEMORY = 6.0, 2.28  # bytes a cycle of the last cache and of memory for one core
NEAR = 1e-5  # two scores that differ by less are not told apart here
WIDE, MOST_CHUNKS, MANY = 64, 4, 16  # columns of a block of one row; blocks of a chunk; blocks from which chunks grow
FEW_ROWS = 3  # column blocks from which odd operands are copied
COPIED = 128  # terms from which they are


class KBlocks(NamedTuple):
    """Block sizes: terms of K in a segment, terms of one instruction in it, and rows of a block.

    `step` is 0 where whole segments and the last one have instructions of different lengths.
    """

    terms: int
    step: int
    rows: int


class Caches(NamedTuple):
    """Sizes of a core's L1 and L2 data caches in bytes."""

    l1: int
    l2: int

    @property
    def l1_budget(self) -> int:
        """Bytes of the L1 cache that oneDNN allows its blocks to fill."""
        return 5 * self.l1 // 6

    @property
    def l2_budget(self) -> int:
        """Bytes of the L2 cache that oneDNN allows its blocks to fill."""
        return 3 * self.l2 // 4


class Problem(NamedTuple):
    """A matrix product whose block sizes in oneDNN are to be found; turned: b is the transpose of a C-order array."""

    m: int
    n: int
    k: int
    turned: bool
    caches: Caches

    @property
    def tall(self) -> int:
        """Rows of a tile: M divided into nearly equal parts of up to 16."""
        return _parts(self.m, -(-self.m // TILE))

    @property
    def rows(self) -> int:
        """Rows of a kernel, those of two tiles, at most M."""
        return min(self.m, 2 * self.tall)

    @property
    def columns(self) -> int:
        """Columns of a kernel, those of two tiles, at most N."""
        return min(self.n, BLOCK)

    @property
    def deep(self) -> int:
        """Terms of K in a tile: 32, or all of a shorter K."""
        return min(BLOCK, self.k)


class BlockWalk(NamedTuple):
    """Sizes of blocks, and the order in which oneDNN visits them: row by row if `across`, else column by column.

    terms: of K in a block; chunk: number of blocks of K that stay in the cache together; wide: columns (if across) or
    rows that stay in L2; streams_a: a does not stay in L1; score: estimated efficiency, higher is better.
    """

    across: bool
    terms: int  # of a block
    chunk: int  # blocks of K that are kept together
    wide: int  # columns, or rows, that are kept in L2
    streams_a: bool  # a is not kept in L1
    score: float


def amx_blocks(m: int, n: int, k: int, turned: bool, caches: Caches) -> KBlocks | None:
    """Return oneDNN's segments of K for a BF16 product by AMX on one thread; None if its choice cannot be predicted.

    Args:
      m, n, k: sizes of the product, with 2 rows and columns or more.
      turned: whether b is the transpose of an array in C order.
      caches: bytes of the caches.

    Example:
      >>> from fpsim.schedules.libraries.amx_blocks import Caches, amx_blocks
      >>> [amx_blocks(*shape, False, Caches(48 << 10, 2 << 20)).terms for shape in ((72, 93, 1413), (46, 50, 7081))]
      [480, 2368]
    """
    problem = Problem(m, n, k, turned, caches)
    flat = m <= BLOCK and turned
    if flat and m * k <= caches.l2_budget:
        return KBlocks(k, _step(k), m)
    if not flat and k <= BLOCK:
        return KBlocks(k, _step(k), problem.rows)
    if not flat and n <= BLOCK:
        return KBlocks(k, _step(k), _parts(m, -(-m // BLOCK)))
    walk = _walk(problem)
    if walk is None:
        return None
    rest = k % walk.terms
    copied = walk.across and walk.wide >= FEW_ROWS * problem.columns and walk.terms >= COPIED
    if k % BLOCK == 0 or copied or not (_divides(walk.terms) and (not rest or _divides(rest))):
        step = BLOCK
    else:
        step = _step(walk.terms) if not rest or _step(rest) == _step(walk.terms) else 0
    return KBlocks(walk.terms, step, problem.rows)


def amx_row_blocks(n: int, k: int, turned: bool, caches: Caches) -> int:
    """Return the terms in a segment of K for a product of one row by AMX on one thread.

    n: columns; k: terms; turned: whether b is the transpose of an array in C order.

    Example:
      >>> from fpsim.schedules.libraries.amx_blocks import Caches, amx_row_blocks
      >>> amx_row_blocks(251, 5440, False, Caches(48 << 10, 2 << 20))
      2720
    """
    if k < BLOCK:
        return k
    wide = min(WIDE, n)
    blocks = -(-n // wide)
    least = BLOCK if blocks == 1 and wide > BLOCK and not turned else wide
    chunks = min(MOST_CHUNKS + 2 if blocks > MANY else MOST_CHUNKS, blocks)
    best, terms = np.float32(0), k
    for columns in range(wide, least - 1, -TILE):
        for count in range(chunks, 0, -1):
            made, used = _row_segment(k, columns, count, caches)
            budget = np.float32(caches.l2_budget)
            apart = np.float32(abs(budget - np.float32(used))) / np.float32(max(caches.l2_budget, used))
            reused = min(np.float32(columns * count) / np.float32(min(n, WIDE)), np.float32(1))
            score = (np.float32(1) - apart + np.float32(0.5) * (np.float32(1) + reused)) / np.float32(2)
            if score > best:
                best, terms = score, made
    return min(terms, k)


def _row_segment(k: int, columns: int, count: int, caches: Caches) -> tuple[int, int]:
    """Return (terms of a segment of K, bytes that it takes with `count` blocks of `columns` columns of b).

    If k terms fill L2's budget r >= 1 times (3 for large powers of two k), K has floor(r) or ceil(r) of them, else one.
    """
    blocks = batch = -(-k // BLOCK)
    used = _row_bytes(k, BLOCK, batch, columns, count)
    least, most = used // caches.l2_budget, -(-used // caches.l2_budget)
    power = k & (k - 1) == 0 and k * BYTES >= 2 * PAGE
    if least > (2 if power else 0) and batch > 1:
        small, even = max(batch // least, 1), -(-batch // most)
        first, second = blocks % small, blocks % even
        batch = even if (second == 0 or not (first == 0 or second < first)) else small
    terms, rest = BLOCK * batch, k % BLOCK
    if rest and terms > BLOCK:
        return terms, _row_bytes(k, min(terms, k), 1, columns, count)
    if (rest == 0 and k % terms == 0) or k == terms + rest:
        return terms, _row_bytes(k, terms, 1 if rest == 0 and k % terms == 0 else 2, columns, count)
    return terms, _row_bytes(k, BLOCK, batch, columns, count)


def _row_bytes(k: int, block: int, batch: int, columns: int, count: int) -> int:
    """Return the bytes of a segment: a's row, b, the copied block of b, the result, and float32 sums if K is divided.

    k: terms of the product; block: terms of an instruction; batch: instructions of a segment; columns, count: columns
    of a block, and number of blocks.
    """
    terms, wide = block * batch, columns * count
    sums = FLOATS * wide if k > terms or k % block else 0
    return BYTES * (terms + terms * wide + columns * terms + wide) + sums


# ---- two rows and columns or more


def _parts(size: int, count: int) -> int:
    """Return the length of the longest of `count` nearly equal parts of `size`."""
    return -(-size // count)


def _divides(terms: int) -> bool:
    """Return whether the fewest instructions that cover these terms can all have the same, even number of terms."""
    return terms % (2 * -(-terms // BLOCK)) == 0


def _step(terms: int) -> int:
    """Return the even number of terms, at most 32, of each of the fewest equal parts of `terms`; 32 if none exists."""
    return terms // -(-terms // BLOCK) if _divides(terms) else BLOCK


def _fitting(problem: Problem, side: int) -> int:
    """Return the terms of the longest block whose panel and result fit the L1 cache together, 0 if none.

    The panel is `side` rows of a, or columns of b, of these terms; the result is that of a kernel.
    """
    sums = problem.rows * problem.columns * FLOATS
    cast = problem.rows * _lines(problem.columns)
    tiles = (problem.caches.l1_budget - 2 * sums - cast) // (side * BYTES) // problem.deep
    if tiles < 1:
        return 0
    whole = -(-problem.k // problem.deep)
    return min(_parts(whole, -(-whole // tiles)) * problem.deep, problem.k)


def _lines(columns: int) -> int:
    """Return the bytes of the cache lines that a row of `columns` BF16 numbers occupies."""
    return -(-columns * BYTES // LINE) * LINE


def _walk(problem: Problem) -> BlockWalk | None:
    """Return the BlockWalk that oneDNN chooses; None if none fits, or if two scores differ by a share below NEAR."""
    first = _blocking(problem)
    if first is None or problem.turned or first.across:
        return first
    best = first
    for keeps_copy in (False, True):  # b is copied: walks across are tried too
        other = _blocking(problem, across_only=True, keeps_copy=keeps_copy)
        if other is None:
            continue
        if other.score != best.score and abs(other.score - best.score) < NEAR * best.score:
            return None
        if _better(problem, other, best):
            best = other
    return best


def _better(problem: Problem, walk: BlockWalk, best: BlockWalk) -> bool:
    """Return whether `walk`, row by row, has a higher score than `best`, or oneDNN prefers it at equal scores."""
    if walk.score != best.score:
        return walk.score > best.score
    fits = problem.m * (problem.k + problem.n) < problem.caches.l2_budget
    if not best.across:
        return not (fits and walk.streams_a)
    return False  # of two walks across both have one chunk of columns and equally many of rows


def _blocking(problem: Problem, *, across_only: bool = False, keeps_copy: bool = False) -> BlockWalk | None:
    """Return the BlockWalk that oneDNN's rules on shapes and caches choose; None if none fits.

    across_only: do not consider visiting blocks column by column; keeps_copy: a copy of b's block occupies L2.
    """
    along_a, along_b = _fitting(problem, problem.rows), _fitting(problem, problem.columns)
    if not along_a or not along_b:
        return None
    across = _best_chunk(problem, True, along_a, keeps_copy=keeps_copy)
    down = _best_chunk(problem, False, along_b)
    down = down if down is not None and not across_only and _keeps_a(problem, along_b, down[0]) else None
    if down is None and across is None:
        return None
    if across is not None and (down is None or _prefers_across(problem)):
        return _across(problem, along_a, across, keeps_copy)
    assert down is not None
    return _scored(problem, BlockWalk(False, along_b, down[0], min(down[1], problem.m), True, 0.0))


def _prefers_across(problem: Problem) -> bool:
    """Return whether oneDNN visits blocks row by row where both orders fit: few rows, or as many as columns."""
    if problem.m < 2 * problem.tall:
        return True
    return problem.n >= 2 * TILE and problem.m >= problem.n


def _across(problem: Problem, terms: int, chunk: tuple[int, int], keeps_copy: bool) -> BlockWalk | None:
    """Return the BlockWalk that visits blocks row by row, of the given chunk if L1 holds it; None if none fits.

    If L1 does not hold the panel of a over all of K, L2 decides the terms of a block instead. terms: of a block that
    fits L1; chunk: (blocks of K, columns); keeps_copy: a copy of b's block occupies L2.
    """
    panel = terms * problem.rows * BYTES * -(-problem.k // terms)
    result = 2 * problem.columns * problem.rows * FLOATS + problem.rows * _lines(problem.columns)
    crowded = terms < problem.k and panel + result > problem.caches.l1_budget
    if not crowded:
        return _scored(problem, BlockWalk(True, terms, chunk[0], min(chunk[1], problem.n), False, 0.0))
    found = _best_chunk(problem, True, BLOCK, least=terms // BLOCK, keeps_copy=keeps_copy)
    if found is None:
        return None
    kept = min(BLOCK * found[0], problem.k)
    return _scored(problem, BlockWalk(True, kept, 1, min(found[1], problem.n), True, 0.0))


def _best_chunk(
    problem: Problem, across: bool, terms: int, *, least: int = 0, keeps_copy: bool = False
) -> tuple[int, int] | None:
    """Return the chunk with the most multiply-adds per byte moved, as (blocks of K, columns if `across`, else rows).

    None if none fits L2. across: visit blocks row by row; terms: of a block; least: fewest blocks of K allowed;
    keeps_copy: a copy of b's block occupies L2.
    """
    size, side = (problem.n, problem.columns) if across else (problem.m, problem.rows)
    best, chosen = 0.0, None
    for wide in _groups(size, side):
        for chunk in _groups(problem.k, terms):
            value = _intensity(problem, across, terms, (chunk, wide * side), keeps_copy)
            if value > best and chunk >= least:
                best, chosen = value, (chunk, wide * side)
    return chosen


def _groups(size: int, length: int) -> Iterator[int]:
    """Yield ceil(blocks / g) for g = 1, 2, ... groups of blocks, each number once, the largest first.

    size: elements, in blocks of `length` elements each.
    """
    blocks = -(-size // length)
    yield from sorted({-(-blocks // groups) for groups in range(1, blocks + 1)}, reverse=True)


def _intensity(problem: Problem, across: bool, terms: int, chunk: tuple[int, int], keeps_copy: bool) -> float:
    """Return the multiply-adds per byte moved for a chunk of blocks; 0 if the chunk does not fit L2.

    across: blocks are visited row by row; terms: of a block; chunk: (blocks of K, columns if across, else rows);
    keeps_copy: a copy of b's block occupies L2.
    """
    if _l2_bytes(problem, across, terms, chunk, keeps_copy) > problem.caches.l2_budget:
        return 0.0
    rows, columns = (problem.rows, chunk[1]) if across else (chunk[1], problem.columns)
    kept = min(terms * chunk[0], problem.k)
    stays = kept == problem.k or _all_bytes(problem, across, terms, chunk) < problem.caches.l2_budget
    moved = (rows + columns) * kept * BYTES + (0 if stays else rows * columns * FLOATS)
    return float(np.float32(rows * kept * columns) / np.float32(moved))


def _l2_bytes(problem: Problem, across: bool, terms: int, chunk: tuple[int, int], keeps_copy: bool = False) -> int:
    """Return the bytes of L2 that a chunk of blocks occupies: panels, their copy, the result and float32 sums.

    across: blocks are visited row by row; terms: of a block; chunk: (blocks of K, columns if across, else rows);
    keeps_copy: a copy of b's block occupies L2.
    """
    side, kept = problem.rows if across else problem.columns, min(terms * chunk[0], problem.k)
    used = (2 * side + chunk[1]) * kept * BYTES
    if keeps_copy:
        used += chunk[1] * terms * chunk[0] * BYTES
    used += 2 * problem.rows * _lines(chunk[1]) if across else 2 * _lines(problem.columns) * chunk[1]
    return used + 2 * side * FLOATS * (chunk[1] if terms != problem.k else problem.columns if across else problem.rows)


def _all_bytes(problem: Problem, across: bool, terms: int, chunk: tuple[int, int]) -> int:
    """Return the bytes of L2 that a chunk of blocks needs if all its sums stay there.

    across: blocks are visited row by row; terms: of a block; chunk: (blocks of K, columns if across, else rows).
    """
    size, kept = problem.m if across else problem.n, min(terms * chunk[0], problem.k)
    return 2 * (size + chunk[1]) * kept * BYTES + size * chunk[1] * FLOATS


def _keeps_a(problem: Problem, terms: int, chunk: int) -> bool:
    """Return whether blocks can be visited column by column: K is one chunk, and the result's rows do not crowd L2.

    They do if their distance divides a way of L2, and they take 3/4 of the ways. terms: of a block; chunk: blocks of K.
    """
    if -(-problem.k // (terms * chunk)) != 1:
        return False
    sets = problem.caches.l2 // WAYS
    stride = problem.n * BYTES % PAGE or PAGE
    return not (sets % stride == 0 and -(-stride * problem.m // sets) >= 3 * WAYS // 4)


def _scored(problem: Problem, walk: BlockWalk) -> BlockWalk:
    """Return the walk with its score filled in: m * n * k / 512, divided by the estimated cycles with memory access."""
    m, n, k = problem.m, problem.n, problem.k
    side, length, other = (problem.rows, n, m) if walk.across else (problem.columns, m, n)
    panel, streamed = side * k * BYTES, length * k * BYTES
    result = side * length * BYTES
    tiles = side * k * length // (problem.tall * problem.deep * TILE)
    strips = -(-other // side)
    rows, columns = (problem.rows, walk.wide) if walk.across else (walk.wide, problem.columns)
    reuse = -(-walk.wide // (problem.columns if walk.across else problem.rows))
    written = rows * -(-columns // problem.columns)
    missed = written * _lines(problem.columns)
    hit = written * -(-problem.columns // TILE) * LINE - missed
    sums = FLOATS * rows * columns
    partial = sums * walk.chunk / (LOAD if walk.terms == k else STORE_MISS)
    cycles_l1 = 2 * panel / MISS + panel * (reuse - 1) / LOAD + streamed / MISS
    cycles_l1 += missed / STORE_MISS + hit / LOAD + sums / LOAD + partial
    compute = tiles * (problem.tall * BLOCK * BYTES * TILE // 1024)
    if walk.across:
        middle = max((panel + result) / MEMORY, (panel + result) / LAST_LEVEL, cycles_l1, compute)
        copied = _l2_bytes(problem, True, walk.terms, (walk.chunk, walk.wide), True) < problem.caches.l2_budget
        total = streamed / MEMORY + (middle if copied else streamed / LAST_LEVEL)
    else:
        middle = panel / MEMORY + max(result / MEMORY, result / LAST_LEVEL, cycles_l1, compute)
        total = (streamed + panel + result) / MEMORY
    return walk._replace(score=m * n * k / 512 / (total + (strips - 1) * middle))
