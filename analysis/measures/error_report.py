"""The report of a rounding error, of a whole array and of its channels or blocks."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.metrics import FORMULAS, metric
from fpsim.analysis.measures.sums import ErrorSums
from fpsim.display.optional import Axes, DataFrame, frame, load
from fpsim.display.tables import html_pairs
from fpsim.display.wording import decibels, percent, plural
from fpsim.errors import unknown
from fpsim.formats.element import Element
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaling import Scaling

METRICS = (
    "count", "sqnr_db", "gain", "lost_energy", "mse", "bias", "max_ulp", "mean_ulp", "max_relative", "mean_relative",
    "underflow_rate", "subnormal_rate", "overflow_rate", "saturation_rate", "nan_rate", "exact_rate",
)  # fmt: skip
NOISE = ("noise_normal", "noise_subnormal", "noise_underflow", "noise_saturation")
NEED_ULPS = ("max_ulp", "mean_ulp")
NEED_CODES = ("subnormal_rate", "saturation_rate", "noise_normal", "noise_subnormal", "noise_saturation")

SHOWN = ("underflow", "overflow", "saturation")  # rates that a printed report has


@dataclass(frozen=True, eq=False, repr=False)
class Parts:
    """The metrics of each channel or block of an array.

    Attributes:
      name: "channel" or "block".
      places: the index of each part along the axis, or its indices in the grid of blocks.
      sums: the counts and sums that the metrics are computed from.

    Example:
      >>> import fpsim as fp
      >>> x = np.float32([[1, 2, 3], [1e-9, 2e-9, 3e-9]])
      >>> parts = fp.analysis.error(x, "e4m3", axis=0).parts
      >>> parts["underflow_rate"], parts.worst("underflow_rate")
      (array([0., 1.]), 1)
    """

    name: str
    places: tuple[Any, ...]
    sums: ErrorSums
    unmeasured: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a metric of every part, by its name in an ErrorReport."""
        if name not in FORMULAS:
            raise unknown("metric", name, list(FORMULAS))
        values = np.asarray(FORMULAS[name](self.sums))
        return np.full(values.shape, np.nan) if name in self.unmeasured else values

    def worst(self, name: str = "sqnr_db") -> Any:
        """Return the place of the part whose metric is worst: the lowest SQNR, gain or exact rate, the largest of any
        other.
        """
        values = self[name].astype(np.float64)
        if name == "gain":
            values = -np.abs(values - 1)
        elif name not in ("sqnr_db", "exact_rate"):
            values = -np.abs(values)
        if not len(values) or np.isnan(values).all():
            return None
        return self.places[int(np.nanargmin(values))]

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each part: its place, then its metrics."""
        figures = {name: self[name] for name in (*METRICS, *NOISE)}
        return load("pandas", "to_frame()").DataFrame({self.name: list(self.places), **figures})

    def __repr__(self) -> str:
        return f"<figures of {plural(len(self), self.name)}, the worst SQNR in {self.worst()}>"


@dataclass(frozen=True)
class ErrorReport:
    """The error of rounding an array; `merge` adds the report of another part of the same data.

    The compared elements are those whose input and result are both finite. A rate is a fraction of all elements. A
    metric that cannot be measured is NaN, and `unmeasured` names it.

    Attributes:
      fmt, rounding, overflow, subnormals: the format, and the options of the cast that rounded the data.
      scale: the decode scale; 1 without one, NaN where there are several or merged parts had different ones.
      sums: the counts and sums that the metrics are computed from.
      scaling, scales: the recipe of scales per tile, and a report on these scales; None if there are none.
      scale_bits: bits of all scales together.
      parts: the metrics of each channel or block, where `axis` or `block` asked for them.
    """

    fmt: Element
    rounding: str
    overflow: str
    subnormals: str
    scale: float
    sums: ErrorSums
    scaling: Scaling | None = None
    scales: ScaleReport | None = None
    scale_bits: int = 0
    parts: Parts | None = None
    unmeasured: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.fmt.name

    def _metric(self, name: str) -> Any:
        """Return a metric by name, computed once; NaN if it is unmeasured."""
        if name in self.unmeasured:
            return math.nan
        known = self.__dict__.setdefault("_known", {})  # a study asks each report for the same figures many times
        if name not in known:
            known[name] = metric(self.sums, name)
        return known[name]

    @property
    def count(self) -> int:
        """Number of all elements."""
        return int(self._metric("count"))

    @property
    def sqnr_db(self) -> float:
        """10 log10(sum x**2 / sum (result - x)**2) over the compared elements: Inf without error, NaN without data."""
        return float(self._metric("sqnr_db"))

    @property
    def gain(self) -> float:
        """Gain, sum x * result / sum x**2 over the compared elements; it is less than 1 if rounding shrinks values."""
        return float(self._metric("gain"))

    @property
    def lost_energy(self) -> float:
        """Share of sum x**2 over the compared elements that belongs to elements that become zero."""
        return float(self._metric("lost_energy"))

    @property
    def mse(self) -> float:
        """Mean of (result - x)**2 over the compared elements."""
        return float(self._metric("mse"))

    @property
    def bias(self) -> float:
        """Mean of result - x over the compared elements."""
        return float(self._metric("bias"))

    @property
    def max_ulp(self) -> float:
        """Largest |result - x| / ulp(x) over the compared elements; ulp(x) is the format's spacing at the exact x."""
        return float(self._metric("max_ulp"))

    @property
    def mean_ulp(self) -> float:
        """Mean of |result - x| / ulp(x) over the compared elements."""
        return float(self._metric("mean_ulp"))

    @property
    def max_relative(self) -> float:
        """Largest |result - x| / |x| over the compared elements other than 0."""
        return float(self._metric("max_relative"))

    @property
    def mean_relative(self) -> float:
        """Mean of |result - x| / |x| over the compared elements other than 0."""
        return float(self._metric("mean_relative"))

    @property
    def underflow_rate(self) -> float:
        """Share of elements that are not 0 and become 0 or -0."""
        return float(self._metric("underflow_rate"))

    @property
    def subnormal_rate(self) -> float:
        """Share of results that are subnormal in the format."""
        return float(self._metric("subnormal_rate"))

    @property
    def overflow_rate(self) -> float:
        """Share of elements that are finite and become Inf or NaN."""
        return float(self._metric("overflow_rate"))

    @property
    def saturation_rate(self) -> float:
        """Share of inputs beyond the range of nearest-even rounding, Inf included, that become +-max."""
        return float(self._metric("saturation_rate"))

    @property
    def nan_rate(self) -> float:
        """Share of elements that are NaN before rounding."""
        return float(self._metric("nan_rate"))

    @property
    def exact_rate(self) -> float:
        """Share of results equal to their input."""
        return float(self._metric("exact_rate"))

    @property
    def beyond_rate(self) -> float:
        """Share of elements that are finite and beyond the format's range, whatever they become."""
        beyond = int(self.sums["overflow"]) + int(self.sums["finite_saturation"])
        return beyond / self.count if self.count else math.nan

    @property
    def bits_per_value(self) -> float:
        """Bits of a value with its share of the scales; NaN if there are no values."""
        return self.fmt.bits + self.scale_bits / self.count if self.count else math.nan

    @property
    def noise_by_cause(self) -> dict[str, float]:
        """Shares of the noise, sum (result - x)**2, by the kind of result.

        "normal": a normal value of the format; "subnormal"; "underflow": zero; "saturation": the largest value, for an
        input beyond the range.
        """
        return {name.removeprefix("noise_"): self._metric(name) for name in NOISE}

    def merge(self, other: ErrorReport) -> ErrorReport:
        """Return the report of both parts together.

        Counts, rates and maxima equal those of the whole array. The float64 sums behind means and SQNR may differ from
        it by a few parts in 10**16, unless the parts begin at multiples of 2048 elements.

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
        return dataclasses.replace(
            self,
            scale=self.scale if self.scale == other.scale else math.nan,
            sums=self.sums.merge(other.sums),
            scales=self.scales.merge(other.scales) if self.scales and other.scales else None,
            scale_bits=self.scale_bits + other.scale_bits,
            parts=_merged_parts(self.parts, other.parts),
        )

    def __str__(self) -> str:
        """Return SQNR, format and the main rates in one line.

        Example:
          >>> import fpsim as fp
          >>> print(fp.analysis.error(np.float32([1e-9, 1.0, 0.3, 500.0]), fp.E4M3))
          38.4 dB SQNR in E4M3 (nearest_even, no scale) over 4 values: underflow 25.0 %, overflow 25.0 %, saturation 0 %
        """
        one = f"scale {self.scale:.3g}" if self.scale != 1 else "no scale"
        scale = repr(self.scaling) if self.scaling else "several scales" if math.isnan(self.scale) else one
        rates = ", ".join(f"{name} {percent(getattr(self, f'{name}_rate'))}" for name in SHOWN)
        sqnr = decibels(self.sqnr_db) + (" SQNR" if math.isfinite(self.sqnr_db) else "")
        worst = f"; worst {self.parts.name} {self.parts.worst()}" if self.parts is not None else ""
        return f"{sqnr} in {self.format} ({self.rounding}, {scale}) over {plural(self.count, 'value')}: {rates}{worst}"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings and every metric as a row of a table."""
        settings = {name: getattr(self, name) for name in ("format", "rounding", "overflow", "subnormals", "scale")}
        tiles = {"scaling": repr(self.scaling), **self.scales.to_dict()} if self.scales else {}
        noise = {name: self._metric(name) for name in NOISE}
        figures = {name: getattr(self, name) for name in METRICS}
        return {**settings, **tiles, "bits_per_value": self.bits_per_value, **figures, **noise}

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame of one row, or with a row for each channel or block."""
        return frame([self.to_dict()]) if self.parts is None else self.parts.to_frame()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the noise by cause, or the SQNR of every channel or block, and return the matplotlib axes."""
        from fpsim.analysis.measures.error_figure import error_axes

        return error_axes(self, ax)

    def _repr_html_(self) -> str:
        """Return all metrics as an HTML table for notebooks."""
        return html_pairs({name: _text(value) for name, value in self.to_dict().items()})


def _merged_parts(mine: Parts | None, others: Parts | None) -> Parts | None:
    """Return the merged metrics of each channel; None for blocks, or where the channels differ."""
    if mine is None or others is None or mine.name == "block" or mine.places != others.places:
        return None
    return dataclasses.replace(mine, sums=mine.sums.merge(others.sums))


def _text(value: object) -> str:
    """Return a value of the table as text, floats with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
