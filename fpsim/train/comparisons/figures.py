"""Figures of a comparison: losses with intervals, gradients, rounding errors, loss scales and lost updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.display.figure import (
    COLORS,
    INK,
    INTEGER_COLORS,
    OTHER_COLORS,
    QUIET,
    axes_of,
    blank_figure,
    figure_style,
    plain_axes,
)
from fpsim.display.wording import power
from fpsim.train.comparisons.answer import intervals
from fpsim.train.runs import smoothed

SMOOTH = 0.9
PALETTE = (*COLORS.values(), *INTEGER_COLORS.values(), *OTHER_COLORS)
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))  # of recipes beyond the colours
FIGURES = {
    "underflow": "share of non-zero values that become zero", "saturation": "share of values beyond the range",
    "sqnr_db": "SQNR in dB",
}  # fmt: skip
FLOOR = 1e-5  # smaller shares are drawn here, on a logarithmic axis
MARGIN = 1.06  # distance between labels, relative to their height


def styles(comparison: Any) -> dict[str, dict[str, Any]]:
    """Return {recipe: keyword arguments of matplotlib's plot}: "color", "linestyle" and "linewidth" of its lines.

    comparison: a `Comparison` (training runs of several recipes). Its baseline has the colour of text; other recipes
    have colours that colour-blind readers can distinguish.
    """
    others = [name for name in comparison.recipes if name != comparison.baseline]
    drawn = {comparison.baseline: {"color": INK, "linestyle": "-", "linewidth": 1.6}}
    for i, name in enumerate(others):
        lines = DASHES[i // len(PALETTE) % len(DASHES)]
        drawn[name] = {"color": PALETTE[i % len(PALETTE)], "linestyle": lines, "linewidth": 1.2}
    return drawn


def loss_axes(comparison: Any, ax: Any = None) -> Any:
    """Draw each recipe's smoothed loss over the steps, mean and 95 % interval over seeds; return the axes.

    A loss is smoothed by the running mean m = 0.9 m + 0.1 loss, divided by the sum of its weights. comparison: a
    `Comparison` (training runs of several recipes). ax: matplotlib axes to draw on; None for the axes of a new figure.
    """
    with figure_style():
        axes = axes_of(ax, 3.6)
        curves = {
            name: np.array([smoothed(run.losses, SMOOTH) for run in runs if not run.failed])
            for name, runs in comparison.by_recipe.items()
        }
        ends = _bands(axes, comparison, curves)
        axes.set_ylabel("loss, nats")
        highest = max((float(np.max(mean[len(mean) // 8 :])) for mean in ends.values()), default=1.0)
        lowest = min((float(np.min(mean)) for mean in ends.values()), default=0.0)
        height = highest - lowest or 1.0  # of a single step
        axes.set_ylim(lowest - 0.06 * height, highest + 0.08 * height)
        _labelled(axes, comparison, {name: float(mean[-1]) for name, mean in ends.items()})
    return axes


def difference_axes(comparison: Any, ax: Any = None) -> Any:
    """Draw each recipe's smoothed loss minus the baseline's of the same seed, mean and 95 % interval; return the axes.

    Both losses are running means m = 0.9 m + 0.1 loss, each divided by the sum of its weights. comparison: a
    `Comparison` (training runs of several recipes). ax: matplotlib axes to draw on; None for the axes of a new figure.
    """
    with figure_style():
        axes = axes_of(ax, 3.6)
        base = {run.settings.seed: smoothed(run.losses, SMOOTH) for run in comparison.by_recipe[comparison.baseline]
                if not run.failed}  # fmt: skip
        curves = {}
        for name in comparison.recipes:
            pairs = [(smoothed(run.losses, SMOOTH), base[run.settings.seed]) for run in comparison.by_recipe[name]
                     if not run.failed and run.settings.seed in base]  # fmt: skip
            if pairs and name != comparison.baseline:
                curves[name] = np.array([np.subtract(a, b) for a, b in pairs])
        axes.axhline(0, color=INK, linewidth=1.2)
        ends = _bands(axes, comparison, curves)
        axes.set_ylabel(f"loss above {comparison.baseline}, nats")
        _symmetric_log(axes, ends)
        _labelled(axes, comparison, {name: float(mean[-1]) for name, mean in ends.items()})
    return axes


def _symmetric_log(axes: Any, ends: dict[str, Array]) -> None:
    """Make the y axis linear up to +-0.1 nats and logarithmic beyond, if some mean difference exceeds 0.2 nats.

    axes: matplotlib axes. ends: {recipe: mean difference at each step}. The first eighth of the steps, in which losses
    differ most, does not count.
    """
    largest = max((float(np.max(np.abs(mean[len(mean) // 8 :]))) for mean in ends.values()), default=0.0)
    if largest > 0.2:
        axes.set_yscale("symlog", linthresh=0.1, linscale=1.0)
        ticks = [sign * size for size in (0.03, 0.1, 0.3, 1, 3) for sign in (-1, 1) if size < 1.4 * largest]
        axes.set_yticks([0, *ticks], labels=["0", *(f"{tick:+g}".replace("-", "−") for tick in ticks)])
        axes.yaxis.minorticks_off()
        lowest = min(float(np.min(mean)) for mean in ends.values())
        axes.set_ylim(min(-0.04, 1.3 * lowest), largest * 1.5)


def _bands(axes: Any, comparison: Any, curves: dict[str, Array]) -> dict[str, Array]:
    """Draw each recipe's mean curve and its 95 % interval as a shaded area; return {recipe: mean at each step}.

    axes: matplotlib axes. comparison: the `Comparison` that has these recipes. curves: {recipe: array (seeds, steps)};
    recipes without seeds are left out.
    """
    drawn, means = styles(comparison), {}
    for name, values in curves.items():
        if not len(values):
            continue
        means[name], half = intervals(values)
        steps = np.arange(1, values.shape[1] + 1)
        if not np.isnan(half).any():
            color = drawn[name]["color"]
            axes.fill_between(steps, means[name] - half, means[name] + half, color=color, alpha=0.14, linewidth=0)
        axes.plot(steps, means[name], **drawn[name], zorder=3 if name == comparison.baseline else 2)
    _plain(axes)
    axes.set_xlabel("step")
    return means


def _plain(axes: Any) -> None:
    """Set the style of matplotlib axes: no frame at top and right, thin horizontal lines, whole numbers on x."""
    plain_axes(axes, "y")
    axes.margins(x=0)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # else a single step gets ticks such as 0.025


def _labelled(axes: Any, comparison: Any, ends: dict[str, float]) -> None:
    """Write each recipe's name to the right of its curve, moved up or down where names would overlap.

    axes: matplotlib axes. comparison: the `Comparison` that has these recipes. ends: {recipe: last value of its curve}.
    """
    if not ends:
        return
    drawn = styles(comparison)
    low, high = axes.get_ylim()
    place = axes.transData.transform
    bottom, top = place((0, low))[1], place((0, high))[1]
    height = 9.0 / max(axes.get_position().height * axes.figure.get_size_inches()[1] * 72, 1)  # share of the axis
    wanted = {name: (place((0, value))[1] - bottom) / (top - bottom) for name, value in ends.items()}
    names = sorted(wanted, key=lambda name: wanted[name])
    heights = spread([wanted[name] for name in names], height * MARGIN)
    for name, at in zip(names, heights, strict=True):
        axes.annotate(
            name, (1, wanted[name]), (1.04, at), xycoords="axes fraction", textcoords="axes fraction", va="center",
            fontsize=6.5, color=drawn[name]["color"], annotation_clip=False,
            arrowprops={  # from the name's left edge: from its centre, lines would cross other names
                "arrowstyle": "-", "linewidth": 0.5, "color": drawn[name]["color"], "shrinkA": 0, "shrinkB": 0,
                "relpos": (0.0, 0.5),
            },
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return ascending heights, moved as little as possible so that neighbours are at least `gap` apart.

    Example:
      >>> from fpsim.train.comparisons.figures import spread
      >>> spread([0.0, 0.25, 0.9], 0.5)
      [-0.125, 0.375, 0.9]
    """
    groups: list[tuple[float, int]] = []  # centre and number of heights of each group that must be spread
    for height in heights:
        groups.append((height, 1))
        while len(groups) > 1:
            (a, m), (b, n) = groups[-2:]
            if b - a >= gap * (m + n) / 2:
                break
            groups[-2:] = [((a * m + b * n) / (m + n), m + n)]
    return [centre + gap * (i - (count - 1) / 2) for centre, count in groups for i in range(count)]


# ---- gradients


def probe_figure(comparison: Any) -> Any:
    """Return a matplotlib figure of the relative errors of weight gradients, with a row for each recipe.

    comparison: a `Comparison`, whose attribute `probed` holds the errors that `fpsim.train.gradient_probe` measured. A
    row has a tick at the error of each layer except the output layer, "head", and a dot at the error of all these
    layers together. If a recipe has no error above 0, its row has the text "equal", or "Inf or NaN".
    """
    drawn = styles(comparison)
    names = list(dict.fromkeys(row["recipe"] for row in comparison.probed))
    with figure_style():
        figure = blank_figure(0.55 + 0.24 * len(names))
        axes = figure.subplots()
        for i, name in enumerate(names):
            rows = [row for row in comparison.probed if row["recipe"] == name and row["layer"] != "head"]
            shown = [row for row in rows if row["relative_error"] > 0]
            color = drawn[name]["color"]
            ticks = [row["relative_error"] for row in shown if row["layer"] != "all"]
            axes.plot(ticks, [i] * len(ticks), "|", color=color, markersize=8, alpha=0.6)
            dots = [row["relative_error"] for row in shown if row["layer"] == "all"]
            axes.plot(dots, [i] * len(dots), "o", color=color, markersize=4)
            if not shown:
                text = "equal" if any(row["relative_error"] == 0 for row in rows) else "Inf or NaN"
                axes.annotate(text, (0.01, i), xycoords=("axes fraction", "data"), va="center", color=QUIET, fontsize=7)
        axes.set_yticks(range(len(names)), labels=names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xscale("log")
        if not any(len(line.get_xdata()) for line in axes.lines):
            axes.set_xlim(1e-3, 1.0)  # without an error, matplotlib's limits are 0 and 1
        low, high = (math.log10(limit) for limit in axes.get_xlim())
        decades = [10.0**i for i in range(math.ceil(low), math.floor(high) + 1)]
        axes.set_xticks(decades, labels=[f"{decade:g}" for decade in decades])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("relative error of weight gradients")
        plain_axes(axes, "x", left=False)
    return figure


# ---- what products lose


def layer_figure(comparison: Any, metric: str) -> Any:
    """Return a matplotlib figure with a plot for each layer: a metric of the layer's worst operand over training steps.

    comparison: training runs of several recipes with the same seeds, as `fpsim.train.compare` returns them; each plot
    has a curve for each recipe, averaged over the seeds. metric: "underflow" (share of values that become zero),
    "saturation" (share of values beyond the range) or "sqnr_db". The worst operand has the smallest "sqnr_db", or the
    largest other metric. The output layer, "head", is drawn only if there is no other. All plots have the same axes.
    """
    worst = worst_operands(comparison, metric)
    layers = list(dict.fromkeys(layer for _, layer in worst if layer != "head"))  # which few recipes quantise
    layers = layers or list(dict.fromkeys(layer for _, layer in worst))
    columns = 2
    rows = math.ceil(len(layers) / columns)
    drawn = styles(comparison)
    with figure_style():
        figure = blank_figure(0.5 + 0.95 * rows)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, layer in zip(grid.T.flat, layers, strict=False):  # layers of a block are one below another
            for name in comparison.recipes:
                course = worst.get((name, layer))
                if course:
                    steps = sorted(course)
                    values = [course[step] for step in steps]
                    if metric != "sqnr_db":
                        values = [max(value, FLOOR) for value in values]
                    marker = "o" if len(steps) == 1 else ""
                    axes.plot(steps, values, **{**drawn[name], "linewidth": 1.0}, marker=marker, markersize=3)
            axes.set_title(layer, fontsize=7, loc="left", color=INK, pad=2)
            _plain(axes)
            axes.margins(x=0.02)
            if metric != "sqnr_db":
                axes.set_yscale("log")
                axes.set_ylim(FLOOR * 0.7, 1.6)
                axes.set_yticks([1e-5, 1e-3, 1e-1], labels=["0", "0.1 %", "10 %"])
                axes.yaxis.minorticks_off()
        for axes in grid.flat[len(layers) :]:
            axes.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("step")
    return figure


def worst_operands(comparison: Any, metric: str) -> dict[tuple[str, str], dict[int, float]]:
    """Return {(recipe, layer): {step: metric of the layer's worst operand, averaged over the seeds}}.

    comparison: a `Comparison` (training runs of several recipes). metric: "underflow", "saturation" or "sqnr_db". The
    worst operand has the smallest "sqnr_db", or the largest other metric. Operands without rounding error are left out.
    """
    picks = min if metric == "sqnr_db" else max
    seen: dict[tuple[str, str, int, int], list[float]] = {}
    for run in comparison.runs:
        for row in run.measured:
            value = row[metric]
            if not math.isnan(value) and math.isfinite(row["sqnr_db"]):
                seen.setdefault((run.recipe.name, row["layer"], row["step"], run.settings.seed), []).append(value)
    steps: dict[tuple[str, str], dict[int, list[float]]] = {}
    for (name, layer, step, _), values in seen.items():
        steps.setdefault((name, layer), {}).setdefault(step, []).append(picks(values))
    return {key: {step: float(np.mean(values)) for step, values in course.items()} for key, course in steps.items()}


# ---- loss scales, lost updates


def scale_axes(comparison: Any, ax: Any = None) -> Any:
    """Draw the loss scale at each step, and a cross at each skipped step, for all runs with a loss scale; return axes.

    comparison: a `Comparison` (training runs of several recipes). Recipes whose loss scale is always 1 are left out.
    ax: matplotlib axes to draw on; None for the axes of a new figure.
    """
    drawn = styles(comparison)
    with figure_style():
        axes = axes_of(ax, 2.6)
        ends = {}
        for name in scaled(comparison):
            for run in comparison.by_recipe[name]:
                scales = [row["scale"] for row in run.rows]
                axes.step(range(len(scales)), scales, where="post", **{**drawn[name], "linewidth": 1.0}, alpha=0.8)
                skipped = [(row["step"], row["scale"]) for row in run.rows if row["skipped"]]
                axes.plot([step for step, _ in skipped], [scale for _, scale in skipped], "x",
                          color=drawn[name]["color"], markersize=4)  # fmt: skip
                ends[name] = scales[-1]
        axes.set_yscale("log", base=2)
        axes.margins(y=0.2)
        low, high = (math.log2(limit) for limit in axes.get_ylim())
        between = range(math.ceil(low), math.floor(high) + 1)
        exponents = between[:: max(len(between) // 6, 1)]
        axes.set_yticks([2.0**i for i in exponents], labels=[power(i) for i in exponents])
        axes.yaxis.minorticks_off()
        axes.set_ylabel("loss scale")
        axes.set_xlabel("step")
        _plain(axes)
        _labelled(axes, comparison, ends)
    return axes


def lost_axes(comparison: Any, ax: Any = None) -> Any:
    """Draw the smoothed share of lost updates over the steps, mean and 95 % interval over seeds; return the axes.

    A share is smoothed by the running mean m = 0.9 m + 0.1 share, divided by the sum of its weights. Recipes that lose
    fewer than one update in a thousand are left out. A lost update is not 0, yet changes nothing. comparison: a
    `Comparison` (training runs of several recipes).
    ax: matplotlib axes to draw on; None for the axes of a new figure.
    """
    with figure_style():
        axes = axes_of(ax, 2.6)
        curves = {}
        for name in losing(comparison):
            shares = ([row["lost_updates"] for row in run.rows] for run in comparison.by_recipe[name] if not run.failed)
            curves[name] = np.array([smoothed([0.0 if math.isnan(x) else x for x in run], SMOOTH) for run in shares])
        ends = _bands(axes, comparison, curves)
        axes.set_ylabel("lost updates")
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25 %", "50 %", "75 %", "100 %"])
        _labelled(axes, comparison, {name: float(mean[-1]) for name, mean in ends.items()})
    return axes


def scaled(comparison: Any) -> list[str]:
    """Return the names of the recipes in a `Comparison` whose loss scale is not 1 in some step."""
    return [
        name
        for name, runs in comparison.by_recipe.items()
        if any(row["scale"] != 1 for run in runs for row in run.rows)
    ]


def losing(comparison: Any) -> list[str]:
    """Return the recipes in a `Comparison` that lose at least one weight update in a thousand, averaged over steps.

    A lost update is not 0, yet changes nothing.
    """
    return [row["recipe"] for row in comparison.rows() if row["lost_updates"] >= 1e-3]
