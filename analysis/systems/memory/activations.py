"""Activations of the reference models by formula: the tensors that autograd keeps for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from fpsim.formats.named import FP32
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.storage import StoredBits, stored_bits
from fpsim.train.comparisons.memory import kept_input
from fpsim.train.model import Config

INDEX_BITS, MASK_BITS = 64, 8  # torch's int64 and bool


@dataclass(frozen=True)
class Activation:
    """A tensor that a module keeps for the backward pass.

    Attributes:
      name: name of the module that keeps the tensor, such as "blocks.0.attn.qkv".
      part: role of the tensor in the module, such as "input".
      format: name of the format of the elements.
      shape: (rows, columns).
      bits: size of the tensor in bits: codes, scales and padding.
    """

    name: str
    part: str
    format: str
    shape: tuple[int, int]
    bits: StoredBits

    @property
    def block(self) -> int:
        """Index of the transformer block that keeps the tensor; -1 for modules outside of blocks."""
        return int(self.name.split(".")[1]) if self.name.startswith("blocks.") else -1

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)


def _kept(name: str, part: str, shape: tuple[int, int], fmt: Any, scaling: Scaling | None = None) -> Activation:
    """Return an activation that is kept in the format `fmt` (None: float32) with a scaling (None: no scales).

    name, part: name of the module, and role of the tensor in it, such as "input". shape: (rows, columns) of the tensor.
    """
    text = str(FP32 if fmt is None else fmt)
    return Activation(name, part, text, shape, stored_bits(fmt, scaling, shape))


def _plain(name: str, part: str, shape: tuple[int, int], dtype: str, bits: int) -> Activation:
    """Return an activation whose dtype does not depend on the recipe, such as a mask.

    name, part: name of the module, and role of the tensor in it. shape: (rows, columns) of the tensor. dtype, bits:
    name of its dtype, and bits of one element.
    """
    count = math.prod(shape)
    return Activation(name, part, dtype, shape, StoredBits(count, bits * count, 0, 0))


class _Saved:
    """A builder of the list of activations that modules keep, for one recipe and one micro-batch.

    Args:
      recipe: the formats.
      tokens: tokens of the micro-batch.
      specified: True for the operations of `fpsim.train.operations`, False for torch's operations.
    """

    def __init__(self, recipe: Recipe, tokens: int, specified: bool) -> None:
        self.recipe, self.tokens, self.specified = recipe, tokens, specified

    def linear(self, name: str, features: int) -> Activation:
        """Return the input (tokens, features) that the linear layer `name` keeps for its weight gradient."""
        return _kept(name, "input", (self.tokens, features), *kept_input(self.recipe, name))

    def norm(self, name: str, width: int) -> Iterator[Activation]:
        """Yield the tensors that the RMSNorm `name` of `width` channels keeps.

        If the recipe rounds norms, the module keeps x / rms, 1 / rms of each token, and the weight, where x is its
        input and rms the root mean square of a token. Otherwise fpsim's RMSNorm keeps x and 1 / rms, and torch's keeps
        x, x / rms and 1 / rms.
        """
        numerics, fmt, scaling = self.recipe.numerics, *self._stored(name)
        rounded = numerics.norm is not None
        inner = numerics.norm if fmt is None else fmt
        parts = ("ratios",) if rounded else ("input",) if self.specified else ("input", "ratios")
        for part in parts:
            yield _kept(name, part, (self.tokens, width), inner, scaling)
        sums = None if not rounded or numerics.sums is None else numerics.sums.result_format
        yield _kept(name, "1 / rms", (self.tokens, 1), sums)
        if rounded:
            yield _kept(name, "weight", (1, width), numerics.norm)

    def core(self, name: str, config: Config, length: int) -> Iterator[Activation]:
        """Yield what the attention `name` keeps: queries, keys, values, softmax, and in some cases a bool mask.

        torch's operations always keep the mask (length, length), fpsim's only if the recipe rounds softmax. config:
        shape of the transformer. length: tokens of a sequence.
        """
        fmt, scaling = self._stored(name)
        inner = self._made_by(name.replace("core", "qkv")) if fmt is None else fmt
        width = config.width // config.heads
        for part in ("queries", "keys", "values"):
            yield _kept(name, part, (self.tokens * config.heads, width), inner, scaling)
        softmax = self.recipe.numerics.softmax if fmt is None else fmt
        yield _kept(name, "softmax", (self.tokens * config.heads, length), softmax, scaling)
        if not self.specified or self.recipe.numerics.softmax is not None:
            yield _plain(name, "mask", (length, length), "bool", MASK_BITS)

    def swiglu(self, name: str, hidden: int) -> Activation:
        """Return the input (tokens, 2 * hidden) of the SwiGLU `name`, the only tensor that it keeps."""
        fmt, scaling = self._stored(name)
        inner = self._made_by(name.replace("act", "gate_up")) if fmt is None else fmt
        return _kept(name, "input", (self.tokens, 2 * hidden), inner, scaling)

    def loss(self, classes: int) -> Iterator[Activation]:
        """Yield the tensors that the cross entropy over `classes` keeps for the backward pass, then the targets.

        It keeps the logits if the recipe rounds the loss. Otherwise fpsim's operation keeps the softmax; torch's keeps
        the logarithm of the softmax, and after the targets their number.
        """
        fmt = self.recipe.numerics.loss
        part = "logits" if fmt is not None else "softmax" if self.specified else "log-softmax"
        yield _kept("loss", part, (self.tokens, classes), fmt)
        yield _plain("loss", "targets", (self.tokens, 1), "int64", INDEX_BITS)
        if fmt is None and not self.specified:
            yield _kept("loss", "number of targets", (1, 1), None)

    def _stored(self, name: str) -> tuple[Any, Any]:
        """Return the (format, scaling) of the last row of `recipe.stored` whose pattern matches a module's name.

        They are None if no pattern matches: the recipe does not change how the module stores its activations. name:
        name of the module, such as "blocks.0.norm1".
        """
        rows = [row for row in self.recipe.stored if fnmatchcase(name, row.modules)]
        return (rows[-1].fmt, rows[-1].scaling) if rows else (None, None)

    def _made_by(self, layer: str) -> Any:
        """Return the format in which the linear layer named `layer` returns its results; None for float32."""
        return self.recipe.linear_of(layer, "fprop", 0, 1).fprop.out_fmt


@lru_cache(maxsize=16)  # `recompute_plan` calls this for each candidate
def transformer_activations(
    config: Config, recipe: Recipe, tokens: int, length: int, specified: bool = True
) -> tuple[Activation, ...]:
    """List the tensors that the reference transformer keeps for the backward pass of a micro-batch.

    The tensors are those that torch's autograd saves on the CPU, without parameters, each in the format in which the
    recipe keeps it: a linear layer's input in the format that the wgrad product reads, results of products in the
    product's result format. In float32 the bytes are exactly those that autograd saves (`fp.analysis.saved_tensors`).

    Args:
      config: shape of the model.
      recipe: formats of the training.
      tokens: tokens of the micro-batch.
      length: tokens of a sequence.
      specified: True for the operations of `fpsim.train.operations`, which `fp.train.run` uses by default; False for
        torch's operations.

    Example:
      >>> from fpsim.analysis.systems.memory.activations import transformer_activations
      >>> from fpsim.train import recipes
      >>> from fpsim.train.model import Config
      >>> rows = transformer_activations(Config(vocabulary=103), recipes.FP32, 512, 64)
      >>> sum(row.bits.bytes for row in rows)
      9142272
    """
    saved = _Saved(recipe, tokens, specified)
    kept: list[Activation] = [_plain("tokens", "indices", (tokens, 1), "int64", INDEX_BITS)]
    for block in range(config.layers):
        name = f"blocks.{block}"
        kept += saved.norm(f"{name}.norm1", config.width)
        kept.append(saved.linear(f"{name}.attn.qkv", config.width))
        kept += saved.core(f"{name}.attn.core", config, length)
        kept.append(saved.linear(f"{name}.attn.proj", config.width))
        kept += saved.norm(f"{name}.norm2", config.width)
        kept.append(saved.linear(f"{name}.mlp.gate_up", config.width))
        kept.append(saved.swiglu(f"{name}.mlp.act", config.hidden))
        kept.append(saved.linear(f"{name}.mlp.down", config.hidden))
    kept += saved.norm("norm", config.width)
    kept.append(saved.linear("head", config.width))
    kept += saved.loss(config.vocabulary)
    return tuple(kept)


def perceptron_activations(recipe: Recipe, tokens: int, specified: bool = True) -> tuple[Activation, ...]:
    """List the tensors that the reference perceptron keeps for the backward pass of its layers and loss.

    recipe: formats of the training. tokens: number of vectors in the micro-batch. specified: True for the operations of
    `fpsim.train.operations`, False for torch's.

    Example:
      >>> from fpsim.analysis.systems.memory.activations import perceptron_activations
      >>> from fpsim.train import recipes
      >>> sum(row.bits.bytes for row in perceptron_activations(recipes.FP32, 128))
      333824
    """
    saved = _Saved(recipe, tokens, specified)
    inputs = [saved.linear(name, features) for name, features in (("first", 128), ("second", 256), ("head", 256))]
    return (*inputs, *saved.loss(10))
