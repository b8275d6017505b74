"""Results of layers that are computed again in slices: bits of training stay, but for slices of K."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.analysis.systems.memory.model_activations import recomputed_multiplications
from fpsim.testing import assert_bits_equal
from fpsim.torch.products import multiply
from fpsim.torch.replay import ProductReplay, cut_whole
from fpsim.train import Recompute, Settings, Trainer, recipes
from fpsim.train.slices import cut_evenly
from tests.kit.sweeps import in_turn
from tests.train.activations.test_activations import RECIPES, check_same, kept_bytes, plainly, trained

SLICED = ("FP32", "BF16", "DEEPSEEK_V3", "TE_HYBRID", "FP8_DELAYED", "UNIT_SCALING", "stochastic")
EVERY = ("*.qkv", "*.proj", "*.gate_up", "*.down", "head")


@in_turn(
    "name, recompute",
    [(name, recompute) for name in SLICED for recompute in (Recompute(1.0, "m", 3), Recompute(1.0, "n", 8))],
    some=[("FP32", Recompute(1.0, "m", 3)), ("FP8_DELAYED", Recompute(1.0, "n", 8)),
          ("stochastic", Recompute(1.0, "m", 3)), ("stochastic", Recompute(1.0, "n", 8))],
)  # fmt: skip
def test_slices_of_tokens_and_features_change_no_bit(name: str, recompute: Recompute) -> None:
    check_same(name, recompute)


@in_turn("layer", EVERY)
@in_turn("name", ["stochastic", "UNIT_SCALING", "DEEPSEEK_V3", "FP8_DELAYED", "rounded"], some=("stochastic",))
def test_slices_of_every_layer_change_no_bit(name: str, layer: str) -> None:
    check_same(name, Recompute(1.0, "n" if layer == "head" else "m", 2, layers=(layer,)))


@in_turn("name", ["stochastic", "UNIT_SCALING", "FP8_DELAYED", "rounded"], some=("UNIT_SCALING",))
def test_slices_of_all_layers_at_once_change_no_bit(name: str) -> None:
    check_same(name, Recompute(1.0, "n", 2, layers=EVERY))
    check_same(name, Recompute(0.5, "m", 4, layers=("*",)))


@in_turn("name", ["BF16", "FP8_DELAYED", "DEEPSEEK_V3", "stochastic"], some=("stochastic",))
def test_the_perceptron_computes_again_and_waits_in_files_too(name: str) -> None:
    settings: dict[str, Any] = {"model": "perceptron", "batch": 128, "context": 64}
    plain, measured = trained(RECIPES[name], 0.0, **settings)
    for recompute, offload in (
        (1.0, 0.0), (Recompute(1.0, "m", 4), 0.0), (Recompute(1.0, "n", 2, layers=("second",)), 0.0),
        (Recompute(1.0, "m", 2, layers=("head",)), 0.0), (0.0, 1.0), (Recompute(1.0, "m", 2, layers=("first",)), 1.0),
    ):  # fmt: skip
        state, figures = trained(RECIPES[name], recompute, offload=offload, **settings)
        for part, x in plain.items():
            assert_bits_equal(state[part], x)
        assert str(figures) == str(measured)


def test_a_run_with_named_layers_is_saved_and_goes_on(tmp_path: Path) -> None:
    again = Recompute(1.0, "k", 2, layers=("first",))
    settings: dict[str, Any] = {"steps": 2, "model": "perceptron", "measure": 0, "recompute": again}
    run = fp.train.run("BF16", out=tmp_path / "out", **settings)
    run.save(tmp_path / "run.json")
    loaded = fp.train.Run.load(tmp_path / "run.json")
    assert (loaded.settings, loaded.digest) == (run.settings, run.digest)
    assert fp.train.run("BF16", out=tmp_path / "out", **settings).losses == run.losses
    with pytest.raises(ValueError, match="recompute"):
        fp.train.run("BF16", out=tmp_path / "out", **{**settings, "recompute": Recompute(1.0, "k", 2)})


@in_turn("layer", EVERY, some=("*.qkv", "head"))
def test_slices_of_terms_of_every_layer_change_bits_a_little(layer: str) -> None:
    """They are float32 sums in another order."""
    plain, _ = plainly("FP32")
    state, _ = trained(recipes.FP32, Recompute(1.0, "k", 4, layers=(layer,)))
    assert float(state["losses"][0]) == float(plain["losses"][0])
    weights = [name for name in plain if name.startswith("model/") and name.endswith("weight")]
    apart = math.sqrt(sum(float(np.sum(np.square(state[name] - plain[name]))) for name in weights))
    assert 0 < apart < 1e-4 * math.sqrt(sum(float(np.sum(np.square(plain[name]))) for name in weights))


def test_slices_of_terms_change_bits() -> None:
    plain, _ = plainly("BF16")
    for recompute, same in ((Recompute(1.0, "k", 4), False), (Recompute(1.0, "k", 1), True)):
        state, _ = trained(recipes.BF16, recompute)
        assert all(np.array_equal(state[name], x) for name, x in plain.items()) is same
        assert float(state["losses"][0]) == float(plain["losses"][0])  # forwards nothing is sliced


def layer_of(k: int, recipe: Any, n: int = 64) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    return fp.torch.QuantLinear(k, n, bias=False, recipe=recipe), torch.randn(32, k)


@in_turn("recipe", [fp.torch.RECIPES["BF16"].replace(fprop=fp.torch.Product("hopper")), fp.torch.MXFP8])
def test_slices_of_terms_are_as_far_off_as_float32_sums_in_another_order(recipe: Any) -> None:
    recipe = recipe.replace(fprop=recipe.fprop.replace(out_fmt=None))
    layer, x = layer_of(2048, recipe)
    whole = layer(x).detach()
    got = ProductReplay(layer, x).over_terms(8)
    error = float((got - whole).norm() / whole.norm())
    assert 1e-8 < error < 1e-5


def test_slices_of_terms_are_the_sums_of_products_of_slices() -> None:
    layer, x = layer_of(512, fp.torch.RECIPES["BF16"].replace(fprop=fp.torch.Product("hopper", out_fmt="bf16")))
    codes = [fp.cast(each.detach().numpy(), "bf16") for each in (x, layer.weight)]
    parts = [
        fp.matmul(codes[0][:, part], codes[1][:, part].T, accumulate=layer.recipe.accumulator("fprop"))
        for part in cut_whole(512, 3, 1)
    ]
    total = (parts[0] + parts[1]) + parts[2]
    assert_bits_equal(ProductReplay(layer, x).over_terms(3).numpy(), fp.quantize(total, "bf16"))


@in_turn("name", ["DEEPSEEK_V3", "NVFP4", "TE_HYBRID", "BF16", "MXFP8", "FP8_RAW"])
@in_turn(
    "rows, columns", [(slice(0, 7), slice(0, 384)), (slice(5, 6), slice(128, 384)), (slice(0, 32), slice(128, 144))]
)
def test_a_part_of_a_product_has_the_bits_of_the_whole(name: str, rows: slice, columns: slice) -> None:
    torch.manual_seed(1)
    layer = fp.torch.QuantLinear(256, 384, recipe=fp.torch.RECIPES[name])
    x = torch.randn(32, 256)
    part = ProductReplay(layer, x).part(rows, columns)
    assert_bits_equal(part.detach().numpy(), layer(x).detach()[rows, columns].numpy())


@in_turn(
    "layers, share",
    [
        (("qkv",), 1.0), (("proj",), 0.5), (("down",), 1.0), (("head",), 0.5), (("proj", "down"), 1.0), (("*",), 0.5),
        (("*",), 1.0),
    ],
    some=((("down",), 1.0), (("proj", "down"), 1.0), (("*",), 0.5)),
)  # fmt: skip
def test_the_ledger_counts_what_is_kept_with_slices_of_any_layer(layers: tuple[str, ...], share: float) -> None:
    recompute = Recompute(share, "m", 4, layers=layers)
    trainer = Trainer(recipes.FP32, Settings(batch=8, context=16, recompute=recompute))
    ledger = fp.analysis.ledger(trainer.model, "FP32", tokens=128, checkpointing=recompute)
    held = sum(row.bytes for row in ledger.rows if "computed again" in row.part)
    held += 128 * 8 if {"head", "*"} & set(layers) else 0  # targets, which no graph keeps then
    assert ledger.of("activations") - held == kept_bytes(trainer)


@in_turn(
    "recompute",
    [
        Recompute(1.0), Recompute(1.0, "m", 2), Recompute(1.0, "m", 2, layers=("first",)),
        Recompute(1.0, "n", 2, layers=("second",)),
    ],
)  # fmt: skip
def test_the_ledger_counts_the_perceptron_with_recomputation(recompute: Recompute) -> None:
    settings: dict[str, Any] = {"model": "perceptron", "batch": 128}
    trainer = Trainer(recipes.FP32, Settings(**settings, recompute=recompute))
    ledger, plain = (
        fp.analysis.ledger(trainer.model, "FP32", tokens=128, checkpointing=again) for again in (recompute, 1.0)
    )
    later = sum(row.bytes for row in ledger.rows if "computed again" in row.part)
    assert ledger.of("activations") - later == kept_bytes(trainer) < plain.of("activations")
    multiplications = 128 * (128 * 256 + 256 * 256 + 256 * 10)
    assert ledger.recompute_cost == more_multiplications(recompute, **settings) / (3 * multiplications)


def test_slices_keep_nothing_of_swiglu() -> None:
    plain, sliced = (
        kept_bytes(Trainer(recipes.BF16, Settings(batch=8, context=16, recompute=recompute)))
        for recompute in (0.0, Recompute(0.5, "m", 4))
    )
    assert plain - sliced == 128 * 512 * 4  # tokens x gate and up x float32 of the emulation
    whole, less = (
        fp.analysis.ledger(fp.train.model.Config(96, context=16), "BF16", tokens=128, checkpointing=recompute)
        for recompute in (1.0, Recompute(0.5, "m", 4))
    )
    assert whole.of("activations") - less.of("activations") == 128 * 512 * 2


def more_multiplications(recompute: Recompute, **settings: Any) -> int:
    """The number of multiplications of layers' products that recomputation adds to a step in BF16."""
    sizes: list[int] = []

    def counted(a: Any, b: Any, turned: str, *rest: Any) -> Any:
        sizes.append(a.source.size * b.source.shape[0 if turned == "b" else 1])
        return multiply(a, b, turned, *rest)

    counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fpsim.torch.linear_products.multiply", counted)
        patch.setattr("fpsim.torch.replay.multiply", counted)
        for again in (0.0, recompute):
            sizes.clear()
            Trainer(recipes.BF16, Settings(**settings, measure=0, recompute=again)).step()
            counts.append(sum(sizes))
    return counts[1] - counts[0]


@in_turn(
    "recompute",
    [
        Recompute(0.5), Recompute(1.0), Recompute(1.0, "m", 4), Recompute(0.5, "n", 2),
        Recompute(0.5, "m", 4, layers=("*",)),
    ],
)  # fmt: skip
def test_multiplications_are_those_of_the_products_that_run_again(recompute: Recompute) -> None:
    config = Trainer(recipes.BF16, Settings(batch=8, context=16)).model.config
    attends = recompute.by == "layer" or recompute.layers == ("*",)  # by products of its own
    attention = 2 * config.width * 16 * 128 * recompute.blocks(2) if attends else 0
    more = more_multiplications(recompute, batch=8, context=16)
    assert more == recomputed_multiplications(config, 128, recompute) - attention


def test_lengths_are_cut_at_tiles_or_within_them() -> None:
    assert cut_evenly(10, 3) == [slice(0, 3), slice(3, 6), slice(6, 10)]
    assert cut_evenly(256, 4, 128) == [slice(0, 64), slice(64, 128), slice(128, 192), slice(192, 256)]
    with pytest.raises(ValueError, match=r"the tiles of 128 that share a scale along 256 elements, .* got 3"):
        cut_evenly(256, 3, 128)
