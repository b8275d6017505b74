"""Recipes of training on a chip, or on the processor of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fpsim.matrix_units.chips import resolve
from fpsim.recipes.chips import Moved, moved
from fpsim.recipes.hardware import placed
from fpsim.recipes.linear import linear_recipe
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.this_cpu import THIS_CPU
from fpsim.recipes.training_recipe import Recipe
from fpsim.schedules.shaped import ShapedSchedule
from fpsim.torch.plan import BACKENDS


def recipe_on_chip(recipe: Recipe, chip: str) -> tuple[Recipe, tuple[str, ...]]:
    """Return a recipe of training that uses a chip's matrix units, and sentences on what was left out.

    Args:
      recipe: a recipe.
      chip: a chip by any of its names, alone or with a library, or "this CPU": torch.mm on this machine's processor.

    Raises:
      ValueError: there is no such chip, it has no unit for a product's operands, or the recipe has no unit at all.

    Example:
      >>> from fpsim.train import recipes
      >>> from fpsim.train.chips import recipe_on_chip
      >>> there, remarks = recipe_on_chip(recipes.DEEPSEEK_V3, "B200")
      >>> there.linear.accumulator("fprop").name, remarks[0]
      ('blackwell_e4m3_f32', "B200 adds without deepgemm('1d2d'), a schedule for hopper.")
    """
    if chip == THIS_CPU:
        return _with_linears(recipe, _on_this_cpu), ()
    named = resolve(chip, "backend", (*BACKENDS, THIS_CPU))
    all_moved: list[Moved] = []

    def there(linear: LinearRecipe | str) -> LinearRecipe:
        all_moved.append(moved(linear_recipe(linear), chip))
        recipe = all_moved[-1].recipe
        return placed(recipe, chip).recipe if named.library else recipe

    changed = _with_linears(recipe, there)
    if not any(one.units for one in all_moved):
        raise ValueError(
            f"a chip needs a recipe with products on matrix units; {recipe.name!r} has none, so {chip} would give what "
            "every other one does. Take another recipe, or a backend."
        )
    left_out = dict.fromkeys(schedule for one in all_moved for schedule in one.left_out.values() if not named.library)
    remarks = tuple(f"{chip} adds without {schedule}, a schedule for {schedule.arch}." for schedule in left_out)
    return changed, remarks


def _with_linears(recipe: Recipe, there: Callable[[LinearRecipe | str], LinearRecipe]) -> Recipe:
    """Return a recipe of training whose recipes of linear layers are all replaced by what a function returns."""
    changes: dict[str, Any] = {
        "linear": there(recipe.linear),
        "overrides": tuple(dataclasses.replace(row, linear=there(row.linear)) for row in recipe.overrides),
    }
    if recipe.controller is not None:
        levels = tuple(there(level) for level in recipe.controller.levels)
        changes["controller"] = dataclasses.replace(recipe.controller, levels=levels)
    return recipe.replace(**changes)


def _on_this_cpu(linear: LinearRecipe | str) -> LinearRecipe:
    """Return a recipe of linear layers as torch.mm multiplies here, or on the processor that it names already."""
    recipe = linear_recipe(linear)
    if any(isinstance(getattr(recipe, product).schedule, ShapedSchedule) for product in PRODUCTS):
        return recipe
    return placed(recipe, THIS_CPU).recipe
