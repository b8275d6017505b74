"""Recipes of linear layers on hardware: a chip, a library on a chip, a unit or a schedule, by name or as it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from fpsim.errors import shown
from fpsim.formats.float_format import Format
from fpsim.matrix_units.catalogue import ROWS as UNITS
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.recipes import TENSOR as ONE_SCALE
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.hardware import BLOCK_OF, ROW, TENSOR, Hardware, named, schedule_of
from fpsim.schedules.schedule import FLAT, Schedule
from fpsim.schedules.written import parsed
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.chips import moved
from fpsim.torch.recipe import PRODUCTS, SCALED_BY, LinearRecipe, Product, unit_for

# Product -> the scalings of its operands, and the axis that is summed.
SCALINGS = {
    "fprop": (("input_scaling", 1), ("weight_scaling", 1)),
    "dgrad": (("grad_scaling", 1), ("weight_scaling_backward", 0)),
    "wgrad": (("grad_scaling_backward", 0), ("input_scaling_backward", 0)),
}


Note = tuple[str, str]  # what is not as one might expect, and of which product


class Placed(NamedTuple):
    """A recipe on hardware, and what is not as one might expect."""

    recipe: LinearRecipe
    notes: tuple[Note, ...] = ()


def placed(recipe: LinearRecipe, hardware: Any) -> Placed:
    """A recipe whose products are added by some hardware, for the same operands.

    Args:
      recipe: of a linear layer.
      hardware: a chip by name ("H100", "MI300X", "hopper"): its units by the operands' formats, in the recipe's own
        schedules where they are for it; a chip and a library ("H100 cuBLAS"): the library's schedule as well; a unit,
        schedule or accumulator, or its name ("hopper_e4m3_f32", "cublas('sm_90', split_k=4)", "Sequential(BF16)");
        None for what the recipe has.

    Raises:
      ValueError: nothing has that name, the chip has no unit for a product's operands, or the library no known order.
      TypeError: hardware is something else.

    Example:
      >>> from fpsim.torch.hardware import placed
      >>> placed(fp.torch.DEEPSEEK_V3, "H100 cuBLAS").recipe.wgrad
      Product('hopper', schedule=cublas('sm_90', family='block_scaled'))
      >>> placed(fp.torch.LinearRecipe("fp16", "fp16", "fp16"), "A100").recipe.accumulator("dgrad").name
      'ampere_f16_f32'
    """
    hardware = _read(hardware)
    if hardware is None:
        return Placed(recipe)
    if isinstance(hardware, (MatrixUnit, Accumulator)):
        keeps = {} if isinstance(hardware, MatrixUnit) else {"schedule": None, "promote": None}
        return Placed(_with_products(recipe, lambda name, product: product.replace(accumulate=hardware, **keeps)))
    if isinstance(hardware, Schedule):
        filled, notes = _filled(recipe, hardware.arch) if hardware.arch else Placed(recipe)
        return Placed(_with_products(filled, lambda name, product: _scheduled(product, hardware)), notes)
    filled, notes = _filled(recipe, hardware.chip.arch, hardware.called)
    found = moved(filled, hardware.called)
    notes += tuple(
        (f"Without {schedule}, which is not for {hardware.called}", name)
        for name, schedule in found.left_out.items() if not hardware.library
    )  # fmt: skip
    if not hardware.library:
        return Placed(found.recipe, notes)
    return Placed(_with_products(found.recipe, lambda name, product: _by_library(found.recipe, name, hardware)), notes)


def _read(hardware: Any) -> Any:
    """What a word means: Hardware, a unit, a schedule or an accumulator; the objects and None stay."""
    if hardware is None or isinstance(hardware, (MatrixUnit, Schedule, Accumulator)):
        return hardware
    if not isinstance(hardware, str):
        raise TypeError(
            "on must be the name of a chip, such as 'H100' or 'H100 cuBLAS', a unit, a schedule, or None; got "
            f"{shown(hardware)}."
        )
    if hardware.lower().strip() in UNITS:
        return UNITS[hardware.lower().strip()]
    if "(" in hardware or hardware == FLAT.name:
        return parsed(hardware)
    return named(hardware)


def _with_products(recipe: LinearRecipe, change: Any) -> LinearRecipe:
    """The recipe with its products changed by a function of name and product."""
    products = {name: change(name, getattr(recipe, name)) for name in PRODUCTS}
    changed = {name: product for name, product in products.items() if product != getattr(recipe, name)}
    return recipe.replace(**changed) if changed else recipe


def _filled(recipe: LinearRecipe, arch: str, called: str = "") -> Placed:
    """Units of an architecture for products that torch adds, where both operands are floats of a format."""
    notes: list[Note] = []

    def fill(name: str, product: Product) -> Product:
        fmts = recipe.operands(name)
        if product.accumulate is not None or fmts == (None, None):
            return product
        if all(isinstance(fmt, Format) for fmt in fmts):
            scaling = getattr(recipe, SCALED_BY[name])
            return product.replace(accumulate=unit_for(arch, fmts, scaling, f"{name} on {called or arch}"))
        words = " x ".join("float32" if fmt is None else str(fmt) for fmt in fmts)
        notes.append((f"Added by torch in float32, since no matrix unit is known here for {words}", name))
        return product

    return Placed(_with_products(recipe, fill), tuple(notes))


def _scheduled(product: Product, schedule: Schedule) -> Product:
    """A product of a unit by another schedule."""
    if not isinstance(product.accumulate, (str, MatrixUnit)):
        return product
    return product.replace(schedule=schedule, promote=None)


def _by_library(recipe: LinearRecipe, name: str, hardware: Hardware) -> Product:
    """A product as a library adds it."""
    product: Product = getattr(recipe, name)
    unit = recipe.accumulator(name)
    if not isinstance(unit, MatrixUnit):
        return product
    try:
        return product.replace(schedule=schedule_of(hardware, unit, scales_of(recipe, name)), promote=None)
    except ValueError as reason:
        raise ValueError(f"{name}: {reason}") from None


def scales_of(recipe: LinearRecipe, name: str) -> str:
    """What shares a scale in a product, as `fpsim.schedules.hardware` calls it: the finer of its operands' kinds.

    Example:
      >>> from fpsim.torch.hardware import scales_of
      >>> [scales_of(recipe, "fprop") for recipe in (fp.torch.DEEPSEEK_V3, fp.torch.MXFP8, fp.torch.TE_HYBRID)]
      ['scales per 128 terms', 'scales per 32 terms', 'one scale or none']
    """
    kinds = [_kind(_scaling(recipe, field), axis) for field, axis in SCALINGS[name]]
    along = [kind for kind in kinds if kind not in (TENSOR, ROW)]
    return along[0] if along else ROW if ROW in kinds else TENSOR


def _scaling(recipe: LinearRecipe, field: str) -> Scaling | None:
    """A scaling of a recipe; that of the other direction where it is the same."""
    if recipe.delayed is not None:
        return ONE_SCALE
    found: Any = getattr(recipe, field)
    if isinstance(found, str):  # "same"
        found = getattr(recipe, field.removesuffix("_backward"))
    scaling: Scaling | None = found
    return scaling


def _kind(scaling: Scaling | None, axis: int) -> str:
    """What one operand's scaling is called, whose axis `axis` is summed."""
    if scaling is None:
        return TENSOR
    missing = [-1 if scaling.block[0] == -1 else 1] * (2 - len(scaling.block))
    block = [*missing, *scaling.block][-2:]
    terms, across = block[axis], block[1 - axis]
    if terms == -1:
        return TENSOR if across == -1 else ROW
    return BLOCK_OF.get(terms, f"scales per {terms} terms")
