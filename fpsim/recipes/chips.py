"""Recipes of linear layers on another chip: the same operands, multiplied by that chip's matrix units."""

from __future__ import annotations

from typing import NamedTuple

from fpsim.formats.element import element_format
from fpsim.matrix_units.chips import resolve
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.libraries import scaling_of_first
from fpsim.recipes.linear import linear_recipe
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe, Product
from fpsim.recipes.units import unit_for
from fpsim.schedules.schedule import Schedule


class Moved(NamedTuple):
    """A linear recipe moved to another chip.

    Attributes:
      recipe: the recipe with the chip's matrix units.
      units: "fprop", "dgrad" or "wgrad" -> the product's unit on the chip, for products by a matrix unit.
      left_out: product -> its schedule that was left out because it belongs to another chip.
    """

    recipe: LinearRecipe
    units: dict[str, MatrixUnit]
    left_out: dict[str, Schedule]


def on_chip(recipe: LinearRecipe | str, chip: str) -> LinearRecipe:
    """Return a linear recipe whose matrix units are replaced by a chip's units for the same operands.

    Products that torch or an accumulator adds are not changed, nor are promotions, formats and scalings. A schedule for
    another chip is left out: then each sum is one chain of instructions, promoted where scales change along K.

    Args:
      recipe: a recipe of linear layers, or its name.
      chip: the chip's product name ("H100", "MI300X"), architecture ("hopper"), compiler target ("sm_90") or compute
        capability ("9.0"). A library in the name is ignored: "H100 cuBLAS" counts as "H100".

    Raises:
      ValueError: there is no such chip, or it has no unit for a product's operands.

    Example:
      >>> from fpsim.recipes.chips import on_chip
      >>> on_chip(fp.torch.DEEPSEEK_V3, "B200").fprop
      Product('blackwell_e4m3_f32', out_fmt=BF16)
      >>> on_chip(fp.torch.RECIPES["BF16"], "MI300X").accumulator("wgrad").name
      'cdna3_bf16_f32'
    """
    return moved(linear_recipe(recipe, "recipe"), chip).recipe


def moved(recipe: LinearRecipe, chip: str) -> Moved:
    """Return a Moved: the linear recipe that `on_chip` returns, the units of its products, and schedules left out.

    recipe: the linear recipe to move. chip: a name of the chip, as for `on_chip`.

    Example:
      >>> from fpsim.recipes.chips import moved
      >>> moved(fp.torch.DEEPSEEK_V3, "B200").left_out["fprop"], moved(fp.torch.DEEPSEEK_V3, "H100").left_out
      (deepgemm('1d2d'), {})
    """
    arch = resolve(chip).chip.arch
    units: dict[str, MatrixUnit] = {}
    left_out: dict[str, Schedule] = {}
    products: dict[str, Product] = {}
    for name in PRODUCTS:
        product, unit = getattr(recipe, name), recipe.accumulator(name)
        if not isinstance(unit, MatrixUnit):
            continue
        if unit.arch != arch:
            fmts = [None if fmt is None else element_format(fmt) for fmt in recipe.operands(name)]
            wanted = [element.fmt if fmt is None else fmt for element, fmt in zip((unit.a, unit.b), fmts, strict=True)]
            unit = unit_for(arch, wanted, *scaling_of_first(recipe, name), f"{name} on {chip}", result=unit.d.name)
            product = product.replace(accumulate=unit)
        units[name] = unit
        if product.schedule is not None and product.schedule.arch not in ("", arch):
            left_out[name] = product.schedule
            product = product.replace(schedule=None)
        if product != getattr(recipe, name):
            products[name] = product
    return Moved(recipe.replace(**products) if products else recipe, units, left_out)
