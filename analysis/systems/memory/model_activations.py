"""Activations of a model as rows of a ledger: kept, computed again or measured, with their gradients at the peak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from fpsim.analysis.systems.memory.activations import Activation, perceptron_activations, transformer_activations
from fpsim.analysis.systems.memory.gradients import Moment, perceptron_peak, transformer_peak
from fpsim.analysis.systems.memory.report import LedgerRow
from fpsim.analysis.systems.memory.saved import SavedTensors
from fpsim.analysis.systems.memory.sliced import PERCEPTRON, bytes_again, sliced_activations, sliced_multiplications
from fpsim.errors import is_integer, require_kind
from fpsim.formats.named import FP32
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling.storage import stored_bits
from fpsim.train.comparisons.memory import kept_input
from fpsim.train.layers import name_of
from fpsim.train.model import Config, Perceptron, Transformer
from fpsim.train.settings import Recompute

BACKWARD = 2  # number of products (dgrad, wgrad) in a linear layer's backward pass; its forward pass has one


@dataclass(frozen=True)
class ModelActivations:
    """The activations of a micro-batch as rows of a ledger, and the cost of recomputing some of them.

    Attributes:
      rows: a LedgerRow for each tensor that is kept for the backward pass, and one for those computed again.
      gradients: one LedgerRow for the bytes of the backward pass's peak beyond `rows`; () if there are none.
      recomputed: number of blocks of which the backward pass recomputes something.
      cost: multiplications that run once more / multiplications of a training step (forward and backward).
    """

    rows: tuple[LedgerRow, ...] = ()
    gradients: tuple[LedgerRow, ...] = ()
    recomputed: int = 0
    cost: float = 0.0


def activations_of(
    model: Any, recipe: Recipe, tokens: int, micro_batches: int, again: Recompute, saved: SavedTensors | None
) -> ModelActivations:
    """Return the activations that a micro-batch of a model keeps.

    model: a Config, a torch.nn.Module, or a number of parameters. recipe: formats of the training. tokens: tokens of a
    training step on one rank; 0 counts no activations. micro_batches: number of parts into which they are divided.
    again: which activations are recomputed. saved: the result of `fp.analysis.saved_tensors`; None for the formulas of
    the reference models. Raises ValueError if the arguments do not determine the activations of the model.
    """
    config = model if isinstance(model, Config) else model.config if isinstance(model, Transformer) else None
    specified = model.operations.specified if isinstance(model, (Perceptron, Transformer)) else True
    if saved is not None:
        if (tokens, micro_batches) != (0, 1) or again.share:
            raise ValueError(
                "saved must be passed without tokens, micro_batches and checkpointing, as it holds one micro-batch. "
                "Leave these out."
            )
        return _measured(recipe, saved)
    if not tokens:
        return ModelActivations()
    if tokens % micro_batches:
        raise ValueError(f"tokens must be a multiple of micro_batches; got {tokens} and {micro_batches}.")
    if config is None and not isinstance(model, Perceptron):
        number = isinstance(model, float) or is_integer(model)
        words = "a number of parameters" if number else f"a {type(model).__name__}"
        raise ValueError(
            f"tokens must be 0 for {words}, as only the reference models have activations by formula; got {tokens}. "
            "Pass saved=fp.analysis.saved_tensors(model, batch), or an fpsim.train.model.Config."
        )
    if config is None:
        return _perceptron(recipe, tokens // micro_batches, again, specified)
    return blockwise(config, recipe, tokens // micro_batches, again, specified)


def _perceptron(recipe: Recipe, tokens: int, again: Recompute, specified: bool) -> ModelActivations:
    """Return the activations of the reference perceptron, which counts as one block, and the cost of recomputation.

    recipe: formats of the training. tokens: number of vectors in the micro-batch. again: the settings of recomputation.
    specified: True for the operations of `fpsim.train.operations`, False for torch's.
    """
    listed = perceptron_activations(recipe, tokens, specified)
    peak = perceptron_peak(listed, tokens)
    if not again.share:
        return _with_peak(list(map(_row, listed)), peak)
    step = tokens * sum(inputs * outputs for inputs, outputs, _ in PERCEPTRON.values())
    if again.by == "layer":
        rows = [_row(kept) for kept in listed if kept.name in ("first", "loss")]
        rest = [kept for kept in listed if kept.name in ("second", "head")]
        rows += _more("the perceptron, computed again", rest, sum(row.bytes for row in rows[1:]))
        return _with_peak(rows, peak, 1, 1 / (1 + BACKWARD))
    rows = _without_results(listed, None, tokens, again)
    cost = sliced_multiplications(None, tokens, again) / ((1 + BACKWARD) * step)
    return _with_peak(rows, peak, 1, cost)


def _row(kept: Activation) -> LedgerRow:
    """Return the activation `kept` as a row of the ledger, with the same bytes on each rank."""
    count = kept.bits.bytes
    return LedgerRow("activations", f"{kept.name}: {kept.part}", kept.format, kept.elements, count, count)


def blockwise(
    config: Config, recipe: Recipe, tokens: int, again: Recompute, specified: bool = True
) -> ModelActivations:
    """Return the activations of the reference transformer, and the cost of recomputation.

    config: shape of the model. recipe: formats of the training. tokens: tokens of the micro-batch. again: the settings
    of recomputation. specified: True for the operations of `fpsim.train.operations`, False for torch's.

    Raises:
      ValueError: tokens are neither whole sequences nor fewer than one sequence.
    """
    if tokens % config.context and tokens > config.context:
        raise ValueError(
            f"tokens of a micro-batch must be whole sequences of {config.context} tokens; got {tokens}. Take a "
            f"multiple of {config.context}, or less than one sequence."
        )
    listed = transformer_activations(config, recipe, tokens, min(tokens, config.context), specified)
    blocks = again.blocks(config.layers)
    peak = transformer_peak(listed, config, recipe, tokens, again)
    if not blocks:
        return _with_peak(list(map(_row, listed)), peak)
    split = _without_blocks if again.by == "layer" else _without_results
    rows = split(listed, config, tokens, again)
    head = tokens * config.width * config.vocabulary
    step = (1 + BACKWARD) * (forward_multiplications(config, tokens, config.layers) + head)
    return _with_peak(rows, peak, blocks, recomputed_multiplications(config, tokens, again) / step)


def _with_peak(rows: list[LedgerRow], peak: Moment, recomputed: int = 0, cost: float = 0.0) -> ModelActivations:
    """Return a ModelActivations of `rows`, and of a row for the bytes by which the backward pass's peak exceeds them.

    recomputed: number of blocks of which something is recomputed. cost: multiplications of the recomputation /
    multiplications of a training step.
    """
    more = peak.bytes - sum(row.bytes for row in rows)
    part = f"at the peak, in {peak.module}"
    gradients = LedgerRow("activation gradients", part, str(FP32), peak.elements, more, more)
    return ModelActivations(tuple(rows), (gradients,) if more > 0 else (), recomputed, cost)


def _without_blocks(
    listed: Sequence[Activation], config: Config, tokens: int, again: Recompute
) -> list[LedgerRow]:  # fmt: skip
    """Return the ledger's rows of activations when the first blocks keep only their inputs and are recomputed.

    There is a LedgerRow for each tensor that is kept, and one for the extra memory of recomputing a block: the block's
    bytes minus the bytes that the backward pass has freed before. listed: all activations of a micro-batch of `tokens`
    without recomputation. config: shape of the model. again: the settings of recomputation.
    """
    blocks = again.blocks(config.layers)
    rows = [_row(kept) for kept in listed if not 0 <= kept.block < blocks]
    freed = sum(row.bytes for row in rows[1:])  # all but the token indices is free before a block is recomputed
    rows += [_stream(f"blocks.{block}: input", config, tokens) for block in range(blocks)]
    return rows + _more("a block, computed again", [kept for kept in listed if kept.block == 0], freed)


def _stream(part: str, config: Config, tokens: int) -> LedgerRow:
    """Return a LedgerRow, with the text `part`, for a float32 array (tokens, config.width) of the residual stream."""
    size = stored_bits(None, None, (tokens, config.width)).bytes
    return LedgerRow("activations", part, str(FP32), tokens * config.width, size, size)


def _without_results(
    listed: Sequence[Activation], config: Config | None, tokens: int, again: Recompute
) -> list[LedgerRow]:
    """Return the ledger's rows of activations when results of layers are recomputed, in slices or whole.

    There is a LedgerRow for each tensor that is kept, and one for the recomputation with the most extra memory: its
    bytes minus the bytes that the backward pass has freed before. listed: all activations of a micro-batch of `tokens`
    without recomputation. config: shape of the transformer; None for the perceptron. again: the settings of
    recomputation.
    """
    sliced = sliced_activations(listed, config, again)
    rows = [_row(kept) for kept in sliced.kept]
    for name in sliced.residuals:
        assert config is not None
        rows.append(_stream(f"{name}: residual of its sum", config, tokens))
    kept, places = {id(one) for one in sliced.kept}, {id(one): place for place, one in enumerate(listed)}
    up_to = [0, *accumulate(one.bits.bytes if id(one) in kept else 0 for one in listed)]  # bytes kept before each place
    most: tuple[int, tuple[Activation, ...]] = (0, ())
    for group in sliced.groups:
        freed = up_to[-1] - up_to[max(places[id(one)] for one in group) + 1]
        most = max(most, (bytes_again(group, again) - freed, group), key=lambda pair: pair[0])
    more, group = most
    if more > 0:
        name = "SwiGLU's input" if group[0].name.endswith(".act") else group[0].name
        part = f"{name}, computed again"
        rows.append(LedgerRow("activations", part, "several", sum(one.elements for one in group), more, more))
    return rows


def _more(part: str, tensors: Sequence[Activation], freed: int) -> list[LedgerRow]:
    """Return a list with a LedgerRow of the extra memory of a recomputation; [] if it needs none.

    tensors: the activations that are recomputed together. freed: bytes that the backward pass has freed before; the
    extra memory is the bytes of `tensors` minus these. part: text of the row.
    """
    more = sum(kept.bits.bytes for kept in tensors) - freed
    elements = sum(kept.elements for kept in tensors)
    return [LedgerRow("activations", part, "several", elements, more, more)] if more > 0 else []


def _measured(recipe: Recipe, saved: SavedTensors) -> ModelActivations:
    """Return a ModelActivations with a LedgerRow of the bytes of each storage in `saved`.

    Float32 inputs of linear layers count in the format in which the recipe keeps them.
    """
    require_kind("saved", saved, SavedTensors, "what fp.analysis.saved_tensors returns")
    rows = []
    for row in saved.rows:
        part, fmt, size = f"{row.layer or 'the model'}: saved", row.dtype, row.bytes
        elements = math.prod(row.shape)
        if row.input_of and row.dtype == "float32":
            element, scaling = kept_input(recipe, name_of(row.input_of))
            if element is not None and elements:
                columns = row.shape[-1]
                fmt, size = str(element), stored_bits(element, scaling, (elements // columns, columns)).bytes
        rows.append(LedgerRow("activations", part, fmt, elements, size, size))
    return ModelActivations(tuple(rows))


def forward_multiplications(config: Any, tokens: int, blocks: int) -> int:
    """Return the number of multiplications of linear layers and attention in the forward pass of transformer blocks.

    Args:
      config: shape of the transformer.
      tokens: tokens of a micro-batch: whole sequences of the context, or one shorter sequence.
      blocks: number of blocks to count.
    """
    linear = 4 * config.width**2 + 3 * config.width * config.hidden  # qkv, proj, gate_up, down
    return int(blocks * tokens * (linear + 2 * config.width * min(tokens, config.context)))  # scores and mixing


def recomputed_multiplications(config: Any, tokens: int, recompute: Recompute) -> int:
    """Return the number of multiplications that recomputation adds to a transformer's backward pass of a micro-batch.

    tokens: tokens of the micro-batch. recompute: the settings of recomputation.

    Example:
      >>> from fpsim.train import Recompute
      >>> from fpsim.train.model import Config
      >>> from fpsim.analysis.systems.memory.model_activations import recomputed_multiplications
      >>> config = Config(vocabulary=96)
      >>> recomputed_multiplications(config, 512, Recompute(0.5, "m", slices=4, layers=("qkv",))) // 512
      65536
    """
    blocks = recompute.blocks(config.layers)
    if recompute.by == "layer":
        return forward_multiplications(config, tokens, blocks)
    return sliced_multiplications(config, tokens, recompute)
