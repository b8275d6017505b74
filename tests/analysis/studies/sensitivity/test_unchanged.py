"""A study of sensitivity leaves no trace: on the model, its state and the generators, however it ends."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.sensitivity.content import content_of
from tests.analysis.studies.sensitivity.models import (
    E4M3,
    FP32,
    MODELS,
    functional,
    made,
    nn,
    perceptron,
    squared,
    state_of,
    torch,
)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_the_model_and_the_generators_stay_as_they_are(name: str, training: bool) -> None:
    model, batches, loss = made(name)
    model.train(training)
    next(model.modules().__iter__()).register_forward_hook(lambda *_: None)
    loss(model, batches[0]).backward()  # gradients that must stay
    before = state_of(model)
    inputs = content_of(batches)
    report = fp.analysis.sensitivity(model, batches, loss, recipes=E4M3)
    report.measure({(report.rows[0].layer, "fprop"): "E4M3"})
    assert state_of(model) == before
    assert content_of(batches) == inputs


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("after", [0, 3, 7])
def test_the_model_stays_as_it_is_when_the_work_is_stopped(stop: type[BaseException], after: int) -> None:
    model, batches, loss = made("convolutional")
    before = state_of(model)
    calls = 0
    fast = torch.backends.mha.get_fastpath_enabled()

    def stopping(model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise stop("enough")
        return loss(model, batch)

    wanted = ValueError if stop is ZeroDivisionError and after == 0 else stop
    with pytest.raises(wanted, match="enough"):
        fp.analysis.sensitivity(model, batches, stopping, recipes=E4M3)
    assert state_of(model) == before
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_each_run_draws_the_same_whatever_draws() -> None:
    class Noisy(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            legacy = np.random.rand(16).astype(np.float32)  # noqa: NPY002 - which models draw from too
            noise = torch.rand(16) + torch.from_numpy(legacy) + random.random()
            return functional.dropout(self.linear(x) * noise, 0.5)

    batch = torch.randn(8, 16), torch.randn(8, 16)
    report = fp.analysis.sensitivity(Noisy(), [batch, batch], squared, recipes={"exact": FP32})
    assert report.notes == ()
    assert all(row.gradient_error == row.loss_change == 0 for row in report.rows)
    assert report.losses[0] != report.losses[1]  # each batch has draws of its own


def test_any_seed_seeds_torch() -> None:
    model, batches, loss = made("mlp")
    fp.analysis.sensitivity(model, batches[:1], loss, recipes="BF16", products="wgrad", seed=2**64)


def test_a_model_that_does_not_repeat_itself_is_told_of() -> None:
    class Counting(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(8, 8), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.linear(x) * self.calls

    model = Counting()
    report = fp.analysis.sensitivity(
        model, [torch.ones(4, 8)], lambda model, x: model(x).square().sum(), recipes={"exact": FP32}
    )
    (note,) = report.notes
    assert note.startswith("The model does not repeat itself: losses of the same batch with exact products differ by")
    assert model.calls == 0


def test_stochastic_recipes_draw_for_each_batch_and_repeat() -> None:
    model, (batch, _), loss = made("mlp")
    recipe = fp.torch.LinearRecipe("e4m3", "e4m3", rounding="stochastic")
    first, again = (
        fp.analysis.sensitivity(model, [batch, batch], loss, recipes={"sr": recipe}, products="fprop") for _ in range(2)
    )
    assert first == again
    assert all(row.batches[0] != row.batches[1] for row in first.rows)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_change_nothing(reentrant: bool) -> None:
    class Checkpointed(nn.Module):  # type: ignore[misc]
        def __init__(self, checkpoint: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.checkpoint = nn.Linear(32, 32), nn.Linear(32, 8), checkpoint

        def forward(self, x: Any) -> Any:
            x = self.first(x).relu()
            if not self.checkpoint:
                return self.second(x)
            return torch.utils.checkpoint.checkpoint(self.second, x, use_reentrant=reentrant)

    torch.manual_seed(4)
    batch = torch.randn(64, 32), torch.randn(64, 8)
    report, plain = (
        fp.analysis.sensitivity(Checkpointed(checkpoint), [batch], squared, recipes=E4M3)
        for checkpoint in (True, False)
    )
    assert report.rows == plain.rows


def test_autocast_in_the_loss_is_what_is_exact_there() -> None:
    model, (batch, _), _ = made("mlp")

    def loss(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return squared(model, batch)

    report = fp.analysis.sensitivity(model, [batch], loss, recipes={"BF16": "BF16", "E4M3": E4M3})
    assert report.losses == (float(loss(perceptron_like(model), batch).detach()),)
    for row in report.rows:  # the recipe BF16 rounds as autocast does, but for the order of sums
        if row.recipe == "E4M3":
            assert row.gradient_error > 2 * report[row.layer, row.product, "BF16"].gradient_error


def perceptron_like(model: Any) -> Any:
    twin = perceptron()
    twin.load_state_dict(model.state_dict())
    return twin


def test_encoder_layers_run_layer_by_layer_in_eval_mode() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    model = nn.Sequential(nn.Embedding(8, 32), layer)  # the embedding alone has a gradient
    codes = torch.randint(0, 8, (4, 6))
    report = fp.analysis.sensitivity(model, [codes], lambda model, x: model(x).square().mean(), recipes=E4M3)
    assert {(row.layer, row.product) for row in report.rows} == {
        ("1.linear1", "fprop"), ("1.linear1", "dgrad"), ("1.linear2", "fprop"), ("1.linear2", "dgrad")
    }  # fmt: skip


def test_figures_have_the_same_bits_on_any_number_of_threads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))
    batch = torch.randn(512, 256), torch.randn(512, 64)
    threads, report = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            report.append(fp.analysis.sensitivity(model, [batch], squared, recipes=E4M3))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert report[0] == report[1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_does_not_matter(mode: Any) -> None:
    model, batches, loss = made("mlp")
    wanted = fp.analysis.sensitivity(model, batches, loss, recipes=E4M3)
    with mode():
        report = fp.analysis.sensitivity(model, batches, loss, recipes=E4M3)
        assert report.measure({("2", "fprop"): "E4M3"}).loss_change == wanted["2", "fprop", "E4M3"].loss_change
    assert report == wanted


def test_a_weight_that_is_made_of_others_goes_through_their_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(32, 32)), nn.Linear(32, 8)).eval()
    batch = torch.randn(64, 32), torch.randn(64, 8)
    report = fp.analysis.sensitivity(model, [batch], squared, recipes={"low": E4M3, "exact": FP32})
    assert 0 < report["0", "wgrad", "low"].gradient_error < 0.05
    assert report["0", "wgrad", "exact"].gradient_error == 0
