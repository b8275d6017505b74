"""Orders of additions of a reduction over ranks, as nested tuples of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

# An int, the rank whose contribution is meant, or one of the three tuple classes below, whose items are orders.
Order = Any


class Hops(tuple[Any, ...]):
    """An order of additions by different ranks: each rank adds one operand to the sum, rounds the sum and sends it on.

    An operand is a number r, the contribution of rank r, or another order, whose sum is added.
    """

    __slots__ = ()


class OneRank(tuple[Any, ...]):
    """An order of additions by one rank, from left to right; the rank sends the sum after the last addition.

    With an accumulation format, the rank rounds to the format of messages once, before sending. Without one, it rounds
    after each addition.
    """

    __slots__ = ()


class ExactSum(tuple[Any, ...]):
    """A tuple of ranks whose contributions one rank adds exactly, before it rounds the sum once.

    If the reduction has an accumulation format, the rank adds in that format instead, from left to right.
    """

    __slots__ = ()


def first_rank(order: Order) -> int:
    """Return the first rank of an order, nested tuples of ranks.

    Example:
      >>> from fpsim.analysis.systems.collectives.orders import Hops, first_rank
      >>> first_rank(Hops([Hops([2, 3]), 1]))
      2
    """
    while not isinstance(order, int):
        order = order[0]
    return order


def ranks_in(order: Order) -> Iterator[int]:
    """Yield the ranks of an order, nested tuples of ranks, from left to right."""
    if isinstance(order, int):
        yield order
        return
    for operand in order:
        yield from ranks_in(operand)


def substituted(order: Order, leaf: Callable[[int], Order]) -> Order:
    """Return an order, nested tuples of ranks, with each rank r replaced by leaf(r), a rank or another order."""
    if isinstance(order, int):
        return leaf(order)
    return type(order)(substituted(operand, leaf) for operand in order)


def rotated(ranks: Sequence[int], first: int) -> Hops:
    """Return the order of additions around a ring of `ranks`, which begins at ranks[first] and wraps around."""
    return Hops([*ranks[first:], *ranks[:first]])


def halves(start: int, stop: int) -> Order:
    """Return the order of a binomial tree over the ranks start .. stop - 1: neighbours first, then their sums.

    Example:
      >>> from fpsim.analysis.systems.collectives.orders import halves
      >>> halves(0, 6)
      (((0, 1), (2, 3)), (4, 5))
    """
    size = stop - start
    if size == 1:
        return start
    middle = start + (1 << (size - 1).bit_length() >> 1)
    return Hops([halves(start, middle), halves(middle, stop)])


def distances(ranks: Sequence[Order], start: int = 0, stride: int = 1) -> Order:
    """Return the order of additions of recursive halving over a power-of-two number of `ranks`.

    Ranks that are half of the list apart add first, neighbouring ranks last. An item of `ranks` may also be an order.
    start, stride: use only every `stride`-th item from index `start` on; recursive calls set these.

    Example:
      >>> from fpsim.analysis.systems.collectives.orders import distances
      >>> distances(range(4))
      ((0, 2), (1, 3))
    """
    if stride == len(ranks):
        return ranks[start]
    return Hops([distances(ranks, start, 2 * stride), distances(ranks, start + stride, 2 * stride)])


def binary_tree(ranks: int, place: Callable[[int], int]) -> Order:
    """Return the order of a binary tree of ranks, each of which adds its children's sums to its own contribution.

    The tree is that of NCCL's `ncclGetBtree` (src/graph/trees.cc): position 0 is the root, and a position's lowest set
    bit determines its parent.

    Args:
      ranks: number of ranks.
      place: function from a position in the tree to the rank there.
    """
    children: list[list[int]] = [[] for _ in range(ranks)]
    for position in range(1, ranks):
        bit = position & -position
        parent = (position ^ bit) | (bit << 1)
        children[parent if parent < ranks else position ^ bit].append(position)

    def node(position: int) -> Order:
        below = [node(child) for child in sorted(children[position])]
        return OneRank([place(position), *below]) if below else place(position)

    return node(0)
