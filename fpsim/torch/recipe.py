"""The former address of `fpsim.recipes.linear_recipe`, which objects pickled by 0.1 name."""

from __future__ import annotations

from fpsim.recipes.linear_recipe import Delayed as Delayed
from fpsim.recipes.linear_recipe import LinearRecipe as LinearRecipe
from fpsim.recipes.linear_recipe import Product as Product
