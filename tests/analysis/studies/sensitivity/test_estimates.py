"""Sensitivity: several products at once, and estimates without running the model again."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fpsim as fp
from fpsim.analysis.studies.sensitivity.compare import distance
from fpsim.analysis.studies.sensitivity.one_pass import OnePass
from tests.analysis.studies.sensitivity.models import E4M3, FP32, gradients_by_hand, made, nn, relative, torch


def test_single_changes_are_set_beside_all_at_once() -> None:
    model, batches, loss = made("mlp")
    report = fp.analysis.sensitivity(model, batches, loss, recipes=[E4M3, "BF16"])
    every = report.measure({(row.layer, row.product): "E4M3" for row in report.rows})
    assert every == report.joint[0]
    first, second = report.additivity()
    assert (first.recipe, second.recipe) == ("E4M3", "BF16")
    assert first.loss_joint == every.loss_change
    assert first.loss_sum == sum(row.loss_change for row in report.rows if row.recipe == "E4M3")
    assert 0.8 < first.gradient_sum / first.gradient_joint < 1.25  # errors are independent
    assert str(first) in str(report)


def test_distances_of_tiny_and_nearly_vanishing_gradients() -> None:
    """Squares below float64's range, and a difference that rounding made negative, ended the measurement."""
    one, two = (torch.full((4,), value, dtype=torch.float64) for value in (1e-83, 2e-83))
    assert distance([one], [two]) == pytest.approx((0.5, 1.0))
    assert distance([one * 1e220], [two * 1e220]) == pytest.approx((0.5, 1.0))
    for seed in range(20):
        exact, low = torch.randn(2, 100, 100, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        seer = OnePass({}, [])
        seer._deltas["0", "low"] = 1e-9 * low - exact
        whole, _ = seer.of_weight("0", "low", exact, float(exact.square().sum()))
        assert whole.error == pytest.approx(1.0)


def test_effects_of_exact_products_have_no_agreement() -> None:
    model = torch.nn.Linear(16, 8, bias=False)
    with torch.no_grad():
        model.weight.sign_()
    batches = [torch.ones(4, 16) * 2**i for i in range(4)]
    text = str(fp.analysis.sensitivity(model, batches, lambda model, x: model(x).mean(), recipes="BF16"))
    assert "nan times" not in text


def test_several_products_at_once_are_those_by_hand() -> None:
    model, batches, loss = made("mlp", 1)
    report = fp.analysis.sensitivity(model, batches, loss, recipes={"low": E4M3, "exact": FP32})
    row = report.measure({("0", "fprop"): "low", ("4", "dgrad"): "low", ("2", "wgrad"): "exact"})
    value, wanted = gradients_by_hand(model, batches[0], loss, 0, {})
    low, got = gradients_by_hand(model, batches[0], loss, 0, {"0": (E4M3, FP32, FP32), "4": (FP32, E4M3, FP32)})
    assert (row.layer, row.product, row.recipe) == ("*", "*", "mixed")
    assert row.loss_change == low - value
    assert math.isclose(row.gradient_error, relative(got, wanted), rel_tol=1e-5)
    assert report.measure({}).gradient_error == 0
    one = report["2", "fprop", "low"]
    assert report.measure({("2", "fprop"): "low"}).gradient_error == one.gradient_error


def quadratic(residuals: Any) -> tuple[Any, Any, Any]:
    """Return a linear layer on rows that are all alike, with these residuals, and the error of its output in E4M3."""
    d = residuals.shape[1]
    model = nn.Linear(4, d, bias=False)
    weight = 1 + torch.arange(d * 4).reshape(d, 4) / 64  # E4M3 has steps of an eighth there
    x = torch.tensor([1.0, 2.0, -1.0, 4.0])
    with torch.no_grad():
        model.weight.copy_(weight)
    rows = x.expand(len(residuals), 4)
    delta = (torch.from_numpy(fp.quantize(weight.numpy(), fp.E4M3)) - weight) @ x
    return model, (rows, rows @ weight.T - residuals), delta


def half_squared(model: Any, batch: Any) -> Any:
    """Minus the log-likelihood of normal noise of variance 1, whose Hessian is the identity."""
    return 0.5 * (model(batch[0]) - batch[1]).square().sum(1).mean()


def test_the_fisher_estimate_is_the_loss_change_where_it_is_the_hessian() -> None:
    signs = torch.tensor([[1.0 if i >> j & 1 else -1.0 for j in range(4)] for i in range(16)])  # covariance: identity
    model, batch, delta = quadratic(signs)
    report = fp.analysis.sensitivity(
        model, [batch], half_squared, recipes={"weight": fp.torch.LinearRecipe(None, "e4m3")}, products="fprop"
    )
    (row,) = report.rows
    closed = 0.5 * float(delta.double().square().sum())
    assert closed > 0.05
    assert (row.loss_change, row.fisher, row.first_order) == (closed, closed, 0.0)  # every step is exact
    assert report.agreement("fisher").ratio == 1


def test_the_first_order_estimate_lacks_what_the_hessian_adds() -> None:
    model, batch, delta = quadratic(torch.ones(8, 4))
    report = fp.analysis.sensitivity(
        model, [batch], half_squared, recipes={"weight": fp.torch.LinearRecipe(None, "e4m3")}, products="fprop"
    )
    (row,) = report.rows
    assert row.first_order == float(delta.sum())
    assert row.loss_change == row.first_order + 0.5 * float(delta.square().sum())
    assert row.fisher == 0.5 * float(delta.sum()) ** 2  # one residual for all: its rank is 1, the Hessian's 4


def test_estimates_of_a_trained_model_rank_the_measured_changes() -> None:
    model, batches, loss = made("attention", 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(12):
        optimizer.zero_grad()
        loss(model, batches[step % 3]).backward()
        optimizer.step()
    report = fp.analysis.sensitivity(model, batches, loss, recipes=E4M3, products="fprop")
    agreement = report.agreement()
    assert agreement.changes == 3 * 3
    assert agreement.rank_correlation > 0.95 > report.agreement("fisher").rank_correlation
    assert 0.9 < agreement.ratio < 1.1
    assert str(agreement) in str(report)


def test_overflow_counts_as_infinite_harm() -> None:
    model, batches, loss = made("mlp")
    with torch.no_grad():
        model[2].weight[0, 0] = 1e6
    report = fp.analysis.sensitivity(model, batches, loss, recipes={"nan": fp.torch.LinearRecipe("fp16", "fp16")})
    worst = report["2", "fprop", "nan"]
    assert (worst.loss_change, worst.output_error, worst.gradient_error) == (math.inf, math.inf, math.inf)
    assert math.isnan(worst.gradient_cosine)
    assert report.ranking()[0].layer == "2"
    assert "inf" in str(report)


@pytest.mark.parametrize(
    "loss", [torch.nn.CrossEntropyLoss(), torch.nn.functional.cross_entropy], ids=["module", "function"]
)
def test_a_criterion_of_torch_is_the_loss_of_inputs_and_targets(loss: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    batches = [(torch.randn(8, 32), torch.arange(8) % 4) for _ in range(2)]
    written = fp.analysis.sensitivity(
        model, batches, lambda m, batch: torch.nn.functional.cross_entropy(m(batch[0]), batch[1]), recipes="FP8_TENSOR"
    )
    report = fp.analysis.sensitivity(model, batches, loss, recipes="FP8_TENSOR")
    assert report.rows == written.rows
    with pytest.raises(ValueError, match=r"needs batches of \(input, target\)"):
        fp.analysis.sensitivity(model, [batches[0][0]], loss, recipes="FP8_TENSOR")
