"""The peak of memory in the backward pass of the reference models: kept activations and gradients of activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fpsim.analysis.systems.memory.activations import Activation
from fpsim.analysis.systems.memory.sliced import bytes_again, sliced_activations
from fpsim.formats.element import element_format
from fpsim.formats.named import FP32
from fpsim.recipes.training_recipe import Recipe
from fpsim.train.model import Config
from fpsim.train.settings import Recompute

LINEAR = ("qkv", "proj", "gate_up", "down", "head")


class Moment(NamedTuple):
    """The memory in use while the backward pass of the module `module` runs.

    Attributes:
      kept: bytes of the activations that are kept or computed again at this moment.
      result, input: numbers of elements of the gradients of the module's result, and of its input.
      inner: number of elements of other float32 gradients: inside the module, and of the residual stream.
      input_bits: bits of an element of the gradient of the input.
    """

    module: str
    kept: int
    result: int
    input: int
    inner: int = 0
    input_bits: int = FP32.bits

    @property
    def elements(self) -> int:
        """Number of elements of gradients of activations in memory at this moment."""
        return self.result + self.input + self.inner

    @property
    def bytes(self) -> int:
        """Bytes of activations and of their gradients in memory at this moment."""
        bits = FP32.bits * (self.result + self.inner) + self.input_bits * self.input
        return self.kept + math.ceil(bits / 8)


def perceptron_peak(listed: Sequence[Activation], tokens: int) -> Moment:
    """Return the moment of the reference perceptron's backward pass with the most bytes in memory.

    listed: the activations of a micro-batch of `tokens` vectors.
    """
    sizes = {"first": (256, 0), "second": (256, 256), "head": (10, 256), "loss": (10, 10)}
    kept, moments = 0, []
    for name, (result, features) in sizes.items():
        kept += sum(row.bits.bytes for row in listed if row.name == name)
        moments.append(Moment(name, kept, tokens * result, tokens * features))
    return max(reversed(moments), key=lambda moment: moment.bytes)


def transformer_peak(
    listed: Sequence[Activation], config: Config, recipe: Recipe, tokens: int, again: Recompute
) -> Moment:
    """Return the moment of the reference transformer's backward pass with the most bytes.

    As in torch's autograd, the gradient of an activation is in memory from the backward pass of the module that reads
    the activation to that of the module that computed it. A kept activation is in memory until the backward pass of
    the module that kept it. Gradients are in float32, except those of inputs of linear layers, which are in the result
    format of the dgrad product. All activations of a recomputed block are in memory while its backward pass runs. Other
    activations that are computed again, such as a slice of SwiGLU's input, are in memory while the backward pass of the
    module that reads them runs.

    Args:
      listed: the activations of a micro-batch, in the order of the forward pass.
      config: shape of the model.
      recipe: formats of the training.
      tokens: tokens of the micro-batch.
      again: the settings of recomputation.

    Source: the order of torch.autograd; compared with torch's MemTracker in docs/systems.md.
    """
    width, hidden, classes = config.width, config.hidden, config.vocabulary
    scores = tokens * config.heads * min(tokens, config.context)
    stream = tokens * width
    sizes = {  # elements of gradients of a module's result and input, and of other gradients at the same time
        "tokens": (stream, 0, 0), "norm1": (stream, stream, stream), "qkv": (3 * stream, stream, stream),
        "core": (stream, 3 * stream, stream + 2 * scores), "proj": (stream, stream, stream),
        "norm2": (stream, stream, stream), "gate_up": (2 * tokens * hidden, stream, stream),
        "act": (tokens * hidden, 2 * tokens * hidden, stream), "down": (stream, tokens * hidden, stream),
        "norm": (stream, stream, 0), "head": (tokens * classes, stream, 0),
        "loss": (tokens * classes, tokens * classes, 0),
    }  # fmt: skip
    recomputed = again.blocks(config.layers)
    block_input = math.ceil(stream * FP32.bits / 8)
    sliced = sliced_activations(listed, config, again)
    groups = {group[0].name: bytes_again(group, again) for group in sliced.groups}
    kept, inside, block, moments = block_input * len(sliced.residuals), 0, -1, []
    by_module: dict[str, list[Activation]] = {}
    for row in listed:
        by_module.setdefault(row.name, []).append(row)
    kept_rows = {id(row) for row in sliced.kept}
    for name, rows in by_module.items():
        size, kind = sum(row.bits.bytes for row in rows), name.rpartition(".")[2]
        is_again = 0 <= rows[0].block < recomputed
        if rows[0].block != block:
            block, inside = rows[0].block, 0
            kept += block_input if is_again and again.by == "layer" else 0
        if is_again and again.by == "layer":
            inside += size
        elif name in groups:
            inside, kept = groups[name], kept + sum(row.bits.bytes for row in rows if id(row) in kept_rows)
        else:
            inside, kept = 0, kept + size
        out_fmt = recipe.linear_of(name, "dgrad", 0, 1).dgrad.out_fmt if kind in LINEAR else None
        bits = FP32.bits if out_fmt is None else element_format(out_fmt).bits
        moments.append(Moment(name, kept + inside, *sizes[kind], bits))
    return max(reversed(moments), key=lambda moment: moment.bytes)
