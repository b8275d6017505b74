"""CPU loops of the accumulators: in which order the products of an output are added. How, the lanes know.

Outputs are worked on by the tile: one row and up to LANES columns, all of which take the same steps at the same time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.jit import kernel, shared
from fpsim.core.philox import philox4x32
from fpsim.core.rounding import STOCHASTIC
from fpsim.kernels.accumulate_lanes import LANES, lanes

u32, u64 = np.uint32, np.uint64

DEPTH = 64  # levels of a pairwise sum

philox = shared(philox4x32)


def _fill_words(words: Any, n: int, output: Any, stride: Any, step: Any, k0: Any, k1: Any) -> None:
    """words[w, j] = the random word of rounding step + w of output + j, for a step that is a multiple of four."""
    for j in range(n):
        counter = u64(u64(u64(u64(output + u64(j)) * stride) + step) >> u64(2))
        w0, w1, w2, w3 = philox(counter, u64(counter >> u64(32)), u64(0), u64(0), k0, k1)
        words[0, j] = w0
        words[1, j] = w1
        words[2, j] = w2
        words[3, j] = w3


fill_words = kernel(_fill_words)


@cache
def sequence_kernel(way: str, outer_way: str) -> Any:
    """The loop over tiles `first .. stop` of Sequential, FusedMultiplyAdd and Chunked.

    `(a, b, b's rows per row of a, c, out, first, stop, chunk, chained, fused, layouts of a, b, inner, outer target,
    mode, random words per output, low and high word of the seed)`: a (M, K), b (K, N) or (M * K, N) and c, out (M, N)
    are 64-bit words; c may be empty. chained: the one chunk starts from c, and its total is the result.
    """
    multiply, add, fuse = lanes(way)
    join = lanes(outer_way).add

    def sequence(
        a: Any, b: Any, rows: int, c: Any, out: Any, first: int, stop: int, chunk: int, chained: Any, fused: Any,
        la: Any, lb: Any, inner: Any, outer: Any, mode: int, stride: Any, k0: Any, k1: Any,
    ) -> None:  # fmt: skip
        terms, columns = a.shape[1], b.shape[1]
        tiles = (columns + LANES - 1) // LANES
        sums = u64((terms + 3) // 4 * 4)  # the number of the first sum's rounding
        # rows: the sum of a run, its next product, the outer sum
        t = np.zeros((3, LANES), np.uint64)
        for_products = np.zeros((4, LANES), np.uint32)
        for_sums = np.zeros((4, LANES), np.uint32)
        for_joins = np.zeros((4, LANES), np.uint32)
        start_row = 0 if chained else 2
        for tile in range(first, stop):
            i, j = tile // tiles, tile % tiles * LANES
            n = min(LANES, columns - j)
            output = u64(i * columns + j)
            for lane in range(n):
                t[start_row, lane] = c[i, j + lane] if c.size > 0 else u64(0)
            for start in range(0, terms, chunk):
                if not chained:
                    t[0, :] = u64(0)
                for k in range(start, min(start + chunk, terms)):
                    if mode == STOCHASTIC and (k % 4 == 0):
                        fill_words(for_sums, n, output, stride, u64(sums + u64(k)), k0, k1)
                        if not fused:
                            fill_words(for_products, n, output, stride, u64(k), k0, k1)
                    if fused:
                        fuse(t, 0, a[i, k], b, i * rows + k, j, n, for_sums, k % 4, la, lb, inner, mode)
                    else:
                        multiply(a[i, k], b, i * rows + k, j, t, 1, n, for_products, k % 4, la, lb, inner, mode)
                        add(t, 0, t, 1, n, for_sums, k % 4, inner, inner, mode)
                if not chained:
                    run = start // chunk
                    if mode == STOCHASTIC and (run % 4 == 0):
                        fill_words(for_joins, n, output, stride, u64(u64(sums + sums) + u64(run)), k0, k1)
                    join(t, 2, t, 0, n, for_joins, run % 4, inner, outer, mode)
            for lane in range(n):
                out[i, j + lane] = t[start_row, lane]

    return kernel(sequence)


@cache
def pairwise_kernel(way: str) -> Any:
    """The loop over tiles `first .. stop` of Pairwise, with the arguments of `sequence_kernel`.

    A stack holds the totals of complete subtrees: one of 2**level terms for each bit that is set in k when term k
    arrives. Term k closes the subtrees of its trailing ones, and the last term all, with those of levels where it has
    no left neighbour carried up.
    """
    multiply, add, _ = lanes(way)

    def pairwise(
        a: Any, b: Any, rows: int, c: Any, out: Any, first: int, stop: int, chunk: int, chained: Any, fused: Any,
        la: Any, lb: Any, inner: Any, outer: Any, mode: int, stride: Any, k0: Any, k1: Any,
    ) -> None:  # fmt: skip
        terms, columns = a.shape[1], b.shape[1]
        tiles = (columns + LANES - 1) // LANES
        sums = u64((terms + 3) // 4 * 4)
        numbers = np.zeros(DEPTH, np.int64)  # of the first sum of each level
        left = terms
        for level in range(DEPTH - 1):
            numbers[level + 1] = numbers[level] + left // 2
            left = (left + 1) // 2
        stack = np.zeros((DEPTH, LANES), np.uint64)
        for_products = np.zeros((4, LANES), np.uint32)
        for_sums = np.zeros((4, LANES), np.uint32)
        for tile in range(first, stop):
            i, j = tile // tiles, tile % tiles * LANES
            n = min(LANES, columns - j)
            output = u64(i * columns + j)
            stack[0, :] = u64(0)
            height = 0
            for k in range(terms):
                if mode == STOCHASTIC and (k % 4 == 0):
                    fill_words(for_products, n, output, stride, u64(k), k0, k1)
                multiply(a[i, k], b, i * rows + k, j, stack, height, n, for_products, k % 4, la, lb, inner, mode)
                height += 1
                level = 0
                while height > 1 and (k >> level & 1 or k + 1 == terms):
                    if k >> level & 1:
                        number = numbers[level] + (k >> (level + 1))
                        if mode == STOCHASTIC:
                            fill_words(for_sums, n, output, stride, u64(sums + u64(number // 4 * 4)), k0, k1)
                        add(stack, height - 2, stack, height - 1, n, for_sums, number % 4, inner, inner, mode)
                        height -= 1
                    level += 1
            if c.size > 0:
                for lane in range(n):
                    stack[1, lane] = c[i, j + lane]
                if terms == 0:
                    stack[0, :] = stack[1, :]
                else:
                    number = terms - 1
                    if mode == STOCHASTIC:
                        fill_words(for_sums, n, output, stride, u64(sums + u64(number // 4 * 4)), k0, k1)
                    add(stack, 0, stack, 1, n, for_sums, number % 4, inner, inner, mode)
            for lane in range(n):
                out[i, j + lane] = stack[0, lane]

    return kernel(pairwise)
