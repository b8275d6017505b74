"""Encoding and decoding of HiF4: 64 elements share a scale and two levels of one-bit exponents. Imports numba."""

from __future__ import annotations

from functools import cache

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.cast import quantize
from fpsim.core.layouts import encode_plan
from fpsim.core.tile_scale import COUNTERS, HAS_INFINITY, HAS_NAN, INFINITE_TILES, NAN_TILES, ZERO_TILES
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, FP64
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import HIF4
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.records import as_rows
from fpsim.scaling.kernels.hif4 import IS_ZERO, hif4_elements_kernel, hif4_kernel
from fpsim.scaling.recipes import E6M2
from fpsim.scaling.scaled_arrays import EncodedTargets
from fpsim.scaling.tiling import tiling
from fpsim.scaling.zero_points_and_logs import bands_of


@cache
def inverses() -> Array:
    """Return the reciprocal of the value of each E6M2 scale code, rounded to BF16, as float32; cached.

    It is indexed by the code; the entry of the NaN code is 0.
    """
    scales = E6M2.table()
    numbers: Array = np.where(np.isnan(scales), 0, quantize(1 / scales.astype(np.float32), BF16)).astype(np.float32)
    return numbers


def encode_hif4(fill: EncodedTargets, source: Array, source_fmt: Format) -> Array:
    """Encode an array to HiF4, and count tiles.

    fill: the arrays to fill. Its zero points receive, per tile, a uint32 of one-bit exponents: bit g < 8 is that of
    elements 8 g to 8 g + 7 of the tile, bit 8 + q that of 4 q to 4 q + 3. source: the float array. source_fmt: the
    format that its dtype stores. Return five int64: the numbers of tiles with an amax of 0, with NaN and with Inf,
    then two zeros.
    """
    tiles = tiling(source.shape, fill.scaling.block)
    codes = fill.codes.reshape(tiles.shape)
    scales, scale_codes, levels = (x.reshape(tiles.tiles) for x in (fill.scales, fill.scale_codes, fill.zero_points))
    width = 64 if source_fmt == FP64 else 32
    to_bf16 = encode_plan(BF16, width, Rounding.NEAREST_EVEN, "nonfinite", "keep", 32)
    to_scale = encode_plan(E6M2, width, Rounding.NEAREST_EVEN, "saturate", "keep", 32)
    loop, layouts = hif4_kernel(width, to_bf16.kind, to_scale.kind), as_rows(to_bf16.layout, to_scale.layout)
    specials = np.zeros(tiles.tiles, np.uint8)
    size = (tiles.tile_rows, tiles.tile_columns)
    for here, rows, matrix in bands_of(words(source), source_fmt, width, tiles):
        with ieee_arithmetic(), wrapping(), np.errstate(all="ignore"):
            loop(
                matrix, codes[rows], scale_codes[here], levels[here], inverses(), *size, layouts, specials[here],
            )  # fmt: skip
    has_nan = (specials & HAS_NAN) != 0
    lost = has_nan & (fill.scaling.nan == "tile")
    scale_codes[lost] = E6M2.nan_code
    np.copyto(scales, E6M2.table().astype(np.float32)[scale_codes])
    if lost.any():
        codes[np.repeat(np.repeat(lost, size[0], 1), size[1], 2)[:, : tiles.rows, : tiles.columns]] = 7
    counts = np.zeros(COUNTERS, np.int64)
    marks = {NAN_TILES: has_nan, INFINITE_TILES: (specials & HAS_INFINITY) != 0, ZERO_TILES: (specials & IS_ZERO) != 0}
    for counter, marked in marks.items():
        counts[counter] = np.count_nonzero(marked & ~lost if counter == ZERO_TILES else marked)
    return counts


def hif4_elements(codes: Array, levels: Array, block: tuple[int, ...]) -> Array:
    """Return each HiF4 code's value times 2**(exponents of its groups), without the tile's scale, in float32, exactly.

    codes: uint8 array of codes. levels: a uint32 per tile of 64 elements, whose bit g < 8 is the exponent of elements 8
    g to 8 g + 7 and whose bit 8 + q is that of elements 4 q to 4 q + 3; an element has the sum of its two exponents.
    block: the size of a tile, as in `Scaling.block`.
    """
    tiles = tiling(codes.shape, block)
    values = np.empty(codes.shape, np.float32)
    table, size = HIF4.table().astype(np.float32), (tiles.tile_rows, tiles.tile_columns)
    matrices, targets = codes.reshape(tiles.shape), values.reshape(tiles.shape)
    grid = np.ascontiguousarray(levels).reshape(tiles.tiles)
    with wrapping():
        for batch in range(tiles.batch):
            hif4_elements_kernel()(matrices[batch], grid[batch], table, targets[batch], *size)
    return values
