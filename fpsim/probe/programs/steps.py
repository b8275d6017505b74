"""An order of additions compiled to the steps of the loops that run it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.probe.kernels.tree_products import ADD, JOIN, PUSH, TAKE
from fpsim.probe.order import Branch, Order
from fpsim.reload import reloadable


@reloadable
class PairSteps(NamedTuple):
    """Two-operand additions for the kernel `tree_rows`: row taken[i] is added to row into[i], for each i in order.

    Row k holds term k, then the running sum that began with it.

    Attributes:
      into, taken: int64 (S,), indices of rows.
      term: int64 (S,); where term[i] >= 0, the unrounded product of that term is added instead of row taken[i].
      result: the row of the result.
    """

    into: Array
    taken: Array
    term: Array  # int64 (S,); where term[i] >= 0, the unrounded product of that term is added instead of row taken[i]
    result: int  # the row of the result


def pair_steps(order: Order, exact: frozenset[int]) -> PairSteps | None:
    """Return an order as the steps of the kernel `tree_rows`: which rows are added, one after another.

    Return None if a step would add two unrounded products, or if the sum is a single unrounded product.

    Args:
      order: the order of additions, of two operands each.
      exact: terms whose product is not rounded before it is added.

    In the example, row 1 and then row 2 are added to row 0.

    Example:
      >>> from fpsim.probe.order import Order
      >>> from fpsim.probe.programs.steps import pair_steps
      >>> pair_steps(Order.of(((0, 1), 2)), frozenset()).taken.tolist()
      [1, 2]
    """
    into, taken, term = [], [], []
    stack: list[tuple[int, bool]] = []  # the row of a number, and whether it is an unrounded product
    for step in order.program:
        if step >= 0:
            stack.append((step, step in exact))
            continue
        (x, x_exact), (y, y_exact) = stack[-2:]
        if x_exact and y_exact:
            return None
        if x_exact:
            (x, x_exact), (y, y_exact) = (y, y_exact), (x, x_exact)
        into.append(x)
        taken.append(y)
        term.append(y if y_exact else -1)
        stack[-2:] = [(x, False)]
    line, alone = stack[0]
    if alone:
        return None
    columns = [np.array(x, np.int64) for x in (into, taken, term)]
    return PairSteps(columns[0], columns[1], columns[2], line)


@reloadable
class ProductSteps(NamedTuple):
    """The steps by which the kernel `tree_products` adds the products of each element.

    actions: int64 (S, 3), each row (action, slot, other). A slot holds a running sum. PUSH starts the sum in `slot`
    with the product of term `other`, JOIN adds that product to it unrounded, TAKE adds it rounded, and ADD adds the sum
    in slot `other`. depth: number of slots.
    """

    actions: Array
    depth: int  # number of slots


def product_steps(order: Order, exact: frozenset[int], plain: bool) -> ProductSteps:
    """Return an order of two-operand additions as the steps of the kernel `tree_products`.

    Of the two operands of an addition, the one with more terms is computed first.

    Args:
      order: an order of two-operand additions.
      exact: terms whose product is not rounded before it is added.
      plain: True if the products of all terms outside `exact` can be added to a running sum directly (TAKE). False if
        they must first be narrowed or flushed, or made +0 if an operand is zero: each is then a separate sum (PUSH,
        then ADD).
    """
    steps = list[tuple[int, int, int]]()
    todo: list[Branch | tuple[int, int, int]] = [order.branch]
    places = [0]  # slots of the sums of the branches in `todo`
    while todo:
        task = todo.pop()
        if isinstance(task, tuple):
            steps.append(task)
            continue
        at = places.pop()
        if not task.children:
            steps.append((PUSH, at, task.lowest))
            continue
        second, first = sorted(task.children, key=lambda child: (child.size, child.lowest not in exact))
        joins = second.lowest in exact
        if second.size == 1 and (joins or plain):
            todo += [(JOIN if joins else TAKE, at, second.lowest), first]
            places.append(at)
        else:
            todo += [(ADD, at, at + 1), second, first]
            places += [at + 1, at]
    return ProductSteps(np.array(steps, np.int64), 1 + max(at for _, at, _ in steps))
