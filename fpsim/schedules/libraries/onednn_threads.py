"""The number of threads that share K in oneDNN's brg_matmul without AMX, by its estimate of idle threads."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

SOURCE = "oneDNN 3.12, src/cpu/x64/matmul/brgemm_matmul_utils.cpp: compute_blocking_heuristic_avx512"
WIDE, TALLEST, SHORTEST = 64, 256, 16  # columns of a block; most rows of a block, and fewest that are tried
LEAST_K, MOST_THREADS = 2048, 4  # terms from which threads share K, and how many of them do at most
MOST_CHUNKS = 16  # blocks of columns of a chunk
f32 = np.float32


class BrgemmProduct(NamedTuple):
    """A product of a (M, K) and b (K, N) for which the number of threads that share K is to be found.

    Attributes:
      m, n, k: the sizes M, N and K.
      block: number of terms of a segment of K.
      copies_a: True if oneDNN copies a before it multiplies.
      threads: number of threads that may share the product.
    """

    m: int
    n: int
    k: int
    block: int
    copies_a: bool
    threads: int


@lru_cache(maxsize=4096)
def threads_along_k(product: BrgemmProduct) -> int:
    """Return how many threads share K, 1 to 4, in oneDNN's product of a transposed a.

    The result is valid for FP16, and for BF16 if K is a power of two. In other products no threads share K, so callers
    must not ask for them.

    Example:
      >>> from fpsim.schedules.libraries.onednn_threads import BrgemmProduct, threads_along_k
      >>> [threads_along_k(BrgemmProduct(40, n, 4096, 512, True, 2)) for n in (64, 65)]
      [2, 1]
    """
    across = -(-product.n // WIDE)
    if product.threads <= across or product.k < LEAST_K:
        return 1
    chunks = min(MOST_CHUNKS if product.copies_a else 1, across)
    tallest, shortest = min(TALLEST, product.m), min(SHORTEST, product.m)
    most = min(product.threads, MOST_THREADS)
    best, chosen = f32(1), 1
    for by_k in range(most, 0, -1):
        idle = min(
            _idle(product, by_k, rows, wide) for wide in range(1, chunks + 1) for rows in range(shortest, tallest + 1)
        )
        if idle < best:
            best, chosen = idle, by_k
    return chosen


def _idle(product: BrgemmProduct, by_k: int, rows: int, chunk: int) -> np.float32:
    """Return oneDNN's estimate of the share of threads that are idle in `product`, float32.

    rows: rows of a block of a. chunk: number of blocks of columns that a thread takes at a time. by_k: number of
    threads that share K.
    """
    m, k, threads = product.m, product.k, product.threads
    wide = min(WIDE, product.n)
    sharers, blocks = threads // by_k, -(-product.n // wide)
    work = -(-m // rows) * -(-product.n // (wide * chunk))
    of_rows = f32(f32(rows * -(-m // rows) % m) / f32(m))
    of_columns = f32(f32(-(-blocks // chunk) * chunk - blocks) / f32(blocks))
    left_out = f32(f32(threads - sharers * by_k) / f32(threads)) if sharers * by_k != threads else f32(0)
    total = f32(f32(_uneven(work, sharers) + of_rows) + of_columns)
    return f32(f32(f32(total + left_out) + _uneven(k, by_k * product.block)) / f32(5))


def _uneven(work: int, parts: int) -> np.float32:
    """Return how far `work` items are from an even division among `parts` parts, as a float32 from 0 to 1.

    With rest = work mod parts it is min(rest, parts - rest) / parts; (parts - rest) / parts if work < parts. 9 items
    in 4 parts give 1/4.
    """
    rest = work % parts
    return f32(f32(parts - rest if work < parts else min(parts - rest, rest)) / f32(parts))
