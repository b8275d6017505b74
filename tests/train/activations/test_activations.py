"""Activations that are computed again, or wait in files: bits of training stay, but for slices of K."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.analysis.systems.memory import recompute_plan
from fpsim.testing import assert_bits_equal
from fpsim.train import Numerics, Recipe, Recompute, Settings, Trainer, recipes
from fpsim.train.activations import Offload, apply_recompute
from fpsim.train.model import Config, Transformer
from fpsim.train.settings import recompute_of
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


def test_torchs_own_checkpointing_repeats_random_draws() -> None:
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
    assert torch.equal(*grads)


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
            "layer 'blocks.0.attn.qkv' cannot be recomputed by slices: ",
        ),
        (lambda: Settings(recompute=-1), "recompute must be a finite number >= 0 up to 1; got -1"),
        (
            lambda: Trainer(recipes.FP32, Settings(arithmetic="torch", recompute=Recompute(1.0, "m", 2))),
            "whose bits depend on the shape",
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
            "budget must be at least [0-9,]+ bytes, the least that any recomputation needs",
        ),
        (
            lambda: fp.analysis.recompute_plan(fp.train.model.Config(96), "BF16", tokens=512, budget=0),
            "budget must be a number of bytes > 0; got 0",
        ),
        (
            lambda: fp.analysis.recompute_plan(fp.train.model.Config(96), "BF16", tokens=512, budget=math.inf),
            "budget must be a number of bytes > 0; got inf",
        ),
    ],
)
def test_what_cannot_be_computed_again_is_refused(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_a_plan_for_many_layers_measures_few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Recompute] = []
    blockwise = vars(recompute_plan)["blockwise"]

    def counted(config: Config, recipe: Recipe, tokens: int, again: Recompute) -> Any:
        calls.append(again)
        return blockwise(config, recipe, tokens, again)

    monkeypatch.setattr(recompute_plan, "blockwise", counted)
    plan = fp.analysis.recompute_plan(Config(96, layers=40), "BF16", tokens=512, budget=6e7)
    assert 0 < plan.recompute.share < 1
    assert len(calls) < 120  # some 1,000 if every share of the blocks were cut into 1, 2, 4, ... slices


def test_saved_tensors_of_a_model_without_elements_have_their_sizes() -> None:
    def saved(device: str) -> tuple[Any, ...]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
        return fp.analysis.saved_tensors(model, torch.ones(3, 4, device=device)).rows

    assert saved("meta") == saved("cpu")
    assert [(row.layer, row.bytes, row.input_of) for row in saved("meta")] == [("0", 48, "0"), ("1", 96, "2")]


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_saved_sparse_tensors_count_their_indices_and_values(layout: str) -> None:
    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.sparse.mm(x, self.weight)
            return result

    saved = fp.analysis.saved_tensors(Sparse(), getattr(torch.eye(4), layout)())
    assert saved.rows[-1].bytes == 16
    assert {row.dtype for row in saved.rows} == {"int64", "float32"}


def test_a_count_of_parameters_may_be_a_float_of_numpy() -> None:
    count: Any = np.float32(1024)
    assert fp.analysis.ledger(count, "BF16") == fp.analysis.ledger(1024, "BF16")
