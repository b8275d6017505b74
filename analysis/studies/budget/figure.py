"""The picture of a budget: a bar for each product, as long as its relative error, divided by cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fpsim.analysis.studies.budget.row import BudgetRow
from fpsim.display.figure import COLORS, INK, INTEGER_COLORS, QUIET, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import short

BAR, GAP = 0.15, 0.11  # inches of a bar, and between layers
EDGES = 1.15  # inches above and below
# Part of a bar -> its colour. Squares of these parts are rarely negative, as sums include what promotion removes.
PARTS = {
    "rounding a": COLORS["E4M3"], "rounding b": INTEGER_COLORS["INT8"], "scales": COLORS["E5M2"],
    "sums": COLORS["FP16"], "cast": COLORS["BF16"], "interplay": "#b5b5b5",
    "not split": "#dedede",
}  # fmt: skip
VISIBLE = 0.003  # the legend has parts of at least this share of a bar
MEANING = {"fprop": "fprop  x wᵀ", "dgrad": "dgrad  dy w", "wgrad": "wgrad  dyᵀ x"}  # the operands a and b


def budget_axes(rows: Sequence[BudgetRow], layers: Sequence[str], title: str, ax: Axes | None) -> Axes:
    """Draw a bar for each product of a budget, divided by causes, into `ax` (None for new axes); return the axes.

    `rows`: the budget's rows. `layers`: names of the layers, from top to bottom. `title`: text above the axes.
    """
    places, y = [], 0.0
    for layer in layers:
        for row in rows:
            if row.layer == layer:
                places.append((y, row))
                y += BAR
        y += GAP
    with figure_style():
        ax = axes_of(ax, y + EDGES)
        for at, row in places:
            _draw(ax, at, row)
        _label(ax, layers, places)
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=20)
        return ax


def shares(row: BudgetRow) -> dict[str, float]:
    """Return the part of a bar that each cause gets: its squared error divided by the sum over causes (0 if that is 0).

    The keys are those of `PARTS`. A cause that reduces the error, or whose error is infinite or NaN, counts as 0. The
    cause "not split" has the share 1 if the errors of all single causes are NaN, but `joint` is not.

    Example:
      >>> from types import SimpleNamespace as Of
      >>> from fpsim.analysis.studies.budget.figure import shares
      >>> row = Of(joint=0.5, rounding_a=0.3, rounding_b=0.4, scales=0.0, sums=0.0, cast=0.0, interplay=-0.1)
      >>> {name: round(share, 2) for name, share in shares(row).items() if share}
      {'rounding a': 0.36, 'rounding b': 0.64}
    """
    values = (row.rounding_a, row.rounding_b, row.scales, row.sums, row.cast, row.interplay)
    squares = [value * value if value > 0 and math.isfinite(value) else 0.0 for value in values]
    squares.append(1.0 if all(map(math.isnan, values)) and not math.isnan(row.joint) else 0.0)
    total = math.fsum(squares) or 1.0
    return {name: square / total for name, square in zip(PARTS, squares, strict=True)}


def _draw(ax: Axes, at: float, row: BudgetRow) -> None:
    """Draw the bar of a product, `row`, into `ax` at vertical position `at`, and a mark at its inherited error if that
    is known.

    The bar ends at the product's relative error, or at 1 if that is not finite. The bar is divided in proportion to the
    shares of the causes (see `shares`). The inherited error is the one that inexact inputs cause.
    """
    length = row.joint if math.isfinite(row.joint) else 1.0
    left = 0.0
    for name, share in shares(row).items():
        ax.barh(at, share * length, BAR * 0.82, left=left, color=PARTS[name], linewidth=0)
        left += share * length
        if name == "rounding a":  # its colour is close to the next one on a light page
            ax.plot([left, left], [at - BAR * 0.41, at + BAR * 0.41], color="#ffffff", linewidth=0.8, zorder=2)
    if math.isfinite(row.inherited):
        ax.plot([row.inherited], [at], marker="d", markersize=3.5, color=INK, linewidth=0, zorder=3)


def _label(ax: Axes, layers: Sequence[str], places: Sequence[tuple[float, BudgetRow]]) -> None:
    """Write the names of products and layers to the left of their bars in `ax`, and set its limits and the legend.

    `layers`: names of the layers, from top to bottom. `places`: for each bar, its vertical position and its row.
    """
    rows = [row for _, row in places]
    ax.set_yticks([at for at, _ in places], [MEANING[row.product] for row in rows], fontsize=6, color=QUIET)
    for layer in layers:
        heights = [at for at, row in places if row.layer == layer]
        ax.annotate(
            short(layer, 22), (0, (heights[0] + heights[-1]) / 2), xycoords=("axes fraction", "data"), xytext=(-58, 0),
            textcoords="offset points", ha="right", va="center", fontsize=7, color=INK, annotation_clip=False,
        )  # fmt: skip
    ax.set_ylim(places[-1][0] + BAR, -BAR)
    ends = [value for row in rows for value in (row.joint, row.inherited) if math.isfinite(value)]
    ax.set_xlim(0, 1.04 * max([*ends, *(1.0 for row in rows if math.isinf(row.joint))], default=1.0) or 1.0)
    plain_axes(ax, "x", left=False)
    ax.set_xlabel("relative error of the product, cut by the shares of its square")
    _legend(ax, rows)


def _legend(ax: Axes, rows: Sequence[BudgetRow]) -> None:
    """Draw the legend above the bars of `ax`, with the causes that are visible in the bars of `rows`."""
    parts = [shares(row) for row in rows]
    seen = [name for name in PARTS if any(of_row[name] > VISIBLE for of_row in parts)]
    handles: list[Any] = [ax.barh(0, 0, 0, color=PARTS[name]) for name in seen]
    if any(math.isfinite(row.inherited) for row in rows):
        handles += ax.plot([], [], marker="d", markersize=3.5, color=INK, linewidth=0)
        seen.append("inherited")
    ax.legend(
        handles, seen, loc="lower right", bbox_to_anchor=(1.01, 1), ncols=len(seen), frameon=False, fontsize=6.5,
        handlelength=0.9, handletextpad=0.4, columnspacing=1.0, borderaxespad=0.2,
    )  # fmt: skip
