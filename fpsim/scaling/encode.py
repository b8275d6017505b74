"""Encodes an array to codes and scales, or quantises it to the values that these stand for, into existing arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array, float_array, words
from fpsim.formats.cast_options import (
    CastKeywords,
    CastOptions,
    ElementKeywords,
    TableOptions,
    cast_options,
    table_options,
)
from fpsim.formats.element import Element, element_format
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import E2M1, E4M3, FP32, FP64
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.formats.table_format import HIF4, IF4, TableFormat, TwoTableFormat
from fpsim.lazy import deferred
from fpsim.scaling.recipes import E6M2, scaling_of
from fpsim.scaling.report import ScaleReport, report_of
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import Tiling, tiling

# Modules that describe and run the loops; they import numba.
tile_jobs, run_tiles = deferred("fpsim.scaling.tile_jobs"), deferred("fpsim.scaling.run_tiles")


class EncodedTargets(NamedTuple):
    """The arrays that encoding fills, as `fpsim.Scaled` has them."""

    codes: Array
    scales: Array
    fmt: Element
    scaling: Scaling
    scale_codes: Array | None
    zero_points: Array | None


def encode_into(
    fill: EncodedTargets, source: Array, source_fmt: Format, cast: ElementKeywords, scales: npt.ArrayLike | None
) -> tuple[ScaleReport, np.float32 | None]:
    """Fill arrays, in C order, with codes and scales; return the report on the scales and the whole array's scale."""
    element, scaling = fill.fmt, fill.scaling
    if isinstance(element, LogFMT):
        _refuse_options("LogFMT", "level", "levels", cast, scales)
        return _encode_log(source, source_fmt, element, fill), None
    if not scaling.symmetric and isinstance(element, IntegerFormat):
        options = element_options_of(element, scaling, cast)
        return _encode_affine(source, source_fmt, element, options, scales, fill), None

    if isinstance(element, TableFormat) and element == HIF4:
        _refuse_options(element, "quarter", "scales and exponents", cast, scales)
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
    """Fill `target` with quantised values, float32, in one pass; `decodes_in_one_pass` must be true."""
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


def checked(x: npt.ArrayLike, fmt: Any, scaling: Any) -> tuple[Element, Array, Format]:
    """Return the element format, x as an array of floats, and the format of these."""
    element = checked_element(fmt, scaling)
    array, source_fmt = float_array(x)
    return element, array, source_fmt


def checked_element(fmt: Any, scaling: Any) -> Element:
    """Return the element format, or raise an error if it does not fit the scaling."""
    try:
        return _checked_element(fmt, scaling)
    except TypeError:  # something that cannot be hashed, or no scaling: the checks raise the error that says why
        return _checked_element.__wrapped__(fmt, scaling)


@lru_cache(maxsize=4096, typed=True)
def _checked_element(fmt: Any, scaling: Any) -> Element:
    """Return the element format, cached, after checking that it fits the scaling."""
    element = element_format(fmt)
    scaling = scaling_of(scaling)
    if isinstance(element, Format) and element.bits > 16:
        raise ValueError(f"element formats have up to 16 bits; got {element}. It needs no scale.")
    if isinstance(element, Format) and not element.has_zero:
        raise ValueError(f"element formats need a zero; got {element}.")
    if isinstance(element, Format) and not (FP32.holds(element) and element.max >= FP32.smallest_normal):
        raise ValueError(
            "scales are float32: element formats must have values that float32 holds, and the largest one a normal "
            f"float32; got {element}, up to {element.max!r}. Choose another bias."
        )
    if isinstance(element, TableFormat):
        _refuse_table(element, scaling)
    _refuse_adaptive(element, scaling)
    if not scaling.symmetric and not isinstance(element, IntegerFormat):
        raise ValueError(f"symmetric=False needs an integer format; got {element}. Use fp.INT8 or fp.UINT4, say.")
    if isinstance(element, IntegerFormat) and scaling.symmetric and not element.signed:
        raise ValueError(
            f"{element} needs a zero point; use scaling.replace(symmetric=False), or fp.INT{element.bits}."
        )
    return element


def _refuse_adaptive(element: Element, scaling: Scaling) -> None:
    """Raise a ValueError if an element format needs another kind of scaling, or a scaling another element format."""
    if scaling.adaptive and element not in (E2M1, IF4):
        raise ValueError(f"adaptive={scaling.adaptive!r} chooses among codes of E2M1 or IF4; got {element}.")
    if element == IF4 and not (scaling.adaptive and scaling.tensor_scale and scaling.scale_format == E4M3):
        raise ValueError(
            f"IF4 needs scales in E4M3 of two levels and an error to choose by; got {scaling!r}. Use fp.scalings.IF4."
        )
    if (element == HIF4) != (scaling.scale_format == E6M2):
        raise ValueError(f"HIF4 and scales in E6M2 belong together; got {element} and {scaling!r}.")
    if element == HIF4 and scaling.block not in ((1, 64), (64,), (64, 1)):
        raise ValueError(f"HIF4 has tiles of 64 elements along one axis; got block {scaling.block}. Use (1, 64).")


def _refuse_table(element: TableFormat, scaling: Scaling) -> None:
    """Raise a ValueError for a table or a rule of scales that do not go together."""
    with np.errstate(all="ignore"):
        exact = all(float(np.float32(value)) == value for value, _ in element.finite)
    if not exact or not element.largest >= FP32.smallest_normal:
        raise ValueError(
            f"scales are float32: element formats must have values that float32 holds; got {element}. Round its table."
        )
    if scaling.scale_rule == "even":
        raise ValueError(
            f"scale_rule 'even' rounds to the element's mantissa, which the table of {element} has none of. "
            "Use 'floor' or 'ceil'."
        )


def element_options_of(element: Element, scaling: Scaling, cast: ElementKeywords) -> CastOptions:
    """Check and return the options of the elements' cast; without `overflow` the scaling's policy is taken."""
    assert not isinstance(element, (LogFMT, TableFormat)), "neither is cast by exponent and mantissa"
    if not cast:
        return _usual_options(element, scaling.overflow)
    overflow = cast.get("overflow")
    return _options(element, {**cast, "overflow": scaling.overflow if overflow is None else overflow})


def _plan(
    element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, cast: ElementKeywords, *, back: bool
) -> tuple[CastOptions, Any]:
    """Return the options of the elements' cast, and the plan of tiles; back: values are wanted, not codes."""
    if not cast:
        return _usual_plan(element, scaling, source_fmt, back)
    options = element_options_of(element, scaling, cast)
    return options, tile_plan(element, scaling, options, source_fmt, back)


@lru_cache(maxsize=4096)
def _usual_plan(
    element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, back: bool
) -> tuple[CastOptions, Any]:
    """Return the options and the plan of a cast without keywords, cached."""
    options = _usual_options(element, scaling.overflow)
    return options, tile_plan(element, scaling, options, source_fmt, back)


@lru_cache(maxsize=4096)
def _usual_options(element: Format | IntegerFormat, overflow: str) -> CastOptions:
    """Return the options of a cast that has no keywords but an overflow policy, cached."""
    return _options(element, {"overflow": overflow})


def _options(element: Format | IntegerFormat, keywords: CastKeywords) -> CastOptions:
    """Return the options of a cast of elements."""
    if isinstance(element, IntegerFormat):
        # every policy saturates integers, which hold neither Inf nor NaN, and have no subnormals to flush
        return cast_options(element.magnitudes, **keywords)._replace(overflow="saturate", subnormals="keep")
    return cast_options(element, **keywords)


def arithmetic_width(source_fmt: Format, fmt: Format) -> int:
    """Return the width in bits, 32 or 64, of the floats in which x / s is computed."""
    from fpsim.core.layouts import source_width

    return 64 if source_fmt == FP64 else source_width(fmt)


def decodes_in_one_pass(element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, target: Array) -> bool:
    """Return whether values can be computed without codes in memory: no zero points, and `target` is contiguous."""
    flags = target.flags
    return scaling.symmetric and flags.c_contiguous and flags.aligned and _decodes(element, source_fmt)


@lru_cache(maxsize=4096)
def _decodes(element: Format | IntegerFormat, source_fmt: Format) -> bool:
    """Return whether the floats in which x / s is computed can hold the element format's values."""
    from fpsim.core.layouts import decode_plan

    fmt = element.magnitudes if isinstance(element, IntegerFormat) else element
    return decode_plan(fmt, arithmetic_width(source_fmt, fmt)) is not None


def _job(source: Array, out: Array, tiles: Tiling, how: Any, seed: int | None) -> Any:
    """Return the job that encodes `source` into `out`."""
    shape = tiles.shape
    return tile_jobs().TileJob(words(source).reshape(shape), out.reshape(shape), tiles, how, seed)


def tile_plan(
    element: Format | IntegerFormat, scaling: Scaling, options: CastOptions, source_fmt: Format, back: bool
) -> Any:
    """Return the plan by which arrays of a dtype become codes, or values if `back`; it serves any seed."""
    if options.seed is not None:  # which may be another in every call
        options = options.with_seed(None)
    return _tile_plan(element, scaling, options, source_fmt, back)


@lru_cache(maxsize=4096)
def _tile_plan(
    element: Format | IntegerFormat, scaling: Scaling, options: CastOptions, source_fmt: Format, back: bool
) -> Any:
    """Return the plan of tiles, cached for each format, scaling and dtype."""
    from fpsim.scaling.plan import element_plan, scale_plan

    integer, fmt = isinstance(element, IntegerFormat), options.fmt
    scales = scale_plan(scaling, largest_value(element), fmt.mantissa_bits, arithmetic_width(source_fmt, fmt))
    encoder = element_plan(options, scales.width, integer=integer)
    return tile_jobs().TilePlan(source_fmt, scales, options, encoder, integer, back)


@lru_cache(maxsize=1024)
def largest_value(element: Format | IntegerFormat) -> float:
    """Return the largest value of an element format, cached because it takes a while to find."""
    return element.max


def given_scales(scales: npt.ArrayLike, shape: tuple[int, ...], scaling: Scaling) -> Array:
    """Return scales that the caller gave as float32, one per tile.

    Raises:
      ValueError: the shape does not broadcast to one scale per tile, or a scale is neither positive and finite nor NaN.
      TypeError: scales are not floats.
    """
    listed = scales if hasattr(scales, "dtype") else as_array(scales, "scales")
    if isinstance(listed, np.ndarray) and listed.dtype.kind in "iu" and listed is not scales:
        listed = listed.astype(np.float64)  # Python's integers
    array, _ = float_array(listed, "scales")
    if array.ndim == 0 and np.isnan(array.astype(np.float64)) and not hasattr(scales, "dtype"):
        raise ValueError(
            "scales must be positive and finite; got nan. An array of one per tile may hold NaN, for tiles."
        )
    grid = tiling(shape, scaling.block).grid
    try:
        with np.errstate(all="ignore"):
            tile_scales = np.ascontiguousarray(np.broadcast_to(array.astype(np.float32), grid)).reshape(grid)
    except ValueError:
        raise ValueError(
            f"scales must be one per tile, shape {grid} for x of shape {shape} and block {scaling.block}, "
            f"or broadcast to that; got shape {array.shape}."
        ) from None
    valid = ((tile_scales > 0) & (tile_scales < np.inf)) | np.isnan(tile_scales)
    if not valid.all():
        raise ValueError(f"scales must be positive and finite in float32; got {tile_scales[~valid][0]}.")
    return tile_scales


def _encode_affine(
    source: Array,
    source_fmt: Format,
    element: IntegerFormat,
    options: CastOptions,
    scales: npt.ArrayLike | None,
    fill: EncodedTargets,
) -> ScaleReport:
    """Fill arrays with integers, scales and zero points; return the report on the scales."""
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
    """Fill arrays with LogFMT's codes and levels; return the report on the tiles."""
    from fpsim.scaling.zero_points_and_logs import encode_log

    tiles = tiling(source.shape, fill.scaling.block)
    counts = np.zeros(5, np.int64)
    assert fill.zero_points is not None
    targets = (
        fill.codes.reshape(tiles.shape),
        fill.scales.reshape(tiles.tiles),
        fill.zero_points.reshape(tiles.tiles),
    )
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
    """Fill arrays with codes of a table and scales; return the report and the array's scale."""
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
    """Fill arrays by the better of two encodings of each tile; return the report and the array's scale."""
    from fpsim.scaling.adaptive import EncodedTiles, encode_four_or_six

    options = element_options_of(element, fill.scaling, cast)
    known_scales = None if scales is None else given_scales(scales, source.shape, fill.scaling)
    target = EncodedTiles(fill.codes, fill.scales, fill.scale_codes)
    counts, tensor = encode_four_or_six(source, source_fmt, fill.scaling, options, target, known_scales)
    return report_of(fill.scales.size, *counts.tolist()), tensor


def _encode_hif4(source: Array, source_fmt: Format, fill: EncodedTargets) -> ScaleReport:
    """Fill arrays with HiF4's codes, scales and levels; return the report on the tiles."""
    from fpsim.scaling.hif4 import encode_hif4

    tiles = tiling(source.shape, fill.scaling.block)
    assert fill.zero_points is not None
    assert fill.scale_codes is not None
    scales, codes, levels = (array.reshape(tiles.tiles) for array in (fill.scales, fill.scale_codes, fill.zero_points))
    targets = (fill.codes.reshape(tiles.shape), scales, codes, levels)
    counts = encode_hif4(words(source), source_fmt, fill.scaling, tiles, targets) if source.size else np.zeros(5, int)
    return report_of(fill.scales.size, *counts.tolist())


def table_options_of(element: TableFormat, scaling: Scaling, cast: ElementKeywords) -> TableOptions:
    """Check and return the options of a cast to a table; without `overflow` the scaling's policy is taken."""
    overflow = cast.get("overflow")
    return table_options(None, element, {**cast, "overflow": scaling.overflow if overflow is None else overflow})


def _refuse_options(fmt: object, nearest: str, finds: str, cast: ElementKeywords, scales: Any) -> None:
    """Raise a ValueError for options of casts that a format with only one rule does not have."""
    is_nearest = rounding_mode(cast.get("rounding", Rounding.NEAREST_EVEN)) is Rounding.NEAREST_EVEN
    if not is_nearest or cast.get("overflow") is not None or cast.get("subnormals", "keep") != "keep":
        raise ValueError(
            f"{fmt} takes the nearest {nearest}; got another rounding, overflow or subnormals. Leave these words out."
        )
    if scales is not None:
        raise ValueError(f"{fmt} finds its own {finds}; got scales. Leave them out.")
