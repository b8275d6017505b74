"""Low precision in torch: casts of tensors, fake quantisation with gradients, and quantised linear layers."""

from __future__ import annotations

from fpsim.analysis.tensors.writing.report import ExportReport
from fpsim.deprecation import former_modules
from fpsim.lazy import face
from fpsim.recipes.linear import DEEPSEEK_V3, DEEPSEEK_V3_POW2, MXFP8, NVFP4, TE_DELAYED, TE_HYBRID
from fpsim.recipes.linear import LINEAR as RECIPES
from fpsim.recipes.linear_recipe import Delayed, LinearRecipe, Product
from fpsim.torch.exporting import export
from fpsim.torch.functions import (
    ScaledTensors,
    decode,
    encode,
    encode_scaled,
    fake_quantize,
    quantize,
    quantize_scaled,
    view_as_dtype,
)
from fpsim.torch.linear import QuantLinear
from fpsim.torch.models import quantize_linears

__all__ = [
    "DEEPSEEK_V3", "DEEPSEEK_V3_POW2", "MXFP8", "NVFP4", "RECIPES", "TE_DELAYED", "TE_HYBRID", "Delayed",
    "ExportReport", "LinearRecipe", "Product", "QuantLinear", "ScaledTensors", "decode", "encode", "encode_scaled",
    "export", "fake_quantize", "quantize", "quantize_linears", "quantize_scaled", "view_as_dtype",
]  # fmt: skip

__getattr__, __dir__ = face(__name__, __all__)

former_modules(__name__, {"chips": "fpsim.recipes.chips", "recipe": "fpsim.recipes.linear_recipe"})
