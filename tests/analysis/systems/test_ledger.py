"""The ledger: bytes are those that the trainer and torch allocate, and published figures come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import fpsim as fp
from fpsim.analysis.systems.memory.report import KINDS, Ledger
from fpsim.scaling.storage import stored_bits
from fpsim.train import Numerics, Recipe, Recompute, Settings, Trainer, recipes
from fpsim.train.model import Config, Perceptron, Transformer
from fpsim.train.operations.operations import Operations
from tests.kit.sweeps import in_turn

NO_MODEL: Any = "x"
SMALL: dict[str, Any] = {"batch": 8, "context": 16, "measure": 0}


def trainer_of(recipe: Recipe, **settings: Any) -> Trainer:
    return Trainer(recipe, Settings(**{**SMALL, **settings}))


def saved_by(trainer: Trainer) -> Any:
    """What autograd keeps in a micro-batch of a trainer."""
    settings = trainer.settings
    inputs, targets = trainer.data.batch(settings.seed, 0, 0, batch=settings.batch, context=settings.context)
    trainer.follow()

    def loss(_: Any, batch: Any) -> Any:
        return trainer.loss(*batch)

    return fp.analysis.saved_tensors(trainer.model, (inputs, targets), loss)


# ---- published figures


def test_the_example_of_zero_comes_out() -> None:
    # arXiv:1910.02054, figure 1: 7.5 billion parameters, 64 ranks, K = 12
    found = [fp.analysis.ledger(7_500_000_000, "FP16_MASTERS", ranks=64, zero=stage) for stage in range(4)]
    assert [f"{one.rank_bytes / 1e9:.1f}" for one in found] == ["120.0", "31.4", "16.6", "1.9"]
    assert [one.bytes for one in found] == [120_000_000_000] * 4
    assert fp.analysis.ledger(7.5e9, "FP16_MASTERS", ranks=64, zero=3) == found[3]
    assert found[1].rank_bytes == 7_500_000_000 * 4 + 7_500_000_000 // 64 * 12


@in_turn(
    "name, each", [("FP32", 16), ("FP16_MASTERS", 16), ("BF16", 18), ("BF16_MOMENTS", 14), ("BF16_WEIGHTS_NEAREST", 14)]
)
def test_bytes_of_a_parameter_are_those_of_its_copies(name: str, each: int) -> None:
    assert fp.analysis.ledger(1000, name).bytes == 1000 * each


def test_deepseek_v3_keeps_12_bytes_a_parameter_and_one_for_its_fp8_copy() -> None:
    # facts of arXiv:2412.19437: FP32 masters and gradients, BF16 moments
    ledger = fp.analysis.ledger(128 * 128 * 1000, "DEEPSEEK_V3")
    assert ledger.of("copies") == 128 * 128 * 1000
    assert ledger.of("scales") == 4 * 1000
    assert ledger.bytes == 13 * 128 * 128 * 1000 + 4000


@in_turn("share, cost", [(0.25, 0.25), (0.0, 1 / 3), (1.0, 0.0)])
def test_recomputing_three_quarters_of_a_forward_pass_is_a_quarter_of_a_step(share: float, cost: float) -> None:
    deep = Config(vocabulary=1, layers=120, context=1)  # so deep that the head weighs nothing
    assert fp.analysis.ledger(deep, "BF16", tokens=64, checkpointing=share).recompute_cost == pytest.approx(cost, 1e-4)


def test_micro_batches_share_activations_alone() -> None:
    one, four = (fp.analysis.ledger(Config(96), "BF16", tokens=1024, micro_batches=n) for n in (1, 4))
    state = one.bytes - one.of("activations") - one.of("activation gradients")
    assert four.bytes - four.of("activations") - four.of("activation gradients") == state
    assert one.of("activations") / four.of("activations") == pytest.approx(4, rel=1e-2)  # masks are the same


# ---- what is allocated


SIZES: list[dict[str, Any]] = [{}, {"batch": 4, "context": 32}, {"model": "perceptron", "batch": 64}]


@in_turn("settings", [*SIZES, *({"arithmetic": "torch", **size} for size in SIZES[1:])])
def test_in_float32_activations_are_the_bytes_that_autograd_saves(settings: dict[str, Any]) -> None:
    trainer = trainer_of(recipes.FP32, **settings)
    ledger = fp.analysis.ledger(trainer.model, trainer.recipe, tokens=trainer.settings.tokens)
    assert ledger.of("activations") == saved_by(trainer).bytes


ROUNDED = recipes.BF16.replace(numerics=Numerics("bf16", "bf16", None, fp.Sequential(fp.FP16)))


@in_turn("arithmetic", ["specified", "torch"])
@in_turn("recipe", [recipes.DEEPSEEK_V3, recipes.BF16, recipes.UNIT_SCALING, recipes.MXFP8, ROUNDED])
def test_the_emulation_saves_the_same_numbers_in_float32(recipe: Recipe, arithmetic: str) -> None:
    trainer = trainer_of(recipe, context=64, arithmetic=arithmetic)
    ledger = fp.analysis.ledger(trainer.model, recipe, tokens=trainer.settings.tokens)
    wide = {"int64": 8, "bool": 1}
    counted = sum(row.elements * wide.get(row.format, 4) for row in ledger.rows if row.kind == "activations")
    saved = saved_by(trainer)
    scalars = sum(row.bytes for row in saved.rows if not row.shape)  # counts of steps and targets
    assert counted - scalars_counted(ledger) == saved.bytes - scalars


def scalars_counted(found: Ledger) -> int:
    return sum(4 for row in found.rows if row.part == "loss: number of targets")


@in_turn("name", ["FP32", "BF16_MOMENTS", "BF16_WEIGHTS_KAHAN", "FP16_MASTERS"])
def test_the_optimizer_holds_as_many_numbers_as_the_ledger_counts(name: str) -> None:
    trainer = trainer_of(recipes.ROWS[name])
    ledger = fp.analysis.ledger(trainer.model, trainer.recipe)
    held: dict[str, int] = {}
    for kept, tensor in trainer.optimizer._tensors():
        kind = kept.partition("/")[0].replace("_", " ")
        held[kind] = held.get(kind, 0) + tensor.numel()
    parts = {row.part: row.elements for row in ledger.rows if row.kind in ("masters", "moments")}
    weights = sum(x.numel() for x in trainer.model.parameters())
    assert parts == {kind: count for kind, count in held.items() if kind != "weights" or "weights" in parts}
    assert set(held.values()) == {weights} == {ledger.parameters}
    assert ledger.of("masters") > 0 or name in ("FP32", "BF16_MOMENTS")


def test_histories_of_delayed_scales_are_those_of_the_layers() -> None:
    trainer = trainer_of(recipes.FP8_DELAYED, context=64)
    trainer.follow()
    held = sum(layer.scales.numel() * 4 for layer in trainer.layers.values() if layer.scales is not None)
    rows = {row.part: row.bytes for row in fp.analysis.ledger(trainer.model, trainer.recipe).rows}
    assert rows["of earlier steps"] == held > 0


def test_a_step_in_float32_is_within_2_percent_of_torchs_mem_tracker() -> None:
    tracked = pytest.importorskip("torch.distributed._tools.mem_tracker")
    model = Transformer(Config(96, context=32, layers=2), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 96, (8, 32)))
    tracker = tracked.MemTracker()
    tracker.track_external(model, optimizer)

    def alive() -> int:
        return int(tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"])

    with tracker:
        for _ in range(2):  # moments are there from the second step on
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(model(codes).reshape(-1, 96), codes.reshape(-1))
            after_forward = alive()
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
            optimizer.step()
            tracker.reset_mod_stats()
        between = alive()
    ledger = fp.analysis.ledger(model, "FP32", tokens=codes.numel())
    kept = ledger.bytes - ledger.of("activation gradients")
    assert between == pytest.approx(kept - ledger.of("activations"), rel=0.02)
    assert after_forward == pytest.approx(kept, rel=0.02)


@in_turn("vocabulary, less", [(4096, 0.001), (96, 0.1)])
def test_the_peak_of_a_backward_pass_is_that_of_torchs_mem_tracker_but_for_temporaries(
    vocabulary: int, less: float
) -> None:
    tracked = pytest.importorskip("torch.distributed._tools.mem_tracker")
    model = Transformer(Config(vocabulary, context=32, layers=2), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, (8, 32)))
    tracker = tracked.MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        for _ in range(2):  # moments are there from the second step on
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(model(codes).reshape(-1, vocabulary), codes.reshape(-1))
            loss.backward()  # type: ignore[no-untyped-call]
            peak = int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
            del loss
            optimizer.step()
            tracker.reset_mod_stats()
    ledger = fp.analysis.ledger(model, "FP32", tokens=codes.numel())
    assert ledger.of("activation gradients") > 0
    assert (1 - less) * peak <= ledger.bytes <= 1.001 * peak


def test_gradients_of_activations_are_counted_only_with_tokens() -> None:
    assert "activation gradients" not in fp.analysis.ledger(7.5e9, "FP16_MASTERS").by_kind
    perceptron = fp.analysis.ledger(Perceptron(0), "FP32", tokens=128)
    row = perceptron.rows[-1]
    assert row.kind == "activation gradients"
    assert row.part == "at the peak, in head"
    assert row.elements == 128 * (10 + 256)  # gradients of the result and of the input


@in_turn("again", [0.5, Recompute(1.0, "m", 4), Recompute(0.5, "k", 2)])
def test_recomputation_lowers_the_peak(again: Any) -> None:
    deep = Config(96, layers=8)
    whole = fp.analysis.ledger(deep, "BF16", tokens=512)
    ledger = fp.analysis.ledger(deep, "BF16", tokens=512, checkpointing=again)
    assert 0 < ledger.bytes < whole.bytes
    assert ledger.of("activation gradients") > 0


def test_another_module_counts_what_autograd_saves() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
    saved = fp.analysis.saved_tensors(model, torch.ones(16, 64))
    sizes = [16 * 64 * 4, 16 * 128 * 4, 16 * 128 * 4]  # input, input of GELU, input of the last layer
    assert [row.bytes for row in saved.rows] == sizes
    assert [row.input_of for row in saved.rows] == ["0", "", "2"]
    assert fp.analysis.ledger(model, "FP32", saved=saved).of("activations") == sum(sizes)
    half = fp.analysis.ledger(model, recipes.BF16, saved=saved)
    assert half.of("activations") == sizes[0] // 2 + sizes[1] + sizes[2] // 2
    assert half.of("copies") == 2 * (64 * 128 + 128 * 32)
    kept = fp.analysis.ledger(model, recipes.BF16.replace(keep=("2",)), saved=saved)
    assert kept.of("copies") == 2 * 64 * 128


def test_views_of_a_storage_and_weights_count_once_or_not_at_all() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, :4] * x[:, 4:]).sum() + (x * self.weight).sum()

    assert [row.bytes for row in fp.analysis.saved_tensors(Twice(), torch.ones(8, 8)).rows] == [8 * 8 * 4]


def test_a_weight_that_layers_share_counts_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False))
    model[1].weight = model[0].weight
    assert fp.analysis.ledger(model, "BF16").by_kind["copies"] == 2 * 64 * 64
    assert fp.analysis.ledger(model, "BF16").parameters == 64 * 64


@pytest.mark.parametrize("recipe", ["FP32", "FP16_MASTERS", "BF16_WEIGHTS_KAHAN"])
def test_frozen_parameters_have_no_gradients_masters_or_moments(recipe: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 8))
    trained = fp.analysis.ledger(model[1], recipe)
    model[0].requires_grad_(False)
    frozen = fp.analysis.ledger(model, recipe)

    def elements(ledger: Any, kinds: set[str]) -> list[int]:
        return [row.elements for row in ledger.rows if row.kind in kinds]

    kept = {"gradients", "masters", "moments"}
    assert elements(frozen, kept) == elements(trained, kept) == [264] * len(elements(trained, kept))
    assert elements(frozen, {"parameters"}) == [64 * 32 + 32 + 264]
    model.requires_grad_(False)
    assert {row.kind for row in fp.analysis.ledger(model, recipe).rows} <= {"parameters", "copies", "scales"}


def test_a_shape_needs_no_memory() -> None:
    huge = Config(vocabulary=129_280, context=4096, width=8192, heads=64, layers=80, hidden=28_672)
    assert fp.analysis.ledger(huge, "BF16").parameters > 70e9


def test_a_rank_holds_whole_elements() -> None:
    ledger = fp.analysis.ledger(10, "FP16_MASTERS", ranks=4, zero=3)
    assert ledger.rank_bytes == 3 * 16  # 10 parameters on 4 ranks


def test_a_shape_and_its_model_have_one_ledger() -> None:
    config = Config(96, context=16)
    names = ("DEEPSEEK_V3", "NVFP4", "MXFP8")
    for name in names:
        whole = fp.analysis.ledger(Transformer(config, 1, Operations(specified=True)), name, tokens=64)
        assert whole == fp.analysis.ledger(config, name, tokens=64)


# ---- bits of formats


@in_turn("shape", [(128, 256), (3, 200), (130, 65), (1, 1)])
@in_turn("fmt, scaling", [("e4m3", "TILE_1X128"), ("e2m1", "NVFP4"), ("int8", "ROW"), ("e5m2", "TENSOR"),
                          ("e3m2", "MX"), ("e4m3", "BLOCK_128X128")])  # fmt: skip
def test_bits_are_those_of_an_encoded_array(fmt: str, scaling: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    bits = stored_bits(fmt, scaling, shape)
    packed = fp.encode_scaled(x, fmt, fp.scalings.__getattribute__(scaling))
    assert -(-(bits.codes + bits.scales) // 8) == packed.nbytes
    assert bits.scales == packed.scale_bits


@in_turn("fmt, fields", [("uint4", {"symmetric": False}), (fp.LogFMT(8), {}), (fp.LogFMT(8), {"tensor_scale": True,
                         "scale_format": "e4m3"})])  # fmt: skip
def test_zero_points_and_steps_count_as_scales(fmt: Any, fields: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    scaling = fp.Scaling(block=(1, 64), **fields)
    assert stored_bits(fmt, scaling, x.shape).scales == fp.encode_scaled(x, fmt, scaling).scale_bits


def test_what_fills_up_tiles_and_rows_is_padding() -> None:
    assert stored_bits("e2m1", None, (3, 5)).padding == 3 * 4  # a row of 20 bits takes 3 bytes
    assert stored_bits("tf32", None, (4, 4)).total == 16 * 32
    padded = stored_bits("e4m3", "BLOCK_128X128", (130, 200), padded=True)
    assert padded.codes + padded.padding == 8 * 256 * 256
    assert padded.scales == 4 * 32
    swizzled = stored_bits("e4m3", "MX", (130, 200), swizzled=True)  # 130 x 7 scales in 256 x 8
    assert swizzled.padding == 8 * (256 * 8 - 130 * 7)
    whole = stored_bits("e4m3", "MX", (256, 512), padded=True, swizzled=True)
    assert whole.padding == 0
    assert whole.per_value == 8.25


def test_the_table_names_every_format() -> None:
    table = fp.analysis.bits_per_value().to_frame().set_index(["format", "scaling"])["bits_per_value"]
    from fpsim.formats.named import NAMED

    assert {name for name, _ in table.index} >= set(NAMED)
    assert table["E2M1", "fp.scalings.NVFP4"] == 4.5 + 32 / 4096**2
    assert table["E2M1", "fp.scalings.MX"] == 4.25
    assert table["TF32", ""] == 32


# ---- reports and refusals


def test_a_ledger_comes_back_from_its_file(tmp_path: Path) -> None:
    ledger = fp.analysis.ledger(Config(96), "NVFP4", ranks=8, zero=2, tokens=512, checkpointing=0.5)
    ledger.save(tmp_path / "ledger.json")
    assert fp.analysis.Ledger.load(tmp_path / "ledger.json") == ledger
    assert sum(ledger.by_kind.values()) == ledger.rank_bytes
    assert list(ledger.by_kind) == [kind for kind in KINDS if kind in ledger.by_kind]
    assert int(ledger.to_frame().rank_bytes.sum()) == ledger.rank_bytes
    text = json.loads((tmp_path / "ledger.json").read_text())
    damages: list[dict[str, Any]] = [{"notes": 3}, {"kind": "fpsim study"}, {"rows": [{}]}]
    for damage in damages:
        (tmp_path / "ledger.json").write_text(json.dumps({**text, **damage}))
        with pytest.raises(ValueError, match="wanted fpsim ledger"):
            fp.analysis.Ledger.load(tmp_path / "ledger.json")


def test_a_picture_stacks_the_kinds_of_each_ledger() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    first, *others = [fp.analysis.ledger(10**9, "FP16_MASTERS", ranks=8, zero=stage) for stage in range(4)]
    ax = first.plot(others=others)
    ends = [max(bar.get_x() + bar.get_width() for bars in ax.containers for bar in [bars[i]]) for i in range(4)]
    assert ends == pytest.approx([found.rank_bytes / 1e9 for found in (first, *others)])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3"]


def loose(value: Any) -> Any:
    """What type checkers take for anything."""
    return value


@in_turn(
    "call, words",
    [
        (lambda: fp.analysis.ledger("gpt", "BF16"), "model must be a torch.nn.Module, .* got 'gpt'"),  # type: ignore[arg-type]
        (lambda: fp.analysis.ledger(7.5, "BF16"), "model must be a torch.nn.Module, .* got 7.5"),
        (lambda: fp.analysis.ledger(1e9, "BF16", tokens=8), "tokens must be 0 for a number of parameters"),
        (lambda: fp.analysis.ledger(0, "BF16"), "parameters >= 1; got 0"),
        (lambda: fp.analysis.ledger(True, "BF16"), "model must be a torch.nn.Module"),
        (lambda: fp.analysis.ledger(10, "BF17"), "recipe must be one of .* 'BF17'"),
        (lambda: fp.analysis.ledger(10, "BF16", zero=4), "zero must be a stage of ZeRO, 0, 1, 2 or 3; got 4"),
        (lambda: fp.analysis.ledger(10, "BF16", ranks=0), "ranks must be an integer >= 1"),
        (lambda: fp.analysis.ledger(10, "BF16", tokens=8), "tokens must be 0 for a number of parameters, .* got 8"),
        (lambda: fp.analysis.ledger(Config(96), "BF16", tokens=100), "whole sequences of 64 tokens; got 100"),
        (lambda: fp.analysis.ledger(Config(96), "BF16", tokens=64, micro_batches=3), "a multiple of micro_batches"),
        (lambda: fp.analysis.ledger(Config(96), "BF16", checkpointing=2), "checkpointing must be .* up to 1; got 2"),
        (lambda: fp.analysis.ledger(torch.nn.ReLU(), "BF16"), "model must have parameters; got ReLU"),
        (lambda: fp.analysis.ledger(torch.nn.Linear(2, 2), "BF16", tokens=8), "tokens must be 0 for a Linear"),
        (
            lambda: fp.analysis.ledger(torch.nn.Linear(2, 2), "BF16", saved=loose("x")),
            "saved must be what .*saved_tensors",
        ),
        (lambda: fp.analysis.saved_tensors(NO_MODEL, 1), "model must be a torch.nn.Module; got 'x'"),
        (lambda: fp.analysis.bits_per_value((0, 3)), r"shape must be a tuple of lengths >= 1, .* got \(0, 3\)"),
        (lambda: fp.analysis.bits_per_value(scalings=["MX"]), "scalings require formats"),
        (lambda: fp.analysis.bits_per_value((4, 4), ["e4m3"], ["MX", "ROW"]), "lists of one length, .* got 1 and 2"),
        (lambda: stored_bits("e4m3", "ROW", (4, 4), swizzled=True), "swizzled is for scales of 1x16 and 1x32 blocks"),
        (lambda: stored_bits(None, "ROW", (4, 4)), "scaling needs a format of the elements"),
    ],
)
def test_what_cannot_be_counted_is_refused(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_formats_and_scalings_may_come_from_any_iterable() -> None:
    pairs = {"e4m3": "MX", "e5m2": "TENSOR"}
    table = fp.analysis.bits_per_value((64, 64), iter(pairs), pairs.values())
    assert table == fp.analysis.bits_per_value((64, 64), ["e4m3", "e5m2"], ["MX", "TENSOR"])
