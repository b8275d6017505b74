"""A copy of a model that runs on one batch again and again, each time from the same state and the same draws."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from fpsim.analysis.models.compiled import eager_functions, run_eagerly
from fpsim.analysis.models.losses import called_with
from fpsim.analysis.models.watch import in_backward
from fpsim.analysis.studies.sensitivity.spot import CALLS, Spot
from fpsim.errors import shown
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.train.loop import one_thread

Tensor = torch.Tensor
Assignment = Mapping[tuple[str, str], LinearRecipe]
CALLS_OF_MODEL = "the model: model(*batch) of a tuple or list, model(**batch) of a mapping, model(batch) of others"


class TwinRun(NamedTuple):
    """What a run gave.

    Attributes:
      loss: with its graph, if it was kept; None where there is no loss.
      outputs: all floats that the model returned, in the order of its calls.
    """

    loss: Tensor | None
    outputs: list[Tensor]


class Twin:
    """A copy of a model whose linear layers and convolutions take each product from torch or from a recipe.

    Args:
      model: which is not touched.
      layers: layer -> the names of its modules; the first one is its own.
      loss: called as loss(model, batch); None for outputs alone, without gradients.
      seed: of the draws of each batch.
      backend: what multiplies.
    Raises:
      ValueError: the model cannot be copied.
    """

    def __init__(
        self, model: Any, layers: Sequence[str], loss: Callable[..., Any] | None, seed: int, backend: str
    ) -> None:  # fmt: skip
        try:
            with torch.inference_mode(False):  # whose copies would have no gradients
                self.model = copy.deepcopy(model)
        except Exception as reason:  # whatever a module holds
            raise ValueError(
                f"model must be one that copy.deepcopy can copy, so that it stays as it is; got {type(model).__name__}:"
                f" {reason}"
            ) from reason
        run_eagerly(self.model)
        self.loss, self.seed = loss, seed
        self.spots = {name: Spot(name, self.model.get_submodule(name), backend) for name in layers}
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        self._modes = [(module, module.training) for module in self.model.modules()]
        self._buffers = [
            (module, name, buffer)
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._outputs: list[Tensor] = []
        self.model.register_forward_hook(self._returned)

    def run(self, batch: Any, index: int, low: Assignment | None = None) -> TwinRun:
        """Return the loss of a batch with its graph, and the outputs, where some products follow recipes.

        Raises:
          whatever the model and the loss raise.
        """
        self._reset()
        self.assign(low or {}, index)
        self._outputs = []
        with _drawing(self.seed + index):
            if self.loss is None:
                loss = None
                with torch.no_grad():
                    called_with(self.model, batch)
            else:
                loss = self.loss(self.model, batch)
        outputs, self._outputs = self._outputs, []
        return TwinRun(loss, outputs)

    def tried(self, batch: Any, index: int, low: Assignment | None = None) -> TwinRun:
        """A run whose loss has a gradient, in exact products but for those that follow recipes.

        Raises:
          TypeError, ValueError: the batch does not fit, or the loss is none.
        """
        try:
            outcome = self.run(batch, index, low)
        except Exception as reason:  # the model's own, of whatever kind
            wanted = "the model and loss(model, batch)" if self.loss is not None else CALLS_OF_MODEL
            raise ValueError(
                f"batches must fit {wanted}; batches[{index}] gives {type(reason).__name__}: {reason}"
            ) from reason
        if self.loss is None:
            outputs_checked(outcome.outputs, index)
        else:
            loss_checked(outcome.loss, index)
        return outcome

    def assign(self, low: Assignment, index: int) -> None:
        """Let products follow recipes from here on; those that are not named are torch's own."""
        for spot in self.spots.values():
            spot.low, spot.seen, spot.draw = {}, None, index * CALLS
        for (layer, product), recipe in low.items():
            self.spots[layer].low[product] = recipe

    def place_of(self, layer: str) -> int | None:
        """Where the gradient of a layer's weight is among `gradients`; None where it is made of other parameters."""
        weight = self.spots[layer].layer.weight
        return next((i for i, each in enumerate(self.weights) if each is weight), None)

    def gradients(self, loss: Tensor | None, index: int, *, keep: bool) -> list[Tensor | None]:
        """The gradient of every parameter; `keep` leaves the graph for another time."""
        assert loss is not None
        for weight in self.weights:
            weight.grad = None
        with _drawing(self.seed + index):
            loss.backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        found = [weight.grad for weight in self.weights]
        for weight in self.weights:
            weight.grad = None
        return found

    def _reset(self) -> None:
        """The state of the model when it was copied: its buffers, and the mode of each module."""
        copies: dict[int, Tensor] = {}
        for module, name, buffer in self._buffers:
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer.clone()
            module._buffers[name] = copies[id(buffer)]
        for module, training in self._modes:
            module.training = training

    def _returned(self, module: Any, inputs: Any, output: Any) -> None:
        if not in_backward():
            self._outputs += [x.detach().clone() for x in floats_of(output)]


def floats_of(output: Any) -> Iterator[Tensor]:
    """The tensors of floats in whatever a model returns.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.twin import floats_of
      >>> [x.shape[0] for x in floats_of({"logits": torch.ones(3), "more": (torch.ones(2), None, torch.arange(9))})]
      [3, 2]
    """
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from floats_of(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from floats_of(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from floats_of(getattr(output, field.name))


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Draw from a seed; the generators of the caller keep their states."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - models draw from it
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would move those of GPUs too
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Inside the block, compute gradients on one torch thread, and disable torch's fused paths, which bypass layers."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.inference_mode(False), torch.enable_grad(), one_thread(), eager_functions():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def loss_checked(loss: Any, index: int) -> Tensor:
    """Check and return the value of a loss.

    Raises:
      TypeError: it is no tensor.
      ValueError: it has several values, no gradient, or is no number.
    """
    where = f"loss(model, batch) must return one value with a gradient; of batches[{index}] got"
    if not isinstance(loss, Tensor):
        raise TypeError(f"{where} {shown(loss)}, which is no tensor. Leave out .item() and its kin.")
    if loss.numel() != 1:
        raise ValueError(f"{where} a tensor of shape {tuple(loss.shape)}. Take its mean.")
    if not loss.requires_grad:
        raise ValueError(
            f"{where} one without. Leave out torch.no_grad() and .detach(), and let a parameter require a gradient."
        )
    if not bool(torch.isfinite(loss.detach()).all()):
        raise ValueError(f"{where} {loss.item()}, in exact products already. Take batches that the model can do.")
    return loss


def outputs_checked(outputs: Sequence[Tensor], index: int) -> None:
    """Check that a model returned floats, all finite.

    Raises:
      ValueError: it returned none, or Inf or NaN.
    """
    if not any(x.numel() for x in outputs):
        raise ValueError(
            f"model must return tensors of floats, whose errors are judged without a loss; of batches[{index}] it "
            "returned none. Pass a loss, or a model that returns its scores."
        )
    if not all(bool(torch.isfinite(x).all()) for x in outputs):
        raise ValueError(
            f"model must return finite values; of batches[{index}] it returned Inf or NaN, in exact products already. "
            "Take batches that the model can do."
        )
