"""Two runs side by side: equal ones stay equal, and what is planted in one is found where it was planted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch = pytest.importorskip("torch")

from fpsim.recipes.linear_recipe import PRODUCTS  # noqa: E402
from fpsim.recipes.parts import Controller, Numerics, Override  # noqa: E402
from fpsim.recipes.training_recipe import Recipe  # noqa: E402
from fpsim.torch.trace import watching  # noqa: E402
from fpsim.train import Settings, Trainer, recipes, side_by_side  # noqa: E402  # noqa: E402
from fpsim.train.side_by_side import lockstep, recipe_on_chip  # noqa: E402

ft: Any = fp.torch
SMALL: dict[str, Any] = {"model": "perceptron", "steps": 3}
TEXT = "\n".join(f"line {i} of a text that a small model reads: {i * i % 97}, {i * 7 % 13}" for i in range(2000))


@pytest.fixture
def text(tmp_path: Any) -> Any:
    """A file of text for the transformer."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def with_product(product: str, **fields: Any) -> Recipe:
    """FP8_TENSOR with one product of every layer added otherwise."""
    linear = ft.RECIPES["FP8_TENSOR"]
    return Recipe("planted", linear.replace(**{product: getattr(linear, product).replace(**fields)}))


RAW, TENSOR = Recipe("raw", "FP8_RAW"), Recipe("plain", "FP8_TENSOR")


@pytest.mark.parametrize("name", ["FP8_RAW", "NVFP4", "FP8_DELAYED"])
def test_equal_runs_have_no_divergence(name: str) -> None:
    assert lockstep(name, ("emulated", "emulated"), **SMALL) is None


def test_progress_is_told_after_every_step() -> None:
    told: list[Any] = []
    lockstep(RAW, model="perceptron", steps=2, progress=lambda *said: told.append(said))
    assert told == [(0.5, "step 1 of 2: equal"), (1.0, "step 2 of 2: equal")]


def test_a_recipe_on_its_own_chip_is_what_is_emulated() -> None:
    assert lockstep("FP8_RAW", ("H100", "emulated"), micro_batches=2, **SMALL) is None


def test_halves_on_hopper_and_blackwell_are_equal_whose_trees_are() -> None:
    assert lockstep("BF16", ("H100", "B200"), **SMALL) is None


def test_float32_differs_at_the_first_product_whose_operands_are_equal() -> None:
    divergence = lockstep("DEEPSEEK_V3", ("emulated", "float32"), **SMALL)
    assert divergence is not None
    assert (divergence.step, divergence.layer, divergence.product, divergence.cause) == (
        0,
        "first",
        "fprop",
        "arithmetic",
    )
    assert divergence.names == ("emulated", "float32")
    assert "float32's sum is" in str(divergence)


def test_two_chips_differ_at_the_first_product_where_their_units_do() -> None:
    divergence = lockstep("FP8_RAW", ("H100", "B200"), **SMALL)
    assert divergence is not None
    assert divergence.element is not None
    assert (divergence.step, divergence.layer, divergence.product, divergence.cause) == (
        0,
        "first",
        "fprop",
        "arithmetic",
    )
    assert "terms 0..31: H100 keeps 13 fraction bits, B200 keeps 25 fraction bits" in str(divergence)
    seen: list[Any] = []
    trainer = Trainer(RAW, Settings(3, model="perceptron", batch=128, measure=0))
    with watching(seen.append):
        trainer.step()
    call = seen[0]
    hopper, blackwell = (
        fp.matmul(call.a.encoded, call.b.encoded, accumulate=f"{arch}_e4m3_f32", promote=128, bias=call.bias,
                  out_fmt="bf16").astype(np.float32)
        for arch in ("hopper", "blackwell")
    )  # fmt: skip
    fp.testing.assert_bits_equal(hopper, call.result)
    differ = np.argwhere(hopper.view(np.uint32) != blackwell.view(np.uint32))
    assert divergence.element == tuple(differ[0])
    assert divergence.count == len(differ)
    assert divergence.values == (hopper[divergence.element], blackwell[divergence.element])


def test_a_schedule_that_a_chip_leaves_out_is_said() -> None:
    divergence = lockstep("DEEPSEEK_V3", ("H100", "B200"), **SMALL)
    assert str(divergence).endswith(
        "B200 adds without deepgemm('1d2d'), a schedule for hopper.\n"
        "B200 adds without deepgemm('1d1d'), a schedule for hopper."
    )


@pytest.mark.parametrize("product", ["fprop", "dgrad", "wgrad"])
def test_an_order_that_is_planted_in_one_product_is_found_there(product: str) -> None:
    divergence = lockstep((TENSOR, with_product(product, promote=32)), **SMALL)
    assert divergence is not None
    assert (divergence.step, divergence.product, divergence.cause, divergence.names) == (
        0,
        product,
        "arithmetic",
        ("plain", "planted"),
    )
    assert "plain adds on hopper_e4m3_f32 by promotion every 128 terms" in str(divergence)
    assert "planted adds on hopper_e4m3_f32 by promotion every 32 terms" in str(divergence)
    term = int(str(divergence).rpartition("with term ")[2].split()[0])
    assert term >= 32  # the first 32 terms are added alike


def test_a_result_that_is_rounded_otherwise_is_found_as_output() -> None:
    divergence = lockstep((TENSOR, with_product("fprop", out_fmt=fp.FP16)), **SMALL)
    assert divergence is not None
    assert (divergence.product, divergence.cause) == ("fprop", "output")
    assert "plain rounds it to BF16, planted rounds it to FP16." in str(divergence)


def test_a_norm_in_another_format_is_found_as_the_operand_of_the_next_product(text: Any) -> None:
    planted = RAW.replace(name="planted", numerics=Numerics(norm="bf16"))
    divergence = lockstep((RAW, planted), steps=1, text=text, batch=2)
    assert divergence is not None
    assert (divergence.layer, divergence.operand, divergence.cause) == ("blocks.0.attn.qkv", "input", "operands")
    assert "It is the first product: what makes this operand differs, such as norms" in str(divergence)


def test_a_softmax_in_another_format_is_found_behind_it(text: Any) -> None:
    planted = RAW.replace(name="planted", numerics=Numerics(softmax="fp16"))
    divergence = lockstep((RAW, planted), steps=1, text=text, batch=2)
    assert divergence is not None
    assert (divergence.layer, divergence.operand, divergence.cause) == ("blocks.0.attn.proj", "input", "operands")
    assert "Everything up to blocks.0.attn.qkv, fprop was equal" in str(divergence)


def test_scales_of_earlier_steps_are_found_as_a_cast() -> None:
    delayed: Any = recipes.FP8_DELAYED.linear
    divergence = lockstep(("FP8_DELAYED", Recipe("current", delayed.replace(delayed=None))), **SMALL)
    assert divergence is not None
    assert (divergence.step, divergence.product, divergence.cause) == (1, "fprop", "cast")  # the first scale is 1


def test_draws_of_another_seed_are_found_as_a_cast_of_the_gradient() -> None:
    linear = ft.RECIPES["FP8_RAW"].replace(grad_rounding="stochastic")
    divergence = lockstep((Recipe("a", linear), Recipe("b", linear.replace(seed=1))), **SMALL)
    assert divergence is not None
    assert (divergence.product, divergence.operand, divergence.cause) == ("dgrad", "output_gradient", "cast")
    assert "which is not what nearest even gives" in str(divergence)


def test_an_optimizer_that_differs_is_found_as_the_update() -> None:
    planted = RAW.replace(name="planted", optimizer=dataclasses.replace(RAW.optimizer, weight_decay=0.25))
    divergence = lockstep((RAW, planted), **SMALL)
    assert divergence is not None
    assert (divergence.step, divergence.product, divergence.cause) == (0, "update", "update")
    assert "Every product of this step was equal" in str(divergence)


def test_an_override_is_found_at_the_step_where_it_begins() -> None:
    late = RAW.replace(name="late", overrides=(Override(products=("dgrad",), start=0.5, linear="BF16"),))
    divergence = lockstep((RAW, late), model="perceptron", steps=4)
    assert divergence is not None
    assert (divergence.step, divergence.layer, divergence.product, divergence.cause) == (2, "head", "dgrad", "cast")


def test_a_layer_that_one_recipe_leaves_to_torch_is_cast_otherwise() -> None:
    divergence = lockstep((RAW, RAW.replace(name="less", keep=("head", "second"))), **SMALL)
    assert divergence is not None
    assert (divergence.layer, divergence.product, divergence.cause) == ("second", "fprop", "cast")
    assert "less does not cast it." in str(divergence)


@pytest.mark.parametrize(
    ("model", "recipe"),
    [("perceptron", RAW), ("perceptron", recipes.FP32), ("transformer", RAW), ("transformer", recipes.FP32),
     ("transformer", recipes.UNIT_SCALING)],
)  # fmt: skip
def test_being_watched_changes_no_bit(model: str, recipe: Recipe, text: Any) -> None:
    text = text if model == "transformer" else None
    settings = Settings(3, 0, model, text, batch=2 if model == "transformer" else 128, measure=0)
    plain, watched = Trainer(recipe, settings), side_by_side._watched(Trainer(recipe, settings))
    for trainer in (plain, watched):
        for _ in range(3):
            trainer.step()
    for name, weight in plain.weights.items():
        fp.testing.assert_bits_equal(watched.weights[name].detach().numpy(), weight.detach().numpy())


def test_the_head_is_compared_too() -> None:
    seen = []
    side = side_by_side._watched(Trainer(recipes.FP32, Settings(1, model="perceptron", batch=8, measure=0)))
    with watching(lambda call: seen.append((call.layer, call.product))):
        side.step()
    assert ("head", "fprop") in seen
    assert len(seen) == 8


def test_runs_that_stop_alike_are_equal() -> None:
    planted = RAW.replace(optimizer=dataclasses.replace(RAW.optimizer, lr=1e30, clip_norm=None))
    trainer = Trainer(planted, Settings(5, model="perceptron", batch=128, measure=0))
    while not trainer.stopped:
        trainer.step()
    assert lockstep(planted, ("emulated", "emulated"), model="perceptron", steps=5) is None


def test_weights_that_change_in_place_are_compared_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    plain = side_by_side._StepComparison

    def compare(products: Any, *rest: Any) -> Any:
        seen.extend(products)
        return plain(products, *rest)

    monkeypatch.setattr(side_by_side, "_StepComparison", compare)
    trainer = Trainer(RAW, Settings(1, model="perceptron", batch=128, measure=0))
    weight = trainer.weights["first.weight"].detach().numpy().copy()
    assert lockstep(RAW, model="perceptron", steps=1) is None
    fp.testing.assert_bits_equal(seen[0].b.source, weight.T)


def test_overrides_and_levels_move_to_the_chip_too() -> None:
    recipe = RAW.replace(overrides=(Override(linear="BF16"),), controller=Controller(levels=("FP8_TENSOR", "FP32")))
    there, remarks = recipe_on_chip(recipe, "B200")
    linears: list[Any] = [there.linear, there.overrides[0].linear, there.controller.levels[0]]  # type: ignore[union-attr]
    units = [each.accumulator("fprop").name for each in linears]
    assert units == ["blackwell_e4m3_f32", "blackwell_bf16_f32", "blackwell_e4m3_f32"]
    assert not remarks


def test_attention_moves_to_the_chip_too() -> None:
    recipe = fp.train.recipes.FP32.replace(numerics=Numerics(attention="BF16"))
    there, _ = recipe_on_chip(recipe, "MI300X")
    attention: Any = there.numerics.attention
    assert [attention.accumulator(product).name for product in PRODUCTS] == ["cdna3_bf16_f32"] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("FP8_RAW", ("H100", "A100")), r"fprop on A100 needs a matrix unit for E4M3 x E4M3 .* ampere has none"),
        (
            ("FP8_RAW", ("h10", "B200")),
            r"backend must be one of the \d+ .* such as H100, .*, emulated, .*; got 'h10'. Did you mean 'H100'",
        ),
        (("FP32", ("H100", "B200")), r"a chip needs a recipe with products on matrix units; 'FP32' has none"),
        (("FP8_RAW", ("H100", "B200", "A100")), r"backends must be two, or one for both runs; got \('H100', "),
        ((["FP8_RAW"],), r"recipe must be two, or one for both runs; got \['FP8_RAW'\]"),
        (("FP8", ("H100", "B200")), r"recipe must be one of"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lockstep(*arguments, **SMALL)


@pytest.mark.parametrize("backend", ["gpu", "hardware"])
def test_without_a_gpu_nothing_is_trained(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fp.gpu.available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("a step was trained"))
    with pytest.raises(fp.gpu.GpuError, match=r"fpsim.gpu needs an NVIDIA GPU with its driver"):
        lockstep("FP8_RAW", ("emulated", backend), **SMALL)


def test_the_hardware_beside_the_emulator_is_compared_with_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []

    def loop(a: Any, b: Any, *_: Any, **__: Any) -> Any:
        product = fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)
        wrong.append(product)
        if len(wrong) == 2:
            product[3, 5] *= 2
        return product.view(np.uint32)

    for name in ("dot", "scaled_dot"):
        monkeypatch.setattr(f"fpsim.gpu.hardware.tensor_cores.{name}", loop)
    monkeypatch.setattr("fpsim.gpu.device.device.require_device", lambda: None)
    monkeypatch.setattr("fpsim.gpu.device.device.capability", lambda: (9, 0))
    divergence = lockstep("FP8_RAW", ("emulated", "hardware"), **SMALL)
    assert divergence is not None
    assert (divergence.layer, divergence.product, divergence.element, divergence.count) == (
        "second",
        "fprop",
        (3, 5),
        1,
    )
    assert "hardware's result" in str(divergence)
    assert "is not what the emulator gives for it" in str(divergence)
    assert "Both name the same sum, so one of the machines adds otherwise." in str(divergence)
    assert "by the tensor cores of this machine" in str(divergence)
