"""What a recipe cannot have of a model: layers that there are none of, and lengths that its blocks do not divide."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from fpsim.torch.blocks import block_of
from fpsim.torch.linear import QuantLinear
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
            noun = "modules that store activations" if field == "stored" else "layers"
            raise ValueError(
                f"{field} of recipe {recipe.name!r} must name {noun} of the model; {pattern!r} matches none of "
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
