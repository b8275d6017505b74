"""Results and gradients against torch.autograd in float64, within a running bound of float32's errors.

`tests.oracles.training.Estimate` runs the formula of each operation in float64, and carries a bound along: each
operation adds its operands' errors times its derivatives, and half an ulp of its own result. A wrong formula is
further from torch's gradients than that, as the last test checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from fpsim.recipes import OptimizerRecipe
from tests.oracles import training as oracle
from tests.oracles.training import Estimate, estimates
from tests.train.operations.rows import usual

torch = pytest.importorskip("torch")
from fpsim.train.operations import operations  # noqa: E402
from fpsim.train.optimizer import AdamW  # noqa: E402

LARGEST = 3e-6  # of a bound, relative to the largest result: about 50 roundings


def check(got: Any, exact: Any, numbers: Iterable[Estimate]) -> None:
    """Check float32 results against exact ones and estimates of these."""
    listed = list(numbers)
    value, bound = (np.array([getattr(each, name) for each in listed]) for name in ("value", "error"))
    right = np.asarray(exact.detach(), np.float64).reshape(-1)
    assert np.abs(value - right).max() <= 1e-13 * max(np.abs(right).max(), 1)
    assert bound.max() <= LARGEST * np.abs(right).max()
    assert np.all(np.abs(np.asarray(got.detach(), np.float64).reshape(-1) - right) <= bound)


def both(*arrays: Any) -> tuple[list[Any], list[Any]]:
    """Return arrays as leaves in float32 and in float64."""
    ours, exact = ([torch.from_numpy(x).to(dtype) for x in arrays] for dtype in (torch.float32, torch.double))
    return [x.requires_grad_() for x in ours], [x.requires_grad_() for x in exact]


def test_causal_softmax() -> None:
    scores, slopes, factor = usual((20, 20), 0) * np.float32(3), usual((20, 20), 1), 0.25
    (x,), (wide,) = both(scores)
    shares = operations.CausalSoftmax.apply(x, factor)
    shares.backward(torch.from_numpy(slopes))
    exact = torch.softmax((wide * factor).masked_fill(torch.ones(20, 20).triu(1) > 0, -math.inf), -1)
    exact.backward(torch.from_numpy(slopes).double())
    rows, gradients = [], []
    for i in range(20):
        row, after = oracle.softmax(estimates(scores[i, : i + 1]), Estimate(factor)), [Estimate(0.0)] * (19 - i)
        rows += row + after
        gradients += oracle.softmax_slopes(row, estimates(slopes[i, : i + 1]), Estimate(factor)) + after
    check(shares, exact, rows)
    check(x.grad, wide.grad, gradients)


def test_cross_entropy() -> None:
    logits, targets = usual((9, 33), 2) * np.float32(3), torch.arange(9) * 3
    (x,), (wide,) = both(logits)
    loss, exact = operations.CrossEntropy.apply(x, targets), torch.nn.functional.cross_entropy(wide, targets)
    (loss * 0.5).backward()
    (exact * 0.5).backward()
    rows = [oracle.cross_entropy(estimates(row), int(target)) for row, target in zip(logits, targets, strict=True)]
    check(loss, exact, [oracle.mean([of_row for _, of_row in rows])])
    factor = Estimate(0.5) / Estimate(9.0)
    slopes = [oracle.cross_entropy_slopes(rows[i][0], int(targets[i]), factor) for i in range(9)]
    check(x.grad, wide.grad, [slope for row in slopes for slope in row])


def test_rms_norm() -> None:
    x, weight, slopes = usual((40, 33), 3), usual((33,), 4), usual((40, 33), 5)
    ours, wide = both(x, weight)
    result = operations.RootMeanSquareNorm.apply(*ours)
    result.backward(torch.from_numpy(slopes))
    exact = torch.nn.functional.rms_norm(wide[0], (33,), wide[1], operations.EPSILON)
    exact.backward(torch.from_numpy(slopes).double())
    norms = [oracle.rms_norm(estimates(row), estimates(weight), Estimate.rounded(operations.EPSILON)) for row in x]
    check(result, exact, [each for _, row in norms for each in row])
    gradients = [
        oracle.rms_norm_slopes(estimates(slopes[i]), estimates(x[i]), estimates(weight), norms[i][0]) for i in range(40)
    ]
    check(ours[0].grad, wide[0].grad, [each for _, row in gradients for each in row])
    columns = [[(Estimate(slopes[i, j]), gradients[i][0][j]) for i in range(40)] for j in range(33)]
    check(ours[1].grad, wide[1].grad, [Estimate.of_sum(column) for column in columns])


def test_swiglu() -> None:
    x, slopes = usual((6, 66), 6) * np.float32(3), usual((6, 33), 7)
    result = operations.swiglu(torch.from_numpy(x))
    gradient = operations.swiglu_slopes(torch.from_numpy(slopes), torch.from_numpy(x))
    _, (wide,) = both(x)
    gate, up = wide.chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    exact.backward(torch.from_numpy(slopes).double())
    halves = [(estimates(row[:33]), estimates(row[33:])) for row in x]
    check(result, exact, [each for row in halves for each in oracle.swiglu(*row)])
    slopes_of = [oracle.swiglu_slopes(estimates(g), *row) for g, row in zip(slopes, halves, strict=True)]
    check(gradient, wide.grad, [each for of_gates, of_ups in slopes_of for each in of_gates + of_ups])


def test_embedding_and_relu() -> None:
    tokens, positions, slopes = usual((5, 8), 8), usual((6, 8), 9), usual((3, 6, 8), 10)
    codes = torch.tensor([[0, 1, 2, 3, 0, 1], [1] * 6, [3, 3, 0, 0, 2, 2]])
    ours, wide = both(tokens, positions)
    result = operations.ReLU.apply(operations.Embedding.apply(codes, *ours))
    result.backward(torch.from_numpy(slopes))
    exact = torch.relu(torch.nn.functional.embedding(codes, wide[0]) + wide[1])
    exact.backward(torch.from_numpy(slopes).double())
    passing = np.where(result.detach().numpy() > 0, slopes, 0)
    of_tokens = [Estimate(0.0)] * 40
    for code, row in zip(codes.reshape(-1).tolist(), passing.reshape(-1, 8), strict=True):
        for j, slope in enumerate(estimates(row)):
            of_tokens[code * 8 + j] = of_tokens[code * 8 + j] + slope
    check(ours[0].grad, wide[0].grad, of_tokens)
    sums = [oracle.lane_sum(estimates(passing[:, i, j]), Estimate(0.0)) for i in range(6) for j in range(8)]
    check(ours[1].grad, wide[1].grad, sums)


def test_adamw_and_clipping() -> None:
    weights, gradients = usual((4, 11), 11), [usual((4, 11), seed) for seed in (12, 13, 14)]
    recipe = OptimizerRecipe(lr=0.02, weight_decay=0.1, clip_norm=0.5)
    ours, exact = torch.from_numpy(weights.copy()), torch.from_numpy(weights).double().requires_grad_()
    optimizer = AdamW({"w": ours}, recipe)
    torchs = torch.optim.AdamW([exact], lr=0.02, betas=recipe.betas, eps=recipe.eps, weight_decay=0.1)
    wanted, first, second = estimates(weights), [Estimate(0.0)] * 44, [Estimate(0.0)] * 44
    for number, gradient in enumerate(gradients, 1):
        optimizer.step({"w": torch.from_numpy(gradient.copy())}, steps_total=3)
        exact.grad = torch.from_numpy(gradient).double()
        torch.nn.utils.clip_grad_norm_([exact], 0.5)
        torchs.step()
        norm = Estimate.rounded(float(np.linalg.norm(gradient.astype(np.float64))))
        factor = Estimate(0.5) / (norm + Estimate.rounded(1e-6))
        beta1, beta2 = recipe.betas
        size, root = 0.02 / (1 - beta1**number), math.sqrt(1 - beta2**number)
        numbers = [Estimate.rounded(x) for x in (1 - beta1, beta2, 1 - beta2, root, recipe.eps, -size)]
        keep = Estimate.rounded(1 - 0.02 * 0.1)
        for i, g in enumerate(estimates(gradient)):
            first[i], second[i], update = oracle.adamw(g * factor, first[i], second[i], numbers)
            wanted[i] = wanted[i] * keep + update
        check(ours, exact, wanted)


def test_a_wrong_formula_is_outside_the_bound() -> None:
    slopes, x = usual((1, 33), 15), usual((1, 66), 16)
    gradient = operations.swiglu_slopes(torch.from_numpy(slopes), torch.from_numpy(x))
    _, (wide,) = both(x)
    gate, up = wide.chunk(2, -1)
    (torch.nn.functional.silu(gate) * up).backward(torch.from_numpy(slopes).double())
    of_gates, of_ups = oracle.swiglu_slopes(estimates(slopes), estimates(x[:, :33]), estimates(x[:, 33:]))
    check(gradient, wide.grad, of_gates + of_ups)
    with pytest.raises(AssertionError):
        check(gradient * (1 + 1e-5), wide.grad, of_gates + of_ups)
