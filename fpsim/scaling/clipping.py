"""Clipped elements: elements that round to a number beyond their format's maximum, which a cast saturates to it."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, float_array
from fpsim.casts.cast import encode, quantize
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import OFFSETS, IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import E8M0, FP32, FP64
from fpsim.formats.rounding import Rounding, Start
from fpsim.formats.table_format import HIF4, TableFormat
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import spread, tile_sizes, tiling


def kept(
    x: npt.ArrayLike,
    element: Element,
    scaling: Scaling | None,
    rounding: Rounding,
    scales: npt.ArrayLike | None = None,
    **cast: Any,
) -> Array:
    """Return a mask of the elements that are not clipped: x / s rounds to a value in the element format's range.

    x / s is the number that the cast rounds, computed as docs/scaling.md says (x itself without a scaling). The range
    ends at the largest number that rounds to the format's maximum; in stochastic mode, at the largest that may. The
    mask is False for NaN and Inf, and for all elements of a tile whose scale is NaN or Inf, which decode to NaN.

    Args:
      x: floats of any shape.
      element: element format.
      scaling: the scaling, or None for a cast without scales.
      rounding: rounding mode of the cast.
      scales: the caller's decode scales, one per tile; None: the scaling computes them.
      cast: further keywords of `fpsim.encode_scaled`; only integer formats with zero points use them.

    Returns:
      bool array of x's shape.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.scaling.clipping import kept
      >>> kept(np.float32([1.0, 464.0, 465.0, np.nan]), fp.E4M3, None, fp.Rounding.NEAREST_EVEN)
      array([ True,  True, False, False])
    """
    array, source_fmt = float_array(x)
    if isinstance(element, LogFMT) or (
        isinstance(element, TableFormat) and element == HIF4
    ):  # which fit the finite elements of each tile
        from fpsim.scaling.scaled import quantize_scaled

        assert scaling is not None
        return np.isfinite(_widened(array)) & np.isfinite(quantize_scaled(array, element, scaling))
    if scaling is None:
        if isinstance(element, TableFormat):
            return _within_table(_widened(array), element)
        assert isinstance(element, Format)
        return _within(_widened(array), element, rounding)
    if isinstance(element, TableFormat):
        return _within_table(_quotients(array, source_fmt, element, FP32, scaling, scales), element)
    if isinstance(element, IntegerFormat) and not scaling.symmetric:
        return _kept_with_zero_points(array, element, scaling, rounding, scales, cast)
    if scales is None and source_fmt != FP64 and _keeps_finite(element, scaling, rounding):
        finite = np.isfinite(_widened(array))
        if finite.all():
            return finite
    fmt = element.magnitudes if isinstance(element, IntegerFormat) else element
    return _within(_quotients(array, source_fmt, element, fmt, scaling, scales), fmt, rounding)


def _within_table(numbers: Array, fmt: TableFormat) -> Array:
    """Return a mask of the numbers in the range of a table format, which lists its values; False for NaN and Inf.

    fmt: the format. With Inf among its values, the range is that of the numbers whose nearest value is finite.
    Otherwise it is that of the finite values, widened at each end by half the gap between the last two values.
    """
    if fmt.has_infinity:
        nearest: Array = np.isfinite(fmt.table()[encode(numbers, fmt)]) & np.isfinite(numbers)
        return nearest
    values = [value for value, _ in fmt.finite]
    low, high = values[0] - (values[1] - values[0]) / 2, values[-1] + (values[-1] - values[-2]) / 2
    inside: Array = (numbers >= low) & (numbers <= high) & np.isfinite(numbers)
    return inside


def _keeps_finite(element: Format | IntegerFormat, scaling: Scaling, rounding: Rounding) -> bool:
    """Return whether the scales that `scaling` computes surely clip no finite element of a float32 or narrower array.

    No element is clipped if every scale is at least amax / max, where amax is the largest magnitude of the tile and max
    the largest value of the element format. E8M0 scales that are rounded up fulfil this. FP32 scales by the rule "amax"
    may be smaller by the rounding errors of one or two operations, which do no harm if `rounding`, the cast's mode,
    rounds them away.
    The result is False if this is not certain, as for scalings of two levels, for a max below 2, for unsigned formats
    and for subnormal FP32 scales, whose rounding errors are large.
    """
    absorbs = all(rounding.goes_away(odd, negative).at > 0 for odd in (False, True) for negative in (False, True))
    if not absorbs or not element.signed or element.max < 2 or scaling.tensor_scale:  # a smaller max may need an Inf
        return False
    if scaling.scale_format == E8M0:
        return scaling.rounds_up
    normal = scaling.scale_format == FP32 and scaling.lower_bound >= FP32.smallest_normal
    return normal and (scaling.scale_rule == "amax" or scaling.rounds_up)


def _within(numbers: Array, fmt: Format, rounding: Rounding) -> Array:
    """Return a mask of the float32 or float64 numbers that round to finite values of `fmt`; False for NaN.

    rounding: the mode; in stochastic mode, numbers that may round to a finite value count.
    """
    low, high = bounds(fmt, rounding, 64 if numbers.dtype == np.float64 else 32)
    inside: Array = (numbers >= numbers.dtype.type(low)) & (numbers <= numbers.dtype.type(high))
    return inside


@lru_cache(maxsize=1024)
def bounds(fmt: Format, rounding: Rounding, width: int) -> tuple[float, float]:
    """Return the lowest and the highest float of `width` bits (32 or 64) that round to a finite value of `fmt`.

    rounding: the rounding mode; in stochastic mode, the floats are the extreme ones that may round to such a value.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.scaling.clipping import bounds
      >>> bounds(fp.E2M1, fp.Rounding.TOWARD_ZERO, 32), bounds(fp.E4M3, fp.Rounding.NEAREST_EVEN, 32)
      ((-7.999999523162842, 7.999999523162842), (-464.0, 464.0))
    """
    powers = fmt.mantissa_bits == 0 and not fmt.ties_to_even_code  # every significand is 1, hence odd
    odd = powers or bool(fmt.max_code & 1)
    top, step = Fraction(fmt.max), Fraction(fmt.ulp(fmt.max))
    high = _last(top, step, rounding.goes_away(odd, negative=False), width)
    if fmt.signed:
        return -_last(top, step, rounding.goes_away(odd, negative=True), width), high
    if not fmt.has_zero:
        return float(np.nextafter(_real(width)(0), _real(width)(1))), high  # zero itself is beyond the format
    smallest = Fraction(fmt.smallest_subnormal)
    return -_last(Fraction(0), smallest, rounding.goes_away(odd=False, negative=True), width), high


def _real(width: int) -> Any:
    """Return np.float32 for a width of 32 bits, else np.float64."""
    return np.float32 if width == 32 else np.float64


def _last(top: Fraction, step: Fraction, start: Start, width: int) -> float:
    """Return the largest float of `width` bits (32 or 64) that rounds to `top`, the largest value of a format.

    step: the distance from `top` to the value that would follow it. start: where rounding to that next value begins:
    beyond the point top + step * start.at, and at the point itself if start.included. The result is at most the
    largest finite float.
    """
    edge, inclusive = top + step * Fraction(start.at), not start.included
    real = _real(width)
    limit = np.finfo(real).max
    if edge > Fraction(float(limit)):
        return float(limit)
    last = real(float(edge)) if edge else real(0)
    while Fraction(float(last)) > edge or (Fraction(float(last)) == edge and not inclusive):
        last = np.nextafter(last, real(-math.inf))
    return float(last)


def _widened(array: Array) -> Array:
    """Return `array` unchanged if it is float32 or float64; convert narrower floats to float32, exactly."""
    if array.dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        return array
    with np.errstate(all="ignore"):  # ml_dtypes warns of NaN
        return array.astype(np.float32)


def _quotients(
    array: Array, source_fmt: Format, element: Format | IntegerFormat | TableFormat, fmt: Format, scaling: Scaling,
    scales: npt.ArrayLike | None,
) -> Array:  # fmt: skip
    """Return x / s as the elements' cast receives it, in float32 or float64; NaN in tiles whose scale s is Inf.

    Args:
      array: x.
      source_fmt: the format that its dtype stores.
      element: the element format.
      fmt: the element format, or for integers the float format of their magnitudes.
      scaling: the recipe of tiles and scales.
      scales: the caller's scales, one per tile, or None to compute them.
    """
    from fpsim.scaling.encode import arithmetic_width
    from fpsim.scaling.table_elements import quotient_plan, quotients

    grid = tiling(array.shape, scaling.block).grid
    largest = element.largest if isinstance(element, TableFormat) else element.max
    how = quotient_plan(scaling, largest, source_fmt, fmt.mantissa_bits, arithmetic_width(source_fmt, fmt))
    dtype, tile_scales = how.scales.code_dtype, np.empty(grid, np.float32)
    known_scales = None if scales is None else np.broadcast_to(np.asarray(scales, np.float32), grid)
    numbers, _, _ = quotients(array, how, tile_scales, None if dtype is None else np.empty(grid, dtype), known_scales)
    if scales is None and np.isinf(tile_scales).any():
        numbers[spread(np.isinf(tile_scales), tile_sizes(array.shape, scaling.block), array.shape)] = np.nan
    return numbers


def _kept_with_zero_points(
    array: Array, element: IntegerFormat, scaling: Scaling, rounding: Rounding, scales: npt.ArrayLike | None,
    cast: dict[str, Any],
) -> Array:  # fmt: skip
    """Return a mask of the elements of `array` that an integer format with zero points does not clamp.

    An element is clamped if round(x / scale) + zero point is outside the range of the integers. In stochastic mode the
    mask is False only for elements that are clamped whatever is drawn. It is False for NaN and Inf. scaling: the recipe
    of scales and zero points. rounding: the mode of the cast. scales: the caller's, one per tile, or None. cast:
    further keywords of `encode_scaled`.
    """
    from fpsim.scaling.scaled import encode_scaled

    encoded = encode_scaled(array, element, scaling, scales=scales, rounding=rounding, **cast)
    assert encoded.zero_points is not None
    wide = _widened(array)
    sizes = tile_sizes(array.shape, scaling.block)
    factors = spread(encoded.scales.astype(wide.dtype), sizes, array.shape)
    points = spread(encoded.zero_points.astype(np.float64), sizes, array.shape)
    with np.errstate(all="ignore"):
        inverses = np.minimum(wide.dtype.type(1) / factors, np.finfo(wide.dtype).max)
        quotients = wide / factors if scaling.division == "divide" else wide * inverses
    # the stochastic mode may round either way: an element may stay in range if truncation leaves it there
    mode = Rounding.TOWARD_ZERO if rounding is Rounding.STOCHASTIC else rounding
    numbers = quantize(quotients, OFFSETS, rounding=mode, overflow="saturate") + points
    in_range = (numbers >= element.lowest) & (numbers <= element.highest)
    inside: Array = in_range & np.isfinite(quotients) & np.isfinite(factors)
    return inside
