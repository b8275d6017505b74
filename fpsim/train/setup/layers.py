"""The layers of a model that follow a recipe: their names, how they are made, and their errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.cast_text import spec_text
from fpsim.recipes.linear import FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe, Product
from fpsim.recipes.parts import Stored
from fpsim.recipes.training_recipe import Recipe
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.linear import QuantLinear
from fpsim.torch.models import quantize_linears
from fpsim.torch.operators import Tensor, quantize_op, torch
from fpsim.train.model import Config, Core, Perceptron, RMSNorm, SwiGLU, Transformer, quantizer, store
from fpsim.train.operations.operations import Operations
from fpsim.train.optimizer import sum_of_squares
from fpsim.train.setup.settings import Settings

STORING = (SwiGLU, Core, RMSNorm)  # modules whose activations a recipe may store
RUNS = 0x9E3779B97F4A7C15  # spreads the seeds of runs over those of recipes


def made_model(recipe: Recipe, settings: Settings, data: Any) -> Any:
    """Return a new model as the settings describe it, with the recipe's parametrisation."""
    operations = Operations(recipe.numerics, settings.specified)
    if settings.model == "perceptron":
        if recipe.parametrisation != "standard":
            raise ValueError(
                f"the perceptron has the standard parametrisation only; got {recipe.parametrisation!r} in recipe "
                f"{recipe.name!r}. Train the transformer."
            )
        return Perceptron(settings.seed, operations)
    config = Config(len(data.vocabulary), settings.context, parametrisation=recipe.parametrisation)
    return Transformer(config, settings.seed, operations)


def name_of(module: str) -> str:
    """Return the name that recipes use for a module: without the part that a unit-scaling wrapper adds."""
    return module.removesuffix(".linear")


def layers_of(model: Any) -> dict[str, Any]:
    """Return {name in recipes: linear layer} of a model."""
    return {name_of(name): layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}


def is_kept(recipe: Recipe, layer: str) -> bool:
    """Return whether a recipe's `keep` names a layer, which then stays in float32 where no override holds."""
    return any(fnmatchcase(layer, pattern) for pattern in recipe.keep)


def is_governed(recipe: Recipe, layer: str) -> bool:
    """Return whether the controller changes a layer's precision; it never does for layers kept in float32."""
    return (
        recipe.controller is not None
        and fnmatchcase(layer, recipe.controller.layers)
        and not is_kept(recipe, layer)
    )  # fmt: skip


def followed_by(recipe: Recipe, layer: str, product: str) -> list[LinearRecipe]:
    """Return all recipes that a layer's product may follow, at any step and level."""
    linears = [FP32 if is_kept(recipe, layer) else recipe.linear]
    linears += [
        row.linear for row in recipe.overrides if product in row.products and fnmatchcase(layer, row.layers)
    ]  # fmt: skip
    if recipe.controller is not None and is_governed(recipe, layer):
        linears += recipe.controller.levels
    return [linear for linear in linears if isinstance(linear, LinearRecipe)]


def is_float32(recipe: Recipe, layer: str) -> bool:
    """Return whether all products of a layer are always those of float32."""
    return all(linear == FP32 for product in PRODUCTS for linear in followed_by(recipe, layer, product))


def quantized_layers(model: Any, recipe: Recipe, settings: Settings) -> dict[str, QuantLinear]:
    """Quantise the linear layers that follow recipes, and return them by name.

    Layers that are always in float32 stay torch's own, unless every operation is specified.
    """
    names = {module: name for name, module in model.named_modules()}
    layers = {}
    for layer, module in layers_of(model).items():
        if is_float32(recipe, layer) and not settings.specified:
            continue
        quantize_linears(model, FP32, names[module], backend=backend_of(settings))
        module.quant_name = layer  # which draws depend on, and watchers see
        layers[layer] = module
    return layers


def backend_of(settings: Settings) -> str:
    """Return the backend of linear layers: specified float32 products are emulated too."""
    return "emulated" if settings.specified and settings.backend == "float32" else settings.backend


@lru_cache(maxsize=256)
def with_chain(linear: LinearRecipe, chain: Accumulator, everywhere: bool) -> LinearRecipe:
    """Return a recipe whose products that torch would add are added by an accumulator.

    everywhere: also those of matrix units, whose schedule and promotion are left out.
    """
    changes: dict[str, Any] = {}
    for product in PRODUCTS:
        arithmetic = getattr(linear, product)
        if everywhere or arithmetic.accumulate is None:
            changes[product] = Product(chain, out_fmt=arithmetic.out_fmt)
    return dataclasses.replace(linear, **changes) if changes else linear


@lru_cache(maxsize=256)
def seeded(linear: LinearRecipe, seed: int) -> LinearRecipe:
    """Return a recipe whose random draws depend on the run's seed; a recipe without draws is returned unchanged."""
    modes = {rounding_mode(linear.rounding), rounding_mode(linear.grad_rounding)}
    draws = Rounding.STOCHASTIC in modes or linear.hadamard
    return linear.replace(seed=(linear.seed + RUNS * seed) % 2**64) if draws and seed else linear


def store_activations(model: Any, row: Stored) -> None:
    """Make the modules that a `Stored` names keep their activations for the backward pass in its format."""
    spec = spec_text(row.fmt, row.scaling, "nearest_even", None, "keep", 32)
    for name, module in model.named_modules():
        if isinstance(module, STORING) and fnmatchcase(name, row.modules):
            store(module, quantizer(spec))


def weight_name(layer: str, weights: Mapping[str, Tensor]) -> str:
    """Return the name of a layer's weight in the model's parameters."""
    return next(name for name in (f"{layer}.weight", f"{layer}.linear.weight") if name in weights)


def weight_error(layers: Mapping[str, QuantLinear]) -> float:
    """Return the relative error of all quantised weights together, sqrt(sum (w - q)^2 / sum w^2)."""
    noise = signal = 0.0
    for layer in layers.values():
        spec, _ = layer.recipe.cast_of("weight", backward=False)
        source = layer.weight.detach()
        seed = torch.tensor(0) if rounding_mode(layer.recipe.rounding) is Rounding.STOCHASTIC else None
        values = quantize_op(source, spec, seed, None) if spec else source
        noise += sum_of_squares([source - values])  # the difference of neighbours, exact but for subnormals
        signal += sum_of_squares([source])
    return math.sqrt(noise / signal) if signal else 0.0
