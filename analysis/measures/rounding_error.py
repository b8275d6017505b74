"""`fp.analysis.error`: measures the errors of rounding an array, in all of it and in each channel or block."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.candidates import Candidate, FloatCast, Tiles, amax_scale
from fpsim.analysis.measures.error_report import NEED_CODES, NEED_ULPS, ErrorReport, Parts
from fpsim.analysis.measures.magnitude_loops import amax_kernel
from fpsim.analysis.measures.parts import Layout
from fpsim.analysis.measures.passes import float_pieces, sums_of_array
from fpsim.analysis.measures.sums import ErrorSums, nothing
from fpsim.arrays import Array, float_array, without_gradient
from fpsim.errors import shown
from fpsim.formats.cast_options import (
    ELEMENT_DEFAULTS,
    ElementKeywords,
    FormatLike,
    cast_options,
    with_element_keywords,
)
from fpsim.formats.element import Element, element_format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.keywords import check_keywords
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP32, Format
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import HIF4, IF4, TableFormat
from fpsim.runtime.pipeline import wrapping
from fpsim.scaling.recipes import TENSOR, scaling_of
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling

Scale = Literal["amax"] | float | None


@with_element_keywords
def error(
    x: npt.ArrayLike,
    fmt: FormatLike,
    *,
    scale: Scale = None,
    scaling: Scaling | str | None = None,
    axis: int | None = None,
    block: int | tuple[int, ...] | None = None,
    **keywords: Unpack[ElementKeywords],
) -> ErrorReport:
    """Measure the error of rounding an array to a format.

    With a scale the result is `quantize(x / scale, fmt) * scale` in float32 (float64 for float64 input), else
    `quantize(x, fmt)`; the bits are those of `fpsim.quantize` on the whole array, stochastic rounding included.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape. No copy of x is allocated,
        except that stochastic rounding, or a scaling, together with axis or block allocates four times its size.
      fmt: the format, by name, dtype or object.
      scale: decode scale: None, a positive number, or "amax" for max|x| / fmt.max rounded to float32 (1 for an
        array without a nonzero finite value). With "amax", quotients that exceed the format's range because the scale
        was rounded become its largest value.
      scaling: an fp.Scaling or the name of one, for a scale per tile as in `fpsim.encode_scaled`; fmt may then be any
        format that this function accepts. Codes and scales are allocated during the call, about a quarter of the bytes
        of x in float32. Results are float32, also for float64 x.
      axis: an axis; the error of each index along it is also measured, and returned as the report's `parts`.
      block: the shape of blocks in the last axes, as in `fp.Scaling`, where -1 is a whole axis, and a first size of -1
        covers all earlier axes as well; the error of each block is also measured, and returned as `parts`.
      rounding, overflow, subnormals, seed, random_bits: as for `fpsim.encode` with overflow "nonfinite" by default, or
        with a scaling as for `fpsim.encode_scaled`.

    Returns:
      An ErrorReport, whose attributes are the metrics. Squares are added in float64, so SQNR, gain and mse require
      magnitudes between about 1e-150 and 1e150. The result does not depend on the number of threads.

    Raises:
      ValueError: an unknown format or name of a mode, stochastic rounding without a seed, a scale that is not positive
        and finite, both scale and scaling, no scaling for an integer format, or an axis or block that x does not have.
      TypeError: x is not an array of floats.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
      >>> report = fp.analysis.error(x, fp.E4M3, scale="amax")
      >>> round(report.sqnr_db, 1), report.overflow_rate
      (31.5, 0.0)
      >>> round(fp.analysis.error(x, fp.E4M3, rounding="toward_zero").gain, 3)  # truncation shrinks
      0.956
      >>> fp.analysis.error(np.float32([1e-3, 1.0, 500.0]), fp.E4M3).underflow_rate
      0.0
      >>> report = fp.analysis.error(x.reshape(100, 100), fp.E2M1, scaling=fp.scalings.NVFP4)
      >>> round(report.sqnr_db, 1), report.scales.tiles
      (20.6, 700)
    """
    check_keywords(error, keywords, ELEMENT_DEFAULTS)
    array, _ = float_array(without_gradient(x))
    layout = Layout(array.shape, axis, block) if axis is not None or block is not None else None
    scaling = None if scaling is None else scaling_of(scaling)
    way = RoundingWay(fmt, scaling if scaling is not None else scale, **keywords)
    if scaling is not None and scale is not None:
        raise ValueError(f"error takes scale or scaling; got scale={scale!r} and {scaling!r}. Leave one out.")
    candidate = way.candidate(array)
    if layout is None:
        return way.report(sums_of_array(array, [candidate])[0], candidate)
    sums = layout.sums(array, candidate)
    report = way.report(sums.over_first_axis() if layout.count else nothing(), candidate)
    return dataclasses.replace(report, parts=Parts(layout.name, layout.places(), sums, report.unmeasured))


class RoundingWay:
    """The checked settings of a rounding: format, rounding mode, and no scale, one scale, or a scale per tile.

    Args:
      fmt: the element format, by name, dtype or object.
      scaling: None, "amax" or a positive number (one scale for the array), or an fp.Scaling (a scale per tile).
      rounding, overflow, subnormals, seed, random_bits: as for `fpsim.analysis.error`.

    Attributes:
      element: the element format.
      options: the options of the cast. Their format is the element format if that is a float format; the float format
        of the magnitudes for an integer format; FP32 for LogFMT and tables.

    Raises:
      ValueError, TypeError: an unknown name, or a format that needs scales per tile has none.
    """

    def __init__(
        self,
        fmt: Any,
        scaling: Scaling | str | float | None,
        rounding: str | Rounding = "nearest_even",
        overflow: str | None = None,
        subnormals: str = "keep",
        seed: int | None = None,
        random_bits: int = 32,
    ) -> None:
        self.element = element_format(fmt)
        self.scaling = scaling
        if not isinstance(scaling, Scaling) and needs_tiles(self.element):
            name = self.element.name if self.element in (HIF4, IF4) else "TENSOR"
            raise ValueError(
                f"error needs scales for {self.element}; got "
                f"{'scaling' if scaling is None else 'scale'}={shown(scaling)}. "
                f"Pass scaling=fp.scalings.{name}, for example."
            )
        # for encode_scaled, where overflow=None leaves the mode to the scaling and the element format
        self.keywords: ElementKeywords = {
            "rounding": rounding, "overflow": overflow, "subnormals": subnormals, "seed": seed,
            "random_bits": random_bits,
        }  # fmt: skip
        if isinstance(scaling, Scaling) and overflow is None:
            overflow = scaling.overflow
        overflow = "nonfinite" if overflow is None else overflow
        self.options = cast_options(_judged_as(self.element), rounding, overflow, subnormals, seed, random_bits)

    def check(self) -> None:
        """Raise the ValueError of `fpsim.encode_scaled` if the format, the scaling and the cast cannot be combined."""
        if isinstance(self.scaling, Scaling) or isinstance(self.element, TableFormat):
            self.candidate(np.zeros((1, 1), np.float32))

    def candidate(self, x: Array, long: bool | None = None, amax: float | None = None) -> Candidate:
        """Return the cast of x to measure: a FloatCast, or for scales per tile and table formats a Tiles.

        A Tiles holds x already encoded; a FloatCast rounds x later, piece by piece. long: whether to compile a loop for
        this format alone, as pays for long arrays; None decides by the size of x. amax: largest finite magnitude of x,
        if known; None computes it if the scaling is "amax".
        """
        wide = x.dtype.newbyteorder("=") == np.float64
        options = self.options
        if isinstance(self.scaling, Scaling):
            scaled = encode_scaled(x, self.element, self.scaling, **self.keywords)
            return Tiles(scaled, wide)
        if isinstance(self.element, TableFormat):
            return Tiles(self._by_one_scale(x, self.element, amax), wide)
        long = x.size >= LONG if long is None else long
        if self.scaling is None:
            return FloatCast(options, wide, long=long)
        if isinstance(self.scaling, str) and self.scaling == "amax":
            amax = finite_amax(x) if amax is None else amax
            return FloatCast(options, wide, amax_scale(amax, options.fmt), True, long)
        return FloatCast(options, wide, _checked_scale(self.scaling, wide), False, long)

    def _by_one_scale(self, x: Array, fmt: TableFormat, amax: float | None) -> Scaled:
        """Return x encoded to a table format with one decode scale: `scaling`, or 1 without a scale.

        amax: largest finite magnitude of x, if known; None computes it if the scaling is "amax".
        """
        scale = 1.0 if self.scaling is None else self.scaling
        if self.scaling == "amax":
            table: Any = fmt  # amax_scale reads only `max`
            scale = amax_scale(finite_amax(x) if amax is None else amax, table)
        keywords: ElementKeywords = {**self.keywords, "overflow": self.options.overflow}
        return encode_scaled(x, fmt, TENSOR.replace(nan="element"), scales=_checked_scale(scale, False), **keywords)

    def report(self, sums: ErrorSums, candidate: Candidate) -> ErrorReport:
        """Return the report on a cast from the sums of its errors.

        candidate: the cast, as the method `candidate` returned it.
        """
        scale, scale_bits = 1.0, 0
        unmeasured: tuple[str, ...] = ()
        tiles: dict[str, Any] = {}
        if isinstance(candidate, FloatCast):
            if candidate.scale is not None:
                scale, scale_bits = candidate.scale, 32
        else:
            scaled = candidate.scaled
            unmeasured = () if candidate.measured else (*NEED_ULPS, *NEED_CODES)
            if isinstance(self.scaling, Scaling):
                scale = float(scaled.scales.item()) if scaled.scales.size == 1 else math.nan
                scale_bits, tiles = scaled.scale_bits, {"scaling": scaled.scaling, "scales": scaled.report}
            elif self.scaling is not None:  # a table's values, with one scale
                scale = float(scaled.scales.reshape(-1)[0]) if scaled.scales.size else math.nan
                scale_bits = 32
        return ErrorReport(
            self.element, self.options.rounding.name.lower(), self.options.overflow, self.options.subnormals, scale,
            sums, scale_bits=scale_bits, unmeasured=unmeasured, **tiles,
        )  # fmt: skip


def needs_tiles(element: Element) -> bool:
    """Return whether a format is encoded with an fp.Scaling only: integers, LogFMT, HiF4 and IF4."""
    return not isinstance(element, (Format, TableFormat)) or element in (HIF4, IF4)


LONG = 1 << 22  # elements: for larger arrays a loop is compiled for the format alone


def _judged_as(element: Element) -> Format:
    """Return the float format with which the options of a cast are checked.

    This is `element` if it is a float format, the format of the magnitudes of an integer format, or FP32 for LogFMT and
    tables.
    """
    if isinstance(element, Format):
        return element
    if isinstance(element, IntegerFormat):
        return dataclasses.replace(element.magnitudes, name=element.name)
    assert isinstance(element, (LogFMT, TableFormat))
    return FP32


def _checked_scale(scale: Any, wide: bool) -> float:
    """Return a decode scale as a float, rounded to float32 unless `wide` (x is float64).

    Raises:
      ValueError: the scale is not a positive finite number after rounding.
    """
    if isinstance(scale, (int, float, np.integer, np.floating)) and not isinstance(scale, bool):
        with np.errstate(over="ignore", under="ignore"), contextlib.suppress(OverflowError):
            scale = float(scale)  # OverflowError for an integer beyond float64
        used = math.nan if isinstance(scale, int) else scale
        if not wide:
            with np.errstate(over="ignore", under="ignore"):
                used = float(np.float32(used))
        if used > 0 and math.isfinite(used):
            return used
    raise ValueError(f"scale must be None, 'amax' or a positive finite number (in float32); got {shown(scale)}.")


def finite_amax(x: Array) -> float:
    """Return the largest finite magnitude of an array of floats; 0 if there is none."""
    with wrapping():
        return max((float(amax_kernel(part.dtype.itemsize * 8)(part)) for part in float_pieces(x)), default=0.0)
