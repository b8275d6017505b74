"""Checks of a recipe against a model: layers that do not exist, and lengths that blocks do not divide."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from fpsim.recipes.blocks import block_of
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling.scaling import Scaling
from fpsim.torch.linear import QuantLinear
from fpsim.torch.replay import cut_whole
from fpsim.train.activations.recomputation import cut_evenly
from fpsim.train.setup.layers import STORING, followed_by, layers_of
from fpsim.train.setup.settings import Settings


def refuse_names(recipe: Recipe, model: Any) -> None:
    """Raise a ValueError if one of the recipe's patterns matches no layer or module of the model."""
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
    """Raise a ValueError if a product's number of terms is not a multiple of the recipe's blocks along K."""
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


def refuse_slices(recipe: Recipe, model: Any, settings: Settings) -> None:
    """Raise a ValueError if the recipe or the model does not allow recomputing SwiGLU's input in slices."""
    recompute = settings.recompute
    if recompute.by == "layer" or not recompute.share or not hasattr(model, "blocks"):
        return
    layers = layers_of(model)
    for index in range(recompute.blocks(len(model.blocks))):
        name = f"blocks.{index}.mlp.gate_up"
        if any(fnmatchcase(f"blocks.{index}.mlp.act", row.modules) for row in recipe.stored):
            raise ValueError(
                f"recompute by slices and stored= of recipe {recipe.name!r} both say what blocks.{index}.mlp.act keeps."
                " Choose recompute by 'layer', or leave one of them out."
            )
        for linear in followed_by(recipe, name, "fprop"):
            if linear.accumulator("fprop") is None or settings.backend == "float32":
                raise ValueError(
                    f"recompute by slices needs products that a matrix unit or an accumulator adds; that of {name!r} "
                    "is torch's, whose bits depend on its shape. Choose recompute by 'layer', or a recipe and a "
                    "backend with units."
                )
            _refuse_cut(linear, layers[name], settings)


def _refuse_cut(linear: Any, layer: Any, settings: Settings) -> None:
    """Raise a ValueError if slices would divide a tile whose elements share a scale."""
    recompute = settings.recompute

    def tile(scaling: Any, axis: int, length: int) -> int:
        size = scaling.block[-2:][axis] if isinstance(scaling, Scaling) and len(scaling.block) > 1 else 1
        return 1 if size == -1 else min(size, length)

    if recompute.by == "m":
        cut_evenly(settings.tokens, recompute.slices, tile(linear.input_scaling, 0, settings.tokens))
    elif recompute.by == "n":
        hidden = layer.out_features // 2
        cut_evenly(hidden, recompute.slices, tile(linear.weight_scaling, 0, layer.out_features))
    else:
        sizes = (tile(scaling, 1, layer.in_features) for scaling in (linear.input_scaling, linear.weight_scaling))
        cut_whole(layer.in_features, recompute.slices, max(sizes))


def _remedy(product: str) -> str:
    if product == "wgrad":
        return "Change batch or context, or take another scaling."
    return "Name the layer in keep, or take another scaling."
