"""The error of rounding an array to a format: one pass, mergeable sums, every rate a fraction of all elements."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.counts import Chunk, ScaledChunk, Sums, TiledChunk, amax_scale, chunk_sums
from fpsim.analysis.tensors.chunks import Array, as_float64, flat_chunks
from fpsim.arrays import float_array, without_gradient
from fpsim.casts.cast import decode
from fpsim.display.optional import frame
from fpsim.display.wording import decibels, percent, plural
from fpsim.errors import shown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options
from fpsim.formats.element import element_format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import Format
from fpsim.formats.rounding import Rounding
from fpsim.runtime.pipeline import blocks
from fpsim.scaling.decode import scale_of_elements
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling

Scale = Literal["amax"] | float | None

METRICS = (
    "count", "sqnr_db", "mse", "bias", "max_ulp", "mean_ulp", "max_relative", "mean_relative", "underflow_rate",
    "subnormal_rate", "overflow_rate", "saturation_rate", "nan_rate", "exact_rate",
)  # fmt: skip

SHOWN = ("underflow", "overflow", "saturation")  # rates that a printed report has


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else math.nan


@dataclass(frozen=True)
class ErrorReport:
    """What rounding cost; `merge` adds the report of another part of the same data.

    "Compared" are the elements whose input and result are both finite; a rate is a fraction of all elements.

    Attributes:
      fmt, rounding, overflow, subnormals: how the data was rounded.
      scale: the decode scale; 1 without one, NaN where there are several or merged parts had different ones.
      scaling, scales: the recipe of scales per tile, and what happened to these; None without one.
      sums: the counts and sums behind every figure.
    """

    fmt: Format
    rounding: str
    overflow: str
    subnormals: str
    scale: float
    sums: Sums
    scaling: Scaling | None = None
    scales: ScaleReport | None = None

    @property
    def format(self) -> str:
        """The name of the format."""
        return self.fmt.name

    @property
    def count(self) -> int:
        """Elements in all."""
        return self.sums.count

    @property
    def sqnr_db(self) -> float:
        """10 log10(sum x**2 / sum (result - x)**2) over the compared: Inf without error, NaN without data."""
        sums = self.sums
        if not sums.compared_count or not math.isfinite(sums.signal):
            return math.nan
        if sums.noise == 0:
            return math.inf
        return 10 * (math.log10(sums.signal) - math.log10(sums.noise)) if sums.signal else -math.inf

    @property
    def mse(self) -> float:
        """Mean of (result - x)**2 over the compared."""
        return _ratio(self.sums.noise, self.sums.compared_count)

    @property
    def bias(self) -> float:
        """Mean of result - x over the compared."""
        return _ratio(self.sums.error_sum, self.sums.compared_count)

    @property
    def max_ulp(self) -> float:
        """Largest |result - x| / ulp(x), the format's spacing at the exact x, over the compared."""
        return self.sums.max_ulp

    @property
    def mean_ulp(self) -> float:
        """Mean of |result - x| / ulp(x) over the compared."""
        return _ratio(self.sums.ulp_sum, self.sums.compared_count)

    @property
    def max_relative(self) -> float:
        """Largest |result - x| / |x| over the compared that are not 0."""
        return self.sums.max_relative

    @property
    def mean_relative(self) -> float:
        """Mean of |result - x| / |x| over the compared that are not 0."""
        return _ratio(self.sums.relative_sum, self.sums.nonzero_count)

    @property
    def underflow_rate(self) -> float:
        """Share of elements that are not 0 and become 0 or -0."""
        return _ratio(self.sums.underflow_count, self.count)

    @property
    def subnormal_rate(self) -> float:
        """Share of results that are subnormal in the format."""
        return _ratio(self.sums.subnormal_count, self.count)

    @property
    def overflow_rate(self) -> float:
        """Share of elements that are finite and become Inf or NaN."""
        return _ratio(self.sums.overflow_count, self.count)

    @property
    def saturation_rate(self) -> float:
        """Share of inputs beyond the range of nearest-even rounding, Inf included, that become +-max."""
        return _ratio(self.sums.saturation_count, self.count)

    @property
    def beyond_rate(self) -> float:
        """Share of elements that are finite and beyond the range, whatever became of them."""
        return _ratio(self.sums.overflow_count + self.sums.finite_saturation_count, self.count)

    @property
    def nan_rate(self) -> float:
        """Share of NaN inputs."""
        return _ratio(self.sums.nan_count, self.count)

    @property
    def exact_rate(self) -> float:
        """Share of results equal to their input."""
        return _ratio(self.sums.exact_count, self.count)

    def merge(self, other: ErrorReport) -> ErrorReport:
        """The report of both parts together.

        Counts, rates and maxima are those of one pass. The float64 sums behind the means and SQNR are added in
        another order than in one pass, which moves them by a few parts in 10**16 of the sum of magnitudes.

        Raises:
          ValueError: the parts were rounded differently.

        Example:
          >>> import fpsim as fp
          >>> x = np.linspace(-3, 3, 1001, dtype=np.float32)
          >>> parts = [fp.analysis.error(part, fp.E4M3) for part in (x[:400], x[400:])]
          >>> parts[0].merge(parts[1]).exact_rate == fp.analysis.error(x, fp.E4M3).exact_rate
          True
        """
        for name in ("fmt", "rounding", "overflow", "subnormals", "scaling"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                setting = "format" if name == "fmt" else name
                raise ValueError(f"reports to merge must have the same {setting}; got {mine} and {others}.")
        scale = self.scale if self.scale == other.scale else math.nan
        scales = self.scales.merge(other.scales) if self.scales and other.scales else None
        return dataclasses.replace(self, scale=scale, sums=self.sums.merge(other.sums), scales=scales)

    def __str__(self) -> str:
        """The figures that decide, the SQNR first.

        Example:
          >>> import fpsim as fp
          >>> print(fp.analysis.error(np.float32([1e-9, 1.0, 0.3, 500.0]), fp.E4M3))
          38.4 dB SQNR in E4M3 (nearest_even, no scale) over 4 values: underflow 25.0 %, overflow 25.0 %, saturation 0 %
        """
        one = f"scale {self.scale:.3g}" if self.scale != 1 else "no scale"
        scale = repr(self.scaling) if self.scaling else "several scales" if math.isnan(self.scale) else one
        rates = ", ".join(f"{name} {percent(getattr(self, f'{name}_rate'))}" for name in SHOWN)
        sqnr = decibels(self.sqnr_db) + (" SQNR" if math.isfinite(self.sqnr_db) else "")
        return f"{sqnr} in {self.format} ({self.rounding}, {scale}) over {plural(self.count, 'value')}: {rates}"

    def to_dict(self) -> dict[str, Any]:
        """How it was rounded, and every figure, as one row of a table."""
        settings = {name: getattr(self, name) for name in ("format", "rounding", "overflow", "subnormals", "scale")}
        tiles = {"scaling": repr(self.scaling), **self.scales.to_dict()} if self.scales else {}
        return {**settings, **tiles, **{name: getattr(self, name) for name in METRICS}}

    def to_frame(self) -> Any:
        """A pandas DataFrame of one row."""
        return frame([self.to_dict()])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(_text(value))}</td></tr>"
            for name, value in self.to_dict().items()
        )
        return f"<table>{cells}</table>"


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def error(
    x: npt.ArrayLike,
    fmt: FormatLike,
    *,
    scale: Scale = None,
    scaling: Scaling | None = None,
    rounding: str | Rounding = "nearest_even",
    overflow: str | None = None,
    subnormals: str = "keep",
    seed: int | None = None,
    random_bits: int = 32,
) -> ErrorReport:
    """Measure what rounding an array to a format costs.

    With a scale the result is `quantize(x / scale, fmt) * scale` in float32 (float64 for float64 input), else
    `quantize(x, fmt)`; the bits are those of `fpsim.quantize` on the whole array, stochastic rounding included.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape; nothing of its size is
        allocated.
      fmt: the format, by name, dtype or object.
      scale: decode scale: None, a positive number, or "amax" for max|x| / fmt.max rounded to float32 (1 for an
        array without a non-zero finite value). With "amax" the division stays within the format's range.
      scaling: a scale per tile instead, as for `fpsim.encode_scaled`; fmt may then be fp.INT8 or fp.INT4 too. Codes
        and scales are kept for the while, a quarter of a float32 array and less. The result is float32, for float64
        x as well.
      rounding, overflow, subnormals, seed, random_bits: as for `fpsim.encode` ("nonfinite" by default), or for
        `fpsim.encode_scaled`.
    Returns:
      An ErrorReport; its attributes define the figures. Squares are summed in float64, so SQNR and mse need
      magnitudes between about 1e-150 and 1e150.
    Raises:
      ValueError: unknown format or word, no seed, a scale that is not positive and finite, both kinds of scale, or
        none for integers.
      TypeError: x is not an array of floats.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
      >>> report = fp.analysis.error(x, fp.E4M3, scale="amax")
      >>> round(report.sqnr_db, 1), report.overflow_rate
      (31.5, 0.0)
      >>> fp.analysis.error(np.float32([1e-3, 1.0, 500.0]), fp.E4M3).underflow_rate
      0.0
      >>> report = fp.analysis.error(x.reshape(100, 100), fp.E2M1, scaling=fp.scalings.NVFP4)
      >>> round(report.sqnr_db, 1), report.scales.tiles
      (20.6, 700)
    """
    if scaling is not None:
        if scale is not None:
            raise ValueError(f"error takes scale or scaling; got scale={scale!r} and {scaling!r}. Leave one out.")
        return _scaled_error(x, fmt, scaling, rounding, overflow, subnormals, seed, random_bits)
    element = element_format(fmt)
    if not isinstance(element, Format):
        raise ValueError(
            f"error needs scales for {element}; got scaling=None. Pass scaling=fp.scalings.TENSOR, for example."
        )
    overflow = "nonfinite" if overflow is None else overflow
    options = cast_options(fmt, rounding, overflow, subnormals, seed, random_bits)
    array, _ = float_array(without_gradient(x))
    divisor = _checked_scale(scale, array, options)
    sums = Sums()
    first = 0
    for part in flat_chunks(array):
        sums = sums.merge(chunk_sums(ScaledChunk(Chunk(part, first), options.fmt, divisor), options))
        first += part.size
    return report_of(sums, options, divisor)


def _scaled_error(
    x: npt.ArrayLike, fmt: Any, scaling: Scaling, rounding: Any, overflow: Any, subnormals: Any, seed: Any, bits: Any
) -> ErrorReport:
    """The error of a scale per tile."""
    array, _ = float_array(without_gradient(x))
    scaled = encode_scaled(
        array, fmt, scaling, rounding=rounding, overflow=overflow, subnormals=subnormals, seed=seed, random_bits=bits
    )
    element = scaled.fmt
    if isinstance(element, LogFMT) or scaled.zero_points is not None:
        raise ValueError(
            f"error measures formats with a scale alone; got {element}, symmetric={scaling.symmetric}. "
            "Compare x with the decoded values instead."
        )
    seen = element if isinstance(element, Format) else dataclasses.replace(element.magnitudes, name=element.name)
    word = scaling.overflow if overflow is None else overflow
    options = cast_options(seen, rounding, word, subnormals, seed, bits)
    sums = Sums()
    for index in blocks(array.shape):
        part = np.ascontiguousarray(array[index], array.dtype.newbyteorder("=")).reshape(-1)
        codes = scaled.codes[index].reshape(-1)
        values = codes.astype(np.float32) if isinstance(element, IntegerFormat) else decode(codes, element, np.float64)
        scales = scale_of_elements(scaled, index).reshape(-1)
        tiles = TiledChunk(Chunk(part, 0), seen, values.astype(np.float64), scales.astype(np.float64))
        sums = sums.merge(chunk_sums(tiles, options))
    if isinstance(element, IntegerFormat):
        sums = dataclasses.replace(sums, subnormal_count=0)  # integers are evenly spaced
    report = report_of(sums, options, float(scaled.scales.item()) if scaled.scales.size == 1 else math.nan)
    return dataclasses.replace(report, scaling=scaling, scales=scaled.report)


def report_of(sums: Sums, options: CastOptions, scale: float | None) -> ErrorReport:
    """Sums with the names of how they came about."""
    return ErrorReport(
        fmt=options.fmt,
        rounding=options.rounding.name.lower(),
        overflow=options.overflow,
        subnormals=options.subnormals,
        scale=1.0 if scale is None else scale,
        sums=sums,
    )


def _checked_scale(scale: Scale, x: Array, options: CastOptions) -> float | None:
    if scale is None:
        return None
    if isinstance(scale, str):
        if scale == "amax":
            return amax_scale(finite_amax(x), options.fmt)
    elif isinstance(scale, (int, float, np.integer, np.floating)) and not isinstance(scale, bool):
        with np.errstate(over="ignore", under="ignore"), contextlib.suppress(OverflowError):
            scale = float(scale)  # an integer may be too large for that
        used = math.nan if isinstance(scale, int) else scale
        if x.dtype != np.float64:
            with np.errstate(over="ignore", under="ignore"):
                used = float(np.float32(used))
        if used > 0 and math.isfinite(used):
            return used
    raise ValueError(f"scale must be None, 'amax' or a positive finite number (in float32); got {shown(scale)}.")


def finite_amax(x: Array) -> float:
    """Largest finite magnitude of an array; 0 without any."""
    amax = 0.0
    for part in flat_chunks(x):
        magnitude = np.abs(as_float64(part))
        amax = max(amax, float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude))))
    return amax
