"""Layouts of 4- and 8-bit integers in 32-bit words: compressed-tensors' rows, GPTQ's and AWQ's columns.

The libraries compressed-tensors 0.20.0, gptqmodel 7.7.0 and autoawq 0.2.9 write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fpsim.analysis.tensors.layouts.unpacking import WORD, rounded_like, word_of_ones
from fpsim.analysis.tensors.writing.scales import block_amax, block_extremes, with_eps
from fpsim.analysis.tensors.writing.weights import LayoutOptions, Stored, WeightToWrite, WrittenWeight, like_model
from fpsim.arrays import Array

I32, I64, F16 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float16)
GROUP = 128  # the default number of codes of a group
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the columns of a word, in the order of its nibbles
LOWEST_RANGE = np.float32(np.float16(1e-5))  # the smallest range of a group of AWQ


def words_of(codes: Array, bits: int) -> Array:
    """Return 4- or 8-bit codes packed along the last axis into 32-bit words, the first code in the lowest bits.

    codes: (..., K) integers below 2**bits; K bits must be whole words. The result is int32, (..., K bits / 32).

    Example:
      >>> [hex(word) for word in words_of(np.arange(8, dtype=np.uint8)[None], 4)[0]]
      ['0x76543210']
    """
    fields = np.ascontiguousarray(codes, np.uint8)
    packed = fields if bits == 8 else fields[..., ::2] | fields[..., 1::2] << np.uint8(4)
    return np.ascontiguousarray(packed).view("<i4").astype(np.int32, copy=False)


def compressed_int4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in compressed-tensors' INT4: for each group s = amax / 7.5 in the model's dtype, code =
    clip(RNE(w / s), -8, 7), stored plus 8.

    options: the group size.

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    (n, k), group, half = weight.shape, options.group_size or GROUP, weight.half
    tensors: Stored = {
        "weight_packed": (I32, (n, -(-k * 4 // WORD))), "weight_scale": (weight.scale_dtype, (n, k // group)),
        "weight_shape": (I64, (2,)),
    }  # fmt: skip

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            groups = band.reshape(len(band), -1, group)
            scales = with_eps(like_model(block_amax(band, group) / np.float32(7.5), half), half)
            codes = np.clip(np.rint(like_model(groups / scales[..., None], half)), -8, 7) + np.float32(8)
            yield "weight_packed", words_of(_whole_words(codes.reshape(band.shape)), 4)
            yield "weight_scale", scales.astype(weight.scale_dtype)
        yield "weight_shape", np.array([n, k], np.int64)

    return WrittenWeight(tensors, pieces)


def compressed_int4_asym(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in compressed-tensors' INT4 with zero points, which are packed along the outputs.

    s = (max - min) / 15 for a range that includes 0, z = RNE(-8 - min / s), code = clip(RNE(w / s + z), -8, 7); codes
    are stored plus 8.

    options: the group size.

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    (n, k), group, half = weight.shape, options.group_size or GROUP, weight.half
    tensors: Stored = {
        "weight_packed": (I32, (n, -(-k * 4 // WORD))), "weight_scale": (weight.scale_dtype, (n, k // group)),
        "weight_zero_point": (I32, (-(-n * 4 // WORD), k // group)), "weight_shape": (I64, (2,)),
    }  # fmt: skip

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(8):
            groups = band.reshape(len(band), -1, group)
            low, high = block_extremes(band, group)
            low, high = np.minimum(low, 0), np.maximum(high, 0)
            scales = like_model(like_model(high - low, half) / np.float32(15), half)
            empty = scales == 0
            scales = with_eps(scales, half)
            zeros = np.clip(np.rint(like_model(np.float32(-8) - like_model(low / scales, half), half)), -8, 7)
            zeros = np.where(empty, np.float32(0), zeros)
            shifted = like_model(like_model(groups / scales[..., None], half) + zeros[..., None], half)
            codes = np.clip(np.rint(shifted), -8, 7) + np.float32(8)
            yield "weight_packed", words_of(_whole_words(codes.reshape(band.shape)), 4)
            yield "weight_scale", scales.astype(weight.scale_dtype)
            columns = _whole_words(np.ascontiguousarray((zeros + np.float32(8)).T))
            yield "weight_zero_point", np.ascontiguousarray(words_of(columns, 4).T)
        yield "weight_shape", np.array([n, k], np.int64)

    return WrittenWeight(tensors, pieces)


def gptq(weight: WeightToWrite, options: LayoutOptions, version: int) -> WrittenWeight:
    """Encode a weight in GPTQ's layout, (K bits/32, N) words packed along the inputs, with scales of groups of inputs.

    With levels = 2^bits - 1, and a range (min to max) that includes 0: s = (max - min) / levels, z = RNE(-min / s), and
    code = clip(RNE((w + s z) / s), 0, levels). With symmetric codes, s = 2 amax / levels, and z is the middle code. A
    group of zeros has the range -1 to 1. Codes are computed with the float32 scale, which is stored in FP16. Unlike
    fpsim, gptqmodel halves s in symmetric groups without negative values, which clips the larger half of their values.

    options: bits, group size and symmetry. version: 1 stores zero points minus one, 2 the zero points themselves.
    """
    (n, k), group, bits = weight.shape, options.group_size or GROUP, options.bits
    groups, levels, per_word = k // group, np.float32((1 << bits) - 1), WORD // bits
    tensors: Stored = {
        "qweight": (I32, (k // per_word, n)), "qzeros": (I32, (groups, n // per_word)), "scales": (F16, (groups, n)),
        "g_idx": (I32, (k,)),
    }  # fmt: skip

    def pieces() -> Iterator[tuple[str, Array]]:
        words, scales16 = np.empty((n, k // per_word), np.int32), np.empty((n, groups), np.float16)
        zero_points = np.empty((n, groups), np.uint8)
        first = 0
        for band in weight.bands(1):
            blocks = band.reshape(len(band), groups, group)
            low, high = block_extremes(band, group)
            low, high = np.minimum(low, 0), np.maximum(high, 0)
            if options.symmetric:
                low, high = -np.maximum(-low, high), np.maximum(-low, high)
            empty = (low == 0) & (high == 0)
            low, high = np.where(empty, np.float32(-1), low), np.where(empty, np.float32(1), high)
            scales = (high - low) / levels
            middle = np.float32(1 << bits - 1)
            zeros = np.full_like(scales, middle) if options.symmetric else np.rint(-low / scales)
            shifted = blocks + (scales * zeros)[..., None]
            codes = np.clip(np.rint(shifted / scales[..., None]), 0, levels)
            rows = slice(first, first + len(band))
            words[rows] = words_of(codes.reshape(band.shape).astype(np.uint8), bits)
            scales16[rows], zero_points[rows] = scales, zeros
            first += len(band)
        yield "qweight", np.ascontiguousarray(words.T)
        stored = words_of(np.ascontiguousarray(zero_points.T), bits)
        if version == 1:  # subtracted from the whole word, so that a zero point of 0 borrows from the next field
            with np.errstate(over="ignore"):
                stored = (stored.view(np.uint32) - word_of_ones(bits)).view(np.int32)
        yield "qzeros", stored
        yield "scales", np.ascontiguousarray(scales16.T)
        yield "g_idx", (np.arange(k) // group).astype(np.int32)

    return WrittenWeight(tensors, pieces)


def awq(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in AWQ's layout, packed along the outputs in AWQ's order of nibbles; all is computed in float16.

    s = max(max - min, 1e-5) / 15, z = clip(-RNE(min / s), 0, 15), code = clip(RNE(w / s) + z, 0, 15).

    options: the group size.

    Source: autoawq 0.2.9, which writes the same bytes. AWQ's search for scales of the inputs is not included, since it
    does not belong to the layout.
    """
    (n, k), group = weight.shape, options.group_size or GROUP
    groups, half = k // group, partial(rounded_like, dtype=np.float16)  # equals NumPy's float16 operations, but faster
    tensors: Stored = {"qweight": (I32, (k, n // 8)), "qzeros": (I32, (groups, n // 8)), "scales": (F16, (groups, n))}

    def pieces() -> Iterator[tuple[str, Array]]:
        words = np.empty((k, n // 8), np.int32)
        zero_words, scales16 = np.empty((groups, n // 8), np.int32), np.empty((groups, n), np.float16)
        first = 0
        for band in weight.bands(8):
            rounded = half(band)
            blocks = rounded.reshape(len(band), groups, group)
            low, high = block_extremes(rounded, group)
            scales = half(np.maximum(half(high - low), LOWEST_RANGE) / np.float32(15))
            zeros = np.clip(-np.rint(half(low / scales)), 0, 15)
            codes = np.clip(np.rint(half(blocks / scales[..., None])) + zeros[..., None], 0, 15)
            columns = slice(first // 8, (first + len(band)) // 8)
            words[:, columns] = _awq_words(codes.astype(np.uint8).reshape(band.shape)).T
            zero_words[:, columns] = _awq_words(zeros.astype(np.uint8)).T
            scales16[:, first : first + len(band)] = scales.T
            first += len(band)
        yield "qweight", words
        yield "qzeros", zero_words
        yield "scales", scales16

    return WrittenWeight(tensors, pieces)


def _awq_words(codes: Array) -> Array:
    """Return 4-bit codes packed along the outputs in AWQ's order: (N, K) uint8 become (N / 8, K) int32.

    The nibbles of a word, the lowest first, are those of the outputs 0, 2, 4, 6, 1, 3, 5 and 7 of eight neighbours.
    """
    rows = codes.reshape(-1, 8, codes.shape[1])
    words = np.zeros((len(rows), codes.shape[1]), np.uint32)
    for place, row in enumerate(AWQ_COLUMNS):
        words |= rows[:, row].astype(np.uint32) << np.uint32(4 * place)
    return words.view(np.int32)


def _whole_words(codes: Array) -> Array:
    """Return 4-bit codes as uint8, padded with zeros along the last axis to a multiple of 8, the codes of a word."""
    padding = -codes.shape[-1] % 8
    fields = codes.astype(np.uint8)
    return np.pad(fields, ((0, 0), (0, padding))) if padding else fields
