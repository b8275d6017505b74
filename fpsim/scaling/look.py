"""Functions that find the amax of each tile, and NaN and Inf in it, and `fill_tiles`, which encodes an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.core.tile_scale import COUNTERS, HAS_INFINITY, HAS_NAN, INFINITE_TILES, NAN_TILES, ZERO_TILES
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling.kernels.amax import amax_strips, specials_loop
from fpsim.scaling.kernels.counts import look_kernel
from fpsim.scaling.plan import FLOATS
from fpsim.scaling.run_tiles import fits_strips, no_codes, run_scales, run_tiles, settle_tensor
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tile_jobs import Place, TileJob, TileTargets, load, over_parts, pieces, tile_range


def look(job: TileJob) -> tuple[Array, Array]:
    """Return two arrays of shape (batch, rows of tiles, tiles in a row): the amax of each tile, and its flags.

    The amax is the largest finite magnitude, as the bit pattern of a float of job.width bits. The flags are uint8, the
    sum of HAS_NAN and HAS_INFINITY. job: the array to read and its tiles; job.out is not touched.
    """
    if fits_strips(job.tiling):
        return _look_at_whole_tiles(job)
    word: Any = np.uint32 if job.width == 32 else np.uint64
    loop = look_kernel(job.width)
    tops, specials = np.zeros(job.tiling.tiles, word), np.zeros(job.tiling.tiles, np.uint8)

    def begin() -> tuple[Array, Array]:
        return np.zeros(job.tiling.tiles[1:], word), np.zeros(job.tiling.tiles[1:], np.uint8)

    def work(matrix: Array, corner: tuple[int, int, int], part_result: tuple[Array, Array]) -> None:
        loop(matrix, *part_result, job.tiling.tile_rows, job.tiling.tile_columns, *corner[1:])

    for batch, (some_tops, some_specials) in over_job(job, begin, work):
        np.maximum(tops[batch], some_tops, out=tops[batch])
        np.bitwise_or(specials[batch], some_specials, out=specials[batch])
    return tops, specials


def _look_at_whole_tiles(job: TileJob) -> tuple[Array, Array]:
    """Return what `look` returns for `job`, by faster loops, for tiles that fit the cache."""
    word, _, infinity = FLOATS[job.width]
    tiling = job.tiling
    tile = (tiling.tile_rows, tiling.tile_columns)
    tops, specials = np.zeros(tiling.tiles, word), np.zeros(tiling.tiles, np.uint8)
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

    for batch in range(tiling.batch):
        over_parts(Place(batch, (0, tiling.rows), (0, tiling.columns)), tile, on_part)
    return tops, specials


def over_job(job: TileJob, begin: Callable[[], Any], work: Callable[..., None]) -> list[tuple[int, Any]]:
    """Run `work` on all pieces of a job's array, on several threads; return a list of (batch index, result).

    The list has an entry for each part of the array that a thread worked on. The result of a part starts as `begin()`.
    `work(matrix, corner, result)` updates it in place for each piece of the part. matrix: the piece as bit patterns of
    floats of job.width bits. corner: (batch, first row, first column) of the piece.
    """
    results: list[tuple[int, Any]] = []

    def on_part(part: Place) -> None:
        part_result = begin()
        with ieee_arithmetic(), wrapping():
            for piece in pieces(job, part, (1, 1)):
                corner = (piece.batch, piece.rows[0], piece.columns[0])
                work(load(job, piece.of(job.source)), corner, part_result)
        results.append((part.batch, part_result))

    for batch in range(job.tiling.batch):
        over_parts(Place(batch, (0, job.tiling.rows), (0, job.tiling.columns)), (1, 1), on_part)
    return results


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
