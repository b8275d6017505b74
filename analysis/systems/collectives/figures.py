"""Plots of collectives: errors of algorithms, and their growth with the number of ranks."""

from __future__ import annotations

from typing import Any

from fpsim.display.figure import DATA, INK, QUIET, SHADES, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes


def report_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the relative error of each algorithm as a bar, and its range over the tried orders of ranks as a line.

    report: the CollectiveReport. Return the matplotlib axes: `ax`, or new ones for None.
    """
    rows = list(report.rows)
    with figure_style():
        ax = axes_of(ax, 0.6 + 0.32 * len(rows))
        places = range(len(rows))
        ax.barh(places, [row.relative_error for row in rows], color=DATA, height=0.62, zorder=2)
        if report.permutations:
            for place, row in zip(places, rows, strict=True):
                ax.plot([row.order_lowest, row.order_highest], [place, place], color=INK, linewidth=1.4, zorder=3)
        top = max((row.order_highest for row in rows), default=0.0)
        for place, row in zip(places, rows, strict=True):
            ax.annotate(
                f"{row.relative_error:.2g}", (max(row.order_highest, row.relative_error), place), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=7, color=INK,
            )  # fmt: skip
        ax.set_yticks(places, [row.algorithm for row in rows])
        ax.invert_yaxis()
        ax.set_xlim(0, top * 1.15 if top > 0 else 1)
        ax.set_xlabel(f"relative error of {report.ranks:,} ranks' sums in {report.format}")
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax


def growth_axes(growth: Any, ax: Axes | None = None) -> Axes:
    """Draw the relative error of each algorithm against the number of ranks, with names at the ends of the curves.

    growth: the CollectiveGrowth. Return the matplotlib axes: `ax`, or new ones for None.
    """
    with figure_style():
        ax = axes_of(ax, 2.9)
        ends = []
        for i, (name, errors) in enumerate(zip(growth.algorithms, growth.errors, strict=True)):
            points = [(n, error) for n, error in zip(growth.ranks, errors, strict=True) if error > 0]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            ax.plot(x, y, color=SHADES[i % len(SHADES)], linewidth=1.5, marker="o", markersize=3, zorder=3)
            ends.append(
                (y[-1], f"{name}, ~ ranks^{round(growth.exponents[name], 2) + 0.0:.2f}", SHADES[i % len(SHADES)])
            )
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(growth.ranks, [f"{n:,}" for n in growth.ranks])
        known = [error for errors in growth.errors for error in errors if error > 0]
        if known:
            ticks = [
                m * 10.0**k for k in range(-16, 3) for m in (1, 2, 5) if min(known) / 2 < m * 10.0**k < 2 * max(known)
            ]
            ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        for value, text, tint in ends:
            ax.annotate(text, (growth.ranks[-1], value), xytext=(7, 0), textcoords="offset points", va="center",
                        fontsize=7, color=tint, annotation_clip=False)  # fmt: skip
        ax.set_xlabel("ranks")
        ax.set_ylabel(f"relative error in {growth.format}")
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax
