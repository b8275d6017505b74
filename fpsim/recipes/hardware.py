"""The function `placed`, which changes a linear recipe so that given hardware computes its three matrix products.

Hardware is a chip, a library on a chip, a matrix unit, a schedule (order of additions) or an accumulator. It is given
as a name, such as "H100 cuBLAS", or as an object; "this CPU" is the processor that runs the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fpsim.errors import shown
from fpsim.formats.float_format import Format
from fpsim.matrix_units.catalogue import named_unit
from fpsim.matrix_units.chips import NamedChip, resolve
from fpsim.matrix_units.chips import find as find_chip
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.chips import Moved, moved
from fpsim.recipes.libraries import library_schedule, scaling_of_first
from fpsim.recipes.linear import linear_recipe
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe, Product
from fpsim.recipes.this_cpu import LAYOUTS, THIS_CPU, by_torch_mm, isa_here, notes_of
from fpsim.recipes.training_recipe import Recipe
from fpsim.recipes.units import unit_for
from fpsim.schedules.libraries.torch_cpu import torch_mm
from fpsim.schedules.schedule import FLAT, Schedule
from fpsim.schedules.shaped import CHAIN, ShapedSchedule
from fpsim.schedules.written import parsed
from fpsim.sums.accumulators import Accumulator

ONE_SLICE = "Added in one slice of K, though cuBLAS splits K for some shapes"
Note = tuple[str, str]  # text on unexpected arithmetic, and the product's name


class Placed(NamedTuple):
    """A linear recipe on hardware.

    Attributes:
      recipe: the recipe, whose products are computed by the hardware.
      notes: pairs (text, name of the product) on arithmetic that may surprise a user.
    """

    recipe: LinearRecipe
    notes: tuple[Note, ...] = ()


Hardware = str | MatrixUnit | Schedule | ShapedSchedule | Accumulator | None  # accepted by `placed`


def placed(recipe: LinearRecipe, hardware: Hardware) -> Placed:
    """Return a linear recipe whose products are computed by the given hardware, with the same operands, and notes.

    Args:
      recipe: a recipe of linear layers.
      hardware: one of
        a chip's name ("H100", "MI300X", "hopper"): its units for the operands' formats, with those schedules of the
        recipe that fit the chip;
        a chip and a library ("H100 cuBLAS"): the library's schedules as well;
        a unit, schedule or accumulator, or its name ("hopper_e4m3_f32", "cublas('sm_90', split_k=4)",
        "Sequential(BF16)");
        "this CPU": torch.mm on the processor of this machine;
        None: the recipe unchanged.

    Raises:
      ValueError: nothing has that name, the chip has no unit for a product's operands, or the library's order for them
        is not known.
      TypeError: hardware is something else.

    Example:
      >>> from fpsim.recipes.hardware import placed
      >>> placed(fp.torch.DEEPSEEK_V3, "H100 cuBLAS").recipe.wgrad
      Product('hopper', schedule=cublas('sm_90', family='block_scaled'))
      >>> placed(fp.torch.LinearRecipe("fp16", "fp16", "fp16"), "A100").recipe.accumulator("dgrad").name
      'ampere_f16_f32'
    """
    where: Any = _read(hardware)
    if where is None:
        return Placed(recipe)
    if where == THIS_CPU:
        isa = isa_here()
        here = _with_products(recipe, lambda name, _: by_torch_mm(recipe, name, torch_mm(isa, layout=LAYOUTS[name])))
        notes = tuple((note, name) for note in notes_of(isa) for name in PRODUCTS if getattr(here, name).schedule)
        return Placed(here, notes)
    if isinstance(where, (MatrixUnit, Accumulator)):
        keeps = {} if isinstance(where, MatrixUnit) else {"schedule": None, "promote": None}
        return Placed(_with_products(recipe, lambda name, product: product.replace(accumulate=where, **keeps)))
    if isinstance(where, ShapedSchedule):
        uncast = {"accumulate": CHAIN, "schedule": where, "promote": None}
        return Placed(_with_products(recipe, lambda name, product: (
            product.replace(**uncast) if recipe.operands(name) == (None, None) else by_torch_mm(recipe, name, where)
        )))  # fmt: skip
    if isinstance(where, Schedule):
        filled, notes = _filled(recipe, where.arch) if where.arch else Placed(recipe)
        return Placed(_with_products(filled, lambda name, product: _scheduled(product, where)), notes)
    filled, notes = _filled(recipe, where.chip.arch, where.name)
    on_chip = moved(filled, where.name)
    notes += tuple(
        (f"Without {schedule}, which is not for {where.name}", name)
        for name, schedule in on_chip.left_out.items() if not where.library
    )  # fmt: skip
    if not where.library:
        return Placed(on_chip.recipe, notes)
    by_library = _with_products(on_chip.recipe, lambda name, _: _by_library(on_chip.recipe, name, where))
    schedules = ((name, getattr(by_library, name).schedule) for name in PRODUCTS)
    whole = [name for name, schedule in schedules if isinstance(schedule, Schedule) and "cublas(" in schedule.name]
    return Placed(by_library, (*notes, *((ONE_SLICE, name) for name in whole)))


def _read(hardware: Hardware) -> Any:
    """Return the chip, unit, schedule or accumulator that `hardware`, a str, names; "this CPU" and objects unchanged.

    Raises:
      TypeError, ValueError: the value is of another type, or a str that names nothing.
    """
    if hardware is None or isinstance(hardware, (MatrixUnit, Schedule, ShapedSchedule, Accumulator)):
        return hardware
    if not isinstance(hardware, str):
        raise TypeError(
            "on must be the name of a chip, such as 'H100' or 'H100 cuBLAS', a unit, a schedule, or None; got "
            f"{shown(hardware)}."
        )
    if hardware.lower().strip() == THIS_CPU.lower():
        return THIS_CPU
    if "(" in hardware or hardware == FLAT.name:
        return parsed(hardware)
    if "_" in hardware and find_chip(hardware) is None:
        with contextlib.suppress(ValueError):  # the error of `resolve` lists what else is accepted
            return named_unit("on", hardware)
    return resolve(hardware, "on", (THIS_CPU,))


def _with_products(recipe: LinearRecipe, change: Any) -> LinearRecipe:
    """Return a recipe with each product replaced by `change(name, product)`; name: "fprop", "dgrad" or "wgrad"."""
    products = {name: change(name, getattr(recipe, name)) for name in PRODUCTS}
    changed = {name: product for name, product in products.items() if product != getattr(recipe, name)}
    return recipe.replace(**changed) if changed else recipe


def _filled(recipe: LinearRecipe, arch: str, called: str = "") -> Placed:
    """Return a recipe in which matrix units of an architecture compute the products that torch computes in `recipe`.

    The result is a Placed (recipe and notes). A product that has a unit or an accumulator is not changed, nor is a
    product of two uncast operands. A product is not changed either if one operand is uncast or an operand's format is
    no float format, and a note says so. arch: the architecture, such as "hopper". called: the chip's name in error
    messages; "" for `arch`.
    """
    notes: list[Note] = []

    def fill(name: str, product: Product) -> Product:
        fmts = recipe.operands(name)
        if product.accumulate is not None or fmts == (None, None):
            return product
        if all(isinstance(fmt, Format) for fmt in fmts):
            unit = unit_for(arch, fmts, *scaling_of_first(recipe, name), f"{name} on {called or arch}")
            return product.replace(accumulate=unit)
        words = " x ".join("float32" if fmt is None else str(fmt) for fmt in fmts)
        notes.append((f"Added by torch in float32, since no matrix unit is known here for {words}", name))
        return product

    return Placed(_with_products(recipe, fill), tuple(notes))


def _scheduled(product: Product, schedule: Schedule) -> Product:
    """Return a product with another schedule (and no promotion) if a matrix unit computes it, else unchanged."""
    if not isinstance(product.accumulate, (str, MatrixUnit)):
        return product
    return product.replace(schedule=schedule, promote=None)


def _by_library(recipe: LinearRecipe, name: str, hardware: NamedChip) -> Product:
    """Return product `name` of a recipe as a library on a chip computes it; unchanged if no matrix unit computes it.

    Its schedule becomes the library's, and its promotion interval None. hardware: the chip and the library.
    """
    product: Product = getattr(recipe, name)
    unit = recipe.accumulator(name)
    if not isinstance(unit, MatrixUnit):
        return product
    return product.replace(schedule=library_schedule(hardware, recipe, name, unit), promote=None)


# ---- recipes of training


def recipe_on_chip(recipe: Recipe, chip: str, others: Sequence[str] = ()) -> tuple[Recipe, tuple[str, ...]]:
    """Return a training recipe that uses a chip's matrix units, and a sentence for each schedule that was left out.

    A ValueError is raised if there is no such chip, it has no unit for a product, or no product uses a matrix unit.

    Args:
      chip: a chip by any of its names, alone or with a library, or "this CPU" for torch.mm on this machine's processor.
      others: further names that the caller accepts, for the error message.

    Example:
      >>> from fpsim.train import recipes
      >>> from fpsim.recipes.hardware import recipe_on_chip
      >>> there, remarks = recipe_on_chip(recipes.DEEPSEEK_V3, "B200")
      >>> there.linear.accumulator("fprop").name, remarks[0]
      ('blackwell_e4m3_f32', "B200 adds without deepgemm('1d2d'), a schedule for hopper.")
    """
    if isinstance(chip, str) and chip.lower().strip() == THIS_CPU.lower():
        return _with_linears(recipe, _on_this_cpu), ()
    named = resolve(chip, "backend", (*others, THIS_CPU))
    all_moved: list[Moved] = []

    def convert(linear: LinearRecipe | str) -> LinearRecipe:
        all_moved.append(moved(linear_recipe(linear), chip))
        recipe = all_moved[-1].recipe
        return placed(recipe, chip).recipe if named.library else recipe

    changed = _with_linears(recipe, convert)
    attention = recipe.numerics.attention
    if attention is not None:
        changed = changed.replace(numerics=dataclasses.replace(recipe.numerics, attention=convert(attention)))
    if not any(one.units for one in all_moved):
        raise ValueError(
            f"a chip needs a recipe with products on matrix units; {recipe.name!r} has none, so its results are "
            f"the same on {chip} as on every chip. Use another recipe, or name a backend."
        )
    left_out = dict.fromkeys(schedule for one in all_moved for schedule in one.left_out.values() if not named.library)
    remarks = tuple(f"{chip} adds without {schedule}, a schedule for {schedule.arch}." for schedule in left_out)
    return changed, remarks


def _with_linears(recipe: Recipe, convert: Callable[[LinearRecipe | str], LinearRecipe]) -> Recipe:
    """Return a training recipe in which `convert` has replaced the linear recipes of all layers.

    These are the field `linear`, and the linear recipes of overrides and of the controller's levels.
    """
    changes: dict[str, Any] = {
        "linear": convert(recipe.linear),
        "overrides": tuple(dataclasses.replace(row, linear=convert(row.linear)) for row in recipe.overrides),
    }
    if recipe.controller is not None:
        levels = tuple(convert(level) for level in recipe.controller.levels)
        changes["controller"] = dataclasses.replace(recipe.controller, levels=levels)
    return recipe.replace(**changes)


def _on_this_cpu(linear: LinearRecipe | str) -> LinearRecipe:
    """Return a linear recipe, given as an object or by name, with products computed as by torch.mm on this processor.

    The recipe is unchanged if one of its products already follows the schedule of a library on a processor.
    """
    recipe = linear_recipe(linear)
    if any(isinstance(getattr(recipe, product).schedule, ShapedSchedule) for product in PRODUCTS):
        return recipe
    return placed(recipe, THIS_CPU).recipe
