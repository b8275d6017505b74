"""The schedules by which libraries compute the products of a linear recipe."""

from __future__ import annotations

from typing import Any

from fpsim.matrix_units.chips import NamedChip
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.recipes import TENSOR as ONE_SCALE
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import matrix_block
from fpsim.schedules.hardware import BLOCK_OF, ROW, TENSOR, schedule_of
from fpsim.schedules.schedule import Schedule

# Product -> the scalings of its operands, and the axis that is summed.
SCALINGS = {
    "fprop": (("input_scaling", 1), ("weight_scaling", 1)),
    "dgrad": (("grad_scaling", 1), ("weight_scaling_backward", 0)),
    "wgrad": (("grad_scaling_backward", 0), ("input_scaling_backward", 0)),
}


def library_schedule(named: NamedChip, recipe: Any, name: str, unit: MatrixUnit) -> Schedule:
    """Return the schedule by which a library on a chip computes one product of a linear recipe.

    Args:
      named: the chip and the library.
      recipe: the LinearRecipe.
      name: the product, "fprop", "dgrad" or "wgrad".
      unit: the matrix unit that adds the product.

    Raises:
      ValueError: the library's order is not known for these operands.

    Example:
      >>> from fpsim.matrix_units.chips import resolve
      >>> from fpsim.recipes.libraries import library_schedule
      >>> library_schedule(resolve("H100 cuBLAS"), fp.torch.DEEPSEEK_V3, "wgrad", fp.unit("hopper_e4m3_f32"))
      cublas('sm_90', family='block_scaled')
    """
    try:
        return schedule_of(named, unit, scales_of(recipe, name))
    except ValueError as reason:
        raise ValueError(f"{name}: {reason}") from None


def scales_of(recipe: Any, name: str) -> str:
    """Return the granularity of a product's scales as text.

    It is "scales per N terms" if an operand has scales per N terms of K, else "a scale per row" if an operand has
    those, else "one scale or none". name: the product, "fprop", "dgrad" or "wgrad".

    Example:
      >>> from fpsim.recipes.libraries import scales_of
      >>> [scales_of(recipe, "fprop") for recipe in (fp.torch.DEEPSEEK_V3, fp.torch.MXFP8, fp.torch.TE_HYBRID)]
      ['scales per 128 terms', 'scales per 32 terms', 'one scale or none']
    """
    kinds = [_kind(scaling_in(recipe, field), axis) for field, axis in SCALINGS[name]]
    along = [kind for kind in kinds if kind not in (TENSOR, ROW)]
    return along[0] if along else ROW if ROW in kinds else TENSOR


def scaling_in(recipe: Any, field: str) -> Scaling | None:
    """Return the scaling that a LinearRecipe uses for one of its fields, such as "grad_scaling_backward".

    For a backward field that is "same", return the scaling of the forward field; for a recipe with delayed scales, a
    scaling with one scale per tensor; for an operand without scales, None.
    """
    if recipe.delayed is not None:
        return ONE_SCALE
    field_value: Any = getattr(recipe, field)
    if isinstance(field_value, str):  # "same"
        field_value = getattr(recipe, field.removesuffix("_backward"))
    scaling: Scaling | None = field_value
    return scaling


def scaling_of_first(recipe: Any, name: str) -> tuple[Scaling | None, int]:
    """Return (the scaling of a product's first operand, None without scales; that operand's axis of K, 0 or 1).

    recipe: the LinearRecipe. name: the product, "fprop", "dgrad" or "wgrad".

    Example:
      >>> from fpsim.recipes.libraries import scaling_of_first
      >>> scaling_of_first(fp.torch.MXFP8, "wgrad")[0].block, scaling_of_first(fp.torch.MXFP8, "wgrad")[1]
      ((32, 1), 0)
    """
    field, axis = SCALINGS[name][0]
    return scaling_in(recipe, field), axis


def _kind(scaling: Scaling | None, axis: int) -> str:
    """Return the granularity of an operand's scales along K as text, such as "scales per 128 terms".

    scaling: the operand's scaling; None if it has no scales. axis: the operand's axis of K, 0 or 1.
    """
    if scaling is None:
        return TENSOR
    block = matrix_block(scaling.block)
    terms, across = block[axis], block[1 - axis]
    if terms == -1:
        return TENSOR if across == -1 else ROW
    return BLOCK_OF.get(terms, f"scales per {terms} terms")
