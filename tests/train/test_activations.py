"""Activations that are computed again, or wait in files: bits of training stay, but for slices of K."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.analysis.systems.memory.model_activations import recomputed_multiplications
from fpsim.testing import assert_bits_equal
from fpsim.torch.products import multiply
from fpsim.torch.replay import ProductReplay, cut_whole
from fpsim.train import Numerics, Recipe, Recompute, Settings, Trainer, recipes
from fpsim.train.activations import Offload, apply_recompute
from fpsim.train.model import Config, Transformer
from fpsim.train.settings import recompute_of
from fpsim.train.slices import cut_evenly
from tests.kit.sweeps import in_turn

DRAWN = recipes.NVFP4.replace(linear=fp.torch.NVFP4.replace(rounding="stochastic", name=""))
ROUNDED = recipes.BF16.replace(numerics=Numerics("bf16", "bf16", "fp16"))
# draws, delayed scales, formats of stored activations, factors of unit scaling, small weights, and rounded norms
RECIPES: dict[str, Recipe] = {
    "FP32": recipes.FP32, "BF16": recipes.BF16, "DEEPSEEK_V3": recipes.DEEPSEEK_V3, "MXFP8": recipes.MXFP8,
    "TE_HYBRID": recipes.TE_HYBRID, "FP8_DELAYED": recipes.FP8_DELAYED, "UNIT_SCALING": recipes.UNIT_SCALING,
    "BF16_WEIGHTS_STOCHASTIC": recipes.BF16_WEIGHTS_STOCHASTIC, "stochastic": DRAWN, "rounded": ROUNDED,
    "DEEPSEEK_V3_STASH": recipes.DEEPSEEK_V3_STASH,
}  # fmt: skip
SLICED = ("FP32", "BF16", "DEEPSEEK_V3", "TE_HYBRID", "FP8_DELAYED", "UNIT_SCALING", "stochastic")
SOME = ("FP8_DELAYED", "BF16_WEIGHTS_STOCHASTIC", "UNIT_SCALING", "stochastic")
STEPS = 2
WRONG: Any = 3


def trained(recipe: Recipe, recompute: Any, **settings: Any) -> tuple[dict[str, Any], list[Any]]:
    """All that a trainer keeps after some steps, and what it measured."""
    fields: dict[str, Any] = {"steps": STEPS, "batch": 8, "context": 16, "micro_batches": 2, "measure": 1, **settings}
    trainer = Trainer(recipe, Settings(**fields, recompute=recompute))
    losses = [trainer.step()["loss"] for _ in range(STEPS)]
    return {**trainer.state()[0], "losses": np.array(losses)}, trainer.measured


@cache
def plainly(name: str) -> tuple[dict[str, Any], list[Any]]:
    return trained(RECIPES[name], 0.0)


def check_same(name: str, recompute: Any) -> None:
    """That weights, moments, scales, losses and figures of every product have the bits of training without it."""
    plain, measured = plainly(name)
    found, figures = trained(RECIPES[name], recompute)
    assert list(found) == list(plain)
    for name, x in plain.items():
        assert_bits_equal(found[name], x)
    assert str(figures) == str(measured)  # as text, where NaN equals NaN


@in_turn("name", RECIPES, some=SOME)
def test_whole_blocks_computed_again_change_no_bit(name: str) -> None:
    check_same(name, 1.0)


def test_a_share_of_the_blocks_changes_no_bit() -> None:
    check_same("stochastic", 0.5)


EVERY = ("*.qkv", "*.proj", "*.gate_up", "*.down", "head")


@in_turn("name", SLICED, some=("FP32", "FP8_DELAYED", "stochastic"))
@in_turn("recompute", [Recompute(1.0, "m", 3), Recompute(1.0, "n", 8)])
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


@in_turn("name", ["BF16", "FP8_DELAYED", "DEEPSEEK_V3", "stochastic"], some=("FP8_DELAYED", "stochastic"))
def test_the_perceptron_computes_again_and_waits_in_files_too(name: str) -> None:
    settings: dict[str, Any] = {"model": "perceptron", "batch": 128, "context": 64}
    plain, measured = trained(RECIPES[name], 0.0, **settings)
    for recompute, offload in (
        (1.0, 0.0), (Recompute(1.0, "m", 4), 0.0), (Recompute(1.0, "n", 2, layers=("second",)), 0.0),
        (Recompute(1.0, "m", 2, layers=("head",)), 0.0), (0.0, 1.0), (Recompute(1.0, "m", 2, layers=("first",)), 1.0),
    ):  # fmt: skip
        found, figures = trained(RECIPES[name], recompute, offload=offload, **settings)
        for part, x in plain.items():
            assert_bits_equal(found[part], x)
        assert str(figures) == str(measured)


@in_turn("layer", EVERY, some=("*.qkv", "head"))
def test_slices_of_terms_of_every_layer_change_bits_a_little(layer: str) -> None:
    """They are float32 sums in another order."""
    plain, _ = plainly("FP32")
    found, _ = trained(recipes.FP32, Recompute(1.0, "k", 4, layers=(layer,)))
    assert float(found["losses"][0]) == float(plain["losses"][0])
    weights = [name for name in plain if name.startswith("model/") and name.endswith("weight")]
    apart = math.sqrt(sum(float(np.sum(np.square(found[name] - plain[name]))) for name in weights))
    assert 0 < apart < 1e-4 * math.sqrt(sum(float(np.sum(np.square(plain[name]))) for name in weights))


def test_slices_of_terms_change_bits() -> None:
    plain, _ = plainly("BF16")
    for recompute, same in ((Recompute(1.0, "k", 4), False), (Recompute(1.0, "k", 1), True)):
        found, _ = trained(recipes.BF16, recompute)
        assert all(np.array_equal(found[name], x) for name, x in plain.items()) is same
        assert float(found["losses"][0]) == float(plain["losses"][0])  # forwards nothing is sliced


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


def test_without_a_replay_stochastic_rounding_draws_anew() -> None:
    # what torch's own checkpointing does to a layer that counts its forward passes
    trainer = Trainer(DRAWN, Settings(batch=8, context=16, measure=0))
    block, grads = trainer.model.blocks[0], []
    trainer.follow()
    for again in (False, True):
        trainer.model.zero_grad()
        for layer in trainer.layers.values():
            if layer.steps is not None:
                layer.steps.zero_()
        x = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 16, 128)).astype(np.float32)).requires_grad_()
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if again else block(x)
        y.square().sum().backward()
        grads.append(block.mlp.down.weight.grad.clone())
    assert not torch.equal(*grads)


# ---- files


@in_turn("name", ["FP32", "stochastic", "FP8_DELAYED", "DEEPSEEK_V3_STASH"], some=("stochastic", "DEEPSEEK_V3_STASH"))
@in_turn("recompute", [0.0, 0.5])
def test_activations_that_wait_in_files_change_no_bit(name: str, recompute: float) -> None:
    plain, _ = plainly(name)
    found, _ = trained(RECIPES[name], recompute, offload=1.0)
    for part, x in plain.items():
        assert_bits_equal(found[part], x)


def test_files_hold_what_autograd_keeps_and_are_gone_after_the_backward_pass() -> None:
    trainer = Trainer(recipes.FP32, Settings(batch=8, context=16, measure=0, offload=0.5))
    trainer.step()
    traffic = trainer.traffic
    assert traffic is not None
    sizes: list[int] = []
    block = Trainer(recipes.FP32, Settings(batch=8, context=16)).model.blocks[0]
    own_bytes = {x.data_ptr() for x in block.parameters()}

    def pack(x: torch.Tensor) -> torch.Tensor:
        sizes.append(0 if x.untyped_storage().data_ptr() in own_bytes else x.numel() * x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        block(torch.zeros(8, 16, 128, requires_grad=True))
    assert traffic.written == traffic.read == traffic.most == sum(sizes)
    assert traffic.held == 0
    assert Trainer(recipes.FP32, Settings(batch=8, context=16)).traffic is None


@in_turn("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_a_tensor_comes_back_from_its_file_with_its_strides(dtype: torch.dtype) -> None:
    offload = Offload()
    base = torch.arange(24).reshape(2, 3, 4).to(dtype)
    for x in (base, base.permute(2, 0, 1), base[:, 1], base[:0], base[:1].expand(3, 3, 4)):
        kept = offload.store(x)
        loaded = offload.load(kept)
        assert torch.equal(loaded, x)
        assert loaded.dtype == x.dtype
    assert offload.load(offload.store(base.permute(2, 0, 1))).stride() == base.permute(2, 0, 1).stride()
    kept = offload.store(base)
    kept.path.write_bytes(b"x")
    with pytest.raises(ValueError, match="must hold the activation that was written"):
        offload.load(kept)
    del kept
    assert offload.traffic.held == 0


# ---- memory and compute


def kept_bytes(trainer: Trainer) -> int:
    """Bytes that autograd keeps of a micro-batch."""
    settings = trainer.settings
    batch = trainer.data.batch(settings.seed, 0, 0, batch=settings.batch, context=settings.context)
    trainer.follow()
    report = fp.analysis.saved_tensors(trainer.model, batch, lambda model, pair: trainer.loss(*pair))
    return report.bytes


@in_turn("share, arithmetic", [(0.0, "specified"), (0.5, "specified"), (1.0, "specified"), (0.5, "torch")])
def test_the_ledger_counts_what_is_kept_with_whole_blocks_computed_again(share: float, arithmetic: str) -> None:
    trainer = Trainer(recipes.FP32, Settings(batch=8, context=16, recompute=share, arithmetic=arithmetic))
    ledger = fp.analysis.ledger(trainer.model, "FP32", tokens=128, checkpointing=1 - share)
    later = sum(row.bytes for row in ledger.rows if "computed again" in row.part)
    assert ledger.of("activations") - later == kept_bytes(trainer)
    assert ledger.recomputed == 2 * share


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
    found = fp.analysis.ledger(trainer.model, "FP32", tokens=128, checkpointing=recompute)
    held = sum(row.bytes for row in found.rows if "computed again" in row.part)
    held += 128 * 8 if {"head", "*"} & set(layers) else 0  # targets, which no graph keeps then
    assert found.of("activations") - held == kept_bytes(trainer)


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
    found, plain = (
        fp.analysis.ledger(trainer.model, "FP32", tokens=128, checkpointing=again) for again in (recompute, 1.0)
    )
    later = sum(row.bytes for row in found.rows if "computed again" in row.part)
    assert found.of("activations") - later == kept_bytes(trainer) < plain.of("activations")
    multiplications = 128 * (128 * 256 + 256 * 256 + 256 * 10)
    assert found.recompute_cost == more_multiplications(recompute, **settings) / (3 * multiplications)


@in_turn("share", [0.0, 0.5, 1.0])
def test_the_ledger_is_within_2_percent_of_torchs_mem_tracker_after_a_forward_pass(share: float) -> None:
    tracked = pytest.importorskip("torch.distributed._tools.mem_tracker")
    model = Transformer(Config(96, layers=4), seed=0)
    apply_recompute(model, Recompute(share))
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 96, (8, 64)))
    tracker = tracked.MemTracker()
    tracker.track_external(model)
    with tracker:
        loss = torch.nn.functional.cross_entropy(model(codes).reshape(-1, 96), codes.reshape(-1))
        alive = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
    assert loss.requires_grad
    ledger = fp.analysis.ledger(model, "FP32", tokens=512, checkpointing=1 - share)
    later = sum(row.bytes for row in ledger.rows if "computed again" in row.part)
    assert ledger.of("parameters") + ledger.of("activations") - later == pytest.approx(alive, rel=0.02)


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
    found = more_multiplications(recompute, batch=8, context=16)
    assert found == recomputed_multiplications(config, 128, recompute) - attention


@in_turn("budget", [1e9, 13e6, 12.5e6, 11e6, 8e6, 4.5e6])
def test_a_plan_keeps_to_its_budget_for_the_least_work(budget: float) -> None:
    config = fp.train.model.Config(vocabulary=96, layers=4)
    plan = fp.analysis.recompute_plan(config, "BF16", tokens=512, budget=budget)
    ledger = fp.analysis.ledger(config, "BF16", tokens=512, checkpointing=plan.recompute)
    assert ledger.of("activations") == plan.bytes <= budget
    for share in range(5):
        for other in (Recompute(share / 4), Recompute(share / 4, "m", 64)):
            report = fp.analysis.ledger(config, "BF16", tokens=512, checkpointing=other)
            assert report.of("activations") > budget or report.recompute_cost >= plan.cost


def test_slices_are_as_fine_as_the_budget_asks() -> None:
    wide = fp.train.model.Config(vocabulary=8, layers=1, hidden=4096)

    def size(slices: int) -> int:
        again = Recompute(1.0, "m", slices)
        return fp.analysis.ledger(wide, "BF16", tokens=512, checkpointing=again).of("activations")

    assert size(1) > size(2) == size(4)  # what the backward pass has freed holds half of it
    plans = [fp.analysis.recompute_plan(wide, "BF16", tokens=512, budget=size(slices)) for slices in (1, 2)]
    assert [plan.recompute.slices for plan in plans] == [1, 2]


# ---- refusals and files


def test_a_run_goes_on_with_another_share(tmp_path: Any) -> None:
    found = [
        fp.train.run("BF16", steps=2, batch=8, context=16, measure=0, out=tmp_path, recompute=recompute).losses
        for recompute in (0.0, 1.0)
    ]
    assert found[0] == found[1]
    with pytest.raises(ValueError, match="recompute"):
        fp.train.run("BF16", steps=2, batch=8, context=16, out=tmp_path, recompute=Recompute(1.0, "k", 2))


def test_lengths_are_cut_at_tiles_or_within_them() -> None:
    assert cut_evenly(10, 3) == [slice(0, 3), slice(3, 6), slice(6, 10)]
    assert cut_evenly(256, 4, 128) == [slice(0, 64), slice(64, 128), slice(128, 192), slice(192, 256)]
    with pytest.raises(ValueError, match=r"the tiles of 128 that share a scale along 256 elements, .* got 3"):
        cut_evenly(256, 3, 128)


@in_turn(
    "call, words",
    [
        (lambda: Recompute(2.0), "share must be a finite number >= 0 up to 1; got 2.0"),
        (lambda: Recompute(1.0, "rows"), "by must be one of layer, m, n, k; got 'rows'"),
        (lambda: Recompute(1.0, "m", 0), "slices must be an integer >= 1"),
        (lambda: Recompute(1.0, slices=2), "slices are for by='m', 'n' or 'k'; got 2"),
        (lambda: recompute_of("all"), "recompute must be a share of the blocks, or an fp.train.Recompute; got 'all'"),
        (lambda: Settings(offload=2), "offload must be a finite number >= 0 up to 1; got 2"),
        (lambda: Recompute(1.0, "m", 2, layers=()), r"layers must be patterns of linear layers, .* got \(\)"),
        (lambda: Recompute(1.0, "m", 2, layers=(WRONG,)), r"layers must be patterns of linear layers, .* got \(3,\)"),
        (lambda: Recompute(1.0, layers=("qkv",)), "layers are for by='m', 'n' or 'k'; by='layer' computes whole"),
        (
            lambda: Trainer(recipes.BF16, Settings(recompute=Recompute(1.0, "m", 2, layers=("qvk",)))),
            "layers of recompute must name linear layers; 'qvk' matches none of",
        ),
        (
            lambda: Trainer(recipes.BF16, Settings(model="perceptron", recompute=Recompute(1.0, "m", layers=("*",)))),
            "must be the perceptron's head, or first and second",
        ),
        (
            lambda: Trainer(recipes.DEEPSEEK_V3, Settings(recompute=Recompute(1.0, "n", 7, layers=("qkv",)))),
            "layer 'blocks.0.attn.qkv' cannot be recomputed so: ",
        ),
        (lambda: Settings(recompute=-1), "recompute must be a finite number >= 0 up to 1; got -1"),
        (
            lambda: Trainer(recipes.FP32, Settings(arithmetic="torch", recompute=Recompute(1.0, "m", 2))),
            "whose bits depend on its shape",
        ),
        (
            lambda: Trainer(
                recipes.BF16, Settings(backend="float32", arithmetic="torch", recompute=Recompute(1.0, "m", 2))
            ),
            "a matrix unit or an accumulator adds",
        ),
        (
            lambda: Trainer(recipes.DEEPSEEK_V3_STASH, Settings(recompute=Recompute(1.0, "m", 2))),
            "both say what blocks.0.mlp.act keeps",
        ),
        (
            lambda: Trainer(recipes.DEEPSEEK_V3, Settings(recompute=Recompute(1.0, "k", 2))),
            "slices must be at most 1, the tiles of 128 .* along 128 elements; got 2",
        ),
        (
            lambda: fp.analysis.recompute_plan(fp.train.model.Config(96), "BF16", tokens=512, budget=1e5),
            "budget must be at least [0-9,]+ bytes, the least that recomputation reaches",
        ),
        (
            lambda: fp.analysis.recompute_plan(fp.train.model.Config(96), "BF16", tokens=512, budget=0),
            "budget must be a number of bytes > 0; got 0",
        ),
    ],
)
def test_what_cannot_be_computed_again_is_refused(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()
