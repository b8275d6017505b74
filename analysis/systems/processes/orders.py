"""Orders in which collectives add the ranks' contributions, and a search for orders that reproduce a result's bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from fpsim.analysis.systems.collectives.orders import Hops, distances, halves, rotated
from fpsim.analysis.systems.collectives.orders import Order as Nested
from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.display.wording import plural
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32

Order = Callable[[Array], Array]  # (ranks, n) float32 -> (n,) float32
IN_ORDER = "the order of the ranks"
BEFORE = {"after": "", "before": "divided first, ", "multiplied": "multiplied by 1/N first, "}


class ExplainedMean(NamedTuple):
    """The orders of additions over ranks that reproduce the bits of a mean.

    Attributes:
      orders: name of an order -> number of elements that this order reproduces and no earlier one in the dict does.
      unexplained: number of elements that no order reproduces.
      divided: where the mean divides by the number of ranks: "after" the additions, "before" them, or "multiplied":
        contributions are multiplied by the rounded inverse before they are added.
    """

    orders: dict[str, int]
    unexplained: int
    divided: str = "after"

    def __str__(self) -> str:
        """Return a clause on the order in which the ranks' contributions were added.

        Example:
          >>> from fpsim.analysis.systems.processes.orders import ExplainedMean
          >>> print(ExplainedMean({"the order of the ranks": 12}, 0))
          added in the order of the ranks
        """
        if not self.orders:
            return "added in no order that was tried"
        names = list(self.orders)
        words = f"added in {names[0]}"
        if len(names) > 1 and not any(name.startswith("pairs") for name in names):
            words = "added around a ring, from another rank in each part of the array"
        elif len(names) > 1:
            words = f"added in an order that depends on the element's index: {', '.join(names)}"
        more = f"; {plural(self.unexplained, 'element')} in no order that was tried" if self.unexplained else ""
        return BEFORE[self.divided] + words + more


def orders_of(ranks: int, fmt: Format = FP32) -> dict[str, Order]:
    """Return the orders of addition that `explained` tries, as name -> function that adds in this order.

    A function maps contributions (ranks, n) to sums (n,) float32, and rounds every addition to `fmt`. The orders are
    that of the ranks, rings in both directions from each rank and, for 4, 8, 16, ... ranks, trees whose pairs are
    neighbours or half of the ranks apart. Orders that always have the same bits as an earlier one are left out.

    Example:
      >>> from fpsim.analysis.systems.processes.orders import orders_of
      >>> list(orders_of(2))
      ['the order of the ranks']
      >>> sorted(orders_of(4))[-2:]
      ['pairs of neighbours', 'the order of the ranks']
    """
    forward = list(range(ranks))
    chains = {IN_ORDER: Hops(forward)}
    for first in forward:
        chains[f"a ring from rank {first} upward"] = rotated(forward, first)
        chains[f"a ring from rank {first} downward"] = Hops((first - i) % ranks for i in forward)
    orders: dict[str, Nested] = {}
    known = set[tuple[object, ...]]()
    for name, chain in chains.items():
        key = (frozenset(chain[:2]), *chain[2:])  # an addition is the same both ways round
        if key not in known:
            known.add(key)
            orders[name] = chain
    if ranks > 2 and ranks & (ranks - 1) == 0:
        orders["pairs of neighbours"] = halves(0, ranks)
        orders["pairs half the ranks apart"] = distances(forward)
    return {name: partial(_added, order, fmt=fmt) for name, order in orders.items()}


def explained(contributions: Array, mean: Array, fmt: Format = FP32) -> ExplainedMean:
    """Find orders of addition that together reproduce the bits of as many elements of a mean as possible.

    The search runs for each way to divide by the number of ranks (`ExplainedMean.divided`). The result is the way that
    reproduces most elements; of ways with equally many, the one with the fewest orders.

    Args:
      contributions: (ranks, n) float32, the contribution of each rank, which is rounded to `fmt` before the additions.
      mean: (n,) float32, the mean to explain.
      fmt: the format in which contributions are sent, and to which sums are rounded.

    Example:
      >>> import numpy as np
      >>> from fpsim.analysis.systems.processes.orders import explained
      >>> x = np.float32([[1, 1], [2**24, 1], [-(2**24), 1], [0, 1]])
      >>> print(explained(x, np.float32([0.25, 1])))
      added in a ring from rank 0 downward
    """
    ranks = len(contributions)
    tried = []
    factors = {"after": contributions, "before": contributions / np.float32(ranks),
               "multiplied": contributions * np.float32(1 / ranks)}  # fmt: skip
    for divided, parts in factors.items():
        terms = parts if fmt == FP32 else quantize(parts, fmt)
        fits = {}
        for name, order in orders_of(ranks, fmt).items():
            sums = order(terms)
            result = sums / np.float32(ranks) if divided == "after" else sums
            result = result if fmt == FP32 else quantize(result, fmt)
            fits[name] = result.view(np.uint32) == mean.view(np.uint32)
        tried.append(_fewest(fits, divided))
    return min(tried, key=lambda way: (way.unexplained, len(way.orders)))


def _fewest(fits: dict[str, Array], divided: str) -> ExplainedMean:
    """Return the orders that a greedy search chooses: each time the one that reproduces most of the remaining elements.

    fits: name of an order -> (n,) bool, True where the order reproduces an element of the mean. divided: "after",
    "before" or "multiplied", which the result stores (see `ExplainedMean.divided`).
    """
    open_elements = np.ones_like(next(iter(fits.values())))
    chosen: dict[str, int] = {}
    while open_elements.any():
        name, fit = max(fits.items(), key=lambda pair: int((pair[1] & open_elements).sum()))
        count = int((fit & open_elements).sum())
        if not count:
            break
        chosen[name] = count
        open_elements &= ~fit
    return ExplainedMean(chosen, int(open_elements.sum()), divided)


def _added(order: Nested, x: Array, fmt: Format) -> Array:
    """Return the sums (n,) of contributions x (ranks, n), added in this order, each addition rounded to `fmt`."""
    if isinstance(order, int):
        return np.asarray(x[order])
    total = _added(order[0], x, fmt)
    for operand in order[1:]:
        with np.errstate(over="ignore", invalid="ignore"):
            total = total + _added(operand, x, fmt)
        total = total if fmt == FP32 else np.asarray(quantize(total, fmt))
    return total
