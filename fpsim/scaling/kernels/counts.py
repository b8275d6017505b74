"""CPU loops that read tiles without encoding them: they find the amax, or count saturated and underflowed elements."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.tile_scale import BY_SCALE, HAS_INFINITY, HAS_NAN
from fpsim.runtime.compile import kernel, scalar
from fpsim.scaling.kernels.elements import random_words

u64 = np.uint64
CHUNK = 1024  # elements whose random words are made at a time: they stay in the L1 cache


@cache
def look_kernel(width: int) -> Any:
    """Return the loop that finds the amax of tiles, and whether they hold NaN or Inf, in a part of a matrix.

    The amax is the largest magnitude of a tile, a block of elements with one scale. The loop's arguments are (matrix,
    tops, specials, rows, columns, top, left). matrix: the part, which starts at (top, left) of the whole matrix, as bit
    patterns of floats of `width` bits. tops: a bit pattern for every tile of the whole matrix, replaced where the part
    has a larger finite magnitude. specials: a uint8 for every tile, in which the flag HAS_NAN is set for a NaN and
    HAS_INFINITY for an Inf. rows, columns: the size of a tile.
    """
    word: Any = np.uint32 if width == 32 else np.uint64
    mask = word((1 << (width - 1)) - 1)
    infinity = word(0x7F800000 if width == 32 else 0x7FF0000000000000)

    @scalar
    def among_specials(part: Any) -> Any:
        """Return the bit pattern of the largest finite magnitude of a part of a tile, and its flags for Inf and NaN.

        part: 1-D bit patterns, uint32 or uint64. The flags are the sum of HAS_INFINITY and HAS_NAN.
        """
        highest, infinite, nan = word(0), 0, 0
        for i in range(part.size):
            magnitude = word(part[i] & mask)
            highest = max(highest, magnitude if magnitude < infinity else word(0))
            infinite |= int(magnitude == infinity)
            nan |= int(magnitude > infinity)
        return highest, (HAS_INFINITY if infinite else 0) | (HAS_NAN if nan else 0)

    @scalar
    def of_columns(row: Any, tops: Any, specials: Any) -> None:
        """Update the amaxes and flags of tiles of one column each by one row of the matrix.

        row: bit patterns of floats of `width` bits. tops: one pattern per tile, replaced by the row's magnitude if that
        is finite and larger. specials: one uint8 per tile, in which HAS_NAN or HAS_INFINITY is set for a NaN or Inf.
        """
        for i in range(row.size):
            magnitude = word(row[i] & mask)
            tops[i] = max(tops[i], magnitude if magnitude < infinity else word(0))
            specials[i] |= (HAS_INFINITY if magnitude == infinity else 0) | (HAS_NAN if magnitude > infinity else 0)

    def look(matrix: Any, tops: Any, specials: Any, rows: int, columns: int, top: int, left: int) -> None:
        height, length = matrix.shape
        for r in range(height):
            band = (top + r) // rows
            if columns == 1:
                of_columns(matrix[r], tops[band, left : left + length], specials[band, left : left + length])
                continue
            for j in range(left // columns, (left + length + columns - 1) // columns):
                part = matrix[r, max(j * columns - left, 0) : min((j + 1) * columns - left, length)]
                highest = word(0)
                for i in range(part.size):
                    highest = max(highest, word(part[i] & mask))
                if highest >= infinity:  # rare: for most tiles only the loop above runs
                    highest, flags = among_specials(part)
                    specials[band, j] |= flags
                tops[band, j] = max(tops[band, j], highest)

    return kernel(look)


@cache
def count_kernel(width: int, mode: int, kind: int, applied: int) -> Any:
    """Return the loop that counts the saturated and the underflowed elements in a part of a matrix.

    A tile is a block of elements with one factor, which divides or multiplies them. Saturated elements are Inf, or
    round to more than the format's largest value once the factor is applied; underflowed ones are not 0, but round to
    0.

    Its arguments are (matrix, factors, rows, columns, top, left, draws, layout, counts). matrix: the part, which starts
    at (top, left) of the whole matrix, as bit patterns of floats of `width` bits. factors: one per tile of the whole
    matrix. rows, columns: the size of a tile. draws: four uint64, the flat index of the part's first element, the
    distance of that index to the element below, and the seed's low and high word. layout: the encoder's constants as an
    array (EncodeLayout), such that values beyond the format become the largest word, NaN becomes 1, and signs are
    dropped. counts: two int64, [saturated, underflowed], to which the numbers are added.

    mode: a `fpsim.Rounding` as an integer. kind: the checks that the encoder needs, PLAIN, FULL or UNUSUAL
    (core/encode.py). applied: BY_SCALE if factors divide elements, BY_INVERSE if they multiply them.
    """
    word: Any = np.uint32 if width == 32 else np.uint64
    real: Any = np.float32 if width == 32 else np.float64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
    mask, infinity = word((1 << (width - 1)) - 1), word(0x7F800000 if width == 32 else 0x7FF0000000000000)
    beyond, zero = word((1 << width) - 1), word(0)
    nan = word(0x7FC00000 if width == 32 else 0x7FF8000000000000)
    mode_64, kind_64 = np.int64(mode), np.int64(kind)
    divides, stochastic = applied == BY_SCALE, mode == STOCHASTIC

    @scalar
    def code_of(bits: Any, factor: Any, random: Any, f: Any) -> Any:
        """Return the code of an element's magnitude; the encoder drops the sign.

        bits: the element's bit pattern. factor: the number that divides or multiplies it. random: a random
        uint32 in a word of `width` bits for stochastic rounding, else 0. f: the encoder's constants, an EncodeLayout.
        """
        x = word(bits).view(real)
        y = real(x / factor) if divides else real(x * factor)
        return encode_bits(real(y).view(word) if y == y else nan, random, f, mode_64, kind_64)

    def count(
        matrix: Any, factors: Any, rows: int, columns: int, top: int, left: int, draws: Any, layout: Any, counts: Any
    ) -> None:  # fmt: skip
        first, stride, k0, k1 = draws[0], draws[1], draws[2], draws[3]
        f = encode_fields(layout)
        height, length = matrix.shape
        space = np.empty(CHUNK + 8 if stochastic else 0, np.uint32)
        saturated = underflowed = 0
        for r in range(height):
            band = (top + r) // rows
            for begin in range(0, length, CHUNK):
                row = matrix[r, begin : begin + CHUNK]
                first_column = left + begin
                words = space
                if stochastic:
                    words = random_words(space, u64(first + u64(u64(r) * stride + u64(begin))), row.size, k0, k1)
                for j in range(first_column // columns, (first_column + row.size + columns - 1) // columns):
                    start, stop = max(j * columns - first_column, 0), min((j + 1) * columns - first_column, row.size)
                    part, factor = row[start:stop], factors[band, j]
                    some_words = words[start:stop] if stochastic else words
                    for i in range(part.size):
                        random = word(some_words[i]) if stochastic else zero
                        magnitude = word(part[i] & mask)
                        code = code_of(part[i], factor, random, f)
                        saturated += int((code == beyond) | (magnitude == infinity))
                        underflowed += int((code == zero) & (magnitude != zero))
        counts[0] += saturated
        counts[1] += underflowed

    return kernel(count)
