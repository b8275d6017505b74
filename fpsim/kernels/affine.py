"""CPU loops of integers with a zero point: code = round(x / scale) + zero point. Rules: docs/scaling.md."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.jit import kernel, shared
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.scale import BY_SCALE
from fpsim.kernels.scales import HAS_INFINITY, HAS_NAN

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64
NAN_32 = u32(0x7FC00000)
LARGEST = np.int64(32767)


@cache
def range_kernel(width: int) -> Any:
    """The loop `(matrix, lows, highs, specials, rows, columns)`: the range of each tile's finite elements and 0."""
    real: Any = f32 if width == 32 else f64
    word: Any = u32 if width == 32 else u64
    magnitude_mask = word((1 << (width - 1)) - 1)
    infinity = word(0x7F800000 if width == 32 else 0x7FF0000000000000)

    def find_ranges(matrix: Any, lows: Any, highs: Any, specials: Any, rows: int, columns: int) -> None:
        for r in range(matrix.shape[0]):
            for i in range(matrix.shape[1]):
                band, tile = r // rows, i // columns
                magnitude = word(matrix[r, i] & magnitude_mask)
                x = word(matrix[r, i]).view(real)
                if magnitude < infinity:
                    lows[band, tile] = min(lows[band, tile], x)
                    highs[band, tile] = max(highs[band, tile], x)
                else:
                    specials[band, tile] |= HAS_INFINITY if magnitude == infinity else HAS_NAN

    return kernel(find_ranges)


@cache
def _to_integer(width: int, mode: int, kind: int) -> Any:
    """The function `(x, factor, random, f, divides)`: x / factor (or x * factor) rounded to an integer up to 32767."""
    real: Any = f32 if width == 32 else f64
    word: Any = u32 if width == 32 else u64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64

    def to_integer(x: Any, factor: Any, random: Any, f: Any, divides: Any) -> Any:
        y = real(x / factor) if divides else real(x * factor)
        if y != y:
            return LARGEST  # as formats without NaN do
        code = encode_bits(real(y).view(word), random, f, mode, kind)
        magnitude = np.int64(word(code & word(f.sign_bit - word(1))))
        return -magnitude if code >= f.sign_bit else magnitude

    return shared(to_integer)


@cache
def zero_point_kernel(width: int, kind: int, applied: int) -> Any:
    """The loop `(lows, factors, zero_points, lowest, highest, layout)`: z = lowest - round(low / scale), clamped."""
    word: Any = u32 if width == 32 else u64
    to_integer = _to_integer(width, NEAREST_EVEN, kind)
    divides = applied == BY_SCALE

    def find_zero_points(lows: Any, factors: Any, zero_points: Any, lowest: int, highest: int, layout: Any) -> None:
        f = encode_fields(layout)
        for j in range(lows.size):
            offset = to_integer(lows[j], factors[j], word(0), f, divides)
            zero_points[j] = min(max(lowest - offset, lowest), highest)

    return kernel(find_zero_points)


@cache
def affine_kernel(width: int, mode: int, kind: int, applied: int) -> Any:
    """The loop `(matrix, codes, factors, zero_points, rows, columns, lowest, highest, layout, words)`."""
    real: Any = f32 if width == 32 else f64
    word: Any = u32 if width == 32 else u64
    to_integer = _to_integer(width, mode, kind)
    divides = applied == BY_SCALE

    def encode(
        matrix: Any, codes: Any, factors: Any, zero_points: Any, rows: int, columns: int, lowest: int, highest: int,
        layout: Any, words: Any,
    ) -> None:  # fmt: skip
        f = encode_fields(layout)
        width_of_matrix = matrix.shape[1]
        for r in range(matrix.shape[0]):
            for i in range(width_of_matrix):
                band, tile = r // rows, i // columns
                random = word(words[r * width_of_matrix + i]) if words.size > 0 else word(0)
                x = word(matrix[r, i]).view(real)
                code = to_integer(x, factors[band, tile], random, f, divides) + np.int64(zero_points[band, tile])
                codes[r, i] = min(max(code, lowest), highest)

    return kernel(encode)


@cache
def decode_integers_kernel() -> Any:
    """The loop `(codes, scales, zero_points, bits, rows, columns)`: bits of float32((code - zero point) * scale)."""

    def decode(codes: Any, scales: Any, zero_points: Any, bits: Any, rows: int, columns: int) -> None:
        for r in range(codes.shape[0]):
            for j in range(scales.shape[1]):
                scale, zero_point = scales[r // rows, j], np.int64(zero_points[r // rows, j])
                source = codes[r, j * columns : (j + 1) * columns]
                target = bits[r, j * columns : (j + 1) * columns]
                for i in range(source.size):
                    value = f32(f32(np.int64(source[i]) - zero_point) * scale)
                    target[i] = f32(value).view(u32) if value == value else NAN_32

    return kernel(decode)
