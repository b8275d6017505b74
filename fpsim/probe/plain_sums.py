"""Short names for sums by ordinary additions, for which a list of all equivalent units would be long."""

from __future__ import annotations

from itertools import accumulate, pairwise

from fpsim.probe.candidates import AdderCandidate, partial_sums
from fpsim.probe.order import Branch, Order, chained, joined
from fpsim.probe.traits import AdditionTraits
from fpsim.schedules.trees.levels import in_levels
from fpsim.schedules.trees.nodes import in_words
from fpsim.sums.accumulators import Accumulator, Chunked, FusedMultiplyAdd


def arithmetic_of(
    kind: str, order: Order | None, traits: AdditionTraits, alike: tuple[AdderCandidate, ...]
) -> str | None:
    """Return the operation and order of a model's additions as text, if they are ordinary ones; else None.

    Ordinary additions take two numbers, round their exact sum to one format, and have an order that `order_in_words`
    knows.

    Args:
      kind: "sum", "dot" or "matmul".
      order: the order of the additions; None if unknown.
      traits: the properties of the additions.
      alike: the candidates with the model's bits; if there are none, None is returned.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.probe.plain_sums import arithmetic_of
      >>> model = fp.probe.dot(lambda a, b: fp.dot(a, b, accumulate=fp.FusedMultiplyAdd("bf16")), 4, "bf16")
      >>> arithmetic_of("dot", model.order, model.traits, model.alike)
      'BF16 fused multiply-adds in order'
    """
    adds_singly = traits.terms_per_step == 1 and traits.alignment == "exact"
    if not alike or order is None or traits.accumulator is None or not adds_singly:
        return None
    goes = order_in_words(order)
    if goes is None:
        return None
    # the format in which the sums of chunks are added, if it is not that of the terms of a chunk
    outer = {adder.how.outer for adder in alike if isinstance(adder.how, Chunked) and adder.how.outer != adder.how.fmt}
    total = f" in {in_words(outer.pop())}" if len(outer) == 1 else ""
    return f"{in_words(traits.accumulator)} {_operations(kind, alike)} {goes}{total}"


def order_in_words(order: Order) -> str | None:
    """Return an order of two-operand additions as a phrase, if it has one; None for other orders.

    Phrases exist for one running sum (in order, or from the last term to the first), for pairs added level by level,
    and for running sums of equally many consecutive terms, which are added one after another.

    Example:
      >>> from fpsim.probe.order import Order
      >>> from fpsim.probe.plain_sums import order_in_words
      >>> order_in_words(Order.of((((0, 1), 2), ((3, 4), 5)))), order_in_words(Order.of(((0, 2), (1, 3))))
      ('in chains of 3 terms, added one after another', None)
    """
    if order.widest > 2:
        return None
    terms = sorted(step for step in order.program if step >= 0)
    chain = order.chain
    if order.widest == 1 or (all(x < y for x, y in pairwise(chain)) and chain):
        return "in order"
    if order.is_descending:
        return "from the last to the first"
    pairs = in_levels([Branch(k) for k in terms], "pairwise", lambda x, y: joined([x, y]))
    if order == Order.of(pairs):
        return "in pairs, level by level"
    sizes = partial_sums(order)
    first, *between, last = sizes or [0, 0]
    if len(sizes) < 2 or set(between) - {first} or last > first:
        return None
    runs = [terms[stop - size : stop] for size, stop in zip(sizes, accumulate(sizes), strict=True)]
    if order != Order.of(chained(chained(map(Branch, run)) for run in runs)):
        return None
    rest = f" (the last of {last})" if last < first else ""
    return f"in chains of {first} terms{rest}, added one after another"


def _operations(kind: str, alike: tuple[AdderCandidate, ...]) -> str:
    """Return the operation on each term as text: additions, fused multiply-adds, or additions of rounded products.

    kind: "sum", "dot" or "matmul". alike: the candidates with the model's bits; if some of them fuse multiplications
    and others do not, the text is "multiply-adds, fused or not,".
    """
    if kind == "sum":
        return "additions"
    fused = {not isinstance(adder.how, Accumulator) or isinstance(adder.how, FusedMultiplyAdd) for adder in alike}
    if len(fused) > 1:  # products that are exact in the format of the sums
        return "multiply-adds, fused or not,"
    return "fused multiply-adds" if fused.pop() else "additions of rounded products"
