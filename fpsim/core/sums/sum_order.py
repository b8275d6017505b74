"""Scalar core: in which order the terms of a sum are added, for a tile of sums at a time. How, the lanes know.

A tile is a row and `n` columns of the results, all of which take the same steps at the same time. `compiled` is what is
done to the functions inside: `shared` for CPU kernels, nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.core.philox import philox4x32
from fpsim.core.rounding import STOCHASTIC

i64, u32, u64 = np.int64, np.uint32, np.uint64

Function = Callable[..., Any]

RUN, PRODUCT, OUTER = range(3)  # the rows of a tile in order: the sum of a run, its next product, the outer sum


class Lanes(NamedTuple):
    """The steps of one way to hold sums, over n lanes. Words: random words, of which row `w` belongs to this step.

    multiply `(a, b, row, first, out, o, n, words, w, layouts of a, b, target, mode)`: out[o] = R(a * b[row, first:]).
    add `(t, i, x, j, n, words, w, target of x, of t, mode)`: t[i] = R(t[i] + x[j]).
    fused `(t, i, a, b, row, first, n, words, w, layouts of a, b, target, mode)`: t[i] = R(t[i] + a * b[row, first:]).
    """

    multiply: Any
    add: Any
    fused: Any


def word_filler(compiled: Callable[[Function], Function]) -> Function:
    """words[w, j] = the random word of rounding step + w of output + j, for a step that is a multiple of four."""
    philox = compiled(philox4x32)

    def fill_words(words: Any, n: int, output: Any, stride: Any, step: Any, k0: Any, k1: Any) -> None:
        for j in range(n):
            counter = u64(u64(u64(u64(output + u64(j)) * stride) + step) >> u64(2))
            w0, w1, w2, w3 = philox(counter, u64(counter >> u64(32)), u64(0), u64(0), k0, k1)
            words[0, j] = w0
            words[1, j] = w1
            words[2, j] = w2
            words[3, j] = w3

    return fill_words


def tile_in_order(lanes: Lanes, join: Function, fill_words: Function) -> Function:
    """The tile of Sequential, FusedMultiplyAdd and Chunked.

    `(a, b, row of b for the first term, c, out, i, j, n, chunk, chained, fused, layouts of a, b, inner, outer target,
    mode, random words per output, low and high word of the seed, t, words for products, for sums, for joins)`: a (M, K)
    and b hold what the lanes take, c and out (M, N); c may be empty. chained: the one chunk starts from c, and its
    total is the result. t: three rows to work in.
    """
    multiply, add, fuse = lanes

    def in_order(
        a: Any, b: Any, row: int, c: Any, out: Any, i: int, j: int, n: int, chunk: int, chained: Any, fused: Any,
        la: Any, lb: Any, inner: Any, outer: Any, mode: int, stride: Any, k0: Any, k1: Any,
        t: Any, for_products: Any, for_sums: Any, for_joins: Any,
    ) -> None:  # fmt: skip
        terms = a.shape[1]
        sums = u64((terms + 3) // 4 * 4)  # the number of the first sum's rounding
        output = u64(i * out.shape[1] + j)
        start_row = RUN if chained else OUTER
        for lane in range(n):
            t[start_row, lane] = u64(c[i, j + lane]) if c.size > 0 else u64(0)
        for start in range(0, terms, chunk):
            if not chained:
                for lane in range(n):
                    t[RUN, lane] = u64(0)
            for k in range(start, min(start + chunk, terms)):
                if mode == STOCHASTIC and (k % 4 == 0):
                    fill_words(for_sums, n, output, stride, u64(sums + u64(k)), k0, k1)
                    if not fused:
                        fill_words(for_products, n, output, stride, u64(k), k0, k1)
                if fused:
                    fuse(t, RUN, a[i, k], b, row + k, j, n, for_sums, k % 4, la, lb, inner, mode)
                else:
                    multiply(a[i, k], b, row + k, j, t, PRODUCT, n, for_products, k % 4, la, lb, inner, mode)
                    add(t, RUN, t, PRODUCT, n, for_sums, k % 4, inner, inner, mode)
            if not chained:
                run = start // chunk
                if mode == STOCHASTIC and (run % 4 == 0):
                    fill_words(for_joins, n, output, stride, u64(u64(sums + sums) + u64(run)), k0, k1)
                join(t, OUTER, t, RUN, n, for_joins, run % 4, inner, outer, mode)
        for lane in range(n):
            out[i, j + lane] = t[start_row, lane]

    return in_order


def number_levels(numbers: Any, terms: int) -> None:
    """numbers[level] = the number of the first sum of that level of a pairwise sum."""
    left, number = terms, 0
    for level in range(numbers.size):
        numbers[level] = number
        number += left // 2
        left = (left + 1) // 2


def tile_by_pairs(lanes: Lanes, fill_words: Function) -> Function:
    """The tile of Pairwise.

    `(a, b, row of b for the first term, c, out, i, j, n, layouts of a, b, target, mode, random words per output, low
    and high word of the seed, stack, first sums of levels, words for products, for sums)`: as for `tile_in_order`.

    The stack holds the totals of complete subtrees: one of 2**level terms for each bit that is set in k when term k
    arrives. Term k closes the subtrees of its trailing ones, and the last term all, with those of levels where it has
    no left neighbour carried up.
    """
    multiply, add, _ = lanes

    def by_pairs(
        a: Any, b: Any, row: int, c: Any, out: Any, i: int, j: int, n: int, la: Any, lb: Any, target: Any, mode: int,
        stride: Any, k0: Any, k1: Any, stack: Any, numbers: Any, for_products: Any, for_sums: Any,
    ) -> None:  # fmt: skip
        terms = a.shape[1]
        sums = u64((terms + 3) // 4 * 4)
        output = u64(i * out.shape[1] + j)
        height = 0
        for k in range(terms):
            if mode == STOCHASTIC and (k % 4 == 0):
                fill_words(for_products, n, output, stride, u64(k), k0, k1)
            multiply(a[i, k], b, row + k, j, stack, height, n, for_products, k % 4, la, lb, target, mode)
            height += 1
            # the sums that term k closes, and c behind the last of them
            level = 0
            while height > 1 and (k >> level & 1 or k + 1 == terms):
                if k >> level & 1:
                    number = numbers[level] + (k >> (level + 1))
                    if mode == STOCHASTIC:
                        fill_words(for_sums, n, output, stride, u64(sums + u64(number // 4 * 4)), k0, k1)
                    add(stack, height - 2, stack, height - 1, n, for_sums, number % 4, target, target, mode)
                    height -= 1
                level += 1
        if c.size > 0:
            for lane in range(n):
                stack[1, lane] = u64(c[i, j + lane])
            number = terms - 1
            if mode == STOCHASTIC:
                fill_words(for_sums, n, output, stride, u64(sums + u64(number // 4 * 4)), k0, k1)
            add(stack, 0, stack, 1, n, for_sums, number % 4, target, target, mode)
        for lane in range(n):
            out[i, j + lane] = stack[0, lane]

    return by_pairs
