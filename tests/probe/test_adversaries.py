"""Sums that look like trees of additions and are none, or have a trait that few inputs show: declined, or said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

f32, f64 = np.float32, np.float64
TINY, LARGEST = np.finfo(f32).tiny, np.finfo(f32).max
Function = Callable[..., Any]


def chained(x: Any, dtype: Any = f32) -> Any:
    total = dtype(0)
    for each in x:
        total = dtype(total + dtype(each))
    return total


def compensated(dtype: Any) -> Function:
    """Neumaier's sum: what each addition loses is added up apart, and joins at the end."""

    def fn(x: Any) -> Any:
        total = lost = dtype(0)
        for each in x:
            new = dtype(total + each)
            larger, smaller = (total, each) if abs(total) >= abs(each) else (each, total)
            lost = dtype(lost + dtype(dtype(larger - new) + smaller))
            total = new
        return dtype(total + lost)

    return fn


def by_magnitude(x: Any) -> Any:
    return chained(x[np.argsort(-np.abs(x), kind="stable")])


def nonzero_pairs(x: Any) -> Any:
    """Neighbours added to each other, zeros left out first."""
    x = x[x != 0]
    while x.size > 1:
        even = x.size // 2 * 2
        x = np.concatenate([x[0:even:2] + x[1:even:2], x[even:]])
    return x[0] if x.size else f32(0)


def positive_first(x: Any) -> Any:
    return f32(chained(x[x > 0]) + chained(x[x <= 0]))


def turned(x: Any) -> Any:
    return chained(x) if x[0] >= 0 else chained(x[::-1])


def scaled_by_largest(x: Any) -> Any:
    largest = np.abs(x).max()
    return f32(chained(x / largest) * largest) if largest > 0 and np.isfinite(largest) else chained(x)


def narrow_where_small(x: Any) -> Any:
    return f32(chained(x, np.float16)) if np.abs(x).max() < 1024 else chained(x)


def cut_where_large(x: Any) -> Any:
    """Rounds toward zero above 2^20."""
    total = f32(0)
    for each in x:
        exact = f64(total) + f64(each)
        total = f32(exact)
        if abs(exact) > 2.0**20 and abs(f64(total)) > abs(exact):
            total = np.nextafter(total, f32(0))
    return total


def dithered(x: Any) -> Any:
    """Rounds to BF16 by bits of the sum itself, up in proportion to what is left."""
    total = f32(0)
    for k, each in enumerate(x):
        bits = int(f32(total + each).view(np.uint32))
        drawn = (bits * 2654435761 + k * 40503) & 0xFFFF
        total = np.uint32((bits + drawn) & 0xFFFF0000).view(f32)
    return total


def joined_in_half(x: Any) -> Any:
    """Two halves in float32, rounded to FP16 and joined there."""
    half = x.size // 2
    return f32(np.float16(chained(x[:half])) + np.float16(chained(x[half:])))


NO_TREES: list[Function] = [
    compensated(f32), by_magnitude, nonzero_pairs, positive_first, turned, scaled_by_largest, narrow_where_small,
    cut_where_large, dithered, joined_in_half,
]  # fmt: skip


@in_turn("fn", NO_TREES)
def test_a_sum_that_is_no_tree_is_declined(fn: Function) -> None:
    with np.errstate(all="ignore"):
        model = fp.probe.sum(fn, 24)
    assert not model.found
    assert model.tree is None
    assert len(model.unknown) == 1


@pytest.mark.parametrize("n", [5, 100])
def test_a_compensated_sum_is_not_taken_for_an_exact_one(n: int) -> None:
    """Its correction holds all that is lost of most sums; only three magnitudes far apart show that it rounds."""
    assert not fp.probe.sum(compensated(f64), n, f64).found
    assert not fp.probe.sum(compensated(f32), n).found


@in_turn("turns", [lambda i, j: i % 2, lambda i, j: j >= 8])
def test_an_order_that_depends_on_the_row_or_column_is_declined(turns: Callable[[int, int], int]) -> None:
    def fn(a: Any, b: Any) -> Any:
        products = a[:, :, None] * b[None]  # (m, k, n)
        rows = [[chained(products[i, :: -1 if turns(i, j) else 1, j]) for j in range(16)] for i in range(16)]
        return np.array(rows, f32)

    model = fp.probe.matmul(fn, 6)
    assert (model.found, model.tree) == (False, None)
    assert model.unknown


def flushed(x: Any) -> Any:
    return np.where(np.abs(x) < TINY, np.copysign(f32(0), x), x)


def with_flushed_terms(x: Any) -> Any:
    """Subnormal terms are zeros; subnormal sums stay."""
    return chained(flushed(x))


def with_flushed_sums(x: Any) -> Any:
    total = f32(0)
    for each in x:
        total = f32(flushed(f32(total + each)))
    return total


def clamped(x: Any) -> Any:
    """Sums beyond the largest number stay there, infinities too."""
    total = f32(0)
    for each in x:
        total = np.clip(f32(total + each), -LARGEST, LARGEST)
    return total


def test_traits_that_few_inputs_show_are_told_or_said_to_be_unknown() -> None:
    with np.errstate(all="ignore"):
        sums, terms = fp.probe.sum(with_flushed_sums, 24), fp.probe.sum(with_flushed_terms, 24)
        large = fp.probe.sum(clamped, 24)
    assert (sums.flushes, sums.flushes_subnormals, sums.unknown) == (("sums",), True, ())
    assert (terms.flushes, terms.flushes_subnormals, terms.unknown) == (("inputs",), False, ())
    assert (large.saturates, large.unknown) == (True, ())


def test_products_that_are_rounded_first_are_told() -> None:
    def fn(a: Any, b: Any) -> Any:
        return chained([f32(x) * f32(y) for x, y in zip(a, b, strict=True)], ml_dtypes.bfloat16).astype(f32)

    def first(a: Any, b: Any) -> Any:
        return chained([ml_dtypes.bfloat16(f32(x) * f32(y)) for x, y in zip(a, b, strict=True)])

    a, b = np.random.default_rng(5).standard_normal((2, 50, 12)).astype(ml_dtypes.bfloat16)
    model = fp.probe.dot(first, 12, "bf16")
    assert_bits_equal(model.dot(a, b), np.array([first(x, y) for x, y in zip(a, b, strict=True)]))
    narrow = fp.probe.dot(fn, 12, "bf16")
    assert narrow.accumulator == fp.BF16
    assert_bits_equal(narrow.dot(a, b), np.array([fn(x, y) for x, y in zip(a, b, strict=True)]))


def test_a_sum_of_one_node_is_said_so() -> None:
    model = fp.probe.sum(lambda x: fp.sum(x, accumulate=fp.Exact("fp32")), 24)
    assert "One chain" not in model.explain()
    assert "1 term is never added: 3." in fp.probe.sum(lambda x: chained(np.delete(x, 3)), 9).explain()


def test_functions_that_return_the_same_memory_again_have_the_model_of_others() -> None:
    held: dict[tuple[int, ...], Any] = {}
    total = np.zeros((), f32)

    def product(a: Any, b: Any) -> Any:
        got = np.asarray(fp.matmul(a, b, accumulate=fp.Sequential(fp.FP32)))
        held.setdefault(got.shape, np.empty_like(got))[...] = got
        return held[got.shape]

    assert fp.probe.matmul(product, 12).names == ("Sequential(FP32)",)
    assert fp.probe.sum(lambda x: np.sum(x, out=total), 12).tree == fp.probe.sum(np.sum, 12).tree


def test_a_chain_that_begins_with_its_first_product_keeps_negative_zeros() -> None:
    def fn(a: Any, b: Any) -> Any:
        total = a[0] * b[0]
        for x, y in zip(a[1:], b[1:], strict=True):
            total = total + x * y
        return total

    model = fp.probe.dot(fn, 8)
    assert model.names == ()  # Sequential(FP32) begins with +0
    a, b = np.full(8, -0.0, f32), np.ones(8, f32)
    assert_bits_equal(model.dot(a, b), fn(a, b))
