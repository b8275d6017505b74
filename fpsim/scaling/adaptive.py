"""Encodings in which each tile (elements that share a scale) takes the better of two variants: "4/6" and IF4.

Imports numba.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.tables import value_words
from fpsim.core.tile_scale import COUNTERS
from fpsim.formats.cast_options import CastOptions, TableOptions
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64
from fpsim.formats.table_format import IF4_INTEGERS, TwoTableFormat
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling.kernels.amax import float_words
from fpsim.scaling.kernels.errors import LARGEST, MAGNITUDES, SQUARES, error_kernel, merge_kernel
from fpsim.scaling.look import with_nan_scales
from fpsim.scaling.plan import element_plan, scale_plan
from fpsim.scaling.run_tiles import decode_tiles, no_codes, run_scales, run_tiles, settle_tensor
from fpsim.scaling.scaled_arrays import EncodedTargets
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.table_elements import encode_quotients, quotient_plan, quotients
from fpsim.scaling.tile_jobs import TilePlan, TileTargets, tile_job
from fpsim.scaling.tiling import tiling
from fpsim.scaling.zero_points_and_logs import bands_of

KINDS = {"mse": SQUARES, "mae": MAGNITUDES, "abs_max": LARGEST}
FOUR = 4.0  # the value of E2M1 that a tile's largest magnitude may become instead of 6
INTEGER_MARK = 0x80  # the sign of an E4M3 scale, which says that the elements of its tile are integers


def encode_four_or_six(
    fill: EncodedTargets, source: Array, source_fmt: Format, options: CastOptions, known_scales: Array | None
) -> tuple[Array, np.float32 | None]:
    """Encode to E2M1: each tile's largest magnitude becomes 6 or 4, whichever has the smaller error; 6 in a tie.

    fill: the arrays to fill. source: the float array. source_fmt: the format that its dtype stores. options: the
    options of the elements' cast. known_scales: the caller's scales, one per tile, with which the largest magnitude
    becomes 6 (a tile in which it becomes 4 gets 1.5 times this scale); None to compute them.

    Returns:
      Five int64, the numbers of tiles with an amax of 0, with NaN, with Inf, with a scale raised to the smallest one
      allowed, and with a scale lowered to the largest, all as if every tile used 6; and the float32 scale of the whole
      array, None if the recipe has one level or the scales are the caller's.
    """
    scaling = fill.scaling
    tiles = tiling(source.shape, scaling.block)
    width = 64 if source_fmt == FP64 else 32
    encoder = element_plan(options, width, integer=False)
    encodings, tallies = [], []
    tensor = None
    for largest in (options.fmt.max, FOUR):
        plan = scale_plan(scaling, largest, options.fmt.mantissa_bits, width)
        how = TilePlan(source_fmt, plan, options, encoder, integer=False, back=False)
        scale_codes = None if fill.scale_codes is None else np.empty_like(fill.scale_codes)
        encoded = fill._replace(
            codes=np.empty_like(fill.codes), scales=np.empty_like(fill.scales), scale_codes=scale_codes
        )
        job = tile_job(source, encoded.codes, how, options.seed)
        counts, scales = np.zeros(COUNTERS, np.int64), encoded.scales.reshape(tiles.tiles)
        encodings.append(encoded)
        tallies.append(counts)
        if known_scales is not None:
            with np.errstate(over="ignore"):
                factor = np.float32(options.fmt.max / largest)
                scales[...] = with_nan_scales(job, (known_scales * factor).reshape(tiles.tiles), counts)
            run_scales(job, scales)
            continue
        tensor = settle_tensor(job, counts) if tensor is None else tensor
        codes = no_codes(*tiles.tiles) if scale_codes is None else scale_codes.reshape(tiles.tiles)
        run_tiles(job, TileTargets(scales, codes, counts), tensor)
    _merge(source, source_fmt, encodings, (_values(encoded, options.fmt) for encoded in encodings), fill)
    return tallies[0], tensor.scale if tensor is not None and scaling.tensor_scale else None


def encode_if4(
    fill: EncodedTargets, source: Array, source_fmt: Format, options: TableOptions
) -> tuple[Array, np.float32 | None]:
    """Encode to IF4: each tile uses E2M1's floats or IF4's integers, whichever has the smaller error; floats in a tie.

    The sign bit of a scale's code marks a tile of integers. fill: the arrays to fill. source: the float array.
    source_fmt: the format that its dtype stores. options: the options of the elements' cast to IF4.

    Returns:
      Five int64, the numbers of tiles with an amax of 0, with NaN, with Inf, with a scale raised to the smallest one
      allowed, and with a scale lowered to the largest; and the float32 scale of the whole array, or None without one.
    """
    fmt = options.fmt
    assert isinstance(fmt, TwoTableFormat)
    how = quotient_plan(fill.scaling, fmt.largest, source_fmt)
    numbers, counts, tensor = quotients(source, how, fill.scales, fill.scale_codes, None)
    encodings = []
    for table in (fmt, IF4_INTEGERS):
        codes = np.empty_like(fill.codes)
        encode_quotients(numbers, options._replace(fmt=table, overflow="saturate"), codes)
        encodings.append(fill._replace(codes=codes))
    values = (
        _values(encoded._replace(codes=value_words(table, 32).take(encoded.codes)), FP32)
        for table, encoded in zip((fmt, IF4_INTEGERS), encodings, strict=True)
    )
    integers = _merge(source, source_fmt, encodings, values, fill)
    fill.scale_codes[...] |= np.where(integers, INTEGER_MARK, 0).astype(np.uint8)
    return counts, tensor


def _values(encoded: EncodedTargets, fmt: Format) -> Array:
    """Decode `encoded`, whose codes have the format `fmt`: return code * scale of every element, in float32."""
    tiles = tiling(encoded.codes.shape, encoded.scaling.block)
    values = np.empty(encoded.codes.shape, np.float32)
    codes, scales = encoded.codes.reshape(tiles.shape), encoded.scales.reshape(tiles.tiles)
    decode_tiles(codes, scales, words(values).reshape(tiles.shape), tiles, fmt)
    return values


def tile_errors(source: Array, source_fmt: Format, values: Array, scaling: Scaling) -> Array:
    """Return the error of each tile (block of elements with one scale), in float64.

    `scaling.adaptive` selects the error: "mse", the sum of squared differences between `values` and `source`; "mae",
    the sum of absolute differences; "abs_max", the largest absolute difference.

    source: the original array. source_fmt: the format that its dtype stores. values: float32 array of the same shape,
    decoded from codes. The result has the shape (batch, rows of tiles, tiles in a row).
    """
    tiles = tiling(source.shape, scaling.block)
    width = 64 if source_fmt == FP64 else 32
    _, real, _, _ = float_words(width)
    errors = np.zeros(tiles.tiles)
    matrices, size = values.reshape(tiles.shape), (tiles.tile_rows, tiles.tile_columns)
    with ieee_arithmetic(), wrapping(), np.errstate(all="ignore"):
        for here, rows, matrix in bands_of(words(source), source_fmt, width, tiles):
            error_kernel()(matrix.view(real), matrices[rows], errors[here], *size, KINDS[scaling.adaptive])
    return errors


def merge_tiles(first: Array, second: Array, chosen: Array, out: Array, block: tuple[int, ...]) -> None:
    """Copy into `out` the tiles of `second` where `chosen` is true, and those of `first` elsewhere.

    The three arrays have one shape and `out` is C-contiguous (it may be `first`). chosen: one bool per tile. block: the
    size of a tile, as in `Scaling.block`.
    """
    tiles = tiling(out.shape, block)
    parts = [array.reshape(tiles.shape) for array in (first, second, out)]
    of_tiles = np.ascontiguousarray(chosen).reshape(tiles.tiles)
    with wrapping():
        for batch in range(tiles.batch):
            one, other, target = (part[batch] for part in parts)
            merge_kernel()(one, other, of_tiles[batch], target, tiles.tile_rows, tiles.tile_columns)


def _merge(
    source: Array, source_fmt: Format, encodings: list[EncodedTargets], values: Iterable[Array], fill: EncodedTargets
) -> Array:
    """Copy each tile to the arrays of `fill` from one of two encodings: that of smaller error, the first in a tie.

    source: the original array. source_fmt: the format that its dtype stores. encodings: the two encodings. values: the
    float32 arrays to which these decode, in the same order. The error is the one that fill.scaling.adaptive names.
    Return one bool per tile, True where the second encoding was copied.
    """
    errors = [tile_errors(source, source_fmt, array, fill.scaling) for array in values]
    chosen = (errors[1] < errors[0]).reshape(fill.scales.shape)
    merge_tiles(encodings[0].codes, encodings[1].codes, chosen, fill.codes, fill.scaling.block)
    for name in ("scales", "scale_codes"):
        filled = getattr(fill, name)
        if filled is not None:
            first, other = (getattr(encoded, name) for encoded in encodings)
            np.copyto(filled, np.where(chosen, other, first))
    return chosen
