"""The figure of a ModelDivergence: how the difference grows from product to product."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fpsim.analysis.studies.differences.growth import LayerDifference
from fpsim.display.figure import COLORS, DATA, QUIET, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import short

MOST_NAMES = 24  # most products that are named on the axis
SHADES = {"fprop": COLORS["E4M3"], "dgrad": COLORS["E5M2"], "wgrad": COLORS["FP16"]}


def growth_axes(rows: Sequence[LayerDifference], names: tuple[str, str], ax: Axes | None) -> Axes:
    """Draw the difference between two runs for each product into `ax` (None for new axes), and return the axes.

    Lines show the relative difference, bars the share of elements that differ. `rows`: the difference of each product.
    `names`: names of the two runs' arithmetics.
    """
    with figure_style():
        ax = axes_of(ax, 3.2)
        shares = ax.twinx()
        shares.bar(range(len(rows)), [row.differing for row in rows], color=DATA, alpha=0.16, width=0.9, zorder=1)
        shares.set_ylim(0, 1)
        shares.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        shares.set_ylabel("elements that differ (bars)")
        ax.set_zorder(shares.get_zorder() + 1)
        ax.patch.set_visible(False)
        for product, shade in SHADES.items():
            x = [i for i, row in enumerate(rows) if row.product == product and 0 < row.relative < math.inf]
            if x:
                y = [rows[i].relative for i in x]
                ax.plot(x, y, color=shade, linewidth=1.2, marker="o", markersize=3, label=product, zorder=3)
        ax.set_yscale("log")
        ax.tick_params(axis="y", which="minor", labelleft=False)
        known = [row.relative for row in rows if 0 < row.relative < math.inf]
        if known:  # whole decades, so that both ends have a label
            ax.set_ylim(10.0 ** math.floor(math.log10(min(known))), 10.0 ** (math.floor(math.log10(max(known))) + 1))
        ax.set_xlim(-0.6, len(rows) - 0.4)
        ax.set_ylabel("norm of the difference / norm")
        if len(rows) <= MOST_NAMES:
            ax.set_xticks(range(len(rows)), [short(row.layer, 18) for row in rows], rotation=60, ha="right")
        else:
            ax.set_xlabel("products, in the order of computing")
        ax.tick_params(axis="x", labelcolor=QUIET)
        plain_axes(ax, "y", left=False)
        plain_axes(shares, "", left=False)
        if len({row.product for row in rows}) > 1:
            ax.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
        ax.set_title(" and ".join(short(name, 24) for name in names), loc="left", fontsize=8)
        return ax
