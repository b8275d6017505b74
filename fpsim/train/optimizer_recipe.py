"""The former address of `fpsim.recipes.optimizer_recipe`, which objects pickled by 0.1 name."""

from __future__ import annotations

from fpsim.recipes.optimizer_recipe import OptimizerRecipe as OptimizerRecipe
