"""Reveals the order of a sum: M and -M hide every term that joins either of them before they cancel.

With M at term i, -M at term j and a small number at others, those below the node where i and j meet are lost, and the
rest is counted in the result. FPRev (Xie et al., arXiv:2411.00442) reads binary and fused trees off these counts; here
nodes that add several numbers exactly are told apart too, and no more small numbers are set than the result counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fpsim.arrays import Array
from fpsim.probe.order import Branch, Order, joined

FEW = 3  # terms up to which a node's children are told apart one by one
PAIRS = 40  # terms of which all pairs are tried; of more, neighbours and as many pairs that are drawn
TRIES = 3  # samples of which none tells terms apart, before they count as one


class NoOrderError(Exception):
    """The counts are not those of any order of additions; the text says what was seen."""


class Masks(Protocol):
    """What counts the small terms that survive."""

    capacity: int  # small terms that may be set at once

    def survivors(self, first: Array, second: Array, small: Array) -> Array:
        """How many terms of `small`, other than i and j, are in the result with M at i and -M at j, for each pair."""
        ...


def revealed(masks: Masks, terms: Sequence[int], seed: int = 0) -> Order:
    """The order in which some terms are added.

    Args:
      masks: what counts.
      terms: those that are added at all.
      seed: of the pivots that are drawn.

    Raises:
      NoOrderError: no order of additions gives these counts.
    """
    search = _TreeSearch(masks, np.random.default_rng(seed))
    return Order.of(search.tree(np.array(sorted(terms), np.int64), 0))


class _TreeSearch:
    def __init__(self, masks: Masks, rng: np.random.Generator) -> None:
        self.masks, self.rng = masks, rng

    def tree(self, terms: Array, depth: int) -> Branch:
        """The tree of terms that are added among themselves before any other joins them, or that share a node."""
        if terms.size == 1:
            return Branch(int(terms[0]))
        # the first term of a chain is its deepest one as a rule, or the last one is; any other order gets random pivots
        place = 0 if depth % 3 == 0 else terms.size - 1 if depth % 3 == 1 else int(self.rng.integers(terms.size))
        pivot, others = int(terms[place]), np.delete(terms, place)
        done = Branch(pivot)
        base, shared = 1, np.zeros(0, np.int64)  # terms below the last node's own child; those that joined there
        children: list[Branch] = [done]
        for inside, members in self._classes(pivot, others, terms):
            of_same = shared.size and self._joins_same_node(pivot, shared, members, inside - base)
            if not of_same:
                done = joined(children)
                base, children, shared = done.size, [done], np.zeros(0, np.int64)
            size = inside - base
            if size < 1 or members.size % size:
                raise NoOrderError(f"with M at term {pivot} and -M at {int(members[0])}, {inside} terms are lost")
            children += self._children(pivot, members, size, depth)
            shared = np.concatenate([shared, members])
        return joined(children)

    def _classes(self, pivot: int, others: Array, terms: Array) -> list[tuple[int, Array]]:
        """Terms by where they meet the pivot, from below: how many terms are lost with each, themselves included."""
        if terms.size <= self.masks.capacity:
            lost = self._lost(pivot, others, terms)
            return [(int(count) + 1, others[lost == count]) for count in np.unique(lost)]
        found, below = [], 1
        for members in self._sampled(pivot, others, 0):
            below += members.size
            found.append((below, members))
        return found

    def _sampled(self, pivot: int, members: Array, tries: int) -> list[Array]:
        """Classes of many terms, by the few of them that can be counted at once."""
        if members.size == 1 or tries == TRIES:
            return [members]
        whole = members.size <= self.masks.capacity
        some = members if whole else self.rng.choice(members, self.masks.capacity, replace=False)
        counts = self._lost(pivot, members, np.sort(some))
        found: list[Array] = []
        for count in np.unique(counts):
            part = members[counts == count]
            same = part.size == members.size
            found += [part] if whole else self._sampled(pivot, part, tries + 1 if same else 0)
        return found

    def _lost(self, pivot: int, others: Array, small: Array) -> Array:
        """How many of `small`, the pivot aside, are lost with each of the others, which count if among them."""
        small = small[small != pivot]
        lost = small.size - self.masks.survivors(np.full(others.size, pivot), others, small)
        if (lost < np.isin(others, small)).any():
            raise NoOrderError(f"with M at term {pivot}, more terms are in the result than were set")
        return lost

    def _survives(self, i: int, j: int, k: int) -> bool:
        """Whether term k is in the result with M at i and -M at j."""
        return bool(self.masks.survivors(np.array([i]), np.array([j]), np.array([k]))[0])

    def _joins_same_node(self, pivot: int, shared: Array, members: Array, size: int) -> bool:
        """Whether terms that meet the pivot with other counts than those before do so in one node that adds exactly."""
        if size < 1 or members.size % size:
            return False
        return self._survives(pivot, int(members[0]), int(shared[0]))

    def _children(self, pivot: int, members: Array, size: int, depth: int) -> list[Branch]:
        """The children of a node in which some terms meet the pivot, each of `size` terms or all in one fused step."""
        if size == 1 or (size == members.size and size > FEW and self._is_flat(pivot, members)):
            return [Branch(int(each)) for each in members]
        below = self.tree(members, depth + 1)
        if members.size == 1:
            return [below]
        if size < members.size:  # several children of one size, whose sum is added exactly
            if any(child.size != size for child in below.children):
                raise NoOrderError(f"terms {int(members[0])} and {int(members[-1])} meet in nodes that contradict")
            return list(below.children)
        # they are children of the pivot's own node where M and -M among them hide what stands at the pivot
        first, second = below.children[0].lowest, below.children[-1].lowest
        return [below] if self._survives(first, second, pivot) else list(below.children)

    def _is_flat(self, pivot: int, members: Array) -> bool:
        """Whether all terms are children of the pivot's own node: two of them as M and -M hide the pivot."""
        if self._survives(int(members[0]), int(members[-1]), pivot):
            return False
        if members.size <= PAIRS:
            i, j = np.triu_indices(members.size, 1)
        else:
            i, j = np.arange(members.size - 1), np.arange(1, members.size)
            drawn = self.rng.integers(0, members.size, (2, 4 * members.size))
            drawn = drawn[:, drawn[0] != drawn[1]]
            i, j = np.concatenate([i, drawn[0]]), np.concatenate([j, drawn[1]])
        return not self.masks.survivors(members[i], members[j], np.array([pivot])).any()
