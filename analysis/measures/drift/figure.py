"""The plot of a DriftReport: the error of sums against their number of terms, with the bounds of theory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpsim.display.figure import INK, QUIET, SHADES, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import power, short

MOST_BOUNDS = 3  # largest number of accumulators whose bounds are drawn; more would hide the errors


def drift_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw each accumulator's relative error (norm_relative) against the number of terms; return the matplotlib axes.

    report: the DriftReport. Bounds are drawn if it has at most 3 accumulators. A ring marks the number of terms from
    which on an accumulator's additions stagnate (`Regime.onset`). ax: axes to draw on; None makes new ones.
    """
    names = report.accumulators
    with figure_style():
        ax = axes_of(ax, 3.2)
        ends = []
        for i, (name, regime) in enumerate(zip(names, report.regimes, strict=True)):
            tint, rows = SHADES[i % len(SHADES)], report.of(name)
            points = [(row.length, row.norm_relative) for row in rows if row.norm_relative > 0]
            ax.plot(*_columns(points), color=tint, linewidth=1.6, marker="o", markersize=2.5, zorder=3)
            for row in rows:
                if row.length == regime.onset and row.norm_relative > 0:
                    ax.plot(row.length, row.norm_relative, "o", mfc="white", mec=tint, mew=1.4, ms=6.5, zorder=4)
            if points:
                ends.append((points[-1][1], name, tint))
            if len(names) <= MOST_BOUNDS:
                for bound, style in (("norm_deterministic", (0, (5, 2))), ("norm_probabilistic", (0, (1, 1.5)))):
                    points = [(row.length, getattr(row, bound)) for row in rows if 0 < getattr(row, bound) < math.inf]
                    ax.plot(*_columns(points), color=tint, linewidth=0.9, linestyle=style, alpha=0.8, zorder=2)
        _scale(ax, report)
        _label(ax, ends, report.lengths[-1])
        ax.set_xlabel("terms")
        ax.set_ylabel("relative error of the sums")
        _legend(ax, any(regime.onset for regime in report.regimes), len(names) <= MOST_BOUNDS)
        return ax


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Return (x values, y values) of points (x, y)."""
    return [x for x, _ in points], [y for _, y in points]


def _scale(ax: Axes, report: Any) -> None:
    """Make both axes logarithmic, with powers of two as ticks of x; end the y axis at 10 or below.

    report: a DriftReport; the ticks cover its numbers of terms.
    """
    ax.set_xscale("log", base=2)
    heights = [y for line in ax.get_lines() for y in np.asarray(line.get_ydata())]
    if heights:  # a logarithmic axis needs a positive value
        ax.set_yscale("log")
        ax.set_ylim(min(heights) / 2, min(2 * max(heights), 10.0))
    low, high = (math.log2(report.lengths[i]) for i in (0, -1))
    every = max(1, math.ceil((high - low) / 7))
    ticks = range(math.ceil(low), math.floor(high) + 1, every)
    if len(ticks) >= 2:
        ax.set_xticks([2.0**i for i in ticks], [power(i) for i in ticks])
    ax.minorticks_off()
    plain_axes(ax)


def _label(ax: Axes, ends: list[tuple[float, str, str]], last: int) -> None:
    """Write names next to the ends of curves, moved apart if they would overlap.

    ends: (last y value, name, colour) of each curve. last: the x value of the ends.
    """
    if not ends:
        return
    bottom, top = (math.log(y) for y in ax.get_ylim())
    gap = 0.055 * (top - bottom)
    heights: list[float] = []
    for value, _, _ in sorted(ends):
        heights.append(max(math.log(value), heights[-1] + gap if heights else -math.inf))
    over = max(0.0, heights[-1] - top)
    for (value, name, tint), height in zip(sorted(ends), heights, strict=True):
        ax.annotate(
            short(name, 52), (last, value), xytext=(1.03, (height - over - bottom) / (top - bottom)),
            textcoords="axes fraction", va="center", fontsize=6.5, color=tint, annotation_clip=False,
        )  # fmt: skip


def _legend(ax: Axes, stagnates: bool, bounds: bool) -> None:
    """Draw a legend above the axes: lines of bounds if `bounds`, the ring of stagnation if `stagnates`."""
    if bounds:
        for label, style in (("bound, always", (0, (5, 2))), ("bound, probable", (0, (1, 1.5)))):
            ax.plot([], [], color=QUIET, linewidth=0.9, linestyle=style, label=label)
    if stagnates:
        ax.plot([], [], "o", color=INK, mfc="white", mew=1.4, ms=6, label="stagnates")
    if bounds or stagnates:
        ax.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=6.5, borderaxespad=0.2,
            handlelength=2.2, columnspacing=1.2,
        )  # fmt: skip
