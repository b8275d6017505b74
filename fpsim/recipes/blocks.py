"""The block size of a product along K: the number of terms that share a scale or that a Hadamard transform mixes."""

from __future__ import annotations

import math
from typing import Any

from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.scaling.scaling import Scaling

# They refuse a K that is not a multiple of the block. DeepGEMM's own kernels accept it, and read zeros beyond K.
STRICT = "fp.train and Transformer Engine"


def block_of(linear: LinearRecipe, product: str) -> int:
    """Return the number of consecutive terms of K that share a scale or that a transform mixes; 1 for none.

    If the two operands differ, it is the least common multiple. product: "fprop" (y = x w^T), "dgrad" (dx = dy w) or
    "wgrad" (dw = dy^T x).

    Example:
      >>> from fpsim.recipes.blocks import block_of
      >>> [block_of(fp.torch.RECIPES[name], "wgrad") for name in ("BF16", "NVFP4", "DEEPSEEK_V3")]
      [1, 16, 128]
    """
    along_k = {
        "fprop": ((linear.input_scaling, 1), (linear.weight_scaling, 1)),
        "dgrad": ((linear.grad_scaling, 1), (_other(linear, "weight"), 0)),
        "wgrad": ((_other(linear, "grad"), 0), (_other(linear, "input"), 0)),
    }[product]
    blocks = [((1, *scaling.block)[-2:])[axis] for scaling, axis in along_k if scaling is not None]
    return math.lcm(*(block for block in blocks if block > 0), max(linear.hadamard if product == "wgrad" else 1, 1))


def _other(linear: LinearRecipe, operand: str) -> Scaling | None:
    """Return the scaling of "weight", "grad" or "input" in its second product, along its first axis, or None."""
    scaling: Any = getattr(linear, f"{operand}_scaling_backward")
    same: Scaling | None = getattr(linear, f"{operand}_scaling")
    if isinstance(scaling, str):
        return same
    assert scaling is None or isinstance(scaling, Scaling)
    return scaling
