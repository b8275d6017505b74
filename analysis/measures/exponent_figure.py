"""Plots of the exponents of tensors as histograms, above the ranges of formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpsim.display.figure import COLORS, DATA, GRID, INK, axes_of, blank_figure, color, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import power, short
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format


def _extent(fmt: Format) -> tuple[int, int, int]:
    """Return the exponents of a format's smallest subnormal and smallest normal value, and 1 + its largest exponent."""
    lowest, top = (math.frexp(value)[1] - 1 for value in (fmt.smallest_subnormal, fmt.max))
    return lowest, fmt.min_exponent, top + 1


def window_of(reports: Sequence[Any], formats: Sequence[Format]) -> tuple[int, int]:
    """Return (lowest, highest) exponent to draw, at most 83 apart.

    The range covers the elements in all `reports` except the smallest 0.1 %, and the ranges of those `formats` that
    have up to 5 exponent bits.
    """
    low = [low for report in reports if (low := report.quantile(0.001)) is not None]
    high = [math.frexp(report.amax)[1] - 1 for report in reports if report.amax > 0]
    small = [_extent(fmt) for fmt in formats if fmt.exponent_bits <= 5] or [(-10, -8, 8)]
    left = min([*low, *(extent[0] for extent in small)])
    right = max([*high, *(extent[2] for extent in small)])
    return max(left, right - 80) - 1, right + 2


def exponent_figure(
    rows: Sequence[tuple[str, Sequence[Any]]], formats: Sequence[Format], title: str, window: tuple[int, int] | None
) -> Any:
    """Return a matplotlib figure with a row of overlaid histograms for each tensor, over the ranges of formats.

    rows: (name of the tensor, its RangeReport at each training step); the last step's histogram is filled. window:
    (lowest, highest) exponent to draw; None computes it from the data and the formats.
    """
    with figure_style():
        figure = blank_figure(0.75 + 0.17 * len(formats) + 0.4 * len(rows))
        ax = figure.add_subplot()
        _draw_exponents(ax, rows, formats, window)
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold")
        return figure


def exponent_axes(
    rows: Sequence[tuple[str, Any]], formats: Sequence[FormatLike] = tuple(COLORS), ax: Axes | None = None
) -> Axes:
    """Draw a histogram for each of `rows`, (name, RangeReport), over the ranges of formats; return the axes.

    ax: axes to draw on; None makes new ones.
    """
    with figure_style():
        ax = axes_of(ax, 1.6 + 0.5 * len(rows))
        _draw_exponents(ax, [(name, [report]) for name, report in rows], [find_format(fmt) for fmt in formats], None)
        return ax


def _draw_exponents(
    ax: Axes, rows: Sequence[tuple[str, Sequence[Any]]], formats: Sequence[Format], window: tuple[int, int] | None
) -> None:
    """Draw the ranges of formats as bars, and under them a row of overlaid histograms for each of `rows`.

    rows: (name of the tensor, its RangeReport at each training step). window: (lowest, highest) exponent to draw; None
    computes it from the data and the formats.
    """
    left, right = window or window_of([report for _, reports in rows for report in reports], formats)
    names = [fmt.name for fmt in formats]
    bar_height = 0.42  # height of a format's bar, in rows
    bottom = len(rows) + 0.1
    for i, fmt in enumerate(formats):
        tint = color(fmt.name, names)
        lowest, normal, top = _extent(fmt)
        y = -bar_height * (len(formats) - i) - 0.15
        begin, end = max(lowest, left), min(top, right)
        ax.fill_between([begin, end], y + 0.04, y + bar_height - 0.06, color=tint, alpha=0.25, linewidth=0)
        ax.fill_between([max(normal, left), end], y + 0.04, y + bar_height - 0.06, color=tint, alpha=0.75, linewidth=0)
        wide = end - max(normal, left) > 0.1 * (right - left)
        ax.text(
            (max(normal, left) + end) / 2 if wide else end + 0.4, y + bar_height / 2, fmt.name, fontsize=6.5,
            ha="center" if wide else "left", va="center_baseline", fontweight="bold", color="white" if wide else INK,
            clip_on=True,
        )  # fmt: skip
        for x in (lowest, top):
            if left < x < right:
                ax.plot([x, x], [y + bar_height / 2, bottom], color=tint, linewidth=0.8, alpha=0.55, zorder=0)
        ax.fill_between([begin, end], 0, bottom, color=DATA, alpha=0.045, linewidth=0, zorder=-1)
    for i, (_, reports) in enumerate(rows):
        base = i + 0.95
        for j, report in enumerate(reports):
            last = j == len(reports) - 1
            xs, ys = _outline(report, left, right)
            if last:
                ax.fill_between(xs, base, base - 0.85 * ys, color=DATA, alpha=0.75, linewidth=0, zorder=3)
            else:
                ys[(ys == 0) & (np.roll(ys, 1) == 0) & (np.roll(ys, -1) == 0)] = (
                    np.nan
                )  # no line where there is nothing
                ax.plot(xs, base - 0.85 * ys, color=DATA, linewidth=0.6, alpha=min(0.45 + 0.25 * j, 1.0), zorder=4)
        ax.plot([left, right], [base, base], color=GRID, linewidth=0.6, zorder=1)
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, -bar_height * len(formats) - 0.25)
    ax.set_yticks([i + 0.7 for i in range(len(rows))], [short(name, 26) for name, _ in rows])
    step = 8 if right - left <= 64 else 16
    ticks = [x for x in range(-1088, 1088, step) if left <= x <= right]
    ax.set_xticks(ticks, [power(x) for x in ticks])
    ax.set_xlabel("magnitude |x|")
    plain_axes(ax, "", left=False)


def _outline(report: Any, left: int, right: int) -> tuple[Any, Any]:
    """Return (x, y) of the outline of a histogram of exponents over [left, right], with its highest bin at 1.

    report: a RangeReport. Exponents outside are counted in the outermost bins.
    """
    heights = np.zeros(right - left)
    for exponent, count in report.counts:
        heights[min(max(exponent, left), right - 1) - left] += count
    heights /= max(1, heights.max(initial=0))
    edges = np.repeat(np.arange(left, right + 1), 2)[1:-1]
    return np.concatenate([[left], edges, [right]]), np.concatenate([[0], np.repeat(heights, 2), [0]])
