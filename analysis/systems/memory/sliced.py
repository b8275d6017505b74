"""Recomputation of layers' results, in slices or whole: the activations it does not keep, and its multiplications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fpsim.analysis.systems.memory.activations import Activation
from fpsim.formats.named import FP32
from fpsim.train.model import Config
from fpsim.train.settings import Recompute

# Layer of the perceptron -> inputs, outputs, and the modules that keep nothing if the layer's result is recomputed.
PERCEPTRON = {
    "first": (128, 256, ("second", "head")), "second": (256, 256, ("head",)), "head": (256, 10, ("loss",)),
}  # fmt: skip
TARGETS = "targets"  # the tensor of the loss that is never recomputed


class SlicedActivations(NamedTuple):
    """The activations of a model, divided into kept and recomputed ones.

    Attributes:
      kept: the activations that are kept for the backward pass.
      groups: for each layer whose result is recomputed, in the order of the forward pass, the activations that are
        recomputed together with it.
      residuals: names of layers whose recomputed result is added to the residual stream again. For each of these layers
        the stream before the addition must be kept, because no norm keeps the stream as its input.
    """

    kept: tuple[Activation, ...]
    groups: tuple[tuple[Activation, ...], ...]
    residuals: tuple[str, ...]


def sliced_layers(config: Config | None, again: Recompute) -> list[str]:
    """Return the names of the layers whose results are recomputed.

    config: shape of the transformer; None for the perceptron. again: the settings of recomputation.
    """
    if config is None:
        return again.named(PERCEPTRON, 1)
    ends = ("attn.qkv", "attn.proj", "mlp.gate_up", "mlp.down")
    names = [f"blocks.{block}.{end}" for block in range(config.layers) for end in ends]
    return again.named([*names, "head"], config.layers)


def sliced_activations(
    listed: Sequence[Activation], config: Config | None, again: Recompute
) -> SlicedActivations:  # fmt: skip
    """Divide activations into those that are kept and those that are recomputed.

    listed: all activations without recomputation. config: shape of the transformer; None for the perceptron. again: the
    settings of recomputation.
    """
    readers = {name: _readers(name, config) for name in sliced_layers(config, again)}
    gone = {module for modules in readers.values() for module in modules}
    kept = tuple(one for one in listed if one.name not in gone or one.part == TARGETS)
    by_module: dict[str, list[Activation]] = {}  # in the order of `listed`
    for one in listed:
        by_module.setdefault(one.name, []).append(one)
    order = {name: place for place, name in enumerate(by_module)}
    groups, seen = [], set[str]()
    for modules in readers.values():
        new = sorted((set(modules) - seen) & order.keys(), key=order.__getitem__)
        seen |= set(modules)
        groups.append(tuple(one for name in new for one in by_module[name] if one.part != TARGETS))
    inputs = {one.name for one in kept if one.part == "input" and one.format == str(FP32)}
    norms = {"proj": "norm1", "down": "norm2"}
    residuals = []
    for name in readers:
        block, end = name.rpartition(".")[0].rpartition(".")[0], name.rpartition(".")[2]
        if end in norms and f"{block}.{norms[end]}" not in inputs:
            residuals.append(name)
    return SlicedActivations(kept, tuple(group for group in groups if group), tuple(residuals))


def _readers(name: str, config: Config | None) -> tuple[str, ...]:
    """Return the names of the modules that read a layer's result; if it is recomputed, they keep nothing of it.

    name: name of the layer. config: shape of the transformer; None for the perceptron.
    """
    if config is None:
        return PERCEPTRON[name][2]
    block, end = name.rpartition(".")[0].rpartition(".")[0], name.rpartition(".")[2]
    if end == "down":
        number = int(block.removeprefix("blocks.")) + 1
        return (f"blocks.{number}.norm1" if number < config.layers else "norm",)
    readers = {"qkv": f"{block}.attn.core", "proj": f"{block}.norm2", "gate_up": f"{block}.mlp.act", "head": "loss"}
    return (readers[end],)


def bytes_again(group: Sequence[Activation], again: Recompute) -> int:
    """Return the bytes in memory while a group of activations is recomputed.

    If the group is SwiGLU's input, sliced along tokens or channels, one slice is in memory at a time; otherwise the
    whole group is. group: the activations. again: the settings of recomputation.
    """
    size = sum(one.bits.bytes for one in group)
    alone = len(group) == 1 and group[0].name.endswith(".act") and again.by != "k"
    return math.ceil(size / again.slices) if alone else size


def sliced_multiplications(config: Config | None, tokens: int, again: Recompute) -> int:
    """Return the number of multiplications that recomputing results of layers adds to a micro-batch's backward pass.

    Recomputing queries, keys and values recomputes attention as well; recomputing a layer of the perceptron recomputes
    the later layers as well. config: shape of the transformer; None for the perceptron. tokens: tokens of the
    micro-batch. again: the settings of recomputation.

    Example:
      >>> from fpsim.train import Recompute
      >>> from fpsim.train.model import Config
      >>> from fpsim.analysis.systems.memory.sliced import sliced_multiplications
      >>> config = Config(vocabulary=96)
      >>> sliced_multiplications(config, 512, Recompute(0.5, "m", slices=4)) == 512 * 128 * 512
      True
    """
    named = sliced_layers(config, again)
    if config is None:
        sizes = {name: inputs * outputs for name, (inputs, outputs, _) in PERCEPTRON.items()}
        count = sum(sizes[name] for name in named)
        count += sizes["second"] + sizes["head"] if "first" in named else 0
        return tokens * (count + (sizes["head"] if "second" in named else 0))
    width, hidden = config.width, config.hidden
    sizes = {
        "qkv": 3 * width**2 + 2 * width * min(tokens, config.context), "proj": width**2, "gate_up": 2 * width * hidden,
        "down": width * hidden, "head": width * config.vocabulary,
    }  # fmt: skip
    return tokens * sum(sizes[name.rpartition(".")[2]] for name in named)
