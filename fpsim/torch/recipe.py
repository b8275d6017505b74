"""The former module of `fpsim.recipes.linear_recipe`, which pickles of version 0.1 refer to."""

from __future__ import annotations

from fpsim.recipes.linear_recipe import Delayed as Delayed
from fpsim.recipes.linear_recipe import LinearRecipe as LinearRecipe
from fpsim.recipes.linear_recipe import Product as Product
