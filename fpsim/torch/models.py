"""`quantize_linears`, which quantises the linear layers of a whole model."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase

from fpsim.errors import SHOWN, texts_of
from fpsim.recipes.blocks import STRICT, block_of
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.look_up import LinearLike, find_either
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.linear import QuantLinear, layer_plan
from fpsim.torch.operators import torch

PATTERNS = "a shell pattern or several, such as 'blocks.*.mlp.*'"


def quantize_linears(
    model: torch.nn.Module,
    recipe: LinearLike,
    pattern: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    *,
    backend: str = "emulated",
) -> list[str]:
    """Quantise the linear layers of a model in place, without replacing the layer objects.

    Parameters, tied weights, optimisers, hooks, buffers, modes and all references to a layer stay valid. Layers of
    subclasses of `torch.nn.Linear` are not changed: some are quantised already, and others' weights are read without
    calling the layer (the output projection of `torch.nn.MultiheadAttention`). In evaluation mode
    `torch.nn.TransformerEncoderLayer` has a fused path that would bypass quantised layers; it is switched off then.

    If a product's K is not a multiple of the block that shares a scale, the last block is padded with zeros, as in
    DeepGEMM's kernels. Transformer Engine, `fp.train` and `fp.analysis.plan` require whole blocks, so a layer whose
    number of features is not a multiple causes a warning; a number of tokens does not, because it depends on the batch.

    Args:
      model: any module.
      recipe: a LinearRecipe, or the name of one; or a training recipe (`fp.train.Recipe`, the name of one, or the path
        of one in TOML), whose `linear` and overrides the layers follow, product by product, and whose `keep` names
        layers to leave unchanged; or a plan of `fp.analysis.plan`, for its training recipe.
      pattern: shell pattern, or several, of qualified names such as "blocks.*.mlp.*"; case matters.
      exclude: shell pattern, or several, of names of layers to leave unchanged.
      backend: the backend that multiplies, as for `QuantLinear`.

    Returns:
      Qualified names of the layers that were quantised ("" for the model itself), in the model's order.

    Raises:
      ValueError: no linear layer has such a name (the message lists all), an override matches no layer, or an override
        applies to only some of the steps of a training.
      TypeError: model is not a torch.nn.Module, or recipe is none of those above.
      OSError: the file cannot be read.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
      >>> fp.torch.quantize_linears(model, fp.torch.TE_HYBRID, exclude="2")
      ['0']
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    included, excluded = texts_of("pattern", pattern, PATTERNS), texts_of("exclude", exclude, PATTERNS)
    followed = find_either(recipe)
    overrides, kept = (followed.overrides, followed.keep) if isinstance(followed, Recipe) else ((), ())
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is torch.nn.Linear:
            names.setdefault(module, []).append(name)
    known_names = [name for layer_names in names.values() for name in layer_names]
    if isinstance(followed, Recipe):
        _refuse_overrides(followed, known_names)
    layers = {
        module: layer_names[0]
        for module, layer_names in names.items()
        if any(fnmatchcase(name, glob) for name in layer_names for glob in included)
        and not any(fnmatchcase(name, glob) for name in layer_names for glob in excluded)
        and (
            not any(fnmatchcase(name, glob) for name in layer_names for glob in kept)
            or any(fnmatchcase(layer_names[0], row.layers) for row in overrides)
        )
    }
    if not layers:
        raise ValueError(_nothing_matches(model, known_names, included, excluded, kept))
    filled: list[str] = []
    plans = []
    for module, name in layers.items():
        assert isinstance(module, torch.nn.Linear)
        products = [
            followed.linear_of(name, product, 0, 1) if isinstance(followed, Recipe) else followed
            for product in PRODUCTS
        ]
        filled += _filled_up(module, name, products)
        plans.append((module, products[0], name, backend, layer_plan(products, name, backend)))
    for plan in plans:  # once all of them are known to be possible
        QuantLinear._take_over(*plan)
    for layer in model.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer) and (layer.linear1 in layers or layer.linear2 in layers):
            layer.activation_relu_or_gelu = 0  # 0 disables the fused path, which supports ReLU and GELU only
    if filled:
        more = f" (and {len(filled) - 1} more like it)" if len(filled) > 1 else ""
        warnings.warn(
            f"{filled[0]}{more}: the last block is filled up with zeros, where {STRICT} refuse the layer and "
            "fp.analysis.plan does not offer the recipe. Pad the layer, or leave it out with exclude=.",
            stacklevel=2,
        )
    return list(layers.values())


def _filled_up(layer: torch.nn.Linear, name: str, products: Sequence[LinearRecipe]) -> list[str]:
    """Return clauses of a warning, one for each product whose K is padded with zeros to a multiple of the block.

    layer, name: the linear layer and its name. products: the linear recipes of fprop, dgrad and wgrad; wgrad is not
    checked, because its K is the number of tokens.
    """
    said = []
    for product, recipe, length in zip(PRODUCTS, products, (layer.in_features, layer.out_features), strict=False):
        block = block_of(recipe, product)
        if length % block:
            said.append(
                f"{product} of layer {name!r} sums {length} terms, no multiple of the {block} that share a scale "
                f"in {recipe.name or 'the recipe'}"
            )
    return said


def _refuse_overrides(recipe: Recipe, names: Sequence[str]) -> None:
    """Raise a ValueError if an override applies to only some of the steps, or to none of the linear layers `names`."""
    for row in recipe.overrides:
        if (row.start, row.stop) != (0.0, 1.0):
            raise ValueError(
                f"recipe must be the same for all steps, because layers do not count steps; got {recipe.name!r}, where "
                f"layers {row.layers!r} follow another one from {row.start:g} to {row.stop:g} of the steps. Train with "
                "fp.train, or pass its linear."
            )
    for row in recipe.overrides:
        if not any(fnmatchcase(name, row.layers) for name in names):
            near = ", ".join(map(repr, difflib.get_close_matches(row.layers, names, SHOWN, cutoff=0.0))) or "none"
            raise ValueError(
                "overrides of the recipe must match linear layers of the model; got "
                f"{row.layers!r}, which matches none of {len(names)}. Near it: {near}."
            )


def _nothing_matches(
    model: torch.nn.Module, names: list[str], included: Sequence[str], excluded: Sequence[str], kept: Sequence[str]
) -> str:
    """Return the text of an error: no layer matches the patterns.

    names: names of the model's linear layers. included, excluded, kept: shell patterns of layers to quantise, of layers
    to leave out, and of layers that the recipe does not quantise.
    """
    quantized = sum(isinstance(module, QuantLinear) for module in model.modules())
    without = [f"{', '.join(map(repr, excluded))}"] if excluded else []
    without += [f"{', '.join(map(repr, kept))}, which the recipe keeps"] if kept else []
    but = f" without {' and '.join(without)}{',' if kept else ''}" if without else ""
    known = ", ".join(repr(name) for name in names) if names else "none"
    already = f" Quantised already: {quantized}." if quantized else ""
    globs = ", ".join(map(repr, included))
    return f"pattern {globs}{but} matches no torch.nn.Linear of the model, which has {known}.{already}"
