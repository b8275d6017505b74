"""The error of one chunk: rounds it and counts, sharing between formats and roundings whatever they have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.tensors.chunks import Array, Floats, as_float64, quantize_chunk
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import Format

LOWEST_NORMAL = -1022  # exponent of float64's smallest normal value
SCALE_ERROR = 2.0**-22  # a scale rounded to float32 and a float32 division may exceed the range by this share


@dataclass(frozen=True, slots=True)
class Sums:
    """What adds up over the chunks of a tensor, and two maxima (NaN without data)."""

    count: int = 0
    compared_count: int = 0
    nonzero_count: int = 0
    signal: float = 0.0
    noise: float = 0.0
    error_sum: float = 0.0
    ulp_sum: float = 0.0
    relative_sum: float = 0.0
    max_ulp: float = math.nan
    max_relative: float = math.nan
    underflow_count: int = 0
    subnormal_count: int = 0
    overflow_count: int = 0
    saturation_count: int = 0
    finite_saturation_count: int = 0  # of these, inputs other than Inf
    nan_count: int = 0
    exact_count: int = 0

    def merge(self, other: Sums) -> Sums:
        """The sums of both parts: counts and maxima exactly, float64 sums by one addition each."""
        merged: dict[str, Any] = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        for name in ("max_ulp", "max_relative"):
            merged[name] = float(np.fmax(getattr(self, name), getattr(other, name)))
        return Sums(**merged)


def amax_scale(amax: float, fmt: Format) -> float:
    """The decode scale that maps amax >= 0 to the largest value of a format: amax / fmt.max rounded to float32.

    1 for amax 0. Where that rounds to a subnormal or 0 it is rounded up instead, so that amax stays in range; a
    quotient beyond float32 gives its largest value.
    """
    if amax == 0 or not math.isfinite(amax):
        return 1.0
    limits = np.finfo(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        scale = min(np.float32(amax / fmt.max), limits.max)
    while scale < limits.max and (scale == 0 or amax / float(scale) / (1 + SCALE_ERROR) > fmt.max):
        scale = np.nextafter(scale, limits.max)
    return float(scale)


class Chunk:
    """One chunk of a tensor, in float64, and what every measurement of it needs."""

    def __init__(self, x: Array, first: int) -> None:
        self.x = x
        self.first = first
        self.values: Floats = as_float64(x)
        self.magnitude: Floats = np.abs(self.values)
        self.nonzero: npt.NDArray[np.bool_] = self.magnitude != 0
        self.amax = float(self.magnitude.max(initial=0.0))  # NaN and Inf included
        self.finite = math.isfinite(self.amax)
        self.nan_count = 0 if self.finite else int(np.count_nonzero(np.isnan(self.magnitude)))

    @cached_property
    def signal(self) -> float:
        """Sum of squares; Inf where they leave float64's range."""
        with np.errstate(over="ignore", under="ignore"):
            return float(np.sum(self.values * self.values))

    @cached_property
    def divisor(self) -> Floats:
        """Magnitudes to divide errors by; Inf for 0, whose relative error does not count."""
        return np.where(self.nonzero, self.magnitude, np.inf)

    @cached_property
    def nonzero_count(self) -> int:
        """Elements other than 0."""
        return int(np.count_nonzero(self.nonzero))


class ScaledChunk:
    """A chunk divided by a decode scale (None: as it is), as one format sees it."""

    def __init__(self, chunk: Chunk, fmt: Format, scale: float | None) -> None:
        self.chunk = chunk
        self.fmt = fmt
        self.scale = scale
        self.source = chunk.x
        self.magnitude = chunk.magnitude
        if scale is not None:
            wide = chunk.x.dtype == np.float64
            dtype: Any = np.float64 if wide else np.float32
            with np.errstate(all="ignore"):
                self.source = chunk.x.astype(dtype) / dtype(scale)
            if chunk.finite and chunk.amax <= fmt.max * (1 + SCALE_ERROR) * scale:
                # amax maps to the largest value; what the rounding of the scale adds is not an overflow
                limit = min(fmt.max, float(np.finfo(dtype).max))
                np.clip(self.source, -limit, limit, out=self.source)
            self.magnitude = np.abs(as_float64(self.source))

    def rounded(self, options: CastOptions) -> Array:
        """The values of the scaled chunk's codes, before the scale is put back."""
        return quantize_chunk(self.source, options, self.chunk.first)

    def rescaled(self, rounded: Array) -> Array:
        """What the codes stand for, in the dtype of the arithmetic."""
        return rounded if self.scale is None else rounded * rounded.dtype.type(self.scale)

    @cached_property
    def beyond(self) -> npt.NDArray[np.bool_] | None:
        """Which inputs nearest-even rounding with an unbounded exponent takes beyond the largest value; None: none."""
        limit = self.fmt.max + float(self.fmt.ulp(self.fmt.max)) / 2
        if self.chunk.finite and float(self.magnitude.max(initial=0.0)) < limit:
            return None
        odd = bool(self.fmt.max_code & 1)
        return (self.magnitude >= limit) if odd else (self.magnitude > limit)

    @cached_property
    def ulp(self) -> Floats:
        """`fmt.ulp` of the scaled inputs, times the scale."""
        mantissa_bits = self.fmt.mantissa_bits
        if self.fmt.min_exponent - mantissa_bits < LOWEST_NORMAL:
            spacing: Floats = np.asarray(self.fmt.ulp(self.magnitude))
        else:  # the same from float64's exponent field, without frexp and ldexp
            top = math.frexp(self.fmt.max)[1] - 1
            fields = self.magnitude.view(np.int64) >> 52
            np.clip(fields, self.fmt.min_exponent + 1023, top + 1023, out=fields)
            fields -= mantissa_bits
            fields <<= 52
            spacing = fields.view(np.float64)
        if self.scale is not None:
            spacing *= self.scale
        return spacing


class TiledChunk(ScaledChunk):
    """A chunk that was encoded with a scale per tile: the values of its codes, and the scale of each element."""

    def __init__(self, chunk: Chunk, fmt: Format, values: Array, scales: Array) -> None:
        self.chunk = chunk
        self.fmt = fmt
        self.scale = None
        self.values = values
        self.scales = scales
        with np.errstate(all="ignore"):
            self.source = chunk.values / scales
        self.magnitude = np.abs(self.source)
        top = fmt.max * (1 + SCALE_ERROR)
        np.copyto(self.magnitude, fmt.max, where=(self.magnitude > fmt.max) & (self.magnitude <= top))

    def rounded(self, options: CastOptions) -> Array:
        return self.values

    def rescaled(self, rounded: Array) -> Array:
        return (rounded * self.scales).astype(np.float32)  # float64 holds the product, so this is its one rounding

    @cached_property
    def ulp(self) -> Floats:
        """`fmt.ulp` of the scaled inputs, times their scales."""
        return np.asarray(self.fmt.ulp(self.magnitude)) * self.scales


@np.errstate(all="ignore")
def chunk_sums(scaled: ScaledChunk, options: CastOptions) -> Sums:
    """Round a chunk and measure what that cost."""
    chunk, fmt = scaled.chunk, scaled.fmt
    rounded = scaled.rounded(options)
    size = np.abs(rounded)
    zero = size == 0
    zeros = int(np.count_nonzero(zero))
    # NaN and Inf are not below; formats without subnormals keep none
    below = int(np.count_nonzero(size < fmt.smallest_normal)) if fmt.subnormals else zeros
    saturated = infinite = 0
    if scaled.beyond is not None:
        clipped = scaled.beyond & (size == fmt.max)
        saturated = int(np.count_nonzero(clipped))
        infinite = int(np.count_nonzero(clipped & np.isinf(chunk.values)))
    with np.errstate(all="ignore"):
        result = scaled.rescaled(rounded).astype(np.float64)
        error = result - chunk.values
    if chunk.finite and math.isfinite(float(result.max(initial=0.0)) - float(result.min(initial=0.0))):
        finite = None
        inputs, divisor, ulp, signal = chunk.values, chunk.divisor, scaled.ulp, chunk.signal
        nonzero_count, overflows = chunk.nonzero_count, 0
    else:
        finite = np.isfinite(chunk.values) & np.isfinite(result)
        inputs, divisor, ulp, error = chunk.values[finite], chunk.divisor[finite], scaled.ulp[finite], error[finite]
        nonzero_count = int(np.count_nonzero(chunk.nonzero & finite))
        overflows = int(np.count_nonzero(np.isfinite(chunk.values) & ~np.isfinite(result)))
        with np.errstate(over="ignore", under="ignore"):
            signal = float(np.sum(inputs * inputs))
    with np.errstate(all="ignore"):
        noise, error_sum = float(np.sum(error * error)), float(np.sum(error))
        np.abs(error, out=error)
        ulps = error / ulp
        exact = int(error.size - np.count_nonzero(error))
        np.divide(error, divisor, out=error)
    if finite is not None:  # an Inf that stays Inf is exact
        exact += int(np.count_nonzero(np.isinf(chunk.values) & (result == chunk.values)))
    some = inputs.size > 0
    return Sums(
        count=chunk.x.size,
        compared_count=inputs.size,
        nonzero_count=nonzero_count,
        signal=signal,
        noise=noise,
        error_sum=error_sum,
        ulp_sum=float(np.sum(ulps)),
        relative_sum=float(np.sum(error)),
        max_ulp=float(ulps.max()) if some else math.nan,
        max_relative=float(error.max()) if nonzero_count else math.nan,
        underflow_count=int(np.count_nonzero(zero & chunk.nonzero)),
        subnormal_count=below - zeros,
        overflow_count=overflows,
        saturation_count=saturated,
        finite_saturation_count=saturated - infinite,
        nan_count=chunk.nan_count,
        exact_count=exact,
    )
