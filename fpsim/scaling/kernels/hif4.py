"""CPU loops of HiF4: a scale for 64 elements, a doubling bit for each 8 and each 4 of them, codes in units of 1/4.

The rules are in docs/newer-formats.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.tile_scale import HAS_INFINITY, HAS_NAN
from fpsim.runtime.compile import kernel
from fpsim.scaling.kernels.amax import float_words

i64, u32, f32, f64 = np.int64, np.uint32, np.float32, np.float64
SIZE, PAIRS = 64, 8  # elements of a tile; its groups of 8, each of two groups of 4
IS_ZERO = 4  # a flag beside HAS_NAN and HAS_INFINITY
HALF_UP, MODE = f64(0.5), i64(NEAREST_EVEN)


@cache
def hif4_kernel(width: int, bf16_kind: int, scale_kind: int) -> Any:
    """Return the loop that encodes a matrix to HiF4.

    Its arguments are (matrix, codes, scale_codes, levels, inverses, rows, columns, layouts, specials). A tile has 64
    elements that share a scale.

    matrix: bit patterns of floats of `width` bits, 32 or 64. codes: filled; uint8, whose bit 3 is the sign and whose
    bits 0 .. 2 are the magnitude in units of 1/4. scale_codes: filled with the code of each tile's scale. levels:
    filled with a uint32 per tile, whose bits 0 .. 7 belong to groups of 8 elements and bits 8 .. 23 to groups of 4; a
    set bit doubles the values of its group. inverses: by the code of a scale, the reciprocal of the scale in BF16.
    rows, columns: the size of a tile. layouts: the constants (EncodeLayout) of the encoders to BF16 and to a scale, as
    two rows. specials: filled, uint8, one per tile, with the sum of HAS_NAN, HAS_INFINITY and (for a tile of zeros)
    IS_ZERO where they apply.

    bf16_kind, scale_kind: the checks that the two encoders need, PLAIN, FULL or UNUSUAL (core/encode.py).
    """
    word, real, mask, infinity = float_words(width)
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
    seventh = real(0.142578125)  # 1 / 7 in BF16
    kind_of_bf16, kind_of_scale = i64(bf16_kind), i64(scale_kind)

    def encode(
        matrix: Any, codes: Any, scale_codes: Any, levels: Any, inverses: Any, rows: int, columns: int, layouts: Any,
        specials: Any,
    ) -> None:  # fmt: skip
        f, g = encode_fields(layouts[0]), encode_fields(layouts[1])
        quads = np.zeros(2 * PAIRS, matrix.dtype)
        for band in range(scale_codes.shape[0]):
            for tile in range(scale_codes.shape[1]):
                top, bottom = band * rows, min((band + 1) * rows, matrix.shape[0])
                left, right = tile * columns, min((tile + 1) * columns, matrix.shape[1])
                quads[:] = word(0)
                highest, flags = word(0), 0
                for r in range(top, bottom):
                    for c in range(left, right):
                        magnitude = word(matrix[r, c] & mask)
                        if magnitude < infinity:
                            quad = (r - top + c - left) >> 2
                            quads[quad] = max(quads[quad], magnitude)
                            highest = max(highest, magnitude)
                        else:
                            flags |= HAS_INFINITY if magnitude == infinity else HAS_NAN
                specials[band, tile] = flags | (IS_ZERO if highest == word(0) else 0)
                product = real(word(highest).view(real) * seventh)
                rounded = word(encode_bits(real(product).view(word), word(0), f, MODE, kind_of_bf16))
                narrow = real(u32(u32(rounded) << u32(16)).view(f32))
                code = encode_bits(real(narrow).view(word), word(0), g, MODE, kind_of_scale)
                scale_codes[band, tile] = code
                inverse = real(inverses[code])
                bits = u32(0)
                for pair in range(PAIRS):
                    first, second = word(quads[2 * pair]).view(real), word(quads[2 * pair + 1]).view(real)
                    largest = first if first > second else second
                    up = i64(1) if real(largest * inverse) >= real(4) else i64(0)
                    bits |= u32(u32(up) << u32(pair))
                    limit = real(4) if up else real(2)
                    if real(first * inverse) >= limit:
                        bits |= u32(u32(1) << u32(PAIRS + 2 * pair))
                    if real(second * inverse) >= limit:
                        bits |= u32(u32(1) << u32(PAIRS + 2 * pair + 1))
                levels[band, tile] = bits
                for r in range(top, bottom):
                    for c in range(left, right):
                        at = r - top + c - left
                        exponent = i64((bits >> u32(at >> 3)) & u32(1)) + i64((bits >> u32(PAIRS + (at >> 2))) & u32(1))
                        pattern = word(matrix[r, c])
                        y = f64(real(word(pattern & mask).view(real) * inverse)) * f64(4 >> exponent)
                        quarters = i64(7)
                        if y < f64(7):
                            quarters = i64(y)
                            quarters += i64(1) if y - f64(quarters) >= HALF_UP else i64(0)
                        negative = (pattern > mask) & (word(pattern & mask) <= infinity)
                        codes[r, c] = quarters | (i64(8) if negative else i64(0))

    return kernel(encode)


@cache
def hif4_elements_kernel() -> Any:
    """Return the loop (codes, levels, table, values, rows, columns) -> None that decodes HiF4 without scales.

    values: filled, 2-D float32. codes: uint8 of the same shape. table: float32 value of each code. levels: a uint32 per
    tile of 64 elements, with one bit for each group of 8 elements (bits 0 .. 7) and of 4 (bits 8 .. 23). The value is
    table[code], doubled if the bit of the element's group of 8 is set, and doubled (again) if that of its group of 4
    is. rows, columns: the size of a tile.
    """

    def decode(codes: Any, levels: Any, table: Any, values: Any, rows: int, columns: int) -> None:
        for r in range(codes.shape[0]):
            for tile in range(levels.shape[1]):
                bits = u32(levels[r // rows, tile])
                left, right = tile * columns, min((tile + 1) * columns, codes.shape[1])
                for c in range(left, right):
                    at = r % rows + c - left
                    exponent = i64((bits >> u32(at >> 3)) & u32(1)) + i64((bits >> u32(PAIRS + (at >> 2))) & u32(1))
                    values[r, c] = f32(table[codes[r, c]] * f32(i64(1) << exponent))

    return kernel(decode)
