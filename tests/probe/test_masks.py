"""Orders are read off counts of any size: masks that count few terms at once reveal what those that count all do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import fpsim as fp
from fpsim.arrays import Array
from fpsim.probe.masks import revealed
from fpsim.probe.order import Order
from fpsim.testing import assert_bits_equal
from tests.kit.chains import chained
from tests.kit.sweeps import case, in_turn, sweep
from tests.probe.planted import Tree, blocks_of_blocks, chain, lanes, pairwise, random_tree

BF16 = ml_dtypes.bfloat16


class PlantedMasks:
    """Counts the terms of a tree that survive M and -M: below the node where these meet, those beside them are lost.

    exact: a node of three and more adds exactly, and loses only what its children with M and -M have.
    """

    def __init__(self, tree: Tree, capacity: int, exact: bool) -> None:
        self.capacity, self.exact, self.questions = capacity, exact, 0
        self.nodes: list[list[frozenset[int]]] = []
        self.all = self._visit(tree)

    def _visit(self, tree: Tree) -> frozenset[int]:
        if isinstance(tree, int):
            return frozenset([tree])
        children = [self._visit(each) for each in tree]
        self.nodes.append(children)
        return frozenset().union(*children)

    def survivors(self, first: Array, second: Array, small: Array) -> Array:
        assert small.size <= self.capacity
        self.questions += first.size
        return np.array([self._survive(int(i), int(j), small) for i, j in zip(first, second, strict=True)])

    def _survive(self, i: int, j: int, small: Array) -> int:
        children = next(node for node in self.nodes if {i, j} <= frozenset().union(*node))
        lost = [child for child in children if i in child or j in child] if self.exact else children
        hidden = frozenset().union(*lost)
        return sum(int(k) not in hidden for k in small)


TREES: dict[str, Tree] = {
    "chain": chain(range(60)), "lanes": lanes(61, 4), "pairwise": pairwise(range(64)), "one node": tuple(range(50)),
    "blocks": blocks_of_blocks(60), "odd first": chain([k for i in range(0, 60, 2) for k in (i + 1, i)]),
    "halves": (chain(range(30)), chain(range(30, 60))),
    "unlike children": (0, chain(range(1, 9)), chain(range(9, 50)), 50, 51),
}  # fmt: skip


@in_turn("capacity", [1, 2, 5, 16, 64])
@in_turn("name", TREES)
def test_an_order_is_revealed_however_few_terms_are_counted(name: str, capacity: int) -> None:
    for exact in (False, True):
        masks = PlantedMasks(TREES[name], capacity, exact)
        assert revealed(masks, sorted(masks.all)) == Order.of(TREES[name]), exact


@sweep("count", 60, 600)
def test_random_orders_are_revealed_by_few_terms_at_once(count: int) -> None:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        tree = random_tree(rng, range(int(rng.integers(2, 50))), 2 + seed % 3)
        masks = PlantedMasks(tree, int(rng.integers(1, 12)), exact=False)
        with case(seed):
            assert revealed(masks, sorted(masks.all), seed) == Order.of(tree)


def test_few_terms_at_once_take_few_more_questions() -> None:
    for tree in (chain(range(256)), (chain(range(128)), chain(range(128, 256))), pairwise(range(256))):
        questions = []
        for capacity in (256, 16):
            masks = PlantedMasks(tree, capacity, exact=False)
            revealed(masks, sorted(masks.all))
            questions.append(masks.questions)
        assert questions[1] < 5 * questions[0]


def halves_of_odd_pairs(a: Any, b: Any) -> Any:
    """Two halves of K, each a chain that takes the odd term of a pair first, in float32; the sum is cast to BF16."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    half = -(-a.shape[1] // 2)
    sums = []
    for start in (0, half):
        stop = min(start + half, a.shape[1])
        sums.append(chained(a, b, [k for i in range(start, stop, 2) for k in (i + 1, i) if k < stop]))
    return (sums[0] + sums[1]).astype(BF16)


@sweep("lengths", (924,), (924, 968, 1000, 1008, 1300))
def test_a_narrow_result_hides_no_order_of_a_thousand_terms(lengths: tuple[int, ...]) -> None:
    for k in lengths:
        with case(k):
            model = fp.probe.matmul(halves_of_odd_pairs, k, a="bf16")
            first, second = ([k for i in range(start, start + k // 2, 2) for k in (i + 1, i)] for start in (0, k // 2))
            assert model.order == Order.of((chain(first), chain(second)))
            a, b = np.random.default_rng(k).standard_normal((2, 16, k)).astype(BF16)
            assert_bits_equal(model.matmul(a, b.T), halves_of_odd_pairs(a, b.T))


def test_an_exact_sum_of_more_terms_than_the_result_counts_is_one_node() -> None:
    model = fp.probe.dot(lambda a, b: fp.dot(a, b, accumulate=fp.Exact("bf16")), 300, "bf16")
    assert model.tree == tuple(range(300))
    assert "Exact(BF16)" in model.names
