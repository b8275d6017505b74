"""CPU loops of stochastically rounded sums, sequential and pairwise: a random draw is added, and its carry rounds.

Sums and products are float64 times a power of two, chosen so that the format's smallest normal value becomes the
smallest normal float64. Then the bits of a value above a fixed place are those that the format keeps, also of
subnormals, and the 32 bits below that place are the fraction that a draw is compared with: the draw is added to them,
the carry rounds, and the remaining bits are cleared. The processor rounds toward zero meanwhile, so bits that a float64
cannot hold are cut, as a draw of 32 bits cuts them.

These loops handle neither overflow nor NaN. Before each block of terms a bound on the sums is compared with the
format's largest value. If the bound exceeds it, or if the format, its options or the operands do not allow the method
above, the block is added step by step (steps.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from fpsim.core.philox import LOW, philox_abreast
from fpsim.core.sums.sum_order import RUN, ChainOrder, Randomness, Rows, SumTile, Targets, first_of_sums
from fpsim.reload import reloadable
from fpsim.runtime.compile import inner_loop, scalar
from fpsim.runtime.float_steps import fused as fma
from fpsim.runtime.processor import exchange_control, has_control, has_fma, rounding_control
from fpsim.sums.kernels.settle import INVERSE, ONE, SETTLING, Settling, settling_fields
from fpsim.sums.kernels.steps import TILE_COLUMNS

f64, u64 = np.float64, np.uint64

BLOCK = 32  # terms between two checks of the bound
LEVELS = BLOCK.bit_length() - 1  # levels of a pairwise tree over BLOCK terms
GROUP = 4  # terms whose random words are of the same counters

CONTROLLED, FUSES = has_control() and not numba.config.DISABLE_JIT, has_fma()
TOWARD_ZERO = u64(rounding_control("toward_zero") if CONTROLLED else 0)
MAGNITUDE = u64((1 << 63) - 1)
TWO = u64(0x400 << 52)
MANTISSA_BITS, DRAW_BITS = u64(52), u64(32)


@reloadable
class WordsAhead(NamedTuple):
    """Scratch arrays for the random 32-bit numbers ("words") of sequential sums.

    Attributes: products, sums, joins: (4, TILE_COLUMNS) uint32, for rounding products, sums, and sums of chunks. fours:
    (8, TILE_COLUMNS) uint64, words of four products and four sums. largest: float64 patterns (bits as uint64) of the
    largest magnitude of b in each tile of columns.
    """

    products: Any
    sums: Any
    joins: Any
    fours: Any
    largest: Any


@reloadable
class DrawPlace(NamedTuple):
    """The position of a format's last mantissa bit in a float64, and the seed of random numbers.

    The attributes are uint64. kept: mask of the bits that the format keeps. place: power of two by which a 32-bit draw
    is multiplied, to be just below these bits. k0, k1: low and high 32 bits of the seed.
    """

    kept: Any
    place: Any
    k0: Any
    k1: Any


@reloadable
class Counters(NamedTuple):
    """Counters of the random number generator Philox, each of which gives the words of four products or of four sums.

    Attributes: first: the counter of the first four products of a tile's first output. step: the distance to the next
    output's counter. of_sums: the distance from the counter of products to that of the sums to which they are added.
    """

    first: Any
    step: Any
    of_sums: Any


@scalar
def _rounded(x: Any, word: Any, u: DrawPlace) -> Any:
    """Return x, a float64, rounded stochastically to the bits of the mask u.kept; word: 32-bit random draw."""
    draw = u64(u64(word & LOW) * u64(u.place & LOW))  # one instruction, as both have 32 bits
    return u64(u64(u64(f64(x).view(u64)) + draw) & u.kept).view(f64)


@scalar
def _step(t: Any, a: Any, b: Any, of_product: Any, of_sum: Any, u: DrawPlace) -> Any:
    """Return t + a * b, product and sum each rounded stochastically, a float64.

    t, a: float64. b: bits of a float64, as uint64. of_product, of_sum: 32-bit random draws. u: the bits that are kept.
    """
    product = _rounded(f64(a * u64(b).view(f64)), of_product, u)
    return _rounded(f64(t + product), of_sum, u)


@scalar
def _fused_step(t: Any, a: Any, b: Any, of_sum: Any, u: DrawPlace) -> Any:
    """Return t + a * b, rounded stochastically once, a float64.

    t, a: float64. b: bits of a float64, as uint64. of_sum: 32-bit random draw. u: the bits that are kept.
    """
    return _rounded(f64(fma(a, u64(b).view(f64), t)), of_sum, u)


@inner_loop
def _fill_fours(words: Any, n: int, counter: Any, step: Any, k0: Any, k1: Any) -> None:
    """Set words[0:4, j], j < n, to the four random 32-bit words of Philox counter + j * step.

    words: (4, n + 1 or more) uint64, of which only the lower halves are meaningful afterwards. k0, k1: the seed's low
    and high word.
    """
    half = (n + 1) // 2  # maybe one lane beyond the end
    x0, x1, x2, x3 = words[0, :half], words[1, :half], words[2, :half], words[3, :half]
    y0, y1, y2, y3 = words[0, half:], words[1, half:], words[2, half:], words[3, half:]
    to_next = u64(u64(half) * step)
    for j in range(half):
        of_x = u64(counter + u64(u64(j) * step))
        x, y = philox_abreast(of_x, u64(of_x + to_next), k0, k1)
        x0[j], x1[j], x2[j], x3[j] = x
        y0[j], y1[j], y2[j], y3[j] = y


@scalar
def _four_terms(a: Any, k: int, scale: Any) -> Any:
    """Return a[k] .. a[k + 3], float64 patterns, as floats multiplied by `scale`."""
    x0, x1 = f64(u64(a[k]).view(f64) * scale), f64(u64(a[k + 1]).view(f64) * scale)
    return x0, x1, f64(u64(a[k + 2]).view(f64) * scale), f64(u64(a[k + 3]).view(f64) * scale)


@inner_loop
def _steps(
    t: Any, a: Any, scale: Any, b: Any, first: int, counters: Counters, fours: Any, u: DrawPlace
) -> None:  # fmt: skip
    """Add a[k] * scale * b[k, first + j], k = 0, 1, ..., one after the other to t[j]; round products and sums.

    t, a: 1-D float64 patterns (uint64); t changes, and len(a) is a multiple of 4. scale: float64. b: 2-D float64
    patterns, a row for each element of a. counters: Philox counters of the random words. fours: uint64 scratch array,
    (8, len(t) + 1 or more). u: mask of the float64 bits that stochastic rounding keeps, and the seed.
    """
    for k in range(0, a.size, GROUP):
        x0, x1, x2, x3 = _four_terms(a, k, scale)
        b0, b1, b2, b3 = b[k, first:], b[k + 1, first:], b[k + 2, first:], b[k + 3, first:]
        of_group = u64(counters.first + u64(k // GROUP))
        _fill_fours(fours[:4], t.size, of_group, counters.step, u.k0, u.k1)
        _fill_fours(fours[4:], t.size, u64(of_group + counters.of_sums), counters.step, u.k0, u.k1)
        p0, p1, p2, p3, s0, s1, s2, s3 = fours[0], fours[1], fours[2], fours[3], fours[4], fours[5], fours[6], fours[7]
        for j in range(t.size):
            y = _step(u64(t[j]).view(f64), x0, b0[j], p0[j], s0[j], u)
            y = _step(y, x1, b1[j], p1[j], s1[j], u)
            y = _step(y, x2, b2[j], p2[j], s2[j], u)
            t[j] = f64(_step(y, x3, b3[j], p3[j], s3[j], u)).view(u64)


@inner_loop
def _fused_steps(
    t: Any, a: Any, scale: Any, b: Any, first: int, counters: Counters, fours: Any, u: DrawPlace
) -> None:  # fmt: skip
    """Add a[k] * scale * b[k, first + j], k = 0, 1, ..., one after the other to t[j]; only the sums are rounded.

    t, a: 1-D float64 patterns; t changes. scale: float64. b: 2-D float64 patterns with len(a) rows, a multiple of
    GROUP. counters: Philox counters at which the random words begin. fours: (8, len(t) + 1 or more) uint64 scratch
    array for them. u: the bits that are kept, and the seed.
    """
    for k in range(0, a.size, GROUP):
        x0, x1, x2, x3 = _four_terms(a, k, scale)
        b0, b1, b2, b3 = b[k, first:], b[k + 1, first:], b[k + 2, first:], b[k + 3, first:]
        of_group = u64(u64(counters.first + counters.of_sums) + u64(k // GROUP))
        _fill_fours(fours[4:], t.size, of_group, counters.step, u.k0, u.k1)
        s0, s1, s2, s3 = fours[4], fours[5], fours[6], fours[7]
        for j in range(t.size):
            y = _fused_step(u64(t[j]).view(f64), x0, b0[j], s0[j], u)
            y = _fused_step(y, x1, b1[j], s1[j], u)
            y = _fused_step(y, x2, b2[j], s2[j], u)
            t[j] = f64(_fused_step(y, x3, b3[j], s3[j], u)).view(u64)


@inner_loop
def largest_of_tiles(b: Any, largest: Any) -> None:
    """Set largest[tile] to the largest magnitude in each tile of TILE_COLUMNS (256) columns of b.

    b: (K, N) float64 patterns. largest: (tiles,) uint64, patterns without signs; NaN counts as larger than all.
    """
    for tile in range(largest.size):
        most = u64(0)
        for k in range(b.shape[0]):
            row = b[k, tile * TILE_COLUMNS : min((tile + 1) * TILE_COLUMNS, b.shape[1])]
            for j in range(row.size):
                most = max(most, u64(row[j] & MAGNITUDE))
        largest[tile] = most


@inner_loop
def _largest(t: Any) -> Any:
    """Return the largest magnitude in t, an array of float64 patterns, as a float64; NaN counts as larger than all."""
    most = u64(0)
    for j in range(t.size):
        most = max(most, u64(t[j] & MAGNITUDE))
    return u64(most).view(f64)


@inner_loop
def _times(t: Any, factor: Any) -> None:
    """Multiply t, an array of float64 patterns (bits as uint64), in place by `factor`, a float64."""
    for j in range(t.size):
        t[j] = f64(u64(t[j]).view(f64) * factor).view(u64)


@inner_loop
def _largest_term(a: Any, scale: Any, inverse: Any) -> Any:
    """Return the largest magnitude in a, or NaN if an element is NaN or its product with `scale` is not exact.

    a: 1-D float64 patterns. scale: a power of two, as float64. inverse: 1 / scale.
    """
    most = f64(0)
    for k in range(a.size):
        x = u64(a[k]).view(f64)
        most = max(most, abs(x)) if f64(f64(x * scale) * inverse) == x else f64(np.nan)
        if not most >= f64(0):
            return most
    return most


@scalar
def _place(terms: Any, b_largest: Any, t: Any, s: Settling, r: Randomness) -> Any:
    """Return (whether sums stay within the format's largest value, scale, 1 / scale, a DrawPlace) for a block of terms.

    `scale` is the power of two that turns the format's smallest normal value into that of float64. A DrawPlace holds
    the bits that the format keeps, and the seed. terms: one row of a for the block. b_largest: largest magnitude of
    the columns of b. t: the sums so far. These three are float64 patterns (uint64). s: constants of the format. r: the
    rounding mode and the seed.
    """
    usual = CONTROLLED and s.random_mask == LOW and s.least <= ONE  # else the power of two would not be normal
    scale = u64(TWO - s.least)
    inverse, scale = u64(INVERSE - scale).view(f64), scale.view(f64)
    mantissa_bits = u64(s.places >> MANTISSA_BITS)
    below = u64(MANTISSA_BITS - mantissa_bits)
    u = DrawPlace(u64(~u64(u64(u64(1) << below) - u64(1))), u64(u64(1) << u64(below - DRAW_BITS)), r.k0, r.k1)
    reached = f64(np.inf)
    if usual:
        product = f64(_largest_term(terms, scale, inverse) * u64(b_largest).view(f64))
        error, growth = u64(ONE - s.places).view(f64), f64(1)  # the largest relative error of a rounding
        for _ in range(BLOCK + 2):  # a product and every sum since, and the errors of this bound
            growth = f64(growth * f64(f64(1) + error))
        reached = f64(f64(_largest(t) + f64(terms.size) * f64(product + u64(s.least).view(f64))) * growth)
    return reached <= u64(s.top).view(f64), scale, inverse, u


@scalar
def blocks_ahead(
    x: Rows, tile: SumTile, chain: ChainOrder, k: int, stop: int, f: Targets, r: Randomness, t: Any, words: WordsAhead
) -> Any:  # fmt: skip
    """Add up to BLOCK (32) terms of a tile's sums, from term k on, one after the other to t[RUN]; return their number.

    It is the argument `ahead` of `sum_order.tile_in_order`: bits and random numbers are the same as in adding term by
    term with the functions of steps.py. The number is 0 if this fast method does not apply: k is no multiple of GROUP,
    fewer than GROUP (4) terms are left, the format or its options do not allow the method, or sums may overflow.

    Args:
      x: the operands, as float64 patterns. tile: the sums that are computed. chain: their order.
      k, stop: the first term, and the one after the last.
      f: constants of the formats. r: rounding mode and seed.
      t: 64-bit words, of which row RUN holds the running sums and changes. words: scratch arrays.
    """
    i, j, n, first_output = tile
    count = min(stop - k, BLOCK) // GROUP * GROUP
    if count <= 0 or k % GROUP != 0 or (chain.fused and not FUSES):
        return 0
    terms, row = x.a[i, k : k + count], t[RUN, :n]
    fits, scale, inverse, u = _place(
        terms, words.largest[j // TILE_COLUMNS], row, settling_fields(f.inner[SETTLING:]), r
    )
    if not fits:
        return 0
    output = u64(first_output + r.first)
    counter, b_row = u64(u64(u64(output * r.stride) + u64(k)) // u64(GROUP)), i * x.step + k
    of_sums, step = u64(first_of_sums(x.a.shape[1]) // u64(GROUP)), u64(r.stride // u64(GROUP))
    _times(row, scale)
    before = exchange_control(TOWARD_ZERO)
    counters = Counters(counter, step, of_sums)
    if chain.fused:
        _fused_steps(row, terms, scale, x.b[b_row : b_row + count], j, counters, words.fours, u)
    else:
        _steps(row, terms, scale, x.b[b_row : b_row + count], j, counters, words.fours, u)
    exchange_control(before)
    _times(row, inverse)
    return count


# ---- sums in pairs


@reloadable
class PairsAhead(NamedTuple):
    """Scratch arrays for the random 32-bit numbers ("words") of sums in pairs, in subtrees of BLOCK terms.

    Column j belongs to output j of a tile. A group is GROUP (4) consecutive terms, numbered within the subtree.

    Attributes:
      products, sums: (4, TILE_COLUMNS) uint32, words of products and of sums that are rounded one by one.
      fours: (12, TILE_COLUMNS) uint64. Rows 0 to 3: words of a group's products. Rows 4 and 5 (6 and 7 for odd
        groups): words of its sums of two products. Row 8 + s % 4: words of a larger sum, number s in its level.
      totals: (BLOCK / GROUP, TILE_COLUMNS) float64 patterns; row g is the sum of group g, until larger sums replace it.
      largest: (tiles,) uint64, float64 patterns of the largest magnitude of b in each tile of columns.
    """

    products: Any
    sums: Any
    fours: Any
    totals: Any
    largest: Any


@scalar
def _product(a: Any, b: Any, word: Any, u: DrawPlace) -> Any:
    """Return float64 a * b, rounded stochastically to the bits u.kept; b: float64 pattern; word: 32-bit random draw."""
    return _rounded(f64(a * u64(b).view(f64)), word, u)


@inner_loop
def _four_by_pairs(
    t: Any, terms: Any, b: Any, k: int, first: int, fours: Any, pair: int, join: int, u: DrawPlace
) -> None:
    """Set t[j] to the pairwise sum of four `terms` times b[k .. k + 3, first + j]; every product and sum is rounded.

    t: float64 patterns, written. terms: four float64. b: 2-D float64 patterns. fours: random words. pair, join: first
    rows in `fours` of the words for sums of two and of four. u: the bits that are kept.
    """
    x0, x1, x2, x3 = terms
    b0, b1, b2, b3 = b[k, first:], b[k + 1, first:], b[k + 2, first:], b[k + 3, first:]
    p0, p1, p2, p3, s0, s1, s2 = fours[0], fours[1], fours[2], fours[3], fours[pair], fours[pair + 1], fours[join]
    for j in range(t.size):
        left = _rounded(f64(_product(x0, b0[j], p0[j], u) + _product(x1, b1[j], p1[j], u)), s0[j], u)
        right = _rounded(f64(_product(x2, b2[j], p2[j], u) + _product(x3, b3[j], p3[j], u)), s1[j], u)
        t[j] = f64(_rounded(f64(left + right), s2[j], u)).view(u64)


@inner_loop
def _join(t: Any, left: Any, right: Any, words: Any, u: DrawPlace) -> None:
    """Set t[j] to left[j] + right[j], float64 patterns, rounded stochastically by words[j] to the bits u.kept."""
    for j in range(t.size):
        t[j] = f64(_rounded(f64(u64(left[j]).view(f64) + u64(right[j]).view(f64)), words[j], u)).view(u64)


@scalar
def subtree_ahead(
    x: Rows, tile: SumTile, k: int, f: Targets, r: Randomness, stack: Any, height: int, numbers: Any, words: PairsAhead
) -> Any:  # fmt: skip
    """Write the pairwise sum of terms k .. k + BLOCK - 1 to stack[height]; return whether that was possible.

    It is the argument `ahead` of `sum_order.tile_by_pairs`: bits and random numbers are the same as in adding pair by
    pair with the functions of steps.py. The result is False if k is no multiple of BLOCK (32), fewer than BLOCK terms
    are left, the format or its options do not allow the method, or sums may overflow.

    Args:
      x: the operands, as float64 patterns. tile: the sums that are computed.
      f: constants of the formats. r: rounding mode and seed.
      stack: (levels, columns) 64-bit words, of which row `height` is written.
      numbers: index of the first sum of each level of the tree. words: scratch arrays.
    """
    i, j, n, first_output = tile
    if k % BLOCK != 0 or k + BLOCK > x.a.shape[1]:
        return False
    terms, total, fours, totals = x.a[i, k : k + BLOCK], stack[height, :n], words.fours, words.totals
    s = settling_fields(f.inner[SETTLING:])
    fits, scale, inverse, u = _place(terms, words.largest[j // TILE_COLUMNS], total[:0], s, r)
    if not fits:
        return False
    output = u64(first_output + r.first)
    counter, step = u64(u64(output * r.stride) // u64(GROUP)), u64(r.stride // u64(GROUP))
    of_sums = u64(counter + u64(first_of_sums(x.a.shape[1]) // u64(GROUP)))
    b = x.b[i * x.step + k : i * x.step + k + BLOCK]
    before = exchange_control(TOWARD_ZERO)
    left = BLOCK // GROUP
    for group in range(left):
        _fill_fours(fours[:4], n, u64(counter + u64(k // GROUP + group)), step, r.k0, r.k1)
        if group % 2 == 0:  # the first sums of BLOCK terms take whole counters
            _fill_fours(fours[4:8], n, u64(of_sums + u64(k // 8 + group // 2)), step, r.k0, r.k1)
        number = numbers[1] + k // GROUP + group
        if group == 0 or number % 4 == 0:
            _fill_fours(fours[8:], n, u64(of_sums + u64(number // 4)), step, r.k0, r.k1)
        four = _four_terms(terms, GROUP * group, scale)
        _four_by_pairs(totals[group, :n], four, b, GROUP * group, j, fours, 4 + 2 * (group % 2), 8 + number % 4, u)
    for level in range(2, LEVELS):
        left //= 2
        for pair in range(left):
            number = numbers[level] + (k >> (level + 1)) + pair
            if pair == 0 or number % 4 == 0:
                _fill_fours(fours[8:], n, u64(of_sums + u64(number // 4)), step, r.k0, r.k1)
            _join(totals[pair, :n], totals[2 * pair, :n], totals[2 * pair + 1, :n], fours[8 + number % 4], u)
    exchange_control(before)
    total[:] = totals[0, :n]
    _times(total, inverse)
    return True
