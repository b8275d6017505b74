"""Encoding to table formats, which list the value of each code, with one scale per tile. Imports numba."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.tables import encoding
from fpsim.core.tile_scale import COUNTERS
from fpsim.formats.cast_options import TableOptions, cast_options
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64
from fpsim.runtime.pipeline import run_stages
from fpsim.scaling.look import ruled
from fpsim.scaling.plan import element_plan, scale_plan
from fpsim.scaling.run_tiles import no_codes, run_scales, run_tiles, settle_tensor
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tile_jobs import TileJob, TilePlan, TileTargets
from fpsim.scaling.tiling import tiling


class ScaleTargets(NamedTuple):
    """Arrays to fill, one entry per tile: float32 scales, and their codes in the scale format (None for FP32)."""

    scales: Array
    codes: Array | None


@lru_cache(maxsize=1024)
def _quotient_plan(scaling: Scaling, largest: float, source_fmt: Format) -> TilePlan:
    """Return the `TilePlan` that computes x / s without rounding it to a format; cached.

    largest: the value to which a tile's largest magnitude is scaled. source_fmt: the format of x.
    """
    width = 64 if source_fmt == FP64 else 32
    wide = FP64 if width == 64 else FP32
    options = cast_options(wide)
    scales = scale_plan(scaling, largest, wide.mantissa_bits, width)
    return TilePlan(source_fmt, scales, options, element_plan(options, width, integer=False), integer=False, back=False)


def quotients(
    source: Array,
    source_fmt: Format,
    scaling: Scaling,
    largest: float,
    targets: ScaleTargets,
    known_scales: Array | None,
) -> tuple[Array, Array, np.float32 | None]:
    """Fill the scales of tiles; return the quotients x / s, counts of tiles, and the array's second-level scale.

    source, source_fmt: the float array x and its format. largest: the value to which a tile's largest magnitude is
    scaled. targets: arrays to fill. known_scales: the caller's float32 scales, one per tile; None to compute them.

    Returns:
      x / s, float32 of the source's shape (float64 for float64); the counts of tiles that `TileTargets` describes; the
        scale of the whole array, None if the scaling has one level or the scales are the caller's.
    """
    how = _quotient_plan(scaling, largest, source_fmt)
    tiles = tiling(source.shape, scaling.block)
    real: Any = np.float32 if how.width == 32 else np.float64
    out, counts = np.empty(source.shape, real), np.zeros(COUNTERS, np.int64)
    job = TileJob(words(source).reshape(tiles.shape), words(out).reshape(tiles.shape), tiles, how)
    scales = targets.scales.reshape(tiles.tiles)
    if known_scales is not None:
        scales[...] = ruled(job, known_scales.reshape(tiles.tiles), counts)
        run_scales(job, scales)
        return out, counts, None
    tensor = settle_tensor(job, counts)
    codes = no_codes(*tiles.tiles) if targets.codes is None else targets.codes.reshape(tiles.tiles)
    run_tiles(job, TileTargets(scales, codes, counts), tensor)
    return out, counts, tensor.scale if scaling.tensor_scale else None


def encode_quotients(numbers: Array, options: TableOptions, codes: Array) -> None:
    """Round `numbers`, float32 or float64, to the values of a table format, and fill `codes` with their codes.

    options: those of the cast, its format included. codes: of the same shape, in the format's storage dtype.
    """
    run_stages(encoding(FP32 if numbers.dtype == np.float32 else FP64, options), words(numbers), codes)
