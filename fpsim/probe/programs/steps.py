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
    """Two-operand additions: line into[i] takes line taken[i], or the product of term[i] where that is >= 0."""

    into: Array
    taken: Array
    term: Array
    result: int  # the line of the result

    @property
    def chain_starts(self) -> list[tuple[int, bool]]:
        """First term of each chain, and whether an unrounded product is added to it."""
        seen, starts = set[int](), []
        for x, y, term in zip(self.into.tolist(), self.taken.tolist(), self.term.tolist(), strict=True):
            starts += [(x, term >= 0)] if x not in seen and y not in seen else []
            seen |= {x, y}
        return starts


def pair_steps(order: Order, exact: frozenset[int]) -> PairSteps | None:
    """Return an order as two-operand additions; None if an addition takes two unrounded products.

    Args:
      order: the order of additions.
      exact: terms whose product is not rounded before it is added.

    Example:
      >>> from fpsim.probe.order import Order
      >>> from fpsim.probe.programs.steps import pair_steps
      >>> pair_steps(Order.of(((0, 1), 2)), frozenset()).taken.tolist()
      [1, 2]
    """
    into, taken, term = [], [], []
    stack: list[tuple[int, bool]] = []  # the line of a number, and whether it is a product that is not rounded
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
    """The steps that the kernel `tree_products` runs to add the products of an element.

    actions: (S, 3) int64, a row for each step: what to do (PUSH, JOIN, TAKE or ADD), the slot of the sum, and the term
    of K or the other sum's slot.
    """

    actions: Array
    depth: int  # number of sums in memory at once


def product_steps(order: Order, exact: frozenset[int], plain: bool) -> ProductSteps:
    """Return the steps by which `tree_products` adds in an order, with the larger branch of each addition first.

    Args:
      order: two-operand additions.
      exact: terms whose product is not rounded before it is added.
      plain: whether products are added without a rounding or a change of sign first.
    """
    steps = list[tuple[int, int, int]]()
    todo: list[Branch | tuple[int, int, int]] = [order.branch]
    places = [0]  # of the sums that branches make
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
