"""Pictures of a study: exponent histograms over the formats' ranges, underflow, SQNR. The one place with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpsim.analysis.studies.results import StudyResults
from fpsim.display.figure import GRID, INK, QUIET, axes_of, blank_figure, color, figure_style, matplotlib
from fpsim.display.wording import short

# ---- exponent histograms


# ---- underflow


def underflow_figure(report: StudyResults, tensors: Sequence[str], labels: Sequence[str], title: str) -> Any:
    """The heat map of some tensors."""
    with figure_style():
        figure = blank_figure(0.95 + 0.23 * len(tensors))
        ax = figure.add_subplot()
        _draw_underflow(ax, report, tensors, labels)
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=32)
        return figure


def underflow_axes(report: StudyResults, tensors: Sequence[str], ax: Any = None) -> Any:
    """Draw the heat map into axes."""
    with figure_style():
        ax = axes_of(ax, 1 + 0.25 * len(tensors))
        _draw_underflow(ax, report, tensors, tensors)
        return ax


def _draw_underflow(ax: Any, report: StudyResults, tensors: Sequence[str], labels: Sequence[str]) -> None:
    columns = [(scaling, fmt) for scaling in report.scales for fmt in report.formats]
    rates = np.full((len(tensors), len(columns)), np.nan)
    for i, tensor in enumerate(tensors):
        for j, (scaling, fmt) in enumerate(columns):
            found = [
                row.report.underflow_rate
                for row in judged(report, tensor)
                if (row.scaling, row.report.fmt) == (scaling, fmt)
            ]
            rates[i, j] = max(found, default=np.nan)
    shades = matplotlib.colormaps["Oranges"]
    levels = np.sqrt(np.nan_to_num(rates))  # so that one per cent can be told from none
    gap = 0.35
    for j, (_, fmt) in enumerate(columns):
        x = j + gap * (j // len(report.formats))
        for i in range(len(tensors)):
            shade = shades(0.85 * levels[i, j]) if rates[i, j] > 0 else "#f7f7f7"
            ax.fill_between([x + 0.03, x + 0.97], i + 0.04, i + 0.96, color=shade, linewidth=0)
            text = "" if np.isnan(rates[i, j]) else _cell(100 * rates[i, j])
            ink = "white" if levels[i, j] > 0.75 else INK if rates[i, j] > 0 else "#999999"
            ax.text(x + 0.5, i + 0.53, text, ha="center", va="center", fontsize=6, color=ink)
        ax.text(x + 0.5, -0.15, fmt.name, ha="center", va="bottom", fontsize=5.8, color=INK)
    for k, scaling in enumerate(report.scales):
        middle = (k + 0.5) * len(report.formats) + gap * k
        words = "no scale" if scaling == "none" else "amax scale"
        ax.text(middle, -0.95, words, ha="center", va="bottom", fontsize=7.5, color=QUIET)
    ax.set_xlim(-0.1, len(columns) + gap * (len(report.scales) - 1) + 0.1)
    ax.set_ylim(len(tensors), 0)
    ax.set_yticks([i + 0.5 for i in range(len(tensors))], [short(label, 22) for label in labels])
    ax.set_xticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)


def _cell(value: float) -> str:
    if value == 0:
        return "0"
    if value < 0.1:
        return f"{value:.2f}"[1:] if value >= 0.005 else "+0"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}" if value <= 99.5 or value == 100 else ">99"


def judged(report: StudyResults, tensor: str) -> list[Any]:
    """A tensor's error rows of the rounding that pictures show."""
    return [row for row in report.errors_of.get(tensor, ()) if row.report.rounding == report.judged_rounding]


# ---- SQNR


def sqnr_figure(report: StudyResults, tensors: Sequence[str], labels: Sequence[str], title: str) -> Any:
    """Bars per tensor and format: with the best-placed scale, and a mark for the value without one."""
    with figure_style():
        count = len(report.formats)
        figure = blank_figure(0.95 + (0.14 + 0.075 * count) * len(tensors))
        ax = figure.add_subplot()
        _draw_sqnr(ax, report, tensors, labels)
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=20)
        return figure


def _draw_sqnr(ax: Any, report: StudyResults, tensors: Sequence[str], labels: Sequence[str]) -> None:
    names = [fmt.name for fmt in report.formats]
    scaled = "amax" if "amax" in report.scales else report.scales[0]
    height = 0.8 / len(names)
    for i, tensor in enumerate(tensors):
        for j, fmt in enumerate(report.formats):
            y = i + 0.1 + height * (j + 0.5)
            worst: dict[str, float] = {}
            for row in judged(report, tensor):
                if row.report.fmt == fmt and not math.isnan(row.report.sqnr_db):
                    worst[row.scaling] = min(worst.get(row.scaling, math.inf), row.report.sqnr_db)
            if scaled in worst:
                ax.barh(
                    y, min(max(worst[scaled], 0), 100), height=0.86 * height, color=color(fmt.name, names), linewidth=0
                )
            if "none" in worst and scaled != "none":
                x = min(max(worst["none"], 0), 100)
                ax.plot([x, x], [y - 0.43 * height, y + 0.43 * height], color=INK, linewidth=1.3, solid_capstyle="butt")
    ax.set_ylim(len(tensors), 0)
    ax.set_yticks([i + 0.5 for i in range(len(tensors))], [short(label, 26) for label in labels])
    ax.set_xlim(0, max(80, ax.get_xlim()[1]))
    ax.set_xlabel("SQNR in dB, worst step")
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    patches = [matplotlib.patches.Patch(color=color(name, names), label=name) for name in names]
    ax.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), frameon=False, fontsize=7,
        handlelength=0.9, handletextpad=0.4, columnspacing=1.0, borderpad=0,
    )  # fmt: skip
