"""The look-up of recipes by name, object, TOML file or plan of `fpsim.analysis`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fpsim.errors import require_kind, shown, unknown
from fpsim.recipes.linear import LINEAR, row_name
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.recipes.training import TRAINING
from fpsim.recipes.training_recipe import Recipe


class RecipePlan(Protocol):
    """A plan of `fpsim.analysis`, accepted in place of the training recipe that its `to_recipe` returns."""

    def to_recipe(self) -> Recipe: ...


RecipeLike = str | Path | Recipe | RecipePlan  # accepted by `find`
LinearLike = RecipeLike | LinearRecipe  # accepted by `find_linear` and `find_either`
LinearLikes = LinearLike | Iterable[LinearLike] | Mapping[str, LinearLike]


def find(spec: RecipeLike) -> Recipe:
    """Return the training recipe for a name, an object, a TOML file or a plan.

    Args:
      spec: a Recipe, the name of one in `fp.recipes.TRAINING` (capitals do not matter, "-" counts as "_"), the path of
        a TOML file, or an `fp.analysis.Plan`.

    Raises:
      ValueError: no recipe has that name; or the file's content is not a recipe.
      TypeError: spec is something else.
      OSError: the file cannot be read.

    Example:
      >>> fp.recipes.find("deepseek_v3")
      <Recipe DEEPSEEK_V3: linear layers fp.torch.DEEPSEEK_V3>
    """
    recipe = of_plan(spec)
    if isinstance(recipe, Recipe):
        return recipe
    if is_file(recipe):
        return Recipe.from_toml(recipe)
    require_kind("recipe", recipe, str, "an fp.train.Recipe, the name of one, a TOML file or an fp.analysis.Plan")
    name = row_name(recipe)
    if name not in TRAINING:
        raise unknown("recipe", recipe, tuple(TRAINING), listing="fp.recipes.TRAINING or `fpsim recipes`")
    return TRAINING[name]


def find_linear(spec: LinearLike) -> LinearRecipe:
    """Return the linear recipe for a name, an object, a TOML file or a plan.

    For a training recipe, its field `linear` is returned; overrides, and the layers that `keep` leaves in float32, are
    ignored. A name is looked up among linear recipes first.

    Args:
      spec: a LinearRecipe, a Recipe, the name of either, the path of a TOML file, or an `fp.analysis.Plan`.

    Raises:
      ValueError: no recipe has that name; or the file's content is not a recipe.
      TypeError: spec is something else.
      OSError: the file cannot be read.

    Example:
      >>> fp.recipes.find_linear("mxfp8").name, fp.recipes.find_linear("FP16_DYNAMIC").name
      ('MXFP8', 'FP16')
    """
    recipe = find_either(spec)
    linear = recipe.linear if isinstance(recipe, Recipe) else recipe
    assert isinstance(linear, LinearRecipe)
    return linear


def find_either(spec: LinearLike) -> LinearRecipe | Recipe:
    """Return the linear or training recipe for a name, an object, a TOML file or a plan.

    A name is looked up among linear recipes first, then among training recipes. Files and plans are training recipes.

    Raises:
      ValueError: no recipe has that name; or the file's content is not a recipe.
      TypeError: spec is something else.
      OSError: the file cannot be read.

    Example:
      >>> from fpsim.recipes.look_up import find_either
      >>> find_either("deepseek_v3"), find_either("NVFP4_SWITCHED")
      (fp.torch.DEEPSEEK_V3, <Recipe NVFP4_SWITCHED: linear layers fp.torch.NVFP4>)
    """
    recipe = of_plan(spec)
    if isinstance(recipe, (LinearRecipe, Recipe)):
        return recipe
    if is_file(recipe):
        return Recipe.from_toml(recipe)
    if not isinstance(recipe, str):
        hint = " Pass its .plan." if hasattr(getattr(recipe, "plan", None), "to_recipe") else ""
        raise TypeError(
            "recipe must be an fp.torch.LinearRecipe, an fp.train.Recipe, the name of one, the path of one in TOML, or "
            f"an fp.analysis.Plan; got {shown(recipe)}.{hint}"
        )
    row = row_named(recipe)
    if row is None:
        others = "the path of a recipe in TOML"
        raise unknown("recipe", recipe, names(), listing="fp.recipes.LINEAR or fp.recipes.TRAINING", others=others)
    return row


def row_named(name: str) -> LinearRecipe | Recipe | None:
    """Return the linear recipe of a name, else the training recipe of that name, else None.

    Capitals do not matter, and "-" counts as "_".
    """
    name = row_name(name)
    return LINEAR.get(name) or TRAINING.get(name)


def names() -> tuple[str, ...]:
    """Return the names of all recipes, linear recipes first, each name once."""
    return tuple(dict.fromkeys((*LINEAR, *TRAINING)))


def is_file(spec: Any) -> bool:
    """Return whether `spec` is the path of a recipe: a Path, or a str that ends in ".toml"."""
    return isinstance(spec, Path) or (isinstance(spec, str) and spec.endswith(".toml"))


def of_plan(spec: Any) -> Any:
    """Return the training recipe of `spec`, an `fp.analysis.Plan`; return anything else unchanged."""
    to_recipe = getattr(spec, "to_recipe", None)
    return spec if to_recipe is None or isinstance(spec, type) else to_recipe()
