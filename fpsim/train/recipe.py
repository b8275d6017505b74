"""The former address of `fpsim.recipes.training_recipe`, which objects pickled by 0.1 name."""

from __future__ import annotations

from fpsim.recipes.training_recipe import Recipe as Recipe
