"""Values of GGUF's blocks of 256 elements (types K and IQ4_XS), of IQ4_NL, and of MXFP4 and NVFP4.

Each function decodes one type: it takes the bytes of blocks, (blocks, bytes) uint8, and returns float32 values,
(blocks, elements). d and dmin are the float16 scales stored in a block. Each product and sum is rounded to float32, so
that the values equal in bits those that ggml 0.13.1 reads.
"""

from __future__ import annotations

import numpy as np

from fpsim.analysis.tensors.layouts.gguf_blocks import BlockKind, nibbles, step
from fpsim.arrays import Array

F32 = np.float32
IQ4 = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), F32)
E2M1_TWICE = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), F32)
HALVES = np.arange(0, 8, 2, dtype=np.uint8)[:, None]  # shifts of a byte's 2-bit fields


def _q2_k(blocks: Array) -> Array:
    """Return the values of Q2_K blocks, (blocks, 84) uint8, as float32 (blocks, 256).

    A value is (d * scale) * code - dmin * minimum, with a 4-bit scale and minimum for each 16 elements. d and dmin are
    float16 numbers of the block. Bytes 0 to 15: scales (low nibbles) and minima (high nibbles). Bytes 16 to 79: 2-bit
    codes (in the order of `_two_bits`). Bytes 80 and 81: d. Bytes 82 and 83: dmin.
    """
    packed, codes = blocks[:, :16], _two_bits(blocks[:, 16:80]).reshape(len(blocks), 16, 16)
    scales, minima = (packed & np.uint8(15)).astype(F32), (packed >> np.uint8(4)).astype(F32)
    d, least = step(blocks, 80) * scales, step(blocks, 82) * minima
    return _rows(d[..., None] * codes - least[..., None])


def _q3_k(blocks: Array) -> Array:
    """Return the values of Q3_K blocks, (blocks, 110) uint8, as float32 (blocks, 256).

    A value is (d * (scale - 32)) * (code - 4), with a 6-bit scale for each 16 elements. d is a float16 number of the
    block. Bytes 0 to 31: third bits of codes; bit j of byte l belongs to element 32 j + l. Bytes 32 to 95: lower two
    bits of codes (in the order of `_two_bits`). Bytes 96 to 103: lower four bits of scales 0 to 7 in low nibbles, of
    8 to 15 in high ones. Bytes 104 to 107: upper two bits of scales; the field at bit 2 s of byte b belongs to scale
    4 s + b. Bytes 108 and 109: d.
    """
    places = np.arange(8, dtype=np.uint8)[:, None]
    third = (blocks[:, None, :32] >> places & np.uint8(1)).reshape(len(blocks), 256)
    codes = _two_bits(blocks[:, 32:96]).reshape(len(blocks), 256) + third.astype(F32) * F32(4) - F32(4)
    packed = blocks[:, 96:108]
    high = (packed[:, None, 8:] >> HALVES & np.uint8(3)).reshape(len(blocks), 16)
    scales = (nibbles(packed[:, :8]) | high << np.uint8(4)).astype(F32) - F32(32)
    return _rows((step(blocks, 108) * scales)[..., None] * codes.reshape(len(blocks), 16, 16))


def _q5_k(blocks: Array) -> Array:
    """Return the values of Q5_K blocks, (blocks, 176) uint8, as float32 (blocks, 256).

    Bytes 0 to 15: scales and minima, as `_with_minima` decodes them. Bytes 16 to 47: fifth bits of codes; bit j of byte
    16 + l belongs to element 32 j + l. Bytes 48 to 175: lower four bits of codes, in the order of `_four_bits`.
    """
    places = np.arange(8, dtype=np.uint8)[:, None]
    fifth = blocks[:, None, 16:48] >> places & np.uint8(1)  # bit j of byte l belongs to element l of sub-block j
    return _with_minima(blocks, _four_bits(blocks[:, 48:]) + fifth.astype(F32) * F32(16))


def _q6_k(blocks: Array) -> Array:
    """Return the values of Q6_K blocks, (blocks, 210) uint8, as float32 (blocks, 256).

    A value is (d * scale) * (code - 32), with a signed 8-bit scale for each 16 elements. d is a float16 number of the
    block. Bytes 0 to 127: lower four bits of codes; of each 64 bytes, the low nibbles come first, then the high ones.
    Bytes 128 to 191: upper two bits of codes (in the order of `_two_bits`). Bytes 192 to 207: scales. Bytes 208 and
    209: d.
    """
    count = len(blocks)
    low = nibbles(blocks[:, :128].reshape(-1, 64)).reshape(count, 256)
    high = blocks[:, 128:192].reshape(count, 2, 1, 32) >> HALVES & np.uint8(3)
    codes = (low | high.reshape(count, 256) << np.uint8(4)).astype(F32) - F32(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(F32)
    return _rows((step(blocks, 208) * scales)[..., None] * codes.reshape(count, 16, 16))


def _iq4_xs(blocks: Array) -> Array:
    """Return the values of IQ4_XS blocks, (blocks, 136) uint8, as float32 (blocks, 256).

    A value is d * (scale - 32), times the entry of the table IQ4 at the element's 4-bit code. There is a 6-bit scale
    for each 32 elements; d is a float16 number of the block. Bytes 0 and 1: d. Bytes 2 and 3: upper two bits of scales,
    those of the first in the lowest bits. Bytes 4 to 7: lower four bits of scales, low nibble first. Bytes 8 to 135:
    codes, 16 bytes for each 32 elements, all low nibbles before the high ones.
    """
    count = len(blocks)
    upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    lower = np.stack([blocks[:, 4:8] & np.uint8(15), blocks[:, 4:8] >> np.uint8(4)], axis=-1).reshape(count, 8)
    scales = (lower | upper.astype(np.uint8) << np.uint8(4)).astype(F32) - F32(32)
    codes = nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(count, 8, 32)
    return _rows((step(blocks, 0) * scales)[..., None] * IQ4[codes])


def _mxfp4(blocks: Array) -> Array:
    """Return the values of MXFP4 blocks, (blocks, 17) uint8, as float32 (blocks, 32).

    A value is 2^(exponent - 127) times the value of an E2M1 code. The exponent 255 means 2^128, not NaN.
    Byte 0: exponent. Bytes 1 to 16: codes, of elements 0 to 15 in low nibbles, of elements 16 to 31 in high nibbles.
    """
    scales = np.ldexp(F32(1), blocks[:, :1].astype(np.int32) - 128)
    return scales * E2M1_TWICE[nibbles(blocks[:, 1:])]


def _nvfp4(blocks: Array) -> Array:
    """Return the values of NVFP4 blocks, (blocks, 36) uint8, as float32 (blocks, 64).

    A value is that of an E2M1 code times a scale in unsigned E4M3, one for each 16 elements. The scale 0x7F means 0.
    Bytes 0 to 3: scales. Bytes 4 to 35: codes, 8 bytes for each 16 elements, all low nibbles before the high ones.
    """
    field = (blocks[:, :4] >> np.uint8(3) & np.uint8(15)).astype(np.int32)
    fraction = (blocks[:, :4] & np.uint8(7)).astype(F32)
    sizes = np.where(field > 0, F32(8) + fraction, fraction) * np.ldexp(F32(1), np.maximum(field, 1) - 10)
    scales = np.where(blocks[:, :4] == 0x7F, F32(0), sizes) * F32(0.5)
    codes = nibbles(blocks[:, 4:].reshape(-1, 8)).reshape(len(blocks), 4, 16)
    return _rows(scales[..., None] * E2M1_TWICE[codes])


def _with_minima(blocks: Array, codes: Array) -> Array:
    """Return the values of Q4_K or Q5_K blocks, (d * scale) * code - dmin * minimum, as float32 (blocks, 256).

    blocks: (blocks, bytes) uint8. codes: the unpacked codes as float32, (blocks, 8, 32); each 32 share a 6-bit scale
    and minimum. Bytes 0 to 3: d and dmin, float16. Scales 0 to 3 are the lower six bits of bytes 4 to 7, minima 0 to 3
    those of bytes 8 to 11. Bytes 12 to 15: lower four bits of scales 4 to 7 (low nibbles) and of minima 4 to 7 (high
    nibbles), whose upper two bits are those of bytes 4 to 7 (scales) and 8 to 11 (minima).
    """
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    low, high = np.uint8(63), np.uint8(6)
    scales = np.concatenate([first & low, third & np.uint8(15) | first >> high << np.uint8(4)], axis=1)
    minima = np.concatenate([second & low, third >> np.uint8(4) | second >> high << np.uint8(4)], axis=1)
    d, least = step(blocks, 0) * scales.astype(F32), step(blocks, 2) * minima.astype(F32)
    return _rows(d[..., None] * codes - least[..., None])


def _four_bits(pairs: Array) -> Array:
    """Return the 4-bit codes of bytes, (blocks, 128) uint8, as float32 (blocks, 8, 32).

    Row 2 h of a block has the low nibbles of its bytes 32 h to 32 h + 31, row 2 h + 1 their high nibbles.
    """
    return nibbles(pairs.reshape(-1, 32)).reshape(len(pairs), 8, 32).astype(F32)


def _two_bits(quads: Array) -> Array:
    """Return the 2-bit codes of bytes, (blocks, 64) uint8, as float32 (blocks, 2, 4, 32).

    result[block, h, s, i] is the field at bit 2 s of byte 32 h + i.
    """
    return (quads.reshape(len(quads), 2, 1, 32) >> HALVES & np.uint8(3)).astype(F32)


def _rows(values: Array) -> Array:
    """Return the array `values`, (blocks, ...), reshaped to (blocks, elements)."""
    return np.asarray(values.reshape(len(values), -1))


# Number of the type in a file -> the type. Q4_K has its codes (see `_four_bits`) in bytes 16 to 143; IQ4_NL has d in
# bytes 0 and 1, and indices into the table IQ4 in bytes 2 to 17.
LARGE_KINDS = {
    10: BlockKind("Q2_K", 84, _q2_k, 256),
    11: BlockKind("Q3_K", 110, _q3_k, 256),
    12: BlockKind("Q4_K", 144, lambda blocks: _with_minima(blocks, _four_bits(blocks[:, 16:])), 256),
    13: BlockKind("Q5_K", 176, _q5_k, 256),
    14: BlockKind("Q6_K", 210, _q6_k, 256),
    20: BlockKind("IQ4_NL", 18, lambda blocks: step(blocks, 0) * IQ4[nibbles(blocks[:, 2:])]),
    23: BlockKind("IQ4_XS", 136, _iq4_xs, 256),
    39: BlockKind("MXFP4", 17, _mxfp4),
    40: BlockKind("NVFP4", 36, _nvfp4, 64),
}
