"""CPU loops that find the amax (largest magnitude) of every tile, and the tiles that hold NaN or Inf.

A parameter `shape` fixes the tile's columns at compile time: 1, a common size (the inner loop is then unrolled into a
few vectors), or ANY.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.tile_scale import HAS_INFINITY, HAS_NAN
from fpsim.runtime.compile import kernel, scalar

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64

ANY = 0
COMMON = (16, 32, 64, 128)  # columns of tiles for which loops are unrolled


def tile_shape(columns: int) -> int:
    """Return `columns`, a tile's number of columns, if loops are compiled for it: 1, 16, 32, 64 or 128; else ANY (0).

    A loop for ANY reads the number at run time.
    """
    return columns if columns == 1 or columns in COMMON else ANY


def word_of(width: int) -> Any:
    """Return np.uint32 for a width of 32 bits, else np.uint64."""
    return u32 if width == 32 else u64


def float_words(width: int) -> tuple[Any, Any, Any, Any]:
    """Return four facts of floats of `width` bits, 32 or 64, which loops compile in.

    They are the type of their bit patterns, their own type, the pattern of all bits but the sign, and that of Inf.
    """
    if width == 32:
        return u32, f32, u32(0x7FFFFFFF), u32(0x7F800000)
    return u64, f64, u64(0x7FFFFFFFFFFFFFFF), u64(0x7FF0000000000000)


# Factors by which rows are halved or quartered until one number per tile is left. Within so short a tile, a maximum
# across the lanes (elements) of a vector register takes longer than all else, and keeps too few loads under way.
FOLDS = {16: (4, 4), 32: (4, 4, 2)}
SMALLEST_FOLD = 4


@cache
def _fold(word: Any, factor: int, mask: Any) -> Any:
    """Return the loop (source, target) -> None that sets target[i] to the largest magnitude of the i-th group.

    A group is `factor`, 2 or 4, neighbouring bit patterns of `source`. word: their type, np.uint32 or np.uint64. mask:
    all bits but the sign.
    """

    def by_two(source: Any, target: Any) -> None:
        for i in range(target.size):
            target[i] = max(word(source[2 * i] & mask), word(source[2 * i + 1] & mask))

    def by_four(source: Any, target: Any) -> None:
        for i in range(target.size):
            left = max(word(source[4 * i] & mask), word(source[4 * i + 1] & mask))
            right = max(word(source[4 * i + 2] & mask), word(source[4 * i + 3] & mask))
            target[i] = max(left, right)

    return scalar(by_two if factor == 2 else by_four)


@cache
def amax_loop(width: int, shape: int) -> Any:
    """Return the inlined loop (row, tops, columns, space) -> None that raises `tops` to the amax of each tile in a row.

    The amax is the largest magnitude of a tile, a block of elements with one scale. row: bit patterns of floats of
    `width` bits. tops: per tile, the pattern of the largest magnitude so far, NaN and Inf included. columns: number of
    columns of a tile. space: scratch, a quarter as many words as the row has. shape: `columns` if that is 1, 16, 32, 64
    or 128, to be compiled in, else ANY.
    """
    word, _, mask, _ = float_words(width)
    folds = FOLDS.get(shape, ())
    fold_two, fold_four = _fold(word, 2, mask), _fold(word, 4, mask)
    thrice = len(folds) == 3

    def of_columns(row: Any, tops: Any, columns: int, space: Any) -> None:
        for i in range(row.size):
            tops[i] = max(tops[i], word(row[i] & mask))

    def of_folded(row: Any, tops: Any, columns: int, space: Any) -> None:
        tiles = row.size // shape
        quarters, sixteenths = space[: tiles * shape // 4], space[: tiles * shape // 16]
        fold_four(row[: tiles * shape], quarters)
        fold_four(quarters, sixteenths)  # in place: each number is written after its four sources are read
        if thrice:
            fold_two(sixteenths, space[:tiles])
        for j in range(tiles):
            tops[j] = max(tops[j], space[j])
        raise_rest(row, tops, tiles)

    def of_common(row: Any, tops: Any, columns: int, space: Any) -> None:
        tiles = row.size // shape
        for j in range(tiles):
            tile = row[j * shape : (j + 1) * shape]
            top = word(0)
            for i in range(shape):
                top = max(top, word(tile[i] & mask))
            tops[j] = max(tops[j], top)
        raise_rest(row, tops, tiles)

    def of_any(row: Any, tops: Any, columns: int, space: Any) -> None:
        for j in range(tops.size):
            tile = row[j * columns : (j + 1) * columns]
            top = tops[j]
            for i in range(tile.size):
                top = max(top, word(tile[i] & mask))
            tops[j] = top

    def raise_rest(row: Any, tops: Any, tiles: int) -> None:
        """Raise tops[tiles], the entry of a row's last, narrower tile, to the largest magnitude of that tile in `row`.

        row: bit patterns of floats of `width` bits. tops: patterns of the largest magnitude of each tile so far. tiles:
        the number of full tiles in the row.
        """
        for i in range(tiles * shape, row.size):
            tops[tiles] = max(tops[tiles], word(row[i] & mask))

    raise_rest = scalar(raise_rest)
    if shape in FOLDS:
        return scalar(of_folded)
    return scalar(of_columns if shape == 1 else of_common if shape else of_any)


@cache
def specials_loop(width: int) -> Any:
    """Return the loop (matrix, tops, specials, rows, columns) -> None that corrects the amax of tiles with NaN or Inf.

    The amax is the largest magnitude of a tile, a block of elements with one scale. For tiles with NaN or Inf the loop
    lowers the entry of `tops` (patterns of amaxes) to the amax of the finite elements, and sets that of `specials`
    (uint8) to the sum of the flags HAS_NAN and HAS_INFINITY. matrix: bit patterns of floats of `width` bits. rows,
    columns: the size of a tile.
    """
    word, _, magnitude_mask, infinity = float_words(width)

    def find_specials(matrix: Any, tops: Any, specials: Any, rows: int, columns: int) -> None:
        for band in range(tops.shape[0]):
            for j in range(tops.shape[1]):
                if tops[band, j] < infinity:
                    continue
                top = word(0)
                flags = 0
                for r in range(band * rows, min((band + 1) * rows, matrix.shape[0])):
                    for i in range(j * columns, min((j + 1) * columns, matrix.shape[1])):
                        magnitude = word(matrix[r, i] & magnitude_mask)
                        if magnitude < infinity:
                            top = max(top, magnitude)
                        else:
                            flags |= HAS_INFINITY if magnitude == infinity else HAS_NAN
                tops[band, j] = top
                specials[band, j] = flags

    return kernel(find_specials)


@cache
def amax_strips(width: int, shape: int) -> Any:
    """Return the loop (matrix, tops, rows, columns) -> highest that raises the entries of `tops` to the amax of tiles.

    The amax is the largest magnitude of a tile, a block of `rows` by `columns` elements with one scale; tiles at the
    edges may be smaller. matrix: 2-D, bit patterns of floats of `width` bits, 32 or 64. tops: 2-D, an entry for each
    tile, tops[i, j] for the i-th tile from the top and j-th from the left; bit patterns of the same width. An entry
    that is larger already stays. highest: the largest entry afterwards. NaN and Inf count as larger than all others.

    shape: `columns` if that is 1, 16, 32, 64 or 128, to be compiled in, else 0.
    """
    amax, word = amax_loop(width, shape), word_of(width)

    def find_tops(matrix: Any, tops: Any, rows: int, columns: int) -> Any:
        space = np.empty(matrix.shape[1] // SMALLEST_FOLD, matrix.dtype)
        for r in range(matrix.shape[0]):
            amax(matrix[r], tops[r // rows], columns, space)
        highest = word(0)
        for band in range(tops.shape[0]):
            for j in range(tops.shape[1]):
                highest = max(highest, word(tops[band, j]))
        return highest

    return kernel(find_tops)
