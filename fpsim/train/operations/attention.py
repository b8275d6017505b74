"""The products of attention, over batches and heads: float32 numbers by an accumulator, or casts by a recipe."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from fpsim.formats.named import FP32
from fpsim.products.matmul import matmul
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.torch.plan import LayerPlan, adds_of, plan_of
from fpsim.torch.products import as_float, finished, operand, resolved
from fpsim.train.operations.trace import reported

Function: Any = torch.autograd.Function
once: Any = torch.autograd.function.once_differentiable
CASTS = {
    "fprop": ("input", "weight"),
    "dgrad": ("grad", "weight_backward"),
    "wgrad": ("grad_backward", "input_backward"),
}


class AttentionProducts(NamedTuple):
    """The arithmetic of attention's products.

    Attributes:
      linear: the recipe of their casts and units; None for float32 numbers.
      chain: the accumulator of float32 products.
    """

    linear: LinearRecipe | None
    chain: Accumulator

    def multiply(self, product: str, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b as float32, (..., M, N), by the arithmetic of "fprop", "dgrad" or "wgrad"."""
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
    return plan_of(linear, "attention")


@reported
class AttentionProduct(Function):  # type: ignore[misc]
    """A product a @ b of attention, with the products that are its gradients."""

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
