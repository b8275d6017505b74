"""Tables of integers for trees of additions that are all float32 or all float64; the kernel `order_sums` reads them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import FP32, FP64, Format
from fpsim.products.kernels.order_sums import FUSED, PRODUCT, ROUNDED, SUM, ZERO
from fpsim.schedules.trees.nodes import Arithmetic, Gathered, Node, Steps, Sum

PLAIN = {Arithmetic("ieee", FP32): FP32, Arithmetic("ieee", FP64): FP64}
Row = tuple[int, int, int, int, int]


class OrderTable(NamedTuple):
    """The additions of a tree as a table of integers for the kernel `order_sums`.

    Attributes:
      rows: (S, 5) int64, one row for each operation: its number (ZERO, PRODUCT, ROUNDED, FUSED or SUM) and four
        operands, such as numbers of sums and terms of K; kernels/order_sums.py describes them.
      sums: number of running sums that are in memory at once.
      fmt: the format of all sums, FP32 or FP64.
      rounds: whether any product is rounded before it is added.
      fuses: whether any product is added by a fused multiply-add.
    """

    rows: Array
    sums: int
    fmt: Format
    rounds: bool
    fuses: bool


def table_of(root: Node) -> OrderTable | None:
    """Return the additions of a tree with the node `root` as a table for the kernel `order_sums`.

    The result is None unless all additions are float32 or all are float64.
    """
    rows: list[Row] = []
    fmt = PLAIN.get(root.how) if isinstance(root, Sum) else None
    if fmt is None:
        return None
    count = _add_node(root, 0, fmt, rows)
    if count is None:
        return None
    table = np.array(rows, np.int64).reshape(-1, 5)
    kinds = {int(action) for action in np.unique(table[:, 0])}
    return OrderTable(table, count, fmt, ROUNDED in kinds, FUSED in kinds)


def _add_node(node: Node, at: int, fmt: Format, rows: list[Row]) -> int | None:
    """Append to the table `rows` the operations that compute a node into running sum number `at`.

    Return 1 + the highest number of a running sum in these operations; sums with numbers above `at` hold intermediate
    results. The result is None if a sum is not plain arithmetic in `fmt`: FP32 or FP64, to nearest even, with
    subnormals and Inf. node: the node. rows: tuples of five integers.
    """
    if not isinstance(node, Sum) or PLAIN.get(node.how) != fmt or node.product not in (None, node.how):
        return None
    if node.order == "chain":
        return _chain(node, at, fmt, rows)
    return _pairs(node, at, fmt, rows) if node.order == "pairwise" else _butterfly(node, at, fmt, rows)


def _chain(node: Sum, at: int, fmt: Format, rows: list[Row]) -> int | None:
    """Append to the table `rows` the operations that compute `node`, a chain, into running sum number `at`.

    Return 1 + the highest number of a running sum in these operations. The result is None if a sum is not plain
    arithmetic in `fmt` (see `_add_node`), or if one addition takes several terms.
    """
    action, most, begun = FUSED if node.product is None else ROUNDED, at + 1, node.start == "zero"
    if begun or not node.inputs:
        rows.append((ZERO, at, 0, 0, 0))
    for item in node.inputs:
        if isinstance(item, Gathered) or (isinstance(item, Steps) and item.terms != 1):
            return None  # several terms in one addition
        if isinstance(item, Steps):
            first, count = item.start, item.count
            if not begun:
                rows.append((PRODUCT, at, first, 1, 0))
                first, count = first + item.stride, count - 1
            if count:
                rows.append((action, at, first, count, item.stride if item.count > 1 else 1))
        else:
            place = at + 1 if begun else at
            sums = _add_node(item, place, fmt, rows)
            if sums is None:
                return None
            most = max(most, sums)
            if begun:
                rows.append((SUM, at, place, 0, 0))
        begun = True
    return most


def _values(node: Sum) -> list[int | Node]:
    """List the summands of `node`, a pairwise or butterfly sum, in order: terms as indices along K, and nodes."""
    values: list[int | Node] = []
    for item in node.inputs:
        if isinstance(item, Steps):
            values += [item.start + i * item.stride for i in range(item.count)]
        elif not isinstance(item, Gathered):
            values.append(item)
    return values


def _value(value: int | Node, at: int, fmt: Format, rows: list[Row]) -> int | None:
    """Append to the table `rows` the operations that compute one summand into running sum number `at`.

    Return 1 + the highest number of a running sum in these operations; None if a sum is not plain arithmetic in `fmt`
    (see `_add_node`). value: the summand: the index along K of a term, or a node.
    """
    if isinstance(value, int):
        rows.append((PRODUCT, at, value, 1, 0))
        return at + 1
    return _add_node(value, at, fmt, rows)


def _pairs(node: Sum, at: int, fmt: Format, rows: list[Row]) -> int | None:
    """Append to the table `rows` the operations that compute `node`, a pairwise sum, into running sum number `at`.

    Return 1 + the highest number of a running sum in these operations; None if a sum is not plain arithmetic in `fmt`
    (see `_add_node`). A subtree's sum is added to its neighbour's as soon as both are computed, so that few sums are
    held at once.
    """
    most, height, values = at + 1, at, _values(node)
    if not values:
        rows.append((ZERO, at, 0, 0, 0))
    for i, value in enumerate(values):
        sums = _value(value, height, fmt, rows)
        if sums is None:
            return None
        most, height, number = max(most, sums), height + 1, i + 1
        while number % 2 == 0:
            rows.append((SUM, height - 2, height - 1, 0, 0))
            number, height = number // 2, height - 1
    for top in range(height - 1, at, -1):
        rows.append((SUM, top - 1, top, 0, 0))
    return most


def _butterfly(node: Sum, at: int, fmt: Format, rows: list[Row]) -> int | None:
    """Append to the table `rows` the operations that compute `node`, a butterfly sum, into running sum number `at`.

    A butterfly sum adds the upper half of its summands to the lower half, until one is left. Return 1 + the highest
    number of a running sum in these operations; None if a sum is not plain arithmetic in `fmt` (see `_add_node`).
    """
    values, most = _values(node), at + 1
    for i, value in enumerate(values):
        sums = _value(value, at + i, fmt, rows)
        if sums is None:
            return None
        most = max(most, sums)
    count = len(values)
    half = 1 << max(count - 1, 0).bit_length() >> 1
    while half:
        rows.extend((SUM, at + i, at + i + half, 0, 0) for i in range(min(half, max(count - half, 0))))
        count, half = min(count, half), half // 2
    if not values:
        rows.append((ZERO, at, 0, 0, 0))
    return most
