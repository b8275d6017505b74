"""The operations of a model besides its linear layers, with the same bits on every machine or torch's own bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import FP32
from fpsim.products.matmul import matmul
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.recipes.parts import Numerics
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.devices import finished
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.torch.plan import LayerPlan, adds_of, plan_of
from fpsim.torch.products import as_float, operand, resolved
from fpsim.train.operations import kernels
from fpsim.train.operations.torch_numerics import torch_cross_entropy, torch_rms_norm, torch_softmax
from fpsim.train.operations.trace import reported

functional: Any = torch.nn.functional
Function: Any = torch.autograd.Function
once: Any = torch.autograd.function.once_differentiable
f32, f64 = np.float32, np.float64
EPSILON = 1e-6  # RMSNorm adds it to the mean of squares
FLOAT32 = Numerics()
CASTS = {
    "fprop": ("input", "weight"),
    "dgrad": ("grad", "weight_backward"),
    "wgrad": ("grad_backward", "input_backward"),
}


@dataclass(frozen=True)
class Operations:
    """The operations of a model besides its linear layers, with their gradients.

    Attributes:
      numerics: the formats in which softmax, norm and loss are computed, and the arithmetic of attention's products.
      specified: True for operations whose bits are the same on every machine (docs/training.md lists them); False for
        torch's own, whose bits depend on the processor, on its libraries and on environment variables.
    """

    numerics: Numerics = FLOAT32
    specified: bool = False

    def embed(self, codes: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return tokens[codes] + positions[:length], (batch, length, width).

        codes: numbers of tokens, int64 (batch, length). tokens, positions: tables (vocabulary, width) and (context,
        width).
        """
        if self.specified:
            return _tensor(Embedding.apply(codes, tokens, positions))
        return _tensor(functional.embedding(codes, tokens) + positions[: codes.shape[1]])

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x / sqrt(mean(x * x) + 1e-6) * weight over the last axis, for x (..., width) and weight (width,)."""
        if self.specified and self.numerics.norm is None:
            return _tensor(RootMeanSquareNorm.apply(x, weight))
        return torch_rms_norm(x, weight, self.numerics.norm, self.numerics.sums)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
        """Return causal attention softmax(factor * q k^T) v, for q, k and v of shape (..., length, head width)."""
        shares = self._shares(self._product(q, k.mT), factor)
        return self._product(shares, v)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b by the arithmetic of attention's products; float32 (..., M, K), (..., K, N) to (..., M, N)."""
        linear = self.numerics.attention
        if not self.specified and linear is None:
            return a @ b
        assert linear is None or isinstance(linear, LinearRecipe)
        return attention_product(a, b, AttentionProducts(linear, self.numerics.products))

    def _shares(self, scores: Tensor, factor: float) -> Tensor:
        """Return the softmax of scores * factor over columns 0 to i of each row i, and 0 in the other columns.

        scores: float32 (..., length, length).
        """
        if self.specified and self.numerics.softmax is None:
            return _tensor(CausalSoftmax.apply(scores, factor))
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        seen = (scores * factor).masked_fill(future, -math.inf)
        return torch_softmax(seen, self.numerics.softmax, self.numerics.sums)

    def swiglu(self, x: Tensor) -> Tensor:
        """Return silu(gate) * up (..., n) for x (..., 2 n), whose halves are gate and up; no gradient is recorded."""
        if self.specified:
            return swiglu(x)
        gate, up = x.chunk(2, -1)
        return _tensor(functional.silu(gate) * up)

    def swiglu_slopes(self, slopes: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of SwiGLU's input x, (..., 2 n), given `slopes`, the gradient of its result."""
        if self.specified:
            return swiglu_slopes(slopes, x)
        gate, up = x.chunk(2, -1)
        share = torch.sigmoid(gate)
        slope = share * (1 + gate * (1 - share))
        return torch.cat((slopes * up * slope, slopes * gate * share), -1)

    def relu(self, x: Tensor) -> Tensor:
        """Return x where x > 0, else 0."""
        return _tensor(ReLU.apply(x) if self.specified else functional.relu(x))

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of logits (rows, classes) for targets, int64 (rows,), in nats."""
        if self.specified and self.numerics.loss is None:
            return _tensor(CrossEntropy.apply(logits, targets))
        return torch_cross_entropy(logits, targets, self.numerics.loss, self.numerics.sums)


TORCH = Operations()


def _tensor(x: Any) -> Tensor:
    """Return x unchanged; type checkers then know that it is a tensor."""
    result: Tensor = x
    return result


# ---- specified functions


def _flat(x: Tensor) -> Array:
    """Return a tensor as a contiguous array (rows, size of the last axis); a TypeError unless it is float32."""
    if x.dtype != torch.float32:
        raise TypeError(
            f"specified operations take float32 tensors; got {x.dtype}. Take arithmetic='torch' for other dtypes."
        )
    return np.ascontiguousarray(array_of(x)).reshape(-1, x.shape[-1])


def _matrices(x: Tensor) -> Array:
    """Return a tensor (..., rows, columns) as a contiguous array (matrices, rows, columns)."""
    return _flat(x).reshape(-1, *x.shape[-2:])


@reported
class Embedding(Function):  # type: ignore[misc]
    """A torch function: each token's embedding plus its position's, with the same bits on every machine.

    forward takes codes, int64 (batch, length), the numbers of the tokens; and two float32 tables, tokens (vocabulary,
    width) and positions (context, width). It returns tokens[codes] + positions[:length], (batch, length, width).
    """

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
        kernels.add_by_code(np.ascontiguousarray(array_of(codes)).reshape(-1), _flat(slopes), of_tokens)
        batch, length, width = slopes.shape
        across = _flat(slopes).reshape(batch, length * width)
        lanes = np.empty((kernels.LANES, length * width), f32)
        kernels.column_sums(across, lanes, of_positions[:length].reshape(-1))
        return None, tensor_of(of_tokens), tensor_of(of_positions)


@reported
class RootMeanSquareNorm(Function):  # type: ignore[misc]
    """A torch function: x / sqrt(mean(x * x) + 1e-6) * weight over the last axis, the same bits on every machine.

    forward takes x, float32 (..., d), and weight, float32 (d,).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        array = _flat(x)
        inverse, result = np.empty(array.shape[0], f32), np.empty_like(array)
        kernels.rms_norm(array, array_of(weight), f32(EPSILON), inverse, result)
        ctx.save_for_backward(x, weight, tensor_of(inverse.reshape(*x.shape[:-1], 1)))
        return tensor_of(result.reshape(x.shape))

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Any:
        x, weight, inverse = ctx.saved_tensors
        g, array = _flat(slopes), _flat(x)
        ratios, of_x, of_weight = np.empty_like(array), np.empty_like(array), np.empty(array.shape[1], f32)
        kernels.rms_norm_slopes(g, array, array_of(weight), _flat(inverse).reshape(-1), ratios, of_x)
        kernels.column_dots(g, ratios, np.empty((kernels.LANES, array.shape[1]), f64), of_weight)
        return tensor_of(of_x.reshape(x.shape)), tensor_of(of_weight)


@reported
class CausalSoftmax(Function):  # type: ignore[misc]
    """A torch function: the softmax of scores * factor over columns 0 to i of each row i, 0 in the other columns.

    scores: float32 (..., rows, columns). Values and gradients have the same bits on every machine.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, factor: float) -> Tensor:
        array = _matrices(scores)
        shares = np.empty_like(array)
        kernels.causal_softmax(array, f32(factor), shares)
        result = tensor_of(shares.reshape(scores.shape))
        ctx.save_for_backward(result)
        ctx.factor = factor
        return result

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Any:
        shares = _matrices(ctx.saved_tensors[0])
        result = np.empty_like(shares)
        kernels.causal_softmax_slopes(_matrices(slopes), shares, f32(ctx.factor), result)
        return tensor_of(result.reshape(slopes.shape)), None


@reported
class CrossEntropy(Function):  # type: ignore[misc]
    """A torch function: the mean cross entropy of logits, which is log(sum(exp(x))) - x[target] for a row x.

    logits: float32 (rows, classes). targets: int64 (rows,). The bits are the same on every machine.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        array, classes = _flat(logits), np.ascontiguousarray(array_of(targets))
        shares, losses = np.empty_like(array), np.empty(array.shape[0], f32)
        kernels.cross_entropy(array, classes, shares, losses)
        ctx.save_for_backward(tensor_of(shares), targets)
        return torch.tensor(kernels.mean(losses), dtype=torch.float32)

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: Tensor) -> Any:
        shares, targets = ctx.saved_tensors
        array = _flat(shares)
        result = np.empty_like(array)
        factor = f32(array_of(slope)[()]) / f32(array.shape[0])
        kernels.cross_entropy_slopes(array, np.ascontiguousarray(array_of(targets)), factor, result)
        return tensor_of(result), None


@reported
class ReLU(Function):  # type: ignore[misc]
    """A torch function: x where it is above 0 or NaN, else +0; x is a float32 tensor of any shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = np.empty(x.shape, f32)
        kernels.relu(_flat(x).reshape(-1), result.reshape(-1))
        y = tensor_of(result)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        result = np.empty(y.shape, f32)
        kernels.relu_slopes(_flat(slopes).reshape(-1), _flat(y).reshape(-1), result.reshape(-1))
        return tensor_of(result)


def swiglu(x: Tensor) -> Tensor:
    """Return silu(gate) * up (..., n) for x (..., 2 n), whose halves are gate and up.

    x: float32. The bits are the same on every machine.
    """
    array = _flat(x)
    result = np.empty((array.shape[0], array.shape[1] // 2), f32)
    kernels.swiglu(array, result)
    return tensor_of(result.reshape(*x.shape[:-1], -1))


def swiglu_slopes(slopes: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of SwiGLU's input x (..., 2 n), given `slopes` (..., n), the gradient of its result.

    The bits are the same on every machine.
    """
    array = _flat(x)
    result = np.empty_like(array)
    kernels.swiglu_slopes(_flat(slopes), array, result)
    return tensor_of(result.reshape(x.shape))


# ---- products of attention


class AttentionProducts(NamedTuple):
    """The arithmetic of attention's three matrix products: fprop, dgrad and wgrad.

    Attributes:
      linear: a recipe of casts and matrix units; None to multiply float32 operands.
      chain: the accumulator that adds where `linear` is None or names no accumulator.
    """

    linear: LinearRecipe | None
    chain: Accumulator

    def multiply(self, product: str, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b as float32 (..., M, N); product: "fprop", "dgrad" or "wgrad", which selects casts and unit.

        a: float32 (..., M, K). b: float32 (..., K, N).
        """
        if self.linear is None:
            return tensor_of(
                as_float(matmul(array_of(a), array_of(b), accumulate=self.chain), self.chain.result_format)
            )
        plan = _plan_of(self.linear)
        left, right = (operand(x, getattr(plan, cast), None) for x, cast in zip((a, b), CASTS[product], strict=True))
        adds = adds_of(resolved(plan.of(product), left, right))
        if adds.unit is None:
            chain = adds.accumulator or self.chain
            sums = matmul(left.values, right.values, accumulate=chain, schedule=adds.schedule)
            return tensor_of(finished(as_float(sums, chain.result_format), None, adds.out_fmt))
        result = matmul(
            left.encoded, right.encoded, accumulate=adds.unit, schedule=adds.schedule, promote=adds.promote,
            out_fmt=adds.out_fmt,
        )  # fmt: skip
        return tensor_of(as_float(result, adds.out_fmt or FP32))


@lru_cache(maxsize=16)
def _plan_of(linear: LinearRecipe) -> LayerPlan:
    """Return the plan of casts and matrix products that a linear recipe makes for attention; cached."""
    return plan_of(linear, "attention")


def attention_product(a: Tensor, b: Tensor, products: AttentionProducts) -> Tensor:
    """Return a @ b as float32 (..., M, N) by the arithmetic `products`; a: (..., M, K); b: (..., K, N).

    Torch's function modes see this call as they see torch.matmul, so that reports on a model count its multiplications.
    """
    if torch.overrides.has_torch_function((a, b)):
        return _tensor(torch.overrides.handle_torch_function(attention_product, (a, b), a, b, products))
    return _tensor(AttentionProduct.apply(a, b, products))


@reported
class AttentionProduct(Function):  # type: ignore[misc]
    """A torch function: a matrix product a @ b of attention, whose gradients are products by the same recipe.

    forward takes a, b and an `AttentionProducts`, the arithmetic of the three products.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, products: AttentionProducts) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.products = products
        return products.multiply("fprop", a, b)

    @staticmethod
    @once  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Tensor) -> Any:
        a, b = ctx.saved_tensors
        of_a = ctx.products.multiply("dgrad", slopes, b.mT)
        of_b = ctx.products.multiply("wgrad", slopes.mT, a).mT  # as dw = dy^T x of a linear layer
        return of_a, of_b, None
