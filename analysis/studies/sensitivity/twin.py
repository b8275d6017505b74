"""A copy of a model that runs on a batch any number of times, from the same state and with the same random draws."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from fpsim.analysis.models.compiled import run_eagerly, stance
from fpsim.analysis.models.draws import restored_generators
from fpsim.analysis.models.floats import floats_of
from fpsim.analysis.models.losses import backward_refused, called_with
from fpsim.analysis.models.watching.hooks import in_backward
from fpsim.analysis.studies.sensitivity.spot import CALLS, Spot
from fpsim.errors import shown
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.torch.operators import one_thread

Tensor = torch.Tensor
Assignment = Mapping[tuple[str, str], LinearRecipe]
CALLS_OF_MODEL = "the model: model(*batch) of a tuple or list, model(**batch) of a mapping, model(batch) of others"


class TwinRun(NamedTuple):
    """The results of one run of a copy of a model.

    Attributes:
      loss: the loss with its graph; None if no loss was given.
      outputs: copies of all float tensors that the model returned, in the order of its calls.
    """

    loss: Tensor | None
    outputs: list[Tensor]


class Twin:
    """A copy of a model, each of whose products (in linear layers and convolutions) is torch's or follows a recipe.

    Args:
      model: the torch.nn.Module, which is not changed.
      layers: names of the layers whose products can follow recipes.
      loss: called as loss(model, batch); None for outputs alone, without gradients.
      seed: seed of the random draws of the first batch.
      backend: the backend that multiplies, as in `fp.torch.QuantLinear`.
    Raises:
      ValueError: the model cannot be copied.
    """

    def __init__(
        self, model: Any, layers: Sequence[str], loss: Callable[..., Any] | None, seed: int, backend: str
    ) -> None:  # fmt: skip
        try:
            with torch.inference_mode(False):  # copies made in it would have no gradients
                self.model = copy.deepcopy(model)
        except Exception as reason:  # modules may raise anything
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
        self.model.register_forward_hook(self._keep_outputs)

    def run(self, batch: Any, index: int, low: Assignment | None = None) -> TwinRun:
        """Run the copy on a batch, some products by recipes; return the loss with torch's graph, and the outputs.

        `batch`: the second argument of the loss, or, without a loss, the model's arguments. `index`: number of the
        batch, from which random draws are seeded. `low`: (layer, product) -> recipe; other products are torch's.
        Exceptions of the model and the loss are passed on.
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
        """Run a batch as `run` does, and return the results if the loss (without a loss, the outputs) is valid.

        `index`: number of the batch, which seeds random draws. `low`: (layer, product) -> recipe; None if all products
        are torch's. Raise a TypeError or ValueError if the batch does not fit the model, the loss is not one finite
        value with a gradient, or the outputs are not finite floats.
        """
        try:
            outcome = self.run(batch, index, low)
        except Exception as reason:  # models may raise anything
            wanted = "the model and loss(model, batch)" if self.loss is not None else CALLS_OF_MODEL
            raise ValueError(
                f"batches must fit {wanted}; batches[{index}] raises {type(reason).__name__}: {reason}"
            ) from reason
        if self.loss is None:
            outputs_checked(outcome.outputs, index)
        else:
            loss_checked(outcome.loss, index)
        return outcome

    def assign(self, low: Assignment, index: int) -> None:
        """Set the recipes of some products; all other products become torch's own.

        `low`: (layer, product) -> recipe. `index`: number of the batch, from which stochastic rounding is seeded.
        """
        for spot in self.spots.values():
            spot.low, spot.seen, spot.draw = {}, None, index * CALLS
        for (layer, product), recipe in low.items():
            self.spots[layer].low[product] = recipe

    def place_of(self, layer: str) -> int | None:
        """Return the index of a layer's weight in the list that `gradients` returns.

        Return None if the weight is not a trainable parameter, for example since it is computed from others.
        """
        weight = self.spots[layer].layer.weight
        return next((i for i, parameter in enumerate(self.weights) if parameter is weight), None)

    def gradients(self, loss: Tensor | None, index: int, *, keep: bool) -> list[Tensor | None]:
        """Return the gradient of every trainable parameter, in the order of the model; None for an unused one.

        Sparse gradients, such as those of torch.nn.Embedding(sparse=True), are returned as dense tensors, and complex
        ones as real tensors with one more axis. Raise a ValueError if the backward pass raises a RuntimeError.

        `loss`: the loss with its graph. `index`: number of the batch, which seeds random draws. `keep`: whether the
        graph stays usable.
        """
        assert loss is not None
        for weight in self.weights:
            weight.grad = None
        with _drawing(self.seed + index), backward_refused(f"batches[{index}]"):
            loss.backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        sums = [weight.grad for weight in self.weights]
        gradients = [None if x is None else _real(x if x.layout == torch.strided else x.to_dense()) for x in sums]
        for weight in self.weights:
            weight.grad = None
        return gradients

    def _reset(self) -> None:
        """Restore the buffers and the modes (train or eval) that all modules of the copy had when it was made."""
        copies: dict[int, Tensor] = {}
        for module, name, buffer in self._buffers:
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer.clone()
            module._buffers[name] = copies[id(buffer)]
        for module, training in self._modes:
            module.training = training

    def _keep_outputs(self, module: Any, inputs: Any, output: Any) -> None:
        """Store copies of the float tensors that the model returned; torch calls this hook after each forward pass.

        `module`, `inputs`, `output`: the module, its arguments and its result. Forward passes during a backward pass,
        such as those of activation checkpoints, are ignored.
        """
        if not in_backward():
            self._outputs += [x.detach().clone() for x in floats_of(output)]


def _real(x: Tensor) -> Tensor:
    """Return a tensor of real numbers unchanged, and one of complex numbers with their parts along a last axis."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Seed the random generators of Python, NumPy and torch for a `with` block, and restore their states afterwards."""
    with restored_generators():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - models draw from it
        torch.default_generator.manual_seed(seed % 2**64)  # torch.manual_seed would move those of GPUs too
        yield


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Enable gradients in a `with` block, on one torch thread, without fused kernels, which would skip layers."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.inference_mode(False), torch.enable_grad(), one_thread(), stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def loss_checked(loss: Any, index: int) -> Tensor:
    """Return a loss unchanged, if it is a tensor of one finite value with a gradient.

    `index`: number of the batch, for messages.

    Raises:
      TypeError: the loss is not a tensor.
      ValueError: the loss has several values, no gradient, or is Inf or NaN.
    """
    where = f"loss(model, batch) must return one value with a gradient; for batches[{index}] got"
    if not isinstance(loss, Tensor):
        raise TypeError(f"{where} {shown(loss)}, which is not a tensor. Leave out .item() and the like.")
    if loss.numel() != 1:
        raise ValueError(f"{where} a tensor of shape {tuple(loss.shape)}. Return its mean.")
    if not loss.requires_grad:
        raise ValueError(
            f"{where} one without a gradient. Leave out torch.no_grad() and .detach(), and let a parameter require one."
        )
    if not bool(torch.isfinite(loss.detach()).all()):
        raise ValueError(f"{where} {loss.item()} even with exact products. Use batches for which the loss is finite.")
    return loss


def outputs_checked(outputs: Sequence[Tensor], index: int) -> None:
    """Check that the float tensors `outputs`, which a model returned, contain values, all of them finite.

    `index`: number of the batch, for messages.

    Raises:
      ValueError: the model returned no floats, or an Inf or NaN.
    """
    if not any(x.numel() for x in outputs):
        raise ValueError(
            f"model must return tensors of floats, whose errors are measured without a loss; for batches[{index}] it "
            "returned none. Pass a loss, or a model that returns its scores."
        )
    if not all(bool(torch.isfinite(x).all()) for x in outputs):
        raise ValueError(
            f"model must return finite values; for batches[{index}] it returned Inf or NaN even with exact products. "
            "Use batches for which they are finite."
        )
