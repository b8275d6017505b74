"""The plot of accumulated gradients: relative error against the number of micro-batches."""

from __future__ import annotations

import math
from typing import Any

from fpsim.display.figure import SHADES, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import short


def accumulation_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the relative error against the number of micro-batches, a curve for each way of adding gradients.

    A way with one row, such as "large batch", is a dashed horizontal line. report: the AccumulationReport. Return the
    axes: `ax`, or new ones for None.
    """
    with figure_style():
        ax = axes_of(ax, 3.2)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        for i, way in enumerate(report.ways):
            rows = [row for row in report.of(way) if row.relative_error > 0 and math.isfinite(row.relative_error)]
            tint = SHADES[i % len(SHADES)]
            if len(report.of(way)) == 1 and rows:
                ax.axhline(rows[0].relative_error, color=tint, linestyle="--", linewidth=1.0, label=short(way, 40))
            elif rows:
                ax.plot(
                    [row.micro_batches for row in rows], [row.relative_error for row in rows], color=tint, marker="o",
                    markersize=3, linewidth=1.5, label=short(way, 40),
                )  # fmt: skip
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.minorticks_off()
        ax.set_xlabel("micro-batches")
        ax.set_ylabel("relative error of the gradient")
        plain_axes(ax)
        if ax.get_lines():
            ax.legend(
                loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, frameon=False, fontsize=7, borderaxespad=0.2,
                columnspacing=1.2,
            )  # fmt: skip
        return ax
