"""The gradients of a step: sums of micro-batches in a format, and their mean over processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
from fpsim.train.hooks.gradients import GradientSum, StepGradients  # noqa: E402
from fpsim.train.hooks.ranks import Ranks  # noqa: E402
from fpsim.train.hooks.reduction import Reduction, reduce  # noqa: E402


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
    found = gradients.reduce()
    assert list(found) == list(parts[0])
    for name, gradient in found.items():
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
