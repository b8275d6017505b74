"""Functions that find the amax of each tile, and NaN and Inf in it, and `fill_tiles`, which encodes an array."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array
from fpsim.core.tile_scale import COUNTERS, HAS_INFINITY, HAS_NAN, INFINITE_TILES, NAN_TILES, ZERO_TILES
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling.kernels.amax import amax_strips, float_words, specials_loop, word_of
from fpsim.scaling.run_tiles import (
    WIDE_TILE,
    fits_strips,
    group_tops,
    groups_of,
    no_codes,
    run_scales,
    run_tiles,
    settle_tensor,
)
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tile_jobs import Place, TileJob, TileTargets, load, over_parts, pieces, tile_range

SEVERAL = 1 << 20  # elements of the largest wide tiles of which each thread takes some; all threads share larger ones


def look(job: TileJob) -> tuple[Array, Array]:
    """Return two arrays of shape (batch, rows of tiles, tiles in a row): the amax of each tile, and its flags.

    The amax is the largest finite magnitude, as the bit pattern of a float of job.width bits. The flags are uint8, the
    sum of HAS_NAN and HAS_INFINITY. job: the array to read and its tiles; job.out is not touched.
    """
    tops, specials = np.zeros(job.tiling.tiles, word_of(job.width)), np.zeros(job.tiling.tiles, np.uint8)
    rows, columns = job.tiling.tile_rows, job.tiling.tile_columns
    by_tile = fits_strips(job.tiling) or (columns >= WIDE_TILE and rows * columns <= SEVERAL)
    for batch in range(job.tiling.batch if job.source.size else 0):
        if by_tile:
            _look_at_whole_tiles(job, batch, tops, specials)
            continue
        for place, band, tiles in groups_of(job.tiling, batch):
            there = batch, band, tiles
            tops[there], specials[there] = group_tops(job, place, tiles.stop - tiles.start, columns)
    return tops, specials


def _look_at_whole_tiles(job: TileJob, batch: int, tops: Array, specials: Array) -> None:
    """Do what `look` does for matrix number `batch` of `job`, by faster loops, each of which reads whole tiles.

    tops, specials: the arrays that `look` returns, to fill.
    """
    word, _, _, infinity = float_words(job.width)
    tiling = job.tiling
    tile = (tiling.tile_rows, tiling.tile_columns)
    find_tops, find_specials = amax_strips(job.width, job.shape_of(tile[1])), specials_loop(job.width)

    def on_part(part: Place) -> None:
        with ieee_arithmetic(), wrapping():
            for piece in pieces(job, part, tile):
                here = Place(piece.batch, tile_range(piece.rows, tile[0]), tile_range(piece.columns, tile[1]))
                some = np.zeros(here.of(tops).shape, word)
                matrix = load(job, piece.of(job.source))
                if find_tops(matrix, some, *tile) >= infinity:
                    flags = np.zeros(some.shape, np.uint8)
                    find_specials(matrix, some, flags, *tile)
                    here.of(specials)[...] = flags
                here.of(tops)[...] = some

    over_parts(Place(batch, (0, tiling.rows), (0, tiling.columns)), tile, on_part)


def set_nan_scales(scaling: Scaling, scales: Array, tops: Array, specials: Array, counts: Array) -> None:
    """Set the caller's scales to NaN, in place, for tiles with a NaN if `scaling.nan` is "tile"; count tiles.

    scales, tops and specials have one shape, with an entry per tile. tops: 0 for a tile whose finite elements are all
    0, else not 0: the bit pattern of the amax, or with zero points the length of the tile's range as a float. specials:
    uint8, the sum of the flags HAS_NAN and HAS_INFINITY. counts: int64; the numbers of tiles with an amax of 0, with
    NaN and with Inf are added to its first three entries. A tile whose scale becomes NaN is not counted as having an
    amax of 0.
    """
    has_nan = (specials & HAS_NAN) != 0
    lost = has_nan & (scaling.nan == "tile")
    scales[lost] = np.nan
    marked = {ZERO_TILES: (tops == 0) & ~lost, NAN_TILES: has_nan, INFINITE_TILES: (specials & HAS_INFINITY) != 0}
    for counter, tiles in marked.items():
        counts[counter] += np.count_nonzero(tiles)


def with_nan_scales(job: TileJob, scales: Array, counts: Array | None = None) -> Array:
    """Return the caller's scales, replaced by NaN for tiles that hold a NaN if the scaling's `nan` is "tile".

    job: the array to encode and its plan. scales: shape (batch, rows of tiles, tiles in a row); returned without a copy
    if nothing can change. counts: int64; the numbers of tiles with an amax of 0, with NaN and with Inf are added to its
    first three entries. None: they are not counted.
    """
    scaling = job.plan.scaling
    if not job.source.size or (counts is None and scaling.nan == "element"):
        return scales
    result = scales.copy()
    set_nan_scales(scaling, result, *look(job), np.zeros(COUNTERS, np.int64) if counts is None else counts)
    return result


def fill_tiles(
    job: TileJob, scales: Array, codes: Array | None, known_scales: Array | None, counts: Array
) -> np.float32 | None:
    """Encode a job's array into `job.out`, with the caller's scales or computed ones.

    scales, codes: filled, one entry per tile: float32 scales, and their codes (None for FP32). known_scales: the
    caller's scales, or None to compute them. counts: five int64, to which are added the numbers of tiles with an amax
    of 0, with NaN, with Inf, with a scale raised to the smallest one allowed, and with a scale lowered to the largest.
    Return the float32 scale of the whole array; None if the recipe has one level or the scales are the caller's.
    """
    shape = job.tiling.tiles
    tile_scales = scales.reshape(shape)
    if known_scales is not None:
        tile_scales[...] = with_nan_scales(job, known_scales.reshape(shape), counts)
        run_scales(job, tile_scales)
        return None
    tensor = settle_tensor(job, counts)
    tile_codes = no_codes(*shape) if codes is None else codes.reshape(shape)
    run_tiles(job, TileTargets(tile_scales, tile_codes, counts), tensor)
    return tensor.scale if job.plan.scaling.tensor_scale else None
