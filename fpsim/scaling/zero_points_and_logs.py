"""Encoding to integers with zero points, and to LogFMT. Imports numba, so it is loaded at the first call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.loops import random_words
from fpsim.core.layouts import encode_plan
from fpsim.core.tile_scale import COUNTERS
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import OFFSETS, IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP64
from fpsim.formats.rounding import Rounding
from fpsim.runtime.pipeline import PIECE, wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling.kernels import log
from fpsim.scaling.kernels.affine import affine_kernel, range_kernel, zero_point_kernel
from fpsim.scaling.kernels.amax import float_words
from fpsim.scaling.look import set_nan_scales
from fpsim.scaling.plan import ScalePlan, TensorScale, scale_plan
from fpsim.scaling.scaled_arrays import EncodedTargets
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tile_jobs import widened
from fpsim.scaling.tiling import Tiling
from fpsim.scaling.tiling import tiling as tiling_of


def bands_of(
    source: Array, source_fmt: Format, width: int, tiling: Tiling
) -> Iterator[tuple[tuple[int, slice], tuple[int, slice], Array]]:
    """Cut an array into pieces of whole rows of tiles that fit the cache.

    Yield for each piece the indices (matrix of the batch, slice of rows) of its tiles and those of its elements, and
    the elements as a matrix of contiguous bit patterns of floats of `width` bits, 32 or 64. source: bit patterns of an
    array of format source_fmt. tiling: the size of the array and of its tiles.
    """
    matrices = source.reshape(tiling.shape)
    bands_at_once = max(PIECE // max(tiling.tile_rows * tiling.columns, 1), 1)
    for batch in range(tiling.batch if source.size else 0):
        for band in range(0, tiling.tiles[1], bands_at_once):
            tiles = batch, slice(band, band + bands_at_once)
            rows = batch, slice(band * tiling.tile_rows, (band + bands_at_once) * tiling.tile_rows)
            yield tiles, rows, widened(matrices[rows], source_fmt, width)


def encode_affine(
    fill: EncodedTargets, source: Array, source_fmt: Format, options: CastOptions, known_scales: Array | None
) -> Array:
    """Encode an array to integers with zero points, and count tiles.

    fill: the arrays to fill. source: the float array. source_fmt: the format that its dtype stores. options: the
    options of the elements' cast. known_scales: the caller's scales, one per tile, or None to compute them.

    Returns:
      Five int64, the numbers of tiles with an amax of 0, with NaN, with Inf, with a scale raised to the smallest one
      allowed, and with a scale lowered to the largest.
    """
    element, scaling, tiling = fill.fmt, fill.scaling, tiling_of(source.shape, fill.scaling.block)
    assert isinstance(element, IntegerFormat)
    codes, counts = fill.codes.reshape(tiling.shape), np.zeros(COUNTERS, np.int64)
    scales, zero_points = fill.scales.reshape(tiling.tiles), fill.zero_points.reshape(tiling.tiles)
    scale_codes = None if fill.scale_codes is None else fill.scale_codes.reshape(tiling.tiles)
    tile_scales = None if known_scales is None else known_scales.reshape(tiling.tiles)
    width = 64 if source_fmt == FP64 else 32
    word, real, _, _ = float_words(width)
    lowest, highest = element.lowest, element.highest
    plan = _range_plan(scaling, highest - lowest, width)
    nearest = encode_plan(OFFSETS, width, Rounding.NEAREST_EVEN, "saturate", "keep", 32)
    encoder = encode_plan(OFFSETS, width, options.rounding, "saturate", "keep", options.random_bits)
    largest = np.finfo(real).max
    for tiles, rows, matrix in bands_of(words(source), source_fmt, width, tiling):
        shape = scales[tiles].shape
        low, high = np.zeros(shape, real), np.zeros(shape, real)
        specials = np.zeros(shape, np.uint8)
        size = (tiling.tile_rows, tiling.tile_columns)
        factors = np.empty(shape, real)
        with ieee_arithmetic(), wrapping(), np.errstate(all="ignore"):
            range_kernel(width)(matrix, low, high, specials, *size)
            if tile_scales is None:
                ranges = np.minimum(high - low, largest)
                target_codes = np.empty(0, np.uint8) if scale_codes is None else scale_codes[tiles].reshape(-1)
                plan.settle(ranges.size)(
                    ranges.view(word).reshape(-1), specials.reshape(-1), scales[tiles].reshape(-1),
                    target_codes, factors.reshape(-1), counts, *plan.arguments(TensorScale()),
                )  # fmt: skip
            else:
                scales[tiles] = tile_scales[tiles]
                set_nan_scales(scaling, scales[tiles], high - low, specials, counts)
                factors = plan.factors(scales[tiles])
            zero_point_kernel(width, nearest.kind, plan.applied)(
                low.reshape(-1), factors.reshape(-1), zero_points[tiles].reshape(-1), lowest, highest, nearest.layout
            )
            affine_kernel(width, int(options.rounding), encoder.kind, plan.applied)(
                matrix, codes[rows], factors, zero_points[tiles], *size, (lowest, highest), encoder.layout,
                _random_words(options, (rows[0] * tiling.rows + rows[1].start) * tiling.columns, matrix),
            )  # fmt: skip
    return counts


@lru_cache(maxsize=1024)
def _range_plan(scaling: Scaling, steps: int, width: int) -> ScalePlan:
    """Return the ScalePlan of the scales (high - low) / steps, for tiles with elements from low to high; cached.

    scaling: the recipe. steps: the largest integer minus the smallest, 255 for INT8. width: bits, 32 or 64, of the
    float in which elements are divided by scales.
    """
    return scale_plan(scaling.replace(amax_floor=0.0), float(steps), 0, width)


def _random_words(options: CastOptions, first: int, matrix: Array) -> Array:
    """Return a random uint32 per element of `matrix`, or an empty array for deterministic rounding.

    options: the options of the cast. first: flat index of the matrix's first element in the whole array.
    """
    if options.rounding is not Rounding.STOCHASTIC:
        return np.empty(0, np.uint32)
    return random_words(options.seed or 0, first, matrix.size)


def encode_log(fill: EncodedTargets, source: Array, source_fmt: Format) -> Array:
    """Encode an array to LogFMT, and count tiles.

    fill: the arrays to fill. For each tile, its scales receive the distance between neighbouring levels in log2, and
    its zero points receive log2 of the lowest nonzero level. source: the float array. source_fmt: the format that its
    dtype stores. Return five int64: the numbers of tiles with an amax of 0, with NaN and with Inf, then two zeros.
    """
    element, tiling = fill.fmt, tiling_of(source.shape, fill.scaling.block)
    assert isinstance(element, LogFMT)
    codes, counts = fill.codes.reshape(tiling.shape), np.zeros(COUNTERS, np.int64)
    steps, lows = fill.scales.reshape(tiling.tiles), fill.zero_points.reshape(tiling.tiles)
    width = 64 if source_fmt == FP64 else 32
    _, real, _, _ = float_words(width)
    for tiles, rows, matrix in bands_of(words(source), source_fmt, width, tiling):
        with ieee_arithmetic(), wrapping(), np.errstate(all="ignore"):
            log.encode_kernel(width)(
                matrix.view(real), codes[rows], steps[tiles], lows[tiles], counts, tiling.tile_rows,
                tiling.tile_columns, element.level_count, fill.scaling.nan == "element",
            )  # fmt: skip
    return counts
