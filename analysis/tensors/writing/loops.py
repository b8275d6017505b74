"""Compiled loops of exports: extremes of blocks, errors of written weights, and transposes by tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.runtime.compile import kernel, reordered_sums, scalar

u32, i32, f32, f64 = np.uint32, np.int32, np.float32, np.float64

BLOCK = 2048  # elements whose squares are added in vectors
TILE = 32  # rows and columns of a tile, which stays in the L1 cache


@scalar
def difference(a: Any, b: Any) -> Any:
    """Return a - b, rounded to float32."""
    return f32(f32(a) - f32(b))


@scalar
def in_order(word: Any) -> Any:
    """Return the bits of a float32, `word`, as an int32 that compares as the float does, with -0 before 0.

    The function is its own inverse: it converts such an int32 to the bits again.
    """
    return i32(i32(word) ^ i32((i32(word) >> i32(31)) & i32(0x7FFFFFFF)))


@kernel
def largest_of_blocks(words: Any, width: Any, largest: Any) -> None:
    """Write the largest magnitude of each block of `width` values in `words` to `largest`; NaN exceeds Inf.

    words, largest: uint32 bits of float32, flat.
    """
    for block in range(largest.size):
        most = u32(0)
        for i in range(block * width, block * width + width):
            most = max(most, u32(words[i] & u32(0x7FFFFFFF)))
        largest[block] = most


@kernel
def extremes_of_blocks(words: Any, width: Any, lowest: Any, highest: Any) -> None:
    """Write the smallest and largest value of each block of `width` values in `words` to `lowest` and `highest`.

    words, lowest, highest: int32 bits of float32, flat.
    """
    for block in range(lowest.size):
        low, high = i32(0x7FFFFFFF), i32(-0x80000000)
        for i in range(block * width, block * width + width):
            order = in_order(words[i])
            low, high = min(low, order), max(high, order)
        lowest[block], highest[block] = in_order(low), in_order(high)


@reordered_sums
def add_block(wanted: Any, read: Any, sums: Any) -> None:
    """Add the errors of a block of float32 values, `read`, against `wanted` to the three float64 `sums`, in place.

    These are the sum of squares of `wanted`, the sum of squared differences of `read` from `wanted`, and the largest
    magnitude of a difference so far.
    """
    signal, noise = f64(0), f64(0)
    for i in range(wanted.size):
        apart = f64(difference(read[i], wanted[i]))
        signal += f64(wanted[i]) * f64(wanted[i])
        noise += apart * apart
    largest = f32(0)
    for i in range(wanted.size):
        largest = max(largest, abs(difference(read[i], wanted[i])))
    sums[0] += signal
    sums[1] += noise
    sums[2] = max(sums[2], f64(largest))


@kernel
def add_errors(wanted: Any, read: Any, sums: Any) -> None:
    """Add the errors of `read`, values decoded from a file, against the original values `wanted` to `sums`, in place.

    wanted, read: flat float32 arrays of equal size. sums: float64 (sum of squares of the original values, sum of
    squared differences, largest magnitude of a difference).
    """
    for start in range(0, wanted.size, BLOCK):
        stop = min(start + BLOCK, wanted.size)
        add_block(wanted[start:stop], read[start:stop], sums)


@kernel
def transpose(source: Any, target: Any) -> None:
    """Write the transpose of the matrix `source` into `target`, which has the same dtype."""
    rows, columns = source.shape
    for top in range(0, rows, TILE):
        for left in range(0, columns, TILE):
            for j in range(left, min(left + TILE, columns)):
                for i in range(top, min(top + TILE, rows)):
                    target[j, i] = source[i, j]
