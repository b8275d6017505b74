"""The mean of several ranks' gradients: rounded, added in order, and divided once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
from fpsim.train.hooks.reduction import Reduction, reduce  # noqa: E402


def mean(values: list[float], **how: Any) -> float:
    found: float = reduce([{"w": torch.tensor([x], dtype=torch.float32)} for x in values], **how)["w"].item()
    return found


def test_the_sum_goes_through_the_ranks_in_order_and_is_divided_once() -> None:
    big = 2.0**24
    assert mean([1, big, -big]) == 0
    assert mean([big, -big, 1]) == np.float32(1 / 3)
    assert mean([big, 1, 1, 1]) == big / 4
    assert mean([1, 1, 1, big], count=1) == big + 4  # 3 + 2**24 is a tie, whose even neighbour is this
    assert mean([big, 1, 1, 1], accumulate=fp.Exact(fp.FP32), count=1) == big + 4
    assert mean([1.5] * 3, accumulate=fp.Sequential(fp.E5M2), count=1) == 4  # 3 + 1.5 lies between 4 and 5


def test_gradients_are_rounded_before_they_are_added_and_to_nearest_even() -> None:
    assert mean([1 + 2**-8, 2**-9], fmt=fp.BF16, count=1) == 1 + 2**-9
    assert mean([1 + 3 * 2**-8], fmt="bf16") == 1 + 2**-6
    assert np.isinf(mean([1e5], fmt=fp.E5M2))
    assert np.isnan(mean([1e5], fmt=fp.E4M3))


@in_turn("fmt", [None, "bf16", "fp16", "e5m2", fp.Format("mine", 4, 3)])
@in_turn("accumulate", [None, fp.Pairwise(fp.BF16), fp.Exact(fp.FP64)])
def test_the_steps_are_those_of_quantize_sum_and_a_division(fmt: Any, accumulate: Any) -> None:
    x = (np.random.default_rng(0).standard_normal((3, 4, 50)) * 100).astype(np.float32)
    values = x if fmt is None else fp.quantize(x, fmt)
    total = fp.sum(values, accumulate=accumulate or fp.Sequential(fp.FP32), axis=0)
    found = reduce([{"w": torch.from_numpy(each)} for each in x], fmt, accumulate)["w"]
    assert_bits_equal(found.numpy(), total.astype(np.float32) / np.float32(3))


def test_the_default_is_float32_addition_by_the_processor() -> None:
    x = np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32)
    found = reduce([{"w": torch.from_numpy(each)} for each in x])["w"]
    assert_bits_equal(found.numpy(), ((((x[0] + x[1]) + x[2]) + x[3]) + x[4]) / np.float32(5))


loose: Any = Reduction  # for calls that type checkers would refuse too
ONE = {"w": torch.ones(2)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: reduce([]), "there must be gradients to reduce; got none."),
        (lambda: reduce([ONE, {"b": torch.ones(2)}]), r"got 'w' of None in number 1 and of \(2,\) in number 0."),
        (lambda: reduce([ONE, {"w": torch.ones(3)}]), r"got 'w' of \(3,\) in number 1 and of \(2,\) in number 0."),
        (lambda: reduce([{"w": torch.ones(2).bfloat16()}]), "gradients must be float32; got torch.bfloat16."),
        (lambda: Reduction("e4m9"), "e4m9"),
        (lambda: loose(None, "fp32"), "accumulate must be an accumulator such as .*; got 'fp32'."),
        (
            lambda: Reduction(None, fp.Sequential(fp.BF16, rounding="SR", seed=0)),
            "accumulate must round by values alone",
        ),
        (lambda: Reduction(count=0), "count must be an integer >= 1; got 0."),
    ],
)
def test_what_cannot_be_reduced_is_refused(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()
