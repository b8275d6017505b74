"""Ordinary sums are called by their arithmetic, and tensor cores by their names."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.probe.candidates import AdderCandidate, may_have, order_of
from fpsim.probe.order import Order
from fpsim.probe.plain_sums import order_in_words
from fpsim.schedules.trees.tree import tree
from tests.kit.sweeps import case, in_turn

CHAINS = "additions of rounded products in chains of 16 terms"


def by_unit(unit: str, **options: Any) -> Any:
    return partial(fp.matmul, accumulate=unit, **options)


def test_a_plain_product_is_called_by_its_arithmetic_and_what_has_it_too_comes_after() -> None:
    model = fp.probe.matmul(by_unit("cdna3_f32_f32"), 40)
    first, second, third = model.explain().split("\n")
    assert first.startswith("A product of matrices of 40 terms, seen in ")
    assert first.endswith(" calls: float32 fused multiply-adds in order.")
    assert second == "The same as FusedMultiplyAdd(FP32); cdna1_f32_f32; cdna2_f32_f32; cdna3_f32_f32."
    assert third == "An addition takes two numbers and rounds nearest even to float32."
    assert repr(model) == "Model(matmul of 40 terms: float32 fused multiply-adds in order)"


def test_chains_that_are_added_one_after_another_are_called_so() -> None:
    product = by_unit("cdna1_f32_f32", schedule=fp.schedules.cutlass_2xacc(192), strict=False)
    model = fp.probe.matmul(product, 600)
    want = "float32 fused multiply-adds in chains of 192 terms (the last of 24), added one after another"
    assert model.arithmetic == want
    assert "cdna1_f32_f32, cutlass_2xacc(192)" in model.names


@in_turn("how, words", [
    (fp.FusedMultiplyAdd("bf16"), "BF16 fused multiply-adds in order"),
    (fp.Chunked("bf16", 16, "fp32"), f"BF16 {CHAINS}, added one after another in float32"),
    (fp.Chunked("bf16", 16), f"BF16 {CHAINS}, added one after another"),
    (fp.Pairwise("bf16"), "BF16 additions of rounded products in pairs, level by level"),
    (fp.Sequential("fp32"), "float32 additions of rounded products in order"),  # below the range of float32
])  # fmt: skip
def test_accumulators_are_called_by_what_they_do(how: fp.Accumulator, words: str) -> None:
    assert fp.probe.dot(partial(fp.dot, accumulate=how), 64, "bf16").arithmetic == words


def test_products_that_need_no_rounding_join_fused_or_not() -> None:
    model = fp.probe.dot(partial(fp.dot, accumulate=fp.Sequential("fp32")), 24, "fp16")
    assert model.arithmetic == "float32 multiply-adds, fused or not, in order"
    assert model.names[:2] == ("FusedMultiplyAdd(FP32)", "Sequential(FP32)")


@in_turn("unit", ["hopper_f16_f32", "volta_f16_f32", "cdna1_f16_f32", "cdna3_bf16_f32"])
def test_a_tensor_core_is_called_by_its_name(unit: str) -> None:
    model = fp.probe.matmul(by_unit(unit), 64, a=fp.unit(unit).a.name)
    assert model.arithmetic is None
    assert f" terms that equals {model.names[0]}; " in model.explain().replace(", seen", "; seen")


@pytest.mark.parametrize(("nested", "words"), [
    (0, "in order"), (((0, 1), 2), "in order"), ((((3, 2), 1), 0), "from the last to the first"),
    (((0, 1), (2, 3)), "in pairs, level by level"),
    ((((0, 1), 2), ((3, 4), 5)), "in chains of 3 terms, added one after another"),
    (((((0, 1), 4), 3), 2), None), (((((0, 4), 3), 2), 1), None),
    (((((0, 1), 2), ((3, 4), 5)), 6), "in chains of 3 terms (the last of 1), added one after another"),
    (((0, 2), (1, 3)), None), ((0, 1, 2), None), ((((0, 1), 2), ((3, 5), 4)), None), (((0, 1), (2, (3, 4))), None),
])  # fmt: skip
def test_orders_in_words(nested: Any, words: str | None) -> None:
    assert order_in_words(Order.of(nested)) == words


def test_no_name_is_left_out_for_what_its_first_addition_takes() -> None:
    told = 0
    trees = [tree(unit, 72) for unit in float_units()]
    trees += [tree(row, 300) for row in fp.schedules.ROWS]
    trees += [AdderCandidate(how("fp32"), None, fp.FP32).tree(30, 1) for how in (fp.Sequential, fp.Pairwise, fp.Exact)]
    orders = [order_of(each) for each in trees]
    for how, order in zip(trees, orders, strict=True):
        with case(how):
            assert order is not None
            assert may_have(how, order)
    for (x, _), (_, order) in pairwise(zip(trees, orders, strict=True)):
        assert order is not None
        told += not may_have(x, order)
    assert told > 10
