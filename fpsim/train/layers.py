"""The linear layers of a model under a recipe: names, checks, arithmetic, delayed scales, weight errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.blocks import block_of
from fpsim.recipes.linear import FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe, Product
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import matrix_block
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.delayed import with_largest_amax
from fpsim.torch.linear import QuantLinear
from fpsim.torch.models import quantize_linears
from fpsim.torch.operators import Tensor, array_of, quantize_op, tensor_of, torch
from fpsim.torch.replay import cut_whole
from fpsim.train.activations import Storing, blocks_of
from fpsim.train.monitors import Levels
from fpsim.train.ranks import Ranks
from fpsim.train.settings import Settings
from fpsim.train.slices import cut_evenly
from fpsim.train.updates import sum_of_squares

RUNS = 0x9E3779B97F4A7C15  # multiplies a run's seed before it is added to a recipe's


def name_of(module: str) -> str:
    """Return the name that recipes use for a linear layer: its module's dotted name, without ".linear" at the end.

    Under unit scaling, the layer "head" is the module "head.linear".
    """
    return module.removesuffix(".linear")


def layers_of(model: Any) -> dict[str, Any]:
    """Return {name that recipes use: layer} for all torch.nn.Linear layers in a torch module."""
    return {name_of(name): layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}


def is_kept(recipe: Recipe, layer: str) -> bool:
    """Return whether a pattern of `recipe.keep` matches a layer.

    Such a layer computes in float32, except where one of `recipe.overrides` applies. layer: the layer's name, as
    recipes use it.
    """
    return any(fnmatchcase(layer, pattern) for pattern in recipe.keep)


def is_governed(recipe: Recipe, layer: str) -> bool:
    """Return whether a recipe's precision controller may change a layer's precision level.

    layer: the layer's name. The result is False without a controller, and for layers that `recipe.keep` names.
    """
    return (
        recipe.controller is not None
        and fnmatchcase(layer, recipe.controller.layers)
        and not is_kept(recipe, layer)
    )  # fmt: skip


def followed_by(recipe: Recipe, layer: str, product: str) -> list[LinearRecipe]:
    """Return all linear recipes that a layer's product may follow, at any training step and precision level.

    layer: the layer's name. product: "fprop", "dgrad" or "wgrad" (forward product, gradient of the input, gradient of
    the weight).
    """
    linears = [FP32 if is_kept(recipe, layer) else recipe.linear]
    for row in recipe.overrides:
        if product in row.products and fnmatchcase(layer, row.layers):
            always = (row.start, row.stop) == (0, 1)  # it replaces what is before it in every step
            linears = [row.linear] if always else [*linears, row.linear]
    if recipe.controller is not None and is_governed(recipe, layer):
        linears += recipe.controller.levels
    return [linear for linear in linears if isinstance(linear, LinearRecipe)]


def is_float32(recipe: Recipe, layer: str) -> bool:
    """Return whether all three products of a layer follow the float32 recipe at every training step and level.

    layer: the layer's name, as recipes use it.
    """
    return all(linear == FP32 for product in PRODUCTS for linear in followed_by(recipe, layer, product))


def quantized_layers(model: Any, recipe: Recipe, settings: Settings) -> dict[str, QuantLinear]:
    """Turn a model's linear layers into `QuantLinear`s in place, and return them by the names that recipes use.

    recipe: the recipe that the layers follow. Layers that stay in float32 in all steps are left unchanged, unless
    `settings.arithmetic` is "specified".
    """
    names = {module: name for name, module in model.named_modules()}
    backend = "emulated" if settings.specified and settings.backend == "float32" else settings.backend
    layers = {}
    for layer, module in layers_of(model).items():
        if is_float32(recipe, layer) and not settings.specified:
            continue
        quantize_linears(model, FP32, names[module], backend=backend)
        module.quant_name = layer  # random draws depend on this name, and watchers see it
        layers[layer] = module
    return layers


@lru_cache(maxsize=256)
def with_chain(linear: LinearRecipe, chain: Accumulator, everywhere: bool) -> LinearRecipe:
    """Return a linear recipe in which the accumulator `chain` computes each product whose `accumulate` is None.

    linear: the recipe. everywhere: True to replace the units, accumulators and schedules of all three products; the
    formats of their results stay.
    """
    changes: dict[str, Any] = {}
    for product in PRODUCTS:
        arithmetic = getattr(linear, product)
        if everywhere or arithmetic.accumulate is None:
            changes[product] = Product(chain, out_fmt=arithmetic.out_fmt)
    return dataclasses.replace(linear, **changes) if changes else linear


@lru_cache(maxsize=256)
def seeded(linear: LinearRecipe, seed: int) -> LinearRecipe:
    """Return a linear recipe whose random draws depend on the run's seed.

    A recipe without draws, or with the seed 0, is returned unchanged.
    """
    modes = {rounding_mode(linear.rounding), rounding_mode(linear.grad_rounding)}
    draws = Rounding.STOCHASTIC in modes or linear.hadamard
    return linear.replace(seed=(linear.seed + RUNS * seed) % 2**64) if draws and seed else linear


class FollowedRecipes:
    """The linear recipes that a model's layers follow at each training step, by overrides and precision levels.

    Args:
      recipe, settings: the recipe and the settings of the run.
      layers: the quantised layers by name.
      levels: the precision levels that a controller sets, or None without a controller.
    """

    def __init__(
        self, recipe: Recipe, settings: Settings, layers: Mapping[str, QuantLinear], levels: Levels | None
    ) -> None:  # fmt: skip
        self._recipe, self._settings, self._layers, self._levels = recipe, settings, layers, levels
        self._followed: dict[str, list[LinearRecipe]] = {}

    def follow(self, step: int) -> None:
        """Set the recipes that every layer's three products follow at a training step.

        step: the number of the step; numbers after the run's last step count as the last.
        """
        step = min(step, self._settings.steps - 1)
        for name, layer in self._layers.items():
            wanted = [self.linear(name, product, step) for product in PRODUCTS]
            if self._followed.get(name) != wanted:
                layer.follow(*wanted)
                self._followed[name] = wanted

    def linear(self, layer: str, product: str, step: int, down: int = 0) -> LinearRecipe:
        """Return the linear recipe that a layer's product follows at a training step.

        layer: the layer's name. product: "fprop", "dgrad" or "wgrad". down: how many precision levels below the layer's
        current level, where level 0 is the least precise; 0 for the current level.
        """
        linear = self._recipe.linear_of(layer, product, step, self._settings.steps)
        if self._levels is not None:
            linear = self._levels.recipe(layer, linear, down)
        if self._settings.specified:
            linear = with_chain(linear, self._recipe.numerics.products, self._settings.backend == "float32")
        return seeded(linear, self._settings.seed)

    def below(self, step: int) -> dict[str, LinearRecipe]:
        """Return {layer: the recipe of its weight gradient one precision level lower} for all layers above level 0.

        step: the number of the training step, which decides on overrides.
        """
        levels = {} if self._levels is None else self._levels.levels
        return {name: self.linear(name, "wgrad", step, down=1) for name, level in levels.items() if level}


class DelayedScales:
    """The delayed scales of a model's layers during one training step.

    All micro-batches use the scales from before the step. The next scales follow from the largest amax (largest
    magnitude) over all micro-batches (`micro_batches`) and over all processes (`share`).

    Args:
      layers: {name: quantised layer}, whose scales are those before the step.
    """

    def __init__(self, layers: Mapping[str, QuantLinear]) -> None:
        self._layers = layers
        self._before = self._copies()
        self._after: list[dict[str, Tensor]] = []

    def micro_batches(self, count: int) -> Iterator[int]:
        """Yield the numbers of micro-batches, 0 to count - 1, each with all scales reset to those before the step.

        After the last one, each layer gets its next scales: for each operand, those that follow from the micro-batch
        with the operand's largest amax (largest magnitude).
        """
        self._after = []
        for micro in range(count):
            for name, scales in self._before.items():
                self._layers[name].scales = scales.clone()
            yield micro
            self._after.append(self._copies())
        for name in self._before:
            largest = with_largest_amax([array_of(scales[name]) for scales in self._after])
            self._layers[name].scales = tensor_of(largest)

    def share(self, ranks: Ranks) -> None:
        """Set each layer's next scales on this process to those that follow from the largest amax of any of `ranks`."""
        for layer in self._layers.values() if ranks.world > 1 else ():
            if layer.scales is not None:
                layer.scales = tensor_of(with_largest_amax(ranks.gathered(array_of(layer.scales))))

    def _copies(self) -> dict[str, Tensor]:
        """Return {layer: copy of its delayed scales}, without layers that have none."""
        return {name: layer.scales.clone() for name, layer in self._layers.items() if layer.scales is not None}


def weight_name(layer: str, weights: Mapping[str, Tensor]) -> str:
    """Return the name of a linear layer's weight among the parameters of its model.

    layer: the layer's name, as recipes use it. weights: {name: parameter} of the model.
    """
    return next(name for name in (f"{layer}.weight", f"{layer}.linear.weight") if name in weights)


def weight_error(layers: Mapping[str, QuantLinear]) -> float:
    """Return the relative rounding error of all layers' weights together, sqrt(sum (w - q)^2 / sum w^2).

    layers: the quantised layers by name. q: the weight w as its recipe casts it in the forward pass. The result is 0 if
    all weights are 0.
    """
    noise = signal = 0.0
    for layer in layers.values():
        spec, _ = layer.recipe.cast_of("weight", backward=False)
        source = layer.weight.detach()
        seed = torch.tensor(0) if rounding_mode(layer.recipe.rounding) is Rounding.STOCHASTIC else None
        values = quantize_op(source, spec, seed, None) if spec else source
        noise += sum_of_squares([source - values])  # exact, except for subnormals: both are close to each other
        signal += sum_of_squares([source])
    return math.sqrt(noise / signal) if signal else 0.0


# ---- checks of a recipe against a model


def refuse_names(recipe: Recipe, model: Any) -> None:
    """Raise a ValueError if a pattern in a recipe's keep, overrides, stored or controller matches no part of the model.

    model: a torch module. Patterns are matched with the names of its linear layers, those in `stored` with the names of
    its `Storing` modules.
    """
    layers = list(layers_of(model))
    modules = [name for name, module in model.named_modules() if isinstance(module, Storing)]
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
    """Raise a ValueError if the K of a layer's product is not a multiple of the recipe's blocks along K.

    layers: the quantised layers by name. settings: settings of the run, whose `tokens` are the K of weight gradients.
    """
    for name, layer in layers.items():
        terms = {"fprop": layer.in_features, "dgrad": layer.out_features, "wgrad": settings.tokens}
        for product, k in terms.items():
            for linear in followed_by(recipe, name, product):
                block = block_of(linear, product)
                if k % block:
                    noun, remedy = "features", "Name the layer in keep"
                    if product == "wgrad":
                        noun, remedy = "tokens", "Change batch or context"
                    raise ValueError(
                        f"{product} of layer {name!r} sums over {k} {noun}, which must be a multiple of the {block} "
                        f"that share a scale or a transform in recipe {recipe.name!r}. {remedy}, or take another "
                        "scaling."
                    )


def refuse_slices(recipe: Recipe, model: Any, settings: Settings) -> None:
    """Raise a ValueError if `settings.recompute` demands slices that the recipe or the model rules out.

    They are ruled out if `recipe.stored` names the SwiGLU that reads a sliced result, if torch computes the product
    (its bits may depend on the shape), or if a slice would divide a tile that shares a scale.
    """
    recompute, layers = settings.recompute, layers_of(model)
    for name in recompute.named(layers, len(blocks_of(model))):
        owner = name.removesuffix("gate_up")
        if owner != name and any(fnmatchcase(f"{owner}act", row.modules) for row in recipe.stored):
            raise ValueError(
                f"recompute by slices and stored= of recipe {recipe.name!r} both say what {owner}act keeps. Choose "
                "recompute by 'layer', or leave one of them out."
            )
        for linear in followed_by(recipe, name, "fprop"):
            by_torch = linear.accumulator("fprop") is None or settings.backend == "float32"
            if by_torch and not settings.specified:
                raise ValueError(
                    f"recompute by slices needs products that a matrix unit or an accumulator adds; that of {name!r} "
                    "is added by torch, whose bits depend on the shape. Choose arithmetic='specified', recompute by "
                    "'layer', or a recipe and a backend with units."
                )
            _refuse_cut(linear, name, layers[name], settings)


def _refuse_cut(linear: Any, name: str, layer: Any, settings: Settings) -> None:
    """Raise a ValueError if slices of a layer's forward product would divide a tile that shares a scale.

    linear: the linear recipe of the product. name, layer: the layer's name and module. settings: settings of the run.
    """
    recompute = settings.recompute

    def tile(scaling: Any, axis: int, length: int) -> int:
        size = matrix_block(scaling.block)[axis] if isinstance(scaling, Scaling) else 1
        return 1 if size == -1 else min(size, length)

    try:
        if recompute.by == "m":
            cut_evenly(settings.tokens, recompute.slices, tile(linear.input_scaling, 0, settings.tokens))
        elif recompute.by == "n":
            features = layer.out_features // (2 if name.endswith("gate_up") else 1)
            cut_evenly(features, recompute.slices, tile(linear.weight_scaling, 0, layer.out_features))
        else:
            sizes = (tile(scaling, 1, layer.in_features) for scaling in (linear.input_scaling, linear.weight_scaling))
            cut_whole(layer.in_features, recompute.slices, max(sizes))
    except ValueError as problem:
        raise ValueError(f"layer {name!r} cannot be recomputed by slices: {problem}") from None
