"""The gradients of a step: sums of micro-batches in a format, and means over ranks, added in order, divided once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
from fpsim.train.ranks import GradientSum, Ranks, Reduction, StepGradients, reduce  # noqa: E402


def kept_sum(fmt: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The running sum of gradients (micro-batches, ...) in a format."""
    total = GradientSum(fmt)
    for each in x:
        total.add({"w": torch.from_numpy(each)})
    return total.gradients["w"].numpy()


def test_a_sum_of_gradients_in_bf16_stays_at_256() -> None:
    ones = np.array([256] + [1] * 300, np.float32)[:, None]
    assert kept_sum("bf16", ones) == 256  # 256 + 1 lies halfway between 256 and 258
    assert kept_sum("fp32", ones) == 556
    assert kept_sum("fp16", ones) == 556


@in_turn("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_of_gradients_has_the_bits_of_torch_in_that_dtype(dtype: Any) -> None:
    x = (np.random.default_rng(1).standard_normal((6, 500)) * 2.0 ** np.arange(-12, 12, 24 / 500)).astype(np.float32)
    weight = torch.zeros(500, dtype=dtype, requires_grad=True)
    for each in x:
        (weight * torch.from_numpy(each).to(dtype)).sum().backward()
    assert weight.grad is not None
    assert_bits_equal(kept_sum(dtype, x), weight.grad.float().numpy())


@in_turn("micro_batches", [1, 3])
def test_the_trainer_adds_micro_batches_in_the_format_of_its_gradients(micro_batches: int) -> None:
    settings = fp.train.Settings(steps=1, model="perceptron", batch=32, micro_batches=micro_batches, measure=0)
    plain, small = (
        fp.train.Trainer(fp.train.recipes.FP32.replace(gradients=fmt), settings) for fmt in (None, "bf16")
    )  # fmt: skip
    parts = [plain.backward(plain.forward(micro)) for micro in range(micro_batches)]
    gradients = StepGradients("bf16", small.reduction, small.ranks)
    for micro in range(micro_batches):
        gradients.add(small.backward(small.forward(micro)))
    got = gradients.reduce()
    assert list(got) == list(parts[0])
    for name, gradient in got.items():
        total = kept_sum("bf16", np.stack([part[name].numpy() for part in parts]))
        assert_bits_equal(gradient.numpy(), total / np.float32(micro_batches))
        assert np.any(gradient.numpy() != reduce(parts)[name].numpy())


def test_a_format_that_float32_does_not_hold_keeps_no_gradients() -> None:
    with pytest.raises(ValueError, match="FP64"):
        GradientSum("fp64")
    with pytest.raises(ValueError, match="FP64"):
        fp.train.Recipe(gradients="fp64")


class Halves(Ranks):
    """Two processes, seen from the first, whose other one has half of its arrays."""

    def gathered(self, array: Any) -> list[Any]:
        """Return the array, and half of it."""
        return [np.asarray(array), np.asarray(array) / array.dtype.type(2)]


def test_each_of_several_processes_adds_its_micro_batches_in_float32_before_they_are_sent() -> None:
    x = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32)
    gradients = StepGradients(None, Reduction(count=6), Halves(0, 2))
    for part in x:
        gradients.add({"w": torch.from_numpy(part.copy())})
    mine = (x[0] + x[1]) + x[2]
    assert_bits_equal(gradients.reduce()["w"].numpy(), (mine + mine / np.float32(2)) / np.float32(6))


@in_turn("fmt", [None, "bf16"])
def test_one_process_averages_its_micro_batches_as_if_each_was_of_another_process(fmt: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32)
    parts = [{"w": torch.from_numpy(part)} for part in x]
    gradients = StepGradients(None, Reduction(fmt, count=3), Ranks.single())
    for part in parts:
        gradients.add(part)
    assert_bits_equal(gradients.reduce()["w"].numpy(), reduce(parts, fmt)["w"].numpy())


def test_the_gradients_of_a_single_micro_batch_stay_as_they_are() -> None:
    """A sum would turn -0 into 0."""
    gradients = StepGradients(None, Reduction(count=1), Ranks.single())
    gradients.add({"w": torch.tensor([-0.0, 1.0])})
    assert_bits_equal(gradients.reduce()["w"].numpy(), np.array([-0.0, 1.0], np.float32))


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
        (lambda: Reduction("e8m0"), "fmt must be a format with a sign and a zero; got E8M0"),
        (lambda: Reduction("fp64"), r"float32 cannot hold every value of FP64 \(.*\); take one of up to 32 bits"),
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
