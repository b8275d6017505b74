"""Sums with a factor, such as means, are told with the factor, and where it is rounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit import chains
from tests.kit.sweeps import case, in_turn

f32 = np.float32


def chained(x: Any, dtype: Any = f32) -> Any:
    total = dtype(0)
    for each in x:
        total = dtype(total + dtype(each))
    return total


def reciprocal(x: Any) -> Any:
    return f32(chained(x) * f32(1 / x.size))


def narrow_quotient(x: Any) -> Any:
    """A mean in float32 of BF16 terms, whose sum is cast before it is divided."""
    return ml_dtypes.bfloat16(ml_dtypes.bfloat16(chained(x)) / ml_dtypes.bfloat16(x.size))


def terms_first(x: Any) -> Any:
    return chained(x * f32(0.3))


MEANS: dict[str, tuple[int, Any, Callable[[Any], Any]]] = {
    " of 64 terms times 1/64 in an order": (64, f32, lambda x: f32(chained(x) / f32(64))),
    " of 20 terms divided by 20 in an order": (20, f32, lambda x: f32(chained(x) / f32(20))),
    " of 24 terms divided by 24 in an order": (24, np.float16, lambda x: f32(chained(x) / f32(24))),
    " of 40 terms divided by 40 in an order": (40, ml_dtypes.bfloat16, narrow_quotient),
    " of 20 terms times 0.05000000074505806 in an order": (20, f32, reciprocal),
    " of 12 terms times -2.5 in an order": (12, f32, lambda x: f32(chained(x) * f32(-2.5))),
    " of 12 terms times 3.0 in an order": (12, f32, lambda x: f32(chained(x) * f32(3))),
    " of 12 terms, each multiplied by 0.30000001192092896 first, in an order": (12, f32, terms_first),
}  # fmt: skip


@in_turn("words", MEANS)
def test_the_factor_of_a_sum_is_told(words: str) -> None:
    n, dtype, fn = MEANS[words]
    with np.errstate(all="ignore"):
        model = fp.probe.sum(fn, n, dtype)
        assert words in model.explain(), model.explain()
        assert model.order == fp.probe.sum(chained, n, dtype).order
        for scale in (1, 2.0**-9, 2.0**20 if dtype == f32 else 2.0):
            x = (np.random.default_rng(n).standard_normal((50, n)) * scale).astype(dtype)
            assert_bits_equal(model.sum(x), np.array([fn(row) for row in x]))


def test_numpys_mean_is_predicted() -> None:
    for n, dtype in ((64, f32), (20, f32), (300, f32), (33, np.float64)):
        with case(n, dtype):
            model = fp.probe.sum(np.mean, n, dtype)
            assert model.factor == 1 / n
            x = np.random.default_rng(n).standard_normal((60, n)).astype(dtype)
            assert_bits_equal(model.sum(x), np.array([np.mean(row) for row in x]))


def test_a_factor_is_said_where_the_results_reach_too_near_to_show_the_order() -> None:
    model = fp.probe.sum(np.mean, 50, np.float16)  # of which 2**-14 / 50 is no number of FP16
    assert not model.found
    assert model.unknown[0].endswith("would reveal the order; a 1 with zeros gives 0.0200042724609375")


def test_a_product_with_a_factor_is_told_and_kept(tmp_path: Path) -> None:
    def scores(a: Any, b: Any) -> Any:
        return chains.chained(a.astype(f32), b.astype(f32)) * f32(0.125)

    model = fp.probe.matmul(scores, 48, a="bf16", rows=8, columns=8)
    assert model.factor == 0.125
    assert "A product of matrices of 48 terms times 1/8 in an order" in model.explain()
    model.save(tmp_path / "model.json")
    again = fp.probe.load(tmp_path / "model.json")
    assert (again.explain(), again.factor) == (model.explain(), model.factor)
    a, b = np.random.default_rng(2).standard_normal((2, 20, 48)).astype(ml_dtypes.bfloat16)
    assert_bits_equal(again.matmul(a, b.T), scores(a, b.T))


@in_turn("fn", [np.linalg.norm, np.var, lambda x: f32(chained(x) / max(f32(1), np.abs(x).max())),
                lambda x: f32(chained(x * np.arange(1, x.size + 1, dtype=f32)))])  # fmt: skip
def test_other_factors_are_declined(fn: Callable[[Any], Any]) -> None:
    with np.errstate(all="ignore"):
        model = fp.probe.sum(fn, 12)
    assert (model.found, model.factor) == (False, None)
    assert model.unknown
