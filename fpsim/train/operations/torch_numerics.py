"""The rounded softmax, RMSNorm and cross-entropy of `numerics.py` as torch functions with gradients, for models.

The gradients of softmax and RMSNorm are computed in float64 in 32 partial sums, and rounded once into the format.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.errors import require_word
from fpsim.formats.cast_options import FormatLike
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.train.operations import kernels, numerics

functional = torch.nn.functional


def torch_softmax(x: Tensor, fmt: FormatLike | None, sums: Accumulator | None = None) -> Tensor:
    """Compute `numerics.softmax` of a tensor; its gradient is p * (g - sum(g * p)) in float64, rounded into the format.

    Args:
      x: float32 tensor (..., n) on the CPU; -inf for elements that are masked out.
      fmt: format of each step; None for torch.softmax.
      sums: accumulator of the sum; None for fp.Sequential(fp.FP32).

    Example:
      >>> import torch
      >>> from fpsim.train.operations.torch_numerics import torch_softmax
      >>> torch_softmax(torch.tensor([1.0, 2.0, -torch.inf]), "bf16")
      tensor([0.2695, 0.7305, 0.0000])
    """
    if fmt is None:
        return torch.softmax(x, -1)
    return _applied(_Softmax, x, fmt, sums)


def torch_cross_entropy(
    logits: Tensor, targets: Tensor, fmt: FormatLike | None, sums: Accumulator | None = None, mean_over: str = "tokens"
) -> Tensor:
    """Compute `numerics.cross_entropy` of tensors, a float32 loss of shape (), with a gradient of the logits.

    The backward pass computes the gradient of the logits with each step rounded, too. It passes the incoming gradient
    of the loss, such as a loss scale, to `numerics.cross_entropy` as `scale`.

    Args:
      logits: float32 tensor (..., classes) on the CPU.
      targets: integer tensor (...).
      fmt: format of each step; None for torch's cross_entropy.
      sums: accumulator of the sums; None for fp.Sequential(fp.FP32).
      mean_over: "tokens" to divide by the number of tokens, "elements" by tokens times classes.

    Example:
      >>> import torch
      >>> from fpsim.train.operations.torch_numerics import torch_cross_entropy
      >>> logits = torch.zeros(1, 2, requires_grad=True)
      >>> (torch_cross_entropy(logits, torch.tensor([1]), "fp16") * 1024).backward()
      >>> logits.grad
      tensor([[ 512., -512.]])
    """
    require_word("mean_over", mean_over, numerics.MEANS)
    if fmt is None:
        loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
        return loss / logits.shape[-1] if mean_over == "elements" else loss
    return _applied(_CrossEntropy, logits, targets, fmt, sums, mean_over)


def torch_rms_norm(
    x: Tensor, weight: Tensor | None, fmt: FormatLike | None, sums: Accumulator | None = None, eps: float = 1e-6
) -> Tensor:
    """Compute `numerics.rms_norm` of a tensor along the last axis, with gradients.

    They are r * (g w - n * mean(g w n)) for x and the sum of g * n over all rows for the weight, where n is the rounded
    x * r; both are computed in float64 and rounded into the format.

    Args:
      x: float32 tensor (..., d) on the CPU.
      weight: (d,), or None for ones.
      fmt: format of each step; None for torch's rms_norm.
      sums: accumulator of the sum of squares; None for fp.Sequential(fp.FP32).
      eps: added to the mean of squares.

    Example:
      >>> import torch
      >>> from fpsim.train.operations.torch_numerics import torch_rms_norm
      >>> torch_rms_norm(torch.tensor([3.0, 4.0]), torch.ones(2), "bf16")
      tensor([0.8516, 1.1328])
    """
    if fmt is None:
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
    return _applied(_Norm, x, weight, fmt, sums, eps)


def _applied(function: Any, *arguments: Any) -> Tensor:
    """Return the result of a subclass of torch.autograd.Function for the given arguments."""
    result: Tensor = function.apply(*arguments)
    return result


def _double(x: Tensor) -> Array:
    """Return a tensor as a float64 array."""
    return array_of(x).astype(np.float64)


def _over_axis(x: Array) -> Array:
    """Return the sums of a float64 array along its last axis, (..., 1), each added in 32 interleaved partial sums."""
    rows, totals = np.ascontiguousarray(x).reshape(-1, x.shape[-1]), np.empty(x.size // x.shape[-1])
    kernels.row_sums(rows, np.empty(kernels.LANES), totals)
    return totals.reshape(*x.shape[:-1], 1)


def _over_rows(x: Array) -> Array:
    """Return the sums of a float64 array (..., n) over all axes but the last, (n,), in 32 interleaved partial sums."""
    rows, totals = np.ascontiguousarray(x).reshape(-1, x.shape[-1]), np.empty(x.shape[-1])
    kernels.column_sums(rows, np.empty((kernels.LANES, rows.shape[1])), totals)
    return totals


def _rounded(gradient: Array, fmt: FormatLike) -> Tensor:
    """Return a float64 gradient rounded into the format, as a float32 tensor."""
    return tensor_of(quantize(gradient, fmt).astype(np.float32))


class _Softmax(torch.autograd.Function):
    """A torch function: the softmax of `numerics.softmax`, rounded at each step, with its gradient.

    forward takes the arguments of `torch_softmax`, where fmt is not None.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: FormatLike, sums: Accumulator | None) -> Tensor:
        p = tensor_of(numerics.softmax(array_of(x), fmt, sums=sums))
        ctx.save_for_backward(p)
        ctx.fmt = fmt
        return p

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        p, g = _double(ctx.saved_tensors[0]), _double(gradient)
        with np.errstate(all="ignore"):
            return _rounded(p * (g - _over_axis(g * p)), ctx.fmt), None, None


class _CrossEntropy(torch.autograd.Function):
    """A torch function: the loss of `numerics.cross_entropy`, rounded at each step, with the logits' gradient.

    forward takes the arguments of `torch_cross_entropy`, where fmt is not None.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, fmt: FormatLike, sums: Accumulator | None, mean_over: str
    ) -> Tensor:
        ctx.loss = partial(
            numerics.cross_entropy, array_of(logits), array_of(targets), fmt, sums=sums, mean_over=mean_over
        )
        return torch.tensor(float(ctx.loss().loss))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return tensor_of(ctx.loss(scale=float(gradient)).gradient), None, None, None, None


class _Norm(torch.autograd.Function):
    """A torch function: the RMSNorm of `numerics.rms_norm`, rounded at each step, with its gradients.

    forward takes the arguments of `torch_rms_norm`, where fmt is not None.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, fmt: FormatLike, sums: Accumulator | None, eps: float
    ) -> Tensor:
        steps = numerics.steps_of(fmt, sums, "nearest_even")
        norm = numerics.normalised(steps, array_of(x), None if weight is None else array_of(weight), eps)
        kept = [norm.ratios, norm.inverse, *([] if norm.weight is None else [norm.weight])]
        ctx.save_for_backward(*(tensor_of(steps.values(codes)) for codes in kept))
        ctx.fmt = fmt
        return tensor_of(steps.values(norm.result))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        g = _double(gradient)
        ratios, inverse, *weights = (_double(saved) for saved in ctx.saved_tensors)
        with np.errstate(all="ignore"):
            back = g * weights[0] if weights else g
            dx = back - ratios * (_over_axis(back * ratios) / g.shape[-1])
            dw = _rounded(_over_rows(g * ratios), ctx.fmt) if weights else None
            return _rounded(inverse * dx, ctx.fmt), dw, None, None, None
