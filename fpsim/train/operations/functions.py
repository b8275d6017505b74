"""The operations as torch functions with gradients, on float32 tensors of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.train.operations import rows, sums
from fpsim.train.operations.trace import reported

f32, f64 = np.float32, np.float64
Function: Any = torch.autograd.Function
once: Any = torch.autograd.function.once_differentiable
EPSILON = 1e-6  # that RMSNorm adds to the mean of squares


def _flat(x: Tensor) -> Array:
    """Return a tensor as a contiguous array (rows, last axis).

    Raises:
      TypeError: the tensor is not float32.
    """
    if x.dtype != torch.float32:
        raise TypeError(
            f"specified operations take float32 tensors; got {x.dtype}. Take arithmetic='torch' for other dtypes."
        )
    return np.ascontiguousarray(array_of(x)).reshape(-1, x.shape[-1])


def _matrices(x: Tensor) -> Array:
    """Return a tensor as a contiguous array (matrices, rows, columns)."""
    return _flat(x).reshape(-1, *x.shape[-2:])


@reported
class Embedding(Function):  # type: ignore[misc]
    """The sum of each token's row and of each position's row."""

    @staticmethod
    def forward(ctx: Any, codes: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(codes)
        ctx.shapes = tokens.shape, positions.shape
        return torch.nn.functional.embedding(codes, tokens) + positions[: codes.shape[1]]

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Any:
        (codes,) = ctx.saved_tensors
        of_tokens, of_positions = (np.zeros(shape, f32) for shape in ctx.shapes)
        sums.add_by_code(np.ascontiguousarray(array_of(codes)).reshape(-1), _flat(slopes), of_tokens)
        batch, length, width = slopes.shape
        across = _flat(slopes).reshape(batch, length * width)
        lanes = np.empty((sums.LANES, length * width), f32)
        sums.column_sums(across, lanes, of_positions[:length].reshape(-1))
        return None, tensor_of(of_tokens), tensor_of(of_positions)


@reported
class RootMeanSquareNorm(Function):  # type: ignore[misc]
    """x / sqrt(mean(x * x) + eps) * weight over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        array = _flat(x)
        inverse, result = np.empty(array.shape[0], f32), np.empty_like(array)
        rows.rms_norm(array, array_of(weight), f32(EPSILON), inverse, result)
        ctx.save_for_backward(x, weight, tensor_of(inverse.reshape(*x.shape[:-1], 1)))
        return tensor_of(result.reshape(x.shape))

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Any:
        x, weight, inverse = ctx.saved_tensors
        g, array = _flat(slopes), _flat(x)
        ratios, of_x, of_weight = np.empty_like(array), np.empty_like(array), np.empty(array.shape[1], f32)
        rows.rms_norm_slopes(g, array, array_of(weight), _flat(inverse).reshape(-1), ratios, of_x)
        sums.column_dots(g, ratios, np.empty((sums.LANES, array.shape[1]), f64), of_weight)
        return tensor_of(of_x.reshape(x.shape)), tensor_of(of_weight)


@reported
class CausalSoftmax(Function):  # type: ignore[misc]
    """The softmax of scores * factor over the last axis, of which row i takes columns 0 .. i."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, factor: float) -> Tensor:
        array = _matrices(scores)
        shares = np.empty_like(array)
        rows.causal_softmax(array, f32(factor), shares)
        result = tensor_of(shares.reshape(scores.shape))
        ctx.save_for_backward(result)
        ctx.factor = factor
        return result

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Any:
        shares = _matrices(ctx.saved_tensors[0])
        result = np.empty_like(shares)
        rows.causal_softmax_slopes(_matrices(slopes), shares, f32(ctx.factor), result)
        return tensor_of(result.reshape(slopes.shape)), None


@reported
class CrossEntropy(Function):  # type: ignore[misc]
    """The mean over all rows of log(sum(exp(x))) - x of the target."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        array, classes = _flat(logits), np.ascontiguousarray(array_of(targets))
        shares, losses = np.empty_like(array), np.empty(array.shape[0], f32)
        rows.cross_entropy(array, classes, shares, losses)
        ctx.save_for_backward(tensor_of(shares), targets)
        return torch.tensor(rows.mean(losses), dtype=torch.float32)

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: Tensor) -> Any:
        shares, targets = ctx.saved_tensors
        array = _flat(shares)
        result = np.empty_like(array)
        factor = f32(array_of(slope)[()]) / f32(array.shape[0])
        rows.cross_entropy_slopes(array, np.ascontiguousarray(array_of(targets)), factor, result)
        return tensor_of(result), None


@reported
class ReLU(Function):  # type: ignore[misc]
    """x where it is above 0 or NaN, else +0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = np.empty(x.shape, f32)
        rows.relu(_flat(x).reshape(-1), result.reshape(-1))
        y = tensor_of(result)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        result = np.empty(y.shape, f32)
        rows.relu_slopes(_flat(slopes).reshape(-1), _flat(y).reshape(-1), result.reshape(-1))
        return tensor_of(result)


def swiglu(x: Tensor) -> Tensor:
    """Return silu(gate) * up of both halves of the last axis."""
    array = _flat(x)
    result = np.empty((array.shape[0], array.shape[1] // 2), f32)
    rows.swiglu(array, result)
    return tensor_of(result.reshape(*x.shape[:-1], -1))


def swiglu_slopes(slopes: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x, given that of SwiGLU's result."""
    array = _flat(x)
    result = np.empty_like(array)
    rows.swiglu_slopes(_flat(slopes), array, result)
    return tensor_of(result.reshape(x.shape))
