"""Values of GGUF's blocks of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, which need no other package.

A block of bytes begins with a step (the difference of adjacent values) as float16. Types _1 store the smallest value
next, types of five bits then a 32-bit word with the fifth bits of all elements. The low nibbles are elements 0 to 15,
the high nibbles elements 16 to 31.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array

BLOCK = 32  # elements
F32 = np.float32


class BlockKind(NamedTuple):
    """A quantised type of GGUF: its name, and the numbers of bytes and of elements of a block.

    decode: function from the bytes of blocks, (blocks, bytes) uint8, to values, (blocks, elements) float32.
    """

    name: str
    bytes: int
    decode: Callable[[Array], Array]
    elements: int = BLOCK


def step(blocks: Array, first: int) -> Array:
    """Return the float16 number stored at byte `first` of each block, as float32 (blocks, 1).

    blocks: (blocks, bytes) uint8. The number is the block's step or smallest value.
    """
    return np.asarray(np.ascontiguousarray(blocks[:, first : first + 2]).view("<f2"), np.float32)


def nibbles(pairs: Array) -> Array:
    """Return the 4-bit codes in bytes: (blocks, B) uint8 become (blocks, 2 B).

    In each row the low nibbles of all bytes come first, then their high nibbles.
    """
    return np.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=1)


def _fives(fields: Array) -> Array:
    """Return the 5-bit codes of blocks, (blocks, 20) uint8, as float32 (blocks, 32).

    The first four bytes of a block store the fifth bit of each code, the other 16 bytes the lower four bits.
    """
    fifth = np.unpackbits(np.ascontiguousarray(fields[:, :4]), axis=1, bitorder="little")
    return np.asarray(nibbles(fields[:, 4:]).astype(F32) + fifth * F32(16))


# Number of the type in a file -> the type; source: ggml 0.13.1, whose files are read with the same bits.
KINDS = {
    2: BlockKind("Q4_0", 18, lambda blocks: step(blocks, 0) * (nibbles(blocks[:, 2:]).astype(F32) - F32(8))),
    3: BlockKind("Q4_1", 20, lambda blocks: step(blocks, 0) * nibbles(blocks[:, 4:]).astype(F32) + step(blocks, 2)),
    6: BlockKind("Q5_0", 22, lambda blocks: step(blocks, 0) * (_fives(blocks[:, 2:]) - F32(16))),
    7: BlockKind("Q5_1", 24, lambda blocks: step(blocks, 0) * _fives(blocks[:, 4:]) + step(blocks, 2)),
    8: BlockKind(
        "Q8_0", 34, lambda blocks: step(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view("i1").astype(F32)
    ),
}
