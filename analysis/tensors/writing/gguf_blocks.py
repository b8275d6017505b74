"""GGUF's layouts of blocks of 32 values: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fpsim.analysis.tensors.writing.scales import block_amax, block_extremes
from fpsim.analysis.tensors.writing.weights import LayoutOptions, WeightToWrite, WrittenWeight
from fpsim.arrays import Array

U8 = np.dtype(np.uint8)
BLOCK = 32
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}  # bytes of a block


def q4_0(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in GGUF's Q4_0: step d = e / -8 for the value e of largest magnitude in a block, code =
    min(trunc(x / d + 8.5), 15).

    weight: the matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields
    their elements in pieces. options: not used.

    Source: ggml 0.13.1, which writes the same bytes.
    """
    return _blocks(weight, "Q4_0", _q4_0)


def q4_1(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in GGUF's Q4_1: step d = (max - min) / 15 in a block, code = min(trunc((x - min) / d + 0.5), 15);
    d and min are stored.

    weight: the matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields
    their elements in pieces. options: not used.

    Source: ggml 0.13.1, which writes the same bytes.
    """
    return _blocks(weight, "Q4_1", _q4_1)


def q5_0(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in GGUF's Q5_0: step d = e / -16 for the value e of largest magnitude in a block, code =
    min(trunc(x / d + 16.5), 31).

    weight: the matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields
    their elements in pieces. options: not used.

    Source: ggml 0.13.1, which writes the same bytes.
    """
    return _blocks(weight, "Q5_0", _q5_0)


def q5_1(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in GGUF's Q5_1: step d = (max - min) / 31 in a block, code = min(trunc((x - min) / d + 0.5), 31);
    d and min are stored.

    weight: the matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields
    their elements in pieces. options: not used.

    Source: ggml 0.13.1, which writes the same bytes.
    """
    return _blocks(weight, "Q5_1", _q5_1)


def q8_0(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in GGUF's Q8_0: step d = amax / 127 in a block, code = x / d with ties away from zero; ggml
    0.13.1 writes the same bytes.

    weight: the matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields
    their elements in pieces. options: not used.
    """
    return _blocks(weight, "Q8_0", _q8_0)


def _blocks(weight: WeightToWrite, kind: str, coded: Callable[[Array], tuple[Array, ...]]) -> WrittenWeight:
    """Return a weight as GGUF blocks of the type `kind`.

    `coded`: converts values, (blocks, 32) float32, to the fields of each block, arrays whose first axis is that of the
    blocks.
    """
    n, k = weight.shape

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            fields = coded(band.reshape(-1, BLOCK))
            yield "weight", np.concatenate([field.view(np.uint8) for field in fields], axis=1)

    return WrittenWeight({"weight": (U8, (n, k // BLOCK * BYTES[kind]))}, pieces)


def _q8_0(blocks: Array) -> tuple[Array, ...]:
    """Return (float16 steps, int8 codes) of Q8_0 for blocks of values, (blocks, 32)."""
    amax = block_amax(blocks, BLOCK)[:, 0]
    step = amax / np.float32(127)
    scaled = blocks * _inverse(step)[:, None]
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    return step.astype("<f2")[:, None], codes


def _q4_0(blocks: Array) -> tuple[Array, ...]:
    """Return (float16 steps, codes, two in a byte) of Q4_0 for blocks of values, (blocks, 32)."""
    step, codes = _offset(blocks, 8)
    return step, _halves(codes)


def _q5_0(blocks: Array) -> tuple[Array, ...]:
    """Return the fields of Q5_0 for blocks of values, (blocks, 32).

    They are float16 steps, the fifth bits of the codes, and their low nibbles, two in a byte.
    """
    step, codes = _offset(blocks, 16)
    return step, _fifths(codes), _halves(codes & np.uint8(15))


def _q4_1(blocks: Array) -> tuple[Array, ...]:
    """Return (float16 steps, float16 minima, codes, two in a byte) of Q4_1 for blocks of values, (blocks, 32)."""
    step, low, codes = _lifted(blocks, 15)
    return step, low, _halves(codes)


def _q5_1(blocks: Array) -> tuple[Array, ...]:
    """Return the fields of Q5_1 for blocks of values, (blocks, 32).

    They are float16 steps, float16 minima, the fifth bits of the codes, and their low nibbles, two in a byte.
    """
    step, low, codes = _lifted(blocks, 31)
    return step, low, _fifths(codes), _halves(codes & np.uint8(15))


def _lifted(blocks: Array, top: int) -> tuple[Array, Array, Array]:
    """Return (float16 steps, float16 minima, uint8 codes) of blocks of values, (blocks, 32).

    step = (max - min) / top, code = min(trunc((x - min) * (1 / step) + 0.5), top), from the float32 step and
    minimum; codes are 0 if the step is 0. A minimum of 0 has the sign of the block's first zero.
    """
    low, high = (extremes[:, 0] for extremes in block_extremes(blocks, BLOCK))
    zeros = np.argmax(blocks == 0, axis=1)[:, None]  # the first zero's sign counts if the minimum is 0 or -0
    low = np.where(low == 0, np.take_along_axis(blocks, zeros, axis=1)[:, 0], low)
    step = (high - low) / np.float32(top)
    shifted = np.trunc((blocks - low[:, None]) * _inverse(step)[:, None] + np.float32(0.5))
    codes = np.minimum(shifted, top).astype(np.uint8)
    return step.astype("<f2")[:, None], low.astype("<f2")[:, None], codes


def _fifths(codes: Array) -> Array:
    """Return the fifth bits of 5-bit codes, (blocks, 32) uint8, as (blocks, 4) uint8: the first code's bit is the
    lowest.
    """
    return np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")


def _offset(blocks: Array, middle: int) -> tuple[Array, Array]:
    """Return (float16 steps, uint8 codes) of blocks of values, (blocks, 32).

    step = e / -middle for the value e of largest magnitude, the first of several, so that e has code 0; code =
    min(trunc(x * (1 / step) + middle + 0.5), 2 * middle - 1), from the float32 step.
    """
    place = np.argmax(np.abs(blocks), axis=1)[:, None]
    extreme = np.take_along_axis(blocks, place, axis=1)[:, 0] + np.float32(0)  # of zeros 0, so that the step is -0
    step = extreme / np.float32(-middle)
    shifted = np.trunc(blocks * _inverse(step)[:, None] + np.float32(middle + 0.5))
    return step.astype("<f2")[:, None], np.minimum(shifted, 2 * middle - 1).astype(np.uint8)


def _halves(codes: Array) -> Array:
    """Return 4-bit codes, (blocks, 32), as bytes, (blocks, 16): the first half of a block in the low nibbles, the
    second in the high nibbles.
    """
    return np.asarray(codes[:, : BLOCK // 2] | codes[:, BLOCK // 2 :] << np.uint8(4))


def _inverse(step: Array) -> Array:
    """Return 1 / step for each block, and 0 where the step is 0, in blocks of zeros."""
    with np.errstate(divide="ignore"):
        return np.where(step == 0, np.float32(0), np.float32(1) / step)
