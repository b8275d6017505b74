"""Runs the compiled tile loops over arrays of any layout and dtype, on every core. Imports numba.

Tiles that fit the cache are encoded strip by strip; larger ones are read twice, for the amax and for the codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts import pipelines
from fpsim.core.layouts import decode_plan
from fpsim.core.tile_scale import CLAMPED_LOW, COUNTERS, HAS_INFINITY
from fpsim.formats.float_format import Format
from fpsim.formats.named import NAMED
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling import tile_jobs
from fpsim.scaling.kernels.amax import ANY, amax_strips, float_words, specials_loop, word_of
from fpsim.scaling.kernels.elements import Elements, decode_strips, element_strips
from fpsim.scaling.kernels.tiles import quantize_strips
from fpsim.scaling.plan import TensorScale, tensor_scale
from fpsim.scaling.tile_jobs import Place, TileJob, TilePlan, TileTargets, load, over_parts, pieces, tile_range
from fpsim.scaling.tiling import Tiling

SHORT_STRIP = 1 << 12  # elements of a strip of one row: 16 KiB, read from the L1 cache the second time
TALL_STRIP = 1 << 19  # elements of a higher one: 2 MiB, read from the L2 or L3 cache
TALL_TILE = 1 << 17  # elements of the largest tile (or of 64 columns of narrow ones) that is processed in strips
WIDE_TILE = 1 << 16  # columns of a tile from which each is processed by itself

NO_SPECIALS = np.empty(0, np.uint8)
NO_CODES = np.empty(0, np.uint8)
NO_TENSOR = TensorScale()


@lru_cache(maxsize=1024)
def no_codes(batch: int, bands: int, tiles: int) -> Array:
    """Return an empty uint8 array of shape (batch, bands, 0), to pass as scale codes where scales have none (FP32).

    The arguments are the shape of an array of scales; `tiles` is ignored.
    """
    return np.empty((batch, bands, 0), np.uint8)


def fits_strips(tiling: Tiling) -> bool:
    """Return whether an array's tiles are small enough to be read twice while they stay in the cache.

    tiling: the size of the array and of its tiles.
    """
    return tiling.tile_rows * max(min(tiling.tile_columns, tiling.columns), 64) <= TALL_TILE


def run_tiles(job: TileJob, grid: TileTargets, tensor: TensorScale) -> None:
    """Fill `grid` with the scales of the tiles of a job's array, and `job.out` with codes or values.

    job: the array to encode, its tiles and its plan. grid: arrays of scales, of their codes and of counts. tensor: the
    scale of the whole array, by which two-level recipes multiply all scales.
    """
    tiling = job.tiling
    if not job.source.size:
        return
    small = tiling.rows * tiling.columns < tile_jobs.FUSED or allows_general_loops()
    for batch in range(tiling.batch):
        if small:
            _run_at_once(job, grid, tensor, batch)
        elif fits_strips(tiling):
            _run_strips(job, grid, tensor, batch)
        else:
            _run_twice(job, grid, tensor, batch)


def run_scales(job: TileJob, scales: Array, factors: Array | None = None) -> None:
    """Fill `job.out` with codes or values, using given scales of shape (batch, rows of tiles, tiles in a row).

    job: the array to encode, its tiles and its plan. factors: of the same shape as scales, what elements are divided by
    or multiplied with, in floats of job.width bits. None takes the scales if elements are divided, else the inverses of
    the scales, at most the largest float.
    """
    tiling = job.tiling
    if not job.source.size:
        return
    factors = job.plan.factors(scales) if factors is None else factors
    for batch in range(tiling.batch):
        if tiling.tile_columns < WIDE_TILE:
            place = Place(batch, (0, tiling.rows), (0, tiling.columns))
            _encode_group(job, place, scales[batch], factors[batch])
            continue
        for place, band, tiles in groups_of(tiling, batch):
            _encode_group(job, place, scales[batch, band : band + 1, tiles], factors[batch, band : band + 1, tiles])


def find_amax(job: TileJob) -> float:
    """Return the largest magnitude of a job's array as a float; NaN is ignored.

    Inf is ignored too, unless the scaling's `infinity` is "propagate".
    """
    tiling = job.tiling
    matrices = [Place(batch, (0, tiling.rows), (0, tiling.columns)) for batch in range(tiling.batch)]
    tops = [group_tops(job, place, 1, tiling.columns) for place in matrices if job.source.size]
    word, real, _, _ = float_words(job.width)
    highest = max((int(top[0]) for top, _ in tops), default=0)
    infinite = any(bool(specials[0] & HAS_INFINITY) for _, specials in tops)
    if infinite and job.plan.scaling.infinity == "propagate":
        return float("inf")
    return float(np.array(highest, word).view(real))


def settle_tensor(job: TileJob, counts: Array) -> TensorScale:
    """Return the second-level scale of a job's whole array; NO_TENSOR, a scale of 1, if its scaling has none.

    Two-level recipes multiply the scales of all tiles by it. counts: int64; counts[CLAMPED_LOW] is raised by 1 if this
    scale was raised to the smallest one allowed.
    """
    if not job.plan.scaling.tensor_scale:
        return NO_TENSOR
    with ieee_arithmetic():
        scale = tensor_scale(job.plan, find_amax(job))
    counts[CLAMPED_LOW] += scale.clamped
    return scale


def _run_strips(job: TileJob, grid: TileTargets, tensor: TensorScale, batch: int) -> None:
    """Encode matrix number `batch` of a job, whose tiles must fit the cache, in one pass; fill `grid` and `job.out`.

    job: the batch of matrices, its tiles and its plan. grid: arrays of scales, of their codes and of counts. tensor:
    the scale of the whole array.
    """
    tiling = job.tiling
    tile = (tiling.tile_rows, tiling.tile_columns)
    loop = quantize_strips(job.elements(tile[1]), job.plan.settle(tile_jobs.FUSED))
    target = SHORT_STRIP if tile[0] == 1 else TALL_STRIP // tile[0]
    strip = max(target // tile[1], 1) * tile[1]
    arguments, (layout, _) = job.plan.arguments(tensor), job.how.layouts

    def run(place: Place, counts: Array) -> None:
        tiles = Place(batch, tile_range(place.rows, tile[0]), tile_range(place.columns, tile[1]))
        targets = (place.of(job.out), tiles.of(grid.scales), tiles.of(grid.codes))
        whole = all(part.flags.c_contiguous for part in targets)
        out, scales, codes = targets if whole else tuple(np.empty(part.shape, part.dtype) for part in targets)
        loop(
            load(job, place.of(job.source)), out, scales, codes, (*tile, strip),
            job.draws(batch, place.rows[0], place.columns[0]), layout, counts, arguments,
        )  # fmt: skip
        if not whole:
            for part, filled in zip(targets, (out, scales, codes), strict=True):
                part[...] = filled

    def work(place: Place) -> None:
        counts = np.zeros(COUNTERS, np.int64)
        with ieee_arithmetic(), wrapping():
            for piece in pieces(job, place, tile):
                run(piece, counts)
        np.add(grid.counts, counts, out=grid.counts)

    over_parts(Place(batch, (0, tiling.rows), (0, tiling.columns)), tile, work)


def _run_at_once(job: TileJob, grid: TileTargets, tensor: TensorScale, batch: int) -> None:
    """Encode matrix number `batch` of a job by three loops: amax, scales, codes.

    This is for small matrices, and for any matrix within a `general_loops` block. It fills `grid` (arrays of scales, of
    their codes and of counts) and `job.out`. tensor: the scale of the whole array.
    """
    tiling, how, source = job.tiling, job.how, job.source[batch]
    tile = tiling.tile_rows, tiling.tile_columns
    scales, codes = grid.scales[batch], grid.codes[batch].reshape(-1) if grid.codes.size else NO_CODES
    general = allows_general_loops()
    short = general or job.source.size <= tile_jobs.SHORT
    find_tops, settle, encode = _short_loops(how, tile[1] == 1, 0 if general else scales.size, short)
    word, real, _, infinity = float_words(how.width)
    tops, specials, factors = np.zeros(scales.shape, word), NO_SPECIALS, np.empty(scales.shape, real)
    with ieee_arithmetic(), wrapping():
        matrix = source if job.is_direct else load(job, source)
        if find_tops(matrix, tops, *tile) >= infinity:
            specials = np.zeros(tops.size, np.uint8)
            specials_loop(job.width)(matrix, tops, specials.reshape(tops.shape), *tile)
        settle(
            tops.reshape(-1), specials, scales.reshape(-1), codes, factors.reshape(-1), grid.counts,
            *how.scales.arguments(tensor),
        )  # fmt: skip
        encode(matrix, job.out[batch], scales, factors, *tile, job.draws(batch, 0, 0), *how.layouts)


@lru_cache(maxsize=4096)
def _short_loops(how: TilePlan, of_columns: bool, tiles: int, short: bool) -> tuple[Any, Any, Any]:
    """Return the loops that compute amaxes, scales and codes of a matrix of fewer than FUSED elements; cached.

    how: the plan of the encoding. of_columns: True if tiles are one column wide. tiles: the number of tiles. short:
    True to encode by one general loop, which reads the rounding mode at run time, not by a loop compiled for the mode.
    """
    shape = 1 if of_columns else ANY
    elements = Elements(how.width, shape, how.back, None if short else how.choices(), (None, None), careful=True)
    return amax_strips(how.width, shape), how.scales.settle(tiles), element_strips(elements)


def groups_of(tiling: Tiling, batch: int) -> Iterator[tuple[Place, int, slice]]:
    """Divide tiles of matrix number `batch` into groups to encode at once: rows of tiles, or single tiles if wide.

    Yield for each group its part of the matrix, the number of its row of tiles, and a slice that selects its tiles in
    that row. Tiles of WIDE_TILE or more columns are wide. tiling: the sizes of the matrix and its tiles.
    """
    _, bands, tiles = tiling.tiles
    for band in range(bands):
        rows = band * tiling.tile_rows, min((band + 1) * tiling.tile_rows, tiling.rows)
        if tiling.tile_columns < WIDE_TILE:
            yield Place(batch, rows, (0, tiling.columns)), band, slice(0, tiles)
            continue
        for tile in range(tiles):
            left = tile * tiling.tile_columns
            columns = left, min(left + tiling.tile_columns, tiling.columns)
            yield Place(batch, rows, columns), band, slice(tile, tile + 1)


def _run_twice(job: TileJob, grid: TileTargets, tensor: TensorScale, batch: int) -> None:
    """Encode matrix number `batch` of a job whose tiles exceed the cache: read it for the amaxes, then for the codes.

    Fill `grid` (arrays of scales, of their codes and of counts) and `job.out`. tensor: the scale of the whole array.
    """
    tiling = job.tiling
    _, real, _, _ = float_words(job.width)
    for place, band, tiles in groups_of(tiling, batch):
        count = tiles.stop - tiles.start
        tops, specials = group_tops(job, place, count, tiling.tile_columns)
        scales = grid.scales[batch, band, tiles]
        codes = grid.codes[batch, band, tiles] if grid.codes.size else np.empty(0, np.uint8)
        factors = np.empty(count, real)
        with ieee_arithmetic(), wrapping():
            job.plan.settle(tops.size)(tops, specials, scales, codes, factors, grid.counts, *job.plan.arguments(tensor))
        _encode_group(job, place, scales[np.newaxis], factors[np.newaxis])


def group_tops(job: TileJob, place: Place, count: int, tile_columns: int) -> tuple[Array, Array]:
    """Return (the bit pattern of the finite amax, uint8 flags of NaN and Inf) of each tile of `place`, as 1-D arrays.

    job: the array to read and its plan. place: a part of a matrix within one row of tiles. count: number of tiles in
    `place`. tile_columns: number of columns of a tile. Flags are sums of HAS_NAN and HAS_INFINITY.
    """
    word, _, _, infinity = float_words(job.width)
    columns = tile_columns if count > 1 else max(place.columns[1] - place.columns[0], 1)
    part_tops: list[Array] = []
    loop = amax_strips(job.width, job.shape_of(columns))
    rows = max(place.rows[1] - place.rows[0], 1)

    def add(part: Place) -> None:
        tops = np.zeros(count, word)
        with wrapping():
            for piece in pieces(job, part, (1, columns if count > 1 else 1)):
                piece_tops, piece_columns = _tiles_of(piece, place, columns, tops)
                loop(load(job, piece.of(job.source)), piece_tops[np.newaxis], rows, piece_columns)
        part_tops.append(tops)

    step = (1, columns if count > 1 else 1)
    over_parts(place, step, add)
    tops = np.maximum.reduce(part_tops)
    specials = np.zeros(count, np.uint8)
    if int(tops.max(initial=0)) >= infinity:
        finite = np.where(tops < infinity, tops, 0).astype(word)
        find = specials_loop(job.width)
        with wrapping():
            for piece in pieces(job, place, step):
                piece_tops, piece_columns = _tiles_of(piece, place, columns, tops.copy())
                seen = np.zeros(piece_tops.size, np.uint8)
                find(load(job, piece.of(job.source)), piece_tops[np.newaxis], seen[np.newaxis], rows, piece_columns)
                start = (piece.columns[0] - place.columns[0]) // columns
                part = slice(start, start + piece_tops.size)
                specials[part] |= seen
                finite[part] = np.where(tops[part] < infinity, tops[part], np.maximum(finite[part], piece_tops))
        tops = finite
    return tops, specials


def _tiles_of(piece: Place, place: Place, columns: int, tops: Array) -> tuple[Array, int]:
    """Return (the entries of `tops` for the tiles in `piece`, the number of columns of a tile within `piece`).

    place: a part of a matrix. piece: a part of `place`. columns: number of columns of a whole tile. tops: one entry per
    tile of `place`.
    """
    start = (piece.columns[0] - place.columns[0]) // columns
    stop = -(-(piece.columns[1] - place.columns[0]) // columns)
    return tops[start:stop], min(columns, piece.columns[1] - piece.columns[0])


def _encode_group(job: TileJob, place: Place, scales: Array, factors: Array) -> None:
    """Fill `job.out` for a part of a matrix: all tiles of some rows of tiles, or one wide tile.

    job: the array to encode and its plan. place: the part. scales: 2-D, one decode scale per tile of the part. factors:
    of the shape of `scales`, the numbers that divide or multiply the elements; job.plan.applied says which.
    """
    tiling = job.tiling
    bands, tiles = scales.shape
    height = tiling.tile_rows if bands > 1 else max(place.rows[1] - place.rows[0], 1)
    columns = tiling.tile_columns if tiles > 1 else max(place.columns[1] - place.columns[0], 1)
    elements = job.elements(columns, careful=job.is_small or not np.all((factors != 0) & np.isfinite(factors)))
    loop = element_strips(elements)
    # within one band rows may be cut anywhere, and within one tile columns
    step = (height if bands > 1 else 1, columns if tiles > 1 else 1)

    def work(part: Place) -> None:
        with ieee_arithmetic(), wrapping():
            for piece in pieces(job, part, step):
                band = (piece.rows[0] - place.rows[0]) // height
                last_band = -(-(piece.rows[1] - place.rows[0]) // height)
                tile = (piece.columns[0] - place.columns[0]) // columns
                last_tile = -(-(piece.columns[1] - place.columns[0]) // columns)
                target = piece.of(job.out)
                whole = target.flags.c_contiguous
                out = target if whole else np.empty(target.shape, target.dtype)
                loop(
                    load(job, piece.of(job.source)), out, scales[band:last_band, tile:last_tile],
                    factors[band:last_band, tile:last_tile], height, columns,
                    job.draws(piece.batch, piece.rows[0], piece.columns[0]), *job.how.layouts,
                )  # fmt: skip
                if not whole:
                    target[...] = out

    over_parts(place, step, work)


def decode_tiles(codes: Array, scales: Array, out: Array, tiling: Tiling, fmt: Format) -> None:
    """Fill `out`, uint32, with the bit patterns of float32(code * scale).

    codes, out: shape (batch, rows, columns). scales: shape (batch, rows of tiles, tiles in a row). All are in C order.
    tiling: the size of the tiles. fmt: the format of the codes.
    """
    plan = decode_plan(fmt, 32) or decode_plan(fmt, 64)
    assert plan is not None, f"{fmt} has values that float64 does not hold"
    word = word_of(plan.width)
    frozen = plan.frozen if codes.size >= pipelines.LARGE and NAMED.get(fmt.name) == fmt else None
    columns, rows = tiling.tile_columns, tiling.tile_rows
    loop = decode_strips(plan.width, 1 if columns == 1 else ANY, frozen)
    for batch in range(tiling.batch):

        def work(place: Place) -> None:
            tiles = Place(place.batch, tile_range(place.rows, rows), tile_range(place.columns, columns))
            with ieee_arithmetic(), wrapping():
                loop(place.of(codes), tiles.of(scales), place.of(out), rows, columns, plan.layout, word(fmt.sign_bit))

        over_parts(Place(batch, (0, tiling.rows), (0, tiling.columns)), (rows, columns), work)
