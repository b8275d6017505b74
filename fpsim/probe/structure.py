"""Describes an order of additions in a clause: chains, blocks of neighbouring terms, and interleaved lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from fpsim.probe.order import Branch, Order, chained, joined
from fpsim.schedules.trees.levels import in_levels

DEEPEST = 4  # most levels of nested structures in a description
LISTED = 6  # most sizes of unequal parts in a sentence


class TermRun(NamedTuple):
    """The indices of the terms that a node of a tree of additions adds, described by four numbers.

    Attributes:
      first, last: the smallest and the largest index.
      size: the number of terms.
      step: the greatest common divisor of the distances between the indices; 0 for a single term.
    """

    first: int
    last: int
    size: int  # the number of terms
    step: int  # the greatest common divisor of the distances between them; 0 for a single term

    @property
    def stride(self) -> int:
        """Distance between neighbouring terms if it is the same for all (1 for a single term); else 0."""
        return 1 if self.size == 1 else self.step if self.last - self.first == self.step * (self.size - 1) else 0


def structure_of(order: Order) -> str | None:
    """Return an order of additions as a short clause; None if it has no simple structure.

    Example:
      >>> from fpsim.probe.order import Order
      >>> from fpsim.probe.structure import structure_of
      >>> structure_of(Order.of((((0, 2), (1, 3)), ((4, 6), (5, 7)))))
      'two halves of 4 terms; in each the terms are added by halves'
    """
    return _clause(order.branch, DEEPEST)


def _clause(branch: Branch, depth: int) -> str | None:
    """Return a clause on the order in which a branch adds its terms; None if no clause describes it.

    branch: a node of the tree of additions, which is a term or the sum of other nodes. depth: how many times the clause
    may divide terms, then parts of these, and so on, into lanes (every s-th term) or blocks (contiguous terms). With
    depth 0, only chains, single additions and regular trees of pairs have a clause.
    """
    # the terms of each node below the branch, by its id
    runs = branch.folded(lambda n: None if n.children else TermRun(n.lowest, n.lowest, 1, 0), _together)
    plain = _plain(_relative(branch, runs[id(branch)])) if runs[id(branch)].stride else None
    if plain is not None or depth == 0:
        return plain
    rest, last = _without_last(branch)
    if last:
        words = _clause(rest, depth)
        which = f"the last {last} are added one by one" if last > 1 else "the last one is added alone"
        return None if words is None else f"of the first {rest.size} terms {words}; {which}"
    for of_parts in (_lanes, _blocks):
        for parts in of_parts(branch, runs):
            words = _of_parts(branch, parts, runs, depth)
            if words is not None:
                return words
    return None


def _without_last(branch: Branch) -> tuple[Branch, int]:
    """Return (the branch without its last additions of single terms, the number of these terms).

    If these terms are not the branch's highest ones, added in ascending order, return (the branch unchanged, 0).
    """
    count, end = 0, branch
    terms: list[int] = []
    while len(end.children) == 2 and end.children[0].children and not end.children[1].children:
        terms.append(end.children[1].lowest)
        end = end.children[0]
    for term in terms:  # the last added one first
        if term != branch.lowest + branch.size - 1 - count:
            return branch, 0
        count += 1
    return end, count


def _together(parts: list[TermRun]) -> TermRun:
    """Return the TermRun of all terms of several disjoint runs."""
    first = min(x.first for x in parts)
    step = gcd(*(x.first - first for x in parts), *(x.step for x in parts))
    return TermRun(first, max(x.last for x in parts), sum(x.size for x in parts), step)


def _relative(branch: Branch, run: TermRun) -> Order:
    """Return the order of a branch, with its terms renumbered 0, 1, 2, ...; run: its terms, which are evenly spaced."""
    program = Order.of(branch).program
    return Order([step if step < 0 else (step - run.first) // run.stride for step in program])


def _plain(order: Order) -> str | None:
    """Return the clause for an order that is one chain, one addition or a regular tree of pairs; None for others."""
    n, chain = order.terms, order.chain
    if n == 1:
        return "there is one term"
    if order.widest == n > 2:
        return "one addition takes all terms"
    if chain and all(x < y for x, y in pairwise(chain)):
        first, *others = [-step for step in order.program if step < 0]
        if order.widest == 2:
            return "the terms are one chain"
        if all(count == first + 1 for count in others[:-1]) and others[-1] <= first + 1:
            return f"the terms are one chain of steps of {first} terms"
    if order.widest > 2:
        return None
    if order.is_descending:
        return "the terms are one chain from the last to the first"
    if n > 2 and order == Order.of(chained(Branch(k) for i in range(0, n, 2) for k in (i + 1, i) if k < n)):
        return "the terms are one chain, the odd term of each pair first"
    joins = _joins(order)
    return None if joins is None else f"the terms are added {joins}"


def _joins(order: Order) -> str | None:
    """Return a phrase for the order of adding parts 0, 1, ..., such as "by halves"; None if it is unusual.

    With two parts the order is clear, and the phrase is "".
    """
    n, chain = order.terms, order.chain
    if n == 2:
        return ""
    if order.widest > 2:
        return "at once" if order.widest == n else None
    if chain and all(x < y for x, y in pairwise(chain)):
        return "one after another"
    if order.is_descending:
        return "one after another from the last"
    for kind, words in (("pairwise", "in pairs, level by level"), ("butterfly", "by halves")):
        if order == Order.of(in_levels(list(map(Branch, range(n))), kind, lambda x, y: joined([x, y]))):
            return words
    return None


# ---- parts


def _path(branch: Branch) -> Iterator[Branch]:
    """Yield the sums below a branch that contain its term with the smallest index, from the smallest sum up."""
    nodes = []
    while branch.children:
        branch = next(child for child in branch.children if child.lowest == branch.lowest)
        nodes.append(branch)
    yield from nodes[-2::-1]


def _lanes(branch: Branch, runs: dict[int, TermRun]) -> Iterator[list[Branch]]:
    """Yield divisions of a branch into lanes: nodes that each add every s-th of its terms.

    runs: the terms of each node, by its id.
    """
    whole = runs[id(branch)]
    for node in _path(branch):
        stride = runs[id(node)].stride
        lanes = stride // whole.stride if whole.stride else 0
        if lanes > 1 and runs[id(node)].size == -(-whole.size // lanes):

            def is_lane(run: TermRun, stride: int = stride) -> bool:
                ends = run.last + stride > whole.last and run.first - stride < whole.first
                return run.stride in (stride, 1) and ends

            parts = _cut(branch, runs, is_lane)
            if parts is not None and len(parts) == lanes:
                yield parts


def _blocks(branch: Branch, runs: dict[int, TermRun]) -> Iterator[list[Branch]]:
    """Yield divisions of a branch into nodes of contiguous terms: of equal size, or added one after another.

    runs: the terms of each node, by its id.
    """
    whole, in_turn = runs[id(branch)], _in_turn(branch, runs)
    if len(in_turn) > 2:
        yield in_turn
    for node in _path(branch):
        size = runs[id(node)].size
        if runs[id(node)].stride != whole.stride:
            continue

        def is_block(run: TermRun, size: int = size) -> bool:
            starts = (run.first - whole.first) // (whole.stride or 1) % size == 0
            side_by_side = run.stride == whole.stride or run.size == 1
            return starts and side_by_side and (run.size == size or (run.last == whole.last and run.size < size))

        parts = _cut(branch, runs, is_block)
        if parts is not None:
            yield parts
    if len(in_turn) == 2:
        yield in_turn


def _in_turn(branch: Branch, runs: dict[int, TermRun]) -> list[Branch]:
    """Return the nodes of contiguous terms that a branch adds one after another, first to last; [] if there are none.

    A node's terms count as contiguous if they are as far apart as the terms of the whole branch. runs: the terms of
    each node, by its id.
    """
    later, node = [], branch
    while len(node.children) == 2 and min(child.size for child in node.children) > 1:
        later.append(node.children[1])
        node = node.children[0]
    parts = [node, *reversed(later)]
    return parts if later and all(runs[id(part)].stride == runs[id(branch)].stride for part in parts) else []


def _cut(branch: Branch, runs: dict[int, TermRun], is_part: Callable[[TermRun], bool]) -> list[Branch] | None:
    """Return the uppermost nodes below a branch that fulfil a condition, by ascending terms; None if a term is in none.

    is_part: the condition, a function of a node's TermRun (the indices of its terms). runs: {id(node): its TermRun}.
    """
    parts, stack = [], list(branch.children)
    while stack:
        node = stack.pop()
        if is_part(runs[id(node)]):
            parts.append(node)
        elif node.children:
            stack.extend(node.children)
        else:
            return None
    return sorted(parts, key=lambda part: part.lowest)


def _of_parts(branch: Branch, parts: list[Branch], runs: dict[int, TermRun], depth: int) -> str | None:
    """Return the clause for a branch that is divided into parts of one structure; None if their structures differ.

    parts: nodes below the branch, by ascending terms. runs: the terms of each node, by its id. depth: how many times
    the clause may divide terms, as in `_clause`.
    """
    if any(runs[id(part)].stride == 0 for part in parts):
        return None
    places = {id(part): place for place, part in enumerate(parts)}
    # the upper part of the tree, in which each part is a term
    upper = branch.folded(lambda n: Branch(places[id(n)]) if id(n) in places else None, joined)[id(branch)]
    joins = _joins(Order.of(upper))
    sizes = [part.size for part in parts]
    shapes = {_relative(part, runs[id(part)]) for part in parts if part.size == sizes[0]}
    even = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
    inner = {_clause(part, depth - 1) for part in parts} if len(shapes) > 1 or not even else {
        _clause(parts[0], depth - 1)}  # fmt: skip
    if joins is None or None in inner or len(inner) > 1:
        return None
    clause = str(inner.pop())
    how = f", added {joins}" if joins else ""
    if runs[id(parts[0])].stride != runs[id(branch)].stride:
        count = len(parts)
        if clause != "the terms are one chain":
            return f"{count} lanes of every {count}th term{how}; in each {clause}"
        chains = "the even and the odd terms are chains" if count == 2 else f"{count} chains of every {count}th term"
        return f"{chains}{how}"
    if len(parts) == 2 and 0 <= sizes[0] - sizes[1] <= 1:
        return f"two halves of {sizes[0]} terms{'' if sizes[0] == sizes[1] else f' and {sizes[1]}'}; in each {clause}"
    if even:
        last = f" (the last of {sizes[-1]})" if sizes[-1] < sizes[0] else ""
        return f"blocks of {sizes[0]} terms{last}{how}; in each {clause}"
    if len(sizes) > LISTED:
        return None
    return f"parts of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} terms{how}; in each {clause}"
