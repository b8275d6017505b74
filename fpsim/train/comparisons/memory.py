"""Bytes of the state that training by a recipe needs: weights, moments, and activations for the backward pass."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fpsim.formats.element import element_format
from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling.storage import stored_bits
from fpsim.torch.operators import torch
from fpsim.train.layers import layers_of
from fpsim.train.loop import Trainer
from fpsim.train.model import Core, RMSNorm
from fpsim.train.settings import Settings
from fpsim.train.slices import SwiGLU

MADE_BY = {SwiGLU: "gate_up", Core: "qkv"}  # the layer whose results a module keeps


class Memory(NamedTuple):
    """Bytes that a model's state has in a recipe's formats; the emulation itself stores float32.

    Attributes:
      weights: bytes of master weights, of copies in another format, and of Kahan's compensation.
      moments: bytes of both moments of AdamW.
      activations: bytes for one micro-batch, scales included: inputs of linear layers, norms and SwiGLU; queries, keys,
        values and softmax of attention.
    """

    weights: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        """Bytes of weights, moments and activations together."""
        return sum(self)


def memory_of(recipe: Recipe, settings: Settings) -> Memory:
    """Return the bytes of weights, moments and activations in a recipe's formats, by its overrides at the first step.

    settings: the settings of the run, which include its model, batch and context.

    Example:
      >>> from fpsim.train import recipes
      >>> from fpsim.train.comparisons.memory import memory_of
      >>> from fpsim.train import Settings
      >>> settings = Settings(model="perceptron", batch=128)
      >>> [memory_of(getattr(recipes, name), settings).activations for name in ("FP32", "BF16", "DEEPSEEK_V3")]
      [327680, 163840, 181760]
    """
    trainer = Trainer(recipe, settings)
    count = sum(weight.numel() for weight in trainer.weights.values())
    weights, moments = (round(count * bits / 8) for bits in optimizer_bits(recipe.optimizer))
    return Memory(weights, moments, math.ceil(_activation_bits(trainer) / 8))


def optimizer_bits(recipe: OptimizerRecipe) -> tuple[int, int]:
    """Return (bits of the weights, bits of both moments) for each weight of a model.

    The bits of the weights include float32 masters and Kahan's compensation, if the recipe has them.
    """
    fmt = recipe.format_of("weights")
    weights = 32 if fmt is None else fmt.bits * (2 if recipe.update_rounding == "kahan" else 1)
    if fmt is not None and recipe.masters:
        weights += 32
    moments = (recipe.format_of(name) for name in ("first_moment", "second_moment"))
    return weights, sum(32 if fmt_kept is None else fmt_kept.bits for fmt_kept in moments)


def _activation_bits(trainer: Trainer) -> float:
    """Return the bits of the activations that one micro-batch saves for the backward pass.

    A forward pass determines the shapes. The activations are inputs of linear layers, norms and SwiGLU, and attention's
    queries, keys, values and softmax, each in the format in which the recipe stores it, scales included.
    """
    bits: list[float] = []
    layers = {module: name for name, module in layers_of(trainer.model).items()}
    names = {module: name for name, module in trainer.model.named_modules()}

    def see(module: Any, inputs: tuple[Any, ...]) -> None:
        x = inputs[0]
        matrix = (x.numel() // x.shape[-1], x.shape[-1])
        if module in layers:
            bits.append(stored_bits(*kept_input(trainer.recipe, layers[module]), matrix).total)
            return
        name = names[module]
        kept = next((row for row in reversed(trainer.recipe.stored) if fnmatchcase(name, row.modules)), None)
        bits_per_value = 32.0
        if kept is not None:
            bits_per_value = stored_bits(kept.fmt, kept.scaling, matrix).per_value
        elif type(module) in MADE_BY:
            made = f"{name.rpartition('.')[0]}.{MADE_BY[type(module)]}"
            fmt = trainer.recipe.linear_of(made, "fprop", 0, 1).fprop.out_fmt
            bits_per_value = 32.0 if fmt is None else element_format(fmt).bits
        if isinstance(module, Core):
            queries = x.numel()
            shares = queries // x.shape[-1] * x.shape[-2]  # for each query and head, one for each token
            fmt = trainer.recipe.numerics.softmax
            bits.append(3 * queries * bits_per_value + shares * (32.0 if fmt is None else element_format(fmt).bits))
        else:
            bits.append(x.numel() * bits_per_value)

    watched = [m for m in trainer.model.modules() if m in layers or isinstance(m, (Core, RMSNorm, SwiGLU))]
    hooks = [module.register_forward_pre_hook(see) for module in watched]
    settings = trainer.settings
    inputs, _ = trainer.data.batch(settings.seed, 0, 0, batch=settings.batch, context=settings.context)
    with torch.no_grad():
        trainer.model.eval()(torch.from_numpy(inputs))
    for hook in hooks:
        hook.remove()
    return sum(bits)


def kept_input(recipe: Recipe, layer: str) -> tuple[Any, Any]:
    """Return (format, scaling) in which a linear layer saves its input for the weight gradient.

    layer: the layer's name. The format is None for float32, and the scaling is None without scales.

    Example:
      >>> from fpsim.train import recipes
      >>> from fpsim.train.comparisons.memory import kept_input
      >>> kept_input(recipes.DEEPSEEK_V3, "blocks.0.attn.qkv")[1]  # what the forward product read
      fp.scalings.TILE_1X128
    """
    linear = recipe.linear_of(layer, "wgrad", 0, 1)
    if linear.stash_fmt is not None:
        return linear.stash_fmt, linear.stash_scaling
    scaling = linear.input_scaling_backward
    if linear.requantize_input or isinstance(scaling, str):  # wgrad reads the values of the forward product
        scaling = linear.input_scaling
    return linear.input_fmt, scaling
