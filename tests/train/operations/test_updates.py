"""AdamW, clipping, loss scales, means of gradients and counts of updates against one rounding at a time."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fpsim.recipes import OptimizerRecipe
from fpsim.recipes.loss_scaling import loss_scaling_policy
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import training as oracle
from tests.oracles.training import Single, array_of, singles
from tests.train.operations.rows import EDGES, SPECIAL, Array, usual

torch = pytest.importorskip("torch")
from fpsim.train.loss_scale import LossScaler  # noqa: E402
from fpsim.train.operations import kernels  # noqa: E402
from fpsim.train.optimizer import AdamW  # noqa: E402
from fpsim.train.ranks import reduce  # noqa: E402

SHAPES = {"matrix": (5, 13), "vector": (33,), "single": (1,)}


def numbers_of(recipe: OptimizerRecipe, lr: float, number: int) -> list[Single]:
    """Return the float32 numbers of step `number`, from 1, by exact powers."""
    beta1, beta2 = recipe.betas
    first, second = (1 - float(Fraction(beta) ** number) for beta in (beta1, beta2))
    return [Single(x) for x in (1 - beta1, beta2, 1 - beta2, math.sqrt(second), recipe.eps, -(lr / first))]


def stepped(recipe: OptimizerRecipe, weights: dict[str, Any], gradients: list[dict[str, Any]]) -> dict[str, Any]:
    """Return weights after steps of AdamW, each operation on one number."""
    moments = {name: [(Single(0.0), Single(0.0))] * len(w) for name, w in weights.items()}
    for step, gradient in enumerate(gradients):
        lr = recipe.lr_at(step, len(gradients))
        numbers = numbers_of(recipe, lr, step + 1)
        total = 0.0
        for g in gradient.values():
            total += oracle.sum_of_squares([float(x) for x in g])
        norm = Single(math.sqrt(total))
        one, factor = Single(1.0), Single(recipe.clip_norm or 1.0) / (norm + Single(1e-6))
        factor = factor if float(factor) < 1 else one
        for name, weight in weights.items():
            decay = lr * recipe.weight_decay if len(SHAPES[name]) > 1 else 0.0
            for i, w in enumerate(weight):
                first, second = moments[name][i]
                first, second, update = oracle.adamw(gradient[name][i] * factor, first, second, numbers)
                moments[name][i] = first, second
                weight[i] = (w * Single(1 - decay) if decay else w) + update
    return {name: array_of(weight).reshape(SHAPES[name]) for name, weight in weights.items()}


@in_turn("clip, decay", [(0.5, 0.1), (1e9, 0.0)])
def test_steps_make_every_rounding_in_order(clip: float, decay: float) -> None:
    recipe = OptimizerRecipe(
        lr=0.02, weight_decay=decay, clip_norm=clip, warmup=1, schedule="cosine", final_lr_share=0.1
    )  # fmt: skip
    weights = {name: torch.from_numpy(usual(shape, i)) for i, (name, shape) in enumerate(SHAPES.items())}
    gradients = [{name: usual(shape, 9 * step) for name, shape in SHAPES.items()} for step in range(4)]
    want = stepped(
        recipe, {name: singles(w.numpy()) for name, w in weights.items()},
        [{name: singles(g) for name, g in step.items()} for step in gradients],
    )  # fmt: skip
    optimizer = AdamW(weights, recipe)
    for step in gradients:
        optimizer.step({name: torch.from_numpy(g) for name, g in step.items()}, steps_total=4)
    for name, weight in weights.items():
        assert_bits_equal(weight.numpy(), want[name])


@in_turn("beta", [0.9, 0.5, 0.3, 0.0])
def test_moments_and_updates_of_every_edge(beta: float) -> None:
    edges = np.concatenate([EDGES, np.array(SPECIAL, np.float32)])
    gradient, first = (x.reshape(-1).copy() for x in np.meshgrid(edges, edges))
    second = np.abs(np.roll(first, 5))
    numbers = numbers_of(OptimizerRecipe(betas=(beta, 0.95)), 1e-3, 3)
    operands = zip(*map(singles, (gradient, first, second)), strict=True)
    want = [oracle.adamw(g, m, v, numbers) for g, m, v in operands]
    update = np.empty_like(first)
    kernels.adamw(gradient, first, second, array_of(numbers), update)
    for got, column in zip((first, second, update), zip(*want, strict=True), strict=True):
        assert_bits_equal(got, array_of(column))


def test_a_first_moment_without_decay_is_the_gradient() -> None:
    weights = {"w": torch.zeros(3)}
    optimizer = AdamW(weights, OptimizerRecipe(lr=1.0, betas=(0.0, 0.0), eps=0.0, clip_norm=None))
    for gradient in (torch.tensor([1e3, -2e5, 7.0]), small := torch.tensor([1e-8, 3e-8, -1e-5])):
        optimizer.step({"w": gradient.clone()}, steps_total=2)
    assert_bits_equal(optimizer.arrays()["first_moment/w"], small.numpy())
    assert weights["w"].tolist() == [-2.0, 0.0, 0.0]


def test_decay_is_a_product_and_a_difference() -> None:
    weights, update = usual((300,), 0), usual((300,), 1)
    want = [u - w * Single(0.3) for u, w in zip(singles(update), singles(weights), strict=True)]
    kernels.decayed(weights, update, np.float32(0.3))
    assert_bits_equal(update, array_of(want))


def test_updates_are_counted_by_the_exponent_of_their_ratio() -> None:
    before, update = usual((240,), 0), np.ldexp(usual((240,), 1), np.arange(-120, 120))
    update[::7], before[3::50] = 0, 0
    after: Array = before + update
    exponents = np.zeros(256, np.int64)
    moves, unchanged = kernels.count(before, update, after, exponents)
    want: Counter[int] = Counter()
    for b, u in zip(singles(before), singles(update), strict=True):
        want[(u / b).code >> 23 & 0xFF] += 1
    assert moves == np.count_nonzero(update)
    assert unchanged == np.count_nonzero((update != 0) & (before == after)) > 50
    assert {i: int(n) for i, n in enumerate(exponents) if n} == dict(want)


@in_turn("special", SPECIAL)
def test_a_norm_that_is_not_finite_clips_by_its_quotient(special: float) -> None:
    weights = {"w": torch.ones(3)}
    gradients = {"w": torch.tensor([1.0, special, -2.0])}
    report = AdamW(weights, OptimizerRecipe(clip_norm=1.0)).step(gradients, steps_total=1)
    quotient = float(Single(1.0) / (Single(abs(special)) + Single(1e-6)))  # 0 or NaN
    assert_bits_equal(np.array([report.clip_factor]), np.array([quotient]))
    want = [x * Single(quotient) for x in singles([1.0, special, -2.0])]
    assert_bits_equal(gradients["w"].numpy(), array_of(want))


def test_a_norm_beyond_float32_is_inf_and_stops_every_weight() -> None:
    weights = {"w": torch.ones(4)}
    report = AdamW(weights, OptimizerRecipe(clip_norm=1.0, weight_decay=0.0)).step(
        {"w": torch.full((4,), 3e38)}, steps_total=1
    )
    assert (report.gradient_norm, report.clip_factor) == (math.inf, 0.0)
    assert_bits_equal(weights["w"].numpy(), np.ones(4, np.float32))


def test_gradients_are_multiplied_by_the_rounded_inverse_of_the_loss_scale() -> None:
    scaler = LossScaler(loss_scaling_policy("static").replace(scale=1000.1))
    gradient = np.concatenate([usual((50,), 3) * np.float32(1000), EDGES])
    got = torch.from_numpy(gradient.copy())
    assert not scaler.unscale({"w": got})
    inverse = Single(1 / float(np.float32(1000.1)))  # float64, then float32
    assert_bits_equal(got.numpy(), array_of([g * inverse for g in singles(gradient)]))


def test_micro_batches_are_added_in_turn_and_divided_by_their_number() -> None:
    parts = [np.concatenate([usual((50,), seed), EDGES[::-1] if seed else EDGES]) for seed in range(3)]
    got = reduce([{"w": torch.from_numpy(part)} for part in parts])["w"]
    want = [((a + b) + c) / Single(3.0) for a, b, c in zip(*map(singles, parts), strict=True)]
    assert_bits_equal(got.numpy(), array_of(want))
