"""Finds the order of a sum's additions: M and -M hide every term that is added to either before they cancel.

With M at term i, -M at term j and a small number at other terms, the terms below the node that adds i and j are lost,
and the result counts the other terms. FPRev (Xie et al., arXiv:2411.00442) reads binary and fused trees off these
counts; this module also finds nodes that add several numbers exactly, and sets no more small numbers than the result
can count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fpsim.arrays import Array
from fpsim.probe.order import Branch, Order, joined

FEW = 3  # up to so many terms, the children of a node are checked one by one
PAIRS = 40  # up to so many terms, all pairs are tried; of more terms, neighbours and random pairs


class NoOrderError(Exception):
    """Raised for counts of surviving terms that no order of additions can produce."""


class Masks(Protocol):
    """Protocol of a counter of the small terms that survive in sums with a huge M and -M, such as `Counter`.

    Attributes:
      capacity: number of small terms that can be nonzero at once.
    """

    capacity: int  # number of small terms that can be nonzero at once

    def survivors(self, first: Array, second: Array, small: Array) -> Array:
        """Return for each pair of terms (first[p], second[p]) how many of the terms `small` count in the sum.

        All arguments are int64 indices of terms. The terms `small` have one small value; a huge M is at the first term
        of the pair and -M at the second. Rounding removes terms that are added to either before these cancel.
        """


def revealed(masks: Masks, terms: Sequence[int], seed: int = 0) -> Order:
    """Return the order of additions, found by counting the small terms that survive in sums with a huge M and -M.

    Args:
      masks: the counter of surviving terms.
      terms: indices of the terms that are included in the sum.
      seed: the seed of the random terms at which the search places M.

    Raises:
      NoOrderError: no order of additions gives these counts.
    """
    search = _TreeSearch(masks, np.random.default_rng(seed))
    return Order.of(search.tree(np.array(sorted(terms), np.int64), 0))


class _TreeSearch:
    """The recursive search for a tree of additions: a huge M stays at one term, the pivot; -M moves over the others.

    Small terms that are added to M or to -M before M and -M cancel are lost: rounding removes them. The result counts
    the other small terms. Terms are named by their indices.

    Args:
      masks: the counter of surviving terms.
      rng: the source of random numbers, which chooses some pivots and samples of terms.
    """

    def __init__(self, masks: Masks, rng: np.random.Generator) -> None:
        self.masks, self.rng = masks, rng

    def tree(self, terms: Array, depth: int) -> Branch:
        """Return the branch of the tree that adds the given terms, before other terms are added to their sum.

        If one node adds these terms together with others, the branch has only these terms.

        Args:
          terms: int64, indices of the terms, ascending.
          depth: the depth of the recursion, by which pivots are chosen.

        Raises:
          NoOrderError: no tree gives the counts of lost terms.
        """
        if terms.size == 1:
            return Branch(int(terms[0]))
        # the deepest term of a chain is usually its first or its last one; other orders get random pivots
        place = 0 if depth % 3 == 0 else terms.size - 1 if depth % 3 == 1 else int(self.rng.integers(terms.size))
        pivot, others = int(terms[place]), np.delete(terms, place)
        done = Branch(pivot)
        base, shared = (1, np.zeros(0, np.int64))  # size of the last node's first child; its other terms
        children: list[Branch] = [done]
        for inside, members in self._classes(pivot, others, terms):
            size = inside - base
            fits = size > 0 and members.size % size == 0
            # a node adds several branches exactly, so with M and -M in two of them the terms of a third count
            if not (shared.size and fits and self._survives(pivot, int(members[0]), int(shared[0]))):
                done = joined(children)
                base, children, shared = done.size, [done], np.zeros(0, np.int64)
                size = inside - base
            if size < 1 or members.size % size:
                raise NoOrderError(f"with M at term {pivot} and -M at {int(members[0])}, {inside} terms are lost")
            children += self._children(pivot, members, size, depth)
            shared = np.concatenate([shared, members])
        return joined(children)

    def _classes(self, pivot: int, others: Array, terms: Array) -> list[tuple[int, Array]]:
        """Return pairs (count, group), one for each node that adds terms to the pivot's partial sum, lowest node first.

        Args:
          pivot: index of the term that holds the huge M.
          others, terms: int64, indices of the searched terms without and with the pivot.

        Returns:
          group: int64, indices of the terms that the node adds to that partial sum. count: number of terms that are not
            in the result with M at the pivot and -M at a term of the group, these two included. If the node adds two
            numbers, the count is the number of terms in its sum.
        """
        if terms.size > self.masks.capacity:
            parts = self._sampled(pivot, others)
            if parts is not None and self._are_nested(pivot, parts):
                return list(zip(np.cumsum([part.size for part in parts]) + 1, parts, strict=True))
        # every term is in one of these samples, so the counts of lost terms add up
        lost = sum(self._lost(pivot, others, some) for some in self._covering(terms))
        return [(int(count) + 1, others[lost == count]) for count in np.unique(lost)]

    def _sampled(self, pivot: int, members: Array) -> list[Array] | None:
        """Return `members` in groups, one for each node that adds terms to the pivot's partial sum, lowest node first.

        A group holds the members that its node adds. With -M at a member of a group, rounding must remove all members
        of lower groups; None is returned if some of these stay, as when a node adds several numbers exactly. pivot:
        index of the term that holds the huge M. members: int64, indices of terms, too many to be counted at once.
        """
        done: list[Array] = []
        waiting = [members]
        while waiting:
            part = waiting.pop()
            whole = part.size <= self.masks.capacity
            small = part if whole else np.sort(self.rng.choice(part, self.masks.capacity, replace=False))
            split = self._split(pivot, part, small)
            alone = whole  # True once one node is known to add the whole group to the pivot
            if split is not None and len(split) == 1 and not whole:
                small = self._not_below(pivot, int(small[0]), part)
                alone = small.size == 0
                split = split if alone else self._split(pivot, part, small)
            if split is None or (len(split) == 1 and not alone):
                return None
            if alone:
                done += split
            else:
                waiting += split[::-1]
        return done

    def _split(self, pivot: int, members: Array, small: Array) -> list[Array] | None:
        """Divide terms into groups by how many of the terms `small` are lost with each; None if the numbers contradict.

        With a huge M at the term `pivot` and -M at one of `members`, rounding removes some of `small` from the result:
        they are lost with that member. Members of one group lose equally many. The groups are in ascending order of
        this number; it must be the number of terms of `small` in the group and in all earlier groups. All arguments are
        indices of terms.
        """
        counts = self._lost(pivot, members, small)
        parts = [members[counts == count] for count in np.unique(counts)]
        below = np.cumsum([np.isin(part, small).sum() for part in parts])
        return parts if np.array_equal(below, np.unique(counts)) else None

    def _not_below(self, pivot: int, term: int, members: Array) -> Array:
        """Return a few of `members`, at least one of which is added to the pivot's sum after `term`; empty if none is.

        All arguments and the result are indices of terms. The pivot is the term that holds the huge M.
        """
        for small in self._covering(members):
            if self._lost(pivot, np.array([term]), small)[0] < small.size:
                return small
        return np.zeros(0, np.int64)

    def _are_nested(self, pivot: int, parts: list[Array]) -> bool:
        """Return whether each group of terms is added to the pivot's partial sum after all earlier groups of a list.

        With a huge M at the pivot and -M at a term of a group, rounding must then remove the groups earlier in the
        list, and no others. The first term of each group is tested. pivot: index of a term. parts: the groups, int64
        indices of terms.
        """
        firsts = np.array([part[0] for part in parts])
        for start in range(0, firsts.size, self.masks.capacity):
            small = firsts[start : start + self.masks.capacity]
            queried = firsts[start : start + self.masks.capacity + 1]
            lost = self._lost(pivot, queried, np.sort(small))
            if not np.array_equal(lost, np.minimum(np.arange(1, queried.size + 1), small.size)):
                return False
        return True

    def _covering(self, terms: Array) -> list[Array]:
        """Divide terms into the fewest arrays of at most `masks.capacity` terms, the number that one call can count."""
        count = -(-terms.size // self.masks.capacity)
        return [terms[i::count] for i in range(count)]

    def _lost(self, pivot: int, others: Array, small: Array) -> Array:
        """Return, for each of `others`, how many terms of `small` are lost with -M at that term, int64 (others,).

        A huge M is at the term `pivot`. Rounding removes terms that are added to M or -M before these cancel. All
        arguments are indices of terms.

        Raises:
          NoOrderError: the result counts more small terms than the operands contain.
        """
        small = small[small != pivot]
        lost = small.size - self.masks.survivors(np.full(others.size, pivot), others, small)
        if (lost < np.isin(others, small)).any():
            raise NoOrderError(f"with M at term {pivot}, more terms are in the result than were set")
        return lost

    def _survives(self, i: int, j: int, k: int) -> bool:
        """Return whether term k counts in a sum with a huge M at term i and -M at term j; else rounding removes it."""
        return bool(self.masks.survivors(np.array([i]), np.array([j]), np.array([k]))[0])

    def _children(self, pivot: int, members: Array, size: int, depth: int) -> list[Branch]:
        """Return the branches, of `size` terms each, in which a node adds the terms `members` to the pivot's sum.

        If all members seem to be one branch, but its topmost addition also takes the pivot, the operands of that
        addition are returned instead. pivot: index of the term that holds the huge M. depth: the depth of the
        recursion.

        Raises:
          NoOrderError: no tree gives the counts of lost terms.
        """
        if size == 1 or (size == members.size and size > FEW and self._is_flat(pivot, members)):
            return [Branch(int(term)) for term in members]
        below = self.tree(members, depth + 1)
        if members.size == 1:
            return [below]
        if size < members.size:  # several children of one size, which are added exactly
            if any(child.size != size for child in below.children):
                raise NoOrderError(f"terms {int(members[0])} and {int(members[-1])} meet in nodes that contradict")
            return list(below.children)
        # they are children of the pivot's own node if M and -M among them hide the term at the pivot
        first, second = below.children[0].lowest, below.children[-1].lowest
        return [below] if self._survives(first, second, pivot) else list(below.children)

    def _is_flat(self, pivot: int, members: Array) -> bool:
        """Return whether one node adds the term `pivot` and all terms `members`, given as indices.

        It does if a small number at the pivot does not count in the sum with a huge M and -M at any two members. With
        more than PAIRS members, only some pairs are tested.
        """
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
