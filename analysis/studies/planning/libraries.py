"""The settings of torchao and Transformer Engine that come closest to a plan, and how they differ.

Names are those of torchao 0.18 (float8/config.py, prototype/) and of Transformer Engine's common/recipe/__init__.py and
pytorch/quantization.py of 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fpsim.analysis.studies.planning.prices import OPERANDS, scaling_of
from fpsim.display.wording import listed
from fpsim.formats.element import element_format
from fpsim.formats.named import BF16, E2M1, E4M3, E5M2, E8M0, FP16, FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe

NAMED = 3  # layers that a sentence names
HIGH = ("as it is", "bf16", "fp16")  # kinds of products that libraries for FP8 and FP4 leave to torch


class Setting(NamedTuple):
    """The setting of a library that comes closest to some layers of a plan.

    Attributes:
      library: "torchao" or "Transformer Engine".
      layers: names of the layers.
      how: the setting, as code; "" if the library has none for them.
      differs: how the setting differs from the plan, or the loss of the layers with a recipe that the library has; ""
        without a known difference.
    """

    library: str
    layers: tuple[str, ...]
    how: str
    differs: str

    def __str__(self) -> str:
        layers = listed([layer or "(model)" for layer in self.layers], NAMED)
        return f"{self.library}, {layers}: {self.how or 'no setting'}. {self.differs}".rstrip()


class ChoiceLike(Protocol):
    """The fields of a choice that settings depend on."""

    @property
    def layer(self) -> str: ...
    @property
    def product(self) -> str: ...
    @property
    def recipe(self) -> str: ...


class Said(NamedTuple):
    """A setting as code, and how it differs from the plan."""

    how: str
    differs: str = ""


def settings_of(
    choices: Sequence[ChoiceLike], recipes: Mapping[str, LinearRecipe], lost: Callable[[Sequence[str], str], str]
) -> tuple[Setting, ...]:
    """Return the closest settings of both libraries, with layers of equal recipes together.

    Args:
      choices: the choices of a plan.
      recipes: name -> recipe.
      lost: returns a sentence on the loss of some layers with one recipe for all of their products, "" if it was not
        measured.

    Example:
      >>> from fpsim.analysis.studies.planning.libraries import settings_of
      >>> class Row:
      ...     layer, product, recipe = "0", "fprop", "MX"
      >>> for setting in settings_of([Row()], {"MX": fp.torch.MXFP8}, lambda layers, recipe: ""):
      ...     print(setting.how)
      quantize_(model, MXFP8TrainingOpConfig(), filter_fn), of torchao.prototype.moe_training.config
      te.autocast(recipe=MXFP8BlockScaling()) around the layers
    """
    assignments: dict[str, dict[str, str]] = {}
    for choice in choices:
        assignments.setdefault(choice.layer, {})[choice.product] = choice.recipe
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for layer, names in assignments.items():
        alike.setdefault(tuple(names.items()), []).append(layer)
    settings = []
    for library, say in (("torchao", _torchao), ("Transformer Engine", _transformer_engine)):
        for assigned, layers in alike.items():
            products = {product: recipes[name] for product, name in assigned}
            said = say(products)
            if said is None:
                products_in = ", ".join(f"{product} in {name}" for product, name in assigned)
                instead = _instead(say, layers, assigned, recipes, lost)
                said = Said("", f"A layer cannot have {products_in} there. {instead}")
            settings.append(Setting(library, tuple(layers), said.how, said.differs))
    return tuple(settings)


def _instead(
    say: Callable[[Mapping[str, LinearRecipe]], Said | None], layers: Sequence[str],
    assigned: Sequence[tuple[str, str]], recipes: Mapping[str, LinearRecipe],
    lost: Callable[[Sequence[str], str], str],
) -> str:  # fmt: skip
    """Return sentences on the loss if layers had, for all their products, one recipe that the library has."""
    possible = [name for name, recipe in recipes.items() if say({product: recipe for product, _ in assigned})]
    candidates = [name for name in possible if name in dict(assigned).values()] or possible
    losses = [text for text in (lost(layers, name) for name in candidates) if text]
    return " ".join(losses) if losses else "The library has none of the recipes for all of its products."


# ---- what a product's operands are


def kind_of(recipe: LinearRecipe, product: str) -> str:
    """Return the name of how a product's operands are scaled: "tensor", "rows", "blocks", "mxfp8", "nvfp4" or others.

    Example:
      >>> from fpsim.analysis.studies.planning.libraries import kind_of
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


def _one_recipe(products: Mapping[str, LinearRecipe]) -> LinearRecipe | None:
    """Return the recipe that all products follow; None if they differ."""
    recipes = list(products.values())
    return recipes[0] if all(recipe == recipes[0] for recipe in recipes) else None


def _sixteen(kinds: Sequence[str]) -> Said | None:
    """Return the setting for layers without FP8 and FP4, which both libraries leave to torch; None for others."""
    if len(set(kinds)) > 1 or kinds[0] not in HIGH:
        return None
    if kinds[0] == "as it is":
        return Said("leave the layers out")
    word = "bfloat16" if kinds[0] == "bf16" else "float16"
    return Said(f"leave the layers out, under torch.autocast('cuda', torch.{word})")


# ---- torchao


def _torchao(products: Mapping[str, LinearRecipe]) -> Said | None:
    """Return torchao's setting for the three products of a layer; None if it has none."""
    kinds = {product: kind_of(recipe, product) for product, recipe in products.items()}
    high = _sixteen(list(kinds.values()))
    if high is not None:
        return high
    low = {kind for kind in kinds.values() if kind not in HIGH}
    if len(low) > 1:
        return None
    kind = low.pop()
    if kind in ("tensor", "rows"):
        return _float8_linear(products, kinds, kind)
    one = _one_recipe(products)
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
    """Return torchao's setting for MXFP8, in all products or in wgrad alone; None if it has none."""
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
    """Return torchao's setting for 128x128 blocks of FP8."""
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
    """Return torchao's Float8LinearConfig for three products; None if it has no such combination.

    It gives formats of operands, and which products have high precision or fast sums. `kind` is that of the scales.
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
    scales = {_scale_format(recipe, product) for product, recipe in products.items() if kinds[product] == kind}
    if scales == {E8M0}:
        words.append("round_scales_to_power_of_2=True")
    elif E8M0 in scales:
        differs.append("It has scales that are powers of two for all operands or for none.")
    differs.append("Its kernels may promote sums after other numbers of terms.")
    call = f"convert_to_float8_training(model, config=Float8LinearConfig({', '.join(words)}), module_filter_fn=...)"
    return Said(f"{call}, of torchao.float8", " ".join(differs))


def _cast_config(high: bool, kind: str, target: str) -> str:
    """Return the arguments of torchao's CastConfig for one operand."""
    words = []
    if high:
        words.append("scaling_type=ScalingType.DISABLED")
    elif kind == "rows":
        words.append("scaling_granularity=ScalingGranularity.AXISWISE")
    return f"CastConfig({', '.join(filter(None, [*words, target]))})"


def _scale_format(recipe: LinearRecipe, product: str) -> Any:
    """Return the format of the scales of a product's first operand; None without scales."""
    operand, back = OPERANDS[product][0]
    scaling = scaling_of(recipe, operand, backward=back)
    return None if scaling is None else scaling.scale_format


# ---- Transformer Engine


def _transformer_engine(products: Mapping[str, LinearRecipe]) -> Said | None:
    """Return Transformer Engine's setting for the three products of a layer; None if it has none."""
    kinds = {product: kind_of(recipe, product) for product, recipe in products.items()}
    high = _sixteen(list(kinds.values()))
    if high is not None:
        return high
    low = {product: recipe for product, recipe in products.items() if kinds[product] not in HIGH}
    one = _one_recipe(low)
    if one is None or len({kinds[product] for product in low}) > 1:
        return None
    words, differs = [], []
    if len(low) < len(products):
        if list(low) != ["fprop"]:
            return None
        words.append("backward_override='high_precision'")
        differs.append("Both backward products are in the dtype that autocast computes in.")
    kind = kinds[next(iter(low))]
    if kind == "delayed" and words:
        return None  # delayed scaling has no override
    say = {"tensor": _te_tensor, "delayed": _te_delayed, "blocks": _te_blocks, "mxfp8": _te_mxfp8, "nvfp4": _te_nvfp4}
    said = say[kind](one, low) if kind in say else None
    if said is None:
        return None
    name, inner = said.how.split("(", 1)
    inside = ", ".join(filter(None, [inner.removesuffix(")"), *words]))
    recipe = f"{name}({inside})"
    return Said(f"te.autocast(recipe={recipe}) around the layers", " ".join(filter(None, [*differs, said.differs])))


def _te_formats(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> str | None:
    """Return Transformer Engine's name for the formats of a recipe; None if it has none."""
    forward = {element_format(fmt) for fmt in (recipe.input_fmt, recipe.weight_fmt)}
    grad = None if list(low) == ["fprop"] else element_format(recipe.grad_fmt)
    if forward != {E4M3}:
        return None
    return "HYBRID" if grad == E5M2 else "E4M3"


def _te_tensor(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> Said | None:
    """Return Transformer Engine's setting for FP8 with a scale per tensor, found at every step; None if it has none."""
    fmt = _te_formats(recipe, low)
    if fmt is None:
        return None
    words = [f"fp8_format=Format.{fmt}"]
    for product in PRODUCTS:
        how = getattr(recipe, product)
        split = how.promote is not None or how.schedule is not None
        if product in low and split != (product != "fprop"):
            words.append(f"fp8_gemm_{product}=MMParams(use_split_accumulator={split})")
    return Said(f"Float8CurrentScaling({', '.join(words)})")


def _te_delayed(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> Said | None:
    """Return Transformer Engine's setting for FP8 with delayed scales; None if it has none."""
    fmt, delayed = _te_formats(recipe, low), recipe.delayed
    if fmt is None or delayed is None:
        return None
    options = f"amax_history_len={delayed.history}, amax_compute_algo={delayed.amax!r}, margin={delayed.margin}"
    return Said(f"DelayedScaling(fp8_format=Format.{fmt}, {options})")


def _te_blocks(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> Said | None:
    """Return Transformer Engine's setting for FP8 with scales of blocks; None if it has none."""
    fmt = _te_formats(recipe, low)
    if fmt is None:
        return None
    differs = []
    scales = {_scale_format(recipe, product) for product in low}
    if scales == {FP32}:
        differs.append("Its scales are powers of two, or float32 numbers with NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1.")
    if "wgrad" in low and (recipe.requantize_input or recipe.stash_fmt is not None):
        differs.append("It quantises the original input for the weight gradient, the plan the stored one.")
    return Said("Float8BlockScaling(" + ("" if fmt == "E4M3" else f"fp8_format=Format.{fmt}") + ")", " ".join(differs))


def _te_mxfp8(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> Said | None:
    """Return Transformer Engine's setting for MXFP8; None if it has none."""
    fmt = _te_formats(recipe, low)
    if fmt is None:
        return None
    rule = recipe.input_scaling.scale_rule if recipe.input_scaling is not None else ""
    differs = "" if rule == "rceil" else f"Its scales are rounded up (the rule 'rceil'), the plan's by {rule!r}."
    return Said("MXFP8BlockScaling(" + ("" if fmt == "E4M3" else f"fp8_format=Format.{fmt}") + ")", differs)


def _te_nvfp4(recipe: LinearRecipe, low: Mapping[str, LinearRecipe]) -> Said:
    """Return Transformer Engine's setting for NVFP4."""
    words = []
    if not recipe.hadamard and "wgrad" in low:
        words.append("disable_rht=True")
    if recipe.grad_rounding != "stochastic" and set(low) != {"fprop"}:
        words.append("disable_stochastic_rounding=True")
    weight = scaling_of(recipe, "weight", backward=False)
    if weight is not None and weight.block != (16, 16):
        words.append("disable_2d_quantization=True")
    return Said(f"NVFP4BlockScaling({', '.join(words)})", "It has its own random Hadamard signs and random draws.")
