"""Recipes of linear layers as a library multiplies them on a chip: a row for each kind of operands."""

from __future__ import annotations

from fpsim.errors import shown
from fpsim.matrix_units.chips import Chip, named
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.libraries.cublas import ON, cublas
from fpsim.schedules.schedule import Schedule
from fpsim.torch.chips import moved
from fpsim.torch.recipe import PRODUCTS, SCALED_BY, LinearRecipe

# The kernels that cuBLASLt takes for operands, by their family; docs/schedules.md. FP8 has one scale for each operand,
# or blocks of 128. Whether K is split is its heuristic's choice, which nobody has written down: one slice here.
CUBLAS = {
    "16 bits": "nvjet", "16 bits, K or N no multiple of 8": "cutlass", "FP8": "nvjet", "FP8 on ada": "xmma",
    "FP8 in blocks": "block_scaled",
}  # fmt: skip


def on_cublas(recipe: LinearRecipe, chip: str, shapes: dict[str, tuple[int, int, int]]) -> LinearRecipe:
    """A recipe whose products are those of cuBLASLt on a chip.

    Args:
      recipe: of a linear layer.
      chip: as of `fpsim.torch.chips.on_chip`; Ada, Hopper or Blackwell.
      shapes: M, N and K of the products, by "fprop", "dgrad" and "wgrad".

    Raises:
      ValueError: there is no such chip, it has no unit for a product's operands, or cuBLAS's kernels for them are not
        known.

    Example:
      >>> from fpsim.torch.libraries import on_cublas
      >>> shape = {"fprop": (64, 10, 256), "wgrad": (10, 256, 64)}
      >>> there = on_cublas(fp.torch.RECIPES["BF16"], "H100", shape)
      >>> there.fprop.schedule, there.wgrad.schedule
      (cublas('sm_90', family='cutlass'), cublas('sm_90', family='nvjet'))
    """
    row, found = named(chip), moved(recipe, chip)
    products = {}
    for name in PRODUCTS:
        if name in found.units and name in shapes:
            scaling = getattr(recipe, SCALED_BY[name])
            scaling = recipe.grad_scaling if isinstance(scaling, str) else scaling  # "same" as for dx
            schedule = _cublas(row, found.units[name], scaling, shapes[name])
            product = getattr(found.recipe, name)
            products[name] = product.replace(accumulate=found.units[name], schedule=schedule, promote=None)
    return found.recipe.replace(**products) if products else found.recipe


def _cublas(chip: Chip, unit: MatrixUnit, scaling: Scaling | None, shape: tuple[int, int, int]) -> Schedule:
    _, n, k = shape
    kind = "16 bits" if unit.a.fmt.bits == 16 else "FP8"
    if kind == "16 bits" and (n % 8 or k % 8):
        kind = "16 bits, K or N no multiple of 8"
    elif kind == "FP8" and scaling is not None and max(scaling.block) > 1:
        kind = "FP8 in blocks"
    elif kind == "FP8" and chip.arch == "ada":
        kind = "FP8 on ada"
    family = CUBLAS[kind]
    if unit.a.fmt.bits not in (8, 16) or unit.scale is not None or family not in ON.get(chip.arch, ()):
        raise ValueError(
            f"cuBLAS's kernels are known for FP16, BF16 and FP8 on Hopper, in part on Ada and Blackwell; got {kind} by "
            f"{unit.name} with {shown(scaling)}. Take the chip without its library."
        )
    return cublas(chip.sm, family=family)
