"""Recipes as TOML, both ways, and what is different between two."""

import dataclasses
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.recipes.look_up import find as find_recipe
from fpsim.recipes.loss_scaling import POLICIES, LossScalingPolicy
from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.recipes.parts import Controller, Numerics, Override, Stored
from fpsim.recipes.training_recipe import Recipe
from fpsim.train import recipes
from tests.kit.sweeps import in_turn

pytest.importorskip("torch")
pytest.importorskip("tomli_w")

MINE = fp.Format("mine", 4, 1)
TALL = fp.Scaling((64, 32), fp.E8M0, name="tall")
Product = fp.torch.Product
FULL = Recipe(
    name="none",
    linear=fp.torch.LinearRecipe(
        MINE, "e4m3", "e5m2", TALL, fp.scalings.MX.replace(block=(1, 64)), fp.scalings.TILE_1X128,
        input_scaling_backward=None, weight_scaling_backward=TALL, grad_scaling_backward=fp.scalings.TILE_128X1,
        rounding="toward_zero", grad_rounding="stochastic", requantize_input=True, seed=2**64 - 1,
        fprop=Product(fp.Chunked("fp16", chunk=64, outer="fp32"), out_fmt="bf16"), dgrad=Product("hopper", promote=64),
        wgrad=Product(fp.Sequential("fp32")), overflow="saturate", hadamard=16,
    ),
    keep=(),
    overrides=(
        Override("blocks.*", ("wgrad",), 0.25, 0.5, fp.torch.LinearRecipe("e4m3", stash_fmt=MINE, stash_scaling=TALL)),
        Override(linear=recipes.FP8_DELAYED.linear),
        Override("none", start=0.125, linear="MXFP8"),
    ),
    controller=Controller("gradient_norm", 4, 2.5, 7, ("MXFP8", fp.torch.LinearRecipe(weight_fmt="bf16")), "*.mlp.*"),
    stored=(Stored("none", "int8", fp.scalings.TENSOR), Stored("*.core", fp.LogFMT(8), TALL), Stored("*.norm*", MINE)),
    numerics=Numerics(
        "bf16", "fp16", MINE, fp.Pairwise("fp16"),
        fp.torch.LinearRecipe("e4m3", "e4m3", "e5m2", fprop=Product("hopper")), fp.Sequential(fp.TF32),
    ),
    loss_scaling=POLICIES["dynamic"].replace(name="mine", interval=3, highest=2.0**20),
    loss_factor=0.1,
    optimizer=OptimizerRecipe(
        1e-4, (0.8, 0.99), 1e-7, 0.1, 5, "cosine", 0.1, None, 6.0, "bf16", MINE, "stochastic", "bf16", False, "kahan",
        0.5, 2**64 - 1,
    ),
    reduction="bf16",
    gradients=MINE,
    parametrisation="unit",
    source="a 'source' with \"quotes\" and é",
)  # fmt: skip


def back(recipe: Any) -> Any:
    return Recipe.from_toml(recipe.to_toml() + "\n")


def same(found: Any, recipe: Any) -> None:
    assert found == recipe
    assert (found.name, found.source) == (recipe.name, recipe.source)


@in_turn("name", recipes.ROWS)
def test_every_row_comes_back(name: Any) -> None:
    same(back(recipes.ROWS[name]), recipes.ROWS[name])


def test_rows_of_linear_layers_are_named_and_come_back_as_they_are() -> None:
    assert 'linear = "DEEPSEEK_V3"' in recipes.DEEPSEEK_V3.to_toml()
    assert back(recipes.DEEPSEEK_V3).linear is fp.torch.DEEPSEEK_V3


def test_every_field_comes_back() -> None:
    default = Recipe()
    for field in dataclasses.fields(Recipe):
        assert getattr(FULL, field.name) != getattr(default, field.name), field.name
    for field in dataclasses.fields(OptimizerRecipe):
        assert getattr(FULL.optimizer, field.name) != field.default, field.name
    same(back(FULL), FULL)


@in_turn("field", [field.name for field in dataclasses.fields(Recipe)])
def test_each_field_comes_back_alone(field: Any) -> None:
    same(back(Recipe().replace(**{field: getattr(FULL, field)})), Recipe().replace(**{field: getattr(FULL, field)}))


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert Recipe().to_toml() == ""
    assert Recipe(controller=Controller(patience=9)).to_toml() == "[controller]\npatience = 9\n"


def test_any_mapping_of_fields_is_read() -> None:
    assert Recipe.from_plain(MappingProxyType({"optimizer": MappingProxyType({"lr": 0.5})})) == Recipe(
        optimizer=OptimizerRecipe(lr=0.5)
    )


def test_a_file_comes_back(tmp_path: Any) -> None:
    text = FULL.to_toml(tmp_path / "mine.toml")
    assert (tmp_path / "mine.toml").read_text(encoding="utf-8") == text
    same(Recipe.from_toml(tmp_path / "mine.toml"), FULL)
    same(find_recipe(str(tmp_path / "mine.toml")), FULL)


FORMATS = st.sampled_from([None, "e4m3", "e5m2", "bf16", MINE])
NUMBERS = st.floats(0, 1e30, allow_subnormal=True)
OPTIMIZERS = st.builds(
    OptimizerRecipe, lr=NUMBERS, betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)), eps=NUMBERS,
    weight_decay=NUMBERS, warmup=st.integers(0, 2**70), schedule=st.sampled_from(["constant", "cosine"]),
    final_lr_share=st.floats(0, 1), clip_norm=st.none() | st.floats(1e-300, 1e30),
    clip_value=st.none() | st.floats(1e-300, 1e30), first_moment=FORMATS, second_moment=FORMATS, weights=FORMATS,
    moment_rounding=st.sampled_from(["nearest_even", "stochastic", "up"]), masters=st.booleans(),
    seed=st.integers(0, 2**70),
)  # fmt: skip
LINEARS = st.sampled_from(list(fp.torch.RECIPES)) | st.builds(
    fp.torch.LinearRecipe, FORMATS, FORMATS, FORMATS, requantize_input=st.booleans(), seed=st.integers(0, 2**64 - 1),
    rounding=st.sampled_from(["nearest_even", "stochastic"]), hadamard=st.sampled_from([0, 16, 128]),
)  # fmt: skip
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
SHARES = st.tuples(st.floats(0, 0.49), st.floats(0.5, 1))
OVERRIDES = st.builds(
    lambda layers, products, share, linear: Override(layers, tuple(products), share[0], share[1], linear),
    WORDS, st.sets(st.sampled_from(["fprop", "dgrad", "wgrad"]), min_size=1), SHARES, LINEARS,
)  # fmt: skip
RECIPES = st.builds(
    Recipe, name=WORDS, linear=LINEARS, keep=st.lists(WORDS, max_size=3), overrides=st.lists(OVERRIDES, max_size=3),
    controller=st.none() | st.builds(Controller, levels=st.lists(LINEARS, min_size=1, max_size=3), layers=WORDS),
    stored=st.lists(st.builds(Stored, WORDS, st.sampled_from(["e4m3", "bf16", MINE])), max_size=2),
    loss_scaling=st.sampled_from(list(POLICIES)) | st.builds(LossScalingPolicy, WORDS, scale=st.floats(1e-6, 1e6)),
    loss_factor=st.floats(1e-30, 1e30), optimizer=OPTIMIZERS, reduction=st.sampled_from([None, "bf16", MINE]),
    parametrisation=st.sampled_from(["standard", "unit"]), source=WORDS,
)  # fmt: skip


@given(RECIPES)
@settings(max_examples=30, deadline=None)
def test_any_recipe_comes_back_with_every_bit(recipe: Any) -> None:
    found = back(recipe)
    same(found, recipe)
    assert found.differences(recipe) == []


@given(RECIPES, RECIPES)
@settings(max_examples=40, deadline=None)
def test_recipes_differ_where_they_are_not_equal_and_only_there(one: Any, other: Any) -> None:
    named = other.replace(name=one.name)
    assert bool(one.differences(other)) == (one != named)
    assert len(one.differences(other)) == len(other.differences(one))


def test_a_recipe_can_be_written_by_hand() -> None:
    loaded = Recipe.from_toml(
        """
        name = "by hand"
        linear = "MXFP8"
        keep = "head"
        [[overrides]]
        layers = "blocks.1.mlp.*"
        products = "wgrad"
        linear = "BF16"
        [[overrides]]
        products = ["fprop"]
        start = 0.85
        [overrides.linear]
        input_fmt = "e4m3"
        weight_fmt = { name = "mine", exponent_bits = 4, mantissa_bits = 1 }
        fprop = { accumulate = "Sequential(FP16)", out_fmt = "bf16" }
        [optimizer]
        schedule = "cosine"
        clip_norm = "none"
        """
    )
    linear = fp.torch.LinearRecipe("e4m3", MINE, fprop=Product(fp.Sequential("fp16"), out_fmt="bf16"))
    assert loaded == Recipe(
        "by hand", "MXFP8", ("head",),
        (Override("blocks.1.mlp.*", ("wgrad",), linear="BF16"), Override("*", ("fprop",), 0.85, 1.0, linear)),
        optimizer=OptimizerRecipe(schedule="cosine", clip_norm=None),
    )  # fmt: skip


@in_turn(
    "text, said",
    [
        ("a = [", "a recipe must be TOML; got the text, which is not: Invalid value"),
        ("a = " + "[" * 20_000, "a recipe must be TOML with a few levels; got the text, which nests too deeply"),
        ("linaer = 'BF16'", "field of Recipe must be one of .*got 'linaer'. Did you mean 'linear'"),
        ("linear = 'MXPF8'", "linear must be one of .*Did you mean 'MXFP8'"),
        ("linear = 5", "a table with fields of LinearRecipe is needed; got 5"),
        ("optimizer = 3", "a table with fields of OptimizerRecipe is needed; got 3"),
        ("[optimizer]\nlearning = 1", "field of OptimizerRecipe must be one of lr"),
        ("[optimizer]\nlr = 'high'", "lr must be a number; got 'high'"),
        ("[optimizer]\nschedule = 'cosin'", "schedule must be one of constant, cosine.*Did you mean 'cosine'"),
        ("[linear]\ninput_fmt = 'e4m4'", "Did you mean 'E4M3'"),
        ("[linear]\ninput_fmt = {bits = 8}", "a format must be a name, or a table of what fp.Format"),
        ("[linear]\ninput_fmt = 'e4m3'\ninput_scaling = 'TILE_1X129'", "scaling must be one of .*mean 'TILE_1X128'"),
        ("[linear]\ninput_fmt = 'e4m3'\ninput_scaling = [1]", "scaling must be one of"),
        ("[linear]\nrounding = 'nearest'", "Did you mean 'nearest_even'"),
        ("[linear.fprop]\naccumulate = 'hoper'", "accumulate must be one of"),
        ("[linear.fprop]\naccumulate = 'Sequental(FP16)'", "Did you mean 'Sequential'"),
        ("[linear.fprop]\naccumulate = 'hopper'\nschedule = \"deepgem('1d2d')\"", "Did you mean 'deepgemm'"),
        ("[linear.fprop]\naccumulate = 'hopper'\nschedule = 'fast'", "a schedule or an accumulator as it is written"),
        ("[controller]\nlevels = 'BF16'", "levels must be one recipe of linear layers or several; got 'BF16'"),
        ("overrides = 3", "a list of tables with fields of Override is needed; got 3"),
        ("overrides = [3]", "a table with fields of Override is needed; got 3"),
        ("[[stored]]\nfmt = 'e4m3'", "Stored needs modules; got {'fmt': 'e4m3'}"),
        ("[loss_scaling]\nrule = 'fixed'", "LossScalingPolicy needs name"),
        ("loss_scaling = 'dynamik'", "Did you mean 'dynamic'"),
    ],
)
def test_what_is_no_recipe_is_refused_in_a_sentence(text: Any, said: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        Recipe.from_toml(text + "\n")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Any) -> None:
    (tmp_path / "bad.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ValueError, match=r"a recipe must be TOML in UTF-8; got .*bad\.toml"):
        Recipe.from_toml(tmp_path / "bad.toml")


@in_turn(
    "one, other, lines",
    [
        (FULL, FULL.replace(name="other", source="elsewhere"), []),
        (recipes.FP16_DYNAMIC, recipes.FP16_UNSCALED, ["loss_scaling: dynamic instead of none"]),
        (recipes.DEEPSEEK_V3_E5M2_GRADS, recipes.DEEPSEEK_V3, ["linear.grad_fmt: E5M2 instead of E4M3"]),
        (recipes.BF16, recipes.BF16_MOMENTS, ["optimizer.first_moment: none instead of BF16",
                                             "optimizer.second_moment: none instead of BF16"]),
        (Recipe(controller=Controller()), Recipe(), ["controller: {} instead of none"]),
        (Recipe(controller=Controller(high=0.5)), Recipe(controller=Controller()), ["controller.high: 0.5 instead of "
                                                                                   "none"]),
        (Recipe(keep=()), Recipe(), ["keep: [] instead of ['head']"]),
        (Recipe(overrides=(Override(linear="BF16"),)), Recipe(), ["overrides: [{'linear': 'BF16'}] instead of []"]),
        (Recipe(overrides=(Override(start=0.5),)), Recipe(overrides=(Override(),)), ["overrides[0].start: 0.5 instead "
                                                                                    "of 0.0"]),
        (Recipe(linear=fp.torch.DEEPSEEK_V3.replace(fprop=Product("hopper", promote=64))), Recipe("", "DEEPSEEK_V3"),
         ["linear.fprop.schedule: none instead of deepgemm('1d2d')", "linear.fprop.promote: 64 instead of none",
          "linear.fprop.out_fmt: none instead of BF16"]),
    ],
)  # fmt: skip
def test_differences_are_a_line_for_each_field(one: Any, other: Any, lines: Any) -> None:
    assert one.differences(other) == lines
