"""The figure of a plan: predicted and measured errors, over bits per value or bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fpsim.analysis.studies.planning.evidence import LABELS
from fpsim.display.figure import COLORS, INK, QUIET, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes, load
from fpsim.display.wording import bytes_in_words, short

SHADES = list(COLORS.values())
WORDS = {"milp": "optimum"}  # names of methods in the figure
WIDE = 5  # ratio of the largest and the smallest value from which the axis is logarithmic; below it has too few ticks


def plan_axes(
    candidates: Sequence[Any], points: Sequence[Any], budget: tuple[str, float], figure: str, ax: Axes | None
) -> Axes:
    """Draw the errors of a plan and of others over their costs into `ax` (None for new axes); return the axes.

    `candidates`: the plans, each drawn as a ring at its predicted error and a disc at its measured error. `points`: the
    plans that integer programming and the greedy search find for growing budgets (`Point`s), drawn as curves. `budget`:
    "bits" or "bytes", and their number. `figure`: name of the metric.
    """
    kind, limit = budget
    with figure_style():
        ax = axes_of(ax, 3.4)
        for method, tint, style in (("milp", SHADES[0], "-"), ("greedy", SHADES[1], (0, (4, 2)))):
            line = _frontier(points, method)
            costs, errors = [cost for cost, _ in line], [error for _, error in line]
            ax.plot(costs, errors, color=tint, linestyle=style, linewidth=1.4, drawstyle="steps-post", zorder=2,
                    label=f"{WORDS.get(method, method)}, predicted")  # fmt: skip
        ax.axvline(limit, color=QUIET, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        for candidate in reversed(candidates):
            _draw(ax, candidate)
        _label(ax, candidates, limit)
        heights = [point.predicted for point in points]
        heights += [candidate.joint.value for candidate in candidates if candidate.joint is not None]
        if heights and math.isfinite(max(heights)) and max(heights) > WIDE * min(heights) > 0:
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(load("matplotlib.ticker", "drawing").LogLocator(subs=(1.0, 2.0, 5.0)))
            # the usual formatter writes TeX, which these figures do not show
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.yaxis.set_minor_formatter(lambda value, _: "")
            ax.set_ylim(min(heights) / 1.3, max(heights) * 1.3)
        ax.set_xlabel("bits a value" if kind == "bits" else "bytes of weights")
        if kind == "bytes":
            ax.xaxis.set_major_formatter(lambda value, _: bytes_in_words(value))
        ax.set_ylabel(LABELS[figure])
        ax.minorticks_off()
        plain_axes(ax)
        ax.plot([], [], "o", color=INK, mfc="white", ms=4.5, label="a plan, predicted")
        ax.plot([], [], "o", color=INK, ms=4.5, label="measured jointly")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, frameon=False, fontsize=6.5, borderaxespad=0.2,
                  handlelength=2.0, columnspacing=1.2)  # fmt: skip
        return ax


def _frontier(points: Sequence[Any], method: str) -> list[tuple[float, float]]:
    """Return pairs (cost, predicted error) of the plans to draw for a search, the cheapest first.

    `points`: plans found by integer programming and by the greedy search. `method`: "greedy" for the plans of the
    greedy search; "milp" for those of all plans whose predicted error is smaller than that of every cheaper plan.
    """
    if method == "greedy":
        return [(point.cost, point.predicted) for point in points if point.method == method]
    best: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: (point.cost, point.predicted)):
        if not best or point.predicted < best[-1][1]:
            best.append((point.cost, point.predicted))
    return best


def _tint(method: str) -> str:
    """Return the colour (#rrggbb) of plans found by a search. `method`: the search, such as "greedy" or "random 1"."""
    return {"milp": SHADES[0], "greedy": SHADES[1], "uniform": SHADES[2]}.get(method.partition(" ")[0], QUIET)


def _draw(ax: Axes, candidate: Any) -> None:
    """Draw one plan, the `PlanCandidate` `candidate`, into `ax`, with a line from its predicted to its measured error
    if that is known."""
    tint = _tint(candidate.method)
    ax.plot(candidate.cost, candidate.predicted, "o", color=tint, mfc="white", ms=4.5, zorder=4)
    if candidate.joint is None or not math.isfinite(candidate.joint.value):
        return
    cost, measured = candidate.cost, candidate.joint.value
    ax.plot([cost, cost], [candidate.predicted, measured], color=tint, linewidth=0.8, zorder=3)
    ax.plot(cost, measured, "o", color=tint, ms=4.5, zorder=5)


def _label(ax: Axes, candidates: Sequence[Any], budget: float) -> None:
    """Write the names of plans into `ax`, next to the vertical line of the budget, in the order of their errors.

    Random plans have no name. Plans with equal recipes share a line of text. `candidates`: the plans (`PlanCandidate`).
    `budget`: position of the vertical line.
    """
    names: dict[tuple[tuple[Any, str], ...], list[str]] = {}
    places: dict[tuple[tuple[Any, str], ...], float] = {}
    for candidate in candidates:
        if not candidate.method.startswith("random"):
            key = tuple(sorted(candidate.assignment.items()))
            names.setdefault(key, []).append(candidate.method)
            value = candidate.predicted if candidate.joint is None else candidate.joint.value
            places[key] = value if math.isfinite(value) else candidate.predicted
    ranked = sorted(places, key=lambda key: places[key])
    for i, key in enumerate(ranked):
        lift = 10 * (i - (len(ranked) - 1) / 2)
        text = " = ".join(WORDS.get(name, name) for name in names[key])
        ax.annotate(short(text, 48), (budget, places[ranked[len(ranked) // 2]]), xytext=(6, lift),
                    textcoords="offset points", va="center", fontsize=6.5, color=_tint(names[key][0]), zorder=6,
                    bbox={"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.6})  # fmt: skip
