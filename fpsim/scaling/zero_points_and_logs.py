"""Encoding to integers with zero points, and to LogFMT. Imports numba, so it is loaded at the first call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts import pipelines
from fpsim.casts.loops import random_kernel
from fpsim.core.layouts import encode_plan
from fpsim.core.tile_scale import BY_SCALE
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import OFFSETS, IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP32, FP64
from fpsim.formats.rounding import Rounding
from fpsim.runtime.pipeline import PIECE, run_stages, wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling.kernels import log
from fpsim.scaling.kernels.affine import affine_kernel, range_kernel, zero_point_kernel
from fpsim.scaling.look import rule_given_scales
from fpsim.scaling.plan import ScalePlan, TensorScale, scale_plan
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import Tiling


def bands_of(source: Array, source_fmt: Format, width: int, tiling: Tiling) -> Iterator[tuple[int, int, int, Array]]:
    """Yield (batch index, first row of tiles, first row, matrix) for as many rows of tiles as fit the cache at once.

    source: bit patterns of an array of format source_fmt. matrix: the rows as contiguous bit patterns of floats of
    `width` bits, 32 or 64.
    """
    words = source.reshape(tiling.shape)
    wide = FP32 if width == 32 else FP64
    bands_at_once = max(PIECE // max(tiling.tile_rows * tiling.columns, 1), 1)
    for batch in range(tiling.batch):
        for band in range(0, tiling.tiles[1], bands_at_once):
            row = band * tiling.tile_rows
            part = words[batch, row : row + bands_at_once * tiling.tile_rows]
            native = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
            if source_fmt.bits != width:
                converted = np.empty(part.shape, wide.storage)
                run_stages(pipelines.decoding(source_fmt, wide, source_fmt.storage), native, converted)
                native = converted
            yield batch, band, row, native


def encode_affine(
    source: Array,
    source_fmt: Format,
    element: IntegerFormat,
    scaling: Scaling,
    options: CastOptions,
    tiling: Tiling,
    tile_scales: Array | None,
    targets: tuple[Array, Array, Array | None, Array],
    counts: Array,
) -> None:
    """Encode an array to integers with zero points by filling `targets`.

    Args:
      source: bit patterns of the array, of the format source_fmt.
      tile_scales: the caller's scales, shape (batch, rows of tiles, tiles in a row), or None to compute them.
      targets: codes, of shape (batch, rows, columns); and, of the shape of tile_scales, float32 scales, their codes (or
        None) and zero points.
      counts: as in `TileTargets`.
    """
    codes, scales, scale_codes, zero_points = targets
    width = 64 if source_fmt == FP64 else 32
    real: Any = np.float32 if width == 32 else np.float64
    word: Any = np.uint32 if width == 32 else np.uint64
    lowest, highest = element.lowest, element.highest
    plan = _range_plan(scaling, highest - lowest, width)
    nearest = encode_plan(OFFSETS, width, Rounding.NEAREST_EVEN, "saturate", "keep", 32)
    encoder = encode_plan(OFFSETS, width, options.rounding, "saturate", "keep", options.random_bits)
    largest = np.finfo(real).max
    for batch, band, row, matrix in bands_of(source, source_fmt, width, tiling):
        stop = band + -(-matrix.shape[0] // tiling.tile_rows)
        tiles = (stop - band, tiling.tiles[2])
        low, high = np.zeros(tiles, real), np.zeros(tiles, real)
        specials = np.zeros(tiles, np.uint8)
        size = (tiling.tile_rows, tiling.tile_columns)
        factors = np.empty(tiles, real)
        with ieee_arithmetic(), wrapping(), np.errstate(all="ignore"):
            range_kernel(width)(matrix, low, high, specials, *size)
            if tile_scales is None:
                ranges = np.minimum(high - low, largest)
                target_codes = np.empty(0, np.uint8)
                if scale_codes is not None:
                    target_codes = scale_codes[batch, band:stop].reshape(-1)
                plan.settle(ranges.size)(
                    ranges.view(word).reshape(-1), specials.reshape(-1), scales[batch, band:stop].reshape(-1),
                    target_codes, factors.reshape(-1), counts, *plan.arguments(TensorScale()),
                )  # fmt: skip
            else:
                scales[batch, band:stop] = tile_scales[batch, band:stop]
                rule_given_scales(scaling, scales[batch, band:stop], high - low, specials, counts)
                wide = scales[batch, band:stop].astype(real)
                factors = wide if plan.applied == BY_SCALE else real(1) / wide
            zero_point_kernel(width, nearest.kind, plan.applied)(
                low.reshape(-1), factors.reshape(-1), zero_points[batch, band:stop].reshape(-1), lowest, highest,
                nearest.layout,
            )  # fmt: skip
            affine_kernel(width, int(options.rounding), encoder.kind, plan.applied)(
                matrix, codes[batch, row : row + matrix.shape[0]], factors, zero_points[batch, band:stop], *size,
                (lowest, highest), encoder.layout,
                _words(options, (batch * tiling.rows + row) * tiling.columns, matrix),
            )  # fmt: skip


@lru_cache(maxsize=1024)
def _range_plan(scaling: Scaling, steps: int, width: int) -> ScalePlan:
    """Return the plan of scales that map a tile's range, high - low, to `steps` units of an integer format; cached."""
    return scale_plan(scaling.replace(amax_floor=0.0), float(steps), 0, width)


def _words(options: CastOptions, first: int, matrix: Array) -> Array:
    """Return a random uint32 per element of `matrix`, or an empty array for deterministic rounding.

    first: flat index of the matrix's first element in the whole array.
    """
    if options.rounding is not Rounding.STOCHASTIC:
        return np.empty(0, np.uint32)
    seed, skip = options.seed or 0, first % 4
    words = np.empty((matrix.size + skip + 3) // 4 * 4, np.uint32)
    random_kernel()(words, np.uint64(first // 4), np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32))
    return words[skip : skip + matrix.size]


def encode_log(
    source: Array,
    source_fmt: Format,
    element: LogFMT,
    scaling: Scaling,
    tiling: Tiling,
    targets: tuple[Array, Array, Array],
    counts: Array,
) -> None:
    """Encode an array to LogFMT by filling `targets`.

    Args:
      source: bit patterns of the array, of the format source_fmt.
      targets: codes, of shape (batch, rows, columns); and float32 steps and lows, of shape (batch, rows of tiles, tiles
        in a row): the distance of levels in log2, and log2 of the lowest nonzero level.
      counts: int64; the numbers of tiles with an amax of 0, with NaN and with Inf are added to its first three entries.
    """
    codes, steps, lows = targets
    width = 64 if source_fmt == FP64 else 32
    real: Any = np.float32 if width == 32 else np.float64
    for batch, band, row, matrix in bands_of(source, source_fmt, width, tiling):
        stop = band + -(-matrix.shape[0] // tiling.tile_rows)
        with ieee_arithmetic(), wrapping(), np.errstate(all="ignore"):
            log.encode_kernel(width)(
                matrix.view(real), codes[batch, row : row + matrix.shape[0]], steps[batch, band:stop],
                lows[batch, band:stop], counts, tiling.tile_rows, tiling.tile_columns, element.level_count,
                scaling.nan == "element",
            )  # fmt: skip
