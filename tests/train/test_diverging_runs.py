"""Runs that diverge stop and say why; settings that cannot be trained are refused."""

import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.recipes.parts import Controller, Numerics, Override, Stored
from fpsim.recipes.training_recipe import Recipe
from fpsim.testing import assert_bits_equal
from fpsim.torch.trace import watching
from fpsim.train import recipes

torch = pytest.importorskip("torch")
from fpsim.train import OptimizerRecipe, Settings, Trainer  # noqa: E402
from fpsim.train.layers import DelayedScales, followed_by, layers_of  # noqa: E402
from tests.kit.sweeps import in_turn  # noqa: E402


def trainer(recipe: Any, steps: int = 4, model: str = "perceptron", **settings: Any) -> Any:
    settings.setdefault("measure", 0)
    settings.setdefault("batch", 128 if model == "perceptron" else 2)
    return Trainer(recipe, Settings(steps=steps, model=model, **settings))


LOSING = Controller(high=0.5, low=0.1, patience=2, levels=("BF16", "FP32"), layers="second")


# ---- runs that diverge


def test_a_loss_that_is_no_number_stops_the_run_in_front_of_the_weights() -> None:
    run = trainer(recipes.BF16)
    run.step()
    with torch.no_grad():
        run.weights["second.weight"][3] = math.inf
    before = run.weights["first.weight"].detach().clone()
    row = run.step()
    assert (row["step"], row["skipped"], len(run.rows)) == (1, True, 2)
    assert run.stopped.startswith("the loss of step 1 is nan; first of all: second, fprop: 256 of 65536 values of its ")
    assert_bits_equal(run.weights["first.weight"].detach().numpy(), before.numpy())
    with pytest.raises(RuntimeError, match="training has stopped: the loss of step 1 is nan"):
        run.step()


def test_gradients_that_overflow_without_loss_scaling_stop_the_run() -> None:
    run = trainer(recipes.FP16_UNSCALED.replace(loss_factor=2.0**22))
    before = run.weights["first.weight"].detach().clone()
    row = run.step()
    assert (row["overflowed"], row["skipped"], math.isfinite(row["loss"])) == (True, True, True)
    said = "gradients of step 0 are Inf or NaN, and would have been applied; first of all: head, "
    assert run.stopped.startswith(said)
    assert_bits_equal(run.weights["first.weight"].detach().numpy(), before.numpy())
    assert math.isfinite(run.validation_loss())


def test_gradients_that_overflow_under_dynamic_scaling_are_left_out() -> None:
    run = trainer(recipes.FP16_DYNAMIC.replace(loss_factor=2.0**10), steps=12)
    for _ in range(12):
        run.step()
    assert not run.stopped
    assert [row["skipped"] for row in run.rows] == [row["overflowed"] for row in run.rows]
    scales = [row["scale"] for row in run.rows]
    assert run.rows[0]["skipped"]
    assert not run.rows[-1]["skipped"]
    assert scales == [65536.0 / 2 ** sum(row["skipped"] for row in run.rows[:step]) for step in range(12)]


def test_a_loss_scale_that_never_helps_stops_the_run() -> None:
    static = recipes.FP16_STATIC.replace(loss_factor=2.0**24)
    run = trainer(static, steps=12)
    before = run.weights["first.weight"].detach().clone()
    for _ in range(5):
        run.step()
    arrays, facts = run.state()
    run = trainer(static, steps=12)
    run.load(arrays, facts)  # which counts on
    for _ in range(5):
        assert not run.stopped
        run.step()
    said = "steps 0 to 9 all overflowed and were left out, this one with a loss scale of 32768; first of all: head, "
    assert run.stopped.startswith(said)
    assert_bits_equal(run.weights["first.weight"].detach().numpy(), before.numpy())


def test_a_step_that_is_applied_starts_the_count_of_lost_steps_anew() -> None:
    run = trainer(recipes.FP16_STATIC, steps=30)
    for step in range(30):
        run.recipe = recipes.FP16_STATIC.replace(loss_factor=1.0 if step == 9 else 2.0**24)
        run.step()
        if run.stopped:
            break
    assert (step, run.stopped.split(" all")[0]) == (19, "steps 10 to 19")


def scales_of(run: Any) -> dict[str, Any]:
    """Copies of the delayed scales of all layers."""
    return {name: layer.scales.clone() for name, layer in run.layers.items() if layer.scales is not None}


def test_a_step_that_failed_is_looked_at_with_its_own_scales_and_draws() -> None:
    drawn = fp.torch.TE_DELAYED.replace(grad_rounding="stochastic")
    run = trainer(Recipe(linear=drawn, optimizer=OptimizerRecipe(lr=0.0)), micro_batches=2)
    run.step()
    calls: list[Any] = []
    again: list[Any] = []
    scales, before = DelayedScales(run.layers), scales_of(run)
    with watching(calls.append):
        run.step()
    after = scales_of(run)
    run.steps -= 1
    with watching(again.append):
        assert run._first_overflow(scales) == "the loss itself, or what another process computed"
    assert len(again) == len(calls) == 16
    for one, other in zip(again, calls, strict=True):
        assert_bits_equal(one.result, other.result)
    for name, layer in run.layers.items():
        if name == "head":  # in float32
            continue
        assert_bits_equal(layer.scales.numpy(), after[name].numpy())
        assert not torch.equal(after[name], before[name])


@pytest.mark.parametrize(("policy", "seen_in_the_trace"), [
    ("eager", lambda rows: all(row["gradient_norm"] > 1e4 for row in rows)),  # never unscaled
    ("inverted", lambda rows: [row["scale"] for row in rows] == [2.0 ** (16 - i) for i in range(6)]),
    ("norm_driven", lambda rows: rows[1]["scale"] / rows[0]["scale"] > 100),  # large gradients make them larger
])  # fmt: skip
def test_faulty_policies_do_what_they_are_faulty_for(policy: str, seen_in_the_trace: Any) -> None:
    run = trainer(recipes.FP16_UNSCALED.replace(loss_scaling=policy), steps=6)
    while run.steps < 6 and not run.stopped:
        run.step()
    assert seen_in_the_trace(run.rows)
    assert bool(run.stopped) == (policy == "norm_driven")


# ---- what is refused


@in_turn(
    "recipe, settings, said",
    [
        (Recipe(keep=("haed",)), {}, "keep of recipe '' must name layers of the model; 'haed' matches none of first"),
        (Recipe(overrides=(Override("blocks.*"),)), {}, r"overrides of recipe '' must name layers.*'blocks\.\*'"),
        (Recipe(controller=Controller(layers="x")), {}, "controller of recipe '' must name layers of the model; 'x'"),
        (Recipe(stored=(Stored("*.act", "e4m3"),)), {}, "stored of recipe '' must name modules that store activations"),
        (recipes.UNIT_SCALING, {}, "the perceptron has the standard parametrisation only; got 'unit'"),
        (recipes.DEEPSEEK_V3.replace(keep=()), {}, "dgrad of layer 'head' sums over 10 features, which must be"),
        (recipes.DEEPSEEK_V3, {"batch": 100}, "wgrad of layer 'first' sums over 100 tokens, .* 128 that share a scale"),
        (recipes.NVFP4, {"batch": 8}, "wgrad of layer 'first' sums over 8 tokens, which must be a multiple of the 16"),
        (
            recipes.BF16.replace(overrides=(Override(products=("wgrad",), start=0.02, stop=0.04, linear="MXFP8"),)),
            {"batch": 16, "steps": 1000}, "layer 'first' sums over 16 tokens, which must be a multiple of the 32",
        ),
        (recipes.BF16.replace(controller=Controller(levels=("MXFP8",))), {"batch": 16}, "must be a multiple of the 32"),
    ],
)  # fmt: skip
def test_a_recipe_that_the_model_cannot_have_is_refused_before_the_first_step(
    recipe: Any, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        trainer(recipe, **settings)
    assert "\n" not in str(caught.value)


def test_a_text_that_is_too_short_for_the_validation_is_refused_before_the_first_step(tmp_path: Any) -> None:
    (tmp_path / "short.txt").write_text("to be or not to be " * 10)
    with pytest.raises(ValueError, match="text must have at least"):
        trainer(recipes.FP32, model="transformer", text=tmp_path / "short.txt")


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"steps": 0}, ValueError, "steps must be an integer >= 1; got 0"),
        ({"steps": 2.5}, TypeError, "steps must be an integer"),
        ({"seed": -1}, ValueError, "seed must be an integer >= 0; got -1"),
        ({"seed": 2**64}, ValueError, "seed must be an integer in 0 .. 2"),
        ({"model": "transfromer"}, ValueError, "Did you mean 'transformer'"),
        (
            {"model": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())},
            ValueError,
            r"specified; got Sequential, where GELU '1' would have torch's bits\. Train it in your own loop with",
        ),
        ({"backend": "tpu"}, ValueError, "backend must be one of emulated, float32, gpu, hardware, cpu; got 'tpu'"),
        ({"model": "perceptron", "text": "a.txt"}, ValueError, "text is for the transformer"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Settings(**settings)


def test_the_largest_seed_and_numpys_integers_are_taken() -> None:
    assert trainer(recipes.NVFP4, seed=2**64 - 1).step()["loss"] > 0
    seed: Any = np.uint64(7)
    assert type(Settings(seed=seed).seed) is int


def test_all_that_a_product_ever_follows_is_listed() -> None:
    recipe = Recipe(
        linear="MXFP8", overrides=(Override("first", ("fprop",), 0.9, linear="BF16"),), controller=LOSING,
        numerics=Numerics(softmax="bf16"),
    )  # fmt: skip
    names = [[each.name for each in followed_by(recipe, layer, "fprop")] for layer in ("first", "second", "head")]
    assert names == [["MXFP8", "BF16"], ["MXFP8", "BF16", "FP32"], ["FP32"]]
    assert list(layers_of(trainer(recipe).model)) == ["first", "second", "head"]


def test_a_layer_whose_override_never_ends_may_have_any_number_of_features() -> None:
    head = Override("head", linear="FP32")  # 10 classes are no multiple of MXFP8's blocks
    kept = trainer(Recipe(linear="MXFP8")).step()
    assert trainer(Recipe(linear="MXFP8", keep=(), overrides=(head,))).step()["digest"] == kept["digest"]


def test_every_row_takes_a_step_of_the_transformer() -> None:
    first = {name: trainer(row, model="transformer").step() for name, row in recipes.ROWS.items()}
    for name, row in first.items():
        assert math.isfinite(row["loss"]), name
        assert abs(row["loss"] - first["FP32"]["loss"]) < 0.05 or name == "UNIT_SCALING", name
