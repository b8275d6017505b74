"""Products added in the order of a tree that was made from a schedule without matrix units, by that schedule's loops.

Those loops are faster than the ones that serve any tree.
"""

from __future__ import annotations

from fpsim.arrays import Array
from fpsim.formats.named import Format
from fpsim.products.lane_product import lane_product
from fpsim.schedules.trees.nodes import Node
from fpsim.schedules.trees.parts import is_coarse
from fpsim.schedules.trees.tree import Tree

Formats = tuple[Format, Format]


def lane_sums(tree: Tree, root: Node, a: Array, b: Array, formats: Formats, elements: Formats) -> Array | None:
    """Return a @ b, (M, N) float32, by fast loops that add each element in lanes (partial sums); None if none applies.

    The loops apply to trees that were made from a schedule without matrix units, in which all terms are dealt to lanes.
    The result is None for other trees, if an operand is empty, or if the loops could give other bits.

    Args:
      tree: the tree of additions.
      root: the node of the tree that is to be computed. The result is None unless this is the very node that adds up
        the lanes: the tree's last node, or the node before it if the last one only rounds to the result's format.
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
