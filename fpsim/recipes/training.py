"""Training recipes as data: a table entry for each library, paper and comparison, with its source."""

from __future__ import annotations

from functools import partial
from typing import Any

from fpsim.formats.float_format import Format
from fpsim.lazy import face
from fpsim.recipes import linear
from fpsim.recipes.linear_recipe import Delayed
from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.recipes.parts import Override, Stored
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling import recipes as scalings

TRAINING: dict[str, Recipe] = {}


def _row(name: str, source: str, of: str | Any = "FP32", **fields: Any) -> Recipe:
    """Add a training recipe to the table TRAINING and return it.

    name: name of the recipe. source: the library or paper that it comes from. of: its linear recipe, or the name of
    one. fields: further fields of `Recipe`.
    """
    TRAINING[name] = Recipe(name, of, source=source, **fields)
    return TRAINING[name]


def _autocast(name: str, source: str, of: str, **fields: Any) -> Recipe:
    """Add to the table TRAINING a recipe that casts all linear layers, as torch.autocast does, and return it.

    Other recipes leave the head, the model's last linear layer, in float32. name: name of the recipe. source: the
    library or paper that it comes from. of: name of its linear recipe. fields: further fields of `Recipe`.
    """
    return _row(name, source, of, keep=(), **fields)


V3 = "DeepSeek-V3, arXiv:2412.19437"
TE = "Transformer Engine, transformer_engine/common/recipe/__init__.py"
MPT = "Micikevicius et al., arXiv:1710.03740"

FP32 = _row("FP32", "float32 throughout; each product is a chain of fused multiply-adds")
BF16 = _autocast("BF16", "torch.autocast(dtype=torch.bfloat16): operands and results in BF16, sums in float32", "BF16")
FP16_DYNAMIC = _autocast(
    "FP16_DYNAMIC", f"{MPT}; torch.autocast(dtype=torch.float16) with torch.amp.GradScaler", "FP16",
    loss_scaling="dynamic",
)  # fmt: skip
FP16_STATIC = _autocast("FP16_STATIC", f"{MPT}: scales of 8 to 32K", "FP16", loss_scaling="static")
FP16_UNSCALED = _autocast("FP16_UNSCALED", f"{MPT}: what loss scaling is there for", "FP16")
# Gradients of the head at 512 tokens are at most 2^-9, E4M3's least value: only those of the targets are left, so that
# training drives the loss above that of a guess.
FP8_RAW = _row("FP8_RAW", "the cast alone, E4M3 everywhere: what scales are there for", "FP8_RAW", keep=())
FP8_TENSOR = _row("FP8_TENSOR", "one current scale per tensor, E4M3 everywhere, promoted every 128 terms", "FP8_TENSOR")
# 16 steps of history rather than the library's 1,024, which a short run would not outlive.
FP8_DELAYED = _row(
    "FP8_DELAYED", f"{TE}: DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16)",
    linear.TE_DELAYED.replace(delayed=Delayed(history=16)),
)  # fmt: skip
TE_HYBRID = _row("TE_HYBRID", f"{TE}: Float8CurrentScaling(fp8_format=Format.HYBRID)", "TE_HYBRID")
TE_DELAYED = _row("TE_DELAYED", f"{TE}: DelayedScaling(fp8_format=Format.HYBRID)", "TE_DELAYED")

# AdamW's moments in BF16 (3.3.3); embedding, head, norms and attention stay high.
_BF16_MOMENTS = OptimizerRecipe(first_moment="bf16", second_moment="bf16")
DEEPSEEK_V3 = _row("DEEPSEEK_V3", f"{V3}, 3.3", "DEEPSEEK_V3", optimizer=_BF16_MOMENTS)
DEEPSEEK_V3_POW2 = _row(
    "DEEPSEEK_V3_POW2", f"{V3}, 3.3, every scale a power of two", "DEEPSEEK_V3_POW2", optimizer=_BF16_MOMENTS
)
DEEPSEEK_V3_UNPROMOTED = _row(
    "DEEPSEEK_V3_UNPROMOTED", f"{V3}, 3.3.2: what promotion is there for; scales span all of K",
    "DEEPSEEK_V3_UNPROMOTED", optimizer=_BF16_MOMENTS,
)  # fmt: skip
# 3.5.2: the input of the linear layer behind attention waits in E5M6 with power-of-two scales (its bias is not
# published: 15), the input of SwiGLU in FP8, and both are quantised anew for the weight gradient.
_E5M6 = Format("E5M6", 5, 6)
_STASHED = linear.DEEPSEEK_V3.replace(stash_fmt=_E5M6, stash_scaling=scalings.TILE_1X128_POW2, requantize_input=False)
DEEPSEEK_V3_STASH = _row(
    "DEEPSEEK_V3_STASH", f"{V3}, 3.5.2", "DEEPSEEK_V3", optimizer=_BF16_MOMENTS,
    overrides=(Override("*.proj", linear=_STASHED),),
    stored=(Stored("*.act", "e4m3", scalings.TILE_1X128),),
)  # fmt: skip
# Figure 6, as F8: E5M2 for gradients, or for everything; blocks of 128x128 for gradients, which diverged (B.2).
_E5M2_GRADS = linear.DEEPSEEK_V3.replace(grad_fmt="e5m2")
DEEPSEEK_V3_E5M2_GRADS = _row(
    "DEEPSEEK_V3_E5M2_GRADS", "Micikevicius et al., arXiv:2209.05433: E5M2 for gradients", _E5M2_GRADS,
    optimizer=_BF16_MOMENTS,
)  # fmt: skip
DEEPSEEK_V3_E5M2 = _row(
    "DEEPSEEK_V3_E5M2", "E5M2 for every operand", _E5M2_GRADS.replace(input_fmt="e5m2", weight_fmt="e5m2"),
    optimizer=_BF16_MOMENTS,
)  # fmt: skip
MXFP8 = _row("MXFP8", f"{TE}: MXFP8BlockScaling", "MXFP8")
NVFP4 = _row("NVFP4", "NVIDIA, arXiv:2509.25149, 4, without its high-precision layers", "NVFP4")
# 4.5: switching the forward product to BF16 for the last part of training closes most of the gap.
NVFP4_SWITCHED = _row(
    "NVFP4_SWITCHED", "NVIDIA, arXiv:2509.25149: fprop in BF16 for the last 15 % of the steps", "NVFP4",
    overrides=(Override(products=("fprop",), start=0.85, linear="BF16"),),
)  # fmt: skip
UNIT_SCALING = _row(
    "UNIT_SCALING", "Blake et al., arXiv:2303.11257: raw FP8 casts of a model whose variances are 1",
    linear.FP8_RAW.replace(grad_fmt="e5m2"), parametrisation="unit",
    # Weights of deviation 1 take other steps; with this rate the loss after 250 of them is BF16's. Gradients are as
    # large as their factors make them, so that their norm says nothing.
    optimizer=OptimizerRecipe(lr=4e-3, clip_norm=None),
)  # fmt: skip

BF16_MOMENTS = _autocast("BF16_MOMENTS", f"{V3}, 3.3.3: both moments of AdamW in BF16", "BF16", optimizer=_BF16_MOMENTS)


_ZAMIRAI = "Zamirai et al., arXiv:2010.06192: BF16 weights without masters"
_WITHOUT_MASTERS = partial(OptimizerRecipe, weights="bf16", masters=False)
BF16_WEIGHTS_NEAREST = _autocast("BF16_WEIGHTS_NEAREST", _ZAMIRAI, "BF16", optimizer=_WITHOUT_MASTERS())
BF16_WEIGHTS_STOCHASTIC = _autocast(
    "BF16_WEIGHTS_STOCHASTIC", _ZAMIRAI, "BF16", optimizer=_WITHOUT_MASTERS(update_rounding="stochastic")
)
BF16_WEIGHTS_KAHAN = _autocast(
    "BF16_WEIGHTS_KAHAN", _ZAMIRAI, "BF16", optimizer=_WITHOUT_MASTERS(update_rounding="kahan")
)

# "Mixed-precision training with Adam": 2 bytes of weights, 2 of gradients, and 12 of masters and moments.
FP16_MASTERS = _autocast(
    "FP16_MASTERS", "Rajbhandari et al., arXiv:1910.02054, 3.1: FP16 weights and gradients, float32 masters",
    "FP16", loss_scaling="dynamic", optimizer=OptimizerRecipe(weights="fp16"), gradients="fp16",
)  # fmt: skip
# Megatron-LM issue 146: 256 + 1 = 256.
BF16_GRADIENTS = _autocast(
    "BF16_GRADIENTS", "Megatron-LM without accumulate_allreduce_grads_in_fp32: gradients added in BF16", "BF16",
    optimizer=OptimizerRecipe(weights="bf16"), gradients="bf16",
)  # fmt: skip

__all__ = list(TRAINING)  # filled in above

__getattr__, __dir__ = face("fpsim.recipes", [*TRAINING, "TRAINING"])
