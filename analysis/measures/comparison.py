"""The comparison of several formats, roundings and scalings on one array, with the best of them."""

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
from fpsim.analysis.measures.rounding_error import RoundingWay, finite_amax
from fpsim.arrays import float_array, without_gradient
from fpsim.deprecation import renamed_arguments
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import decibels, percent, plural
from fpsim.errors import shown, unknown
from fpsim.formats.element import Element, element_format
from fpsim.formats.named import Format
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.recipes import TILE_1X128, scaling_of
from fpsim.scaling.scaling import Scaling

FORMATS = ("e4m3", "e5m2", "bf16", "fp16")
SCALINGS: tuple[Scaling | str | float | None, ...] = (None, "amax", TILE_1X128)

SETTINGS = ("format", "rounding", "scaling")
LARGER_IS_BETTER = ("sqnr_db", "exact_rate")


class ComparedRow(NamedTuple):
    """A combination of format, rounding and scaling, with the report of its error."""

    format: str
    rounding: str
    scaling: str
    report: ErrorReport

    @property
    def name(self) -> str:
        """The combination as text, such as "E4M3 with an amax scale"."""
        scaling = {"none": "without a scale", "amax": "with an amax scale"}.get(self.scaling, f"with {self.scaling}")
        rounding = "" if self.rounding == "nearest_even" else f", {self.rounding}"
        return f"{self.format} {scaling}{rounding}"

    def to_dict(self) -> dict[str, Any]:
        """Return the combination and every metric as a row of a table."""
        report = self.report
        names = {name: getattr(self, name) for name in SETTINGS}
        figures = {name: report.to_dict()[name] for name in (*METRICS, *NOISE)}
        return {**names, "bits_per_value": report.bits_per_value, **figures}


@dataclass(frozen=True)
class Comparison:
    """The errors of an array in several formats, roundings and scalings; `merge` adds those of another part of it.

    Attributes:
      rows: one for each combination, formats first, then scalings, then roundings.
      left_out: combinations that do not exist, such as an integer without a scale, and why.
    """

    rows: tuple[ComparedRow, ...]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ComparedRow]:
        return iter(self.rows)

    @renamed_arguments(figure="metric")
    def best(self, metric: str = "sqnr_db") -> ComparedRow:
        """Return the combination with the best metric: the largest SQNR or exact rate, a gain nearest to 1, else the
        smallest.

        Ties go to the one with the fewest bits, then to the first.

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
        """Return the combinations that no other beats in both bits per value and SQNR, from few bits to many."""
        front: list[ComparedRow] = []
        measured = [row for row in self.rows if not math.isnan(row.report.sqnr_db)]
        for row in sorted(measured, key=lambda row: (row.report.bits_per_value, -row.report.sqnr_db)):
            if not front or row.report.sqnr_db > front[-1].report.sqnr_db:
                front.append(row)
        return tuple(front)

    def merge(self, other: Comparison) -> Comparison:
        """Return the comparison over both parts of an array.

        Raises:
          ValueError: the two compare different combinations.
        """
        mine, others = ([row[:3] for row in comparison.rows] for comparison in (self, other))
        if mine != others:
            raise ValueError(
                f"comparisons to merge must have the same combinations; got {len(mine)} and {len(others)} that differ."
            )
        rows = (a._replace(report=a.report.merge(b.report)) for a, b in zip(self.rows, other.rows, strict=True))
        return dataclasses.replace(self, rows=tuple(rows))

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each combination: format, rounding, scaling, bits_per_value,
        metrics.
        """
        return frame([row.to_dict() for row in self.rows])

    def __str__(self) -> str:
        """Return a line for each combination that no other beats."""
        lines = [
            f"{decibels(r.report.sqnr_db):>9} at {r.report.bits_per_value:5.2f} bits: {r.name}" for r in self.pareto()
        ]
        beaten = len(self) - len(lines)
        return "\n".join([*lines, f"{plural(beaten, 'combination')} beaten by these"] if beaten else lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw SQNR over bits per value, and the Pareto front, and return the matplotlib axes."""
        from fpsim.analysis.measures.error_figure import comparison_axes

        return comparison_axes(self, ax)

    def _repr_html_(self) -> str:
        """Return the rows as an HTML table for notebooks."""
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
      formats: one or several, by name, dtype or object; fp.INT8, fp.INT4, fp.LogFMT(8) and their kin too.
      roundings: one or several, as for `fpsim.encode`.
      scalings: one or several: None (no scale), "amax" (one scale for the array), a positive number, or an fp.Scaling
        (a scale per tile).
      overflow, subnormals, seed: as for `fp.analysis.error`, of all combinations.
    Returns:
      A Comparison; each row has the figures of `fp.analysis.error` for that combination. Integers and LogFMT, which
      need scales per tile, have no rows without them; `left_out` says so.
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
        for recipe in recipes:
            if not isinstance(element, Format) and not isinstance(recipe, Scaling):
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
    """Return the name of a scaling in tables: "none", "amax", a number, or the repr of a recipe."""
    return "none" if scaling is None else scaling if isinstance(scaling, str) else repr(scaling)


def several(values: Any, name: str) -> list[Any]:
    """Return settings as a list; a single setting becomes a list of one.

    Raises:
      ValueError: the list is empty, or an array of several axes.
    """
    alone = values is None or isinstance(values, (str, int, float, Element, Rounding, Scaling, type, np.dtype))
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"{name} must be one or a list of several; got an array of shape {values.shape}.")
    settings = [values] if alone or not isinstance(values, Iterable) else list(values)
    if not settings:
        raise ValueError(f"{name} must name at least one; got {shown(values)}.")
    return settings
