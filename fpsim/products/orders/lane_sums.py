"""Products by the tree of a schedule without matrix units, computed by the schedule's own faster loops."""

from __future__ import annotations

from fpsim.arrays import Array
from fpsim.formats.named import Format
from fpsim.products.lane_product import lane_product
from fpsim.schedules.trees.nodes import Node
from fpsim.schedules.trees.parts import is_coarse
from fpsim.schedules.trees.tree import Tree

Formats = tuple[Format, Format]


def lane_sums(tree: Tree, root: Node, a: Array, b: Array, formats: Formats, elements: Formats) -> Array | None:
    """Return a @ b, (M, N) float32, by the fast loops of the schedule without matrix units that a tree was made from.

    The result is None if the tree was made from no such schedule, an operand is empty, or the loops' bits could differ.

    root: the tree's last node, or the node before it if that only rounds to the result's format; the result is None if
    the schedule's order belongs to another node. a, b: codes. formats: those of the codes, such as FP32 for TF32.
    elements: those of their values, such as TF32.
    """
    order = tree.lane_order
    if order is None or order.root is not root or is_coarse(*elements) != order.coarse or 0 in a.shape + b.shape:
        return None
    if order.lanes.merge == "blocks" and order.one_column != (b.shape[1] == 1):
        return None
    return lane_product(a, b, order.lanes, order.run, *order.span, formats)
