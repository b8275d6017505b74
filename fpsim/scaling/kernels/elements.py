"""CPU loops over the elements of tiles whose scales are known: floats to codes or values, and codes to values."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.casts.loops import WORD, Frozen, constants_of, fill_random
from fpsim.core import nearest
from fpsim.core.decode import DecodeLayout, decode_fields
from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.nearest import encode_nearest_32
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.scaled_element import ElementChoices, element_choices, element_of, value_of
from fpsim.reload import reloadable
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.stream import aligned_empty, prefetch_line
from fpsim.scaling.kernels.amax import float_words, word_of

i64, u64 = np.int64, np.uint64

CHUNK = 128  # elements: a loop of this length is unrolled, which the long body for values needs
FARTHEST = 1 << 13  # elements; the next row of a longer one would have left the cache before it is needed


@reloadable
class Elements(NamedTuple):
    """Compile-time choices of the loop over the elements of a tile, a block of elements with one scale.

    width: bits, 32 or 64, of the float in which elements are divided by scales. shape: the columns of a tile if 1, 16,
    32, 64 or 128, else ANY. back: write float32 values instead of codes. choices: integers such as the rounding mode;
    None to read them at run time, which is slower. frozen: constants (layouts) of encoder and decoder to compile in,
    None for one that is read at run time. careful: factors, which elements are divided by or multiplied with, may be
    NaN, 0 or Inf.
    """

    width: int  # bits of the float in which elements are divided by scales
    shape: int  # columns of a tile, or ANY
    back: bool  # deliver float32 values instead of codes
    choices: ElementChoices | None  # None reads them at run time, so that one, much slower, loop serves all
    frozen: tuple[Frozen, Frozen]  # layouts to compile in
    careful: bool = False  # factors may be NaN, 0 or Inf, and processors differ in the sign of the NaN that they give


@reloadable
class ElementRules(NamedTuple):
    """Rules by which an element becomes a code or a value.

    encoder: the encoder's constants, an EncodeLayout. decoder: the decoder's constants, a DecodeLayout, used only if
    values are written. choices: integers that select the rounding mode, the kind of encoder, division or multiplication
    by the factor, and integer codes.
    """

    encoder: Any  # EncodeLayout
    decoder: Any  # DecodeLayout, for values
    choices: ElementChoices


DECODER = len(EncodeLayout._fields)  # index of the decoder in an array that holds the layouts of encoder and decoder


def choice_words(e: Elements) -> ElementChoices:
    """Return `e.choices` as int64 numbers; zeros if it is None, in which case the loop reads choices at run time."""
    return ElementChoices(*(i64(choice) for choice in e.choices or (0,) * len(ElementChoices._fields)))


def _rounds_by_sum(how: Elements) -> bool:
    """Return whether a loop rounds elements by a floating-point addition (core/nearest.py), not by integer operations.

    how: the loop's compile-time choices. The rounding mode and the encoder's constants must be among them, not read at
    run time, and `nearest.serves` must accept them.
    """
    if how.choices is None or how.frozen[0] is None:
        return False
    layout = EncodeLayout(*how.frozen[0])
    return nearest.serves(how.width, how.choices.mode, how.choices.kind, layout)


@cache
def announcer(width: int) -> Any:
    """Return the inlined function (row, ahead) -> None that prefetches the data `ahead` words after each word of a row.

    It does nothing if `ahead` is 0. width: bits of a word, 32 or 64.
    """
    per_line = 512 // width

    def announce(row: Any, ahead: int) -> None:
        if ahead > 0:
            for start in range(0, row.size, per_line):
                prefetch_line(row, start + ahead)

    return scalar(announce)


@cache
def element_loop(how: Elements) -> Any:
    """Return the inlined loop that encodes one row of a matrix to codes, or to float32 values if `how.back`.

    Its arguments are (row, factors, scales, out, columns, ahead, words, rules). row: bit patterns of floats of
    how.width bits. factors: per tile of the row, what elements are divided by or multiplied with. scales: the decode
    scales of these tiles. out: filled with codes, or with bit patterns of values. columns: number of columns of a tile.
    ahead: distance in words to the data that is prefetched. words: a random word per element (stochastic mode). rules:
    an ElementRules.
    """
    word: Any = word_of(how.width)
    shape, back = how.shape, how.back
    per_line = 512 // how.width
    announce = announcer(how.width)
    deliver = element_of(how.width, back, how.careful, encode_nearest_32 if _rounds_by_sum(how) else None)

    def of_columns(
        row: Any, factors: Any, scales: Any, out: Any, columns: int, ahead: int, words: Any, rules: ElementRules
    ) -> None:
        f, g, e = rules
        announce(row, ahead)
        stochastic = e.mode == STOCHASTIC
        done = 0
        if back:
            for start in range(0, row.size - CHUNK + 1, CHUNK):
                part, result = row[start : start + CHUNK], out[start : start + CHUNK]
                some_factors, some_scales = factors[start : start + CHUNK], scales[start : start + CHUNK]
                some_words = words[start : start + CHUNK] if stochastic else words
                for i in range(CHUNK):
                    random = word(some_words[i]) if stochastic else word(0)
                    result[i] = deliver(part[i], some_factors[i], some_scales[i], random, f, g, e)
            done = row.size // CHUNK * CHUNK
        for i in range(done, row.size):
            random = word(words[i]) if stochastic else word(0)
            out[i] = deliver(row[i], factors[i], scales[i], random, f, g, e)

    def of_common(
        row: Any, factors: Any, scales: Any, out: Any, columns: int, ahead: int, words: Any, rules: ElementRules
    ) -> None:
        f, g, e = rules
        tiles = row.size // shape
        stochastic = e.mode == STOCHASTIC
        for j in range(tiles):
            tile = row[j * shape : (j + 1) * shape]
            target = out[j * shape : (j + 1) * shape]
            random_words = words[j * shape : (j + 1) * shape] if stochastic else words
            factor, scale = factors[j], scales[j]
            for start in range(0, shape, per_line):
                prefetch_line(tile, start + ahead)
            for i in range(shape):
                random = word(random_words[i]) if stochastic else word(0)
                target[i] = deliver(tile[i], factor, scale, random, f, g, e)
        for i in range(tiles * shape, row.size):
            random = word(words[i]) if stochastic else word(0)
            out[i] = deliver(row[i], factors[tiles], scales[tiles], random, f, g, e)

    def of_any(
        row: Any, factors: Any, scales: Any, out: Any, columns: int, ahead: int, words: Any, rules: ElementRules
    ) -> None:
        f, g, e = rules
        announce(row, ahead)
        stochastic = e.mode == STOCHASTIC
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
                        result[i] = deliver(part[i], factor, scale, random, f, g, e)
                done = tile.size // CHUNK * CHUNK
            for i in range(done, tile.size):
                random = word(random_words[i]) if stochastic else word(0)
                target[i] = deliver(tile[i], factor, scale, random, f, g, e)

    return scalar(of_columns if shape == 1 else of_common if shape else of_any)


@scalar
def random_words(space: Any, first: Any, size: int, k0: Any, k1: Any) -> Any:
    """Return `size` random uint32 words, for the elements with the flat indices first, first + 1, ...

    space: scratch of at least size + 8 words, overwritten; the result is a view of it. k0, k1: the seed's low and high
    32 bits.
    """
    skip = int(first & u64(3))  # a counter gives four words; the first may be partly used
    fill_random(space[: (size + skip + 3) // 4 * 4], u64(first >> u64(2)), k0, k1)
    return space[skip : skip + size]


@cache
def element_strips(e: Elements) -> Any:
    """Return the loop that encodes a matrix whose tiles' scales and factors are known.

    Its arguments are (matrix, out, scales, factors, rows, columns, draws, layout, choices). matrix: bit patterns of
    floats of e.width bits. out: filled with codes, or with float32 bit patterns if e.back. scales: the decode scale of
    each tile. factors: per tile, what elements are divided by or multiplied with. rows, columns: the size of a tile.
    draws: four uint64, the flat index of the matrix's start, the distance of that index to the next row's, and the
    seed's low and high word. layout: the constants of the elements' encoder, then of the decoder. choices: the fields
    of ElementChoices as an int64 array, used if e.choices is None.

    e: the choices that are compiled in.
    """
    word: Any = word_of(e.width)
    elements = element_loop(e)
    encode_constants = constants_of(EncodeLayout, word, e.frozen[0])
    decode_constants = constants_of(DecodeLayout, word, e.frozen[1])
    is_frozen = e.frozen[0] is not None
    constants, is_fixed = choice_words(e), e.choices is not None

    def encode(
        matrix: Any, out: Any, scales: Any, factors: Any, rows: int, columns: int, draws: Any, layout: Any, choices: Any
    ) -> None:  # fmt: skip
        how = constants if is_fixed else element_choices(choices)
        stochastic = how.mode == STOCHASTIC
        f = encode_constants if is_frozen else encode_fields(layout)
        g = decode_constants if is_frozen else decode_fields(layout[DECODER:])
        rules = ElementRules(f, g, how)
        height, width = matrix.shape
        words = aligned_empty(width + 8 if stochastic else 0, WORD)
        ahead = width if width <= FARTHEST else 0
        for r in range(height):
            random = words
            if stochastic:
                random = random_words(words, u64(draws[0] + u64(u64(r) * draws[1])), width, draws[2], draws[3])
            elements(matrix[r], factors[r // rows], scales[r // rows], out[r], columns, ahead, random, rules)

    return kernel(encode)


@cache
def decode_strips(width: int, shape: int, frozen: Frozen) -> Any:
    """Return the loop (codes, scales, out, rows, columns, layout, sign_bit) -> None that decodes a matrix.

    codes: 2-D integers. scales: 2-D float32, one per tile. out: uint32, filled with the bit patterns of float32 values,
    code times scale. rows, columns: the size of a tile. layout: the decoder's constants as an array (DecodeLayout).
    sign_bit: the mask of a code's sign.

    width: bits, 32 or 64, of the float in which code times scale is computed. shape: 1 for tiles of one column, else
    any other number. frozen: a DecodeLayout to compile in; None to read it from the argument `layout`.
    """
    word, real, _, _ = float_words(width)
    value_bits = value_of(width, True)
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
