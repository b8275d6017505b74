"""The candidates whose rounding error is measured: a cast, a cast with one scale, or one with a scale per tile."""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures import nearest_loops
from fpsim.analysis.measures.loops import (
    BEYOND,
    FACTS,
    HIGHEST_FIELD,
    LOWEST_FIELD,
    MAY_REFUSE,
    NORMAL_FROM,
    PRECISION,
    SUBNORMAL_BELOW,
    TOP,
    RoundedPiece,
    divide_kernel,
    rescale_kernel,
)
from fpsim.arrays import Array, words
from fpsim.casts.cast import decode
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP32, FP64, Format
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import TableFormat
from fpsim.runtime.pipeline import run_stages, wrapping
from fpsim.scaling.clipping import bounds
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.tiling import tiling

SCALE_ERROR = 2.0**-22  # share of the range by which x / scale may exceed it, as scale and quotient are float32


class FormatFacts(NamedTuple):
    """The properties of a format as numbers, for the loops of `fpsim.analysis.measures.loops`.

    Attributes:
      width: bits, 32 or 64, of the floats in which errors are measured.
      floats: (FACTS,) numbers, at the indices BEYOND to PRECISION of `loops`. In this order: the smallest magnitude
        beyond the range; the largest value; the smallest normal value; the magnitude below which results are subnormal
        (0 without subnormals); 1 if values inside the range may become NaN, as negative ones in unsigned formats, else
        0; the exponent fields of the smallest normal and of the largest value; and the number of mantissa bits.
    """

    width: int
    floats: npt.NDArray[np.float64]


def nearest_plan(options: CastOptions, scale: float | None, from_amax: bool) -> tuple[float, ...] | None:
    """Return the plan of a cast: numbers with which the loops of `nearest_loops` compute it, or None if they cannot.

    The plan is a tuple of floats, at the indices TOP to TRUNCATES of `nearest_loops`. In this order: the format's
    largest value; its smallest normal value, and this value's exponent field in float32; the number of mantissa bits
    that rounding drops; the decode scale, 1 without one; the largest quotient x / scale that becomes the largest value;
    the smallest magnitude other than 0 that the loops accept; the number whose addition rounds values below the normal
    range, 0 if the loops accept no values there; and 1 for rounding toward zero or 0 for nearest even, the only two
    modes of the loops.

    options: format, rounding and subnormals of the cast. scale: decode scale, None for no scale. from_amax: whether the
    scale was computed from amax, so that x / scale may slightly exceed the format's range. The result is None for other
    rounding modes, for unsigned formats and those that float32 cannot hold. It is also None for scales below float32's
    smallest normal value, or so large that the format's smallest normal value times the scale exceeds 2**100.
    """
    unscaled = _unscaled_plan(options if options.seed is None else options.with_seed(None))
    one = 1.0 if scale is None else scale
    if unscaled is None or not (one >= FP32_NORMAL and unscaled[nearest_loops.NORMAL_FROM] * one <= 1 / FAR_DOWN):
        return None
    plan = list(unscaled)
    plan[nearest_loops.SCALE] = one
    plan[nearest_loops.LIMIT] = plan[nearest_loops.TOP] * (1 + SCALE_ERROR if from_amax else 1)
    return tuple(plan)


@lru_cache(maxsize=1024)
def _unscaled_plan(options: CastOptions) -> tuple[float, ...] | None:
    """Return the plan of a cast (the numbers of `nearest_plan`), in which the scale and the largest quotient are 0.

    options: format, rounding and subnormals of the cast. Return None if the loops of `nearest_loops` cannot compute the
    cast with any scale.
    """
    fmt = options.fmt
    usual = fmt.signed and fmt.has_zero and 1 <= fmt.mantissa_bits < FP32.mantissa_bits and held_by_float32(fmt)
    if not usual or options.rounding not in (Rounding.NEAREST_EVEN, Rounding.TOWARD_ZERO):
        return None
    subnormals = fmt.subnormals and options.subnormals == "keep"
    small = subnormals and FAR_DOWN <= fmt.smallest_subnormal <= 1 / FAR_DOWN
    plan = [0.0] * nearest_loops.PLAN
    plan[nearest_loops.TOP] = fmt.max
    plan[nearest_loops.NORMAL_FROM] = fmt.smallest_normal
    plan[nearest_loops.LOWEST] = fmt.min_exponent + FP32.bias
    plan[nearest_loops.DROPPED] = FP32.mantissa_bits - fmt.mantissa_bits
    plan[nearest_loops.LEAST] = FAR_DOWN if small else max(fmt.smallest_normal, FAR_DOWN)
    plan[nearest_loops.MAGIC] = 1.5 * 2.0**FP32.mantissa_bits * fmt.smallest_subnormal if small else 0.0
    plan[nearest_loops.TRUNCATES] = options.rounding is Rounding.TOWARD_ZERO
    return tuple(plan)


@lru_cache(maxsize=1024)
def held_by_float32(fmt: Format) -> bool:
    """Return whether float32 holds every value of a format exactly; cached."""
    return FP32.holds(fmt)


FP32_NORMAL = FP32.smallest_normal
FAR_DOWN = 2.0**-100  # for larger values, every float32 intermediate result is normal


class Buffers:
    """Work arrays by name, reused for each piece of an array, since allocating memory takes longer than a cast."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, str], Array] = {}

    def array(self, name: str, size: int, dtype: Any) -> Array:
        """Return a work array (size,) of arbitrary contents; a later call with this name and dtype reuses it."""
        key = (name, np.dtype(dtype).str)
        buffer = self._arrays.get(key)
        if buffer is None or buffer.size < size:
            buffer = self._arrays[key] = np.empty(size, dtype)
        return buffer[:size]

    def converted(self, name: str, x: Array, dtype: Any) -> Array:
        """Return x itself if it has the dtype, else a copy of x in the work array of this name and dtype."""
        if x.dtype == dtype:
            return x
        copy = self.array(name, x.size, dtype)
        with np.errstate(all="ignore"):
            np.copyto(copy, x, casting="unsafe")
        return copy


@lru_cache(maxsize=1024)
def facts_of(fmt: Format, width: int, evenly_spaced: bool = False) -> FormatFacts:
    """Return the FormatFacts of a format for source floats of `width` bits.

    The `width` of the result is 32 if `width` is 32 and float32 holds the format, its normal range included; else 64.
    evenly_spaced: True for integer formats, whose results below the smallest normal value count as normal.
    """
    fits = held_by_float32(fmt) and fmt.min_exponent >= FP32.min_exponent
    bias, width = (127, 32) if width == 32 and fits else (1023, 64)
    limit = math.nextafter(bounds(fmt, Rounding.NEAREST_EVEN, 64)[1], math.inf)
    facts = np.zeros(FACTS)
    facts[BEYOND], facts[TOP] = limit, fmt.max
    facts[NORMAL_FROM] = (
        fmt.smallest_normal if width == 64 else max(fmt.smallest_normal, 2.0 ** (fmt.mantissa_bits - 126))
    )
    facts[MAY_REFUSE] = not fmt.signed or not fmt.has_zero
    facts[SUBNORMAL_BELOW] = fmt.smallest_normal if fmt.subnormals and not evenly_spaced else 0.0
    facts[LOWEST_FIELD] = fmt.min_exponent + bias
    facts[HIGHEST_FIELD] = math.frexp(fmt.max)[1] - 1 + bias
    facts[PRECISION] = fmt.mantissa_bits
    return FormatFacts(width, facts)


UNMEASURED = FormatFacts(32, np.array([math.inf, math.inf, math.inf, 0.0, 1.0, 1.0, 254.0, 0.0]))


def amax_scale(amax: float, fmt: Format) -> float:
    """Return the decode scale that maps amax >= 0 to the largest value of a format: amax / fmt.max, rounded to float32.

    Return 1 if amax is 0, Inf or NaN. The scale is rounded up if amax / scale would otherwise exceed fmt.max by more
    than a factor of 1 + 2**-22, and limited to the largest float32 value.
    """
    if amax == 0 or not math.isfinite(amax):
        return 1.0
    limits = np.finfo(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        scale = min(np.float32(amax / fmt.max), limits.max)
    while scale < limits.max and (scale == 0 or amax / float(scale) / (1 + SCALE_ERROR) > fmt.max):
        scale = np.nextafter(scale, limits.max)
    return float(scale)


class FloatCast:
    """A cast to a float format, of x or of x / scale.

    Args:
      options: the format, rounding and other options of the cast.
      wide: whether the source, and therefore the arithmetic, is float64 instead of float32.
      scale: the decode scale, or None to cast x itself.
      from_amax: whether the scale was computed from amax, so that x / scale may slightly exceed the format's largest
        value, and is then set to it.
      long: whether the array is long enough to compile a loop for this format alone.
    """

    def __init__(
        self, options: CastOptions, wide: bool, scale: float | None = None, from_amax: bool = False, long: bool = False
    ) -> None:
        from fpsim.casts import pipelines

        self.options = options
        self.scale = scale
        self.from_amax = from_amax
        self.facts = facts_of(options.fmt, 64 if wide else 32)
        self.nearest = nearest_plan(options, scale, from_amax) if self.facts.width == 32 else None
        # float64 where float32 cannot hold the format
        target = FP64 if wide or not held_by_float32(options.fmt) else FP32
        self.stages = pipelines.quantizing(FP64 if wide else FP32, target, options, long)
        self.dtype = np.float64 if target == FP64 else np.float32

    @property
    def by_position(self) -> bool:
        """True if the result of an element depends on its index, as with stochastic rounding."""
        return self.options.rounding is Rounding.STOCHASTIC

    def rounded(self, x: Array, first: int, buffers: Buffers) -> RoundedPiece:
        """Round a 1-d piece x of float32 or float64; return (x / scale, rounded values, values * scale, scales).

        The arrays are work arrays of `buffers`, which the next call overwrites. Without a scale the first is x, the
        third equals the second, and the last is None.

        first: flat index in the array of the first element of x, for stochastic rounding.
        """
        exact = x
        if self.scale is not None:
            exact = buffers.array("exact", x.size, x.dtype)
            top = self.options.fmt.max if self.from_amax else math.inf
            with wrapping():
                divide_kernel()(x, x.dtype.type(self.scale), exact, *_limits(top, x.dtype))
        values = buffers.array("values", x.size, self.dtype)
        if len(self.stages) == 1:
            with wrapping():
                self.stages[0].run(words(exact), words(values), first)
        else:
            run_stages(self.stages, words(exact), words(values), first)
        results, scales = values, None
        if self.scale is not None:
            results = buffers.array("results", x.size, values.dtype)
            scales = buffers.array("scales", x.size, values.dtype)
            scales.fill(self.scale)
            with np.errstate(all="ignore"):
                np.multiply(values, values.dtype.type(self.scale), out=results)
        return _as_measured(RoundedPiece(exact, values, results, scales), self.facts.width, buffers)


def _as_measured(rounded: RoundedPiece, width: int, buffers: Buffers) -> RoundedPiece:
    """Return the four arrays of a rounded piece (see `RoundedPiece`) converted to floats of `width` bits, 32 or 64.

    Arrays of another dtype are copied to work arrays of `buffers`.
    """
    dtype = np.float32 if width == 32 else np.float64
    if all(array is None or array.dtype == dtype for array in rounded):
        return rounded
    arrays = (
        array if array is None else buffers.converted(f"{name} as float{width}", array, dtype)
        for name, array in zip(RoundedPiece._fields, rounded, strict=True)
    )
    return RoundedPiece(*arrays)  # type: ignore[arg-type]


def _limits(top: float, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return (top, limit), scalars of `dtype`, with which `divide_kernel` clamps quotients x / scale.

    top: the format's largest value. limit: the largest quotient that may exceed `top` only because the scale was
    rounded; `divide_kernel` sets magnitudes above `top`, up to `limit`, to `top`. Both are Inf if the argument `top` is
    Inf; then nothing is clamped.
    """
    largest = float(np.finfo(dtype).max)
    if top == math.inf:
        return dtype.type(math.inf), dtype.type(math.inf)
    return dtype.type(min(top, largest)), dtype.type(min(top * (1 + SCALE_ERROR), largest))


class Tiles:
    """A cast whose error is measured: to a format with a scale per tile, or to a table format.

    scaled: the encoded array, or an encoded part of it. wide: whether the source array is float64 instead of float32.
    origin: flat index, in the whole array, of the first element of `scaled`.
    """

    by_position = True
    nearest = None

    def __init__(self, scaled: Scaled, wide: bool, origin: int = 0) -> None:
        self.scaled = scaled
        self.origin = origin
        self.codes = scaled.codes.reshape(-1)
        self.tiling = tiling(scaled.shape, scaled.scaling.block)
        # only results can be measured if they are more than code values times scales
        self.measured = not isinstance(scaled.fmt, (LogFMT, TableFormat)) and scaled.zero_points is None
        self.decoded = None if self.measured else scaled.decode().reshape(-1)
        self.facts = self._facts(64 if wide else 32)

    def _facts(self, width: int) -> FormatFacts:
        """Return the FormatFacts of the elements.

        Errors in ulps are not measured for LogFMT, tables and codes with zero points. For all of these, return
        UNMEASURED, the facts of a format in which no value is beyond the range or subnormal.

        width: bits of the source floats.
        """
        element = self.scaled.fmt
        if not self.measured:
            return UNMEASURED._replace(width=width)
        if isinstance(element, IntegerFormat):
            return facts_of(dataclasses.replace(element.magnitudes, name=element.name), width, True)
        assert isinstance(element, Format)
        return facts_of(element, width)

    def rounded(self, x: Array, first: int, buffers: Buffers) -> RoundedPiece:
        """Return (x / scales, rounded values, values * scales, scales) for a 1-d piece x of float32 or float64.

        The rounded values are decoded from the codes. The arrays are work arrays of `buffers`, which the next call
        overwrites. For formats whose errors in ulps are not measured, the four arrays are x, the decoded results twice,
        and ones.

        first: flat index in the whole array of the first element of x.
        """
        width = self.facts.width
        first -= self.origin
        part = slice(first, first + x.size)
        if self.decoded is not None:
            result = self.decoded[part]
            scales = buffers.array("scales", x.size, np.float32)
            scales.fill(1.0)
            return _as_measured(RoundedPiece(x, result, result, scales), width, buffers)
        element, codes = self.scaled.fmt, self.codes[part]
        values = buffers.array("values", x.size, np.float32)
        if isinstance(element, IntegerFormat):
            np.copyto(values, codes)
        else:
            assert isinstance(element, Format)
            decode(codes, element, np.float32, out=values)
        scales = buffers.array("scales", x.size, np.float32)
        self._fill_scales(scales, first)
        exact, results = buffers.array("exact", x.size, x.dtype), buffers.array("results", x.size, np.float32)
        divisors = buffers.converted("divisors", scales, x.dtype)
        top, limit = _limits(float(self.facts.floats[TOP]), x.dtype)
        with wrapping():
            rescale_kernel()(x, values, divisors, exact, results, top, limit)
        return _as_measured(RoundedPiece(exact, values, results, scales), width, buffers)

    def _fill_scales(self, element_scales: Array, first: int) -> None:
        """Write the scale of each element of a piece into `element_scales`, float32 of the piece's size.

        first: flat index of the piece's first element in the encoded array.
        """
        scales = self.scaled.scales.reshape(self.tiling.tiles)
        _, rows, columns, tile_rows, tile_columns, _ = self.tiling
        done = 0
        while done < element_scales.size:
            row, column = divmod(first + done, columns)
            count = (element_scales.size - done) // columns if column == 0 else 0
            if count:
                batch, place = np.divmod(np.arange(row, row + count), rows)
                target = element_scales[done : done + count * columns].reshape(count, columns)
                _spread(scales[batch, place // tile_rows], tile_columns, target)
                done += target.size
                continue
            stop = min(column + element_scales.size - done, columns)
            tiles = scales[row // rows, row % rows // tile_rows, column // tile_columns : -(-stop // tile_columns)]
            skipped = column % tile_columns
            count = stop - column
            element_scales[done : done + count] = np.repeat(tiles, tile_columns)[skipped : skipped + count]
            done += count


def _spread(scales: Array, size: int, target: Array) -> None:
    """Write each of the scales (rows, tiles) to the `size` columns of its tile in `target` (rows, columns).

    The last tile of a row may have fewer columns.
    """
    whole = target.shape[1] // size * size
    tiles = whole // size
    target[:, :whole].reshape(-1, tiles, size)[...] = scales[:, :tiles, None]
    target[:, whole:] = scales[:, tiles:]


Candidate = FloatCast | Tiles
