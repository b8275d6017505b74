"""What a recipe cannot have of a model: layers that there are none of, and lengths that its blocks do not divide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from fpsim.scaling.scaling import Scaling
from fpsim.torch.linear import QuantLinear
from fpsim.torch.recipe import LinearRecipe
from fpsim.train.recipe import Recipe
from fpsim.train.setup.layers import STORING, followed_by, layers_of
from fpsim.train.setup.settings import Settings


def refuse_names(recipe: Recipe, model: Any) -> None:
    """A ValueError for a pattern that matches no layer or module."""
    layers = list(layers_of(model))
    modules = [name for name, module in model.named_modules() if isinstance(module, STORING)]
    patterns = [("keep", pattern, layers) for pattern in recipe.keep]
    patterns += [("overrides", row.layers, layers) for row in recipe.overrides]
    patterns += [("stored", row.modules, modules) for row in recipe.stored]
    if recipe.controller is not None:
        patterns.append(("controller", recipe.controller.layers, layers))
    for field, pattern, names in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            what = "modules that store activations" if field == "stored" else "layers"
            raise ValueError(
                f"{field} of recipe {recipe.name!r} must name {what} of the model; {pattern!r} matches none of "
                f"{', '.join(names) or 'its none'}."
            )


def refuse_shapes(recipe: Recipe, layers: Mapping[str, QuantLinear], settings: Settings) -> None:
    """A ValueError where the terms of a product are no multiple of the blocks that share a scale."""
    for name, layer in layers.items():
        terms = {"fprop": layer.in_features, "dgrad": layer.out_features, "wgrad": settings.tokens}
        for product, k in terms.items():
            for linear in followed_by(recipe, name, product):
                block = block_of(linear, product)
                if k % block:
                    raise ValueError(
                        f"{product} of layer {name!r} sums over {k} {'tokens' if product == 'wgrad' else 'features'}, "
                        f"which must be a multiple of the {block} that share a scale or a transform in recipe "
                        f"{recipe.name!r}. {_remedy(product)}"
                    )


def _remedy(product: str) -> str:
    if product == "wgrad":
        return "Change batch or context, or take another scaling."
    return "Name the layer in keep, or take another scaling."


def block_of(linear: LinearRecipe, product: str) -> int:
    """The terms of a product that share a scale or are mixed, 1 for none.

    Example:
      >>> from fpsim.train.setup.checks import block_of
      >>> [block_of(fp.torch.RECIPES[name], "wgrad") for name in ("BF16", "NVFP4", "DEEPSEEK_V3")]
      [1, 16, 128]
    """
    along_k = {
        "fprop": ((linear.input_scaling, 1), (linear.weight_scaling, 1)),
        "dgrad": ((linear.grad_scaling, 1), (_other(linear, "weight"), 0)),
        "wgrad": ((_other(linear, "grad"), 0), (_other(linear, "input"), 0)),
    }[product]
    blocks = [((1, *scaling.block)[-2:])[axis] for scaling, axis in along_k if scaling is not None]
    return math.lcm(*(block for block in blocks if block > 0), max(linear.hadamard if product == "wgrad" else 1, 1))


def _other(linear: LinearRecipe, operand: str) -> Scaling | None:
    """The scaling of the product that reads the other axis."""
    found: Any = getattr(linear, f"{operand}_scaling_backward")
    same: Scaling | None = getattr(linear, f"{operand}_scaling")
    if isinstance(found, str):
        return same
    assert found is None or isinstance(found, Scaling)
    return found
