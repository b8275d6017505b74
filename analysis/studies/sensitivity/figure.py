"""The figure of a sensitivity: a row for each layer, a mark for each product and recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of, spread_of
from fpsim.display.figure import INK, QUIET, SHADES, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import short

MARKS = {"fprop": "o", "dgrad": "<", "wgrad": "s"}
MOST_LAYERS = 24  # layers that are drawn, the most harmful ones
ROOM = 0.24  # inches per layer
EDGES = 1.3  # inches above and below the layers


def sensitivity_axes(rows: Sequence[SensitivityRow], recipes: list[str], figure: str, ax: Axes | None) -> Axes:
    """Draw `rows`, a line for each layer, a mark for each product and recipe, into `ax` (None: new); return the axes.

    A mark's horizontal position is the metric `figure`, "gradient_error" or "output_error"; bars show the metric's
    standard deviation over batches. The 24 layers with the largest errors are drawn. `recipes`: names of all recipes,
    whose order gives colours.
    """
    worst: dict[str, float] = {}
    rows = [row for row in rows if figure == "gradient_error" or not math.isnan(row.output_error)]
    for row in rows:
        error = figure_of(row, figure)
        size = math.inf if math.isnan(error) else error
        worst[row.layer] = max(worst.get(row.layer, 0.0), size)
    layers = sorted(worst, key=lambda layer: -worst[layer])[:MOST_LAYERS]
    drawn = [row for row in rows if row.layer in layers]
    sizes = [error for row in drawn if 0 < (error := figure_of(row, figure)) < math.inf]
    lowest, highest = (min(sizes), max(sizes)) if sizes else (1e-3, 1.0)
    left, right = lowest / 2, highest * 2
    with figure_style():
        ax = axes_of(ax, EDGES + ROOM * len(layers))
        for row in drawn:
            _draw(ax, row, figure, layers.index(row.layer), recipes, (left, right))
        ax.set_xscale("log")
        # the usual formatter writes TeX, which these figures do not show
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_formatter(lambda value, _: "")
        ax.set_xlim(left / 1.3, right * 1.3)
        ax.set_ylim(len(layers) - 0.4, -0.6)
        ax.set_yticks(range(len(layers)), [short(layer, 28) or "(model)" for layer in layers])
        judged = "all gradients" if figure == "gradient_error" else "the outputs"
        ax.set_xlabel(f"error of {judged} with one product low\nbars: standard deviation over batches")
        plain_axes(ax, "y", left=False)
        _legend(ax, {row.product for row in drawn}, recipes)
        return ax


def _draw(
    ax: Any, row: SensitivityRow, figure: str, place: int, recipes: list[str], edges: tuple[float, float]
) -> None:  # fmt: skip
    """Draw the mark of one layer, product and recipe into `ax`; an error of 0, Inf or NaN is a hollow mark at an edge.

    `figure`: name of the metric. `place`: vertical position of the layer. `recipes`: names of all recipes, whose order
    gives colours. `edges`: the least and largest error inside the axes.
    """
    tint = SHADES[recipes.index(row.recipe) % len(SHADES)]
    shift = 0.0 if len(recipes) < 2 else 0.36 * (recipes.index(row.recipe) / (len(recipes) - 1) - 0.5)
    (left, right), error, spread = edges, figure_of(row, figure), spread_of(row, figure)
    inside = 0 < error < math.inf
    x = error if inside else left if error == 0 else right
    if inside and spread > 0:
        ends = max(left, error - spread), min(right, error + spread)
        ax.plot(ends, (place + shift, place + shift), color=tint, linewidth=1.0, alpha=0.6, zorder=2)
    ax.plot(
        x, place + shift, MARKS[row.product], color=tint, mfc=tint if inside else "white", markersize=4.5,
        mew=1.0, zorder=3,
    )  # fmt: skip


def _legend(ax: Axes, products: set[str], recipes: list[str]) -> None:
    """Draw the legend into `ax`: a mark for each of the products ("fprop", ...), a colour for each of the recipes."""
    handles = [
        ax.plot([], [], mark, color=QUIET, markersize=4.5, label=product)[0]
        for product, mark in MARKS.items()
        if product in products
    ]
    handles += [
        ax.plot([], [], color=SHADES[i % len(SHADES)], linewidth=3, label=short(name, 24))[0]
        for i, name in enumerate(recipes)
    ]
    ax.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(handles)), frameon=False,
        fontsize=7, labelcolor=INK, handletextpad=0.5, columnspacing=1.2,
    )  # fmt: skip
