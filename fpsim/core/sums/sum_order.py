"""Scalar core: the order in which the terms of a sum are added, for several sums at once.

`LaneSteps` multiplies and adds the terms: one lane, an element of a vector register, holds one sum.
A tile is `n` neighbouring columns of one row of the results; its sums are computed together, one in each lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.core.philox import philox4x32
from fpsim.core.rounding import STOCHASTIC
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar

i64, u32, u64 = np.int64, np.uint32, np.uint64

Function = Callable[..., Any]

RUN, PRODUCT, OUTER = range(3)  # rows of a tile's scratch array: the sum of a chunk, its next product, the outer sum


@reloadable
class Rows(NamedTuple):
    """The operands of M * N sums of K terms, as unsigned integers: codes, or the bits of float64 values.

    Sum (i, j) adds a[i, k] * b[i * step + k, j] for k = 0 .. K - 1, and c[i, j] unless c is empty.
    """

    a: Any  # (M, K)
    b: Any  # (K, N), or (M * K, N)
    step: Any  # rows of b for each row of a; 0 if all rows of a use the same (K, N)
    c: Any  # (M, N), or empty


@reloadable
class Targets(NamedTuple):
    """Layouts by which the terms a and b are read and by which sums are rounded, as 1-D arrays of integers.

    For sums kept as codes, a and b hold the fields of an UnpackLayout, and inner and outer those of an EncodeLayout and
    an UnpackLayout and the `rules` of `pack`. A chunk is a number of consecutive terms that are added first.
    """

    a: Any
    b: Any
    inner: Any  # of the sums within a chunk
    outer: Any  # of the sum of chunks, and of c


@reloadable
class Randomness(NamedTuple):
    """The rounding mode of sums, and the source of random numbers for stochastic rounding."""

    mode: Any
    stride: Any  # random words per output
    k0: Any  # low and high word of the seed
    k1: Any
    first: Any  # index of the first output


@reloadable
class SumTile(NamedTuple):
    """A part of the results whose sums are computed together: columns j .. j + n - 1 of row i."""

    i: Any  # the row
    j: Any  # the first column
    n: Any  # columns
    output: Any  # index of the first result, in C order


@reloadable
class ChainOrder(NamedTuple):
    """The order of sums in which each term is added to a running sum: in one chunk, or in several that are added up."""

    chunk: Any  # terms of a chunk
    single: Any  # there is one chunk, which starts from c, and whose total is the result
    fused: Any  # products are not rounded


@reloadable
class AdditionTargets(NamedTuple):
    """Layouts (arrays of integers) for adding one sum to another: `term` of the added sum, `total` of the result."""

    term: Any
    total: Any


@reloadable
class Words(NamedTuple):
    """Scratch arrays (4, n) of random words, for four successive roundings of products, sums and outer sums."""

    products: Any
    sums: Any
    joins: Any


@reloadable
class LaneSteps(NamedTuple):
    """Functions that multiply and add for one representation of sums, on n lanes at once.

    multiply `(x, k, tile, t, i, words, w, f, mode)`: set t[i, j] = R(product of term k in lane j), for j < tile.n.
    add `(t, i, x, k, n, words, w, targets, mode)`: set t[i, j] = R(t[i, j] + x[k, j]), for j < n.
    fused `(x, k, tile, t, i, words, w, f, mode)`: set t[i, j] = R(t[i, j] + product of term k in lane j), j < tile.n.

    R rounds to f.inner or targets.total. t: array of 64-bit words, one sum per column. x: Rows in multiply and fused,
    an array like t in add. tile: SumTile. f: Targets. targets: AdditionTargets. words[w, j]: 32-bit random number for
    stochastic rounding in lane j. mode: a Rounding.
    """

    multiply: Any
    add: Any
    fused: Any


def fill_words(words: Any, n: int, output: Any, step: Any, r: Randomness) -> None:
    """Set words[w, j], for w < 4 and j < n, to the random number of rounding step + w of output number output + j.

    words: 32-bit words, at least (4, n). output: flat index of a result. step: index of a rounding, a multiple of four.
    """
    for j in range(n):
        number = u64(u64(output + u64(j)) + r.first)
        counter = u64(u64(u64(number * r.stride) + step) >> u64(2))
        w0, w1, w2, w3 = philox4x32(counter, u64(counter >> u64(32)), u64(0), u64(0), r.k0, r.k1)
        words[0, j] = w0
        words[1, j] = w1
        words[2, j] = w2
        words[3, j] = w3


@scalar
def first_of_sums(terms: int) -> Any:
    """Return the index, a uint64, of a result's first random word for sums, after those of its `terms` products."""
    return u64((terms + 3) // 4 * 4)


@scalar
def one_by_one(
    x: Rows, tile: SumTile, chain: ChainOrder, k: int, stop: int, f: Targets, r: Randomness, t: Any, words: Any
) -> Any:  # fmt: skip
    """Return 0, whatever the arguments: this default for `ahead` of `tile_in_order` adds no terms."""
    return 0


def tile_in_order(
    lanes: LaneSteps, join: Function, fill_words: Function, ahead: Function = one_by_one
) -> Function:  # fmt: skip
    """Return the function that computes a tile of sums in the order of Sequential, FusedMultiplyAdd or Chunked.

    It is `(x, out, tile, chain, f, r, t, words)`, where out is an (M, N) array of 64-bit words, of which it fills the
    tile. t: (3, n) scratch array, whose rows RUN, PRODUCT and OUTER hold the sum of a chunk, its next product and the
    sum of chunks. If chain.single, the only chunk starts from c, or 0; else each chunk starts from 0, and the sum of
    chunks from c, or 0.

    lanes: the functions that multiply and add. join: `add` for sums of chunks. fill_words: this file's function,
    compiled. ahead: function `(x, tile, chain, k, stop, f, r, t, words)` that may add terms k to stop - 1 at most to
    t[RUN] by other means; it returns how many it added.
    """
    multiply, add, fuse = lanes

    def in_order(
        x: Rows, out: Any, tile: SumTile, chain: ChainOrder, f: Targets, r: Randomness, t: Any, words: Words
    ) -> None:
        i, j, n, output = tile
        chunk, single, fused = chain
        inner, outer = AdditionTargets(f.inner, f.inner), AdditionTargets(f.inner, f.outer)
        c, mode, terms = x.c, r.mode, x.a.shape[1]
        sums = first_of_sums(terms)
        start_row = RUN if single else OUTER
        for lane in range(n):
            t[start_row, lane] = u64(c[i, j + lane]) if c.size > 0 else u64(0)
        for start in range(0, terms, chunk):
            if not single:
                for lane in range(n):
                    t[RUN, lane] = u64(0)
            k, stop = start, min(start + chunk, terms)
            while k < stop:
                done = ahead(x, tile, chain, k, stop, f, r, t, words)
                if done:
                    k += done
                    continue
                if mode == STOCHASTIC and (k % 4 == 0):
                    fill_words(words.sums, n, output, u64(sums + u64(k)), r)
                    if not fused:
                        fill_words(words.products, n, output, u64(k), r)
                if fused:
                    fuse(x, k, tile, t, i64(RUN), words.sums, k % 4, f, mode)
                else:
                    multiply(x, k, tile, t, i64(PRODUCT), words.products, k % 4, f, mode)
                    add(t, i64(RUN), t, i64(PRODUCT), n, words.sums, k % 4, inner, mode)
                k += 1
            if not single:
                run = start // chunk
                if mode == STOCHASTIC and (run % 4 == 0):
                    fill_words(words.joins, n, output, u64(u64(sums + sums) + u64(run)), r)
                join(t, i64(OUTER), t, i64(RUN), n, words.joins, run % 4, outer, mode)
        for lane in range(n):
            out[i, j + lane] = t[start_row, lane]

    return in_order


@scalar
def number_levels(numbers: Any, terms: int) -> None:
    """Set numbers[level] to the number of sums below that level of a pairwise tree over `terms` terms, in place."""
    left, number = terms, 0
    for level in range(numbers.size):
        numbers[level] = number
        number += left // 2
        left = (left + 1) // 2


@scalar
def no_subtree(
    x: Rows, tile: SumTile, k: int, f: Targets, r: Randomness, stack: Any, height: int, numbers: Any, words: Any
) -> Any:  # fmt: skip
    """Return False, whatever the arguments: this default for `ahead` of `tile_by_pairs` sums no subtree."""
    return False


def tile_by_pairs(
    lanes: LaneSteps, fill_words: Function, ahead: Function = no_subtree, levels: int = 0
) -> Function:  # fmt: skip
    """Return the function that computes a tile of sums in the order of Pairwise: neighbours are added, level by level.

    It is `(x, out, tile, f, r, stack, numbers, words)`, where out is an (M, N) array of 64-bit words, of which it fills
    the tile. numbers: as `number_levels` fills it. The scratch array `stack` holds the totals of complete subtrees, one
    per row: one of 2**level terms for each bit that is set in k when term k is read. A subtree without a left neighbour
    moves up a level unchanged. c is added to the total, last.

    lanes: the functions that multiply and add. fill_words: this file's function, compiled. ahead: function `(x, tile,
    k, f, r, stack, height, numbers, words)` that may write the total of the 2**levels terms from k on to stack[height]
    by other means and return True; else it returns False.
    """
    multiply, add, _ = lanes

    def by_pairs(
        x: Rows, out: Any, tile: SumTile, f: Targets, r: Randomness, stack: Any, numbers: Any, words: Words
    ) -> None:
        i, j, n, output = tile
        c, mode, inner, terms = x.c, r.mode, AdditionTargets(f.inner, f.inner), x.a.shape[1]
        sums = first_of_sums(terms)
        height, k = 0, 0
        while k < terms:
            level = 0
            if ahead(x, tile, k, f, r, stack, height, numbers, words):
                level = levels
                k += (1 << levels) - 1
            else:
                if mode == STOCHASTIC and (k % 4 == 0):
                    fill_words(words.products, n, output, u64(k), r)
                multiply(x, k, tile, stack, height, words.products, k % 4, f, mode)
            height += 1
            # the sums that term k completes, then c after the last term
            while height > 1 and (k >> level & 1 or k + 1 == terms):
                if k >> level & 1:
                    number = numbers[level] + (k >> (level + 1))
                    if mode == STOCHASTIC:
                        fill_words(words.sums, n, output, u64(sums + u64(number // 4 * 4)), r)
                    add(stack, height - 2, stack, height - 1, n, words.sums, number % 4, inner, mode)
                    height -= 1
                level += 1
            k += 1
        if c.size > 0:
            for lane in range(n):
                stack[1, lane] = u64(c[i, j + lane])
            number = terms - 1
            if mode == STOCHASTIC:
                fill_words(words.sums, n, output, u64(sums + u64(number // 4 * 4)), r)
            add(stack, i64(0), stack, i64(1), n, words.sums, number % 4, inner, mode)
        for lane in range(n):
            out[i, j + lane] = stack[0, lane]

    return by_pairs
