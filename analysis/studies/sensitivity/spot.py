"""One layer of a model's copy: each of its three products is either torch's own or follows a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from fpsim.analysis.studies.sensitivity.prefix import ExactPrefix
from fpsim.analysis.studies.sensitivity.shapes import PatchProducts, products_of
from fpsim.recipes.linear_recipe import LinearRecipe, Product
from fpsim.torch.plan import plan_of

Tensor = torch.Tensor
CALLS = 1 << 20  # calls of a layer in one batch that have different random draws


class RefusedProduct(ValueError):
    """The error raised if a product of a layer cannot follow a recipe; the message says why.

    Args:
      layer: name of the layer, also an attribute.
      product: "fprop", "dgrad" or "wgrad", also an attribute.
      reason: the original error, whose text is the message.
    """

    def __init__(self, layer: str, product: str, reason: Exception) -> None:
        super().__init__(str(reason))
        self.layer, self.product = layer, product


class LayerCall(NamedTuple):
    """One call of a layer, as observed in the backward pass.

    Attributes:
      x, weight, bias: the operands; bias is None if the layer has none.
      y, dy: the output, and its gradient.
      dx, dw: the exact gradients of x and the weight; None if they are not needed.
      draw: the number that seeds the call's stochastic rounding.
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
    """A layer of a copy of a model, whose products are torch's, bit for bit, except those set to follow a recipe.

    Args:
      name: name of the layer, from which stochastic rounding is seeded.
      layer: the torch.nn.Linear or convolution, whose method `forward` is replaced.
      backend: the backend that multiplies, as in `fp.torch.QuantLinear`.
    Attributes:
      low: product ("fprop", "dgrad" or "wgrad") -> the recipe that it follows; other products are torch's.
      seen: called with this Spot and each `LayerCall` in the backward pass, unless it is None.
      read: called with this Spot and each input in the forward pass, unless it is None.
      prefix: stored outputs of an exact run, which are returned instead of computed again; None to compute all.
      draw: the number that seeds the stochastic rounding of the next call.
    """

    def __init__(self, name: str, layer: Any, backend: str) -> None:
        self.name, self.layer, self.backend = name, layer, backend
        self.products = products_of(layer)
        self.low: dict[str, LinearRecipe] = {}
        self.seen: Callable[[Spot, LayerCall], None] | None = None
        self.read: Callable[[Spot, Tensor], None] | None = None
        self.prefix: ExactPrefix | None = None
        self.draw = 0
        layer.forward = self.forward

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output for `input`; the product follows the recipe `low["fprop"]`, or is torch's if that
        is missing."""
        self.draw += 1
        apply: Callable[..., Tensor] = _Layer.apply
        x = self.products.read(input)
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
        """Return the layer's output for the input x, with the forward product in a recipe.

        `x`, `weight`, `bias`: the layer's operands in torch's shapes; the bias, or None, is added. `draw`: the number
        that seeds stochastic rounding. Raise a RefusedProduct if the product cannot follow the recipe.
        """
        if self._is_torchs(recipe, "fprop"):
            return self.products.exact(x, weight, bias)
        with torch.no_grad():
            results = [
                self._refusing("fprop", lambda plan, step, part=part: torch.ops.fpsim.linear(
                    *part, step, None, None, plan
                )[0], recipe, draw, group) for group, part in enumerate(self.products.parts(x, weight, bias))
            ]  # fmt: skip
            return self.products.output(results, x, weight)

    def input_gradient(self, recipe: LinearRecipe, call: LayerCall) -> Tensor:
        """Return the gradient of a call's input, with the product dgrad computed in a recipe.

        Raise a RefusedProduct if dgrad cannot follow the recipe.
        """
        if call.dx is not None and self._is_torchs(recipe, "dgrad"):
            return call.dx
        return self.products.input_gradient(self._gradients("dgrad", recipe, call), call.x, call.weight)

    def weight_gradient(self, recipe: LinearRecipe, call: LayerCall) -> Tensor:
        """Return a call's contribution to the gradient of the weight, with the product wgrad computed in a recipe.

        Raise a RefusedProduct if wgrad cannot follow the recipe.
        """
        if call.dw is not None and self._is_torchs(recipe, "wgrad"):
            return call.dw
        gradients = self._gradients("wgrad", recipe, call)
        return self.products.weight_gradient(gradients, call.x, call.weight).to(call.weight.dtype)

    def operand_values(self, x: Tensor) -> tuple[int, int]:
        """Return the numbers of values of the input and of the weight that the forward product of an input x reads."""
        weight = self.layer.weight
        return sum(part[0].numel() for part in self.products.parts(x, weight, None)), weight.numel()

    def elements(self, call: LayerCall) -> tuple[int, int, int]:
        """Return the numbers of values of input, weight and output gradient that the products of a call read.

        For a convolution, the number of the input counts the values of all patches.
        """
        with torch.no_grad():
            parts = self.products.parts(call.x, call.weight, None)
            gradients = self.products.gradients(call.dy, call.x, call.weight)
        x, weight = sum(part[0].numel() for part in parts), sum(part[1].numel() for part in parts)
        return x, weight, sum(gradient.numel() for gradient in gradients)

    def _is_torchs(self, recipe: LinearRecipe, product: str) -> bool:
        """Return whether a product of a convolution is computed by torch itself under a recipe.

        torch computes it if the recipe casts none of its operands, adds in torch's float32, and rounds neither the
        result nor the stored input. `product`: "fprop", "dgrad" or "wgrad".
        """
        untouched = recipe.operands(product) == (None, None) and getattr(recipe, product) == Product()
        return isinstance(self.products, PatchProducts) and untouched and recipe.stash_fmt is None

    def _gradients(self, product: str, recipe: LinearRecipe, call: LayerCall) -> list[Tensor]:
        """Return a gradient, computed in a recipe, for each matrix product of a layer's call.

        A convolution has a matrix product for each group, a linear layer has one. `product`: "dgrad" for the gradient
        of the left operand, "wgrad" for the gradient of the weight matrix.
        """
        with torch.no_grad():
            parts = self.products.parts(call.x, call.weight, None)
            gradients = [
                self._refusing(product, lambda plan, step, part=part, dy=dy: torch.ops.fpsim.linear_gradients(
                    dy, *part[:2], step, None, None, plan, product == "dgrad", product == "wgrad",
                ), recipe, call.draw, group)
                for group, (part, dy) in enumerate(zip(
                    parts, self.products.gradients(call.dy, call.x, call.weight), strict=True
                ))
            ]  # fmt: skip
        return [dx if product == "dgrad" else dw for dx, dw, _ in gradients]

    def _refusing(
        self, product: str, multiply: Callable[..., Any], recipe: LinearRecipe, draw: int, group: int
    ) -> Any:  # fmt: skip
        """Return multiply(plan, seed) for one group of the layer; raise a RefusedProduct if it raises a ValueError.

        Args:
          product: "fprop", "dgrad" or "wgrad", for the error.
          multiply: function that computes the product. `plan` is JSON text that describes the casts and products of
            `recipe`, and the keys of its random draws. `seed` is `draw` as an int64 tensor; None if no random numbers
            are drawn.
          recipe: the recipe of the product.
          draw: the number that seeds stochastic rounding.
          group: index of the convolution's group, 0 for a linear layer; groups draw different random numbers.
        """
        name = f"{self.name}[{group}]" if self.products.groups > 1 else self.name
        plan, draws = _plan(recipe, name, self.backend)
        try:
            return multiply(plan, torch.tensor(draw) if draws else None)
        except ValueError as reason:
            raise RefusedProduct(self.name, product, reason) from reason


@lru_cache(maxsize=4096)
def _plan(recipe: LinearRecipe, name: str, backend: str) -> tuple[str, bool]:
    """Return (plan, draws): JSON text with the casts and products of a layer in a recipe, and whether roundings are
    random.

    `name`: the layer's name, from which random roundings are seeded. `backend`: the backend that multiplies.
    """
    plan = plan_of(recipe, name, backend)
    return plan.text, plan.draws


def _as_read(x: Tensor, autocast: tuple[bool, torch.dtype]) -> Tensor:
    """Return x, an input of a product, in the dtype to which autocast casts it; x itself if autocast is not enabled.

    `autocast`: (whether it is enabled, its dtype)."""
    return x.to(autocast[1]) if autocast[0] else x


class _Layer(torch.autograd.Function):
    """The autograd function of a layer: torch computes its products, except those that follow a recipe.

    The argument `spot` of `forward` is the layer's Spot, whose dictionary `low` has the recipes of such products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, spot: Spot, draw: int) -> Tensor:
        """Return the layer's output, computed in the recipe `spot.low["fprop"]`, or by torch if `spot.low` has no
        "fprop".

        `ctx`: torch's context, which stores what the backward pass needs. `x`, `weight`, `bias`: the layer's operands.
        `spot`: the Spot (a layer whose products may follow recipes). `draw`: the number that seeds stochastic rounding.
        """
        ctx.save_for_backward(x, weight, bias)
        ctx.spot, ctx.draw = spot, draw
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        recipe = spot.low.get("fprop")
        if recipe is None:
            y = spot.products.exact(x, weight, bias)
        else:
            y = spot.output(recipe, _as_read(x, ctx.autocast), weight, bias, draw)
        return y.clone() if y._is_view() else y  # activations in place may not write to a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Return the gradients of x, weight and bias, and None for the other two arguments of `forward`.

        Each of the products dgrad and wgrad follows its recipe in `ctx.spot.low`, or is torch's if it has none there.
        `ctx`: torch's context. `dy`: the gradient of the output.
        """
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
    """Return the output of the layer of `spot`, and a list of torch's own gradients of x, weight and bias (None where
    not needed).

    The layer runs forwards again, so that the gradients have torch's bits. `operands`: x, weight and bias. `dy`:
    gradient of the output. `needed`: whether the gradient of each operand is needed. `autocast`: (enabled, dtype) of
    the forward pass.
    """
    leaves: list[Any] = [None if operand is None else operand.detach() for operand in operands]
    wanted = [i for i, leaf in enumerate(leaves) if needed[i] and leaf is not None]
    for i in wanted:
        leaves[i].requires_grad_()
    with torch.enable_grad(), torch.autocast("cpu", autocast[1], enabled=autocast[0]):
        y = spot.products.exact(*leaves)
    results: list[Tensor | None] = [None, None, None]
    gradients = torch.autograd.grad(y, [leaves[i] for i in wanted], dy)
    for i, gradient in zip(wanted, gradients, strict=True):
        results[i] = gradient
    return y.detach(), results
