"""Recipes have one home, one look-up, and addresses of old that lead there."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import fpsim as fp
from fpsim.recipes import look_up
from tests.kit.processes import python

FORMER = {
    "fpsim.train.recipe": ("Recipe",),
    "fpsim.train.parts": ("Controller", "Numerics", "Override", "Stored"),
    "fpsim.train.optimizer_recipe": ("OptimizerRecipe",),
    "fpsim.torch.recipe": ("Delayed", "LinearRecipe", "Product"),
    "fpsim.torch.chips": ("on_chip",),
    "fpsim.analysis.measures.scales.policies": ("LossScalingPolicy",),
}


def test_recipes_are_the_same_objects_under_all_their_names() -> None:
    assert fp.train.recipes.ROWS is fp.recipes.TRAINING
    assert fp.torch.RECIPES is fp.recipes.LINEAR
    for name, row in fp.recipes.TRAINING.items():
        assert getattr(fp.recipes, name) is getattr(fp.train.recipes, name) is row
    for name in ("DEEPSEEK_V3", "MXFP8", "NVFP4", "TE_DELAYED", "TE_HYBRID"):
        assert getattr(fp.recipes, name).linear is getattr(fp.torch, name)
        assert getattr(fp.recipes.linear, name) is getattr(fp.torch, name)


def test_recipes_load_without_torch() -> None:
    use = "fp.recipes.find('deepseek-v3').linear_of('up', 'fprop', 0, 1), fp.recipes.find_linear('mxfp8')"
    assert python(f"import sys, fpsim as fp; {use}; print('torch' in sys.modules)").strip() == "False"


@pytest.mark.parametrize("module", FORMER)
def test_pickles_of_former_addresses_load(module: str) -> None:
    for name in FORMER[module]:
        loaded = pickle.loads(f"c{module}\n{name}\n.".encode())
        assert loaded is getattr(fp.recipes, name)
    assert python(f"import {module}; print({module}.{FORMER[module][0]})")


def test_a_name_is_found_in_any_spelling() -> None:
    assert look_up.find(" deepseek-v3 ") is fp.recipes.DEEPSEEK_V3
    assert look_up.find_linear("Te_Hybrid") is fp.torch.TE_HYBRID
    assert look_up.find_either("bf16") is fp.torch.RECIPES["BF16"]
    assert look_up.find_either("FP16_DYNAMIC") is fp.recipes.FP16_DYNAMIC
    assert look_up.find_linear("FP16_DYNAMIC") is fp.torch.RECIPES["FP16"]


def test_objects_and_files_are_recipes_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    fp.recipes.MXFP8.to_toml(file)
    for spec in (fp.recipes.MXFP8, file, str(file)):
        assert look_up.find(spec) == look_up.find_either(spec) == fp.recipes.MXFP8
        assert look_up.find_linear(spec) == fp.torch.MXFP8
    assert look_up.find_either(fp.torch.MXFP8) is look_up.find_linear(fp.torch.MXFP8) is fp.torch.MXFP8


def test_what_is_no_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recipe must be one of the \d+ that fp.recipes.TRAINING .*'DEEPSEEK_V3'\?"):
        look_up.find("deepsek_v3")
    with pytest.raises(ValueError, match=r"recipe must be one of the \d+ that fp.recipes.LINEAR or fp.recipes.TRAI"):
        look_up.find_linear("fp9")
    with pytest.raises(TypeError, match=r"recipe must be an fp.train.Recipe, the name of one, .*; got 3"):
        look_up.find(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"recipe must be an fp.torch.LinearRecipe, .*; got 3"):
        look_up.find_either(3)  # type: ignore[arg-type]


def test_an_attribute_that_is_no_recipe_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(AttributeError, match=r"'fpsim.recipes' has no attribute 'DEEPSEK_V3'. Did you mean 'DEEPSEEK"):
        _ = fp.recipes.DEEPSEK_V3
    assert {"DEEPSEEK_V3", "LINEAR", "TRAINING", "find", "linear"} <= set(dir(fp.recipes))
