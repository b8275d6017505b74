"""The recipes that a diagnosis compares, with the matrix units and schedules of its hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fpsim.analysis.studies.budget.notes import Notes
from fpsim.analysis.studies.diagnosis.verdict import is_high
from fpsim.analysis.studies.sensitivity.request import recipes_named
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.hardware import placed
from fpsim.recipes.linear import LINEAR
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe

USUAL = ("BF16", "FP8_TENSOR", "DEEPSEEK_V3", "MXFP8")  # recipes that libraries support
HIGH = ("BF16", "FP16")  # recipes of 16 bits for products that do not fit a low one, in order of preference


class PlacedRecipes(NamedTuple):
    """The recipes of a diagnosis with the matrix units of its hardware, at least one of 16 bits or more.

    Attributes:
      recipes: name -> recipe.
      notes: sentences on recipes that were left out, or that the hardware does not compute as written.
    """

    recipes: dict[str, LinearRecipe]
    notes: tuple[str, ...]


def recipes_on(recipes: Any, hardware: Any, products: Sequence[str] = PRODUCTS) -> PlacedRecipes:
    """Return the requested recipes with the matrix units and schedules of some hardware.

    If none of them has 16 bits or more, BF16 is added, or FP16 on hardware that cannot compute BF16.

    Args:
      recipes: recipes or their names, as `fp.analysis.diagnose` accepts them; None for BF16, FP8_TENSOR, DEEPSEEK_V3
        and MXFP8, as far as the hardware has units for them.
      hardware: as `on` in `fp.analysis.budget`.
      products: the products that are diagnosed, which notes name.

    Raises:
      TypeError, ValueError: a recipe or the hardware is unknown, or the hardware has no unit for a recipe, or adds in
        an unknown order.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.recipes import recipes_on
      >>> [list(recipes_on(None, chip).recipes) for chip in ("H100", "B200", "A100")]
      [['BF16', 'FP8_TENSOR', 'DEEPSEEK_V3'], ['BF16', 'FP8_TENSOR', 'DEEPSEEK_V3', 'MXFP8'], ['BF16']]
    """
    placed(LINEAR["FP32"], hardware)  # refuses an unknown name of hardware
    notes = Notes()
    chosen: dict[str, LinearRecipe] = {}
    wanted: Mapping[str, LinearRecipe]
    if recipes is None:
        wanted = {name: LINEAR[name] for name in USUAL}
    else:
        wanted = recipes_named(recipes)
    for name, recipe in wanted.items():
        try:
            chosen[name] = _placed(name, recipe, hardware, notes, products)
        except ValueError as refusal:
            if recipes is not None:
                why = str(refusal).rstrip(".")
                raise ValueError(f"recipes must be ones that the hardware can run; got {name}: {why}.") from None
            notes.add(
                f"Left out, since {hardware} has no unit for its products, or its order of additions is unknown", name
            )
    if not any(map(is_high, chosen.values())):
        name, high = _high(hardware, notes, products)
        chosen = {name: high, **chosen}
    return PlacedRecipes(chosen, notes.sentences)


def _placed(name: str, recipe: LinearRecipe, hardware: Any, notes: Notes, products: Sequence[str]) -> LinearRecipe:
    """Return a recipe with the matrix units of some hardware.

    `name`: name of the recipe, also in notes. `hardware`: as `on` in `fp.analysis.budget`. `notes`: receives a note for
    each of `products` that the hardware does not compute as the recipe says. Raise a ValueError if the hardware cannot
    compute the recipe.
    """
    where = placed(recipe, hardware)
    for product in PRODUCTS:  # a chain for each block of scales would have the bits of no library
        unit, other = recipe.accumulator(product), where.recipe.accumulator(product)
        if isinstance(unit, MatrixUnit) and unit.scale is not None and getattr(other, "scale", None) is None:
            raise ValueError(
                f"{product} on {hardware} needs a unit with block scales, such as {unit.name}; the hardware has none"
            )
    notes.extend((note, f"{product} in {name}") for note, product in where.notes if product in products)
    return where.recipe.replace(name=name)


def _high(hardware: Any, notes: Notes, products: Sequence[str]) -> tuple[str, LinearRecipe]:
    """Return (name, recipe) of 16 bits for products that fit no recipe of fewer bits.

    The recipe is BF16, or FP16 if the hardware cannot compute BF16. If the hardware can compute neither, the recipe is
    BF16 with its own units, and `notes` gets a sentence on this. `hardware`: as `on` in `fp.analysis.budget`.
    `products`: the products that notes name.
    """
    for name in HIGH:
        try:
            return name, _placed(name, LINEAR[name], hardware, notes, products)
        except ValueError:
            continue
    notes.add(f"Computed with the recipe's own units, since it is not known how {hardware} adds", HIGH[0])
    return HIGH[0], LINEAR[HIGH[0]]


def cache_of(recipe: LinearRecipe) -> LinearRecipe:
    """Return a recipe for products that read a KV cache: only the second operand is cast, as `recipe` casts weights."""
    return LinearRecipe(None, recipe.weight_fmt, None, None, recipe.weight_scaling, None)
