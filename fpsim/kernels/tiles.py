"""CPU loops over tiles: amax, scale and codes of a strip while it lies in the cache.

A matrix is worked through in bands of one row of tiles, and a band in strips of a few KiB to 256 KiB. Each strip is
read twice, first for the amax of its tiles, then for their codes; the second time it comes from the cache, and while
it does, the next strip is announced, because neither pass alone reads far enough ahead. Between the two, scales are
computed for all tiles of the strip at once. Measured: docs/performance.md.

`shape` tells loops the tile's columns at compile time: 1, a size that is common (the inner loop is then unrolled into a
few vectors), or ANY.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.core.decode import DecodeLayout, decode_bits_32, decode_bits_64
from fpsim.core.encode import EncodeLayout, encode_bits_32, encode_bits_64
from fpsim.core.jit import kernel, shared
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.scale import BY_SCALE
from fpsim.kernels.cast import WORD, Frozen, constants_of, decode_fields, encode_fields, fill_random
from fpsim.kernels.scales import HAS_INFINITY, HAS_NAN, INFINITE_TILES, NAN_TILES
from fpsim.kernels.stream import aligned_empty, prefetch_line

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64

ANY = 0
CHUNK = 128  # elements: a loop of so many is unrolled, which the long body with values at its end needs
FARTHEST = 1 << 13  # elements; the next row of a longer one would have left the cache before it is needed
COMMON = (16, 32, 64, 128)  # columns of tiles for which loops are unrolled


def tile_shape(columns: int) -> int:
    """The compile-time shape of tiles with so many columns."""
    return columns if columns == 1 or columns in COMMON else ANY


def _word(width: int) -> Any:
    return u32 if width == 32 else u64


# Factors by which rows are halved or quartered until one number per tile is left. Within so short a tile, a maximum
# across the lanes of a vector takes longer than all else, and keeps too few loads under way.
FOLDS = {16: (4, 4), 32: (4, 4, 2)}
SMALLEST_FOLD = 4


@cache
def _fold(word: Any, factor: int, mask: Any) -> Any:
    """The loop `(source, target)`: each number of the target is the largest of `factor` magnitudes."""

    def by_two(source: Any, target: Any) -> None:
        for i in range(target.size):
            target[i] = max(word(source[2 * i] & mask), word(source[2 * i + 1] & mask))

    def by_four(source: Any, target: Any) -> None:
        for i in range(target.size):
            left = max(word(source[4 * i] & mask), word(source[4 * i + 1] & mask))
            right = max(word(source[4 * i + 2] & mask), word(source[4 * i + 3] & mask))
            target[i] = max(left, right)

    return shared(by_two if factor == 2 else by_four)


@cache
def amax_loop(width: int, shape: int) -> Any:
    """The inlined loop `(row, tops, columns, space)`: raise tops to the amax bits of the tiles in one row of a strip.

    space: words for numbers in between, a quarter as many as the row has.
    """
    word: Any = _word(width)
    mask = word((1 << (width - 1)) - 1)
    folds = FOLDS.get(shape, ())
    fold_two, fold_four = _fold(word, 2, mask), _fold(word, 4, mask)
    thrice = len(folds) == 3

    def of_columns(row: Any, tops: Any, columns: int, space: Any) -> None:
        for i in range(row.size):
            tops[i] = max(tops[i], word(row[i] & mask))

    def of_folded(row: Any, tops: Any, columns: int, space: Any) -> None:
        tiles = row.size // shape
        quarters, sixteenths = space[: tiles * shape // 4], space[: tiles * shape // 16]
        fold_four(row[: tiles * shape], quarters)
        fold_four(quarters, sixteenths)  # in place: each number is written after all that it comes from are read
        if thrice:
            fold_two(sixteenths, space[:tiles])
        for j in range(tiles):
            tops[j] = max(tops[j], space[j])
        raise_rest(row, tops, tiles)

    def of_common(row: Any, tops: Any, columns: int, space: Any) -> None:
        tiles = row.size // shape
        for j in range(tiles):
            tile = row[j * shape : (j + 1) * shape]
            top = word(0)
            for i in range(shape):
                top = max(top, word(tile[i] & mask))
            tops[j] = max(tops[j], top)
        raise_rest(row, tops, tiles)

    def of_any(row: Any, tops: Any, columns: int, space: Any) -> None:
        for j in range(tops.size):
            tile = row[j * columns : (j + 1) * columns]
            top = tops[j]
            for i in range(tile.size):
                top = max(top, word(tile[i] & mask))
            tops[j] = top

    def raise_rest(row: Any, tops: Any, tiles: int) -> None:
        """The same for the tile at the edge, which is narrower."""
        for i in range(tiles * shape, row.size):
            tops[tiles] = max(tops[tiles], word(row[i] & mask))

    raise_rest = shared(raise_rest)
    if shape in FOLDS:
        return shared(of_folded)
    return shared(of_columns if shape == 1 else of_common if shape else of_any)


@cache
def specials_loop(width: int) -> Any:
    """The loop `(matrix, tops, specials, rows, columns)` where some tile holds NaN or Inf.

    Sets tops of such tiles to the amax of their finite elements, and says in specials what else they hold.
    """
    word: Any = _word(width)
    magnitude_mask = word((1 << (width - 1)) - 1)
    infinity = word(0x7F800000 if width == 32 else 0x7FF0000000000000)

    def find_specials(matrix: Any, tops: Any, specials: Any, rows: int, columns: int) -> None:
        for band in range(tops.shape[0]):
            for j in range(tops.shape[1]):
                if tops[band, j] < infinity:
                    continue
                top = word(0)
                found = 0
                for r in range(band * rows, min((band + 1) * rows, matrix.shape[0])):
                    for i in range(j * columns, min((j + 1) * columns, matrix.shape[1])):
                        magnitude = word(matrix[r, i] & magnitude_mask)
                        if magnitude < infinity:
                            top = max(top, magnitude)
                        else:
                            found |= HAS_INFINITY if magnitude == infinity else HAS_NAN
                tops[band, j] = top
                specials[band, j] = found

    return kernel(find_specials)


class Elements(NamedTuple):
    """What decides the loop over a tile's elements, at compile time."""

    width: int  # of the arithmetic
    shape: int  # of tiles
    mode: int
    kind: int
    applied: int  # whether factors divide or multiply
    integer: bool  # codes are two's complement numbers
    back: bool  # deliver float32 values instead of codes
    frozen: tuple[Frozen, Frozen]  # layouts to compile in
    careful: bool = False  # factors may be NaN, 0 or Inf, and processors differ in the sign of the NaN that they give


@cache
def _value_bits(width: int, careful: bool) -> Any:
    """The function `(code, scale, sign_bit, g)`: bits of the float32 nearest to code * scale.

    careful: scales may be NaN, 0 or Inf; then a NaN gets the sign of its code here, as it does by itself otherwise.
    """
    real: Any = f32 if width == 32 else f64
    word: Any = _word(width)
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64
    nan, sign = u32(0x7FC00000), u32(0x80000000)

    def value_bits(code: Any, scale: Any, sign_bit: Any, g: Any) -> Any:
        value = f32(real(word(decode_bits(code, g)).view(real) * scale))
        if careful:
            negative_nan = u32(nan | sign)
            signed_nan = negative_nan if word(code & sign_bit) != word(0) else nan
            return f32(value).view(u32) if value == value else signed_nan
        return f32(value).view(u32)

    return shared(value_bits)


@cache
def element_loop(e: Elements) -> Any:
    """The scalar-inlined loop over one row of a strip: `(row, factors, scales, out, columns, ahead, f, g, words)`.

    out: codes, or bits of float32 values where `back`. ahead: how far on the next strip lies, to be announced.
    words: random words of the row's elements (stochastic mode).
    """
    word: Any = _word(e.width)
    real: Any = f32 if e.width == 32 else f64
    encode_bits = encode_bits_32 if e.width == 32 else encode_bits_64
    shape, mode, kind, back, integer, careful = e.shape, e.mode, e.kind, e.back, e.integer, e.careful
    divides = e.applied == BY_SCALE
    per_line = 512 // e.width
    stochastic = mode == STOCHASTIC
    value_bits = _value_bits(e.width, e.careful)
    sign_bit = word(1 << (e.width - 1))
    nan = word(0x7FC00000 if e.width == 32 else 0x7FF8000000000000)

    def deliver(bits: Any, factor: Any, scale: Any, random: Any, f: Any, g: Any) -> Any:
        """The code of one element, or the bits of its value."""
        x = word(bits).view(real)
        y = real(x / factor) if divides else real(x * factor)
        scaled = real(y).view(word)
        if careful:
            scaled = scaled if y == y else word(nan | word(bits & sign_bit))
        code = encode_bits(scaled, random, f, mode, kind)
        if back:
            return value_bits(code, real(scale), f.sign_bit, g)
        if integer:
            # sign and magnitude become two's complement
            magnitude = word(code & word(f.sign_bit - word(1)))
            return word(word(0) - magnitude) if code >= f.sign_bit else magnitude
        return code

    deliver = shared(deliver)

    def of_columns(
        row: Any, factors: Any, scales: Any, out: Any, columns: int, ahead: int, f: Any, g: Any, words: Any
    ) -> None:
        announce(row, ahead)
        done = 0
        if back:
            for start in range(0, row.size - CHUNK + 1, CHUNK):
                part, result = row[start : start + CHUNK], out[start : start + CHUNK]
                some_factors, some_scales = factors[start : start + CHUNK], scales[start : start + CHUNK]
                some_words = words[start : start + CHUNK] if stochastic else words
                for i in range(CHUNK):
                    random = word(some_words[i]) if stochastic else word(0)
                    result[i] = deliver(part[i], some_factors[i], some_scales[i], random, f, g)
            done = row.size // CHUNK * CHUNK
        for i in range(done, row.size):
            random = word(words[i]) if stochastic else word(0)
            out[i] = deliver(row[i], factors[i], scales[i], random, f, g)

    def of_common(
        row: Any, factors: Any, scales: Any, out: Any, columns: int, ahead: int, f: Any, g: Any, words: Any
    ) -> None:
        tiles = row.size // shape
        for j in range(tiles):
            tile = row[j * shape : (j + 1) * shape]
            target = out[j * shape : (j + 1) * shape]
            random_words = words[j * shape : (j + 1) * shape] if stochastic else words
            factor, scale = factors[j], scales[j]
            for start in range(0, shape, per_line):
                prefetch_line(tile, start + ahead)
            for i in range(shape):
                random = word(random_words[i]) if stochastic else word(0)
                target[i] = deliver(tile[i], factor, scale, random, f, g)
        for i in range(tiles * shape, row.size):
            random = word(words[i]) if stochastic else word(0)
            out[i] = deliver(row[i], factors[tiles], scales[tiles], random, f, g)

    def of_any(
        row: Any, factors: Any, scales: Any, out: Any, columns: int, ahead: int, f: Any, g: Any, words: Any
    ) -> None:
        announce(row, ahead)
        for j in range(factors.size):
            tile = row[j * columns : (j + 1) * columns]
            target = out[j * columns : (j + 1) * columns]
            random_words = words[j * columns : (j + 1) * columns] if stochastic else words
            factor, scale = factors[j], scales[j]
            done = 0
            if back:
                for start in range(0, tile.size - CHUNK + 1, CHUNK):
                    part, result = tile[start : start + CHUNK], target[start : start + CHUNK]
                    some_words = random_words[start : start + CHUNK] if stochastic else words
                    for i in range(CHUNK):
                        random = word(some_words[i]) if stochastic else word(0)
                        result[i] = deliver(part[i], factor, scale, random, f, g)
                done = tile.size // CHUNK * CHUNK
            for i in range(done, tile.size):
                random = word(random_words[i]) if stochastic else word(0)
                target[i] = deliver(tile[i], factor, scale, random, f, g)

    def announce(row: Any, ahead: int) -> None:
        """The row of the next strip will be read soon."""
        if ahead > 0:
            for start in range(0, row.size, per_line):
                prefetch_line(row, start + ahead)

    announce = shared(announce)
    return shared(of_columns if shape == 1 else of_common if shape else of_any)


# How tiles with NaN or Inf are treated: nan="tile" or "element", and the words of infinity.
NAN_TILE, NAN_ELEMENT = 1, 0
SKIP, PROPAGATE, ONE = range(3)


class Specials(NamedTuple):
    """What a loop needs to know of NaN and Inf, all integers."""

    nan: Any  # NAN_TILE or NAN_ELEMENT
    infinity: Any  # SKIP, PROPAGATE or ONE
    one: Any  # bits of an amax whose quotient is 1
    nan_code: Any  # of the scale format
    infinite_amax: Any  # bits of the amax that stands for Inf


@cache
def settle_kernel(width: int, scale_loop: Any) -> Any:
    """The loop `(tops, specials, scales, codes, factors, rules, counts, scale arguments ...)`.

    From the finite amax of tiles and what else they hold to scales and factors.
    """
    word: Any = _word(width)
    real: Any = f32 if width == 32 else f64
    nan = real(np.nan)

    def settle(
        tops: Any, specials: Any, scales: Any, codes: Any, factors: Any, rules: Any, counts: Any, numbers: Any,
        exact: Any, emax: Any, half_place: Any, layout: Any, table: Any, edge_codes: Any,
    ) -> None:  # fmt: skip
        nan_tile, infinite, one, nan_code = rules[0] == NAN_TILE, rules[1], word(rules[2]), rules[3]
        for j in range(tops.size):
            if specials[j] & HAS_INFINITY:
                counts[INFINITE_TILES] += 1
                if infinite == PROPAGATE:
                    tops[j] = word(rules[4])
                elif infinite == ONE:
                    tops[j] = one
            if specials[j] & HAS_NAN:
                counts[NAN_TILES] += 1
                if nan_tile:
                    tops[j] = one
        scale_loop(tops, scales, codes, factors, numbers, exact, emax, half_place, layout, table, edge_codes, counts)
        uncounted = np.zeros_like(counts)  # a scale that is NaN or Inf by rule was not clamped
        for j in range(tops.size):
            unbounded = infinite == PROPAGATE and specials[j] & HAS_INFINITY and scales[j] == f32(np.inf)
            if (nan_tile and specials[j] & HAS_NAN) or unbounded:
                scale_loop(
                    tops[j : j + 1], scales[j : j + 1], codes[j : j + 1], factors[j : j + 1], numbers, exact, emax,
                    half_place, layout, table, edge_codes, uncounted,
                )  # fmt: skip
            if nan_tile and specials[j] & HAS_NAN:
                scales[j] = f32(nan)
                factors[j] = nan
                if codes.size > 0:
                    codes[j] = nan_code
        counts -= uncounted

    return kernel(settle)


@shared
def random_words(space: Any, first: Any, size: int, k0: Any, k1: Any) -> Any:
    """The random words of flat indices first .. first + size, in a part of `space`, which has room for 8 more."""
    skip = int(first & u64(3))  # a counter gives four words; the first may be partly used
    fill_random(space[: (size + skip + 3) // 4 * 4], u64(first >> u64(2)), k0, k1)
    return space[skip : skip + size]


@cache
def amax_strips(width: int, shape: int) -> Any:
    """The loop `(matrix, tops, rows, columns)`: raise the tops of all tiles to the amax bits of their elements."""
    amax = amax_loop(width, shape)

    def find_tops(matrix: Any, tops: Any, rows: int, columns: int) -> None:
        space = np.empty(matrix.shape[1] // SMALLEST_FOLD, matrix.dtype)
        for r in range(matrix.shape[0]):
            amax(matrix[r], tops[r // rows], columns, space)

    return kernel(find_tops)


@cache
def element_strips(e: Elements) -> Any:
    """The loop over rows of tiles whose scales and factors are known; arguments as in `quantize_strips`."""
    word: Any = _word(e.width)
    elements = element_loop(e)
    encode_constants = constants_of(EncodeLayout, word, e.frozen[0])
    decode_constants = constants_of(DecodeLayout, word, e.frozen[1])
    is_frozen = e.frozen[0] is not None
    stochastic = e.mode == STOCHASTIC

    def encode(
        matrix: Any, out: Any, scales: Any, factors: Any, rows: int, columns: int, first: Any, stride: Any, k0: Any,
        k1: Any, encode_layout: Any, decode_layout: Any,
    ) -> None:  # fmt: skip
        f = encode_constants if is_frozen else encode_fields(encode_layout)
        g = decode_constants if is_frozen else decode_fields(decode_layout)
        height, width = matrix.shape
        words = aligned_empty(width + 8 if stochastic else 0, WORD)
        ahead = width if width <= FARTHEST else 0
        for r in range(height):
            random = words
            if stochastic:
                random = random_words(words, u64(first + u64(u64(r) * stride)), width, k0, k1)
            elements(matrix[r], factors[r // rows], scales[r // rows], out[r], columns, ahead, f, g, random)

    return kernel(encode)


@cache
def quantize_strips(e: Elements, scale_loop: Any) -> Any:
    """The loop over a matrix of words, each strip from amax to codes (or values) while it lies in the cache.

    Arguments: the matrix; out, of its shape; scales and scale codes per tile; (rows, columns) of a tile and columns of
    a strip; flat index of the matrix's start, how far on the next row's lies, and the seed's words; layouts of the
    elements; then those of `settle`.
    """
    word: Any = _word(e.width)
    infinity = word(0x7F800000 if e.width == 32 else 0x7FF0000000000000)
    is_single = e.width == 32
    real: Any = f32 if is_single else f64
    largest = real(np.finfo(real).max)
    amax, elements, settle = amax_loop(e.width, e.shape), element_loop(e), settle_kernel(e.width, scale_loop)
    find_specials = specials_loop(e.width)
    careful_elements = element_strips(e._replace(careful=True, frozen=(None, None)))
    encode_constants = constants_of(EncodeLayout, word, e.frozen[0])
    decode_constants = constants_of(DecodeLayout, word, e.frozen[1])
    is_frozen = e.frozen[0] is not None
    stochastic = e.mode == STOCHASTIC

    def quantize(
        matrix: Any, out: Any, scales: Any, codes: Any, rows: int, columns: int, strip: int, first: Any, stride: Any,
        k0: Any, k1: Any, encode_layout: Any, decode_layout: Any, rules: Any, counts: Any, numbers: Any, exact: Any,
        emax: Any, half_place: Any, layout: Any, table: Any, edge_codes: Any,
    ) -> None:  # fmt: skip
        f = encode_constants if is_frozen else encode_fields(encode_layout)
        g = decode_constants if is_frozen else decode_fields(decode_layout)
        height, width = matrix.shape
        tiles = (min(strip, width) + columns - 1) // columns
        all_tops = np.empty((1, tiles), matrix.dtype)
        all_factors = np.empty((1, tiles), np.float32 if is_single else np.float64)
        space = np.empty(min(strip, width) // SMALLEST_FOLD, matrix.dtype)
        all_words = np.empty(min(strip, width) + 8 if stochastic else 0, np.uint32)
        ahead = rows * width if strip >= width else strip  # to the same place in the next strip
        for band in range((height + rows - 1) // rows):
            top, bottom = band * rows, min((band + 1) * rows, height)
            for left in range(0, width, strip):
                right = min(left + strip, width)
                first_tile, last_tile = left // columns, (right + columns - 1) // columns
                tops, factors = all_tops[0, : last_tile - first_tile], all_factors[0, : last_tile - first_tile]
                tile_scales, tile_codes = scales[band, first_tile:last_tile], codes[band, first_tile:last_tile]
                tops[:] = word(0)
                for r in range(top, bottom):
                    amax(matrix[r, left:right], tops, columns, space)
                highest = word(0)
                for j in range(tops.size):
                    highest = max(highest, tops[j])
                plain = highest < infinity
                if plain:
                    scale_loop(
                        tops, tile_scales, tile_codes, factors, numbers, exact, emax, half_place, layout, table,
                        edge_codes, counts,
                    )  # fmt: skip
                    strange = 0
                    for j in range(tops.size):
                        strange += int((factors[j] == real(0)) | (factors[j] > largest))
                    plain = strange == 0
                else:
                    specials = np.zeros((1, tops.size), np.uint8)
                    find_specials(matrix[top:bottom, left:right], all_tops[:, : tops.size], specials, rows, columns)
                    settle(
                        tops, specials[0], tile_scales, tile_codes, factors, rules, counts, numbers, exact, emax,
                        half_place, layout, table, edge_codes,
                    )  # fmt: skip
                if plain:
                    for r in range(top, bottom):
                        words = all_words
                        if stochastic:
                            words = random_words(
                                all_words, u64(first + u64(u64(r) * stride + u64(left))), right - left, k0, k1
                            )
                        elements(
                            matrix[r, left:right], factors, tile_scales, out[r, left:right], columns, ahead, f, g, words
                        )
                else:
                    careful_elements(
                        matrix[top:bottom, left:right], out[top:bottom, left:right],
                        scales[band : band + 1, first_tile:last_tile], all_factors[:, : last_tile - first_tile], rows,
                        columns, u64(first + u64(u64(top) * stride + u64(left))), stride, k0, k1, encode_layout,
                        decode_layout,
                    )  # fmt: skip

    return kernel(quantize)


@cache
def decode_strips(width: int, shape: int, frozen: Frozen) -> Any:
    """The loop `(codes, scales, out, rows, columns, layout, sign_bit)`: bits of float32 values, code times scale."""
    word: Any = _word(width)
    real: Any = f32 if width == 32 else f64
    value_bits = _value_bits(width, True)
    constants = constants_of(DecodeLayout, word, frozen)
    is_frozen = frozen is not None

    def decode(codes: Any, scales: Any, out: Any, rows: int, columns: int, layout: Any, sign_bit: Any) -> None:
        g = constants if is_frozen else decode_fields(layout)
        for r in range(codes.shape[0]):
            row_scales = scales[r // rows]
            if shape == 1:
                source, target = codes[r], out[r]
                for i in range(source.size):
                    target[i] = value_bits(word(source[i]), real(row_scales[i]), sign_bit, g)
            else:
                for j in range(row_scales.size):
                    source, target = (
                        codes[r, j * columns : (j + 1) * columns],
                        out[r, j * columns : (j + 1) * columns],
                    )
                    scale = real(row_scales[j])
                    for i in range(source.size):
                        target[i] = value_bits(word(source[i]), scale, sign_bit, g)

    return kernel(decode)
