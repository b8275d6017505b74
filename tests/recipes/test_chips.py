"""A recipe on another chip reads the same operands, and is added by that chip's units."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch = pytest.importorskip("torch")
ft: Any = importlib.import_module("fpsim.torch")
chips: Any = importlib.import_module("fpsim.recipes.chips")


def test_units_move_and_schedules_of_other_chips_are_left_out() -> None:
    recipe = chips.moved(ft.DEEPSEEK_V3, "B200")
    assert {product: unit.name for product, unit in recipe.units.items()} == dict.fromkeys(
        ("fprop", "dgrad", "wgrad"), "blackwell_e4m3_f32"
    )
    assert recipe.left_out == {
        "fprop": fp.schedules.deepgemm("1d2d"), "dgrad": fp.schedules.deepgemm("1d2d"),
        "wgrad": fp.schedules.deepgemm("1d1d"),
    }  # fmt: skip
    assert recipe.recipe.fprop == ft.Product("blackwell_e4m3_f32", out_fmt="bf16")
    kept = ft.DEEPSEEK_V3.replace(fprop=recipe.recipe.fprop, dgrad=recipe.recipe.dgrad, wgrad=recipe.recipe.wgrad)
    assert recipe.recipe == kept


def test_a_recipe_on_its_own_chip_stays_the_object_that_it_is() -> None:
    assert chips.on_chip(ft.DEEPSEEK_V3, "H100") is ft.DEEPSEEK_V3
    assert chips.on_chip(ft.RECIPES["FP32"], "B200") is ft.RECIPES["FP32"]


def test_products_without_a_unit_stay_and_promotions_too() -> None:
    recipe = ft.RECIPES["FP8_TENSOR"].replace(dgrad=ft.Product(fp.Pairwise("fp32")), wgrad=ft.Product())
    moved_recipe = chips.on_chip(recipe, "ada")
    assert moved_recipe.fprop == ft.Product("ada_e4m3_f32", promote=128, out_fmt="bf16")
    assert (moved_recipe.dgrad, moved_recipe.wgrad) == (recipe.dgrad, recipe.wgrad)


def test_sums_keep_their_format() -> None:
    half = ft.RECIPES["FP8_RAW"].replace(fprop=ft.Product("hopper_e4m3_f16"))
    assert chips.on_chip(half, "ada").fprop.accumulate.name == "ada_e4m3_f16"


def test_a_chip_without_the_unit_is_refused_in_a_sentence() -> None:
    others = {"A100": r"ampere has none\. Take", "MI300X": r"cdna3 has none, but for E4M3FNUZ x E4M3FNUZ, .*\. Take"}
    for chip, found in others.items():
        with pytest.raises(ValueError, match=f"fprop on {chip} needs a matrix unit for E4M3 x E4M3 .* {found}"):
            chips.on_chip(ft.DEEPSEEK_V3, chip)


def test_a_recipe_is_taken_by_its_name_too() -> None:
    assert chips.on_chip("DEEPSEEK_V3", "B200") == chips.on_chip(ft.DEEPSEEK_V3, "B200")
    with pytest.raises(ValueError, match=r"recipe must be one of .* got 'DEEPSEK'"):
        chips.on_chip("DEEPSEK", "B200")
    with pytest.raises(TypeError, match=r"recipe must be an fp\.torch\.LinearRecipe or the name of one; got 3"):
        chips.on_chip(3, "B200")


def test_layers_on_another_chip_have_the_bits_of_its_unit() -> None:
    torch.manual_seed(0)
    layer = ft.QuantLinear(256, 16, False, recipe=chips.on_chip(ft.RECIPES["FP8_TENSOR"], "B200"))
    x = torch.randn(8, 256)
    a, b = (fp.encode_scaled(each.detach().numpy(), "e4m3", fp.scalings.TENSOR) for each in (x, layer.weight))
    want = fp.matmul(a, b.transpose(), accumulate="blackwell_e4m3_f32", promote=128, out_fmt="bf16")
    fp.testing.assert_bits_equal(layer(x).detach().numpy(), want.astype(np.float32))
