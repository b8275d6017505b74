"""Recipes of training: what they hold, what holds for a product, and what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.train import recipes
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
made: Any = fp.recipes  # since type checkers know fewer spellings
Controller, Numerics, Override = made.Controller, made.Numerics, made.Override
Recipe, Stored = made.Recipe, made.Stored


def test_a_layer_is_described_once() -> None:
    for name in ("BF16", "DEEPSEEK_V3", "DEEPSEEK_V3_POW2", "DEEPSEEK_V3_UNPROMOTED", "MXFP8", "NVFP4", "TE_DELAYED"):
        assert recipes.ROWS[name].linear is fp.torch.RECIPES[name]
    assert fp.train.recipes.DEEPSEEK_V3.linear is fp.torch.DEEPSEEK_V3


def test_a_field_means_the_same_however_it_is_spelled() -> None:
    linear = fp.torch.LinearRecipe
    assert linear("e4m3", rounding="RNE") == linear(fp.E4M3, rounding="nearest_even")
    assert hash(linear("e4m3")) == hash(linear(fp.E4M3))
    optimizer = fp.train.OptimizerRecipe
    assert optimizer(first_moment="bf16", moment_rounding="RNE") == optimizer(first_moment=fp.BF16)
    assert Recipe("x", "BF16", loss_scaling="none", reduction="bf16") == Recipe("x", reduction=fp.BF16, linear="BF16")
    assert Controller(levels=["BF16", "FP32"]) == Controller()
    assert Recipe(keep="head") == Recipe(keep=["head"]) == Recipe()


def test_a_recipe_stands_for_its_linear_layers() -> None:
    assert Override(linear=recipes.MXFP8).linear is fp.torch.MXFP8
    assert Recipe(linear=recipes.MXFP8).linear is fp.torch.MXFP8


def test_kept_layers_are_float32_and_the_last_override_counts() -> None:
    recipe = Recipe(
        linear="MXFP8", keep=("head", "*.proj"),
        overrides=(
            Override("blocks.0.*", linear="BF16"),
            Override("*.down", products="wgrad", linear="FP16"),
            Override("head", start=0.5, linear="NVFP4"),
        ),
    )  # fmt: skip

    def of(layer: Any, product: Any, step: Any = 0) -> Any:
        return recipe.linear_of(layer, product, step, 10).name

    assert (of("blocks.1.attn.qkv", "fprop"), of("blocks.1.attn.proj", "fprop")) == ("MXFP8", "FP32")
    assert (of("blocks.0.attn.qkv", "fprop"), of("blocks.0.attn.proj", "dgrad")) == ("BF16", "BF16")
    assert (of("blocks.0.mlp.down", "dgrad"), of("blocks.0.mlp.down", "wgrad")) == ("BF16", "FP16")
    assert [of("head", "fprop", step) for step in (0, 4, 5, 9)] == ["FP32", "FP32", "NVFP4", "NVFP4"]


@pytest.mark.parametrize(
    ("start", "stop", "steps", "wanted"),
    [
        (0.85, 1.0, 250, range(213, 250)), (0.0, 0.5, 5, range(3)), (0.5, 1.0, 5, range(3, 5)), (0.0, 1.0, 1, range(1)),
        (0.07, 1.0, 100, range(7, 100)), (0.0, 0.07, 100, range(7)), (5 / 7, 1.0, 7, range(5, 7)),
    ],
)  # fmt: skip
def test_an_override_holds_from_its_first_share_of_the_steps_up_to_its_last(
    start: Any, stop: Any, steps: Any, wanted: Any
) -> None:
    override = Override(start=start, stop=stop)
    assert [step for step in range(steps) if override.holds("any", step, steps)] == list(wanted)


def test_patterns_tell_large_letters_from_small_ones() -> None:
    assert Override("blocks.*").holds("blocks.0.mlp.down", 0, 1)
    assert not Override("Blocks.*").holds("blocks.0.mlp.down", 0, 1)


@in_turn(
    "make, error, said",
    [
        (lambda: Recipe(linear="MXFP9"), ValueError, "linear must be one of .*Did you mean 'MXFP8'"),
        (lambda: Recipe(linear=5), TypeError, "linear must be an fp.torch.LinearRecipe or the name of one; got 5"),
        (lambda: Recipe(keep=5), TypeError, "keep must be a text or several; got 5"),
        (lambda: Recipe(name=None), TypeError, "name must be a text; got None"),
        (lambda: Recipe(overrides=Override()), TypeError, "overrides must be a tuple of Override"),
        (lambda: Recipe(stored=[Override()]), TypeError, "stored must be a tuple of Stored"),
        (lambda: Recipe(controller="BF16"), TypeError, "controller must be a Controller or None"),
        (lambda: Recipe(numerics=None), TypeError, "numerics must be a Numerics; got None"),
        (lambda: Recipe(loss_scaling="dynamik"), ValueError, "Did you mean 'dynamic'"),
        (lambda: Recipe(loss_factor=0), ValueError, "loss_factor must be a finite number > 0; got 0"),
        (lambda: Recipe(loss_factor=float("nan")), ValueError, "loss_factor must be a finite number"),
        (lambda: Recipe(loss_factor=1e-40), ValueError, r"loss_factor must be in 2\*\*-126 .. 2\*\*126; got 1e-40"),
        (lambda: Recipe(optimizer={}), TypeError, "optimizer must be an OptimizerRecipe"),
        (lambda: Recipe(reduction="bf61"), ValueError, "Did you mean 'BF16'"),
        (lambda: Recipe(reduction="fp64"), ValueError, "float32 cannot hold every value of FP64 .* up to 32 bits"),
        (lambda: Recipe(reduction="e8m0"), ValueError, "reduction needs a format with a zero and a sign; got E8M0"),
        (lambda: Recipe(parametrisation="units"), ValueError, "Did you mean 'unit'"),
        (lambda: Recipe().replace(lienar="BF16"), ValueError, "field must be one of .*Did you mean 'linear'"),
        (lambda: Override(layers=5), TypeError, "layers must be a shell pattern"),
        (lambda: Override(products="fpropp"), ValueError, "Did you mean 'fprop'"),
        (lambda: Override(start=1.5), ValueError, "start must be a finite number >= 0 up to 1; got 1.5"),
        (lambda: Override(start=0.9, stop=0.5), ValueError, "start must be below stop.*got 0.9 and 0.5"),
        (lambda: Override(products=()), ValueError, "products must be one of .* or several; got none"),
        (lambda: Controller(watch="undreflow"), ValueError, "Did you mean 'underflow'"),
        (lambda: Controller(high=0.1, low=0.1), ValueError, "low must be below high"),
        (lambda: Controller(patience=0), ValueError, "patience must be an integer >= 1; got 0"),
        (lambda: Controller(levels=()), ValueError, "levels must be one recipe of linear layers or several"),
        (lambda: Controller(levels="BF16"), ValueError, "levels must be one recipe of linear layers or several"),
        (lambda: Controller(levels=3), ValueError, "levels must be one recipe of linear layers or several"),
        (lambda: Stored("*.act", "e4m4"), ValueError, "Did you mean 'E4M3'"),
        (lambda: Stored("*.act", "e4m3", 3), TypeError, "scaling must be an fp.Scaling, .*, or None; got int 3"),
        (lambda: Numerics(softmax="bf61"), ValueError, "Did you mean 'BF16'"),
        (lambda: Numerics(sums="fp16"), TypeError, "sums must be an accumulator"),
        (lambda: Numerics(products="fp32"), TypeError, "products must be an accumulator such as fp.FusedMultiplyAdd"),
        (lambda: Numerics(products=fp.Sequential(fp.FP64)), ValueError, "float32 cannot hold every value of FP64"),
        (lambda: Numerics(attention="DEEPSEEK_V3"), ValueError, "attention must be a recipe whose casts have no"),
        (lambda: Numerics(attention=fp.torch.RECIPES["BF16"].replace(grad_rounding="stochastic")), ValueError,
         "and draw nothing, .*; got .* Take 'BF16' or 'FP16', or leave attention out"),
        (lambda: Numerics(attention=fp.torch.LinearRecipe("e4m3", "e4m3", "e4m3", input_scaling_backward="TENSOR")),  # type: ignore[arg-type]
         ValueError, "attention must be a recipe whose casts have no scales"),
        (lambda: Numerics(attention=fp.torch.RECIPES["BF16"].replace(stash_fmt="e4m3")), ValueError,
         "without hadamard and stash_fmt"),
        (lambda: Numerics(sums=fp.Sequential(fp.FP16, rounding="stochastic", seed=1)), ValueError,
         "sums must be an accumulator that draws nothing"),
        (lambda: Stored("*.act", "int8"), ValueError, "INT8.* needs a scale; got scaling=None"),
        (lambda: Numerics(attention="BF17"), ValueError, "attention must be one of .*Did you mean 'BF16'"),
        (lambda: Numerics(products=fp.Sequential(fp.FP32, rounding="stochastic", seed=1)), ValueError,
         "products must be an accumulator that draws nothing"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused_in_a_sentence(make: Any, error: Any, said: Any) -> None:
    with pytest.raises(error, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.float64(0.5), 1, 0.5])
def test_numbers_may_be_numpys(value: Any) -> None:
    assert Recipe(loss_factor=value).loss_factor == value


def test_integers_of_numpy_become_pythons() -> None:
    linear = fp.torch.LinearRecipe(
        "e4m3", "e4m3", "e4m3", hadamard=np.int8(16), delayed=fp.torch.Delayed(np.int64(4), margin=np.int8(1)),  # type: ignore[arg-type]
        fprop=fp.torch.Product("hopper", promote=np.int64(128)),  # type: ignore[arg-type]
    )  # fmt: skip
    policy = recipes.FP16_DYNAMIC.loss_scaling.replace(interval=np.int64(3))
    recipe = Recipe(
        linear=linear, controller=Controller(patience=np.int8(2)), loss_scaling=policy,
        optimizer=OptimizerRecipe(warmup=np.int8(100), seed=np.int64(3)),  # type: ignore[arg-type]
    )  # fmt: skip
    fields = [
        linear.hadamard, linear.delayed.history, linear.delayed.margin, linear.fprop.promote, policy.interval,  # type: ignore[union-attr]
        recipe.controller.patience, recipe.optimizer.warmup, recipe.optimizer.seed,
    ]  # fmt: skip
    assert {type(field) for field in fields} == {int}
    assert Recipe.from_plain(recipe.to_plain()) == recipe


@in_turn("name", recipes.ROWS)
def test_every_row_says_where_it_comes_from_and_is_of_its_own_name(name: Any) -> None:
    row = recipes.ROWS[name]
    assert (row.name, bool(row.source)) == (name, True)
    assert getattr(recipes, name) is row


class TestQuantizeLinears:
    """fp.torch.quantize_linears takes a recipe of training as well as one of linear layers."""

    @staticmethod
    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.ModuleDict({"body": torch.nn.Linear(128, 128), "head": torch.nn.Linear(128, 4)})

    def test_layers_that_the_recipe_keeps_stay_as_they_are(self) -> None:
        model = self.model()
        assert fp.torch.quantize_linears(model, recipes.DEEPSEEK_V3) == ["body"]
        assert model["body"].recipe is fp.torch.DEEPSEEK_V3
        assert type(model["head"]) is torch.nn.Linear

    @pytest.mark.filterwarnings("ignore:.*the last block is filled up with zeros")
    def test_patterns_come_on_top(self) -> None:
        with pytest.raises(ValueError, match="without 'body' and 'head', which the recipe keeps, matches no"):
            fp.torch.quantize_linears(self.model(), recipes.DEEPSEEK_V3, exclude="body")
        assert fp.torch.quantize_linears(self.model(), recipes.DEEPSEEK_V3.replace(keep=())) == ["body", "head"]

    def test_overrides_hold_layer_by_layer_and_product_by_product(self, tmp_path: Path) -> None:
        mine = recipes.DEEPSEEK_V3.replace(
            overrides=(Override("body", products=("wgrad",), linear="BF16"), Override("head", linear="FP16"))
        )
        mine.to_toml(tmp_path / "mine.toml")
        x = torch.randn(128, 128)
        found = []
        for source in (mine, tmp_path / "mine.toml", str(tmp_path / "mine.toml"), None):
            model = self.model()
            if source is None:
                assert fp.torch.quantize_linears(model, fp.torch.RECIPES["FP32"]) == ["body", "head"]
                v3, bf16, fp16 = fp.torch.DEEPSEEK_V3, fp.torch.RECIPES["BF16"], fp.torch.RECIPES["FP16"]
                model["body"].follow(v3, v3, bf16)
                model["head"].follow(fp16, fp16, fp16)
            else:
                assert fp.torch.quantize_linears(model, source) == ["body", "head"]  # an override beats keep
            model["head"](model["body"](x)).square().sum().backward()
            found.append([p.grad.numpy() for p in model.parameters()])
        for grads in found[:-1]:
            for got, want in zip(grads, found[-1], strict=True):
                fp.testing.assert_bits_equal(got, want)

    def test_what_keep_names_stays_unless_an_override_names_it(self) -> None:
        model = self.model()
        only = Recipe(linear="FP32", keep="*", overrides=(Override("body", products=("fprop",), linear="MXFP8"),))
        assert fp.torch.quantize_linears(model, only) == ["body"]
        assert type(model["head"]) is torch.nn.Linear
        assert model["body"].recipe == fp.torch.MXFP8

    def test_overrides_that_cannot_hold_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"'NVFP4_SWITCHED', where layers '\*' follow another one from 0.85"):
            fp.torch.quantize_linears(self.model(), recipes.NVFP4_SWITCHED)
        lost = recipes.MXFP8.replace(overrides=(Override("bodies.0", linear="BF16"),))
        with pytest.raises(ValueError, match=r"'bodies.0', which matches none of 2. Near it: 'body', 'head'"):
            fp.torch.quantize_linears(self.model(), lost)

    def test_other_things_with_a_linear_are_refused(self) -> None:
        for wrong in (b"BF16", 5, torch.nn.TransformerEncoderLayer(8, 2)):
            with pytest.raises(TypeError, match=r"recipe must be an fp\.torch\.LinearRecipe"):
                fp.torch.quantize_linears(self.model(), wrong)  # type: ignore[arg-type]

    def test_names_of_rows_stand_for_them(self) -> None:
        model = self.model()
        assert fp.torch.quantize_linears(model, "mxfp8", exclude="head") == ["body"]
        assert model["body"].recipe is fp.torch.MXFP8
        message = r"one of the 27 that fp\.recipes\.LINEAR .*, such as MXFP8, .*; got 'MXFP9'. Did you mean 'MXFP8'\?"
        with pytest.raises(ValueError, match=message):
            fp.torch.quantize_linears(model, "MXFP9")

    def test_every_row_prints_the_words_that_find_it(self) -> None:
        for row in fp.torch.RECIPES.values():
            assert eval(repr(row), {"fp": fp}) is row
