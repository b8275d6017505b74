"""Encoding to table formats, which list the value of each code, with one scale per tile. Imports numba."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.tables import encoding
from fpsim.core.tile_scale import COUNTERS
from fpsim.formats.cast_options import TableOptions, cast_options
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64
from fpsim.runtime.pipeline import run_stages
from fpsim.scaling.look import fill_tiles
from fpsim.scaling.plan import element_plan, scale_plan
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tile_jobs import TilePlan, tile_job


@lru_cache(maxsize=1024)
def quotient_plan(
    scaling: Scaling, largest: float, source_fmt: Format, mantissa_bits: int = 0, width: int = 0
) -> TilePlan:
    """Return the `TilePlan` by which `quotients` computes x / s, element over scale, without further rounding; cached.

    scaling: the recipe of the scales. largest: the value to which a tile's largest magnitude is scaled. source_fmt: the
    format of x. mantissa_bits: mantissa bits of the element format, which the scale rule "even" needs. width: bits of x
    / s, 32 or 64; 0 for as few as x allows.
    """
    width = width or (64 if source_fmt == FP64 else 32)
    options = cast_options(FP64 if width == 64 else FP32)
    scales = scale_plan(scaling, largest, mantissa_bits, width)
    return TilePlan(source_fmt, scales, options, element_plan(options, width, integer=False), integer=False, back=False)


def quotients(
    source: Array, how: TilePlan, scales: Array, scale_codes: Array | None, known_scales: Array | None
) -> tuple[Array, Array, np.float32 | None]:
    """Divide each element x by the scale s of its tile, after filling `scales` and `scale_codes`.

    source: the float array x. how: the result of `quotient_plan`. scales, scale_codes, known_scales: as for
    `fill_tiles`.

    Returns:
      x / s, floats of how.width bits; five int64, the numbers of tiles with an amax of 0, with NaN, with Inf, with a
      scale raised to the smallest one allowed, and with a scale lowered to the largest; and what `fill_tiles` returns,
      the float32 scale of the whole array or None.
    """
    out = np.empty(source.shape, np.float32 if how.width == 32 else np.float64)
    counts = np.zeros(COUNTERS, np.int64)
    return out, counts, fill_tiles(tile_job(source, out, how), scales, scale_codes, known_scales, counts)


def encode_quotients(numbers: Array, options: TableOptions, codes: Array) -> None:
    """Round `numbers`, float32 or float64, to the values of a table format, and fill `codes` with their codes.

    numbers: elements divided by the scales of their tiles. options: the options of the cast, its format included.
    codes: array of the same shape, in the format's storage dtype.
    """
    run_stages(encoding(FP32 if numbers.dtype == np.float32 else FP64, options), words(numbers), codes)
