"""The report on the rounding errors of an array, as a whole and for each of its channels or blocks."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.measures.metrics import FORMULAS, metric
from fpsim.analysis.measures.sums import ErrorSums
from fpsim.display.optional import Axes, DataFrame, frame, load
from fpsim.display.tables import html_pairs
from fpsim.display.wording import decibels, percent, plural
from fpsim.errors import require_same, unknown
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

SHOWN = ("underflow", "overflow", "saturation")  # rates in the text of a report


@dataclass(frozen=True, eq=False, repr=False)
class Parts(EqualByValue):
    """The metrics of each channel or block of an array.

    Attributes:
      name: "channel" (an index along an axis) or "block".
      places: the index of each channel along the axis, or the indices of each block in the grid of blocks.
      sums: the counts and sums of each part, from which the metrics are computed.
      unmeasured: names of metrics that cannot be measured in the format.

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
        """Return a metric of every channel or block, (parts,), by its name in an ErrorReport; NaN if unmeasured.

        Raises:
          ValueError: there is no such metric.
        """
        if name not in FORMULAS:
            raise unknown("metric", name, list(FORMULAS))
        values = np.asarray(FORMULAS[name](self.sums))
        return np.full(values.shape, np.nan) if name in self.unmeasured else values

    def worst(self, name: str = "sqnr_db") -> Any:
        """Return the item of `places` with the worst value of the metric `name`; None if it is NaN for all.

        The worst SQNR and exact rate are the lowest, the worst gain is the one farthest from 1, and other metrics are
        worst if their magnitude is the largest.
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
        """Return a pandas DataFrame with a row for each channel or block: its item of `places`, then its metrics."""
        figures = {name: self[name] for name in (*METRICS, *NOISE)}
        return load("pandas", "to_frame()").DataFrame({self.name: list(self.places), **figures})

    def __repr__(self) -> str:
        return f"<figures of {plural(len(self), self.name)}, the worst SQNR in {self.worst()}>"


class _Metric(property):
    """A property of an ErrorReport: the metric of the same name, a float. text: its docstring."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda report: float(report._metric(self.metric)))
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self.metric = name

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None, /) -> float: ...  # type: ignore[override]


@dataclass(frozen=True, eq=False)
class ErrorReport(EqualByValue):
    """The errors of rounding an array; `merge` adds another part of the same data.

    x is an element of the array and result its rounded value, times the scale if there is one. The compared elements
    are those whose x and result are both finite. A rate is a share of all elements. A metric that cannot be measured is
    NaN.

    Attributes:
      fmt, rounding, overflow, subnormals: the format, and the options of the cast.
      scale: the decode scale; 1 without one, NaN if there are several.
      sums: the counts and sums from which the metrics are computed.
      scaling, scales: the fp.Scaling of scales per tile, and a ScaleReport on these scales; None without such scales.
      scale_bits: bits of all scales together.
      parts: the metrics of each channel or block; None unless `axis` or `block` was given.
      unmeasured: names of metrics that cannot be measured in the format.
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
        """Name of the format to which the array was rounded."""
        return self.fmt.name

    def _metric(self, name: str) -> Any:
        """Return a metric by name, computed once and cached; NaN if it is unmeasured."""
        if name in self.unmeasured:
            return math.nan
        known = self.__dict__.setdefault("_known", {})  # studies read the same metrics of a report many times
        if name not in known:
            known[name] = metric(self.sums, name)
        return known[name]

    @property
    def count(self) -> int:
        """Number of all elements of the array."""
        return int(self._metric("count"))

    sqnr_db = _Metric(
        "Signal-to-quantisation-noise ratio, 10 log10(sum x**2 / sum (result - x)**2), in dB.\n\n"
        "Sums are over the elements whose x and result are finite. Inf without errors, NaN without such elements."
    )
    gain = _Metric(
        "Gain, sum x * result / sum x**2: less than 1 if rounding shrinks values.\n\n"
        "Sums are over the elements whose x and result are finite."
    )
    lost_energy = _Metric(
        "Sum of x**2 over elements that become 0, as a share of the sum over elements with finite x and result."
    )
    mse = _Metric("Mean of (result - x)**2 over the elements whose x and result are finite; NaN if there are none.")
    bias = _Metric("Mean of result - x over the elements whose x and result are finite; NaN if there are none.")
    max_ulp = _Metric(
        "Largest |result - x| / ulp(x) over the elements whose x and result are finite.\n\n"
        "ulp(x) is the format's spacing at x, times the scale if there is one."
    )
    mean_ulp = _Metric("Mean of |result - x| / ulp(x) over the elements whose x and result are finite; see `max_ulp`.")
    max_relative = _Metric(
        "Largest |result - x| / |x| over the elements whose x and result are finite, and x other than 0."
    )
    mean_relative = _Metric(
        "Mean of |result - x| / |x| over the elements whose x and result are finite, and x other than 0."
    )
    underflow_rate = _Metric("Share of elements whose x is not 0 and whose result is 0 or -0.")
    subnormal_rate = _Metric(
        "Share of elements whose rounded value, before multiplication by the scale, is subnormal in the format."
    )
    overflow_rate = _Metric("Share of elements whose x is finite and whose result is Inf or NaN.")
    saturation_rate = _Metric(
        "Share of elements beyond the format's range, Inf included, whose rounded value is the largest finite one.\n\n"
        "Beyond the range means that rounding to nearest even without limit would exceed the largest value."
    )
    nan_rate = _Metric("Share of elements whose x is NaN.")
    exact_rate = _Metric("Share of elements whose result equals x.")

    @property
    def beyond_rate(self) -> float:
        """Share of elements whose x is finite and beyond the format's range, so that they overflow or saturate."""
        beyond = int(self.sums["overflow"]) + int(self.sums["finite_saturation"])
        return beyond / self.count if self.count else math.nan

    @property
    def bits_per_value(self) -> float:
        """Bits stored per element: its code, and its share of the scales; NaN for an empty array."""
        return self.fmt.bits + self.scale_bits / self.count if self.count else math.nan

    @property
    def noise_by_cause(self) -> dict[str, float]:
        """Shares of the noise, sum (result - x)**2, as a dict {what an element x was rounded to: share of the sum}.

        "normal": a normal value of the format; "subnormal": a subnormal one; "underflow": zero; "saturation": the
        largest value, because x is beyond the range. All shares are NaN if the noise is 0.
        """
        return {name.removeprefix("noise_"): self._metric(name) for name in NOISE}

    def merge(self, other: ErrorReport) -> ErrorReport:
        """Return the report on the data of `self` and `other` together, such as two parts of an array.

        Counts, rates and maxima equal those of a report on the whole array. The float64 sums behind means and SQNR may
        differ by a few parts in 10**16, unless the parts begin at multiples of 2048 elements. `scale` becomes NaN if it
        differs; `parts` are merged if both reports have the same channels, and None otherwise.

        Raises:
          ValueError: format, rounding, overflow, subnormals or scaling differ.

        Example:
          >>> import fpsim as fp
          >>> x = np.linspace(-3, 3, 1001, dtype=np.float32)
          >>> parts = [fp.analysis.error(part, fp.E4M3) for part in (x[:400], x[400:])]
          >>> parts[0].merge(parts[1]).exact_rate == fp.analysis.error(x, fp.E4M3).exact_rate
          True
        """
        require_same("reports", self, other, ("fmt", "rounding", "overflow", "subnormals", "scaling"))
        mine, others = self.parts, other.parts
        if mine is None or others is None or mine.name == "block" or mine.places != others.places:
            parts = None
        else:
            parts = dataclasses.replace(mine, sums=mine.sums.merge(others.sums))
        return dataclasses.replace(
            self,
            scale=self.scale if self.scale == other.scale else math.nan,
            sums=self.sums.merge(other.sums),
            scales=self.scales.merge(other.scales) if self.scales and other.scales else None,
            scale_bits=self.scale_bits + other.scale_bits,
            parts=parts,
        )

    def __str__(self) -> str:
        """Return one line of text: SQNR, format, rounding, scale, the main rates, and the worst channel or block.

        Example:
          >>> import fpsim as fp
          >>> print(fp.analysis.error(np.float32([1e-9, 1.0, 0.3, 500.0]), fp.E4M3))
          38.4 dB SQNR in E4M3 (nearest_even, no scale) over 4 values: underflow 25.0 %, overflow 25.0 %, saturation 0 %
        """
        one = f"scale {self.scale:.3g}" if self.scale != 1 else "no scale"
        scale = repr(self.scaling) if self.scaling else "several scales" if math.isnan(self.scale) else one
        rates = ", ".join(f"{name} {percent(getattr(self, f'{name}_rate'))}" for name in SHOWN)
        sqnr = decibels(self.sqnr_db) + (" SQNR" if math.isfinite(self.sqnr_db) else "")
        place = None if self.parts is None else self.parts.worst()
        worst = "" if self.parts is None or place is None else f"; worst {self.parts.name} {place}"
        return f"{sqnr} in {self.format} ({self.rounding}, {scale}) over {plural(self.count, 'value')}: {rates}{worst}"

    def to_dict(self) -> dict[str, Any]:
        """Return column -> value: format and settings of the cast, bits_per_value, and every metric.

        With scales per tile, it also has the scaling and the columns of `ScaleReport.to_dict`.
        """
        settings = {name: getattr(self, name) for name in ("format", "rounding", "overflow", "subnormals", "scale")}
        tiles = {"scaling": repr(self.scaling), **self.scales.to_dict()} if self.scales else {}
        noise = {name: self._metric(name) for name in NOISE}
        figures = {name: getattr(self, name) for name in METRICS}
        return {**settings, **tiles, "bits_per_value": self.bits_per_value, **figures, **noise}

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: the row `to_dict()`, or if there are `parts` a row for each channel or block."""
        return frame([self.to_dict()]) if self.parts is None else self.parts.to_frame()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the noise by cause, or with `parts` the SQNR of every channel or block; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.measures.error_figure import error_axes

        return error_axes(self, ax)

    def _repr_html_(self) -> str:
        """Return the settings and all metrics as an HTML table for notebooks."""
        return html_pairs({
            name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in self.to_dict().items()
        })  # fmt: skip
