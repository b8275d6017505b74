"""The plot of ledgers: a bar of bytes for each ledger, stacked by kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fpsim.display.figure import INK, axes_of, figure_style, plain_axes
from fpsim.display.optional import Axes
from fpsim.display.wording import bytes_in_words, short

# Okabe and Ito's colours, in the order of the kinds.
SHADES = {
    "parameters": "#0072B2", "copies": "#56B4E9", "gradients": "#D55E00", "masters": "#009E73", "moments": "#E69F00",
    "scales": "#222222", "activations": "#CC79A7",
    "activation gradients": "#F0E442",
}  # fmt: skip
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
WIDEST = 28  # characters of a label


def ledger_axes(ledgers: Sequence[Any], ax: Axes | None = None) -> Axes:
    """Draw the bytes per rank of each ledger as a bar stacked by kind of tensor, with the total at its end.

    ledgers: `Ledger` objects. Return the matplotlib axes: `ax`, or new ones for None.
    """
    largest = max(ledger.rank_bytes for ledger in ledgers)
    size, unit = next((size, unit) for size, unit in UNITS if largest >= size)
    kinds = [kind for kind in SHADES if any(kind in ledger.by_kind for ledger in ledgers)]
    with figure_style():
        ax = axes_of(ax, 0.9 + 0.34 * len(ledgers))
        places = range(len(ledgers))
        starts = [0.0] * len(ledgers)
        for kind in kinds:
            lengths = [ledger.by_kind.get(kind, 0) / size for ledger in ledgers]
            ax.barh(places, lengths, left=starts, height=0.62, color=SHADES[kind], label=kind, zorder=2)
            starts = [start + length for start, length in zip(starts, lengths, strict=True)]
        for place, ledger, end in zip(places, ledgers, starts, strict=True):
            ax.annotate(
                bytes_in_words(ledger.rank_bytes), (end, place), xytext=(3, 0), textcoords="offset points", va="center",
                fontsize=7, color=INK,
            )  # fmt: skip
        ax.set_yticks(list(places), _labels(ledgers))
        ax.invert_yaxis()
        ax.set_xlim(0, 1.14 * largest / size)
        ax.set_xlabel(f"bytes of a rank ({unit})")
        plain_axes(ax, "x", left=False)
        ax.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False, fontsize=7, borderaxespad=0.2,
            handlelength=1.0, columnspacing=1.2,
        )  # fmt: skip
        return ax


def _labels(ledgers: Sequence[Any]) -> list[str]:
    """Return a label for each ledger, such as "BF16, 8 ranks": recipe, ranks, ZeRO stage, kept share of blocks.

    Except for the recipe, items that are equal in all ledgers are left out; so is an equal recipe if another item
    remains.
    """
    words = {
        "ranks": [f"{ledger.ranks} rank{'s' if ledger.ranks > 1 else ''}" for ledger in ledgers],
        "zero": [f"ZeRO-{ledger.zero}" for ledger in ledgers],
        "kept": [f"{ledger.checkpointing:.0%} kept" for ledger in ledgers],
    }
    differing = [labels for labels in words.values() if len(set(labels)) > 1]
    names = [ledger.recipe or "a recipe" for ledger in ledgers]
    parts = differing if len(set(names)) == 1 and differing else [names, *differing]
    return [short(", ".join(row), WIDEST) for row in zip(*parts, strict=True)]
