"""The settings of Transformer Engine that are closest to the recipes of a plan's products.

Names are those of common/recipe/__init__.py and pytorch/quantization.py of 2026.
"""

from __future__ import annotations

from collections.abc import Mapping

from fpsim.analysis.studies.planning.prices import scaling_of
from fpsim.analysis.studies.planning.product_kinds import (
    HIGH,
    Said,
    kind_of,
    one_recipe,
    scale_format,
    setting_without_fp8,
)
from fpsim.formats.element import element_format
from fpsim.formats.named import E4M3, E5M2, FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe


def transformer_engine_setting(products: Mapping[str, LinearRecipe]) -> Said | None:
    """Return Transformer Engine's closest setting for a layer, given product -> recipe; None if it has none.

    It has one if all products are uncast or in the same 16-bit format, if all follow one FP8 or FP4 recipe, or if fprop
    alone follows such a recipe, without delayed scales, and the backward products have 16 bits or more.
    """
    kinds = {product: kind_of(recipe, product) for product, recipe in products.items()}
    high = setting_without_fp8(list(kinds.values()))
    if high is not None:
        return high
    low = {product: recipe for product, recipe in products.items() if kinds[product] not in HIGH}
    one = one_recipe(low)
    if one is None or len({kinds[product] for product in low}) > 1:
        return None
    words, differs = [], []
    if len(low) < len(products):
        if list(low) != ["fprop"]:
            return None
        words.append("backward_override='high_precision'")
        differs.append("Both backward products are in the dtype that autocast computes in.")
    kind = kinds[next(iter(low))]
    say = {"tensor": _te_tensor, "delayed": _te_delayed, "blocks": _te_blocks, "mxfp8": _te_mxfp8, "nvfp4": _te_nvfp4}
    if kind not in say or (kind == "delayed" and words):  # delayed scaling has no override
        return None
    fmt = "" if kind == "nvfp4" else _te_formats(one, low)
    if fmt is None:
        return None
    name, arguments, more_differs = say[kind](one, low, fmt)
    recipe = f"{name}({', '.join([*arguments, *words])})"
    return Said(f"te.autocast(recipe={recipe}) around the layers", " ".join([*differs, *more_differs]))


# Name of Transformer Engine's recipe, its arguments as code, and sentences on how its arithmetic differs. The functions
# that return it are called with the recipe of the products in few bits, (product -> recipe) of these, and the result of
# `_te_formats`.
TeRecipe = tuple[str, list[str], list[str]]


def _te_formats(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> str | None:
    """Return Transformer Engine's name for a recipe's formats: "HYBRID" if gradients are in E5M2, else "E4M3".

    Return None unless input and weight are in E4M3. `low`: product -> recipe, for the products in FP8 or FP4; if that
    is fprop alone, return "E4M3" for any format of gradients.
    """
    forward = {element_format(fmt) for fmt in (recipe.input_fmt, recipe.weight_fmt)}
    grad = None if list(low) == ["fprop"] else element_format(recipe.grad_fmt)
    if forward != {E4M3}:
        return None
    return "HYBRID" if grad == E5M2 else "E4M3"


def _te_tensor(recipe: LinearRecipe, low: Mapping[str, LinearRecipe], fmt: str) -> TeRecipe:
    """Return Transformer Engine's recipe for FP8 with a scale per tensor, computed at every step."""
    words = [f"fp8_format=Format.{fmt}"]
    for product in PRODUCTS:
        how = getattr(recipe, product)
        split = how.promote is not None or how.schedule is not None
        if product in low and split != (product != "fprop"):
            words.append(f"fp8_gemm_{product}=MMParams(use_split_accumulator={split})")
    return "Float8CurrentScaling", words, []


def _te_delayed(recipe: LinearRecipe, low: Mapping[str, LinearRecipe], fmt: str) -> TeRecipe:
    """Return Transformer Engine's recipe for FP8 with delayed scales."""
    delayed = recipe.delayed
    assert delayed is not None
    options = f"amax_history_len={delayed.history}, amax_compute_algo={delayed.amax!r}, margin={delayed.margin}"
    return "DelayedScaling", [f"fp8_format=Format.{fmt}", options], []


def _te_blocks(recipe: LinearRecipe, low: Mapping[str, LinearRecipe], fmt: str) -> TeRecipe:
    """Return Transformer Engine's recipe for FP8 with a scale per block of 128."""
    differs = []
    scales = {scale_format(recipe, product) for product in low}
    if scales == {FP32}:
        differs.append("Its scales are powers of two, or float32 numbers with NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1.")
    if "wgrad" in low and (recipe.requantize_input or recipe.stash_fmt is not None):
        differs.append("It quantises the original input for the weight gradient, the plan the stored one.")
    return "Float8BlockScaling", [] if fmt == "E4M3" else [f"fp8_format=Format.{fmt}"], differs


def _te_mxfp8(recipe: LinearRecipe, low: Mapping[str, LinearRecipe], fmt: str) -> TeRecipe:
    """Return Transformer Engine's recipe for MXFP8."""
    rule = recipe.input_scaling.scale_rule if recipe.input_scaling is not None else ""
    differs = [] if rule == "rceil" else [f"Its scales are rounded up (the rule 'rceil'), the plan's by {rule!r}."]
    return "MXFP8BlockScaling", [] if fmt == "E4M3" else [f"fp8_format=Format.{fmt}"], differs


def _te_nvfp4(recipe: LinearRecipe, low: Mapping[str, LinearRecipe], fmt: str) -> TeRecipe:
    """Return Transformer Engine's recipe for NVFP4."""
    words = []
    if not recipe.hadamard and "wgrad" in low:
        words.append("disable_rht=True")
    if recipe.grad_rounding != "stochastic" and set(low) != {"fprop"}:
        words.append("disable_stochastic_rounding=True")
    weight = scaling_of(recipe, "weight", backward=False)
    if weight is not None and weight.block != (16, 16):
        words.append("disable_2d_quantization=True")
    return "NVFP4BlockScaling", words, ["It has its own random Hadamard signs and random draws."]
