"""Training: one visible loop, whose every matrix product has the bits of a recipe.

`Trainer.step` is the loop's body. The docstring of `fpsim.train` lists all other files, in the order to read them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fpsim.arrays import Array
from fpsim.errors import require_kind
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.recipes.hardware import recipe_on_chip
from fpsim.recipes.this_cpu import THIS_CPU
from fpsim.recipes.training_recipe import Recipe
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.torch.linear import QuantLinear
from fpsim.torch.operators import Tensor, array_of, one_thread, tensor_of, torch
from fpsim.train.activations import apply_offload, apply_recompute, store_activations
from fpsim.train.data import corpus, examples
from fpsim.train.layers import (
    RUNS,
    DelayedScales,
    FollowedRecipes,
    is_float32,
    is_governed,
    name_of,
    quantized_layers,
    refuse_names,
    refuse_shapes,
    refuse_slices,
    weight_error,
    weight_name,
)
from fpsim.train.loss_scale import LossScaler, reason_to_stop
from fpsim.train.model import loss_of, made_model
from fpsim.train.monitors import Levels, Overflows, StepWatch
from fpsim.train.optimizer import AdamW
from fpsim.train.ranks import Ranks, Reduction, StepGradients
from fpsim.train.record import next_digest, state_arrays
from fpsim.train.settings import VALIDATION_BATCHES, Settings, refuse_beyond_memory
from fpsim.train.updates import StepReport

Method = TypeVar("Method", bound=Callable[..., Any])


def fixed_bits(method: Method) -> Method:
    """Wrap a trainer's method to run torch on one thread, and with the processor in IEEE 754 mode where bits are fixed.

    Bits are fixed if the settings' `arithmetic` is "specified": the processor then rounds to nearest even and keeps
    subnormals. So the bits are the same in a process that flushes subnormals or rounds in another mode. With "torch"
    the mode of the processor is not changed.
    """

    @functools.wraps(method)
    def run(self: Any, *arguments: Any) -> Any:
        with one_thread(), ieee_arithmetic() if self.settings.specified else contextlib.nullcontext():
            return method(self, *arguments)

    return run  # type: ignore[return-value]


class Trainer:
    """A model, its data and its optimizer, which trains step by step.

    Args:
      recipe: formats and arithmetic of the run. On the backend "cpu", instructions of this processor replace the matrix
        units of its linear layers.
      settings: all other settings of the run.
      ranks: the processes that train together; None for this process alone.

    Attributes:
      model, optimizer, scaler, data: the torch module, its AdamW, its LossScaler, and the training data.
      weights, layers: {name: parameter} of the model, and its quantised layers by the names that recipes use.
      steps: the number of steps taken so far.
      rows, measured: the log, as in `Run.rows` and `Run.measured`.
      stopped: the reason why training ended early; "" if it did not.

    Raises:
      ValueError: the recipe names layers that the model lacks, the K of a product is not a multiple of the recipe's
        blocks, the text is too short, or the model and a micro-batch do not fit into this machine's memory.

    Example:
      >>> from fpsim.train import recipes
      >>> from fpsim.train import Settings, Trainer
      >>> trainer = Trainer(recipes.DEEPSEEK_V3, Settings(model="perceptron", batch=128))
      >>> row = trainer.step()
      >>> row["step"], row["loss"] > 1, row["skipped"], trainer.steps
      (0, True, False, 1)
    """

    def __init__(self, recipe: Recipe, settings: Settings, ranks: Ranks | None = None) -> None:
        require_kind("recipe", recipe, Recipe, "an fp.train.Recipe, such as fp.train.recipes.DEEPSEEK_V3")
        require_kind("settings", settings, Settings, "an fp.train.Settings")
        require_kind("ranks", ranks, (Ranks, type(None)), "an fpsim.train.Ranks or None")
        refuse_beyond_memory(settings)
        if settings.backend == "cpu":
            recipe, _ = recipe_on_chip(recipe, THIS_CPU)
        self.recipe, self.settings = recipe, settings
        self.ranks = Ranks.single() if ranks is None else ranks
        self.data: Any = corpus(settings.text) if settings.model == "transformer" else examples(settings.seed)
        size = settings.batch
        if settings.model == "perceptron":
            size = min(size, len(self.data.held_out) // VALIDATION_BATCHES)
        # refuses a text that is too short before training
        self.validation = self.data.validation(VALIDATION_BATCHES, size, settings.context)

        self.model = made_model(recipe, settings, self.data)
        refuse_names(recipe, self.model)
        self.layers = quantized_layers(self.model, recipe, settings)
        refuse_shapes(recipe, self.layers, settings)
        for row in recipe.stored:
            store_activations(self.model, row)
        refuse_slices(recipe, self.model, settings)
        apply_recompute(self.model, settings.recompute)
        self.traffic = apply_offload(self.model, settings.offload)

        self.weights: dict[str, Tensor] = dict(self.model.named_parameters())
        optimizer = dataclasses.replace(recipe.optimizer, seed=recipe.optimizer.seed + RUNS * settings.seed)
        detached = {name: weight.detach() for name, weight in self.weights.items()}
        self.optimizer = AdamW(detached, optimizer, settings.arithmetic)
        gradients: Any = recipe.linear_of("", "dgrad", 0, 1).grad_fmt
        self.scaler = LossScaler(recipe.loss_scaling, gradients if isinstance(gradients, Format) else FP32)
        self.reduction = Reduction(recipe.reduction, count=self.ranks.world * settings.micro_batches)
        governed = [name for name in self.layers if is_governed(recipe, name)]
        self.levels = None if recipe.controller is None else Levels(recipe.controller, governed)
        self._recipes = FollowedRecipes(recipe, settings, self.layers, self.levels)
        self._cast = {name for name in self.layers if not is_float32(recipe, name)}

        self.steps = 0
        self.rows: list[dict[str, Any]] = []  # the log: a row for every step
        self.measured: list[dict[str, Any]] = []  # a row for every operand of every product, every few steps
        self.stopped = ""  # why training ended early

    @fixed_bits
    def step(self) -> dict[str, Any]:
        """Take one step of the optimizer, and return its row of the log, a dict with the keys of `Run.rows`.

        A step whose gradients overflowed may be skipped. If training must stop, the weights stay unchanged and
        `stopped` says why.

        Raises:
          RuntimeError: training has stopped in an earlier step, or an exception ended that step before its end.
        """
        if self.stopped:
            raise RuntimeError(f"training has stopped: {self.stopped}")
        began, stopped = time.perf_counter(), ""
        self.stopped = f"step {self.steps} was not finished: load the state from before it"
        self.follow()
        scales = DelayedScales(self.layers)
        parts = StepGradients(self.recipe.gradients, self.reduction, self.ranks)
        losses = []

        with self._watch() as watch:
            for micro in scales.micro_batches(self.settings.micro_batches):
                loss = self.forward(micro)
                parts.add(self.backward(loss))
                losses.append(loss.item())
        gradients = parts.reduce()  # mean over micro-batches, then over processes
        mean_loss = self.ranks.mean(losses)
        overflowed = self.unscale(gradients)

        suspect = overflowed or self.recipe.loss_factor < 1
        reason = reason_to_stop(self.steps, mean_loss, self.scaler, gradients, suspect)
        if reason:
            stopped = f"{reason}; first of all: {self._first_overflow(scales)}."
        self._look(watch, gradients)  # before they are clipped
        report = None  # stays None if the step is skipped
        if not (stopped or self.scaler.skipped):
            lr = self.learning_rate()
            clipping = self.optimizer.clip(gradients)
            report = self.optimizer.update(gradients, clipping, lr)

        row = self._log(mean_loss, overflowed, report)
        self.scaler.update()  # sets the next step's loss scale
        scales.share(self.ranks)
        self.rows.append(row | {"seconds": time.perf_counter() - began})
        self.steps += 1
        self.stopped = stopped
        return self.rows[-1]

    # ---- the parts of a step

    def follow(self) -> None:
        """Make every layer follow its recipes at the current step; after the run's end, those of the last step."""
        self._recipes.follow(self.steps)

    def forward(self, micro: int) -> Tensor:
        """Return the loss of a micro-batch of the current step, in nats, as a tensor of shape ().

        micro: the number of the micro-batch in this process, from 0.
        """
        settings = self.settings
        index = self.ranks.rank * settings.micro_batches + micro  # rank 0 has the first ones, rank 1 the next
        inputs, targets = self.data.batch(
            settings.seed, self.steps, index, batch=settings.batch, context=settings.context
        )
        for layer in self.layers.values():
            if layer.steps is not None:  # so that random draws depend on the micro-batch, not on the process
                layer.steps.fill_((self.steps * self.ranks.world * settings.micro_batches) + index)
        self.model.train()
        return self.loss(inputs, targets)

    def loss(self, inputs: Array, targets: Array) -> Tensor:
        """Return the mean loss of a batch in nats, as a tensor of shape (); arguments as `Data.batch` returns them."""
        return loss_of(self.model, torch.from_numpy(inputs), torch.from_numpy(targets), self.model.operations)

    def backward(self, loss: Tensor) -> dict[str, Tensor]:
        """Return {name: gradient} for all weights that have one; `unscale` must divide them by the loss scale.

        They are the gradients of loss * loss scale * the recipe's loss factor.
        """
        self.model.zero_grad(set_to_none=True)
        scaled: Any = loss * (self.recipe.loss_factor * self.scaler.scale)
        scaled.backward()
        return {name: weight.grad for name, weight in self.weights.items() if weight.grad is not None}

    def unscale(self, gradients: Mapping[str, Tensor]) -> bool:
        """Divide gradients in place by the loss scale and the recipe's loss factor; return whether any was Inf or NaN.

        gradients: {name: float32 tensor}.
        """
        overflowed = self.scaler.unscale(gradients)
        for gradient in gradients.values():
            gradient.mul_(1 / self.recipe.loss_factor)
        return overflowed

    def learning_rate(self) -> float:
        """Return the learning rate of the current step."""
        follows = self.recipe.optimizer.lr_follows_error
        error = weight_error({name: self.layers[name] for name in self._cast}) if follows else None
        return self.optimizer.learning_rate(self.settings.steps, error)

    # ---- looking at a step

    def _watch(self) -> StepWatch:
        """Return a `StepWatch`, the context that measures how casts round the operands of the current step's products.

        It measures in every `settings.measure`-th step, and in each step if the precision controller watches operands.
        """
        measures = bool(self.settings.measure) and self.steps % self.settings.measure == 0
        if self.levels is None or not self.levels.watched:
            return StepWatch(self.steps, measures)
        below = self._recipes.below(self.steps)
        return StepWatch(self.steps, measures, self.levels.watched, list(self.levels.levels), below)

    def _look(self, watch: StepWatch, gradients: Mapping[str, Tensor]) -> None:
        """Store the step's rounding metrics in `measured`, and let the precision controller change the layers' levels.

        watch: the `StepWatch` of the step, which holds the metrics. gradients: {name: unscaled gradient}, for a
        controller that follows gradient norms.
        """
        self.measured += [row for row in watch.rows if row["layer"] in self._cast]
        if self.levels is None:
            return
        if self.levels.watched:
            self.levels.see(self.steps, *watch.largest(list(self.levels.levels), self.ranks))
            return
        weights = {name: gradients[weight_name(name, self.weights)] for name in self.levels.levels}
        self.levels.see(self.steps, {name: self.optimizer.norm([gradient]) for name, gradient in weights.items()})

    def _first_overflow(self, scales: DelayedScales) -> str:
        """Run the step once more; return a text that names the first operand, result or gradient with Inf or NaN.

        scales: the delayed scales of the layers, which are reset to their values before the step.
        """
        with Overflows({name_of(name): module for name, module in self.model.named_modules()}) as overflows:
            for micro in scales.micro_batches(self.settings.micro_batches):
                self.backward(self.forward(micro))
        return overflows.first or "the loss itself, or what another process computed"

    def _log(self, loss: float, overflowed: bool, report: StepReport | None) -> dict[str, Any]:
        """Return the row of the log for the current step: a dict with the keys of `Run.rows` except "seconds".

        loss: the mean loss in nats. overflowed: whether the gradients held Inf or NaN. report: metrics of the
        optimizer's step; None if it was skipped.
        """
        row: dict[str, Any] = {"step": self.steps, "loss": loss, "scale": self.scaler.scale}
        row |= {"skipped": report is None, "overflowed": overflowed}
        if report is None:
            row |= dict.fromkeys(("lr", "gradient_norm", "clip_factor", "lost_updates", "update_ratio"), math.nan)
        else:
            row |= {"lr": report.lr, "gradient_norm": report.gradient_norm, "clip_factor": report.clip_factor}
            row |= {"lost_updates": report.lost_share, "update_ratio": report.update_ratio}
        rounded = self.recipe.optimizer.weights is not None  # otherwise the optimizer's arrays are the model's weights
        weights = {name: array_of(weight) for name, weight in self.weights.items()} if rounded else {}
        before = self.rows[-1]["digest"] if self.rows else ""
        return row | {"digest": next_digest(before, self.steps, loss, state_arrays(self.optimizer.arrays(), weights))}

    @fixed_bits
    def validation_loss(self) -> float:
        """Return the mean loss over the validation batches in nats, computed in the recipe's formats."""
        self.follow()
        self.model.eval()
        with torch.no_grad():
            losses = [self.loss(inputs, targets).item() for inputs, targets in self.validation]
        return math.fsum(losses) / len(losses)

    # ---- checkpoints

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return (arrays by name, fields for JSON): everything that later steps depend on, and the log so far."""
        arrays, optimizer = self.optimizer.state()
        model_arrays = {f"optimizer/{name}": array for name, array in arrays.items()}
        model_arrays |= {f"model/{name}": array_of(tensor).copy() for name, tensor in self.model.state_dict().items()}
        fields = {
            "steps": self.steps, "optimizer": optimizer, "scaler": self.scaler.state(), "rows": list(self.rows),
            "levels": None if self.levels is None else self.levels.state(), "measured": list(self.measured),
            "stopped": self.stopped,
        }  # fmt: skip
        return model_arrays, fields

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Continue, bit for bit, from the arrays and fields that `state` returned.

        The trainer that returned them must have had the same recipe and settings.
        """
        self.steps = facts["steps"]
        if self.levels is not None:
            self.levels.load(facts["levels"])
        self.follow()
        states = {
            name.removeprefix("model/"): tensor_of(array.copy())
            for name, array in arrays.items() if name.startswith("model/")
        }  # fmt: skip
        for name, module in self.model.named_modules():
            for buffer in ("steps", "scales") if isinstance(module, QuantLinear) else ():
                if f"{name}.{buffer}" in states:  # of a recipe that the layer followed in an earlier step, maybe
                    setattr(module, buffer, states[f"{name}.{buffer}"].clone())
        self.model.load_state_dict(states)
        of_optimizer = {
            name.removeprefix("optimizer/"): array for name, array in arrays.items() if name.startswith("optimizer/")
        }
        self.optimizer.load(of_optimizer, facts["optimizer"])
        self.scaler.load(facts["scaler"])
        self.rows, self.measured = list(facts["rows"]), list(facts["measured"])
        self.stopped = facts["stopped"]
