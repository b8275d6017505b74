"""One exact backward pass, which yields errors of weight gradients and estimates of loss changes in low precision."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch

from fpsim.analysis.studies.sensitivity.compare import Distance, from_sums
from fpsim.analysis.studies.sensitivity.spot import LayerCall, RefusedProduct, Spot
from fpsim.recipes.linear_recipe import LinearRecipe

Key = tuple[str, str, str]  # layer, product, recipe


class OnePass:
    """An observer of every layer in an exact backward pass, which computes what products in low precision would change.

    Args:
      recipes: name -> recipe.
      wanted: (layer, product, recipe name) to compute; "dgrad" is ignored.
      terms: number of terms whose mean is the loss. A layer's rows are divided among the terms evenly and in order; if
        that is not possible, each row is a term.
    Attributes:
      elements: (layer, product) -> number of values of each operand, for the products that exist.
      refused: (layer, product, recipe name) -> why the product cannot be computed in the recipe.
    """

    def __init__(self, recipes: Mapping[str, LinearRecipe], wanted: Collection[Key], terms: int = 1) -> None:
        self._recipes, self._wanted, self.terms = recipes, wanted, terms
        self.elements: dict[tuple[str, str], tuple[int, int]] = {}
        self.refused: dict[Key, str] = {}
        self._read: dict[str, tuple[int, int]] = {}  # layer -> number of values of its input and weight
        self._products: dict[tuple[str, str], dict[int, torch.Tensor]] = {}  # <g, d> for each term
        self._deltas: dict[tuple[str, str], torch.Tensor] = {}  # errors of weight gradients

    def read(self, spot: Spot, x: torch.Tensor) -> None:
        """Count the values that a call of a layer multiplies in the forward pass; a weight counts once.

        `spot`: the layer. `x`: the call's input.
        """
        inputs, weight = spot.operand_values(x)
        self._read[spot.name] = inputs + self._read.get(spot.name, (0, 0))[0], weight

    def add_frozen(self) -> None:
        """Add to `elements` the forward products of layers that ran, but that the backward pass did not reach.

        The loss has no gradient with respect to their outputs, for example since they and all layers before them are
        frozen.
        """
        for layer, sizes in self._read.items():
            self.elements.setdefault((layer, "fprop"), sizes)

    def see(self, spot: Spot, call: LayerCall) -> None:
        """Count the operand values of a layer's call in `elements`, and compute its products in the requested recipes.

        `spot`: the layer. `call`: its operands and results in the backward pass. Counts and errors of several calls are
        added, but a weight counts once.
        """
        x, weight, dy = spot.elements(call)
        operands = {"fprop": (x, weight)}
        operands |= {"dgrad": (dy, weight)} if call.dx is not None else {}
        operands |= {"wgrad": (dy, x)} if call.dw is not None else {}
        for product, (left, right) in operands.items():
            before = self.elements.get((spot.name, product), (0, 0))
            # a weight that several calls read counts once
            self.elements[spot.name, product] = left + before[0], right + (product == "wgrad" and before[1])
            for name, recipe in self._recipes.items():
                key = spot.name, product, name
                if key in self._wanted and key not in self.refused:
                    try:
                        self._find(spot, call, product, name, recipe)
                    except RefusedProduct as reason:
                        self.refused[key] = str(reason)

    def _find(self, spot: Spot, call: LayerCall, product: str, name: str, recipe: LinearRecipe) -> None:
        """Compute the error of one product of a layer's call in a recipe, and add it to the sums of the layer.

        For "fprop", <g, d> is added for each term of the loss, where g is the gradient of the output and d its error.
        For "wgrad", the error of the weight's gradient is added; for "dgrad", nothing. `spot`: the layer. `name`: name
        of the recipe.
        """
        if product == "fprop":
            low = spot.output(recipe, call.x, call.weight, call.bias, call.draw)
            error = (low.double() - call.y.double()) * call.dy.double()
            rows = error.numel() // error.shape[-1]
            sums = error.reshape(rows if rows % self.terms else self.terms, -1).sum(1)
            held = self._products.setdefault((spot.name, name), {})
            held[len(sums)] = held[len(sums)] + sums if len(sums) in held else sums
        elif product == "wgrad":
            assert call.dw is not None
            delta = spot.weight_gradient(recipe, call).double() - call.dw.double()
            held_delta = self._deltas.get((spot.name, name))
            self._deltas[spot.name, name] = delta if held_delta is None else held_delta + delta

    def estimates(self, layer: str, recipe: str) -> tuple[float, float]:
        """Return two estimates of the loss change if a layer's forward product follows a recipe, given by name.

        With d the error of the layer's output and g the loss's gradient with respect to the output, the first-order
        estimate is <g, d>. The Fisher estimate is n / 2 times the sum of <g, d>^2 over the n terms of the loss. An
        estimate that is not finite is returned as Inf. Both are NaN if the loss has no gradient with respect to the
        output.
        """
        if (layer, recipe) not in self._products:
            return math.nan, math.nan
        held = self._products[layer, recipe].values()
        first = sum(float(sums.sum()) for sums in held)
        fisher = 0.5 * self.terms * sum(float(sums.square().sum()) for sums in held)
        return (first if math.isfinite(first) else math.inf), (fisher if math.isfinite(fisher) else math.inf)

    def of_weight(self, layer: str, recipe: str, gradient: Any, size: float) -> tuple[Distance, Distance]:
        """Return two Distances (error, cosine) between the exact gradients and those with a layer's wgrad in a recipe.

        The first is that of the gradients of all parameters as one vector, the second that of the gradient of the
        layer's weight.

        Args:
          layer, recipe: names of the layer and of the recipe of its wgrad.
          gradient: the exact gradient of the layer's weight, a tensor.
          size: the sum of squares of all exact gradients.
        """
        delta, exact = self._deltas[layer, recipe], gradient.double()
        apart, along = float(delta.square().sum()), float((delta * exact).sum())

        def distance_of(squared: float) -> Distance:
            return from_sums(apart, max(squared + 2 * along + apart, 0.0), squared, squared + along)

        return distance_of(size), distance_of(float(exact.square().sum()))
