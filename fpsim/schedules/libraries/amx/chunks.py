"""The segments of K that oneDNN chooses for products by AMX of one row, or of a transposed a."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np

from fpsim.schedules.libraries.amx.problem import (
    BLOCK,
    BYTES,
    FLOATS,
    PAGE,
    AmxProduct,
    KBlocks,
    ceiling,
    rounded_up,
    shares,
    takes_amx,
)

f32 = np.float32
WIDE = 64  # columns of a block
MOST_CHUNKS, CROWDED = 4, 6  # blocks of a chunk; columns' blocks of a chunk where there is a lot of work
TALL = (16, 15, 14, 13)  # rows of a tile that are tried
EFFECTIVE_ROWS, EFFECTIVE_COLUMNS = 256, 64  # of a chunk, above which more copies are not used again
TERMS_OF_THREAD = 1024  # fewest terms of a thread that shares K
SKEWED = ((4096, 4096), (11008, 4096), (4096, 11008))  # (N, K) of four rows for which chunks may be uneven
BUCKETS = 13  # of the hash table in which oneDNN keeps rows of a block


class Chunk(NamedTuple):
    """The sizes of a chunk: the part of the result, and of K, that a thread computes before it goes on to the next.

    threads: number of threads that share K. row_block: rows of a block, the result of one call of a kernel. terms:
    terms of K in a block. blocks: number of blocks of K that a kernel adds in one call. is_extended: True if the last K
    mod 32 terms are added in the same call as the terms before them. copies_a: True if oneDNN copies a. score: oneDNN's
    estimate of how well the chunk uses caches and threads.
    """

    threads: int
    row_block: int
    terms: int
    blocks: int
    is_extended: bool
    copies_a: bool
    score: np.float32


def chunk_blocks(product: AmxProduct) -> KBlocks | None:
    """Return the segments into which oneDNN cuts K for a product of one row or of a transposed a.

    oneDNN divides the result and K into chunks, each of which a thread computes before it goes on to the next. Of
    several sizes of chunks it takes those with the highest score, its estimate of how well caches and threads are used.
    The result is None if all sizes that it tries have the score 0.
    """
    chunk = _best(product)
    if chunk is None:
        return None
    k = product.k
    width = rounded_up(chunk.terms, BLOCK) if chunk.copies_a else k
    if chunk.copies_a and width >= 512 and width & (width - 1) == 0:
        width += BLOCK
    uses = takes_amx(product, BYTES * chunk.row_block * width, chunk.terms)
    step = chunk.terms * chunk.blocks
    spans = [(start, min(start + step, k)) for start in range(0, k, step)]
    lengths: list[int] = []
    counts: list[int] = []
    for start, stop in spans:
        whole = (stop - start) // chunk.terms * chunk.terms
        calls = [stop - start] if chunk.is_extended else [whole, stop - start - whole]
        calls = [terms for terms in calls if terms]
        lengths += calls
        counts.append(len(calls))
    parts: tuple[int, ...] = ()
    if chunk.threads > 1 and len(counts) > 1:
        groups, taken = shares(len(counts), chunk.threads), iter(counts)
        parts = tuple(sum(islice(taken, count)) for count in groups if count)
    return KBlocks(tuple(lengths), parts, False, uses)


def _best(product: AmxProduct) -> Chunk | None:
    """Return the Chunk with oneDNN's highest score for `product`; None if all that oneDNN tries have the score 0."""
    m, n, k, threads = product.m, product.n, product.k, product.threads
    # the most rows of a block: 2 to 4 tiles of 13 to 16 rows if these divide M, else up to 64
    tallest = next((s * r for r in TALL for s in (4, 3, 2) if m % (s * r) == 0), min(m, 64))
    widest = min(WIDE, n)
    parallel_k = ceiling(k, TERMS_OF_THREAD)
    most_threads = min(min(max(threads // 8, 1), 7), parallel_k)
    may_be_uneven = m == 4 and (n, k) in SKEWED
    best: Chunk | None = None
    for by_k in range(1, most_threads + 1):
        work = ceiling(m, tallest) * ceiling(n, widest) * min(parallel_k, by_k)
        is_little = f32(work) < f32(1.5) * f32(threads)
        shortest = ceiling(tallest, 2) if is_little and tallest > 32 else tallest
        most_rows = min(MOST_CHUNKS, ceiling(m, tallest))
        most_columns = min(CROWDED if work > 16 * threads else MOST_CHUNKS, ceiling(n, widest))
        is_chosen = False
        for rows in _row_blocks(m, tallest, shortest):
            for across in range(most_columns, 0, -1):
                for down in range(most_rows, 0, -1):
                    amount = ceiling(m, rows * down) * ceiling(n, widest * across)
                    if amount < 3 * threads and amount % threads and most_threads == 1 and not may_be_uneven:
                        continue
                    chunk = _chunk(product, by_k, (widest, across), (rows, down))
                    if chunk.score > (best.score if best else f32(0)):
                        best, is_chosen = chunk, True
        if not is_chosen:
            chunk = _chunk(product, by_k, (widest, 1), (shortest, 1))
            if chunk.score > (best.score if best else f32(0)):
                best = chunk
    return best


def _row_blocks(m: int, tallest: int, shortest: int) -> list[int]:
    """Return the numbers of rows of a block that oneDNN tries, in the order in which it tries them.

    oneDNN keeps them in a hash table; the order is that of GCC's library. m: rows of the product. tallest, shortest:
    the largest and the smallest number of rows of a block.
    """
    rows, tried = tallest, []
    while rows >= shortest and rows > 0:
        tried.append(rows)
        rows = ceiling(rows, 2) if rows > 1 else 0
    if m > 16:
        tried += range(min(m // 16 * 16, 64), rounded_up(shortest, 16) - 1, -16)
    ordered: list[int] = []
    for rows in dict.fromkeys(tried):
        same = [i for i, other in enumerate(ordered) if other % BUCKETS == rows % BUCKETS]
        ordered.insert(same[0] if same else 0, rows)
    return ordered


def _chunk(product: AmxProduct, by_k: int, columns: tuple[int, int], rows: tuple[int, int]) -> Chunk:
    """Return the Chunk of `product` with the given columns and rows, after choosing its terms of K and scoring it.

    by_k: number of threads that share K. columns: (columns of a block, blocks side by side in the chunk). rows: the
    same for rows.
    """
    k, budget = product.k, product.caches.l2_budget
    extends = False
    sizes = (rows[0] * rows[1], columns[0] * columns[1], columns[0])
    if k < BLOCK:
        terms, batch = rounded_up(k, 2), 1
    else:
        terms = min(rounded_up(ceiling(k, by_k), 2), BLOCK)
        blocks = batch = ceiling(ceiling(k, terms), by_k)
        used = _bytes(product, (terms, batch), sizes, product.a_turned)
        least, most = used // budget, ceiling(used, budget)
        power = not product.a_turned and k & (k - 1) == 0 and k * BYTES >= 2 * PAGE
        if least > (2 if power else 0) and batch > 1:
            small, even = max(batch // least, 1), ceiling(batch, most)
            first, second = blocks % small, blocks % even
            batch = even if (second == 0 or not (first == 0 or second < first)) else small
        rest, whole = k % terms, terms * batch
        extends = k % BLOCK != 0 and whole > BLOCK and not product.a_turned
        if extends:
            terms, batch = min(whole, k), 1
        elif rest == 0 and k % whole == 0:
            terms, batch = whole, 1
        elif by_k == 1 and k == whole + rest:
            terms, batch = whole, 2
    copies_a = product.a_turned or (not extends and k % 2 != 0)
    used = _bytes(product, (terms, batch), sizes, copies_a)
    score = _score(product, by_k, (terms * batch, used), sizes, copies_a)
    return Chunk(by_k, rows[0], terms, batch, extends, copies_a, score)


def _bytes(product: AmxProduct, block: tuple[int, int], sizes: tuple[int, int, int], copies_a: bool) -> int:
    """Return the bytes of a chunk of `product`: a and b, a's copy, the result, and float32 sums if K is divided.

    block: (terms of a block of K, blocks that a call adds). sizes: (rows of the chunk, its columns, columns of a
    block). copies_a: whether oneDNN copies a.
    """
    terms, batch = block
    rows, columns, wide = sizes
    kept = terms * batch
    width = rounded_up(terms, BLOCK)
    if width >= 512 and width & (width - 1) == 0:
        width += BLOCK
    copy = BYTES * width * batch * rows if copies_a else 0
    divided = product.k > kept or (product.k % terms > 0)
    sums = FLOATS * rows * columns if divided else 0
    return BYTES * (kept * rows + kept * columns + wide * kept + rows * columns) + copy + sums


def _score(
    product: AmxProduct, by_k: int, used: tuple[int, int], sizes: tuple[int, int, int], copies_a: bool
) -> np.float32:
    """Return oneDNN's score of a chunk of `product`, float32: use of L2, reuse of loaded data, and balance of threads.

    used: (terms of K in the chunk, bytes that it takes). sizes: (rows of the chunk, its columns, columns of a block).
    by_k: number of threads that share K. copies_a: whether oneDNN copies a.
    """
    m, n, k, threads = product.m, product.n, product.k, product.threads
    (terms, size), (rows, columns, _), budget = used, sizes, product.caches.l2_budget
    apart = f32(abs(f32(f32(budget) - f32(size))) / f32(max(budget, size)))
    cache = f32(f32(1) - apart)
    of_rows = min(f32(f32(rows) / f32(min(m, EFFECTIVE_ROWS))), f32(1))
    most = EFFECTIVE_COLUMNS * (4 if copies_a else 1)
    of_columns = min(f32(f32(columns) / f32(min(n, most))), f32(1))
    reused = f32(f32(0.5) * f32(of_rows + of_columns))
    count = f32(min(threads, 100))
    balance, weight = f32(f32(count - f32(1)) / count), f32(f32(1) / count)
    score = f32(f32(weight * cache) + reused)
    if balance > 0:
        sharers = threads // by_k
        chunks = ceiling(m, rows) * ceiling(n, columns)
        part = f32(f32(f32(m) / f32(rows)) * f32(f32(n) / f32(columns)))
        part = f32(f32(part / f32(rounded_up(chunks, sharers))) * f32(sharers))
        if by_k > 1:
            whole = f32(rounded_up(ceiling(k, terms), by_k))
            of_k = f32(f32(f32(f32(0.8) * f32(f32(k) / f32(terms))) / whole) * f32(by_k))
        else:
            of_k = f32(1)
        score = f32(score + f32(balance * f32(f32(part * of_k) / f32(threads))))
    return f32(score / f32(f32(f32(1) + balance) + weight))
