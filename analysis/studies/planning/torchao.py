"""The settings of torchao that are closest to the recipes of a plan's products.

Names are those of torchao 0.18 (float8/config.py, prototype/).
"""

from __future__ import annotations

from collections.abc import Mapping

from fpsim.analysis.studies.planning.product_kinds import (
    HIGH,
    Said,
    kind_of,
    one_recipe,
    scale_format,
    setting_without_fp8,
)
from fpsim.formats.element import element_format
from fpsim.formats.named import E4M3, E5M2, E8M0, FP32
from fpsim.recipes.linear_recipe import LinearRecipe


def torchao_setting(products: Mapping[str, LinearRecipe]) -> Said | None:
    """Return torchao's closest setting for a layer; None if torchao has no such setting.

    `products`: "fprop", "dgrad" or "wgrad" -> its recipe, for each product of the layer.
    """
    kinds = {product: kind_of(recipe, product) for product, recipe in products.items()}
    high = setting_without_fp8(list(kinds.values()))
    if high is not None:
        return high
    low = {kind for kind in kinds.values() if kind not in HIGH}
    if len(low) > 1:
        return None
    kind = low.pop()
    if kind in ("tensor", "rows"):
        return _float8_linear(products, kinds, kind)
    one = one_recipe(products)
    only_wgrad = [product for product, kind in kinds.items() if kind in HIGH] == ["wgrad"]
    same = len({recipe for product, recipe in products.items() if kinds[product] not in HIGH}) == 1
    if kind == "mxfp8" and (one is not None or (only_wgrad and same)):
        return _mxfp8_linear(products, only_wgrad)
    if one is None:
        return None
    if kind == "nvfp4":
        return Said(
            "quantize_(model, NVFP4TrainingConfig(), filter_fn), of "
            "torchao.prototype.moe_training.nvfp4_training.nvfp4_training",
            "It has its own random Hadamard signs and random draws.",
        )
    if kind == "blocks" and all(element_format(fmt) == E4M3 for fmt in (one.input_fmt, one.weight_fmt, one.grad_fmt)):
        return _blockwise(one)
    return None


def _mxfp8_linear(products: Mapping[str, LinearRecipe], only_wgrad: bool) -> Said | None:
    """Return torchao's setting for a layer with MXFP8 operands; None if an operand is in another format than E4M3.

    `products`: product -> its recipe. `only_wgrad`: whether wgrad, and no other product, is uncast, or in BF16 or FP16.
    """
    first = products.get("fprop", next(iter(products.values())))
    if any(element_format(fmt) != E4M3 for fmt in (first.input_fmt, first.weight_fmt, first.grad_fmt)):
        return None
    rule = first.input_scaling.scale_rule if first.input_scaling is not None else ""
    words = ["wgrad_with_hp=True"] if only_wgrad else []
    differs = []
    if rule == "floor":
        words.append("scale_calculation_mode=ScaleCalculationMode.FLOOR")
    elif rule != "rceil":
        differs.append(f"It rounds scales by RCEIL or FLOOR, the plan by the rule {rule!r}.")
    if only_wgrad:
        differs.append("It computes the gradient of the weight in the dtype of the input.")
    how = f"quantize_(model, MXFP8TrainingOpConfig({', '.join(words)}), filter_fn), of "
    return Said(f"{how}torchao.prototype.moe_training.config", " ".join(differs))


def _blockwise(recipe: LinearRecipe) -> Said:
    """Return torchao's setting for a block-scaled recipe, and how its arithmetic differs from the recipe's.

    `recipe`: the recipe of all products of a layer. The caller ensures that it has E4M3 operands, 128x128 scales for
    weights, and 1x128 scales for inputs and gradients.
    """
    differs = ["It requires BF16 layers without a bias whose sizes are multiples of 128."]
    scalings = (recipe.input_scaling, recipe.weight_scaling)
    scales = {scaling.scale_format for scaling in scalings if scaling is not None}
    if scales != {FP32}:
        differs.append("Its scales are float32 numbers, those of the plan powers of two.")
    if recipe.requantize_input or recipe.stash_fmt is not None:
        differs.append("It quantises the original input for the weight gradient, the plan the stored one.")
    return Said(
        "quantize_(model, Float8BlockwiseLinearConfig(), filter_fn), of "
        "torchao.prototype.blockwise_fp8_training.linear",
        " ".join(differs),
    )


# Operand of torchao -> the product that reads it first, the product that reads it again, and the setting of the latter.
USES = {
    "input": ("fprop", "wgrad", "input_for_grad_weight"),
    "weight": ("fprop", "dgrad", "weight_for_grad_input"),
    "grad_output": ("dgrad", "wgrad", "grad_output_for_grad_weight"),
}
GEMMS = {"fprop": "output", "dgrad": "grad_input", "wgrad": "grad_weight"}


def _float8_linear(
    products: Mapping[str, LinearRecipe], kinds: Mapping[str, str], kind: str
) -> Said | None:  # fmt: skip
    """Return torchao's Float8LinearConfig for a layer; None if an operand has different formats in two products.

    `products`: product -> its recipe. `kinds`: product -> the kind of its scales, as `kind_of` names it. `kind`: the
    kind of the products in FP8, "tensor" or "rows".
    """
    words = []
    for operand, (first, again, second) in USES.items():
        ours = operand.removesuffix("_output")
        fmts = {element_format(getattr(products[product], f"{ours}_fmt")) for product in (first, again)
                if product in products and kinds[product] not in HIGH}  # fmt: skip
        if len(fmts) > 1:
            return None  # an operand has one format in both of its products
        usual = E5M2 if operand == "grad_output" else E4M3
        fmt = next(iter(fmts), usual)
        target = "" if fmt == usual else f"target_dtype=torch.float8_{'e4m3fn' if fmt == E4M3 else 'e5m2'}"
        there = [product for product in (first, again) if product in products] or [first]
        configs = [_cast_config(product in products and kinds[product] in HIGH, kind, target) for product in there]
        if configs[0] != "CastConfig()":
            words.append(f"cast_config_{operand}={configs[0]}")
        if configs[-1] != configs[0]:
            words.append(f"cast_config_{second}={configs[-1]}")
    for product, recipe in products.items():
        how = getattr(recipe, product)
        fast = how.promote is None and how.schedule is None
        if kinds[product] not in HIGH and fast != (product == "fprop"):
            words.append(f"gemm_config_{GEMMS[product]}=Float8GemmConfig(use_fast_accum={fast})")
    differs = []
    if any(kinds[product] in HIGH for product in products):
        differs.append("Products in high precision are in the dtype of the model.")
    scales = {scale_format(recipe, product) for product, recipe in products.items() if kinds[product] == kind}
    if scales == {E8M0}:
        words.append("round_scales_to_power_of_2=True")
    elif E8M0 in scales:
        differs.append("It has scales that are powers of two for all operands or for none.")
    differs.append("Its kernels may promote sums after other numbers of terms.")
    call = f"convert_to_float8_training(model, config=Float8LinearConfig({', '.join(words)}), module_filter_fn=...)"
    return Said(f"{call}, of torchao.float8", " ".join(differs))


def _cast_config(high: bool, kind: str, target: str) -> str:
    """Return the code of torchao's CastConfig for one operand.

    `high`: whether the operand stays out of FP8. `kind`: the scales of an operand in FP8, "tensor" (one) or "rows" (one
    for each row). `target`: the argument "target_dtype=..." as code; "" for the default format.
    """
    scales = "scaling_granularity=ScalingGranularity.AXISWISE" if kind == "rows" else ""
    return f"CastConfig({', '.join(filter(None, ['scaling_type=ScalingType.DISABLED' if high else scales, target]))})"
