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
    """The operands of M * N sums of K terms: a (M, K), b (K, N) or (M * K, N), c (M, N) or empty.

    The arrays hold codes, or the bits of float64 values, as unsigned integers.
    Sum (i, j) adds a[i, k] * b[i * step + k, j] for k = 0 .. K - 1, and c[i, j] unless c is empty. step: 0 if b is (K,
    N), which every row of `a` is multiplied by; K if b is (M * K, N), with separate K rows for each row of `a`.
    """

    a: Any
    b: Any
    step: Any
    c: Any


@reloadable
class Targets(NamedTuple):
    """Layouts by which the terms a and b are read and by which sums are rounded, as 1-D arrays of integers.

    For sums kept as codes, a and b hold the fields of an UnpackLayout; inner and outer hold the fields of an
    EncodeLayout, then the fields of an UnpackLayout, then the argument `rules` of `pack`. Other sums, such as float64
    ones, have other layouts.

    Attributes:
      a, b: layouts of the operands.
      inner: layout of sums within a chunk (consecutive terms that are added first).
      outer: layout of the sum of the chunks' sums, and of c.
    """

    a: Any
    b: Any
    inner: Any
    outer: Any


@reloadable
class Randomness(NamedTuple):
    """The rounding mode of sums, and the source of random numbers for stochastic rounding.

    Attributes:
      mode: a Rounding.
      stride: number of 32-bit random words per output.
      k0, k1: low and high 32-bit word of the seed.
      first: flat index of the first output; random numbers depend on it.
    """

    mode: Any
    stride: Any
    k0: Any
    k1: Any
    first: Any


@reloadable
class SumTile(NamedTuple):
    """A part of the results whose sums are computed together: columns j .. j + n - 1 of row i.

    Attributes:
      i, j, n: the row, the first column, and the number of columns.
      output: flat index of the first of these results, in C order; random numbers depend on it.
    """

    i: Any
    j: Any
    n: Any
    output: Any


@reloadable
class ChainOrder(NamedTuple):
    """The order of sums in which each term is added to a running sum.

    Attributes:
      chunk: number of consecutive terms in one partial sum.
      single: True if there is one chunk only, whose sum starts from c; False if the sums of chunks are added to an
        outer sum, which starts from c.
      fused: True if products are not rounded before they are added.
    """

    chunk: Any
    single: Any
    fused: Any


@reloadable
class AdditionTargets(NamedTuple):
    """The layouts, arrays of integers, for adding one sum to another.

    term: layout of the sum that is added. total: layout of the sum to which it is added, and of the result.
    """

    term: Any
    total: Any


@reloadable
class Words(NamedTuple):
    """Scratch arrays of shape (4, n) for the random words of four successive roundings in each of n lanes.

    Attributes:
      products, sums: words for roundings of products and of sums.
      joins: words for roundings of the outer sum, after a chunk's sum was added to it.
    """

    products: Any
    sums: Any
    joins: Any


@reloadable
class LaneSteps(NamedTuple):
    """Functions that multiply and add for one representation of sums, on n lanes at once.

    R(x) is x rounded to a sum's format.
    multiply `(x, k, tile, t, i, words, w, f, mode)`: set t[i, j] = R(product of term k in lane j), for j < tile.n.
    add `(t, i, x, k, n, words, w, targets, mode)`: set t[i, j] = R(t[i, j] + x[k, j]), for j < n.
    fused `(x, k, tile, t, i, words, w, f, mode)`: set t[i, j] = R(t[i, j] + product of term k in lane j), j < tile.n.

    t: array of 64-bit words, one sum per column, whose row i is written in place.
    x, in multiply and fused: Rows. The product of term k in lane j is a[tile.i, k] * b[tile.i * step + k, tile.j + j].
    tile: SumTile. f: Targets; R rounds to f.inner.
    x, in add: an array like t, or t itself. targets: AdditionTargets; R rounds to targets.total.
    words[w, j]: 32-bit random number of R in lane j, used in stochastic mode. mode: a Rounding.
    """

    multiply: Any
    add: Any
    fused: Any


def fill_words(words: Any, n: int, output: Any, step: Any, r: Randomness) -> None:
    """Set words[w, j], for w < 4 and j < n, to the random number for one rounding of one result.

    It is rounding number step + w of the result with the flat index r.first + output + j. words: (4, n or more) array
    of 32-bit words, written in place. step: index among the roundings of one result, a multiple of four. r: Randomness,
    the seed and the number of words per result.
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
    """Return the index of a result's first random word for roundings of sums, as a uint64.

    terms: the number of products per result, whose random words come before. The index is `terms` rounded up to a
    multiple of four.
    """
    return u64((terms + 3) // 4 * 4)


# the default of `ahead` in tile_in_order, which explains the arguments: it adds no terms in advance
one_by_one: Function = scalar(lambda x, tile, chain, k, stop, f, r, t, words: 0)


def tile_in_order(
    lanes: LaneSteps, join: Function, fill_words: Function, ahead: Function = one_by_one
) -> Function:  # fmt: skip
    """Return the function that computes a tile of sums in the order of Sequential, FusedMultiplyAdd or Chunked.

    These are the public classes of sum orders in which each term is added to a running sum. The function's arguments
    are `(x, out, tile, chain, f, r, t, words)`; it writes to `out` and uses t and words as scratch arrays.
    x: Rows, the operands. out: (M, N) array of 64-bit words, of which it fills the tile. tile: SumTile, the part of the
    results. chain: ChainOrder, the length of chunks.
    f: Targets, the formats. r: Randomness, the rounding mode and the seed. words: Words, for random numbers.
    t: (3, n) array, whose rows RUN, PRODUCT and OUTER hold the sum of a chunk, its next product and the sum of chunks.
    If chain.single, the only chunk starts from c, or 0; else each chunk starts from 0, and the sum of chunks from c, or
    0.

    lanes: LaneSteps, the functions that multiply and add terms; join: the function `add` of the LaneSteps that add a
    chunk's sum to the sum of chunks; fill_words: the function `fill_words` of this file, compiled.
    ahead: function `(x, tile, chain, k, stop, f, r, t, words)` that may add terms k, k + 1, ... (up to stop - 1) to
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
    """Set numbers[level], in place, to the index of the first sum of each level of a pairwise tree of `terms` terms.

    Sums are counted level by level, from the terms up: 8 terms have 4 + 2 + 1 sums, and their levels begin at 0, 4 and
    6. numbers: 1-D array of integers, one for each level.
    """
    left, number = terms, 0
    for level in range(numbers.size):
        numbers[level] = number
        number += left // 2
        left = (left + 1) // 2


# the default of `ahead` in tile_by_pairs, which explains the arguments: it sums no terms in advance
no_subtree: Function = scalar(lambda x, tile, k, f, r, stack, height, numbers, words: False)


def tile_by_pairs(
    lanes: LaneSteps, fill_words: Function, ahead: Function = no_subtree, levels: int = 0
) -> Function:  # fmt: skip
    """Return the function that computes a tile of sums in the order of Pairwise: neighbours are added, level by level.

    Its arguments are `(x, out, tile, f, r, stack, numbers, words)`; it writes to `out`, and uses stack and words as
    scratch arrays.
    x: Rows, the operands. out: (M, N) array of 64-bit words, of which it fills the tile. tile: SumTile, the part of the
    results. f: Targets, the formats. r: Randomness, the rounding mode and the seed. numbers: as `number_levels` fills
    it.
    words: Words, for random numbers.
    The stack holds the totals of complete subtrees, one per row: one of 2**level terms for each bit that is set in k
    when term k is read. Term k completes one subtree for each trailing one bit of k; the last term completes all. A
    subtree without a left neighbour moves up a level unchanged. c is added to the total, last.

    lanes: LaneSteps, the functions that multiply and add; fill_words: the function `fill_words` of this file, compiled.
    ahead: function `(x, tile, k, f, r, stack, height, numbers, words)` that may write the total of the 2**levels terms
    from k on to stack[height] by other means and return True; else it returns False.
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
