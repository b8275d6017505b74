"""Codes of E4M3 and E2M1, and the rules by which libraries compute scales of blocks.

They are tested on bytes that each library wrote (tests/data/README.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.layouts.unpacking import TILE_COLUMNS, TILE_ROWS, swizzled_shape
from fpsim.analysis.tensors.writing.loops import extremes_of_blocks, largest_of_blocks
from fpsim.analysis.tensors.writing.weights import WeightToWrite, WrittenWeight
from fpsim.arrays import Array
from fpsim.casts.cast import encode

E4M3, E8M0 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu)
F32, U8, I8 = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int8)
SCALE = "_weight_scale"  # the end of the name of torchao's scales
E8M0_BIAS = 127
E8M0_LARGEST = 254
# The exponent of a format's largest power of two, which the rules "floor" and "even" subtract.
EXPONENTS = {"e2m1": 2, "e4m3": 8}
LARGEST = {"e2m1": 6.0, "e4m3": 448.0}


def floor_codes(amax: Array, fmt: str) -> Array:
    """Return E8M0 codes of the scales 2^(floor(log2(amax)) - E), as torchao's `to_mx` and ggml compute them.

    amax: float32, the largest magnitude of each block; the codes are uint8 in its shape. E is the exponent of the
    largest power of two in the format `fmt` ("e2m1" or "e4m3").

    Example:
      >>> floor_codes(np.float32([6, 7.9, 0]), "e2m1").tolist()
      [127, 127, 0]
    """
    return _biased(np.frexp(amax)[1] - 1 - EXPONENTS[fmt], amax)


def ceil_codes(amax: Array, fmt: str) -> Array:
    """Return E8M0 codes of the scales amax / (maximum of the format `fmt`), rounded up to a power of two.

    transformers, ModelOpt and torchao's inference compute these scales. amax: float32, the largest magnitude of each
    block; the codes are uint8 in its shape. fmt: "e2m1" or "e4m3".

    Example:
      >>> ceil_codes(np.float32([448, 449, 0]), "e4m3").tolist()
      [127, 128, 0]
    """
    fraction, exponent = np.frexp(amax / np.float32(LARGEST[fmt]))
    return _biased(np.where(fraction == 0.5, exponent - 1, exponent), amax)


def even_codes(amax: Array, fmt: str) -> Array:
    """Return E8M0 codes of compressed-tensors' scales, 2^(floor(log2(amax rounded to one mantissa bit)) - E).

    amax: float32, the largest magnitude of each block; the codes are uint8 in its shape. E is the exponent of the
    largest power of two in the format `fmt` ("e2m1" or "e4m3").

    Example:
      >>> even_codes(np.float32([6.9, 7, 0]), "e2m1").tolist()
      [127, 128, 0]
    """
    rounded = amax.astype(np.float32).view(np.int32) + np.int32(1 << 21)
    return _biased((rounded >> 23) - E8M0_BIAS - EXPONENTS[fmt], amax)


def _biased(exponents: Array, amax: Array) -> Array:
    """Return the uint8 E8M0 codes of the scales 2^exponent, clipped to E8M0's range.

    Blocks of zeros have the code 0, blocks with Inf or NaN that of NaN, 255. exponents: integers, one for each block.
    amax: largest magnitude of each block.
    """
    codes = np.clip(exponents + E8M0_BIAS, 0, E8M0_LARGEST)
    return np.where(np.isfinite(amax), np.where(amax == 0, 0, codes), 255).astype(np.uint8)


def fp8_codes(values: Array) -> Array:
    """Return values rounded to E4M3, of dtype float8_e4m3fn; values beyond the range become the largest one."""
    return encode(np.ascontiguousarray(values, np.float32), "e4m3", overflow="saturate").view(E4M3)


def e2m1_pairs(values: Array) -> Array:
    """Return float32 values, (rows, K), rounded to E2M1 codes, two in a byte: (rows, K / 2) uint8.

    The first code is in the low bits; values beyond the range become the largest one.
    """
    codes = encode(np.ascontiguousarray(values, np.float32), "e2m1", overflow="saturate")
    return np.asarray(codes[:, ::2] | codes[:, 1::2] << np.uint8(4))


def per_block(operation: Callable[[Array, Array], Array], values: Array, scales: Array) -> Array:
    """Return operation(value, scale of its block) for all values, in their shape.

    values: (rows, K). scales: (rows, blocks), each for K / blocks neighbours in a row.
    """
    return operation(values.reshape(*scales.shape, -1), scales[..., None]).reshape(values.shape)


def block_amax(values: Array, width: int) -> Array:
    """Return the largest magnitude in each block of `width` neighbours in a row, (rows, K / width) float32.

    values: (rows, K) float32. The result is NaN for a block with a NaN.
    """
    largest = np.empty((len(values), values.shape[1] // width), np.uint32)
    largest_of_blocks(np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(-1), width, largest.reshape(-1))
    return largest.view(np.float32)


def block_extremes(values: Array, width: int) -> tuple[Array, Array]:
    """Return (smallest values, largest values) of the blocks of `width` neighbours in a row.

    values: (rows, K) float32. Both results are float32, (rows, K / width). -0 counts as smaller than 0.
    """
    lowest, highest = (np.empty((len(values), values.shape[1] // width), np.int32) for _ in range(2))
    words = np.ascontiguousarray(values, np.float32).view(np.int32).reshape(-1)
    extremes_of_blocks(words, width, lowest.reshape(-1), highest.reshape(-1))
    return lowest.view(np.float32), highest.view(np.float32)


def swizzled(scales: Array) -> Array:
    """Return a matrix of scales in cuBLAS's order, tiles of 128 rows by 4 columns padded with 0.

    The result has 32 rows of 16 columns for each tile; in memory, the four columns of rows r, r + 32, r + 64 and r + 96
    of a tile are adjacent. It is the inverse of `unswizzled`.

    Example:
      >>> swizzled(np.arange(512, dtype=np.uint8).reshape(128, 4))[:3].tolist()
      [[0, 1, 2, 3, 128, 129, 130, 131, 0, 1, 2, 3, 128, 129, 130, 131], [4, 5, 6, 7, 132, 133, 134, 135, 4, 5, 6, 7, \
    132, 133, 134, 135], [8, 9, 10, 11, 136, 137, 138, 139, 8, 9, 10, 11, 136, 137, 138, 139]]
    """
    rows, columns = scales.shape
    high, wide = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    padded = np.zeros((high * TILE_ROWS, wide * TILE_COLUMNS), scales.dtype)
    padded[:rows, :columns] = scales
    tiles = padded.reshape(high, 4, 32, wide, TILE_COLUMNS).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles.reshape(swizzled_shape(rows, columns)))


def of_whole_tiles(weight: WeightToWrite) -> WeightToWrite:
    """Return the weight with a `bands` that yields multiples of 128 rows, so that no band cuts a tile of scales."""
    return weight._replace(bands=lambda multiple: weight.bands(math.lcm(multiple, TILE_ROWS)))


def with_tiles(written: WrittenWeight) -> WrittenWeight:
    """Return an encoded weight in a layout of torchao, with its scales changed to cuBLAS's order (see `swizzled`).

    written: the same weight with scales in plain order. It must be made from the result of `of_whole_tiles`, so that
    no tile of scales is split between two pieces.
    """
    dtype, (rows, columns) = written.tensors[SCALE]

    def pieces() -> Iterator[tuple[str, Array]]:
        for end, piece in written.pieces():
            yield end, swizzled(piece) if end == SCALE else piece

    return written._replace(tensors={**written.tensors, SCALE: (dtype, swizzled_shape(rows, columns))}, pieces=pieces)


def with_eps(scales: Array, half: Any) -> Array:
    """Return scales with each 0 replaced by the machine epsilon of their dtype, as compressed-tensors does.

    Args:
      scales: float32 values.
      half: the dtype of the scales if it has 16 bits; None for float32.
    """
    mantissa = {"bfloat16": 7, "float16": 10}.get("" if half is None else np.dtype(half).name, 23)
    return np.where(scales == 0, np.float32(2.0**-mantissa), scales)
