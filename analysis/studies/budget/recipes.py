"""The recipes that the products of each layer follow, given a recipe and the hardware."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from fpsim.recipes.hardware import Note, placed
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.training_recipe import Recipe


class Followed(NamedTuple):
    """The recipes that a layer's three products follow on some hardware.

    Attributes:
      recipes: the recipes of fprop, dgrad and wgrad.
      notes: effects of the hardware that a user might not expect, as pairs (text, name of the product).
    """

    recipes: tuple[LinearRecipe, LinearRecipe, LinearRecipe]
    notes: tuple[Note, ...]


def followed_by(recipe: LinearRecipe | Recipe, layer: str, hardware: Any) -> Followed:
    """Return the recipes that a layer's products follow on some hardware.

    `recipe`: a recipe of linear layers, which all three products follow; or a recipe of training, whose settings for
    this layer at the first step are taken. `layer`: the layer's name. `hardware`: a chip, library, unit, schedule or
    accumulator, or None, as `on` in `fp.analysis.budget`.

    Raises:
      ValueError: the hardware cannot compute one of the products.
    """
    place = _placed if isinstance(hardware, Hashable) else placed  # whose error says what hardware is accepted
    if isinstance(recipe, LinearRecipe):
        linear = place(recipe, hardware)
        return Followed((linear.recipe,) * 3, linear.notes)
    x, dx, dw = (place(recipe.linear_of(layer, product, 0, 1), hardware) for product in PRODUCTS)
    notes = tuple(dict.fromkeys((*x.notes, *dx.notes, *dw.notes)))
    return Followed((x.recipe, dx.recipe, dw.recipe), notes)


_placed = lru_cache(maxsize=64)(placed)
