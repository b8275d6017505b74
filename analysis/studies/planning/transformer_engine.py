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

    A setting exists if all products are uncast or in one 16-bit format, or if all follow one FP8 or FP4 recipe. Another
    exists if fprop alone follows such a recipe, without delayed scales, and the backward products have 16 bits or more.
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
    if kind not in NAMES or (kind == "delayed" and words):  # delayed scaling has no override
        return None
    fmt = "" if kind == "nvfp4" else _te_formats(one, low)
    if fmt is None:
        return None
    arguments, more_differs = _te_arguments(kind, one, low, fmt)
    recipe = f"{NAMES[kind]}({', '.join([*arguments, *words])})"
    return Said(f"te.autocast(recipe={recipe}) around the layers", " ".join([*differs, *more_differs]))


# the name that `kind_of` returns -> the class of Transformer Engine's recipe
NAMES = {
    "tensor": "Float8CurrentScaling", "delayed": "DelayedScaling", "blocks": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling", "nvfp4": "NVFP4BlockScaling",
}  # fmt: skip


def _te_formats(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> str | None:
    """Return Transformer Engine's name for a recipe's formats: "HYBRID" if gradients are in E5M2, else "E4M3".

    Return None unless input and weight are in E4M3. `low`: product -> recipe, for the products in FP8 or FP4. If fprop
    is the only such product, return "E4M3" whatever the format of gradients.
    """
    forward = {element_format(fmt) for fmt in (recipe.input_fmt, recipe.weight_fmt)}
    grad = None if list(low) == ["fprop"] else element_format(recipe.grad_fmt)
    if forward != {E4M3}:
        return None
    return "HYBRID" if grad == E5M2 else "E4M3"


def _te_arguments(
    kind: str, recipe: LinearRecipe, low: Mapping[str, LinearRecipe], fmt: str
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Return the arguments of Transformer Engine's recipe as code, and sentences on how its arithmetic differs.

    `kind`: the scales, "tensor", "delayed", "blocks", "mxfp8" or "nvfp4" (see `kind_of`). `recipe`: the recipe of the
    products in FP8 or FP4. `low`: product -> recipe, for these. `fmt`: "E4M3" or "HYBRID", as `_te_formats` returns it;
    "" for NVFP4.
    """
    is_default = kind == "nvfp4" or (fmt == "E4M3" and kind in ("blocks", "mxfp8"))
    words, differs = [] if is_default else [f"fp8_format=Format.{fmt}"], []
    if kind == "tensor":
        for product in PRODUCTS:
            how = getattr(recipe, product)
            split = how.promote is not None or how.schedule is not None
            if product in low and split != (product != "fprop"):
                words.append(f"fp8_gemm_{product}=MMParams(use_split_accumulator={split})")
    elif kind == "delayed":
        delayed = recipe.delayed
        assert delayed is not None
        words.append(f"amax_history_len={delayed.history}, amax_compute_algo={delayed.amax!r}, margin={delayed.margin}")
    elif kind == "blocks":
        if {scale_format(recipe, product) for product in low} == {FP32}:
            differs.append(
                "Its scales are powers of two, or float32 numbers with NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1."
            )
        if "wgrad" in low and (recipe.requantize_input or recipe.stash_fmt is not None):
            differs.append("It quantises the original input for the weight gradient, the plan the stored one.")
    elif kind == "mxfp8":
        rule = recipe.input_scaling.scale_rule if recipe.input_scaling is not None else ""
        if rule != "rceil":
            differs.append(f"Its scales are rounded up (the rule 'rceil'), the plan's by {rule!r}.")
    else:
        if not recipe.hadamard and "wgrad" in low:
            words.append("disable_rht=True")
        if recipe.grad_rounding != "stochastic" and set(low) != {"fprop"}:
            words.append("disable_stochastic_rounding=True")
        weight = scaling_of(recipe, "weight", backward=False)
        if weight is not None and weight.block != (16, 16):
            words.append("disable_2d_quantization=True")
        differs.append("It has its own random Hadamard signs and random draws.")
    return words, differs
