"""Plots of an ErrorReport (noise by cause, or the SQNR of every channel or block) and of a Comparison."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.display.figure import DATA, INK, QUIET, axes_of, color, figure_style
from fpsim.display.optional import Axes
from fpsim.display.wording import decibels, percent

HEIGHT = 2.2  # inches


def error_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the noise by cause, or if the report has parts the SQNR of each channel or block; return the axes.

    ax: matplotlib axes to draw on; None makes new ones.
    """
    with figure_style():
        ax = axes_of(ax, HEIGHT)
        (_draw_causes if report.parts is None else _draw_parts)(report, ax)
        return ax


def _draw_causes(report: Any, ax: Axes) -> None:
    """Draw a bar for each cause of the noise in a report: its share of the squared errors."""
    shares = report.noise_by_cause
    names = list(shares)[::-1]
    values = [0.0 if math.isnan(shares[name]) else shares[name] for name in names]
    ax.barh(names, values, color=DATA, height=0.6)
    for place, name in enumerate(names):
        ax.text(values[place] + 0.01, place, percent(shares[name]), va="center", fontsize=7, color=INK)
    ax.set_xlim(0, 1.12)
    ax.set_xlabel("share of the noise")
    ax.set_title(f"{decibels(report.sqnr_db)} SQNR", loc="left", fontsize=9, fontweight="bold")


def _draw_parts(report: Any, ax: Axes) -> None:
    """Draw the SQNR of every channel or block in a report as a point, and that of the whole array as a line."""
    sqnr = report.parts["sqnr_db"]
    shown = np.where(np.isfinite(sqnr), sqnr, np.nan)
    ax.plot(np.arange(len(shown)), shown, color=DATA, linewidth=0, marker=".", markersize=3)
    ax.axhline(report.sqnr_db, color=QUIET, linewidth=0.8, zorder=0)
    ax.set_xlabel(report.parts.name)
    ax.set_ylabel("SQNR, dB")
    title = f"{decibels(report.sqnr_db)} over all; worst {report.parts.name} {report.parts.worst()}"
    ax.set_title(title, loc="left", fontsize=9, fontweight="bold")


def comparison_axes(comparison: Any, ax: Axes | None = None) -> Axes:
    """Draw SQNR against bits per value, with a mark for each row of a comparison; return the matplotlib axes.

    comparison: a `Comparison` of formats, roundings and scalings. ax: axes to draw on; None makes new ones. A line
    connects the rows of the Pareto front. Rows whose SQNR is not finite are not drawn.
    """
    with figure_style():
        ax = axes_of(ax, 3.2)
        names = list(dict.fromkeys(row.format for row in comparison.rows))
        for name in names:
            rows = [row for row in comparison.rows if row.format == name and math.isfinite(row.report.sqnr_db)]
            points = [(row.report.bits_per_value, row.report.sqnr_db) for row in rows]
            if points:
                ax.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=0, color=color(name, names))
        front = [row for row in comparison.pareto() if math.isfinite(row.report.sqnr_db)]
        points = [(row.report.bits_per_value, row.report.sqnr_db) for row in front]
        if points:
            ax.plot(*zip(*points, strict=True), color=QUIET, linewidth=0.8, zorder=0, drawstyle="steps-post")
        for row, (bits, sqnr) in zip(front, points, strict=True):
            ax.annotate(row.format, (bits, sqnr), xytext=(4, -9), textcoords="offset points", fontsize=7, color=INK)
        ax.set_xlabel("bits per value, scales included")
        ax.set_ylabel("SQNR, dB")
        return ax
