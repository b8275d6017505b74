"""CPU loops of integers with a zero point: code = round(x / scale) + zero point. Rules: docs/scaling.md."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_fields
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.scaled_element import integer_of, integer_value
from fpsim.core.tile_scale import HAS_INFINITY, HAS_NAN
from fpsim.runtime.compile import kernel
from fpsim.scaling.kernels.amax import float_words, word_of


@cache
def range_kernel(width: int) -> Any:
    """Return the loop (matrix, lows, highs, specials, rows, columns) -> None that widens the range of each tile.

    The range of a tile (block of elements with one scale) grows until it includes the tile's finite elements. matrix:
    2-D bit patterns of floats of `width` bits, 32 or 64. lows, highs: floats of that width, one per tile, 0 at first,
    updated in place. specials: uint8, one per tile, in which the flag HAS_NAN is set for a NaN and HAS_INFINITY for an
    Inf. rows, columns: the size of a tile.
    """
    word, real, magnitude_mask, infinity = float_words(width)

    def find_ranges(matrix: Any, lows: Any, highs: Any, specials: Any, rows: int, columns: int) -> None:
        for r in range(matrix.shape[0]):
            band = r // rows
            for tile in range(lows.shape[1]):
                low, high = lows[band, tile], highs[band, tile]
                for i in range(tile * columns, min((tile + 1) * columns, matrix.shape[1])):
                    magnitude = word(matrix[r, i] & magnitude_mask)
                    x = word(matrix[r, i]).view(real)
                    if magnitude < infinity:
                        low, high = min(low, x), max(high, x)
                    else:
                        specials[band, tile] |= HAS_INFINITY if magnitude == infinity else HAS_NAN
                lows[band, tile], highs[band, tile] = low, high

    return kernel(find_ranges)


@cache
def zero_point_kernel(width: int, kind: int, applied: int) -> Any:
    """Return the loop that computes zero points: lowest - round(low / scale), clamped to lowest .. highest.

    Its arguments are (lows, factors, zero_points, lowest, highest, layout), the first three 1-D with one entry per
    tile. lows: the lowest finite element of each tile, or 0 if that is smaller, in floats of `width` bits. factors:
    what elements are divided by (applied is BY_SCALE) or multiplied with (BY_INVERSE). zero_points: filled, int8 or
    uint8. lowest, highest: the range of the integer format. layout: the encoder's constants as an array (EncodeLayout).

    width: 32 or 64. kind: the checks that the encoder needs, PLAIN, FULL or UNUSUAL (core/encode.py).
    """
    word, real, _, _ = float_words(width)
    to_integer = integer_of(width, NEAREST_EVEN, kind, applied)

    def find_zero_points(lows: Any, factors: Any, zero_points: Any, lowest: int, highest: int, layout: Any) -> None:
        f = encode_fields(layout)
        for j in range(lows.size):
            offset = to_integer(real(lows[j]).view(word), factors[j], word(0), f)
            zero_points[j] = min(max(lowest - offset, lowest), highest)

    return kernel(find_zero_points)


@cache
def affine_kernel(width: int, mode: int, kind: int, applied: int) -> Any:
    """Return the loop that encodes a matrix to integers: round(x / scale) + zero point, clamped.

    Its arguments are (matrix, codes, factors, zero_points, rows, columns, limits, layout, words). matrix: bit patterns
    of floats of `width` bits, 32 or 64. codes: filled, int8 or uint8. factors: per tile, what elements are divided by
    (applied is BY_SCALE) or multiplied with (BY_INVERSE). zero_points: one per tile, of the dtype of codes. rows,
    columns: the size of a tile. limits: lowest and highest code. layout: the constants (EncodeLayout) of the encoder to
    integers before they are clamped, as an array. words: random uint32, one per element, or empty.

    mode: a `fpsim.Rounding` as an integer. kind: the checks that the encoder needs, PLAIN, FULL or UNUSUAL
    (core/encode.py).
    """
    word = word_of(width)
    to_integer = integer_of(width, mode, kind, applied)

    def encode(
        matrix: Any, codes: Any, factors: Any, zero_points: Any, rows: int, columns: int, limits: Any, layout: Any,
        words: Any,
    ) -> None:  # fmt: skip
        f, lowest, highest = encode_fields(layout), limits[0], limits[1]
        width_of_matrix = matrix.shape[1]
        for r in range(matrix.shape[0]):
            band = r // rows
            for tile in range(factors.shape[1]):
                factor, zero_point = factors[band, tile], np.int64(zero_points[band, tile])
                for i in range(tile * columns, min((tile + 1) * columns, width_of_matrix)):
                    random = word(words[r * width_of_matrix + i]) if words.size > 0 else word(0)
                    code = to_integer(word(matrix[r, i]), factor, random, f) + zero_point
                    codes[r, i] = min(max(code, lowest), highest)

    return kernel(encode)


@cache
def decode_integers_kernel() -> Any:
    """Return the loop (codes, scales, zero_points, bits, rows, columns) -> None that decodes integers.

    It fills `bits`, uint32, with the bit patterns of float32((code - zero point) * scale). codes: 2-D int8 or uint8, of
    the shape of `bits`. scales (float32), zero_points (of the dtype of codes): 2-D, one per tile. rows, columns: the
    size of a tile.
    """

    def decode(codes: Any, scales: Any, zero_points: Any, bits: Any, rows: int, columns: int) -> None:
        for r in range(codes.shape[0]):
            for j in range(scales.shape[1]):
                scale, zero_point = scales[r // rows, j], np.int64(zero_points[r // rows, j])
                source = codes[r, j * columns : (j + 1) * columns]
                target = bits[r, j * columns : (j + 1) * columns]
                for i in range(source.size):
                    target[i] = integer_value(source[i], zero_point, scale)

    return kernel(decode)
