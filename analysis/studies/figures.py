"""Pictures of a study: the SQNR deficit of every operand in every candidate, and the effects of rounding modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.studies.candidates import short_name
from fpsim.analysis.studies.results import StudyResults
from fpsim.analysis.studies.summaries import CandidateSummary, RoundingSummary, candidate_summaries, words
from fpsim.display.figure import DATA, GRID, INK, QUIET, axes_of, blank_figure, color, figure_style, plain_axes
from fpsim.display.optional import Axes

ROW = 0.185  # inches
TOP, BOTTOM = 0.22, 0.46  # inches above and below the rows
LARGEST_DB = 60.0  # larger deficits are drawn at the edge
FINE_DB = 0.3  # the axis is about linear below this deficit, and logarithmic above
NOTES = {1: (32.0,), 2: (24.0, 43.0)}  # right edges of one or two columns of notes, in points from the axes


class FigureRow(NamedTuple):
    """A row of a figure: vertical ticks on a common horizontal axis, with a label on the left and notes on the right.

    Attributes:
      label: text on the left.
      tint: colour of the ticks at `strong`.
      strong, faint: positions of ticks on the axis; those at `strong` have the colour `tint`, those at `faint` are
        grey.
      notes: a text for each column on the right.
      middle: position of a longer tick, such as a median; NaN for none.
      bad_from: the row is shaded to the right of this position; Inf for no shading.
    """

    label: str
    tint: str
    strong: Sequence[float]
    faint: Sequence[float]
    notes: Sequence[str]
    middle: float = math.nan
    bad_from: float = math.inf


# ---- the deficit of every operand in every candidate


def deficit_axes(report: StudyResults, ax: Axes | None = None) -> Axes:
    """Draw the SQNR deficit in dB of each operand in each candidate (format with a scaling), and return the axes.

    The deficit is how far the operand's SQNR is below that of the format on data that suits the format: normal data for
    floats, uniform data for integers. `ax`: the axes to draw into; None for new ones.
    """
    summaries = candidate_summaries(report)
    with figure_style():
        ax = axes_of(ax, ROW * max(len(summaries), 1) + TOP + BOTTOM)
        _draw_candidates(ax, summaries, report.requirements.min_sqnr)
        return ax


def candidates_figure(summaries: Sequence[CandidateSummary], required: float) -> Any:
    """Return a matplotlib figure of SQNR deficits in dB: a row for each candidate, a tick for each operand.

    The deficit is how far the operand's SQNR is below that of the format on normal data (for integers, uniform data).
    `summaries`: the candidates, each with the metrics of its operands. `required`: the least SQNR in dB; a row is
    shaded where the deficit is so large that the SQNR is less.
    """
    with figure_style():
        figure, ax = _rows_figure(len(summaries), 0.28, 0.785)
        _draw_candidates(ax, summaries, required)
        return figure


def _rows_figure(rows: int, left: float, right: float) -> tuple[Any, Any]:
    """Return a new matplotlib figure that is tall enough for `rows` rows, and its axes.

    The axes extend horizontally from `left` to `right`, both as shares (0 to 1) of the figure's width.
    """
    height = ROW * rows + TOP + BOTTOM
    figure = blank_figure(height, layout="none")
    return figure, figure.add_axes((left, BOTTOM / height, right - left, ROW * rows / height))


def _draw_candidates(ax: Axes, summaries: Sequence[CandidateSummary], required: float) -> None:
    """Draw a row for each candidate into `ax`, with a tick at the SQNR deficit in dB of every operand.

    The deficit is how far the operand's SQNR is below that of the format on normal data (for integers, uniform data).
    `required`: the least SQNR in dB; a row is shaded where the deficit is so large that the SQNR is less.
    """
    names = [one.format for one in summaries]
    rows = [
        FigureRow(
            short_name(one.format, one.scaling), color(one.format, names), _deficits(one, True), _deficits(one, False),
            (_decibels(one.median_db), str(one.good)), bad_from=max(one.ideal_db - required, 0.0),
        )
        for one in summaries
    ]  # fmt: skip
    # about linear up to 0.3 dB, logarithmic beyond
    spread, inverse = (lambda db: np.log1p(np.maximum(db, 0) / FINE_DB)), (lambda place: FINE_DB * np.expm1(place))
    ax.set_xscale("function", functions=(spread, inverse))
    _draw_rows(ax, rows, (0.0, LARGEST_DB), [one.bits for one in summaries], ("median", "good"))
    ticks = (0, 0.3, 1, 3, 10, 30, 60)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xlabel("deficit at the worst step, dB")


def _deficits(one: CandidateSummary, chosen: bool) -> list[float]:
    """Return how many dB the SQNR of each operand is below `one.ideal_db`, at least 0.

    `one`: a candidate with its metrics for each operand; its `ideal_db` is the format's SQNR on normal data (for
    integers, uniform data). `chosen`: True for operands for which this candidate is recommended, False for all others.
    """
    return [max(one.ideal_db - judged.worst.sqnr_db, 0.0) for judged in one.judged if judged.chosen is chosen]


def _decibels(value: float) -> str:
    """Return an SQNR in dB as text: one decimal, "exact" for infinity, "" for NaN."""
    return "exact" if value == math.inf else "" if math.isnan(value) else f"{value:.1f}"


def _draw_rows(
    ax: Axes, rows: Sequence[FigureRow], window: tuple[float, float], kinds: Sequence[object], heads: Sequence[str]
) -> None:
    """Draw rows of ticks into `ax`, the first row on top.

    window: lowest and highest value of the horizontal axis. kinds: a key for each row; a line separates adjacent rows
    whose keys differ. heads: titles of the one or two columns of notes on the right.
    """
    low, high = window
    beside = ax.get_yaxis_transform()
    small: dict[str, Any] = {"xycoords": beside, "textcoords": "offset points", "ha": "right", "fontsize": 6.5}
    for y, row in enumerate(rows):
        if row.bad_from < high:
            ax.fill_between([row.bad_from, high], y - 0.5, y + 0.5, color=GRID, alpha=0.55, linewidth=0, zorder=0)
        ax.plot([low, high], [y, y], color=GRID, linewidth=0.6, zorder=1)
        _ticks(ax, row.faint, y, 0.26, window, color=DATA, alpha=0.7, linewidth=0.9, zorder=2)
        _ticks(ax, row.strong, y, 0.34, window, color=row.tint, linewidth=1.5, zorder=3)
        _ticks(ax, [row.middle], y, 0.45, window, color=INK, linewidth=1.0, zorder=4)
        for place, note in zip(NOTES[len(heads)], row.notes, strict=True):
            ax.annotate(note, (1, y), (place, 0), va="center_baseline", color=INK, **small)
        if y and kinds[y] != kinds[y - 1]:
            ax.plot([0, 1], [y - 0.5, y - 0.5], transform=beside, color=QUIET, linewidth=0.5, zorder=1)
    for place, head in zip(NOTES[len(heads)], heads, strict=True):
        ax.annotate(head, (1, -0.62), (place, 0), va="bottom", color=QUIET, **small)
    ax.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=6.8)
    ax.set_xlim(low, high)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    plain_axes(ax, "", left=False)


def _ticks(ax: Axes, values: Sequence[float], y: float, half: float, window: tuple[float, float], **style: Any) -> None:
    """Draw into `ax` a vertical tick from y - half to y + half at each of `values` that is not NaN.

    window: lowest and highest value of the axis, at which values beyond them are drawn. style: keywords of `Axes.plot`.
    """
    low, high = window
    xs: list[float] = []
    ys: list[float] = []
    for x in sorted({round(min(max(value, low), high), 4) for value in values if not math.isnan(value)}):
        xs += [x, x, math.nan]
        ys += [y - half, y + half, math.nan]
    if xs:
        ax.plot(xs, ys, solid_capstyle="butt", clip_on=False, **style)


# ---- roundings


def rounding_figures(rows: Sequence[RoundingSummary]) -> list[tuple[str, Any]]:
    """Return two pairs (title, matplotlib figure): one of the gain, one of the SQNR; [] if there are no `rows`.

    Each figure has a row for each format and rounding, and in it a tick for each operand at each training step. The
    gain is the sum of x * (x rounded), divided by the sum of x^2.
    """
    if not rows:
        return []
    lowest = min([0.97, *(gain for row in rows for gain in row.gain if math.isfinite(gain))])
    formats = [row.format for row in rows]
    labels = [(f"{row.format} {words(row.rounding)}", color(row.format, formats)) for row in rows]
    gain = [
        FigureRow(*label, row.gain, (), (f"{row.median_gain:.4f}",), row.median_gain)
        for label, row in zip(labels, rows, strict=True)
    ]
    noise = [
        FigureRow(*label, row.sqnr_db, (), (_decibels(row.median_db),), row.median_db)
        for label, row in zip(labels, rows, strict=True)
    ]
    with figure_style():
        first, ax = _rows_figure(len(rows), 0.28, 0.84)
        ax.axvline(1.0, color=QUIET, linewidth=0.6, zorder=1)
        _draw_rows(ax, gain, (max(lowest, 0.88), 1.01), formats, ("median",))
        ax.set_xlabel("gain of an operand at a step; 1 keeps the signal whole")
        second, ax = _rows_figure(len(rows), 0.28, 0.84)
        _draw_rows(ax, noise, (0.0, 80.0), formats, ("median",))
        ax.set_xlabel("SQNR of an operand at a step, dB")
    return [("Gain of the signal", first), ("Noise", second)]
