"""GGUF's layouts of blocks of 32 values, as ggml 0.13.1 writes them: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fpsim.analysis.tensors.writing.scales import U8, block_amax, block_extremes
from fpsim.analysis.tensors.writing.weights import LayoutOptions, WeightToWrite, WrittenWeight
from fpsim.arrays import Array

BLOCK = 32
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}  # bytes of a block


def write(weight: WeightToWrite, options: LayoutOptions, kind: str) -> WrittenWeight:
    """Encode a weight as GGUF blocks of the type `kind`, such as "Q8_0"."""
    n, k = weight.shape

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            fields = CODED[kind](band.reshape(-1, BLOCK))
            yield "weight", np.concatenate([field.view(np.uint8) for field in fields], axis=1)

    return WrittenWeight({"weight": (U8, (n, k // BLOCK * BYTES[kind]))}, pieces)


def _without_minima(blocks: Array, bits: int) -> tuple[Array, ...]:
    """Return the fields of Q4_0 or Q5_0 blocks, codes of 4 or 5 `bits`, for float32 values (blocks, 32).

    They are steps, float16 (blocks, 1); for 5 bits, the fifth (highest) bits of the codes, uint8 (blocks, 4), where
    code i has bit i % 8 of byte i // 8; and the low four bits of the codes, uint8 (blocks, 16), where byte i has those
    of code i in its low half, and those of code i + 16 in its high half.

    With middle = 2^(bits - 1), step = e / -middle for the value e of largest magnitude, the first of several, so that e
    has code 0; code = min(trunc(x * (1 / step) + middle + 0.5), 2 * middle - 1), from the float32 step.
    """
    middle = 1 << bits - 1
    place = np.argmax(np.abs(blocks), axis=1)[:, None]
    extreme = np.take_along_axis(blocks, place, axis=1)[:, 0] + np.float32(0)  # of zeros 0, so that the step is -0
    step = extreme / np.float32(-middle)
    shifted = np.trunc(blocks * _inverse(step)[:, None] + np.float32(middle + 0.5))
    codes = np.minimum(shifted, 2 * middle - 1).astype(np.uint8)
    return step.astype("<f2")[:, None], *_packed(codes, bits)


def _with_minima(blocks: Array, bits: int) -> tuple[Array, ...]:
    """Return the fields of Q4_1 or Q5_1 blocks, codes of 4 or 5 `bits`, for float32 values (blocks, 32).

    They are steps and minima, each float16 (blocks, 1); for 5 bits, the fifth (highest) bits of the codes, uint8
    (blocks, 4), where code i has bit i % 8 of byte i // 8; and the low four bits of the codes, uint8 (blocks, 16),
    where byte i has those of code i in its low half, and those of code i + 16 in its high half.

    With top = 2^bits - 1, step = (max - min) / top, code = min(trunc((x - min) * (1 / step) + 0.5), top), from the
    float32 step and minimum; codes are 0 if the step is 0. A minimum of 0 has the sign of the block's first zero.
    """
    top = (1 << bits) - 1
    low, high = (extremes[:, 0] for extremes in block_extremes(blocks, BLOCK))
    zeros = np.argmax(blocks == 0, axis=1)[:, None]  # the first zero's sign counts if the minimum is 0 or -0
    low = np.where(low == 0, np.take_along_axis(blocks, zeros, axis=1)[:, 0], low)
    step = (high - low) / np.float32(top)
    shifted = np.trunc((blocks - low[:, None]) * _inverse(step)[:, None] + np.float32(0.5))
    codes = np.minimum(shifted, top).astype(np.uint8)
    return step.astype("<f2")[:, None], low.astype("<f2")[:, None], *_packed(codes, bits)


def _q8_0(blocks: Array) -> tuple[Array, ...]:
    """Return the fields of Q8_0 blocks for float32 values (blocks, 32).

    They are (steps, codes). A block's step is amax / 127, stored as float16 (blocks, 1). A code is x / step, with the
    float32 step, rounded to nearest with ties away from 0: int8 (blocks, 32).
    """
    amax = block_amax(blocks, BLOCK)[:, 0]
    step = amax / np.float32(127)
    scaled = blocks * _inverse(step)[:, None]
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    return step.astype("<f2")[:, None], codes


def _packed(codes: Array, bits: int) -> tuple[Array, ...]:
    """Return codes, uint8 (blocks, 32), packed into bytes: (low bits,) for 4 `bits`, (fifth bits, low bits) for 5.

    Fifth bits: the highest bit of each code, (blocks, 4), code 0 in the lowest bit of byte 0. Low bits: the lower four
    bits of each code, (blocks, 16), codes 0 to 15 in the low halves of the bytes, codes 16 to 31 in the high halves.
    """
    fifths = (np.packbits(codes >> np.uint8(4), axis=1, bitorder="little"),) if bits == 5 else ()
    nibbles = codes & np.uint8(15)
    return *fifths, nibbles[:, : BLOCK // 2] | nibbles[:, BLOCK // 2 :] << np.uint8(4)


def _inverse(step: Array) -> Array:
    """Return 1 / step for the step of each block; 0 where the step is 0, as in a block of zeros."""
    with np.errstate(divide="ignore"):
        return np.where(step == 0, np.float32(0), np.float32(1) / step)


# Type -> function from values, (blocks, 32) float32, to the fields of each block.
CODED: dict[str, Callable[[Array], tuple[Array, ...]]] = {
    "Q4_0": partial(_without_minima, bits=4), "Q4_1": partial(_with_minima, bits=4),
    "Q5_0": partial(_without_minima, bits=5), "Q5_1": partial(_with_minima, bits=5), "Q8_0": _q8_0,
}  # fmt: skip
