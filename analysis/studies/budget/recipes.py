"""What the products of each layer follow: a recipe of linear layers or of training, on some hardware."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fpsim.errors import require_word, shown
from fpsim.torch.hardware import Note, placed
from fpsim.torch.recipe import PRODUCTS, LinearRecipe, of_plan
from fpsim.torch.rows import RECIPES
from fpsim.train.recipe import Recipe
from fpsim.train.recipes import ROWS
from fpsim.train.runs import find_recipe


class Followed(NamedTuple):
    """The recipes of the three products of a layer, and what one might not expect, with the product."""

    fprop: LinearRecipe
    dgrad: LinearRecipe
    wgrad: LinearRecipe
    notes: tuple[Note, ...] = ()

    @property
    def three(self) -> tuple[LinearRecipe, LinearRecipe, LinearRecipe]:
        """As `fpsim.torch.QuantLinear.follow` takes them."""
        return self.fprop, self.dgrad, self.wgrad


def recipe_of(spec: Any) -> LinearRecipe | Recipe:
    """A recipe as it came or by name: of linear layers first, then of training, whose overrides are those of step 1.

    Raises:
      ValueError: nothing has that name.
      TypeError: it is neither.

    Example:
      >>> from fpsim.analysis.studies.budget.recipes import recipe_of
      >>> recipe_of("deepseek_v3"), recipe_of("NVFP4_SWITCHED")
      (fp.torch.DEEPSEEK_V3, <Recipe NVFP4_SWITCHED: linear layers fp.torch.NVFP4>)
    """
    spec = of_plan(spec)
    if isinstance(spec, (LinearRecipe, Recipe)):
        return spec
    if isinstance(spec, Path) or (isinstance(spec, str) and spec.endswith(".toml")):
        return find_recipe(spec)
    if not isinstance(spec, str):
        raise TypeError(
            f"recipe must be an fp.torch.LinearRecipe, an fp.train.Recipe, or the name of one; got {shown(spec)}."
        )
    name = spec.upper().replace("-", "_")
    names = tuple(dict.fromkeys((*RECIPES, *ROWS)))
    require_word("recipe", name, names, listing="fp.torch.RECIPES or fp.train.recipes.ROWS")
    return RECIPES[name] if name in RECIPES else ROWS[name]


def followed_by(recipe: LinearRecipe | Recipe, layer: str, hardware: Any) -> Followed:
    """What the products of a layer follow on some hardware.

    Raises:
      ValueError: the hardware cannot, with the layer's name.
    """
    if isinstance(recipe, LinearRecipe):
        found = _placed(recipe, hardware)
        return Followed(found.recipe, found.recipe, found.recipe, found.notes)
    x, dx, dw = (_placed(recipe.linear_of(layer, product, 0, 1), hardware) for product in PRODUCTS)
    notes = tuple(dict.fromkeys((*x.notes, *dx.notes, *dw.notes)))
    return Followed(x.recipe, dx.recipe, dw.recipe, notes)


_placed = lru_cache(maxsize=64)(placed)
