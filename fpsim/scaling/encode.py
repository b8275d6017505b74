"""Encoding of an array into existing arrays of codes and scales, and quantisation into an existing array of values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.formats.cast_options import CastOptions, ElementKeywords
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP64
from fpsim.formats.table_format import HIF4, TableFormat, TwoTableFormat
from fpsim.lazy import deferred
from fpsim.scaling.arguments import element_options_of, given_scales, refuse_options, table_options_of, usual_options
from fpsim.scaling.scaled_arrays import EncodedTargets
from fpsim.scaling.scaling import Scaling

# Modules that describe and run the loops; they import numba.
tile_jobs = deferred("fpsim.scaling.tile_jobs")
run_tiles = deferred("fpsim.scaling.run_tiles")
look = deferred("fpsim.scaling.look")


def encode_into(
    fill: EncodedTargets, source: Array, source_fmt: Format, cast: ElementKeywords, scales: npt.ArrayLike | None
) -> tuple[Array, np.float32 | None]:
    """Fill the C-contiguous arrays of `fill` with codes and scales.

    Args:
      fill: arrays to fill, element format and scaling.
      source: float array to encode.
      source_fmt: the format that its dtype stores.
      cast: keywords of the elements' cast.
      scales: the caller's scales, one per tile, or None to compute them.

    Returns:
      Five int64, the numbers of tiles with an amax of 0, with NaN, with Inf, with a scale raised to the smallest one
      allowed, and with a scale lowered to the largest; and the float32 scale of the whole array by which two-level
      recipes multiply all scales, None if the recipe has one level or the scales are the caller's.
    """
    element, scaling = fill.fmt, fill.scaling
    if isinstance(element, LogFMT):
        from fpsim.scaling.zero_points_and_logs import encode_log

        refuse_options("LogFMT", "level", "levels", cast, scales)
        return encode_log(fill, source, source_fmt), None
    if isinstance(element, TableFormat) and element == HIF4:
        from fpsim.scaling.hif4 import encode_hif4

        refuse_options(element, "quarter", "scales and exponents", cast, scales)
        return encode_hif4(fill, source, source_fmt), None
    known_scales = None if scales is None else given_scales(scales, source.shape, scaling)
    if isinstance(element, TwoTableFormat):
        from fpsim.scaling.adaptive import encode_if4

        if known_scales is not None:
            raise ValueError("IF4 marks tiles of integers in its own scales; got scales. Leave them out.")
        return encode_if4(fill, source, source_fmt, table_options_of(element, scaling, cast))
    if isinstance(element, TableFormat):
        from fpsim.scaling.table_elements import encode_quotients, quotient_plan, quotients

        options_of_table = table_options_of(element, scaling, cast)
        how = quotient_plan(scaling, element.largest, source_fmt)
        numbers, counts, tensor = quotients(source, how, fill.scales, fill.scale_codes, known_scales)
        encode_quotients(numbers, options_of_table, fill.codes)
        return counts, tensor
    if scaling.symmetric and not scaling.adaptive:
        options, how = _plan(element, scaling, source_fmt, cast, back=False)
        job, counts = tile_jobs().tile_job(source, fill.codes, how, options.seed), np.zeros(5, np.int64)
        return counts, look().fill_tiles(job, fill.scales, fill.scale_codes, known_scales, counts)

    options = element_options_of(element, scaling, cast)
    if scaling.adaptive:
        from fpsim.scaling.adaptive import encode_four_or_six

        return encode_four_or_six(fill, source, source_fmt, options, known_scales)
    from fpsim.scaling.zero_points_and_logs import encode_affine

    return encode_affine(fill, source, source_fmt, options, known_scales), None


def quantize_into(
    target: Array,
    source: Array,
    source_fmt: Format,
    element: Format | IntegerFormat,
    scaling: Scaling,
    cast: ElementKeywords,
    scales: npt.ArrayLike | None,
) -> None:
    """Fill `target` with quantised values without storing codes.

    `decodes_in_one_pass`, called with the same element, scaling, source_fmt and target, must return True.

    Args:
      target: float32 array to fill.
      source: float array of the same shape.
      source_fmt: the format that its dtype stores.
      element: the element format.
      scaling: the recipe of tiles and scales.
      cast: keywords of the elements' cast.
      scales: the caller's scales, one per tile, or None to compute them.
    """
    options, how = _plan(element, scaling, source_fmt, cast, back=True)
    job = tile_jobs().tile_job(source, target, how, options.seed)
    shape, dtype = job.tiling.tiles, how.scales.code_dtype
    if scales is not None:
        tile_scales = given_scales(scales, source.shape, scaling).reshape(shape)
        run_tiles().run_scales(job, look().with_nan_scales(job, tile_scales))
        return
    codes = None if dtype is None else np.empty(shape, dtype)
    look().fill_tiles(job, np.empty(shape, np.float32), codes, None, np.zeros(5, np.int64))


def _plan(
    element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, cast: ElementKeywords, *, back: bool
) -> tuple[CastOptions, Any]:
    """Return the options of the elements' cast with the keywords `cast`, and the `TilePlan` that applies them.

    A TilePlan holds the constants of loops that encode arrays of one format with one scaling. element: the element
    format. source_fmt: the format that the array's dtype stores. back: True for a plan that writes code * scale, False
    for one that writes codes.
    """
    if not cast:
        return _usual_plan(element, scaling, source_fmt, back)
    options = element_options_of(element, scaling, cast)
    return options, tile_plan(element, scaling, options, source_fmt, back)


@lru_cache(maxsize=4096)
def _usual_plan(
    element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, back: bool
) -> tuple[CastOptions, Any]:
    """Return the options of a cast without keywords, and the `TilePlan` (loop constants) that applies them; cached.

    element, scaling: the format and the recipe of the result. source_fmt: the format of the array. back: True for a
    plan that writes code * scale, False for one that writes codes.
    """
    options = usual_options(element, scaling.overflow)
    return options, tile_plan(element, scaling, options, source_fmt, back)


def arithmetic_width(source_fmt: Format, fmt: Format) -> int:
    """Return the width in bits, 32 or 64, of the floats in which elements are divided by scales.

    It is 64 if source_fmt, the format that the array's dtype stores, is FP64, or if float32 is too narrow to be rounded
    to `fmt`, the format to which quotients are rounded; else 32.
    """
    from fpsim.core.layouts import source_width

    return 64 if source_fmt == FP64 else source_width(fmt)


def decodes_in_one_pass(element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, target: Array) -> bool:
    """Return whether quantised values can be written straight into `target`, without storing codes.

    The scaling must have no zero points, and `target` must be contiguous and aligned. The values of `element` must fit
    the float, float32 or float64, in which elements are divided by scales. source_fmt: the format of the array to
    quantise.
    """
    flags = target.flags
    return scaling.symmetric and flags.c_contiguous and flags.aligned and _decodes(element, source_fmt)


@lru_cache(maxsize=4096)
def _decodes(element: Format | IntegerFormat, source_fmt: Format) -> bool:
    """Return whether codes of `element` can be decoded by shifts, without a table of values; cached.

    The values are floats of the width in which elements are divided by scales: float32 or float64, as
    `arithmetic_width` chooses by source_fmt, the format of the array to encode.
    """
    from fpsim.core.layouts import decode_plan

    fmt = element.magnitudes if isinstance(element, IntegerFormat) else element
    return decode_plan(fmt, arithmetic_width(source_fmt, fmt)) is not None


def tile_plan(
    element: Format | IntegerFormat, scaling: Scaling, options: CastOptions, source_fmt: Format, back: bool
) -> Any:
    """Return the `TilePlan` that encodes arrays of format `source_fmt` to codes, or to values if `back`.

    A TilePlan holds the constants of loops that encode arrays of one format with one scaling, without a seed. element:
    the element format. options: the options of the elements' cast.
    """
    if options.seed is not None:  # a seed may differ in every call, so it is no part of the cached plan
        options = options.with_seed(None)
    return _tile_plan(element, scaling, options, source_fmt, back)


@lru_cache(maxsize=4096)
def _tile_plan(
    element: Format | IntegerFormat, scaling: Scaling, options: CastOptions, source_fmt: Format, back: bool
) -> Any:
    """Return the `TilePlan` (loop constants) that encodes arrays of format `source_fmt`; cached.

    element, scaling: the format and the recipe of the result. options: the options of the cast, without a seed. back:
    True for a plan that writes code * scale, False for one that writes codes.
    """
    from fpsim.scaling.plan import element_plan, scale_plan

    integer, fmt = isinstance(element, IntegerFormat), options.fmt
    scales = scale_plan(scaling, element.max, fmt.mantissa_bits, arithmetic_width(source_fmt, fmt))
    encoder = element_plan(options, scales.width, integer=integer)
    return tile_jobs().TilePlan(source_fmt, scales, options, encoder, integer, back)
