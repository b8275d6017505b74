"""Recipes as data: formats, scalings and arithmetic of linear layers and of training, one for each library or paper.

A recipe of training is an attribute by its name, `fp.recipes.DEEPSEEK_V3`; its field `linear` is the recipe of its
linear layers, `fp.torch.DEEPSEEK_V3`. `TRAINING` and `LINEAR` are dicts of all recipes by name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fpsim.lazy import attach, no_attribute

if TYPE_CHECKING:
    from fpsim.recipes import linear as linear
    from fpsim.recipes import training as training
    from fpsim.recipes.chips import on_chip as on_chip
    from fpsim.recipes.linear import LINEAR as LINEAR
    from fpsim.recipes.linear_recipe import Delayed as Delayed
    from fpsim.recipes.linear_recipe import LinearRecipe as LinearRecipe
    from fpsim.recipes.linear_recipe import Product as Product
    from fpsim.recipes.look_up import find as find
    from fpsim.recipes.look_up import find_linear as find_linear
    from fpsim.recipes.loss_scaling import LossScalingPolicy as LossScalingPolicy
    from fpsim.recipes.loss_scaling import loss_scaling_policy as loss_scaling_policy
    from fpsim.recipes.optimizer_recipe import OptimizerRecipe as OptimizerRecipe
    from fpsim.recipes.parts import Controller as Controller
    from fpsim.recipes.parts import Numerics as Numerics
    from fpsim.recipes.parts import Override as Override
    from fpsim.recipes.parts import Stored as Stored
    from fpsim.recipes.training import *  # noqa: F403
    from fpsim.recipes.training import TRAINING as TRAINING
    from fpsim.recipes.training_recipe import Recipe as Recipe

_load, _, _names = attach(
    __name__,
    {
        "chips": ["on_chip"],
        "linear": ["LINEAR"],
        "linear_recipe": ["Delayed", "LinearRecipe", "Product"],
        "look_up": ["find", "find_linear"],
        "loss_scaling": ["LossScalingPolicy", "loss_scaling_policy"],
        "optimizer_recipe": ["OptimizerRecipe"],
        "parts": ["Controller", "Numerics", "Override", "Stored"],
        "training": ["TRAINING"],
        "training_recipe": ["Recipe"],
    },
    modules=["linear", "training"],
)


def __getattr__(name: str) -> Any:
    """Return the class, function, module or training recipe of a name, loaded on first use."""
    if name in _names or not name[0].isupper():
        return _load(name)
    rows = importlib.import_module("fpsim.recipes.training").TRAINING
    if name not in rows:
        raise no_attribute(__name__, name, __dir__())
    return rows[name]


def __dir__() -> list[str]:
    """Return the names of all training recipes, classes, functions and modules."""
    return sorted([*_names, *importlib.import_module("fpsim.recipes.training").TRAINING])
