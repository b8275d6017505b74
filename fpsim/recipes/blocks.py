"""The block size of a product along K: the number of terms that share a scale or that a Hadamard transform mixes."""

from __future__ import annotations

import math

from fpsim.recipes.libraries import SCALINGS, scaling_in
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.scaling.tiling import matrix_block

# They refuse a K that is not a multiple of the block. DeepGEMM's own kernels accept it, and read zeros beyond K.
STRICT = "fp.train and Transformer Engine"


def block_of(linear: LinearRecipe, product: str) -> int:
    """Return the number of consecutive terms of K that share a scale or that a transform mixes; 1 for none.

    If the two operands have different numbers, return their least common multiple. product: "fprop" (y = x w^T),
    "dgrad" (dx = dy w) or "wgrad" (dw = dy^T x).

    Example:
      >>> from fpsim.recipes.blocks import block_of
      >>> [block_of(fp.torch.RECIPES[name], "wgrad") for name in ("BF16", "NVFP4", "DEEPSEEK_V3")]
      [1, 16, 128]
    """
    along_k = [(scaling_in(linear, field), axis) for field, axis in SCALINGS[product]]
    blocks = [matrix_block(scaling.block)[axis] for scaling, axis in along_k if scaling is not None]
    return math.lcm(*(block for block in blocks if block > 0), max(linear.hadamard if product == "wgrad" else 1, 1))
