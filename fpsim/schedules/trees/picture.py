"""The picture of a tree of additions: terms at the bottom, sums above them, coloured by their arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fpsim.display import figure as drawing
from fpsim.display.optional import Axes, load
from fpsim.formats.named import FP32
from fpsim.schedules.trees.boxes import ROW, Box, heights, levels_of, model_of
from fpsim.schedules.trees.nodes import Arithmetic, Gathered, Node, Steps, Sum
from fpsim.schedules.trees.tree import Tree

SLOT = 0.16  # inches of a slot
NARROWEST, WIDEST = drawing.WIDTH + 1.5, 7.5  # inches, of a figure
CHARACTER = 0.051  # inches, of a letter of 6.5 points
BLUE, GREEN, RED, AMBER = drawing.COLORS["E4M3"], drawing.COLORS["FP16"], drawing.COLORS["E5M2"], drawing.COLORS["E2M1"]
SHADE = 0.30  # share of colour in a box


def tree_axes(tree: Tree, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw a tree of additions into matplotlib axes.

    Args:
      tree: the tree of a sum, as `fpsim.schedules.tree` returns it.
      ax: matplotlib Axes; None for new ones.
      title: text above the tree.

    Returns:
      The Axes.
    """
    with drawing.matplotlib.rc_context(drawing.STYLE):
        root, lost = model_of(tree)
        tops = heights(root)
        slots = root.right + (1.2 if lost else 0)
        if ax is None:
            size = min(max(SLOT * slots + 1, NARROWEST), WIDEST), tops[-1] + 1.4
            ax = load("matplotlib.pyplot", "drawing").subplots(figsize=size, layout="constrained")[1]
        inches_per_slot = float(ax.get_window_extent().width / ax.figure.dpi / max(slots, 1))
        painter = _Painter(ax, tops, inches_per_slot, _colours(tree.root))
        for box in root.all():
            painter.draw(box)
        if lost:
            lost.left, lost.right = root.right + 0.2, slots
            painter.draw(lost)
        painter.finish(root, lost, title)
        return ax


def _colours(root: Node) -> dict[Arithmetic, str]:
    """Return a colour for each arithmetic in a tree: green for float32, red if rounded again, others for matrix units.

    root: the tree's last node.
    """
    colours: dict[Arithmetic, str] = {}
    others = iter([BLUE, *drawing.OTHER_COLORS])

    def visit(node: Node) -> None:
        if not isinstance(node, Sum):
            visit(node.input)
            return
        inner = [inner_node for inner_node in node.inputs if not isinstance(inner_node, (Steps, Gathered))]
        for inner_node in inner[:2] + inner[-1:]:
            visit(inner_node)
        if node.how not in colours:
            plain = node.how.rule == "ieee" and node.how.fmt == FP32
            colours[node.how] = GREEN if plain and node.how.then is None else RED if node.how.then else next(others)

    visit(root)
    return colours


def _tint(colour: str, share: float) -> tuple[float, float, float]:
    """Return a colour mixed with white, as (red, green, blue) from 0 to 1.

    colour: a matplotlib colour. share: the share of the colour, 1 for no white.
    """
    rgb = load("matplotlib.colors", "drawing").to_rgb(colour)
    red, green, blue = (1 - share * (1 - channel) for channel in rgb)
    return red, green, blue


class _Painter:
    """A painter of a tree's boxes into matplotlib axes.

    x counts slots, each as wide as the smallest box; y is in inches. tops: heights of the tops of the levels of boxes.
    slot: inches per slot. colours: the colour of each arithmetic.
    """

    def __init__(self, ax: Axes, tops: Sequence[float], slot: float, colours: dict[Arithmetic, str]) -> None:
        self.ax, self.tops, self.slot, self.colours = ax, tops, slot, colours
        self.patches = load("matplotlib.patches", "drawing")
        self.ticks: list[tuple[float, str]] = []
        self.rows: dict[float, str] = {}  # texts of rows whose boxes are too narrow for text

    def draw(self, box: Box) -> None:
        """Draw one box, without the boxes inside it."""
        bottom, top = (self.tops[box.level - 1] if box.level else 0.0), self.tops[box.ceiling]
        if box.kind == "sum":
            self._sum(box, bottom, top)
        elif box.kind == "more":
            self.ax.text(
                box.middle, (bottom + top) / 2, "···", ha="center", va="center", color=drawing.QUIET, fontsize=8
            )
            self.ticks.append((box.middle, box.text))
        elif box.kind == "lost":
            self._rectangle(box, bottom, top, "white", edge=RED, hatch="//////")
            self.ticks.append((box.middle, f"{box.tick} lost"))
        elif box.kind == "step":
            self._rectangle(box, bottom, top, _tint(drawing.DATA, 0.16))
            self._text(box, (bottom + top) / 2, [box.text], size=6)
            self.ticks.append((box.middle, box.tick))
        else:
            colour = RED if box.kind == "round" else AMBER
            self._rectangle(box, bottom, top, _tint(colour, 0.75))
            self._text(box, (bottom + top) / 2, [box.text, box.short])

    def _rectangle(self, box: Box, bottom: float, top: float, fill: Any, edge: Any = "white", hatch: str = "") -> None:
        """Draw the rectangle of a box from height bottom to height top, with a gap to its neighbours.

        fill, edge: matplotlib colours. hatch: matplotlib's pattern of lines, "" for none.
        """
        gap = 0.012 / self.slot  # between neighbours
        corner, width, height = (box.left + gap, bottom + 0.012), box.right - box.left - 2 * gap, top - bottom - 0.024
        line = 0.7 if hatch else 0
        patch = self.patches.Rectangle(
            corner, width, height, facecolor=fill, edgecolor=edge, linewidth=line, hatch=hatch
        )  # fmt: skip
        self.ax.add_patch(patch)

    def _text(self, box: Box, y: float, candidates: Sequence[str], size: float = 6.5) -> None:
        """Write the first of `candidates` that fits into a box, at height y in a font of `size` points.

        If none fits, store the first, to be written at the left end of the row.
        """
        room = (box.right - box.left) * self.slot - 0.03
        for text in candidates:
            if len(text) * CHARACTER * size / 6.5 <= room:
                self.ax.text(box.middle, y, text, ha="center", va="center", fontsize=size, color=drawing.INK)
                return
        if all(abs(y - row) > 0.01 for row in self.rows):
            self.rows[y] = candidates[0]

    def _sum(self, box: Box, bottom: float, top: float) -> None:
        """Draw the box of a sum from height bottom to height top, and the lines from its inputs."""
        colour = self.colours.get(box.node.how, GREEN)
        rows = levels_of(box)
        if rows > 1:
            self._butterfly(box, bottom, top, rows, colour)
            return
        self._rectangle(box, bottom, top, _tint(colour, SHADE))
        joins = [inner for inner in box.inside if inner.kind != "more"]
        has_rail = len(box.inside) > 1 and box.node.order == "chain"
        y = bottom + 0.10
        if has_rail:
            self._rail(box, joins, bottom, y, colour)
        top = min(top, bottom + 2 * ROW)
        of = [f"{box.short} of {box.text.split()[2]}"] if box.short == "chain" else []
        self._text(box, (y + 0.07 + top) / 2 if has_rail else (bottom + top) / 2, [box.text, *of, box.short])

    def _rail(self, box: Box, joins: Sequence[Box], bottom: float, y: float, colour: str) -> None:
        """Draw a chain's running sum as a horizontal line at height y, with a dot for each input.

        A start at +0 is an open dot. box: the box of the chain. colour: that of line and dots. joins: boxes of the
        inputs, from each of which a line leads up from height bottom.
        """
        ends = (box.inside[0].middle, box.inside[-1].middle)
        self.ax.plot(ends, (y, y), color=colour, linewidth=0.9, solid_capstyle="round", zorder=3)
        for inner in joins:
            self.ax.plot((inner.middle, inner.middle), (bottom, y), color=colour, linewidth=0.9, zorder=3)
        starts = [box.inside[0].middle] if box.node.start == "zero" else []
        added = [inner.middle for inner in joins if inner is not box.inside[0]]
        size = min(3.0, 20 * self.slot)
        self.ax.plot(added, [y] * len(added), "o", color=colour, markersize=size, markeredgewidth=0, zorder=4)
        self.ax.plot(starts, [y] * len(starts), "o", color=colour, markersize=size, markeredgewidth=0.8,
                     markerfacecolor="white", zorder=4)  # fmt: skip

    def _butterfly(self, box: Box, bottom: float, top: float, rows: int, colour: str) -> None:
        """Draw the additions of a butterfly between the heights `bottom` and `top`: a row of rectangles for each level.

        A butterfly adds the sums of lanes. At each of its levels, the upper half of the sums is added to the lower
        half; each of these additions is one rectangle. box: the Box of the butterfly's node, whose `inside` are the
        boxes of the lanes. bottom, top: inches above the bottom of the picture. rows: number of levels. colour: the
        rectangles' colour.
        """
        sides = [(inner.left, inner.right) for inner in box.inside]
        height = (top - bottom) / rows
        count = 1 << rows
        places = [int(format(i, f"0{rows}b")[::-1], 2) for i in range(count)]
        lanes = [i for i in places if i < len(box.inside)]
        for row in range(rows):
            half = count >> (row + 1)
            joined: dict[int, tuple[float, float]] = {}
            for lane, (left, right) in zip(lanes, sides, strict=True):
                low = joined.get(lane % half)
                joined[lane % half] = (left, right) if low is None else (min(low[0], left), max(low[1], right))
            lanes, sides = list(joined), list(joined.values())
            for lane, (left, right) in joined.items():
                part = Box("sum", "", left=left, right=right)
                y = bottom + row * height
                self._rectangle(part, y, y + height, _tint(colour, SHADE + 0.06 * (row % 2)))
                words = [f"lane {lane} + lane {lane + half}", f"{lane} + {lane + half}"]
                if lane == 0:
                    self.rows[y + height / 2] = f"lane l + lane l + {half}"
                self._text(part, y + height / 2, words, size=6)

    def finish(self, root: Box, lost: Box | None, title: str) -> None:
        """Set the limits, ticks, title and legend of the axes, after all boxes are drawn.

        root: the box of the tree. lost: the box of terms that are left out, or None. title: text above the picture, ""
        for none.
        """
        ax = self.ax
        ax.set_xlim(0, lost.right if lost else root.right)
        ax.set_ylim(0, self.tops[-1] + 0.03)
        ax.set_yticks(list(self.rows), list(self.rows.values()), fontsize=6.5)
        widest = max(len(text) for _, text in self.ticks) * CHARACTER
        upright = len(self.ticks) > 1 and widest > self.slot
        ax.set_xticks([x for x, _ in self.ticks], [text for _, text in self.ticks], rotation=90 if upright else 0,
                      fontsize=6)  # fmt: skip
        ax.tick_params(axis="x", length=0, pad=2, labelcolor=drawing.QUIET)
        ax.tick_params(axis="y", length=0, labelcolor=drawing.INK)
        if lost:
            ax.get_xticklabels()[-1].set_color(RED)
        ax.set_xlabel("terms of K", fontsize=7, color=drawing.QUIET)
        for spine in ax.spines.values():
            spine.set_visible(False)
        lines = self._legend(root)
        if title:
            ax.set_title(title, loc="left", fontsize=8, fontweight="bold", pad=6 + 10 * lines, linespacing=1.3)

    def _legend(self, root: Box) -> int:
        """Draw a legend of the colours in the tree with the box `root`, and return its number of lines of text."""
        kinds = {box.kind for box in root.all()}
        zeros = any(box.kind == "sum" and box.node.start == "zero" and len(box.inside) > 1 for box in root.all())
        handles = [self.patches.Patch(color=_tint(c, SHADE), label=how.words) for how, c in self.colours.items()]
        if "round" in kinds and RED not in self.colours.values():
            handles.append(self.patches.Patch(color=_tint(RED, 0.75), label="rounding of a sum"))
        if "scale" in kinds:
            handles.append(self.patches.Patch(color=_tint(AMBER, 0.75), label="scales of the block"))
        if zeros:
            line = load("matplotlib.lines", "drawing").Line2D
            handles.append(line([], [], marker="o", markersize=3, markerfacecolor="white", color=drawing.QUIET,
                                linewidth=0, label="starts at +0"))  # fmt: skip
        widest = max(len(handle.get_label()) for handle in handles) * CHARACTER + 0.3
        columns: int = max(1, min(len(handles), int(self.slot * self.ax.get_xlim()[1] / widest)))
        self.ax.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, fontsize=6.5,
            handlelength=0.9, handletextpad=0.4, columnspacing=1.2, labelspacing=0.3, borderpad=0, borderaxespad=0.4,
        )  # fmt: skip
        return -(-len(handles) // columns)
