"""Training: one visible loop, whose every matrix product has the bits of a recipe."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from fpsim.arrays import Array
from fpsim.errors import require_kind
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.training_recipe import Recipe
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.torch.delayed import with_largest_amax
from fpsim.torch.linear import QuantLinear
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.train.activations.offloading import apply_offload
from fpsim.train.activations.recomputation import apply_recompute
from fpsim.train.data import corpus, examples
from fpsim.train.hooks.levels import Levels
from fpsim.train.hooks.measurements import StepWatch
from fpsim.train.hooks.overflow import Overflows
from fpsim.train.hooks.ranks import Ranks
from fpsim.train.hooks.reduction import GradientSum, Reduction, reduce
from fpsim.train.layers import (
    RUNS,
    is_float32,
    is_governed,
    made_model,
    name_of,
    quantized_layers,
    refuse_names,
    refuse_shapes,
    refuse_slices,
    seeded,
    store_activations,
    weight_error,
    weight_name,
    with_chain,
)
from fpsim.train.loss_scale import LossScaler
from fpsim.train.model import loss_of
from fpsim.train.optimizer import AdamW
from fpsim.train.replays.digest import next_digest, state_arrays
from fpsim.train.settings import FRUITLESS, FRUITLESS_FIXED, VALIDATION_BATCHES, Settings

Method = TypeVar("Method", bound=Callable[..., Any])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Make torch use one thread inside a `with` block, since the bits of its sums depend on the number of threads.

    Emulated products, which have the same bits on any number, keep theirs.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fixed_bits(method: Method) -> Method:
    """Return a method of a trainer that runs torch on one thread and, where operations are specified, by IEEE 754.

    Then a processor that is set to flush subnormals or to round otherwise keeps no bit from being what it should be.
    """

    @functools.wraps(method)
    def run(self: Trainer, *arguments: Any) -> Any:
        with one_thread(), ieee_arithmetic() if self.settings.specified else contextlib.nullcontext():
            return method(self, *arguments)

    return run  # type: ignore[return-value]


class Trainer:
    """A model, its data and its optimizer, which trains step by step.

    Args:
      recipe: formats and arithmetic.
      settings: everything else.
      ranks: the processes that train together; None for this one alone.

    Raises:
      ValueError: layers, tokens or a text that the recipe or the model cannot have.

    Example:
      >>> from fpsim.train import recipes
      >>> from fpsim.train import Settings, Trainer
      >>> trainer = Trainer(recipes.DEEPSEEK_V3, Settings(model="perceptron", batch=128))
      >>> row = trainer.step()
      >>> sorted(row)[:4], trainer.steps
      (['clip_factor', 'gradient_norm', 'loss', 'lost_updates'], 1)
    """

    def __init__(self, recipe: Recipe, settings: Settings, ranks: Ranks | None = None) -> None:
        require_kind("recipe", recipe, Recipe, "an fp.train.Recipe, such as fp.train.recipes.DEEPSEEK_V3")
        self.recipe, self.settings = recipe, settings
        self.ranks = Ranks.single() if ranks is None else ranks
        self.data: Any = corpus(settings.text) if settings.model == "transformer" else examples(settings.seed)
        self.validation = _validation(self.data, settings)  # now, so that a text too short is refused now
        self.model = made_model(recipe, settings, self.data)
        refuse_names(recipe, self.model)
        self.layers = quantized_layers(self.model, recipe, settings)
        refuse_shapes(recipe, self.layers, settings)
        for row in recipe.stored:
            store_activations(self.model, row)
        refuse_slices(recipe, self.model, settings)
        apply_recompute(self.model, settings.recompute)
        self.traffic = apply_offload(self.model, settings.offload)
        self._reduction = Reduction(recipe.reduction, count=self.ranks.world * settings.micro_batches)
        self._shared: Any = self.model
        if recipe.gradients is None:  # torch adds in float32; `_batch` adds in other formats
            self._shared = self.ranks.data_parallel(self.model, recipe.reduction, count=self._reduction.count)
        self.weights: dict[str, Tensor] = dict(self.model.named_parameters())
        optimizer = dataclasses.replace(recipe.optimizer, seed=recipe.optimizer.seed + RUNS * settings.seed)
        detached = {name: weight.detach() for name, weight in self.weights.items()}
        self.optimizer = AdamW(detached, optimizer, settings.arithmetic)
        self._cast = {name for name in self.layers if not is_float32(recipe, name)}
        gradients: Any = recipe.linear_of("", "dgrad", 0, 1).grad_fmt
        self.scaler = LossScaler(recipe.loss_scaling, gradients if isinstance(gradients, Format) else FP32)
        governed = [name for name in self.layers if is_governed(recipe, name)]
        self.levels = None if recipe.controller is None else Levels(recipe.controller, governed)
        self.steps = 0
        self._followed: dict[str, list[LinearRecipe]] = {}
        self.rows: list[dict[str, Any]] = []  # of every step
        self.measured: list[dict[str, Any]] = []  # of every product, every few steps
        self.stopped = ""  # why training ended early

    @fixed_bits
    def step(self) -> dict[str, Any]:
        """Take one step of the optimizer, and return its row of the log.

        Raises:
          RuntimeError: training has stopped.
        """
        if self.stopped:
            raise RuntimeError(f"training has stopped: {self.stopped}")
        began = time.perf_counter()
        self._follow()
        scales = self._scales()  # as they are before the step, in case it has to be looked at again
        with self._watching() as watch:
            gradients, losses = self._batch(scales)
        loss = self._mean(losses)
        overflowed = self.scaler.unscale(gradients)
        for gradient in gradients.values():
            gradient.mul_(1 / self.recipe.loss_factor)
        self.stopped = self._diverged(loss, overflowed, gradients, scales)
        skipped = self.scaler.skipped or bool(self.stopped)
        row: dict[str, Any] = {"step": self.steps, "loss": loss, "scale": self.scaler.scale, "skipped": skipped}
        row["overflowed"] = overflowed
        self._look(watch, gradients)  # which clipping changes
        row |= self._update(gradients, skipped)
        self.scaler.update()
        self._share_scales()
        row["digest"] = self._digest(loss)
        row["seconds"] = time.perf_counter() - began
        self.rows.append(row)
        self.steps += 1
        return row

    def _digest(self, loss: float) -> str:
        """Return the digest of the run after this step."""
        rounded = self.recipe.optimizer.weights is not None  # else the optimizer keeps the model's weights themselves
        weights = {name: array_of(weight) for name, weight in self.weights.items()} if rounded else {}
        before = self.rows[-1]["digest"] if self.rows else ""
        return next_digest(before, self.steps, loss, state_arrays(self.optimizer.arrays(), weights))

    def _batch(self, scales: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[float]]:
        """Return a step's gradients over all micro-batches and processes, and this process's losses by micro-batch."""
        losses, parts = [], []
        total = None if self.recipe.gradients is None else GradientSum(self.recipe.gradients)
        for loss in self._micro_batches(self._shared, scales):
            losses.append(loss)
            if total is not None:
                total.add(self._gradients())
            elif self.ranks.world == 1:
                parts.append(self._gradients())
        if total is not None:
            return self.ranks.averaged(total.gradients, self._reduction), losses
        if self.ranks.world > 1 or (len(parts) == 1 and self.recipe.reduction is None):
            return self._gradients(), losses
        return reduce(parts, self.recipe.reduction), losses

    def _micro_batches(self, model: Any, scales: Mapping[str, Tensor]) -> Iterator[float]:
        """Yield the loss of each micro-batch of a step.

        All of them begin with the same delayed scales, and leave those that follow from the largest amax.
        """
        after: list[dict[str, Tensor]] = []
        for micro in range(self.settings.micro_batches):
            for name, before in scales.items():
                self.layers[name].scales = before.clone()
            yield self._micro_batch(model, micro)
            after.append(self._scales())
        for name in scales:
            self.layers[name].scales = tensor_of(with_largest_amax([array_of(kept[name]) for kept in after]))

    def _micro_batch(self, model: Any, micro: int) -> float:
        """Return the loss of one micro-batch, after adding the gradients of the scaled loss to the weights'."""
        settings, ranks = self.settings, self.ranks
        index = ranks.rank * settings.micro_batches + micro  # micro-batches are dealt out rank by rank
        inputs, targets = self.data.batch(
            settings.seed, self.steps, index, batch=settings.batch, context=settings.context
        )
        for layer in self.layers.values():
            if layer.steps is not None:
                layer.steps.fill_(self.steps * settings.micro_batches * ranks.world + index)
        self.model.train()
        together = model is not self.model  # with other processes
        if not together or micro == 0:
            self.model.zero_grad(set_to_none=True)
        waits = together and micro < settings.micro_batches - 1  # for the last one, with which all are sent
        with model.no_sync() if waits else contextlib.nullcontext():
            loss = self._loss(model, inputs, targets)
            (loss * (self.recipe.loss_factor * self.scaler.scale)).backward()
        return float(loss.item())

    def _loss(self, model: Any, inputs: Array, targets: Array) -> Any:
        """Return the loss of a batch."""
        return loss_of(model, torch.from_numpy(inputs), torch.from_numpy(targets), self.model.operations)

    def _gradients(self) -> dict[str, Tensor]:
        """Return the current gradients of the weights, by name, without weights that have none."""
        return {name: weight.grad for name, weight in self.weights.items() if weight.grad is not None}

    def _mean(self, losses: list[float]) -> float:
        """Return the mean of the micro-batches' losses over all processes."""
        all_losses = self.ranks.gathered(np.array(losses))
        return math.fsum(float(loss) for of_rank in all_losses for loss in of_rank) / (len(losses) * self.ranks.world)

    def _share_scales(self) -> None:
        """Set all processes' delayed scales from the largest amax of any, so that their next steps use equal scales."""
        if self.ranks.world == 1:
            return
        for layer in self.layers.values():
            if layer.scales is not None:
                layer.scales = tensor_of(with_largest_amax(self.ranks.gathered(array_of(layer.scales))))

    def _update(self, gradients: dict[str, Tensor], skipped: bool) -> dict[str, Any]:
        """Update the weights, unless the step is skipped, and return the optimizer's columns of the step's row."""
        if skipped:
            return dict.fromkeys(("lr", "gradient_norm", "clip_factor", "lost_updates", "update_ratio"), math.nan)
        error = (
            weight_error({name: self.layers[name] for name in self._cast})
            if self.recipe.optimizer.lr_follows_error
            else None
        )
        report = self.optimizer.step(gradients, steps_total=self.settings.steps, weight_error=error)
        return {
            "lr": report.lr, "gradient_norm": report.gradient_norm, "clip_factor": report.clip_factor,
            "lost_updates": report.lost_share, "update_ratio": report.update_ratio,
        }  # fmt: skip

    def _follow(self) -> None:
        """Make every layer follow the recipes of the current step; after the last step, those of the last."""
        step = min(self.steps, self.settings.steps - 1)
        for name, layer in self.layers.items():
            wanted = [seeded(self._linear(name, product, step), self.settings.seed) for product in PRODUCTS]
            if self._followed.get(name) != wanted:
                layer.follow(*wanted)
                self._followed[name] = wanted

    def _linear(self, layer: str, product: str, step: int, down: int = 0) -> LinearRecipe:
        """Return the recipe that a layer's product follows at a step, at the layer's level or `down` levels below."""
        own_recipe = self.recipe.linear_of(layer, product, step, self.settings.steps)
        linear = own_recipe if self.levels is None else self.levels.recipe(layer, own_recipe, down)
        if not self.settings.specified:
            return linear
        return with_chain(linear, self.recipe.numerics.products, self.settings.backend == "float32")

    # ---- looking at a step

    def _watching(self) -> StepWatch:
        """Return a watcher of this step's products; it records nothing if nothing is to be measured."""
        measures = bool(self.settings.measure) and self.steps % self.settings.measure == 0
        if self.levels is None or self.levels.controller.watch == "gradient_norm":
            return StepWatch(self.steps, measures)
        below = {
            name: seeded(self._linear(name, "wgrad", self.steps, down=1), self.settings.seed)
            for name, level in self.levels.levels.items() if level
        }  # fmt: skip
        return StepWatch(self.steps, measures, self.levels.controller.watch, list(self.levels.levels), below)

    def _look(self, watch: StepWatch, gradients: Mapping[str, Tensor]) -> None:
        """Keep the step's measurements, and pass the watched values to the controller."""
        self.measured += [row for row in watch.rows if row["layer"] in self._cast]
        if self.levels is None:
            return
        if self.levels.controller.watch == "gradient_norm":
            weights = {name: gradients[weight_name(name, self.weights)] for name in self.levels.levels}
            norms = {name: self.optimizer.norm([gradient]) for name, gradient in weights.items()}
            self.levels.see(self.steps, norms)
            return
        names = list(self.levels.levels)
        mine = np.array([[figures.get(name, math.nan) for name in names] for figures in (watch.figures, watch.below)])
        high, low = self.ranks.all_reduce_max({"figures": mine})["figures"].tolist()  # all move together
        self.levels.see(self.steps, dict(zip(names, high, strict=True)), dict(zip(names, low, strict=True)))

    def _scales(self) -> dict[str, Tensor]:
        """Return copies of the delayed scales of all layers."""
        return {name: layer.scales.clone() for name, layer in self.layers.items() if layer.scales is not None}

    def _diverged(
        self, loss: float, overflowed: bool, gradients: Mapping[str, Tensor], scales: Mapping[str, Tensor]
    ) -> str:
        """Return the reason why training must stop before this step changes the weights; "" if it continues.

        overflowed: a gradient of the step is Inf or NaN.
        """
        if not math.isfinite(loss):
            reason = f"the loss of step {self.steps} is {loss}"
        elif (overflowed or self.recipe.loss_factor < 1) and not self._skips() and not _all_finite(gradients):
            reason = f"gradients of step {self.steps} are Inf or NaN, and would have been applied"
        elif self._skips() and (lost := self._lost_steps()) >= self._patience():
            reason = (
                f"steps {self.steps - lost + 1} to {self.steps} all overflowed and were left out, this one with a loss "
                f"scale of {self.scaler.scale:g}"
            )
        else:
            return ""
        return f"{reason}; first of all: {self._first_overflow(scales)}."

    def _skips(self) -> bool:
        """Return whether this step is skipped under loss scaling: any policy but a fixed scale of 1."""
        policy = self.scaler.policy
        return self.scaler.skipped and (policy.rule != "fixed" or policy.scale != 1)

    def _lost_steps(self) -> int:
        """Return the number of consecutive skipped steps, this one included."""
        lost = 1
        for row in reversed(self.scaler.trace):
            if not row.skipped:
                break
            lost += 1
        return lost

    def _patience(self) -> int:
        """Return the number of consecutive skipped steps after which training stops."""
        return FRUITLESS_FIXED if self.scaler.policy.rule == "fixed" else FRUITLESS

    def _first_overflow(self, scales: Mapping[str, Tensor]) -> str:
        """Run the step once more, and return the name of the first product or module whose result holds Inf or NaN."""
        with Overflows({name_of(name): module for name, module in self.model.named_modules()}) as overflows:
            for _ in self._micro_batches(self.model, scales):
                pass
        return overflows.first or "the loss itself, or what another process computed"

    @fixed_bits
    def validation_loss(self) -> float:
        """Return the mean loss over the validation batches, computed in the recipe's formats."""
        self._follow()
        self.model.eval()
        with torch.no_grad():
            losses = [self._loss(self.model, inputs, targets).item() for inputs, targets in self.validation]
        return math.fsum(losses) / len(losses)

    # ---- checkpoints

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return everything that later steps depend on, and the rows so far: arrays, and fields for JSON."""
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
        """Continue from a state that `state` returned, bit for bit as an uninterrupted run would."""
        self.steps = facts["steps"]
        if self.levels is not None:
            self.levels.load(facts["levels"])
        self._follow()
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


def _validation(data: Any, settings: Settings) -> Any:
    """Return the validation batches, which are smaller than usual if there are few examples."""
    if settings.model == "transformer":
        return data.validation(VALIDATION_BATCHES, settings.batch, settings.context)
    return data.validation(VALIDATION_BATCHES, min(settings.batch, len(data.held_out) // VALIDATION_BATCHES))


def _all_finite(gradients: Mapping[str, Tensor]) -> bool:
    """Return whether all elements of all gradients are finite."""
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())
