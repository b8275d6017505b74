"""Decoding of codes and scales to values. Imports numba, so other modules import it when they first decode."""

from __future__ import annotations

import dataclasses

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.cast import decode
from fpsim.casts.tables import value_words
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP32
from fpsim.formats.table_format import HIF4, IF4_INTEGERS, TableFormat, TwoTableFormat
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling.adaptive import INTEGER_MARK, merge_tiles
from fpsim.scaling.hif4 import hif4_elements
from fpsim.scaling.kernels.affine import decode_integers_kernel
from fpsim.scaling.kernels.log import decode_kernel as decode_log_kernel
from fpsim.scaling.run_tiles import decode_tiles
from fpsim.scaling.scaled_arrays import ScaledArrays
from fpsim.scaling.tiling import spread, tile_sizes, tiling


def decode_scaled(scaled: ScaledArrays[Array], target: Array) -> None:
    """Fill `target` with the values code * scale of `scaled`.

    target: a float32 or float64 array of the same shape, of any memory layout. float32 values are rounded once. float64
    values are exact; for LogFMT, whose values are float32 numbers by definition, they are those numbers.
    """
    with ieee_arithmetic():
        if target.dtype == np.float64:
            _decode_exactly(scaled, target)
        elif target.flags.c_contiguous and target.flags.aligned and target.dtype.isnative:
            _decode_single(scaled, target)
        else:
            np.copyto(words(target), words(_singles(scaled)))


def _decode_single(scaled: ScaledArrays[Array], target: Array) -> None:
    """Fill `target`, C-contiguous float32, with the values code * scale of `scaled`, rounded once."""
    tiles = tiling(scaled.shape, scaled.scaling.block)
    codes = np.ascontiguousarray(scaled.codes).reshape(tiles.shape)
    scales = np.ascontiguousarray(scaled.scales).reshape(tiles.tiles)
    bits = target.view(np.uint32).reshape(tiles.shape)
    fmt, size = scaled.fmt, (tiles.tile_rows, tiles.tile_columns)
    if isinstance(fmt, TableFormat):
        values = element_values(scaled).reshape(tiles.shape)
        decode_tiles(values.view(np.uint32), scales, bits, tiles, FP32)
        return
    if not isinstance(fmt, (IntegerFormat, LogFMT)):
        decode_tiles(codes, scales, bits, tiles, fmt)
        return
    zeros = np.zeros(tiles.tiles, fmt.storage) if scaled.zero_points is None else scaled.zero_points
    zeros = np.ascontiguousarray(zeros).reshape(tiles.tiles)
    with ieee_arithmetic(), wrapping(), np.errstate(all="ignore"):
        for batch in range(tiles.batch):
            if isinstance(fmt, LogFMT):
                values = bits[batch].view(np.float32)
                decode_log_kernel()(codes[batch], scales[batch], zeros[batch], values, *size, fmt.level_count)
            else:
                decode_integers_kernel()(codes[batch], scales[batch], zeros[batch], bits[batch], *size)


def element_values(scaled: ScaledArrays[Array]) -> Array:
    """Return the value of each code of `scaled`, of a table format, without its tile's scale, in float32, exactly."""
    fmt, codes = scaled.fmt, np.ascontiguousarray(scaled.codes)
    assert isinstance(fmt, TableFormat)
    if fmt == HIF4:
        assert scaled.zero_points is not None
        return hif4_elements(codes, scaled.zero_points, scaled.scaling.block)
    values: Array = value_words(fmt, 32).take(codes).view(np.float32)
    if isinstance(fmt, TwoTableFormat):
        assert scaled.scale_codes is not None
        other: Array = value_words(IF4_INTEGERS, 32).take(codes).view(np.float32)
        marks = (scaled.scale_codes & INTEGER_MARK) != 0
        merge_tiles(values, other, marks, values, scaled.scaling.block)
    return values


def _decode_exactly(scaled: ScaledArrays[Array], target: Array) -> None:
    """Fill `target`, a float64 array, with the exact values of `scaled`; for LogFMT with its float32 values.

    A NaN gets the sign that decoding to float32 gives it.
    """
    fmt = scaled.fmt
    if isinstance(fmt, LogFMT):
        np.copyto(target, _singles(scaled))
        return
    with ieee_arithmetic(), np.errstate(all="ignore"):
        if isinstance(fmt, IntegerFormat):
            np.copyto(target, scaled.codes)
            if scaled.zero_points is not None:
                target -= scale_of_elements(dataclasses.replace(scaled, scales=scaled.zero_points.astype(np.float32)))
        elif isinstance(fmt, TableFormat):
            np.copyto(target, element_values(scaled))
        else:
            np.copyto(target, decode(scaled.codes, fmt, dtype=np.float64))
        target *= scale_of_elements(scaled)
        nan = np.isnan(target)
        if nan.any():  # of two NaNs a processor may return either's sign; float32 results have the element's
            target[nan] = _singles(scaled)[nan]


def _singles(scaled: ScaledArrays[Array]) -> Array:
    """Return the values code * scale of `scaled` in a new float32 array, rounded once."""
    values = np.empty(scaled.shape, np.float32)
    _decode_single(scaled, values)
    return values


def scale_of_elements(scaled: ScaledArrays[Array]) -> Array:
    """Return the decode scale of every element of `scaled`, as float32 of the array's shape."""
    return spread(scaled.scales, tile_sizes(scaled.shape, scaled.scaling.block), scaled.shape)
