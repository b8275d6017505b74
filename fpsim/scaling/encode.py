"""Encoding of an array into existing arrays of codes and scales, and quantisation into an existing array of values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, words
from fpsim.formats.cast_options import CastOptions, ElementKeywords
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP64
from fpsim.formats.table_format import HIF4, TableFormat, TwoTableFormat
from fpsim.lazy import deferred
from fpsim.scaling.arguments import element_options_of, given_scales, refuse_options, table_options_of, usual_options
from fpsim.scaling.report import ScaleReport, report_of
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import Tiling, tiling

# Modules that describe and run the loops; they import numba.
tile_jobs, run_tiles = deferred("fpsim.scaling.tile_jobs"), deferred("fpsim.scaling.run_tiles")


class EncodedTargets(NamedTuple):
    """Arrays that encoding fills, and the format and recipe of the result; fields as in `fpsim.Scaled`."""

    codes: Array
    scales: Array
    fmt: Element
    scaling: Scaling
    scale_codes: Array | None
    zero_points: Array | None


def encode_into(
    fill: EncodedTargets, source: Array, source_fmt: Format, cast: ElementKeywords, scales: npt.ArrayLike | None
) -> tuple[ScaleReport, np.float32 | None]:
    """Fill the C-contiguous arrays of `fill` with codes and scales.

    source_fmt: the format of source. cast: keywords of the elements' cast. scales: the caller's, one per tile, or None
    to compute them.

    Returns:
      The report on the scales; and the float32 scale of the whole array, None if the recipe has one level or the scales
        are the caller's.
    """
    element, scaling = fill.fmt, fill.scaling
    if isinstance(element, LogFMT):
        refuse_options("LogFMT", "level", "levels", cast, scales)
        return _encode_log(source, source_fmt, element, fill), None
    if not scaling.symmetric and isinstance(element, IntegerFormat):
        options = element_options_of(element, scaling, cast)
        return _encode_affine(source, source_fmt, element, options, scales, fill), None

    if isinstance(element, TableFormat) and element == HIF4:
        refuse_options(element, "quarter", "scales and exponents", cast, scales)
        return _encode_hif4(source, source_fmt, fill), None
    if isinstance(element, TableFormat):
        return _encode_table(source, source_fmt, element, cast, scales, fill)
    if scaling.adaptive:
        return _encode_adaptive(source, source_fmt, element, cast, scales, fill)

    options, how = _plan(element, scaling, source_fmt, cast, back=False)
    tile_scales = None if scales is None else given_scales(scales, source.shape, scaling)
    loops = run_tiles()
    tiles = tiling(source.shape, scaling.block)
    job = _job(source, words(fill.codes), tiles, how, options.seed)
    counts = np.zeros(5, np.int64)
    if tile_scales is not None:
        from fpsim.scaling.look import ruled

        scales_of_tiles = fill.scales.reshape(tiles.tiles)
        scales_of_tiles[...] = ruled(job, tile_scales.reshape(tiles.tiles), counts)
        loops.run_scales(job, scales_of_tiles)
        return report_of(fill.scales.size, *counts.tolist()), None
    tensor = loops.settle_tensor(job, counts)
    codes, shape = fill.scale_codes, tiles.tiles
    codes = loops.no_codes(*shape) if codes is None else codes.reshape(shape)
    loops.run_tiles(job, tile_jobs().TileTargets(fill.scales.reshape(shape), codes, counts), tensor)
    report = report_of(fill.scales.size, *counts.tolist())
    return report, tensor.scale if scaling.tensor_scale else None


def quantize_into(
    target: Array,
    source: Array,
    source_fmt: Format,
    element: Format | IntegerFormat,
    scaling: Scaling,
    cast: ElementKeywords,
    scales: npt.ArrayLike | None,
) -> None:
    """Fill `target`, a float32 array, with quantised values without storing codes; `decodes_in_one_pass` must be true.

    source_fmt: the format of source. cast: keywords of the elements' cast. scales: the caller's, one per tile, or None.
    """
    loops = run_tiles()
    options, how = _plan(element, scaling, source_fmt, cast, back=True)
    tiles = tiling(source.shape, scaling.block)
    job = _job(source, words(target), tiles, how, options.seed)
    if scales is not None:
        from fpsim.scaling.look import ruled

        tile_scales = given_scales(scales, source.shape, scaling).reshape(tiles.tiles)
        loops.run_scales(job, ruled(job, tile_scales))
        return
    counts = np.zeros(5, np.int64)
    tensor = loops.settle_tensor(job, counts)
    dtype, shape = how.scales.code_dtype, tiles.tiles
    codes = loops.no_codes(*shape) if dtype is None else np.empty(shape, dtype)
    loops.run_tiles(job, tile_jobs().TileTargets(np.empty(shape, np.float32), codes, counts), tensor)


def _plan(
    element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, cast: ElementKeywords, *, back: bool
) -> tuple[CastOptions, Any]:
    """Return the options of the elements' cast with the keywords `cast`, and the `TilePlan` that applies them.

    back: True for a plan that writes values, False for codes.
    """
    if not cast:
        return _usual_plan(element, scaling, source_fmt, back)
    options = element_options_of(element, scaling, cast)
    return options, tile_plan(element, scaling, options, source_fmt, back)


@lru_cache(maxsize=4096)
def _usual_plan(
    element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, back: bool
) -> tuple[CastOptions, Any]:
    """Return the result of `_plan` for default keywords; cached."""
    options = usual_options(element, scaling.overflow)
    return options, tile_plan(element, scaling, options, source_fmt, back)


def arithmetic_width(source_fmt: Format, fmt: Format) -> int:
    """Return the width in bits, 32 or 64, of the floats in which elements are divided by scales.

    source_fmt: the format of the array. fmt: the float format that quotients are rounded to.
    """
    from fpsim.core.layouts import source_width

    return 64 if source_fmt == FP64 else source_width(fmt)


def decodes_in_one_pass(element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, target: Array) -> bool:
    """Return whether quantised values can be written straight into `target`, without storing codes."""
    flags = target.flags
    return scaling.symmetric and flags.c_contiguous and flags.aligned and _decodes(element, source_fmt)


@lru_cache(maxsize=4096)
def _decodes(element: Format | IntegerFormat, source_fmt: Format) -> bool:
    """Return whether codes of `element` decode by shifts into the floats in which elements are divided by scales."""
    from fpsim.core.layouts import decode_plan

    fmt = element.magnitudes if isinstance(element, IntegerFormat) else element
    return decode_plan(fmt, arithmetic_width(source_fmt, fmt)) is not None


def _job(source: Array, out: Array, tiles: Tiling, how: Any, seed: int | None) -> Any:
    """Return the `TileJob` that encodes `source` into `out` by the `TilePlan` `how`; seed: None unless stochastic."""
    shape = tiles.shape
    return tile_jobs().TileJob(words(source).reshape(shape), out.reshape(shape), tiles, how, seed)


def tile_plan(
    element: Format | IntegerFormat, scaling: Scaling, options: CastOptions, source_fmt: Format, back: bool
) -> Any:
    """Return the seedless `TilePlan` that encodes arrays of format `source_fmt` to codes, or to values if `back`."""
    if options.seed is not None:  # a seed may differ in every call, so it is no part of the cached plan
        options = options.with_seed(None)
    return _tile_plan(element, scaling, options, source_fmt, back)


@lru_cache(maxsize=4096)
def _tile_plan(
    element: Format | IntegerFormat, scaling: Scaling, options: CastOptions, source_fmt: Format, back: bool
) -> Any:
    """Return the result of `tile_plan` for options whose seed is None; cached."""
    from fpsim.scaling.plan import element_plan, scale_plan

    integer, fmt = isinstance(element, IntegerFormat), options.fmt
    scales = scale_plan(scaling, largest_value(element), fmt.mantissa_bits, arithmetic_width(source_fmt, fmt))
    encoder = element_plan(options, scales.width, integer=integer)
    return tile_jobs().TilePlan(source_fmt, scales, options, encoder, integer, back)


@lru_cache(maxsize=1024)
def largest_value(element: Format | IntegerFormat) -> float:
    """Return the largest value of an element format, cached because computing it is slow."""
    return element.max


def _encode_affine(
    source: Array,
    source_fmt: Format,
    element: IntegerFormat,
    options: CastOptions,
    scales: npt.ArrayLike | None,
    fill: EncodedTargets,
) -> ScaleReport:
    """Fill the arrays of `fill` with integer codes, scales and zero points; return the report on the scales.

    scales: the caller's, one per tile, or None to compute them.
    """
    from fpsim.scaling.zero_points_and_logs import encode_affine

    tile_scales = None if scales is None else given_scales(scales, source.shape, fill.scaling)
    tiles = tiling(source.shape, fill.scaling.block)
    counts = np.zeros(5, np.int64)
    assert fill.zero_points is not None
    targets = (
        fill.codes.reshape(tiles.shape),
        fill.scales.reshape(tiles.tiles),
        None if fill.scale_codes is None else fill.scale_codes.reshape(tiles.tiles),
        fill.zero_points.reshape(tiles.tiles),
    )
    grid = None if tile_scales is None else tile_scales.reshape(tiles.tiles)
    if source.size:
        encode_affine(words(source), source_fmt, element, fill.scaling, options, tiles, grid, targets, counts)
    return ScaleReport(fill.scales.size, *(int(count) for count in counts))


def _encode_log(source: Array, source_fmt: Format, element: LogFMT, fill: EncodedTargets) -> ScaleReport:
    """Encode `source` to LogFMT; scales are each tile's step, zero points log2 of its lowest level."""
    from fpsim.scaling.zero_points_and_logs import encode_log

    tiles = tiling(source.shape, fill.scaling.block)
    counts = np.zeros(5, np.int64)
    assert fill.zero_points is not None
    targets = (fill.codes.reshape(tiles.shape), fill.scales.reshape(tiles.tiles), fill.zero_points.reshape(tiles.tiles))
    if source.size:
        encode_log(words(source), source_fmt, element, fill.scaling, tiles, targets, counts)
    return ScaleReport(fill.scales.size, *(int(count) for count in counts))


def _encode_table(
    source: Array,
    source_fmt: Format,
    element: TableFormat,
    cast: ElementKeywords,
    scales: npt.ArrayLike | None,
    fill: EncodedTargets,
) -> tuple[ScaleReport, np.float32 | None]:
    """Encode `source` to codes of a table format and scales; return what `encode_into` returns."""
    from fpsim.scaling.table_elements import ScaleTargets, encode_quotients, quotients

    options = table_options_of(element, fill.scaling, cast)
    known_scales = None if scales is None else given_scales(scales, source.shape, fill.scaling)
    if isinstance(element, TwoTableFormat):
        from fpsim.scaling.adaptive import EncodedTiles, encode_if4

        if known_scales is not None:
            raise ValueError("IF4 marks tiles of integers in its own scales; got scales. Leave them out.")
        tiles = EncodedTiles(fill.codes, fill.scales, fill.scale_codes)
        counts, tensor = encode_if4(source, source_fmt, fill.scaling, options, tiles)
        return report_of(fill.scales.size, *counts.tolist()), tensor
    targets = ScaleTargets(fill.scales, fill.scale_codes)
    numbers, counts, tensor = quotients(source, source_fmt, fill.scaling, element.largest, targets, known_scales)
    encode_quotients(numbers, options, fill.codes)
    return report_of(fill.scales.size, *counts.tolist()), tensor


def _encode_adaptive(
    source: Array,
    source_fmt: Format,
    element: Format | IntegerFormat,
    cast: ElementKeywords,
    scales: npt.ArrayLike | None,
    fill: EncodedTargets,
) -> tuple[ScaleReport, np.float32 | None]:
    """Encode each tile of `source` to the better of two E2M1 encodings; return what `encode_into` returns."""
    from fpsim.scaling.adaptive import EncodedTiles, encode_four_or_six

    options = element_options_of(element, fill.scaling, cast)
    known_scales = None if scales is None else given_scales(scales, source.shape, fill.scaling)
    target = EncodedTiles(fill.codes, fill.scales, fill.scale_codes)
    counts, tensor = encode_four_or_six(source, source_fmt, fill.scaling, options, target, known_scales)
    return report_of(fill.scales.size, *counts.tolist()), tensor


def _encode_hif4(source: Array, source_fmt: Format, fill: EncodedTargets) -> ScaleReport:
    """Encode `source` to HiF4; `fill` receives the packed exponents of each tile's groups as zero points."""
    from fpsim.scaling.hif4 import encode_hif4

    tiles = tiling(source.shape, fill.scaling.block)
    assert fill.zero_points is not None
    assert fill.scale_codes is not None
    scales, codes, levels = (array.reshape(tiles.tiles) for array in (fill.scales, fill.scale_codes, fill.zero_points))
    targets = (fill.codes.reshape(tiles.shape), scales, codes, levels)
    counts = encode_hif4(words(source), source_fmt, fill.scaling, tiles, targets) if source.size else np.zeros(5, int)
    return report_of(fill.scales.size, *counts.tolist())
