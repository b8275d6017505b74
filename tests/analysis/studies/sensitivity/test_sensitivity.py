"""One product at a time: exact where nothing is low, as by hand where one is, and bad layers are named first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.analysis.studies.sensitivity.models import (
    E4M3,
    FP32,
    MODELS,
    gradients_by_hand,
    made,
    nn,
    relative,
    squared,
    torch,
)

PRODUCTS = ("fprop", "dgrad", "wgrad")


def test_equal_values_share_their_mean_rank() -> None:
    from fpsim.analysis.studies.sensitivity.report import _spearman

    x, y = np.array([4.0, 2.0, 1.0, 2.0]), np.array([40.0, 30.0, -10.0, 20.0])
    assert _spearman(x, y) == 4.5 / math.sqrt(4.5 * 5)  # 1, 2.5, 2.5, 4 beside 1, 3, 2, 4
    assert _spearman(x, -y) == -_spearman(x, y)
    assert math.isnan(_spearman(x, np.zeros(4)))
    assert math.isnan(_spearman(x[:2], y[:2]))


@pytest.mark.parametrize("name", MODELS)
def test_products_that_are_not_low_are_those_of_torch(name: str) -> None:
    from fpsim.analysis.studies.sensitivity.twin import Twin, layer_by_layer

    model, batches, loss = made(name)
    layers = [layer for layer, module in model.named_modules() if type(module) in (nn.Linear, nn.Conv2d)]
    twin = Twin(model, layers, loss, 5, "emulated")
    with layer_by_layer():
        for index, batch in enumerate(batches):
            wanted, gradients = gradients_by_hand(model, batch, loss, 5 + index, {})
            outcome = twin.run(batch, index)
            assert outcome.loss is not None
            assert float(outcome.loss.detach()) == wanted
            report = twin.gradients(outcome.loss, index, keep=False)
            for (parameter, _), got in zip(model.named_parameters(), report, strict=True):
                exact = gradients[parameter]
                fp.testing.assert_bits_equal(torch.zeros_like(exact) if got is None else got, exact)


@pytest.mark.parametrize("name", MODELS)
def test_a_recipe_of_exact_products_changes_nothing(name: str) -> None:
    model, batches, loss = made(name)
    report = fp.analysis.sensitivity(model, batches, loss, recipes={"exact": FP32})
    assert {row.product for row in report.rows} == set(PRODUCTS)
    for row in report.rows + report.joint:
        assert (row.loss_change, row.output_error, row.output_cosine) == (0, 0, 1), row
        assert (row.gradient_error, row.gradient_cosine, row.gradient_spread) == (0, 1, 0), row


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_what_quantised_layers_give_by_hand(name: str) -> None:
    model, batches, loss = made(name)
    report = fp.analysis.sensitivity(model, batches, loss, recipes=E4M3, seed=7)
    exact = [gradients_by_hand(model, batch, loss, 7 + i, {}) for i, batch in enumerate(batches)]
    for row in report.rows:
        if row.layer in report.convolutions:  # whose twin is in test_convolutions.py
            continue
        recipes: Any = tuple(E4M3 if product == row.product else FP32 for product in PRODUCTS)
        errors, changes = [], []
        for index, batch in enumerate(batches):
            value, gradients = gradients_by_hand(model, batch, loss, 7 + index, {row.layer: recipes})
            errors.append(relative(gradients, exact[index][1]))
            changes.append(value - exact[index][0])
        assert row.gradient_error > 0
        assert math.isclose(row.gradient_error, np.mean(errors), rel_tol=1e-4), row  # sums of float32 in other orders
        assert row.loss_change == math.fsum(changes) / len(changes), row
        assert math.isclose(row.gradient_spread, np.std(errors, ddof=1), rel_tol=0.05), row
        assert (row.loss_change == 0) == (row.product != "fprop")
        assert (row.output_error > 0) == (row.product == "fprop")


def test_layers_and_products_that_do_not_exist_have_no_rows() -> None:
    model, batches, loss = made("mlp")
    report = fp.analysis.sensitivity(model, batches, loss, recipes="BF16")
    assert ("0", "dgrad") not in {(row.layer, row.product) for row in report.rows}  # the input needs no gradient
    assert report.layers == {"0": 2048, "2": 2048, "4": 256}
    assert report["2", "fprop", "BF16"].elements == (64 * 64, 2048)
    assert report["2", "dgrad", "BF16"].elements == (64 * 32, 2048)
    assert report["2", "wgrad", "BF16"].elements == (64 * 32, 64 * 64)
    for weight in model[2].parameters():
        weight.requires_grad_(False)
    report = fp.analysis.sensitivity(model, batches, loss, recipes="BF16")
    assert [row.product for row in report.rows if row.layer == "2"] == ["fprop", "dgrad"]


def test_a_layer_that_is_called_twice_and_a_shared_weight_count_once() -> None:
    model, batches, loss = made("attention")
    report = fp.analysis.sensitivity(model, batches, loss, recipes=E4M3)
    assert report["out", "fprop", "E4M3"].elements == (2 * 8 * 12 * 32, 32 * 32)
    assert "unused" not in {row.layer for row in report.rows}
    assert report.notes == (
        "Not measured, since an embedding looks rows up and multiplies nothing: tokens.",
        "Not called by the loss, and therefore without rows: unused.",
    )
    assert 0 < report["head", "wgrad", "E4M3"].weight_gradient_error < 0.05  # of the embedding's gradient too


def test_exactly_representable_operands_have_no_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 4, bias=False))
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.randint(-2, 3, layer.weight.shape))
    batch = torch.randint(-1, 2, (32, 16)).float()
    report = fp.analysis.sensitivity(
        model, [batch], lambda model, x: model(x).clamp(-4, 4).sum(), recipes={"raw": raw("bf16"), "fp16": raw("fp16")}
    )
    assert len(report.rows) == 10
    for row in report.rows + report.joint:
        assert (row.loss_change, row.output_error, row.gradient_error, row.gradient_cosine) == (0, 0, 0, 1), row


def raw(fmt: str, **fields: Any) -> Any:
    """Make a recipe of plain casts of all operands."""
    return fp.torch.LinearRecipe(fmt, fmt, fmt, overflow="saturate", **fields)


class Gained(nn.Module):  # type: ignore[misc]
    """Four layers, behind each of which a power of two gives back what its weights lack."""

    def __init__(self, gains: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers, self.gains = nn.ModuleList([nn.Linear(128, 128, bias=False) for _ in gains]), gains
        with torch.no_grad():
            for layer, gain in zip(self.layers, gains, strict=True):
                layer.weight.mul_(4 / gain)

    def forward(self, x: Any) -> Any:
        for layer, gain in zip(self.layers, self.gains, strict=True):
            x = functional_norm(layer(x) * gain).relu()
        return x


def functional_norm(x: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:])


def normal_batches(count: int = 2, rows: int = 128) -> list[Any]:
    torch.manual_seed(2)
    return [(torch.randn(rows, 128), torch.randn(rows, 128)) for _ in range(count)]


UNDERFLOWS = {"raw": fp.torch.LinearRecipe("e4m3", "e4m3", overflow="saturate")}  # of weights: gradients stay


@pytest.fixture(scope="module")
def sound() -> Any:
    """Layers without a bad one."""
    return fp.analysis.sensitivity(Gained(), normal_batches(), squared, recipes=UNDERFLOWS)


@pytest.mark.parametrize("bad", range(4))
def test_a_layer_whose_weights_underflow_is_named_first(bad: int, sound: Any) -> None:
    gains = tuple(2.0**12 if i == bad else 1.0 for i in range(4))
    report = fp.analysis.sensitivity(Gained(gains), normal_batches(), squared, recipes=UNDERFLOWS)
    assert report.losses == sound.losses  # the same function
    assert report.ranking()[0].layer == f"layers.{bad}"
    assert report.ranking("loss_change")[0].layer == f"layers.{bad}"
    worst = report[f"layers.{bad}", "fprop", "raw"]
    assert worst.output_error > 5 * sound[f"layers.{bad}", "fprop", "raw"].output_error
    for row in report.rows:
        if row.layer != f"layers.{bad}":
            other = sound[row.layer, row.product, row.recipe]
            assert (row.loss_change, row.output_error) == (other.loss_change, other.output_error)


class Channel(nn.Module):  # type: ignore[misc]
    """Layers of which one reads a channel that is 3000 times as large, by weights that are as much smaller."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers, self.bad = nn.ModuleList([nn.Linear(128, 128, bias=False) for _ in range(3)]), bad
        with torch.no_grad():
            self.layers[bad].weight[:, 5] /= 3000

    def forward(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            if i == self.bad:
                x = torch.cat((x[:, :5], 3000 * x[:, 5:6], x[:, 6:]), 1)
            x = functional_norm(layer(x)).relu()
        return x


@pytest.mark.parametrize("bad", range(3))
def test_a_layer_with_one_large_channel_is_named_first_by_int8(bad: int) -> None:
    scaling = fp.scalings.TENSOR
    recipe = fp.torch.LinearRecipe("int8", "int8", None, scaling, scaling)
    report = fp.analysis.sensitivity(Channel(bad), normal_batches(), squared, recipes={"int8": recipe})
    for by in ("gradient_error", "output_error", "loss_change"):
        assert report.ranking(by)[0].layer == f"layers.{bad}", by
    assert report.ranking(product="wgrad")[0].layer == f"layers.{bad}"


def test_a_bad_layer_of_the_built_in_transformer_is_named_first() -> None:
    from fpsim.recipes.training import FP32 as plain
    from fpsim.train.loop import Trainer
    from fpsim.train.settings import Settings

    trainer = Trainer(plain, Settings(steps=20, batch=4, measure=0, arithmetic="torch"))
    for _ in range(20):
        trainer.step()
    codes, targets = (torch.from_numpy(x) for x in trainer.data.batch(0, 1000, 0, batch=4, context=64))
    block = trainer.model.blocks[1]
    with torch.no_grad():  # the same function
        block.norm2.weight[5] *= 3000
        block.mlp.gate_up.weight[:, 5] /= 3000

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    scaling = fp.scalings.TENSOR
    # gradients stay: an early model's logits have one large gradient a token, beside which INT8 has zeros for the rest,
    # so that the head is as bad a layer
    recipe = fp.torch.LinearRecipe("int8", "int8", None, scaling, scaling)
    report = fp.analysis.sensitivity(trainer.model, [(codes, targets)], loss, recipes={"INT8": recipe})
    assert len(report.rows) == 27
    for by in ("gradient_error", "output_error", "loss_change", "weight_gradient_error"):
        assert report.ranking(by)[0].layer == "blocks.1.mlp.gate_up", by
    assert report.ranking()[0].gradient_error > 40 * max(
        row.gradient_error for row in report.rows if row.layer != "blocks.1.mlp.gate_up"
    )


def perceptron_of(recipe: Any, arithmetic: str) -> tuple[Any, list[Any]]:
    """Return the perceptron of a trainer that has taken a step, and a batch."""
    from fpsim.train.loop import Trainer
    from fpsim.train.settings import Settings

    trainer = Trainer(recipe, Settings(steps=2, model="perceptron", batch=128, measure=0, arithmetic=arithmetic))
    trainer.step()
    inputs, targets = trainer.data.batch(0, 9, 0, batch=128, context=1)
    return trainer.model, [(torch.from_numpy(inputs), torch.from_numpy(targets))]


def test_layers_that_add_float32_by_chains_are_measured_as_torchs_own() -> None:
    from fpsim.recipes.training import FP32 as plain
    from fpsim.train.model import pair_loss

    model, batches = perceptron_of(plain, "specified")
    ours = fp.analysis.sensitivity(model, batches, pair_loss, recipes=["FP8_TENSOR"])
    twin = torch.nn.Sequential(
        *(torch.nn.Linear(*reversed(layer.weight.shape), bias=False) for layer in model.children())
    )
    for layer, copy in zip(model.children(), twin, strict=True):
        copy.weight = layer.weight
    linear = torch.nn.Sequential(twin[0], torch.nn.ReLU(), twin[1], torch.nn.ReLU(), twin[2])
    theirs = fp.analysis.sensitivity(
        linear,
        batches,
        lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        recipes=["FP8_TENSOR"],
    )
    assert [row.output_error for row in ours.rows] == [row.output_error for row in theirs.rows]
    assert len(ours.rows) == 8
    assert any("first, second and head" in note for note in ours.notes)
    assert all(isinstance(layer, fp.torch.QuantLinear) for layer in model.children())


def test_a_model_that_is_quantised_already_is_refused_by_its_reason() -> None:
    from fpsim.recipes.training import FP8_RAW as raw
    from fpsim.train.model import pair_loss

    model, batches = perceptron_of(raw, "specified")
    with pytest.raises(ValueError, match="a quantised layer follows a recipe already, and errors are measured against"):
        fp.analysis.sensitivity(model, batches, pair_loss, recipes=["BF16"])


@pytest.mark.slow
def test_each_layer_of_the_built_in_transformer_that_is_planted_bad_is_named_first() -> None:
    """Compare both reports on the same function before and after: tiny weights without scales, one channel with one."""
    import copy

    from fpsim.recipes.training import FP32 as plain
    from fpsim.train.loop import Trainer
    from fpsim.train.settings import Settings

    trainer = Trainer(plain, Settings(steps=120, measure=0, arithmetic="torch"))
    for _ in range(120):
        trainer.step()
    batch = tuple(torch.from_numpy(x) for x in trainer.data.batch(0, 1000, 0, batch=16, context=64))
    one = fp.scalings.TENSOR
    int8 = fp.torch.LinearRecipe("int8", "int8", "int8", one, one, one)
    raw = fp.torch.LinearRecipe("e4m3", "e4m3", overflow="saturate")  # gradients stay, whose size is not the point

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def budget(model: Any, recipe: Any) -> Any:
        with fp.analysis.record(model, keep=1, formats=()) as r:
            loss(model, batch).backward()
            r.step()
        return fp.analysis.budget(r, recipe=recipe)

    def tiny(layer: Any) -> None:
        layer.weight.mul_(2.0**-12)
        layer.register_forward_hook(lambda module, inputs, output: output * 2.0**12)

    def channel(layer: Any) -> None:
        layer.weight[:, 5] /= 3000
        larger = torch.ones(layer.in_features)
        larger[5] = 3000
        layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * larger,))

    names = [name for name, module in trainer.model.named_modules() if type(module) is nn.Linear]
    assert len(names) == 9
    for name in names:
        for plant, recipe in ((tiny, raw), (channel, int8)):
            model = copy.deepcopy(trainer.model)
            with torch.no_grad():
                plant(model.get_submodule(name))
            assert budget(model, recipe).ranking[0][0] == name, plant
            report = fp.analysis.sensitivity(model, [batch], loss, recipes={"low": recipe})
            for by in ("gradient_error", "output_error", "loss_change"):
                assert report.ranking(by)[0].layer == name, (plant, by)


def test_the_weight_gradient_of_two_e4m3_operands_has_their_errors_in_quadrature() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256, bias=False))
    batch = torch.randn(512, 256), torch.randn(512, 256)
    report = fp.analysis.sensitivity(
        model, [batch], lambda model, batch: (model(batch[0]) * batch[1]).sum(), recipes=E4M3, products="wgrad"
    )
    (row,) = report.rows
    errors = [10 ** (-fp.analysis.error(x.numpy(), fp.E4M3, scaling=fp.scalings.TENSOR).sqnr_db / 20) for x in batch]
    assert row.gradient_error == row.weight_gradient_error
    assert math.isclose(row.gradient_error, math.hypot(*errors), rel_tol=0.01)  # independent errors of 131,072 values
    assert 0.035 < row.gradient_error < 0.039


def test_sparse_gradients_of_embeddings_count_as_dense_ones() -> None:
    figures = []
    for sparse in (True, False):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Embedding(16, 32, sparse=sparse), nn.Linear(32, 8))
        batches = [torch.randint(0, 16, (64,)) for _ in range(2)]
        loss = lambda model, x: model(x).square().mean()  # noqa: E731
        figures.append(fp.analysis.sensitivity(model, batches, loss, recipes="FP8_TENSOR").rows)
    assert figures[0] == figures[1]
