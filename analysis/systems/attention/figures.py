"""Plots of attention: errors of output rows, weights rounded to 0, and errors of caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.display.figure import DATA, INK, QUIET, SHADES, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes


def attention_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the relative error of each query's output row: the median over heads, and the range as a shaded area.

    report: the AttentionReport. Return the matplotlib axes: `ax`, or new ones for None.
    """
    errors = np.where(np.isfinite(report.row_errors), report.row_errors, np.nan)
    with figure_style():
        ax = axes_of(ax, 2.6)
        places = np.arange(errors.shape[1])
        known = ~np.isnan(errors).all(axis=0)
        if known.any():
            low, middle, high = np.nanquantile(errors[:, known], [0, 0.5, 1], axis=0)
            ax.fill_between(places[known], low, high, color=DATA, alpha=0.18, linewidth=0)
            ax.plot(places[known], middle, color=DATA, linewidth=1.2)
            if np.nanmin(errors) > 0:
                ax.set_yscale("log")
        ax.set_xlabel("query")
        ax.set_ylabel("relative error of a row")
        recipe = report.recipe
        ax.set_title(f"scores {recipe['scores']}, weights {recipe['probabilities']}, output {recipe['output']}",
                     loc="left", fontsize=8)  # fmt: skip
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax


def underflow_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the share of weights rounded to 0, and the share of the sum of all weights that these have.

    The first is a line (predicted) and points (measured). report: the WeightUnderflow. The x axis is the standard
    deviation of the scores, in nats. Return the matplotlib axes: `ax`, or new ones for None.
    """
    rows = list(report.rows)
    spreads = [row.spread for row in rows]
    with figure_style():
        ax = axes_of(ax, 2.7)
        ax.plot(spreads, [row.law for row in rows], color=QUIET, linewidth=1.2, label="law")
        ax.plot(spreads, [row.below for row in rows], "o", color=INK, markersize=4, label="weights rounded to 0")
        ax.plot(spreads, [row.lost_mass for row in rows], color=SHADES[1], linewidth=1.4, marker="s", markersize=3,
                label="their share of the sum")  # fmt: skip
        ax.set_ylim(-0.03, 1.03)
        ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        ax.set_xlabel(f"standard deviation of {report.keys:,} scores, nats")
        ax.set_ylabel(f"share in {report.format}")
        ax.legend(frameon=False, fontsize=7, loc="center right")
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax


def cache_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the output error of each cache as a bar, labelled with its bits per value.

    report: the CacheReport. Return the matplotlib axes: `ax`, or new ones for None.
    """
    rows = list(report.rows)
    with figure_style():
        ax = axes_of(ax, 0.6 + 0.27 * len(rows))
        formats = list(dict.fromkeys(row.cache.split(",")[0] for row in rows))
        tints = [SHADES[formats.index(row.cache.split(",")[0]) % len(SHADES)] for row in rows]
        ax.barh(range(len(rows)), [row.output_error for row in rows], color=tints, height=0.66, zorder=2)
        ax.set_yticks(range(len(rows)), [row.cache for row in rows])
        ax.invert_yaxis()
        known = [row.output_error for row in rows if row.output_error > 0]
        if known:
            ax.set_xscale("log")
            ax.set_xlim(min(known) / 2, max(known) * 4)
        for place, row in enumerate(rows):
            label = f"{row.output_error:.2g}, {row.bits_per_value:.3g} bits"
            ax.annotate(label, (row.output_error, place), xytext=(4, 0), textcoords="offset points", va="center",
                        fontsize=6.5, color=INK)  # fmt: skip
        ax.set_xlabel("relative error of outputs")
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax
