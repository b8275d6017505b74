"""A comparison of formats, roundings and scalings by their errors on one array."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.error_report import METRICS, NOISE, ErrorReport
from fpsim.analysis.measures.passes import sums_of_array
from fpsim.analysis.measures.rounding_error import RoundingWay, finite_amax, needs_tiles
from fpsim.arrays import float_array, without_gradient
from fpsim.deprecation import renamed_arguments
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import decibels, percent, plural
from fpsim.errors import shown, unknown
from fpsim.formats.element import Element, element_format
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.recipes import TILE_1X128, scaling_of
from fpsim.scaling.scaling import Scaling

FORMATS = ("e4m3", "e5m2", "bf16", "fp16")
SCALINGS: tuple[Scaling | str | float | None, ...] = (None, "amax", TILE_1X128)

SETTINGS = ("format", "rounding", "scaling")
LARGER_IS_BETTER = ("sqnr_db", "exact_rate")


class ComparedRow(NamedTuple):
    """A row of a Comparison: names of a format, a rounding and a scaling, and the report of their error."""

    format: str
    rounding: str
    scaling: str
    report: ErrorReport

    @property
    def name(self) -> str:
        """Format, scaling and rounding as text, such as "E4M3 with an amax scale"."""
        scaling = {"none": "without a scale", "amax": "with an amax scale"}.get(self.scaling, f"with {self.scaling}")
        rounding = "" if self.rounding == "nearest_even" else f", {self.rounding}"
        return f"{self.format} {scaling}{rounding}"

    def to_dict(self) -> dict[str, Any]:
        """Return column -> value: format, rounding, scaling, bits_per_value, and every metric of an ErrorReport."""
        report = self.report
        names = {name: getattr(self, name) for name in SETTINGS}
        figures = {name: report.to_dict()[name] for name in (*METRICS, *NOISE)}
        return {**names, "bits_per_value": report.bits_per_value, **figures}


@dataclass(frozen=True)
class Comparison:
    """The errors of an array in several formats, roundings and scalings; `merge` adds another part of the array.

    Attributes:
      rows: a ComparedRow for each combination, sorted by format, then scaling, then rounding, in the given order.
      left_out: sentences on combinations that do not exist, such as an integer format without a scale.
    """

    rows: tuple[ComparedRow, ...]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ComparedRow]:
        return iter(self.rows)

    @renamed_arguments(figure="metric")
    def best(self, metric: str = "sqnr_db") -> ComparedRow:
        """Return the row with the best value of a metric; NaN is never the best.

        The best SQNR and exact rate are the largest, the best gain is the one nearest to 1, and other metrics are best
        if their magnitude is the smallest. Of equal rows, the one with fewest bits per value, then the first, is best.

        Raises:
          ValueError: an unknown metric, or one that is NaN for all combinations.
        """
        if metric not in (*METRICS, *NOISE, "bits_per_value"):
            raise unknown("metric", metric, [*METRICS, *NOISE, "bits_per_value"])
        measured = [row for row in self.rows if not math.isnan(row.to_dict()[metric])]
        if not measured:
            raise ValueError(
                f"metric must be one that is measured; got {metric!r}, which is NaN for all "
                f"{plural(len(self), 'row')}. Take another metric."
            )

        def rank(row: ComparedRow) -> tuple[float, float]:
            value = float(row.to_dict()[metric])
            value = -value if metric in LARGER_IS_BETTER else abs(value - 1) if metric == "gain" else abs(value)
            return value, row.report.bits_per_value

        return min(measured, key=rank)

    def pareto(self) -> tuple[ComparedRow, ...]:
        """Return the Pareto front: the rows whose SQNR exceeds that of every row with as many or fewer bits per value.

        The rows are sorted by bits per value, ascending. Of rows equal in both, the first is returned. Rows whose SQNR
        is NaN are left out.
        """
        front: list[ComparedRow] = []
        measured = [row for row in self.rows if not math.isnan(row.report.sqnr_db)]
        for row in sorted(measured, key=lambda row: (row.report.bits_per_value, -row.report.sqnr_db)):
            if not front or row.report.sqnr_db > front[-1].report.sqnr_db:
                front.append(row)
        return tuple(front)

    def merge(self, other: Comparison) -> Comparison:
        """Return the comparison of the data of `self` and `other` together, such as two parts of an array.

        Raises:
          ValueError: the two have different combinations of format, rounding and scaling.
        """
        mine, others = ([row[:3] for row in comparison.rows] for comparison in (self, other))
        if mine != others:
            raise ValueError(
                f"comparisons to merge must have the same combinations; got {len(mine)} and {len(others)} that differ."
            )
        rows = (a._replace(report=a.report.merge(b.report)) for a, b in zip(self.rows, other.rows, strict=True))
        return dataclasses.replace(self, rows=tuple(rows))

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each combination, with the columns of `ComparedRow.to_dict`."""
        return frame([row.to_dict() for row in self.rows])

    def __str__(self) -> str:
        """Return a text: a line for each row of `pareto`, then the number of other rows and of rows without an SQNR."""
        lines = [
            f"{decibels(r.report.sqnr_db):>9} at {r.report.bits_per_value:5.2f} bits: {r.name}" for r in self.pareto()
        ]
        unknown = sum(math.isnan(row.report.sqnr_db) for row in self.rows)
        beaten = len(self) - len(lines) - unknown
        lines += [f"{plural(beaten, 'combination')} beaten by these"] if beaten else []
        lines += [f"{plural(unknown, 'combination')} without a known SQNR"] if unknown else []
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw SQNR against bits per value, and the Pareto front; return the matplotlib axes (ax None: new ones)."""
        from fpsim.analysis.measures.error_figure import comparison_axes

        return comparison_axes(self, ax)

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks: settings, bits per value, SQNR, gain and lost energy of each row."""
        heads = (*SETTINGS, "bits per value", "SQNR", "gain", "lost energy")
        rows = (
            (*row[:3], f"{r.bits_per_value:.3g}", decibels(r.sqnr_db), f"{r.gain:.4f}", percent(r.lost_energy))
            for row in self.rows
            for r in (row.report,)
        )
        return html_table(heads, rows)


def compare(
    x: npt.ArrayLike,
    formats: Sequence[Any] | Any = FORMATS,
    roundings: Sequence[str | Rounding] | str | Rounding = ("nearest_even",),
    scalings: Sequence[Scaling | str | float | None] | Scaling | str | float | None = SCALINGS,
    *,
    overflow: str | None = None,
    subnormals: str = "keep",
    seed: int | None = None,
) -> Comparison:
    """Measure every combination of formats, roundings and scalings on one array, in one pass over it.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape.
      formats: one or several element formats, by name, dtype or object, such as "e4m3", fp.INT8 or fp.LogFMT(8).
      roundings: one or several rounding modes, as for `fpsim.encode`.
      scalings: one or several: None (no scale), "amax" (one scale for the array), a positive number (one scale), or an
        fp.Scaling or the name of one (a scale per tile).
      overflow, subnormals, seed: settings of every combination, as for `fp.analysis.error`.

    Returns:
      A Comparison; each row has the metrics of `fp.analysis.error` for that combination. Integers, LogFMT, HiF4 and IF4
      require scales per tile; their other combinations are listed in `left_out`.

    Raises:
      ValueError: nothing to compare, an unknown option, or no combination that exists.
      TypeError: x is not an array of floats.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
      >>> report = fp.analysis.compare(x, ["e4m3", "int8", "e2m1"], scalings=[None, fp.scalings.TILE_1X128])
      >>> report.best("sqnr_db").name
      'INT8 with fp.scalings.TILE_1X128'
      >>> [(row.format, row.scaling) for row in report.pareto()]
      [('E2M1', 'none'), ('E2M1', 'fp.scalings.TILE_1X128'), ('E4M3', 'none'), ('INT8', 'fp.scalings.TILE_1X128')]
    """
    array, _ = float_array(without_gradient(x))
    elements = [element_format(fmt) for fmt in several(formats, "formats")]
    modes = [rounding_mode(word) for word in several(roundings, "roundings")]
    recipes: list[Any] = [
        scaling_of(recipe, "scalings", "None, 'amax' or a positive number")
        if isinstance(recipe, str) and recipe != "amax" else recipe
        for recipe in several(scalings, "scalings")
    ]  # fmt: skip
    ways, left_out = [], []
    for element in dict.fromkeys(elements):
        for recipe in dict.fromkeys(recipes):
            if needs_tiles(element) and not isinstance(recipe, Scaling):
                left_out.append(f"{element.name} with scaling {scaling_name(recipe)}: it needs scales per tile.")
                continue
            for mode in dict.fromkeys(modes):
                way = RoundingWay(element, recipe, mode, overflow, subnormals, seed)
                try:
                    way.check()
                except ValueError as reason:
                    left_out.append(f"{element.name} with {scaling_name(recipe)}: {reason}")
                else:
                    ways.append(way)
    if not ways:
        raise ValueError(f"formats and scalings must allow a combination; got only {'; '.join(left_out)}")
    amax = finite_amax(array) if "amax" in recipes else None
    candidates = [way.candidate(array, amax=amax) for way in ways]
    rows = []
    for way, candidate, sums in zip(ways, candidates, sums_of_array(array, candidates), strict=True):
        report = way.report(sums, candidate)
        rows.append(ComparedRow(report.format, report.rounding, scaling_name(way.scaling), report))
    return Comparison(tuple(rows), tuple(dict.fromkeys(left_out)))


def scaling_name(scaling: Scaling | str | float | None) -> str:
    """Return the name of a scaling in tables: "none" for None, "amax", or the repr of a number or an fp.Scaling."""
    scaling = scaling.item() if isinstance(scaling, np.generic) else scaling
    return "none" if scaling is None else scaling if isinstance(scaling, str) else repr(scaling)


def several(values: Any, name: str) -> list[Any]:
    """Return an argument that is one setting, or an iterable of settings, as a list.

    values: the argument; None, a string, a number, a dtype, or a format, rounding or scaling object is one setting.
    name: its name, for error messages.

    Raises:
      ValueError: there are no settings, or they are an array with more or fewer than one axis.
    """
    alone = values is None or isinstance(values, (str, int, float, Element, Rounding, Scaling, type, np.dtype))
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"{name} must be one or a list of several; got an array of shape {values.shape}.")
    settings = [values] if alone or not isinstance(values, Iterable) else list(values)
    if not settings:
        raise ValueError(f"{name} must name at least one; got {shown(values)}.")
    return settings
