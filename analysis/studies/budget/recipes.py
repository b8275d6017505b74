"""The recipes of the products of each layer, from a recipe of linear layers or of training on some hardware."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from fpsim.recipes.hardware import Note, placed
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.training_recipe import Recipe


class Followed(NamedTuple):
    """The recipes of the three products of a layer, and notes on anything that a user might not expect."""

    fprop: LinearRecipe
    dgrad: LinearRecipe
    wgrad: LinearRecipe
    notes: tuple[Note, ...] = ()

    @property
    def three(self) -> tuple[LinearRecipe, LinearRecipe, LinearRecipe]:
        """The three recipes in the order of `fpsim.torch.QuantLinear.follow`."""
        return self.fprop, self.dgrad, self.wgrad


def followed_by(recipe: LinearRecipe | Recipe, layer: str, hardware: Any) -> Followed:
    """Return the recipes that a layer's products follow on a given chip or schedule.

    Raises:
      ValueError: the hardware cannot compute one of them.
    """
    place = _placed if isinstance(hardware, Hashable) else placed  # whose error says what hardware is accepted
    if isinstance(recipe, LinearRecipe):
        linear = place(recipe, hardware)
        return Followed(linear.recipe, linear.recipe, linear.recipe, linear.notes)
    x, dx, dw = (place(recipe.linear_of(layer, product, 0, 1), hardware) for product in PRODUCTS)
    notes = tuple(dict.fromkeys((*x.notes, *dx.notes, *dw.notes)))
    return Followed(x.recipe, dx.recipe, dw.recipe, notes)


_placed = lru_cache(maxsize=64)(placed)
