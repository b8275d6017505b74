"""Figure of an optimizer's steps: gradient norms, sizes of updates, and shares of lost updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpsim.display.figure import COLORS, GRID, axes_of, figure_style
from fpsim.display.optional import Axes, load

BLUE, RED, GREEN = list(COLORS.values())[:3]


def monitors_axes(rows: Sequence[Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """Draw gradient norms and update ratios on a logarithmic axis, and the share of lost updates on a second axis.

    Return the first axes. rows: for each step a dictionary with step, gradient_norm, update_ratio and lost_updates, as
    iteration of `Monitors` yields them. ax: matplotlib axes; None for a new figure.
    """
    steps = [row["step"] for row in rows]
    dots: dict[str, Any] = {"marker": "o", "markersize": 3} if len(rows) < 30 else {}
    with figure_style():
        ax = axes_of(ax, 3.0)
        ax.plot(steps, [row["gradient_norm"] for row in rows], color=BLUE, label="norm of the gradient", **dots)
        ax.plot(steps, [row["update_ratio"] for row in rows], color=GREEN, label="updates over weights", **dots)
        ax.set_yscale("log")
        ax.set_xlabel("step")
        ax.xaxis.set_major_locator(load("matplotlib.ticker", "drawing").MaxNLocator(integer=True, min_n_ticks=1))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # the usual one writes TeX
        ax.minorticks_off()
        ax.grid(color=GRID, linewidth=0.5)
        right = ax.twinx()
        right.plot(steps, [100 * row["lost_updates"] for row in rows], color=RED, label="updates lost", **dots)
        right.set_ylim(-3, 103)
        right.set_ylabel("updates lost, %", color=RED)
        right.tick_params(axis="y", labelcolor=RED)
        for axes in (ax, right):
            axes.spines["top"].set_visible(False)
        lines = [*ax.get_lines(), *right.get_lines()]
        ax.legend(lines, [line.get_label() for line in lines], loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3,
                  frameon=False, fontsize=7)  # fmt: skip
        return ax
