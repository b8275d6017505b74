"""Unpacking of codes from bytes and 32-bit words, and the values of codes and scales."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.arrays import FORMAT_OF, Array
from fpsim.casts.cast import decode, quantize
from fpsim.formats.named import E2M1, E8M0, FP32, FP64, Format

WORD = 32  # bits of a word of packed integers
TILE_ROWS, TILE_COLUMNS = 128, 4  # tiles of scales in memory, for tensor cores
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # nibbles of a word, in the order of their columns


def fields(words: Array, bits: int, count: int) -> Array:
    """Return unsigned fields of `bits` (1 to 8) bits unpacked from 32-bit words, lowest bits first.

    A field may extend into the next word. words: (..., W) int32 or uint32. count: number of fields in each row. The
    result is (..., count) uint8.

    Example:
      >>> fields(np.int32([[0x76543210]]), 4, 8).tolist()
      [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    if bits in (4, 8):  # no field crosses a byte
        stored = np.ascontiguousarray(words).view(np.uint32).astype("<u4", copy=False).view(np.uint8)
        return (stored if bits == 8 else nibbles(stored))[..., :count]
    rows = np.ascontiguousarray(words).view(np.uint32).astype(np.uint64)
    following = np.concatenate([rows[..., 1:], np.zeros_like(rows[..., :1])], axis=-1)
    pairs = rows | following << np.uint64(WORD)
    first = np.arange(count) * bits
    shifts = (first % WORD).astype(np.uint64)
    return (pairs[..., first // WORD] >> shifts & np.uint64((1 << bits) - 1)).astype(np.uint8)


def word_of_ones(bits: int) -> np.uint32:
    """Return the 32-bit word with the number 1 in each of its fields of `bits` bits: 0x11111111 for 4 bits."""
    return np.uint32(sum(1 << place for place in range(0, WORD, bits)))


def fields_down(words: Array, bits: int, count: int) -> Array:
    """Return `fields` unpacked along the first axis: 32-bit words (W, N) become (count, N) uint8, lowest bits first.

    bits: bits of a field, 1 to 8. count: number of fields in each column.
    """
    if WORD % bits:  # a field may span two words
        return np.ascontiguousarray(fields(np.ascontiguousarray(words.T), bits, count).T)
    stored, per_word = np.ascontiguousarray(words).view(np.uint32), WORD // bits
    unpacked = np.empty((len(stored), per_word, stored.shape[1]), np.uint8)
    for i in range(per_word):
        np.bitwise_and(stored >> np.uint32(bits * i), (1 << bits) - 1, out=unpacked[:, i], casting="unsafe")
    return unpacked.reshape(-1, stored.shape[1])[:count]


def awq_fields(words: Array) -> Array:
    """Return the 4-bit fields of 32-bit words in AWQ's order: (..., W) words become (..., 8 W) uint8.

    Example:
      >>> awq_fields(np.int32([[0x75316420]])).tolist()
      [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    stored = np.ascontiguousarray(words).view(np.uint32)
    unpacked = np.empty((*stored.shape, len(AWQ_ORDER)), np.uint8)
    for i, nibble in enumerate(AWQ_ORDER):
        np.bitwise_and(stored >> np.uint32(4 * nibble), 15, out=unpacked[..., i], casting="unsafe")
    return unpacked.reshape(*stored.shape[:-1], -1)


def nibbles(pairs: Array) -> Array:
    """Return the two 4-bit codes of each byte, the low one first: (..., B) uint8 become (..., 2 B)."""
    return np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1).reshape(*pairs.shape[:-1], -1)


@cache
def fp4_values() -> Array:
    """Return the values of the 16 codes of E2M1 as float32, in the order of the codes."""
    return np.asarray(decode(np.arange(16, dtype=np.uint8), E2M1), np.float32)


def powers(codes: Array) -> Array:
    """Return the values of E8M0 codes, an array of uint8, as float32: 2**(code - 127), NaN for 255."""
    return np.asarray(decode(np.ascontiguousarray(codes).view(np.uint8), E8M0, np.float32))


def values_of(stored: Array, fmt: Format | None = None) -> Array:
    """Return stored numbers as float32: converted if `fmt` is None, FP32 or FP64, else decoded as codes of `fmt`."""
    if fmt is None or fmt in (FP32, FP64):
        with np.errstate(all="ignore"):
            return np.asarray(stored, np.float32)
    return np.asarray(decode(np.ascontiguousarray(stored).view(fmt.storage), fmt, np.float32))


def rounded_like(values: Array, dtype: Any) -> Array:
    """Return float32 values, rounded to `dtype` if that is a float of 16 bits, else unchanged."""
    fmt = FORMAT_OF.get(np.dtype(dtype))
    return quantize(values, fmt) if fmt is not None and fmt.bits == 16 else values


def unswizzled(tiles: Array, rows: int, columns: int) -> Array:
    """Return the matrix of scales, (rows, columns), that `tiles` stores in cuBLAS's swizzled order.

    Tiles have 128 rows by 4 columns. The four columns of rows r, r + 32, r + 64 and r + 96 of a tile are adjacent in
    memory.

    Example:
      >>> unswizzled(np.arange(512), 128, 4)[[0, 1, 32]].tolist()
      [[0, 1, 2, 3], [16, 17, 18, 19], [4, 5, 6, 7]]
    """
    high, wide = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    grid = tiles.reshape(high, wide, 32, 4, TILE_COLUMNS).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(grid.reshape(high * TILE_ROWS, wide * TILE_COLUMNS)[:rows, :columns])


def swizzled_shape(rows: int, columns: int) -> tuple[int, int]:
    """Return the shape of the array that stores (rows, columns) scales in swizzled order, as torchao writes it.

    It is (32 * tiles down, 16 * tiles across), for tiles of 128 rows by 4 columns.
    """
    return TILE_ROWS // 4 * -(-rows // TILE_ROWS), TILE_COLUMNS * 4 * -(-columns // TILE_COLUMNS)
