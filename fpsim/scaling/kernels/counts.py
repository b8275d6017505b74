"""CPU loop that reads tiles without encoding them, and counts saturated and underflowed elements."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.tile_scale import BY_SCALE
from fpsim.runtime.compile import kernel, scalar
from fpsim.scaling.kernels.amax import float_words
from fpsim.scaling.kernels.elements import random_words

u64 = np.uint64
CHUNK = 1024  # elements whose random words are made at a time: they stay in the L1 cache


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
    word, real, mask, infinity = float_words(width)
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
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
