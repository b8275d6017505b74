"""One layer of a model's copy, each of whose three products is torch's own or follows a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from fpsim.analysis.studies.sensitivity.prefix import ExactPrefix
from fpsim.analysis.studies.sensitivity.shapes import PatchProducts, shape_of, sizes
from fpsim.recipes.linear_recipe import LinearRecipe, Product
from fpsim.torch.plan import plan_of

Tensor = torch.Tensor
CALLS = 1 << 20  # calls of a layer in one batch that draw differently


class RefusedProduct(ValueError):
    """A recipe cannot have a product of this layer; the message says why."""

    def __init__(self, layer: str, product: str, reason: Exception) -> None:
        super().__init__(str(reason))
        self.layer, self.product, self.reason = layer, product, reason


class LayerCall(NamedTuple):
    """A layer in the backward pass: what it read, what came back, and what it gave.

    Attributes:
      x, weight, bias: what its products read.
      y, dy: its output, and the gradient of that.
      dx, dw: the exact gradients of x and the weight; None where nobody asks for one.
      draw: the number of its stochastic draws.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    y: Tensor
    dy: Tensor
    dx: Tensor | None
    dw: Tensor | None
    draw: int


class Spot:
    """A layer that runs as torch's does, bit for bit, but for the products that are low.

    Args:
      name: of the layer, which stochastic draws depend on.
      layer: the torch.nn.Linear or convolution, whose forward pass this becomes.
      backend: what multiplies, as of `fp.torch.QuantLinear`.

    Attributes:
      low: product -> the recipe that it follows; torch's own without one.
      seen: called with every `LayerCall` of the backward pass; None for nobody.
      read: called with every input in the forward pass; None for nobody.
      prefix: outputs of an exact run to keep, or to return again; None to compute all.
      draw: the number of the next call's draws.
    """

    def __init__(self, name: str, layer: Any, backend: str) -> None:
        self.name, self.layer, self.backend = name, layer, backend
        self.shape = shape_of(layer)
        self.low: dict[str, LinearRecipe] = {}
        self.seen: Callable[[Spot, LayerCall], None] | None = None
        self.read: Callable[[Spot, Tensor], None] | None = None
        self.prefix: ExactPrefix | None = None
        self.draw = 0
        layer.forward = self.forward

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output."""
        self.draw += 1
        apply: Callable[..., Tensor] = _Layer.apply
        x = self.shape.read(input)
        if self.read is not None:
            self.read(self, x)
        known = None if self.prefix is None else self.prefix.take(self.name)
        if known is not None:
            return known
        y = apply(x, self.layer.weight, self.layer.bias, self, self.draw - 1)
        if self.prefix is not None:
            self.prefix.keep(self.name, y)
        return y

    def output(self, recipe: LinearRecipe, x: Tensor, weight: Tensor, bias: Tensor | None, draw: int) -> Tensor:
        """The output where the forward product follows a recipe."""
        if self._is_torchs(recipe, "fprop"):
            return self.shape.exact(x, weight, bias)
        with torch.no_grad():
            found = [
                self._refusing("fprop", lambda plan, step, part=part: torch.ops.fpsim.linear(
                    *part, step, None, None, plan
                )[0], recipe, draw, group) for group, part in enumerate(self.shape.parts(x, weight, bias))
            ]  # fmt: skip
            return self.shape.output(found, x, weight)

    def input_gradient(self, recipe: LinearRecipe, call: LayerCall) -> Tensor:
        """The gradient of the input where its product follows a recipe."""
        if call.dx is not None and self._is_torchs(recipe, "dgrad"):
            return call.dx
        return self.shape.input_gradient(self._gradients("dgrad", recipe, call), call.x, call.weight)

    def weight_gradient(self, recipe: LinearRecipe, call: LayerCall) -> Tensor:
        """The gradient of the weight where its product follows a recipe."""
        if call.dw is not None and self._is_torchs(recipe, "wgrad"):
            return call.dw
        found = self._gradients("wgrad", recipe, call)
        return self.shape.weight_gradient(found, call.x, call.weight).to(call.weight.dtype)

    def elements(self, call: LayerCall) -> tuple[int, int, int]:
        """How many values the products of a call read: of the input, whose patches they are, weight and gradient."""
        with torch.no_grad():
            parts = self.shape.parts(call.x, call.weight, None)
            return sizes(parts, self.shape.gradients(call.dy, call.x, call.weight))

    def _is_torchs(self, recipe: LinearRecipe, product: str) -> bool:
        """Whether a recipe leaves a product of a convolution as it is: by its patches torch would add otherwise."""
        untouched = recipe.operands(product) == (None, None) and getattr(recipe, product) == Product()
        return isinstance(self.shape, PatchProducts) and untouched and recipe.stash_fmt is None

    def _gradients(self, product: str, recipe: LinearRecipe, call: LayerCall) -> list[Tensor]:
        with torch.no_grad():
            parts = self.shape.parts(call.x, call.weight, None)
            found = [
                self._refusing(product, lambda plan, step, part=part, dy=dy: torch.ops.fpsim.linear_gradients(
                    dy, *part[:2], step, None, None, plan, product == "dgrad", product == "wgrad",
                ), recipe, call.draw, group)
                for group, (part, dy) in enumerate(zip(
                    parts, self.shape.gradients(call.dy, call.x, call.weight), strict=True
                ))
            ]  # fmt: skip
        return [dx if product == "dgrad" else dw for dx, dw, _ in found]

    def _refusing(
        self, product: str, multiply: Callable[..., Any], recipe: LinearRecipe, draw: int, group: int
    ) -> Any:  # fmt: skip
        name = f"{self.name}[{group}]" if self.shape.groups > 1 else self.name
        plan, draws = _plan(recipe, name, self.backend)
        try:
            return multiply(plan, torch.tensor(draw) if draws else None)
        except ValueError as reason:
            raise RefusedProduct(self.name, product, reason) from reason


@lru_cache(maxsize=4096)
def _plan(recipe: LinearRecipe, name: str, backend: str) -> tuple[str, bool]:
    """The text of a layer's plan, and whether it draws."""
    plan = plan_of(recipe, name, backend)
    return plan.text, plan.draws


def _as_read(x: Tensor, autocast: tuple[bool, torch.dtype]) -> Tensor:
    """An input as the product reads it under autocast; recipes cast the weight themselves."""
    return x.to(autocast[1]) if autocast[0] else x


class _Layer(torch.autograd.Function):
    """A layer whose exact products are those of torch, and whose low ones are those of its spot."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, spot: Spot, draw: int) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.spot, ctx.draw = spot, draw
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        recipe = spot.low.get("fprop")
        if recipe is None:
            y = spot.shape.exact(x, weight, bias)
        else:
            y = spot.output(recipe, _as_read(x, ctx.autocast), weight, bias, draw)
        return y.clone() if y._is_view() else y  # activations in place may not write to a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        spot = ctx.spot
        y, (dx, dw, db) = _exact(spot, (x, weight, bias), dy, ctx.needs_input_grad, ctx.autocast)
        call = LayerCall(_as_read(x, ctx.autocast), weight, bias, y, dy, dx, dw, ctx.draw)
        if spot.seen is not None:
            spot.seen(spot, call)
        if dx is not None and "dgrad" in spot.low:
            dx = spot.input_gradient(spot.low["dgrad"], call).to(x.dtype)
        if dw is not None and "wgrad" in spot.low:
            dw = spot.weight_gradient(spot.low["wgrad"], call)
        return dx, dw, db, None, None


def _exact(
    spot: Spot, operands: Sequence[Tensor | None], dy: Tensor, needed: Sequence[bool],
    autocast: tuple[bool, torch.dtype],
) -> tuple[Tensor, list[Tensor | None]]:  # fmt: skip
    """The output, and torch's own gradients of x, weight and bias: the layer runs again, so they have its bits."""
    leaves: list[Any] = [None if each is None else each.detach() for each in operands]
    wanted = [i for i, leaf in enumerate(leaves) if needed[i] and leaf is not None]
    for i in wanted:
        leaves[i].requires_grad_()
    with torch.enable_grad(), torch.autocast("cpu", autocast[1], enabled=autocast[0]):
        y = spot.shape.exact(*leaves)
    found: list[Tensor | None] = [None, None, None]
    gradients = torch.autograd.grad(y, [leaves[i] for i in wanted], dy)
    for i, gradient in zip(wanted, gradients, strict=True):
        found[i] = gradient
    return y.detach(), found
