"""Orders of additions are described by their structure, and only where the words are right."""

from __future__ import annotations

from itertools import pairwise as neighbours
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.probe.order import Order
from fpsim.probe.structure import structure_of
from tests.kit.sweeps import in_turn
from tests.probe.planted import Tree, chain, lanes, odd_pairs, pairwise

BF16 = ml_dtypes.bfloat16


def even_odd(start: int, stop: int) -> Tree:
    return (chain(range(start, stop, 2)), chain(range(start + 1, stop, 2)))


def parts(*sizes: int) -> Tree:
    ends = np.cumsum([0, *sizes]).tolist()
    return chain([chain(range(start, stop)) for start, stop in neighbours(ends)])


def chain_of_steps(start: int, stop: int, size: int) -> Tree:
    tree: Tree = tuple(range(start, start + size))
    for step in range(start + size, stop, size):
        tree = (tree, *range(step, step + size))
    return tree


STRUCTURES: dict[str, Tree] = {
    "the terms are one chain": chain(range(20)),
    "the terms are one chain from the last to the first": chain(range(19, -1, -1)),
    "the terms are one chain, the odd term of each pair first": odd_pairs(37),
    "the terms are added in pairs, level by level": pairwise(range(32)),
    "one addition takes all terms": tuple(range(12)),
    "blocks of 32 terms, added one after another; in each the even and the odd terms are chains": chain(
        [even_odd(i, i + 32) for i in range(0, 128, 32)]),
    "two halves of 64 terms; in each blocks of 16 terms, added one after another; in each the terms are one chain": (
        chain([chain(range(i, i + 16)) for i in range(0, 64, 16)]),
        chain([chain(range(i, i + 16)) for i in range(64, 128, 16)])),
    "4 chains of every 4th term, added one after another": lanes(40, 4),
    "8 chains of every 8th term, added in pairs, level by level": pairwise([chain(range(i, 40, 8)) for i in range(8)]),
    "blocks of 10 terms (the last of 4), added one after another; in each the terms are one chain": parts(
        10, 10, 10, 4),
    "parts of 16, 16, 9 and 8 terms, added one after another; in each the terms are one chain": parts(16, 16, 9, 8),
    "of the first 32 terms the even and the odd terms are chains; the last 3 are added one by one": (
        (((even_odd(0, 32), 32), 33), 34)),
    "blocks of 12 terms, added one after another; in each the terms are one chain of steps of 4 terms": chain(
        [chain_of_steps(i, i + 12, 4) for i in range(0, 48, 12)]),
    "two halves of 19 terms and 18; in each the terms are one chain": parts(19, 18),
}  # fmt: skip


@in_turn("words", STRUCTURES)
def test_a_structure_is_said(words: str) -> None:
    assert structure_of(Order.of(STRUCTURES[words])) == words


@pytest.mark.parametrize("seed", range(4))
def test_an_order_without_one_is_not_described(seed: int) -> None:
    terms = np.random.default_rng(seed).permutation(30).tolist()
    assert structure_of(Order.of(chain(terms))) is None
    assert structure_of(Order.of(((0, 1, 2), 3, 4, 5, 6))) is None
    assert structure_of(Order.of((((0, 1, 2, 3), 4), 5, 6, 7, 8))) is None
    assert structure_of(Order.of((chain(range(10)), chain([10, *range(29, 10, -1)])))) is None


def test_different_orders_have_different_words() -> None:
    said = [structure_of(Order.of(tree)) for tree in STRUCTURES.values()]
    assert len(set(said)) == len(STRUCTURES)


def test_a_model_says_its_structure() -> None:
    def amx(a: Any, b: Any) -> Any:
        """TDPBF16PS in blocks of 32 terms, and a cast."""
        a, b = a.astype(np.float32), b.astype(np.float32)
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for start in range(0, a.shape[1], 32):
            pair = [np.zeros_like(total), np.zeros_like(total)]
            for k in range(start, min(start + 32, a.shape[1])):
                pair[k % 2] = pair[k % 2] + a[:, [k]] * b[[k]]
            total = total + (pair[0] + pair[1])
        return total.astype(BF16)

    model = fp.probe.matmul(amx, 128, a="bf16", rows=8, columns=8)
    words = "Blocks of 32 terms, added one after another; in each the even and the odd terms are chains."
    assert model.explain().splitlines()[-1] == words
    assert model.structure == words[0].lower() + words[1:-1]
