"""Plots on scales: shares of elements that a format loses against the scale 2**k, and loss scales against steps."""

from __future__ import annotations

import math
from typing import Any

from fpsim.display.figure import COLORS, DATA, INK, QUIET, SHADES, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import power

LOST, SATURATED, SUBNORMAL = COLORS["E4M3"], COLORS["E5M2"], "#9aa5b1"


def underflow_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the shares of elements that become 0, subnormal and too large against 2**k; mark the best scale.

    report: the UnderflowReport. Return the matplotlib axes: `ax`, or new ones for None.
    """
    with figure_style():
        ax = axes_of(ax, 2.6)
        order = sorted(range(len(report.scales)), key=lambda i: report.scales[i])
        x = [report.scales[i] for i in order]
        curves = (
            ("become 0", report.lost, LOST, 1.6), ("become subnormal", report.subnormal, SUBNORMAL, 1.1),
            ("saturate", report.saturated, SATURATED, 1.6),
        )  # fmt: skip
        for label, shares, tint, width in curves:
            ax.plot(x, [100 * shares[i] for i in order], color=tint, linewidth=width, label=label)
        if report.best_scale is not None:
            ax.axvline(report.best_scale, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
            left = report.best_scale > (x[0] + x[-1]) / 2
            ax.annotate(
                f"best: {power(report.best_scale)}", (report.best_scale, 100), xytext=(-4 if left else 4, -1),
                textcoords="offset points", ha="right" if left else "left", va="top", fontsize=6.5, color=INK,
            )  # fmt: skip
        step = max(1, 4 * math.ceil((x[-1] - x[0]) / 36))
        ticks = [k for k in range(x[0], x[-1] + 1) if k % step == 0]
        ax.set_xticks(ticks, [power(k) for k in ticks])
        ax.set_ylim(-2, 104)
        ax.set_xlabel("scale")
        ax.set_ylabel(f"% of the values in {report.format}")
        plain_axes(ax)
        _legend(ax)
        return ax


def loss_scaling_axes(report: Any, ax: Axes | None = None) -> Axes:
    """Draw the loss scale of every policy against the training step; marks below the curves show steps that overflowed.

    report: the LossScalingReport. Return the matplotlib axes: `ax`, or new ones for None.
    """
    with figure_style():
        ax = axes_of(ax, 1.9 + 0.22 * len(report.policies))
        logs = []
        for i, policy in enumerate(report.policies):
            steps, tint = report.of(policy), SHADES[i % len(SHADES)]
            logs.append([math.log2(max(step.scale, 2.0**-149)) for step in steps])
            ax.step(
                [s.step for s in steps], logs[-1], where="post", color=tint, linewidth=1.4, label=policy.name, zorder=3
            )
        low, high = min(map(min, logs)), max(map(max, logs))
        row = max(high - low, 8) / 14
        for i, policy in enumerate(report.policies):
            level, tint = low - row * (i + 1.6), SHADES[i % len(SHADES)]
            marked = [step.step for step in report.of(policy) if step.overflowed]
            ax.plot(marked, [level] * len(marked), "|", color=tint, ms=5, mew=1.0, zorder=3)
        ax.axhspan(low - row * (len(logs) + 1.2), low - row, color=DATA, alpha=0.06, linewidth=0)
        ax.set_ylim(low - row * (len(logs) + 1.2), high + row)
        ax.annotate(
            "steps that overflow", (1, low - row), xycoords=("axes fraction", "data"), xytext=(-3, -2),
            textcoords="offset points", ha="right", va="top", fontsize=6, color=QUIET,
        )  # fmt: skip
        every = max(1, 4 * math.ceil((high - low) / 24))
        ticks = [k for k in range(math.floor(low), math.ceil(high) + 1) if k % every == 0]
        ax.set_yticks(ticks, [power(k) for k in ticks])
        ax.set_xlabel("step")
        ax.set_ylabel("scale")
        plain_axes(ax)
        _legend(ax)
        return ax


def _legend(ax: Axes) -> None:
    """Draw the legend above the axes, with up to four entries in a line."""
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False, fontsize=6.5, borderaxespad=0.2,
        handlelength=1.6, columnspacing=1.2,
    )  # fmt: skip
