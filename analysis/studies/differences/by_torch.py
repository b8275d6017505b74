"""A linear layer's products by torch itself, reported to the comparison of two runs like those of `fpsim.torch`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from fpsim.arrays import Array
from fpsim.formats.as_json import format_fields
from fpsim.formats.named import BF16, FP16
from fpsim.torch.operators import array_of
from fpsim.torch.plan import ProductPlan
from fpsim.torch.products import CastOperand
from fpsim.torch.trace import ProductCall, show

FORMATS = {torch.bfloat16: BF16, torch.float16: FP16}  # torch rounds results to these
ONEDNN = 16**3  # multiplications above which torch hands 16-bit matrices to oneDNN: ATen/native/mkldnn/Matmul.cpp


def library_of(dtype: torch.dtype, multiplications: int) -> str:
    """Return the library with which torch multiplies two matrices of a dtype on this processor.

    The library is "MKL", "oneDNN", or "" for torch's own loops. `multiplications`: M N K of the product; torch
    multiplies small 16-bit matrices itself.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.differences.by_torch import library_of
      >>> library_of(torch.bfloat16, 8)
      ''
    """
    backends: Any = torch.backends  # its functions have no types
    if dtype in (torch.float32, torch.float64):
        return "MKL" if backends.mkl.is_available() else ""
    supported: Any = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }.get(dtype, lambda: False)
    enabled = backends.mkldnn.is_available() and backends.mkldnn.enabled
    return "oneDNN" if enabled and multiplications > ONEDNN and supported() else ""


def by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layer: str) -> torch.Tensor:
    """Return x @ weight^T + bias as torch computes it, with autograd's gradients.

    All three products are reported under the name `layer` to the comparison of two runs. `x`: (M, K). `weight`: (N, K).
    `bias`: (N,), or None.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.differences.by_torch import by_torch
      >>> by_torch(torch.ones(2, 3), torch.ones(4, 3), None, "head").shape
      torch.Size([2, 4])
    """
    y: torch.Tensor = _ByTorch.apply(x, weight, bias, layer)  # type: ignore[no-untyped-call]
    return y


class _ByTorch(torch.autograd.Function):
    """The autograd function of `by_torch`: a linear layer's products by torch, reported to the comparison of runs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layer: str) -> torch.Tensor:
        """Return torch's x @ weight^T + bias, and report the forward product.

        `ctx`: torch's context. `layer`: the name under which products are reported.
        """
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.has_bias = layer, bias is not None
        with torch.autocast("cpu", enabled=False):
            y = torch.nn.functional.linear(x, weight, bias)
        _shown(layer, "fprop", x, weight.t(), y, bias)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return torch's gradients of x, weight and bias (None where not needed), and None for the name of the layer.

        The products dgrad and wgrad are reported. `ctx`: torch's context. `gradients`: the gradient of the output.
        """
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        dx = dw = None
        with torch.autocast("cpu", enabled=False):
            if of_x:
                dx = dy @ weight
                _shown(ctx.layer, "dgrad", dy, weight, dx)
            if of_weight:
                dw = dy.t() @ x
                _shown(ctx.layer, "wgrad", dy.t(), x, dw)
        return dx, dw, dy.sum(0) if of_bias and ctx.has_bias else None, None


def _shown(
    layer: str, product: str, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """Report a product to the comparison of two runs, with copies of its operands and its result.

    The result is converted to float32 unless it is float64. `layer`: the layer's name. `product`: "fprop", "dgrad" or
    "wgrad". `a`, `b`: the operands, (M, K) and (K, N). `bias`: the bias that the result contains, or None.
    """
    fmt = FORMATS.get(result.dtype)
    how = ProductPlan("", "", "", 0, "" if fmt is None else json.dumps(format_fields(fmt)))
    values = np.array(array_of(result))
    values = values if values.dtype == np.float64 else values.astype(np.float32)
    added = None if bias is None else array_of(bias)
    show(ProductCall(layer, product, _operand(a), _operand(b), how, values, added))


def _operand(x: torch.Tensor) -> CastOperand:
    """Return a copy of x as an operand that was not cast; a copy, since weights may change in place later."""
    source: Array = np.array(array_of(x))
    return CastOperand(source, source, None)
