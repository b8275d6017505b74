"""Plots of batch invariance, decoding and comparisons of runs."""

from __future__ import annotations

from typing import Any

from fpsim.display.figure import COLORS, DATA, INK, QUIET, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import short

SHADES = tuple(COLORS.values())
MOST_NAMES = 24


def batch_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the share of elements that differ from the smallest batch against the batch size.

    report: the BatchInvariance. A vertical line marks each of `thresholds`, the sizes at which bits change. The shares
    of elements that depend on the row's position and on the values of the other rows get a curve each, unless they are
    0 for every size. Return the matplotlib axes: `ax`, or new ones for None.
    """
    rows = list(report.rows)
    with figure_style():
        ax = axes_of(ax, 2.4)
        sizes = [row.batch for row in rows]
        ax.plot(sizes, [row.differing for row in rows], color=DATA, linewidth=1.2, marker="o", markersize=3.5)
        for name, tint in (("by_position", SHADES[1]), ("by_neighbours", SHADES[2])):
            shares = [getattr(row, name) for row in rows]
            if max(shares) > 0:
                ax.plot(sizes, shares, color=tint, linewidth=1.0, marker="s", markersize=2.5, label=name[3:])
        for threshold in report.thresholds:
            ax.axvline(threshold, color=QUIET, linewidth=0.8, linestyle=(0, (3, 2)))
            at = (threshold, 1.03)
            ax.annotate(f"{threshold:,}", at, xycoords=("data", "axes fraction"), ha="center", fontsize=7, color=INK)
        ax.set_xscale("log", base=2)
        ax.set_ylim(-0.03, 1.03)
        ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        ax.set_xlabel("rows of the batch")
        ax.set_ylabel("elements that differ")
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, fontsize=7)
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax


def decoding_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw KL divergence and log-probability differences of a DecodingReport against the number of earlier tokens.

    report: the DecodingReport. A ring marks each token that the two decoders choose differently. Return the matplotlib
    axes: `ax`, or new ones for None.
    """
    rows = list(report.rows)
    lengths = [row.length for row in rows]
    with figure_style():
        ax = axes_of(ax, 2.6)
        kl = [row.kl for row in rows]
        apart = [abs(row.logprob_first - row.logprob_second) for row in rows]
        for values, tint, label in ((apart, SHADES[1], "|log-probability difference|"), (kl, DATA, "KL")):
            points = [(x, y) for x, y in zip(lengths, values, strict=True) if y > 0]
            if points:
                ax.plot(*zip(*points, strict=True), color=tint, linewidth=1.1, marker="o", markersize=2, label=label)
        changed = [(row.length, row.kl) for row in rows if row.token_first != row.token_second and row.kl > 0]
        if changed:
            ax.plot(*zip(*changed, strict=True), "o", color=INK, mfc="none", markersize=7, label="another token")
        if any(y > 0 for y in (*kl, *apart)):
            ax.set_yscale("log")
        ax.set_xlabel("tokens before")
        ax.set_ylabel("nats")
        if ax.get_lines():
            ax.legend(frameon=False, fontsize=7, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax


def run_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the relative difference of each tensor in the order of computing: a curve for each step, darker if later.

    report: the RunComparison. Return the matplotlib axes: `ax`, or new ones for None.
    """
    rows = list(report.rows)
    with figure_style():
        ax = axes_of(ax, 3.0)
        steps = list(dict.fromkeys(row.step for row in rows))
        names = list(dict.fromkeys((row.layer, row.tensor) for row in rows))
        for number, step in enumerate(steps):
            points = [
                (names.index((row.layer, row.tensor)), row.relative)
                for row in rows
                if row.step == step and 0 < row.relative < float("inf")
            ]
            if points:
                shade = number / max(len(steps) - 1, 1)
                ax.plot(*zip(*points, strict=True), color=DATA, alpha=0.3 + 0.7 * shade, linewidth=1.0, marker="o",
                        markersize=3, label=f"step {step}")  # fmt: skip
        if ax.get_lines():
            ax.set_yscale("log")
            if len(steps) <= 6:
                ax.legend(frameon=False, fontsize=7)
        if len(names) <= MOST_NAMES:
            labels = [f"{short(layer, 16)} {tensor.replace('_', ' ')}" for layer, tensor in names]
            ax.set_xticks(range(len(names)), labels, rotation=60, ha="right")
        else:
            ax.set_xlabel("tensors, in the order of computing")
        ax.set_ylabel("relative difference")
        ax.set_title(f"{short(report.names[0], 30)} and {short(report.names[1], 30)}", loc="left", fontsize=8)
        plain_axes(ax)
        ax.tick_params(axis="x", labelcolor=QUIET)
        return ax
