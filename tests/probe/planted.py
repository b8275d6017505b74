"""Sums whose order of additions is known: trees that are planted, and arithmetics of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise as pairwise_of
from typing import Any

import numpy as np

Tree = Any  # a term, or a tuple of trees
Node = Callable[[list[Any]], Any]


def random_tree(rng: np.random.Generator, terms: Sequence[int], arity: int) -> Tree:
    """A tree over some terms: chains, strided lanes, blocks and shuffled parts, nested."""
    each = [int(k) for k in terms]
    if len(each) == 1:
        return each[0]
    parts = min(int(rng.integers(2, arity + 1)), len(each))
    style = rng.integers(4)
    if style == 0:
        return (random_tree(rng, each[: 1 - parts], arity), *each[1 - parts :])
    if style == 1:
        each = [int(k) for k in rng.permutation(each)]
    if style == 2:
        return tuple(random_tree(rng, each[i::parts], arity) for i in range(parts))
    cuts = [0, *sorted(int(k) for k in rng.choice(np.arange(1, len(each)), parts - 1, replace=False)), len(each)]
    return tuple(random_tree(rng, each[i:j], arity) for i, j in pairwise_of(cuts))


def added(tree: Tree, x: Any, node: Node) -> Any:
    """The sum of x by a tree."""
    values = list(x)
    for places in _nodes(tree, len(values)):
        values.append(node([values[place] for place in places]))
    return values[tree if isinstance(tree, int) else -1]


@lru_cache(maxsize=64)
def _nodes(tree: Tree, n: int) -> list[list[int]]:
    """The nodes of a tree over n terms, children first: the places of what each adds, terms and then earlier nodes.

    A probe calls a sum thousands of times, and to go through a tree takes longer than to add its terms.
    """
    found: list[list[int]] = []

    def place(part: Tree) -> int:
        if isinstance(part, int):
            return part
        found.append([place(each) for each in part])
        return n + len(found) - 1

    place(tree)
    return found


def chain(terms: Sequence[int]) -> Tree:
    """Terms added one after the other."""
    tree: Tree = terms[0]
    for each in terms[1:]:
        tree = (tree, each)
    return tree


def pairwise(terms: Sequence[int]) -> Tree:
    """Halves added to each other."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return (pairwise(terms[:half]), pairwise(terms[half:]))


def lanes(n: int, count: int) -> Tree:
    """Strided chains, joined one after the other."""
    return chain([chain(range(i, n, count)) for i in range(count)])


def odd_pairs(n: int) -> Tree:
    """A chain that takes two terms at a time, the odd one first."""
    return chain([k for i in range(0, n, 2) for k in (i + 1, i) if k < n])


def blocks_of_blocks(n: int) -> Tree:
    """Chains of 4 in chains of 3 blocks, joined one after the other."""
    small = [chain(range(i, min(i + 4, n))) for i in range(0, n, 4)]
    large = [chain(small[i : i + 3]) for i in range(0, len(small), 3)]
    return chain(large)


def once(dtype: Any) -> Node:
    """The exact sum of a node, rounded once."""

    def node(values: list[Any]) -> Any:
        if len(values) == 2:
            first, second = values
            return dtype(first + second)
        each = [float(x) for x in values]
        if not np.isfinite(each).all():
            return dtype(np.sum(each))
        exact = sum(map(Fraction, each))
        try:
            near = float(exact)
        except OverflowError:
            return dtype(np.copysign(np.inf, float(exact > 0) - 0.5))
        if Fraction(near) != exact:  # to odd, so that the second rounding sees that there was more
            bits = int(np.float64(near).view(np.int64))
            grows = (exact > Fraction(near)) == (near > 0)
            near = float(np.int64(bits if bits & 1 else bits + (1 if grows else -1)).view(np.float64))
        return dtype(near)

    return node


def cut(fraction_bits: int) -> Node:
    """Numbers cut toward zero below the largest exponent, added, and rounded toward zero to float32."""

    def node(values: list[Any]) -> Any:
        each = np.array([float(x) for x in values])
        if not np.isfinite(each).all():
            return np.float32(each.sum())
        if not each.any():
            return np.float32(0)
        grid = int(np.frexp(each[each != 0])[1].max()) - 1 - fraction_bits
        total = float(np.ldexp(np.trunc(np.ldexp(each, -grid)).sum(), grid))
        near = np.float32(total)
        return np.nextafter(near, np.float32(0)) if abs(float(near)) > abs(total) else near

    return node
