"""Orders of additions are revealed as they were planted, or declined; never another one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.probe.order import Order
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import case, in_turn, sweep
from tests.probe.planted import Tree, added, blocks_of_blocks, chain, cut, lanes, odd_pairs, once, pairwise, random_tree

SOME = 20
DTYPES: tuple[Any, ...] = (np.float32, np.float16, ml_dtypes.bfloat16, np.float32, np.float32)


def black_box(tree: Tree, node: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    """A function that adds by a tree."""
    return partial(lambda x, tree, node: added(tree, x, node), tree=tree, node=node)


@sweep("count", SOME, 200)
def test_a_random_tree_is_revealed_or_declined_and_never_another(count: int) -> None:
    declined = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        kind, n = seed % 5, int(rng.integers(1, 30 if count == SOME else 40))
        tree = random_tree(rng, range(n), 2 if kind < 3 else 6)
        node = once(DTYPES[kind]) if kind < 4 else cut(26)
        with case(seed):
            model = fp.probe.sum(black_box(tree, node), n, DTYPES[kind])
            if model.tree is None:
                declined += 1
                assert model.unknown
                assert kind == 4, "a sum whose nodes round exact sums is found"
            else:
                assert model.order == Order.of(tree)
    assert declined <= count // 20


PLANTED = {
    "one": 0, "two": (0, 1), "sequential": chain(range(37)), "reversed": chain(range(36, -1, -1)),
    "lanes": lanes(41, 8), "odd pairs": odd_pairs(37), "blocks of blocks": blocks_of_blocks(70),
    "pairwise": pairwise(range(45)), "middle first": chain([9, *range(9), *range(10, 20)]),
}  # fmt: skip


ALL_PLANTED = list(product(PLANTED, (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)))


@sweep("some", ALL_PLANTED[::3], ALL_PLANTED)
def test_a_hand_written_order_is_revealed_in_every_dtype(some: list[tuple[str, Any]]) -> None:
    for name, dtype in some:
        with case(name, dtype.__name__):
            order = Order.of(PLANTED[name])
            model = fp.probe.sum(black_box(PLANTED[name], once(dtype)), order.terms, dtype)
            assert model.tree == order.nested
            # a sum of two terms may be rounded twice, which changes nothing
            assert order.terms < 3 or (model.accumulator == fp.format(dtype) and model.rounding == "nearest_even")


def test_sums_that_are_kept_in_another_format_are_told_by_their_bits() -> None:
    def in_float64(x: Any) -> Any:
        return np.float32(np.cumsum(x, dtype=np.float64)[-1])

    def in_float32(x: Any) -> Any:
        return np.float16(np.cumsum(x, dtype=np.float32)[-1])

    assert fp.probe.sum(in_float64, 20).accumulator == fp.FP64
    assert fp.probe.sum(in_float32, 20, np.float16).accumulator == fp.FP32


def test_orders_of_more_terms_than_a_narrow_result_counts_are_revealed() -> None:
    tree = lanes(290, 16)  # bfloat16 counts up to 256
    model = fp.probe.sum(black_box(tree, once(ml_dtypes.bfloat16)), 290, "bf16")
    assert model.order == Order.of(tree)


def test_rounding_is_told() -> None:
    for rounding in ("toward_zero", "down", "up", "nearest_away"):
        how = fp.Sequential("fp32", rounding=rounding)
        with case(rounding):
            model = fp.probe.sum(partial(fp.sum, accumulate=how), 12)
            assert model.rounding == rounding
            assert model.tree == chain(range(12))


@in_turn("how", [
    fp.Sequential("fp16", overflow="saturate"), fp.Sequential("fp32", subnormals="flush"), fp.Sequential("fp16"),
])  # fmt: skip
def test_saturation_and_the_flush_of_subnormals_are_told(how: fp.Sequential) -> None:
    model = fp.probe.sum(partial(fp.sum, accumulate=how), 12, how.fmt)
    assert (model.saturates, model.flushes_subnormals) == (how.overflow == "saturate", how.subnormals == "flush")
    assert (model.tree, model.unknown) == (chain(range(12)), ())


def kahan(x: Any) -> Any:
    total = lost = np.float32(0)
    for each in x:
        y = np.float32(each - lost)
        new = np.float32(total + y)
        lost = np.float32(np.float32(new - total) - y)
        total = new
    return total


def sorted_sum(x: Any) -> Any:
    return np.cumsum(x[np.argsort(np.abs(x), kind="stable")])[-1]


@in_turn("fn", [kahan, sorted_sum, np.var, np.max, np.prod, np.linalg.norm])
def test_what_is_no_tree_of_additions_is_declined(fn: Callable[[Any], Any]) -> None:
    with np.errstate(all="ignore"):
        model = fp.probe.sum(fn, 20)
    assert (model.tree, model.unit, model.names) == (None, None, ())
    assert model.unknown
    assert "nothing that fits" in model.explain()
    with pytest.raises(ValueError, match="this model does not run"):
        model.sum(np.ones(20, np.float32))


def test_an_exact_sum_is_one_node() -> None:
    model = fp.probe.sum(lambda x: fp.sum(x, accumulate=fp.Exact("fp32")), 24)
    assert model.names[0] == "Exact(FP32)"
    assert model.tree == tuple(range(24))
    other = fp.probe.sum(math.fsum, 24, np.float64)  # which gives +0 for -0, and raises where a sum overflows
    assert other.tree == tuple(range(24))
    assert other.terms_per_step == 24
    assert "raises" in other.unknown[0]


def test_terms_that_nobody_adds_are_named() -> None:
    model = fp.probe.sum(lambda x: x[:10].cumsum()[-1], 12)
    assert model.lost == (10, 11)
    assert "2 terms are never added: 10..11" in model.explain()
    x = np.arange(12, dtype=np.float32)
    assert model.sum(x) == 45


def test_products_that_join_unrounded_are_told_from_rounded_ones() -> None:
    def rounded(a: Any, b: Any) -> Any:
        return np.cumsum(a * b)[-1]

    def fused(a: Any, b: Any) -> Any:
        return fp.dot(a, b, accumulate=fp.FusedMultiplyAdd("fp32"))

    def doubled(a: Any, b: Any) -> Any:
        return np.float32(np.cumsum(a.astype(float) * b)[-1])

    assert "FusedMultiplyAdd(FP32)" in fp.probe.dot(fused, 30).names
    assert fp.probe.dot(doubled, 30).accumulator == fp.FP64
    model = fp.probe.dot(rounded, 30)
    assert model.accumulator == fp.FP32
    assert not [name for name in model.names if "Fused" in name]


def test_additions_with_formats_of_their_own_are_told() -> None:
    def fn(x: Any) -> Any:
        inner = [np.cumsum(x[i : i + 8])[-1] for i in range(0, 40, 8)]
        return np.float32(np.cumsum(np.array(inner, np.float64))[-1])

    model = fp.probe.sum(fn, 40)
    assert model.program is not None
    assert [fmt.name for fmt in model.program.formats].count("FP64") == 4
    assert "35 in float32, 4 in FP64" in model.explain()
    x = np.random.default_rng(5).standard_normal((50, 40)).astype(np.float32)
    assert np.array_equal(model.sum(x), [fn(row) for row in x])


def seconds_beside_the_calls(n: int) -> float:
    """Processor time that a probe of np.sum takes by itself, which has to be found in few calls."""
    in_fn = 0.0

    def fn(x: Any) -> Any:
        nonlocal in_fn
        started = time.process_time()
        result = np.sum(x)
        in_fn += time.process_time() - started
        return result

    started = time.process_time()
    model = fp.probe.sum(fn, n)
    seconds = time.process_time() - started - in_fn
    assert model.found
    assert model.calls < n * math.log2(n)
    return seconds


def test_a_long_sum_is_revealed_in_order_n_log_n_calls_and_seconds() -> None:
    fp.probe.sum(np.sum, 64)
    # n log n is 5 times, n**2 16 times; a processor that others use may slow down in between
    assert any(seconds_beside_the_calls(2048) < 10 * seconds_beside_the_calls(512) for _ in range(3))
    for order in (chain(range(100)), chain(range(99, -1, -1)), lanes(100, 7)):
        assert fp.probe.sum(black_box(order, once(np.float32)), 100).calls < 100 * math.log2(100) + 900


def test_float64_sums_of_half_products_rounded_to_half_are_told() -> None:
    def fn(a: Any, b: Any) -> Any:
        products = a.astype(np.float64) * b.astype(np.float64)
        return np.float16(added(pairwise(range(8)), products, lambda pair: pair[0] + pair[1]))

    model = fp.probe.dot(fn, 8, np.float16)  # four of the smallest terms that the result counts would survive beside M
    assert (model.tree, model.rounding, model.names) == (pairwise(range(8)), "nearest_even", ("Pairwise(FP64)",)), model


@in_turn("place", [0, -1])
def test_a_sum_of_a_single_term_of_several_is_found(place: int, tmp_path: Path) -> None:
    model = fp.probe.sum(lambda x: np.float16(x[place]), 5)
    x = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    assert_bits_equal(model.sum(x), x[:, place].astype(np.float16))
    assert (model.unknown, len(model.lost)) == ((), 4)
    model.save(tmp_path / "model.json")
    assert fp.probe.load(tmp_path / "model.json").explain() == model.explain()
    assert fp.probe.dot(lambda a, b: a[place] * b[place], 5).lost == model.lost
