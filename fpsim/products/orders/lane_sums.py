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

    Args:
      tree: the tree of additions.
      root: the tree's last node, or the node before it if that only rounds to the result's format. If it is another
        object than the node that the schedule's order belongs to, the result is None.
      a, b: (M, K) and (K, N) codes.
      formats: the formats of the codes of a and b, such as FP32 for TF32.
      elements: the formats of their values, such as TF32, which decide whether a product may underflow to -0.
    """
    order = tree.lane_order
    if order is None or order.root is not root or is_coarse(*elements) != order.coarse or 0 in a.shape + b.shape:
        return None
    if order.lanes.merge == "blocks" and order.one_column != (b.shape[1] == 1):
        return None
    return lane_product(a, b, order.lanes, order.run, *order.span, formats)
