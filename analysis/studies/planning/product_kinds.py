"""Names for how a product's operands are cast and scaled, to compare the settings of libraries with a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fpsim.analysis.studies.planning.prices import OPERANDS, scaling_of
from fpsim.formats.element import element_format
from fpsim.formats.named import BF16, E2M1, E4M3, E5M2, E8M0, FP16
from fpsim.recipes.linear_recipe import LinearRecipe

HIGH = ("as it is", "bf16", "fp16")  # products, by `kind_of`, that libraries for FP8 and FP4 leave to torch


class Said(NamedTuple):
    """A setting of torchao or Transformer Engine, and how the arithmetic that it leads to differs from a plan's.

    Attributes:
      how: the setting as Python code.
      differs: sentences on the differences; "" if none is known.
    """

    how: str
    differs: str = ""


def kind_of(recipe: LinearRecipe, product: str) -> str:
    """Return a name for how a recipe casts and scales the operands of a product ("fprop", "dgrad" or "wgrad").

    The names are "as it is" (no casts), "bf16" and "fp16" (both operands, without scales), and, with both operands in
    FP8: "raw" (without scales), "tensor" (one scale per operand, from its own values), "delayed" (one scale per
    operand, from earlier steps), "rows" (a scale for each row of a and column of b), "blocks" (128x128 scales for
    weights, 1x128 for others) and "mxfp8" (E8M0 scales of 32 values). "nvfp4" is E2M1 with E4M3 scales of 16 values and
    a scale of the tensor. "other" is everything else.

    Example:
      >>> from fpsim.analysis.studies.planning.product_kinds import kind_of
      >>> names = "FP32", "BF16", "FP8_RAW", "TE_DELAYED", "TE_HYBRID", "DEEPSEEK_V3", "MXFP8", "NVFP4"
      >>> print(*(kind_of(fp.torch.RECIPES[name], "wgrad") for name in names), sep=", ")
      as it is, bf16, raw, delayed, tensor, blocks, mxfp8, nvfp4
    """
    fmts = [None if fmt is None else element_format(fmt) for fmt in recipe.operands(product)]
    scalings = [scaling_of(recipe, operand, backward=back) for operand, back in OPERANDS[product]]
    if fmts == [None, None]:
        return "as it is"
    if scalings == [None, None] and fmts in ([BF16, BF16], [FP16, FP16]):
        return "bf16" if fmts[0] == BF16 else "fp16"
    eight = all(fmt in (E4M3, E5M2) for fmt in fmts)
    if scalings == [None, None]:
        return "raw" if eight else "other"
    if None in scalings or None in fmts:
        return "other"
    blocks = [scaling.block for scaling in scalings if scaling is not None]
    scales = {scaling.scale_format for scaling in scalings if scaling is not None}
    if eight and all(block == (-1, -1) for block in blocks):
        return "delayed" if recipe.delayed is not None else "tensor"
    if eight and all(block in ((1, -1), (-1, 1)) for block in blocks):
        return "rows"
    names = [operand for operand, _ in OPERANDS[product]]
    if eight and all(
        sorted(block) == ([128, 128] if name == "weight" else [1, 128])
        for name, block in zip(names, blocks, strict=True)
    ):
        return "blocks"
    if eight and scales == {E8M0} and all(sorted(block) == [1, 32] for block in blocks):
        return "mxfp8"
    two_levels = all(scaling.tensor_scale for scaling in scalings if scaling is not None)
    if fmts == [E2M1, E2M1] and two_levels and scales == {E4M3} and all(max(block) == 16 for block in blocks):
        return "nvfp4"
    return "other"


def one_recipe(products: Mapping[str, LinearRecipe]) -> LinearRecipe | None:
    """Return the recipe that all products (product -> recipe) follow; None if they follow different ones."""
    recipes = list(products.values())
    return recipes[0] if all(recipe == recipes[0] for recipe in recipes) else None


def setting_without_fp8(kinds: Sequence[str]) -> Said | None:
    """Return the setting for a layer whose products all have uncast operands, or all BF16 or all FP16 operands.

    The setting, for torchao and Transformer Engine alike, leaves the layer unconverted; for BF16 and FP16 operands,
    torch.autocast casts them. Return None for other layers. `kinds`: for each product, the name that `kind_of` returns.
    """
    if len(set(kinds)) > 1 or kinds[0] not in HIGH:
        return None
    if kinds[0] == "as it is":
        return Said("leave the layers out")
    word = "bfloat16" if kinds[0] == "bf16" else "float16"
    return Said(f"leave the layers out, under torch.autocast('cuda', torch.{word})")


def scale_format(recipe: LinearRecipe, product: str) -> Any:
    """Return the format in which a recipe stores the scales of a product's first operand; None without scales.

    `product`: "fprop", "dgrad" or "wgrad".
    """
    operand, back = OPERANDS[product][0]
    scaling = scaling_of(recipe, operand, backward=back)
    return None if scaling is None else scaling.scale_format
