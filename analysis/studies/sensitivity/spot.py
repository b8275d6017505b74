"""One linear layer of a model's copy, each of whose three products is torch's own or follows a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from fpsim.torch.plan import plan_of
from fpsim.torch.recipe import LinearRecipe

Tensor = torch.Tensor
CALLS = 1 << 20  # calls of a layer in one batch that draw differently


class RefusedProduct(ValueError):
    """A recipe cannot have a product of this layer; the message says why."""

    def __init__(self, layer: str, product: str, reason: Exception) -> None:
        super().__init__(str(reason))
        self.layer, self.product, self.reason = layer, product, reason


class Call(NamedTuple):
    """A linear layer in the backward pass: what it read, what came back, and what it gave.

    Attributes:
      x, weight, bias: what its products read.
      y, dy: its output, and the gradient of that.
      dw: the exact gradient of its weight; None where nobody asks for one.
      has_dx: whether there is a gradient of x.
      draw: the number of its stochastic draws.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    y: Tensor
    dy: Tensor
    dw: Tensor | None
    has_dx: bool
    draw: int


class Spot:
    """A linear layer that runs as `torch.nn.Linear` does, bit for bit, but for the products that are low.

    Args:
      name: of the layer, which stochastic draws depend on.
      linear: the torch.nn.Linear, whose forward pass this becomes.
      backend: what multiplies, as of `fp.torch.QuantLinear`.

    Attributes:
      low: product -> the recipe that it follows; torch's own without one.
      seen: called with every `Call` of the backward pass; None for nobody.
      draw: the number of the next call's draws.
    """

    def __init__(self, name: str, linear: Any, backend: str) -> None:
        self.name, self.linear, self.backend = name, linear, backend
        self.low: dict[str, LinearRecipe] = {}
        self.seen: Callable[[Spot, Call], None] | None = None
        self.draw = 0
        linear.forward = self.forward

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output."""
        self.draw += 1
        apply: Callable[..., Tensor] = _Linear.apply
        return apply(input, self.linear.weight, self.linear.bias, self, self.draw - 1)

    def output(self, recipe: LinearRecipe, x: Tensor, weight: Tensor, bias: Tensor | None, draw: int) -> Tensor:
        """The output where the forward product follows a recipe."""
        with torch.no_grad():
            y, _ = self._refusing("fprop", lambda plan, step: torch.ops.fpsim.linear(
                _rows(x), weight, bias, step, None, None, plan
            ), recipe, draw)  # fmt: skip
            found: Tensor = y.reshape(*x.shape[:-1], weight.shape[0])
            return found

    def input_gradient(self, recipe: LinearRecipe, call: Call) -> Tensor:
        """The gradient of the input where its product follows a recipe."""
        return self._gradients("dgrad", recipe, call).reshape(call.x.shape)

    def weight_gradient(self, recipe: LinearRecipe, call: Call) -> Tensor:
        """The gradient of the weight where its product follows a recipe."""
        return self._gradients("wgrad", recipe, call).to(call.weight.dtype)

    def _gradients(self, product: str, recipe: LinearRecipe, call: Call) -> Tensor:
        with torch.no_grad():
            dx, dw, _ = self._refusing(product, lambda plan, step: torch.ops.fpsim.linear_gradients(
                _rows(call.dy), _rows(call.x), call.weight, step, None, None, plan,
                product == "dgrad", product == "wgrad",
            ), recipe, call.draw)  # fmt: skip
        found: Tensor = dx if product == "dgrad" else dw
        return found

    def _refusing(self, product: str, multiply: Callable[..., Any], recipe: LinearRecipe, draw: int) -> Any:
        plan, draws = _plan(recipe, self.name, self.backend)
        try:
            return multiply(plan, torch.tensor(draw) if draws else None)
        except ValueError as reason:
            raise RefusedProduct(self.name, product, reason) from reason


@lru_cache(maxsize=4096)
def _plan(recipe: LinearRecipe, name: str, backend: str) -> tuple[str, bool]:
    """The text of a layer's plan, and whether it draws."""
    plan = plan_of(recipe, name, backend)
    return plan.text, plan.draws


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _as_read(x: Tensor, autocast: tuple[bool, torch.dtype]) -> Tensor:
    """An input as the product reads it under autocast; recipes cast the weight themselves."""
    return x.to(autocast[1]) if autocast[0] else x


class _Linear(torch.autograd.Function):
    """A linear layer whose exact products are those of torch, and whose low ones are those of its spot."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, spot: Spot, draw: int) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.spot, ctx.draw = spot, draw
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        recipe = spot.low.get("fprop")
        if recipe is None:
            y = functional.linear(x, weight, bias)
        else:
            y = spot.output(recipe, _as_read(x, ctx.autocast), weight, bias, draw)
        return y.clone() if y._is_view() else y  # activations in place may not write to a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        spot = ctx.spot
        y, (dx, dw, db) = _exact((x, weight, bias), dy, ctx.needs_input_grad, ctx.autocast)
        call = Call(_as_read(x, ctx.autocast), weight, bias, y, dy, dw, dx is not None, ctx.draw)
        if spot.seen is not None:
            spot.seen(spot, call)
        if dx is not None and "dgrad" in spot.low:
            dx = spot.input_gradient(spot.low["dgrad"], call).to(x.dtype)
        if dw is not None and "wgrad" in spot.low:
            dw = spot.weight_gradient(spot.low["wgrad"], call)
        return dx, dw, db, None, None


def _exact(
    operands: Sequence[Tensor | None], dy: Tensor, asked: Sequence[bool], autocast: tuple[bool, torch.dtype]
) -> tuple[Tensor, list[Tensor | None]]:
    """The output, and torch's own gradients of x, weight and bias: the layer runs again, so they have its bits."""
    leaves: list[Any] = [None if each is None else each.detach() for each in operands]
    wanted = [i for i, leaf in enumerate(leaves) if asked[i] and leaf is not None]
    for i in wanted:
        leaves[i].requires_grad_()
    with torch.enable_grad(), torch.autocast("cpu", autocast[1], enabled=autocast[0]):
        y = functional.linear(*leaves)
    found: list[Tensor | None] = [None, None, None]
    gradients = torch.autograd.grad(y, [leaves[i] for i in wanted], dy)
    for i, gradient in zip(wanted, gradients, strict=True):
        found[i] = gradient
    return y.detach(), found
