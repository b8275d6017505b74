"""The cost of a recipe: the bits of the operands that a product reads, and of the copies of a weight."""

from __future__ import annotations

import math
from fractions import Fraction

from fpsim.formats.element import element_format
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.scaling.recipes import TENSOR
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.storage import tile_bits

# Product -> its operands, and whether each is read with its scaling of the backward pass.
OPERANDS = {
    "fprop": (("input", False), ("weight", False)),
    "dgrad": (("grad", False), ("weight", True)),
    "wgrad": (("grad", True), ("input", True)),
}
AS_IT_IS = 32  # bits per value of an operand that is not cast: torch multiplies in float32
TENSOR_SCALE = 32  # bits of a second scale for the whole tensor


def scaling_of(recipe: LinearRecipe, operand: str, *, backward: bool) -> Scaling | None:
    """Return the scaling with which a recipe casts an operand ("input", "weight" or "grad"); None without scales.

    `backward`: whether a backward product reads the operand.

    Example:
      >>> from fpsim.analysis.studies.planning.prices import scaling_of
      >>> scaling_of(fp.torch.DEEPSEEK_V3, "input", backward=True)
      fp.scalings.TILE_128X1
    """
    if getattr(recipe, f"{operand}_fmt") is None:
        return None
    if recipe.delayed is not None:
        return TENSOR
    scaling: Scaling | None = getattr(recipe, f"{operand}_scaling")
    other = getattr(recipe, f"{operand}_scaling_backward")
    if not backward or isinstance(other, str):
        return scaling
    assert other is None or isinstance(other, Scaling)
    return other


def operand_bits(recipe: LinearRecipe, operand: str, values: int, *, backward: bool) -> Fraction:
    """Return the number of bits in which a recipe stores `values` values of an operand, scales included.

    `operand`: "input", "weight" or "grad". `backward`: whether a backward product reads the operand. All tiles are
    counted as full. Scales per row or column are not counted, since the sizes of rows and columns are not known. An
    operand that is not cast has 32 bits per value.

    Example:
      >>> from fpsim.analysis.studies.planning.prices import operand_bits
      >>> names = "FP32", "BF16", "FP8_TENSOR", "MXFP8", "NVFP4"
      >>> [float(operand_bits(fp.torch.RECIPES[name], "input", 1024, backward=False)) / 1024 for name in names]
      [32.0, 16.0, 8.03125, 8.25, 4.53125]
    """
    fmt = getattr(recipe, f"{operand}_fmt")
    if fmt is None:
        return Fraction(AS_IT_IS * values)
    element, scaling = element_format(fmt), scaling_of(recipe, operand, backward=backward)
    bits = Fraction(element.bits * values)
    if scaling is None:
        return bits
    tile = tile_bits(element, scaling)  # of a scale, with its zero point
    if all(length == -1 for length in scaling.block):
        bits += tile
    elif -1 not in scaling.block:
        bits += Fraction(tile * values, math.prod(scaling.block))
    return bits + (TENSOR_SCALE if scaling.tensor_scale else 0)


def product_bits(recipe: LinearRecipe, product: str, values: tuple[int, int]) -> Fraction:
    """Return the number of bits that both operands of a product have in a recipe, scales included.

    `product`: "fprop", "dgrad" or "wgrad". `values`: number of values of each operand: (input, weight) for fprop,
    (output gradient, weight) for dgrad, (output gradient, input) for wgrad.

    Example:
      >>> from fpsim.analysis.studies.planning.prices import product_bits
      >>> bits = product_bits(fp.torch.DEEPSEEK_V3, "fprop", (1024 * 128, 128 * 128))
      >>> print(bits, bits == 1152 * 128 * 8 + (1024 + 1) * 32)
      1212448 True
    """
    sides = zip(OPERANDS[product], values, strict=True)
    return sum((operand_bits(recipe, name, n, backward=back) for (name, back), n in sides), Fraction(0))


def weight_copy(recipe: LinearRecipe, product: str, values: int) -> tuple[str, Fraction] | None:
    """Return (key, bits) of the copy of a weight that a product reads; None for wgrad, which reads no weight.

    The key is the text of the weight's cast (format, scaling, rounding, overflow), "" without a cast. Products of a
    layer with equal keys read the same codes, and share a copy.

    Args:
      recipe: the recipe of the product.
      product: "fprop", "dgrad" or "wgrad".
      values: number of values of the weight.

    Example:
      >>> from fpsim.analysis.studies.planning.prices import weight_copy
      >>> v3, mx = fp.torch.DEEPSEEK_V3, fp.torch.MXFP8
      >>> [weight_copy(r, "fprop", 128 * 128) == weight_copy(r, "dgrad", 128 * 128) for r in (v3, mx)]
      [True, False]
    """
    if product == "wgrad":
        return None
    backward = product == "dgrad"
    cast, _ = recipe.cast_of("weight", backward=backward)
    return cast, operand_bits(recipe, "weight", values, backward=backward)
