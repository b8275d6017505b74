"""The boxes of the picture of a tree of additions: their text, how many are omitted, and their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from fpsim.display.wording import plural
from fpsim.schedules.trees.nodes import (
    Extent,
    Gathered,
    Node,
    Round,
    ScaledSum,
    Steps,
    Sum,
    extent,
    extent_of,
    in_words,
    joint,
    steps_of,
)
from fpsim.schedules.trees.tree import Tree

SLOTS = 36  # boxes side by side, at most
ROW, BAND, LEAF, LEVEL = 0.40, 0.24, 0.22, 0.18  # inches: of a sum, a rounding, the terms, a level of a butterfly


class Detail(NamedTuple):
    """The number of boxes to draw of a long row: of the first ones, and of the last ones.

    Attributes:
      steps: (number of first boxes, number of last boxes) in a row of additions of products; (0, 0) draws one box for
        the whole row.
      nodes: the same in a row of sums.
    """

    steps: tuple[int, int]
    nodes: tuple[int, int]


ALL = (1 << 30, 0)
STEPS = (ALL, (4, 1), (2, 1))
# from many boxes to few; the first that fits is drawn
DETAILS = (
    *(Detail(steps, ALL) for steps in STEPS),
    *(Detail(steps, nodes) for nodes in ((8, 2), (4, 2), (3, 1), (2, 1), (1, 1)) for steps in STEPS),
    *(Detail((0, 0), nodes) for nodes in ((4, 2), (2, 1), (1, 1))),
)
LANES = Detail((0, 0), (32, 0))  # for butterflies, which show more than the terms of a lane


@dataclass
class Box:
    """A rectangle of the picture, with the boxes inside it.

    Attributes:
      kind: "step" (an addition of products), "more" (omitted boxes), "lost" (terms that are never added), "sum",
        "round" or "scale".
      text, short: its text, and a shorter one for narrow boxes.
      node: the node of the tree, or None.
      inside: the boxes of its inputs.
      left, right: positions of its sides, in slots, each as wide as the smallest box.
      level: 0 without inner boxes, else one more than the highest level of these.
      ceiling: the box is drawn up to the top of this level: the level of the box around it minus 1, or, for the
        root box, its own level.
      tick: text on the axis below the box.
    """

    kind: str
    text: str
    node: Any = None
    inside: list[Box] = field(default_factory=list)
    left: float = 0
    right: float = 0
    level: int = 0
    tick: str = ""
    short: str = ""
    ceiling: int = 0

    @property
    def width(self) -> float:
        """Width in slots, each as wide as the smallest box."""
        return sum(box.width for box in self.inside) if self.inside else 1.0

    @property
    def middle(self) -> float:
        """Horizontal position of the middle, in slots."""
        return (self.left + self.right) / 2

    def all(self) -> Iterator[Box]:
        """Yield the box and all boxes inside it."""
        yield self
        for box in self.inside:
            yield from box.all()


def model_of(tree: Tree) -> tuple[Box, Box | None]:
    """Return (root, lost): the box of the root of a tree, and a box for the terms that are left out of its sum.

    The root box has boxes inside it, as many as fit side by side. lost is None if no terms are left out.
    """
    for detail in (LANES, *DETAILS) if _has_butterfly(tree.root) else DETAILS:
        root = _box(tree.root, detail)
        if root.width <= SLOTS:
            break
    _place(root, 0.0)
    root.ceiling = root.level
    lost = [extent_of(span) for span in tree.lost]
    return root, Box("lost", plural(sum(part.terms for part in lost), "term") + " lost",
                     tick=", ".join(map(str, lost))) if lost else None  # fmt: skip


def _has_butterfly(node: Node) -> bool:
    """Return whether a node, or its first input, or the first input of that, ..., is a butterfly of up to 32 inputs.

    A butterfly is a Sum that adds its upper half to its lower half, level by level. Up to 32 inputs are drawn one by
    one.
    """
    if not isinstance(node, Sum):
        return _has_butterfly(node.input)
    if node.order == "butterfly":
        return len(node.inputs) <= LANES.nodes[0]
    first = node.inputs[0] if node.inputs else None
    return isinstance(first, Sum) and _has_butterfly(first)


# ---- the content of boxes


def _box(node: Node, detail: Detail) -> Box:
    """Return the box of a node of the tree, with the boxes of its inputs inside it.

    detail: how many boxes to draw at the beginning and end of a long row of boxes.
    """
    if isinstance(node, Round):
        return Box("round", f"rounded to {in_words(node.fmt)}", node, [_box(node.input, detail)], short=node.fmt.name)
    if isinstance(node, ScaledSum):
        return Box("scale", f"times its scales, {node.words}", node, [_box(node.input, detail)],
                   short="scales")  # fmt: skip
    inside: list[Box] = []
    if all(isinstance(item, (Steps, Gathered)) for item in node.inputs):
        inside = _steps([item for item in node.inputs if isinstance(item, (Steps, Gathered))], detail.steps)
    elif node.order == "butterfly":
        inside = _butterfly(node, detail)
    else:
        inside = _some(node.inputs, detail.nodes, lambda item: _any(item, detail))
    words, short = _words(node)
    return Box("sum", words, node, inside or [Box("step", "no terms", tick="none")], short=short)


def _any(item: Node | Steps | Gathered, detail: Detail) -> Box:
    """Return one box for an input of a sum.

    A node gets its box, with the boxes of its inputs inside. A Steps (a run of additions) or a Gathered (one addition
    of products of terms that are not contiguous) gets a single box for all its additions. detail: how many boxes of a
    long row to draw inside a node's box.
    """
    return _steps([item], (0, 0))[0] if isinstance(item, (Steps, Gathered)) else _box(item, detail)


def _some(items: Sequence[Any], shown: tuple[int, int], make: Callable[[Any], Box]) -> list[Box]:
    """Return a box for each of the first and last items, and between them one box "8 more" for those left out.

    shown: (number of first items, number of last items) to keep. make: function from an item to its box. If only one
    item would be left out, all items get boxes.
    """
    first, last = min(shown[0], SLOTS + 1), shown[1]  # more boxes do not fit side by side
    hidden = len(items) - first - last
    if hidden <= 1:
        return [make(item) for item in items]
    return [*map(make, items[:first]), Box("more", f"{hidden} more"), *map(make, items[len(items) - last :])]


def _butterfly(node: Sum, detail: Detail) -> list[Box]:
    """Return boxes (rectangles of a picture) for the inputs of a butterfly sum, in an order that shows its additions.

    Inputs that are added to each other first are neighbours. node: the sum. It adds input l + h to each input l that
    has such a partner, then does the same with h / 2, and so on; h is half of the smallest power of two that is not
    below the number of inputs.

    detail: how many boxes to draw. A sum with more inputs than both numbers in detail.nodes together is drawn in the
    order of the inputs: as many first and last ones as these numbers say, and one box for those between.
    """
    count = len(node.inputs)
    if count > min(sum(detail.nodes), SLOTS):
        return _some(node.inputs, detail.nodes, lambda item: _any(item, detail))
    bits = max(count - 1, 0).bit_length()
    order = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(1 << bits)] if bits else [0]
    return [_any(node.inputs[i], detail) for i in order if i < count]


def _steps(runs: Sequence[Steps | Gathered], shown: tuple[int, int]) -> list[Box]:
    """Return boxes for the additions in `runs`: one for each of the first and last, and "8 more" for those between.

    shown: (number of first additions, number of last additions) with a box each; (0, 0) for one box for all together.
    """
    count = sum(run.count for run in runs)
    first, last = shown
    if shown == (0, 0) and count > 1:
        sizes = {run.terms for run in runs}
        words = f"{count} × {sizes.pop()}" if len(sizes) == 1 else f"{count} steps"
        return [Box("step", words, tick=_listed(runs))]
    if count > 256:  # no need to write them all out
        first = min(first, SLOTS + 1)
        tail: list[Any] = []
        for run in reversed(runs):
            if len(tail) < last:
                tail = [*steps_of(_tail(run, last)), *tail]
        head, tail = islice(_every(runs), first), tail[len(tail) - last :]
        return [*map(_step, head), Box("more", f"{count - first - last} more"), *map(_step, tail)]
    return _some(list(_every(runs)), shown, _step)


def _tail(run: Steps | Gathered, count: int) -> Steps | Gathered:
    """Return the last `count` additions of a run, or all if it has fewer."""
    if isinstance(run, Gathered) or run.count <= count:
        return run
    return Steps(run.start + (run.count - count) * run.stride, run.terms, count, run.stride)


def _step(spans: Any) -> Box:
    """Return the box of one addition of products; spans: the ranges of K (Span) whose products it adds."""
    terms = sum(span.terms for span in spans)
    return Box("step", str(terms), tick=_spans_text(spans))


def _spans_text(spans: Any) -> str:
    """Return text on the terms of one addition: "0..7", "0..7, 32..39", or for more spans (Span) "32 of 0..124"."""
    extents = [extent_of(span) for span in spans]
    return ", ".join(map(str, extents)) if len(extents) < 3 else str(joint(iter(extents)))


def _listed(runs: Sequence[Steps | Gathered]) -> str:
    """Return text on the terms that the additions in `runs` add: "0..31", or, with gaps, the first few and "…"."""
    whole = [extent(run) for run in runs]
    terms, start, stop = sum(x.terms for x in whole), min(x.start for x in whole), max(x.stop for x in whole)
    if terms == stop - start:
        return str(Extent(start, stop, terms))
    first = runs[0]
    if isinstance(first, Steps) and first.stride == first.terms:
        return f"{whole[0]}, …"  # runs of consecutive terms
    some = [_spans_text(spans) for spans in islice(_every(runs), 3)]
    return ", ".join(some) if len(some) < 3 else f"{some[0]}, {some[1]}, …"


def _every(runs: Sequence[Steps | Gathered]) -> Iterator[Any]:
    """Return an iterator over the additions in `runs`, each as the tuple of spans of K whose products it adds."""
    return (spans for run in runs for spans in steps_of(run))


def _words(node: Sum) -> tuple[str, str]:
    """Return (text of the box of the sum `node`, shorter text for a narrow box).

    An example is ("chain of 8 instructions", "chain").
    """
    leaves = [item for item in node.inputs if isinstance(item, (Steps, Gathered))]
    if len(leaves) == len(node.inputs):
        count = sum(leaf.count for leaf in leaves)
        if node.order == "pairwise":
            return f"{count} products, neighbours first", "pairs"
        operation = "multiply-add" if node.how.rule == "ieee" else "instruction"
        return f"chain of {plural(count, operation)}", "chain" if count > 1 else "one"
    count = len(node.inputs)
    fmt = in_words(node.how.fmt)
    then = f", rounded to {in_words(node.how.then)} each time" if node.how.then else ""
    if node.order == "butterfly":
        halves = [1 << level for level in reversed(range((count - 1).bit_length()))]
        listed = ", ".join(map(str, halves if len(halves) < 4 else [*halves[:2], "…", 1]))
        return f"{fmt} butterfly of {count}: {listed}", f"butterfly of {count}"
    return f"{fmt} total of {count}{then}", f"sum of {count}" if count > 2 else "+"


# ---- the positions of boxes


def _place(box: Box, left: float) -> None:
    """Set the positions and levels of a box and of the boxes inside it.

    left: position of the box's left side, in slots (the width of the smallest box).
    """
    box.left, x = left, left
    for inner in box.inside:
        _place(inner, x)
        x = inner.right
    box.right = x if box.inside else left + 1
    box.level = 1 + max(inner.level for inner in box.inside) if box.inside else 0
    for inner in box.inside:
        inner.ceiling = box.level - 1


def levels_of(box: Box) -> int:
    """Return the number of rows of rectangles that a box is drawn as: several for a butterfly drawn in full, else 1."""
    full = box.kind == "sum" and box.node.order == "butterfly" and len(box.inside) == len(box.node.inputs)
    return max(len(box.inside) - 1, 0).bit_length() if full else 1


def heights(root: Box) -> list[float]:
    """Return, for levels 0, 1, ... of `root`, the height of the boxes' top in inches above the picture's bottom."""
    heights = [LEAF] + [0.0] * root.level
    for box in root.all():
        if box.level:
            rows = levels_of(box)
            needed = BAND if box.kind in ("round", "scale") else ROW if rows == 1 else LEVEL * rows
            heights[box.level] = max(heights[box.level], needed)
    tops, top = [], 0.0
    for height in heights:
        top += height
        tops.append(top)
    return tops
