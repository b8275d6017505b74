"""The ledger of memory: the tensors that training by a recipe keeps, and how ZeRO divides them among ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from fpsim.analysis.systems.memory.model_activations import activations_of
from fpsim.analysis.systems.memory.report import Ledger, LedgerRow
from fpsim.analysis.systems.memory.saved import SavedTensors
from fpsim.errors import is_integer, require_integer, shown
from fpsim.formats.element import element_format
from fpsim.formats.named import FP32
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.recipes.look_up import RecipeLike
from fpsim.recipes.look_up import find as find_recipe
from fpsim.recipes.optimizer_recipe import require_number
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling.storage import WORD, bits_in_whole_tiles, stored_bits, tile_bits
from fpsim.train.layers import name_of
from fpsim.train.model import Config
from fpsim.train.settings import Recompute

STAGES = (0, 1, 2, 3)
FIRST_SHARDED = {"masters": 1, "moments": 1, "gradients": 2, "parameters": 3, "copies": 3, "scales": 3}


def ledger(
    model: torch.nn.Module | Config | float, recipe: RecipeLike, *, ranks: int = 1, zero: int = 0, tokens: int = 0,
    checkpointing: float | Recompute = 1.0, micro_batches: int = 1, saved: SavedTensors | None = None,
) -> Ledger:  # fmt: skip
    """Count the bytes of the tensors that training a model by a recipe keeps, by kind and per rank.

    - parameters: the weights of the model, in float32 or `recipe.optimizer.weights`;
    - copies: the weights of linear layers in the format that products read, if that is another format (and a second
      copy if the backward pass reads them with other scales);
    - gradients: gradients of the parameters, in `recipe.gradients` or float32;
    - masters: float32 copies of parameters in smaller formats, or Kahan's compensation;
    - moments: AdamW's two moments of each parameter. Frozen parameters (without requires_grad) have no gradients,
      masters or moments;
    - scales: scales of the copies, and amax histories of delayed scales;
    - activations: tensors that one micro-batch keeps for the backward pass, by formula for the reference models, from
      `saved` for other modules. A Config counts what the operations of `fp.train.run` keep by default, a model what its
      own operations keep (torch's keep more).

    ZeRO divides masters and moments among ranks from stage 1 on, gradients from stage 2, parameters with their copies
    and scales from stage 3; a rank's part is rounded up to a whole element. Buffers of a layer that is being gathered,
    and the overhead of an allocator, are not counted.

    Args:
      model: a torch.nn.Module (also on torch's "meta" device), the shape of a transformer
        (`fpsim.train.model.Config`), or a number of parameters, which all count as weights of linear layers; tiles of
        scales count as full.
      recipe: an `fpsim.train.Recipe`, the name of a recipe in `fp.train.recipes`, or a TOML file.
      ranks: number of ranks among which ZeRO divides the training state.
      zero: stage of ZeRO, 0 to 3.
      tokens: tokens of a training step on one rank (vectors, for the perceptron); 0 counts no activations. Sequences
        are as long as the model's context.
      checkpointing: share of the transformer's blocks whose activations are kept, 0 to 1. The other blocks, which are
        the first ones, keep only their inputs, and are computed again one at a time. The `fp.train.Recompute` of a
        training run is accepted as well.
      micro_batches: the number of micro-batches into which the tokens are divided, and which run one after another.
      saved: activations of a micro-batch, as `fp.analysis.saved_tensors` returns them, for modules other than the
        reference models; inputs of linear layers count in the format in which the recipe keeps them, all else in the
        dtype that torch saved.

    Returns:
      A Ledger: a row for each part of the training state and each activation.

    Raises:
      TypeError: model is not one of those above.
      ValueError: an unknown recipe or stage, tokens that are not whole sequences, or tokens for another module.

    Source: Rajbhandari et al., arXiv:1910.02054, for the stages and the example.

    Example:
      >>> stages = [fp.analysis.ledger(7_500_000_000, "FP16_MASTERS", ranks=64, zero=stage) for stage in range(4)]
      >>> [round(stage.rank_bytes / 1e9, 1) for stage in stages]
      [120.0, 31.4, 16.6, 1.9]
    """
    chosen = find_recipe(recipe)
    require_integer("ranks", ranks, 1)
    require_integer("micro_batches", micro_batches, 1)
    require_integer("tokens", tokens, 0)
    if not is_integer(zero) or zero not in STAGES:
        raise ValueError(f"zero must be a stage of ZeRO, 0, 1, 2 or 3; got {shown(zero)}.")
    if isinstance(checkpointing, Recompute):
        again = checkpointing
    else:
        require_number("checkpointing", checkpointing, highest=1.0)
        again = Recompute(1 - float(checkpointing))
    weights = _weights_of(model)
    rows = [
        LedgerRow(
            entry.kind, entry.part, entry.format, entry.elements, entry.shard(1),
            entry.shard(int(ranks) if zero >= FIRST_SHARDED[entry.kind] else 1),
        )
        for entry in _state(weights, chosen) if entry.bits
    ]  # fmt: skip
    kept = activations_of(model, chosen, int(tokens), int(micro_batches), again, saved)
    rows += [*kept.rows, *kept.gradients]
    return Ledger(
        tuple(rows), chosen.name, weights.count, int(ranks), int(zero), int(tokens), int(micro_batches),
        1 - again.share, kept.recomputed, kept.cost,
    )  # fmt: skip


@dataclass(frozen=True)
class _ModelWeights:
    """The sizes of a model's weights.

    Attributes:
      count: number of parameters.
      linear: name -> shape (outputs, inputs) of the weight of each linear layer; None if only `count` is known, so that
        all parameters count as weights of linear layers.
      trained: number of parameters that are trained; None for all.
    """

    count: int
    linear: dict[str, tuple[int, int]] | None
    trained: int | None = None


@dataclass(frozen=True)
class _StateEntry:
    """One kind of array of the training state for the whole model, such as AdamW's first moments.

    Attributes:
      kind, part: kind of tensor, such as "moments", and its role, such as "first moment".
      format, elements: name of the format of the elements, and their number in the whole model.
      bits: size of all elements together, in bits.
    """

    kind: str
    part: str
    format: str
    elements: int
    bits: Fraction

    def shard(self, ranks: int) -> int:
        """Return the bytes that one rank holds, rounded up, if ZeRO divides the elements among `ranks` ranks."""
        return math.ceil(self.bits * Fraction(-(-self.elements // ranks), self.elements) / 8)


def _weights_of(model: Any) -> _ModelWeights:
    """Return the parameter count and the shapes of linear layers of a model; shapes are None if only a count is given.

    model: a torch module, a `Config` of a transformer, or a number of parameters, such as 7e9.

    Raises:
      TypeError, ValueError: model is not one of these.
    """
    if isinstance(model, (float, np.floating)) and model.is_integer():  # 7.5e9
        model = int(model)
    if is_integer(model):
        if model < 1:
            raise ValueError(f"model must be a number of parameters >= 1; got {shown(model)}.")
        return _ModelWeights(int(model), None)
    if isinstance(model, Config):
        return _weights_of_shape(model)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            "model must be a torch.nn.Module, an fpsim.train.model.Config or a number of parameters; got "
            f"{shown(model)}."
        )
    weights = {
        module.weight: (name_of(name), (module.out_features, module.in_features))
        for name, module in reversed(list(model.named_modules())) if isinstance(module, torch.nn.Linear)
    }  # fmt: skip  # a weight that several layers share counts once, under the first layer's name
    linear = dict(reversed(list(weights.values())))
    count = sum(x.numel() for x in model.parameters())
    if not count:
        raise ValueError(f"model must have parameters; got {type(model).__name__} without any.")
    return _ModelWeights(count, linear, sum(x.numel() for x in model.parameters() if x.requires_grad))


def _weights_of_shape(config: Config) -> _ModelWeights:
    """Return the parameter count and layer shapes of the transformer that a Config describes, without building it."""
    width, hidden = config.width, config.hidden
    linear = {}
    for block in range(config.layers):
        linear[f"blocks.{block}.attn.qkv"] = (3 * width, width)
        linear[f"blocks.{block}.attn.proj"] = (width, width)
        linear[f"blocks.{block}.mlp.gate_up"] = (2 * hidden, width)
        linear[f"blocks.{block}.mlp.down"] = (width, hidden)
    linear["head"] = (config.vocabulary, width)
    others = (config.vocabulary + config.context + 2 * config.layers + 1) * width  # embeddings and norms
    return _ModelWeights(sum(map(math.prod, linear.values())) + others, linear)


def _state(weights: _ModelWeights, recipe: Recipe) -> list[_StateEntry]:
    """List the arrays of the training state: parameters, gradients, masters, moments, copies of weights, and scales.

    weights: sizes of the model. recipe: formats of the training.
    """
    optimizer = recipe.optimizer
    trained = weights.count if weights.trained is None else weights.trained
    seen = optimizer.format_of("weights")

    def entry(kind: str, part: str, fmt: Any) -> _StateEntry:
        fmt = FP32 if fmt is None else fmt
        count = weights.count if kind == "parameters" else trained
        return _StateEntry(kind, part, str(fmt), count, Fraction(count * fmt.bits))

    entries = [entry("parameters", "weights", seen), entry("gradients", "gradients", recipe.gradients)]
    if seen is not None and optimizer.masters:
        entries.append(entry("masters", "weights", None))
    if optimizer.update_rounding == "kahan":
        entries.append(entry("masters", "compensation", seen))
    for kind in ("first_moment", "second_moment"):
        entries.append(entry("moments", kind.replace("_", " "), optimizer.format_of(kind)))
    if weights.linear is None:
        return entries + _whole_copies(weights.count, recipe, seen)
    return entries + _copies(weights.linear, recipe, seen)


def _copies_of(forward: LinearRecipe, backward: LinearRecipe, seen: Any) -> list[tuple[str, Any, Any]]:
    """Return the low-precision copies of a weight that matrix products read, as (product, format, scaling or None).

    The product is "fprop" or "dgrad", the first that reads the copy; a copy that both read is listed once. forward,
    backward: recipes of a layer for fprop and dgrad. seen: format of the weight itself, None for float32; a product
    that reads this format needs no copy.
    """
    copies: list[tuple[str, Any, Any]] = []
    scaling = forward.weight_scaling
    if forward.weight_fmt is not None and (forward.weight_fmt != seen or scaling is not None):
        copies.append(("fprop", forward.weight_fmt, scaling))
    other = backward.weight_scaling_backward
    again = (backward.weight_fmt, backward.weight_scaling if isinstance(other, str) else other)
    if again[0] is not None and ("fprop", *again) not in copies and (again[0] != seen or again[1] is not None):
        copies.append(("dgrad", *again))
    return copies


def _whole_copies(count: int, recipe: Recipe, seen: Any) -> list[_StateEntry]:
    """List the low-precision copies of `count` weights that matrix products read, and the scales of the copies.

    Shapes of weights are unknown, so every tile (elements that share a scale) counts as full. recipe: formats of the
    training. seen: format of the weights themselves, None for float32; a product that reads this format needs no copy.
    """
    linear = recipe.linear
    assert isinstance(linear, LinearRecipe)
    entries = []
    for product, fmt, scaling in _copies_of(linear, linear, seen):
        entries.append(_StateEntry("copies", f"weights of {product}", str(fmt), count, Fraction(count * fmt.bits)))
        scale_bits = (bits_in_whole_tiles(fmt, scaling) - fmt.bits) * count
        if scale_bits:
            scale_fmt = scaling.scale_format
            number = max(1, math.floor(scale_bits / scale_fmt.bits))
            entries.append(_StateEntry("scales", f"of weights of {product}", str(scale_fmt), number, scale_bits))
    return entries


def _copies(linear: dict[str, tuple[int, int]], recipe: Recipe, seen: Any) -> list[_StateEntry]:
    """List the low-precision copies of linear layers' weights that matrix products read, and all scales that are kept.

    The scales are those of the copies, and delayed scales with their histories. There is one entry for each kind,
    product and format, with the sum over layers. linear: name of a layer -> shape of its weight. recipe: formats of the
    training. seen: format of the weights themselves, None for float32; a product that reads this format needs no copy.
    """
    sums: dict[tuple[str, str, str], list[int]] = {}

    def add(kind: str, part: str, fmt: Any, elements: int, bits: int) -> None:
        total = sums.setdefault((kind, part, str(fmt)), [0, 0])
        total[0] += elements
        total[1] += bits

    for name, shape in linear.items():
        products = [recipe.linear_of(name, product, 0, 1) for product in ("fprop", "dgrad", "wgrad")]
        for product, fmt, scaling in _copies_of(products[0], products[1], seen):
            bits = stored_bits(fmt, scaling, shape)
            add("copies", f"weights of {product}", fmt, math.prod(shape), bits.codes + bits.padding)
            if bits.scales:
                whole = WORD * scaling.tensor_scale  # the scale of the whole tensor
                number = (bits.scales - whole) // tile_bits(element_format(fmt), scaling) + scaling.tensor_scale
                add("scales", f"of weights of {product}", scaling.scale_format, number, bits.scales)
        delayed = next((product.delayed for product in products if product.delayed is not None), None)
        if delayed is not None:  # encode scale and history of input, weight and gradient
            add("scales", "of earlier steps", FP32, 3 * (1 + delayed.history), 3 * 32 * (1 + delayed.history))
    return [_StateEntry(*key, elements, Fraction(bits)) for key, (elements, bits) in sums.items()]
