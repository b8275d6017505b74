"""Recipes of linear layers as data: a table entry for each library and paper, with its source."""

from __future__ import annotations

import dataclasses
from typing import Any

from fpsim.errors import require_word, shown
from fpsim.formats.named import BF16, FP16
from fpsim.recipes.linear_recipe import Delayed, LinearRecipe, Product
from fpsim.scaling import recipes as scalings
from fpsim.schedules.libraries.deepgemm import deepgemm

LINEAR: dict[str, LinearRecipe] = {}


def _row(name: str, *first: Any, **fields: Any) -> LinearRecipe:
    """Add a linear recipe to the table LINEAR and return it; first, fields: the arguments of `LinearRecipe`."""
    LINEAR[name] = dataclasses.replace(LinearRecipe(*first, **fields), name=name)
    return LINEAR[name]


def _products(accumulate: str, forward: dict[str, Any], backward: dict[str, Any]) -> dict[str, Product]:
    """Return a `Product` on a chip for each of "fprop", "dgrad" and "wgrad"; y and dx are rounded to BF16, dw is not.

    accumulate: the chip's name, such as "hopper". forward, backward: further keyword arguments of `Product` for fprop,
    and for dgrad and wgrad.
    """
    return {
        "fprop": Product(accumulate, out_fmt=BF16, **forward),
        "dgrad": Product(accumulate, out_fmt=BF16, **backward),
        "wgrad": Product(accumulate, **backward),
    }


FP32 = _row("FP32")

# torch.autocast: operands and results in the 16-bit format, sums in float32, dw included.
_BF16, _FP16 = Product("hopper", out_fmt=BF16), Product("hopper", out_fmt=FP16)
BF16_MIXED = _row("BF16", "bf16", "bf16", "bf16", fprop=_BF16, dgrad=_BF16, wgrad=_BF16)
FP16_MIXED = _row("FP16", "fp16", "fp16", "fp16", fprop=_FP16, dgrad=_FP16, wgrad=_FP16)

# The cast alone, saturating as the hardware's (PTX, cvt.satfinite): what scales are there to improve.
_PROMOTED = {"promote": 128}
FP8_RAW = _row("FP8_RAW", "e4m3", "e4m3", "e4m3", overflow="saturate", **_products("hopper", _PROMOTED, _PROMOTED))
FP8_TENSOR = _row(
    "FP8_TENSOR", "e4m3", "e4m3", "e4m3", scalings.TENSOR, scalings.TENSOR, scalings.TENSOR,
    **_products("hopper", _PROMOTED, _PROMOTED),
)  # fmt: skip

# DeepSeek-V3 (arXiv:2412.19437), 3.3: E4M3 everywhere, 1x128 for activations and gradients, 128x128 for weights, 128x1
# for the weight gradient, whose activations are those that the forward pass stored (3.5.2); sums by DeepGEMM on Hopper.
# The paper rounds the scales of some activations to powers of two; UE8M0 does so for all.
_DEEPGEMM = _products("hopper", {"schedule": deepgemm("1d2d")}, {"schedule": deepgemm("1d2d")})
_DEEPGEMM["wgrad"] = Product("hopper", schedule=deepgemm("1d1d"))
DEEPSEEK_V3 = _row(
    "DEEPSEEK_V3", "e4m3", "e4m3", "e4m3", scalings.TILE_1X128, scalings.BLOCK_128X128, scalings.TILE_1X128,
    input_scaling_backward=scalings.TILE_128X1, grad_scaling_backward=scalings.TILE_128X1, requantize_input=True,
    **_DEEPGEMM,
)  # fmt: skip
DEEPSEEK_V3_POW2 = _row(
    "DEEPSEEK_V3_POW2", "e4m3", "e4m3", "e4m3",
    scalings.TILE_1X128_POW2, scalings.BLOCK_128X128_POW2, scalings.TILE_1X128_POW2,
    input_scaling_backward=scalings.TILE_128X1_POW2, grad_scaling_backward=scalings.TILE_128X1_POW2,
    requantize_input=True, **_DEEPGEMM,
)  # fmt: skip
# Scales within K cannot be applied without promotion, so what is never promoted has scales that span all of K: per
# token forwards, per channel backwards, as torch's rowwise kernel with fast accumulation.
DEEPSEEK_V3_UNPROMOTED = _row(
    "DEEPSEEK_V3_UNPROMOTED", "e4m3", "e4m3", "e4m3", scalings.ROW, scalings.ROW, scalings.ROW,
    input_scaling_backward=scalings.COLUMN, weight_scaling_backward=scalings.COLUMN,
    grad_scaling_backward=scalings.COLUMN, requantize_input=True, **_products("hopper", {}, {}),
)  # fmt: skip

# Transformer Engine, common/recipe/__init__.py: Float8CurrentScaling(fp8_format=Format.HYBRID) and DelayedScaling; the
# forward product accumulates fast, those of the backward pass are promoted (split accumulators).
_SPLIT = _products("hopper", {}, _PROMOTED)
TE_HYBRID = _row(
    "TE_HYBRID", "e4m3", "e4m3", "e5m2", scalings.TE_TENSOR, scalings.TE_TENSOR, scalings.TE_TENSOR, **_SPLIT
)
TE_DELAYED = _row("TE_DELAYED", "e4m3", "e4m3", "e5m2", overflow="saturate", delayed=Delayed(history=1024), **_SPLIT)
# Transformer Engine, MXFP8BlockScaling: E4M3, each operand quantised from the original along the axis that is summed.
_MX_COLUMNS = scalings.TE_MX.transposed()
MXFP8 = _row(
    "MXFP8", "e4m3", "e4m3", "e4m3", scalings.TE_MX, scalings.TE_MX, scalings.TE_MX,
    input_scaling_backward=_MX_COLUMNS, weight_scaling_backward=_MX_COLUMNS, grad_scaling_backward=_MX_COLUMNS,
    **_products("blackwell", {}, {}),
)  # fmt: skip
# "Pretraining Large Language Models with NVFP4" (arXiv:2509.25149), 4: weights in 16x16 blocks, so that both passes see
# the same numbers; gradients rounded stochastically; the operands of dw transformed by random Hadamard matrices of 16.
_NVFP4_COLUMNS = scalings.NVFP4.transposed()
NVFP4 = _row(
    "NVFP4", "e2m1", "e2m1", "e2m1", scalings.NVFP4, scalings.NVFP4.replace(block=(16, 16)), scalings.NVFP4,
    input_scaling_backward=_NVFP4_COLUMNS, grad_scaling_backward=_NVFP4_COLUMNS, grad_rounding="stochastic",
    hadamard=16, **_products("blackwell", {}, {}),
)  # fmt: skip


def row_name(word: str) -> str:
    """Return a recipe's name as the dicts LINEAR and TRAINING spell it: "te-hybrid" gives "TE_HYBRID"."""
    return word.strip().upper().replace("-", "_")


def linear_recipe(spec: object, name: str = "linear") -> LinearRecipe:
    """Return the linear recipe for an object or a name.

    Args:
      spec: a LinearRecipe; a training recipe, for its `linear`; or the name of a linear recipe.
      name: the argument's name in error messages.

    Raises:
      ValueError: no recipe has that name.
      TypeError: spec is something else.
    """
    if isinstance(spec, LinearRecipe):
        return spec
    whole = getattr(spec, "linear", None)
    if isinstance(whole, LinearRecipe):
        return whole
    if not isinstance(spec, str):
        raise TypeError(f"{name} must be an fp.torch.LinearRecipe or the name of one; got {shown(spec)}.")
    word = row_name(spec)
    require_word(name, word, tuple(LINEAR), listing="fp.recipes.LINEAR")
    return LINEAR[word]
