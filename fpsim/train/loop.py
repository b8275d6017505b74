"""Training: one visible loop, whose every matrix product has the bits of a recipe."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.errors import require_integer, require_kind, require_word
from fpsim.formats.named import FP32 as FLOAT32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.scaling import Scaling
from fpsim.torch.linear import QuantLinear, quantize_linears
from fpsim.torch.operators import Tensor, array_of, spec_text, tensor_of, torch
from fpsim.torch.plan import BACKENDS
from fpsim.torch.recipe import PRODUCTS, LinearRecipe
from fpsim.torch.rows import FP32
from fpsim.torch.trace import ProductCall, watching
from fpsim.train.controller import Levels
from fpsim.train.data import corpus, examples
from fpsim.train.loss_scale import LossScaler
from fpsim.train.model import Config, Core, Perceptron, RMSNorm, SwiGLU, Transformer, loss_of, quantizer, store
from fpsim.train.monitor import figures, first_overflow
from fpsim.train.monitor import rows as rows_of
from fpsim.train.optimizer import AdamW
from fpsim.train.parallel import Ranks, reduce
from fpsim.train.recipe import Recipe, Stored, linear_recipe

MODELS = ("transformer", "perceptron")
STORING = (SwiGLU, Core, RMSNorm)  # modules whose activations a recipe may store
RUNS = 0x9E3779B97F4A7C15  # spreads the seeds of runs over those of recipes
VALIDATION = 8  # batches


@dataclass(frozen=True)
class Settings:
    """What is trained, beside the recipe.

    Args:
      steps: of the optimizer.
      seed: of the weights, of the batches, and of what is drawn.
      model: "transformer" on text, or "perceptron" on vectors.
      text: a file of text for the transformer; None for Python's help topics.
      backend: what multiplies: "emulated" on the CPU, "float32" (torch in place of every unit), "gpu", "hardware".
      batch, context: sequences of a micro-batch (vectors, for the perceptron), and tokens of a sequence.
      accumulate: micro-batches of a step, of each process.
      measure: steps from one measurement of every product to the next; 0 for none.

    Raises:
      TypeError, ValueError: a field that is none of these.
    """

    steps: int = 250
    seed: int = 0
    model: str = "transformer"
    text: Any = None
    backend: str = "emulated"
    batch: int = 8
    context: int = 64
    accumulate: int = 1
    measure: int = 25

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "context", "accumulate"):
            require_integer(name, getattr(self, name), 1)
        for name in ("seed", "measure"):
            require_integer(name, getattr(self, name), 0)
        require_word("model", self.model, MODELS)
        require_word("backend", self.backend, BACKENDS)


class Trainer:
    """A model, its data and its optimizer between two steps.

    Args:
      recipe: formats and arithmetic.
      settings: everything else.
      ranks: the processes that train together; None for this one alone.

    Raises:
      ValueError: layers, tokens or a text that the recipe or the model cannot have.

    Example:
      >>> from fpsim.train import recipes
      >>> from fpsim.train.loop import Settings, Trainer
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
        self.model = _model(recipe, settings, self.data)
        refuse_names(recipe, self.model)
        self.layers = quantized_layers(self.model, recipe, settings)
        refuse_shapes(recipe, self.layers, settings)
        for row in recipe.stored:
            _store(self.model, row)
        self._shared: Any = self.ranks.data_parallel(
            self.model, recipe.reduction, count=self.ranks.world * settings.accumulate
        )
        self.weights: dict[str, Tensor] = dict(self.model.named_parameters())
        optimizer = dataclasses.replace(recipe.optimizer, seed=recipe.optimizer.seed + RUNS * settings.seed)
        self.optimizer = AdamW({name: weight.detach() for name, weight in self.weights.items()}, optimizer)
        self.scaler = LossScaler(recipe.loss_scaling, recipe.linear_of("", "dgrad", 0, 1).grad_fmt or FLOAT32)
        self.levels = None if recipe.controller is None else Levels(recipe.controller, list(self.layers))
        self.steps = 0
        self._followed: dict[str, list[LinearRecipe]] = {}
        self.rows: list[dict[str, Any]] = []  # of every step
        self.measured: list[dict[str, Any]] = []  # of every product, every few steps
        self.stopped = ""  # why training ended early

    def step(self) -> dict[str, Any]:
        """One step of the optimizer, and its row.

        Raises:
          RuntimeError: training has stopped.
        """
        if self.stopped:
            raise RuntimeError(f"training has stopped: {self.stopped}")
        self._follow()
        began = time.perf_counter()
        parts, losses = [], []
        with self._watching() as watched:
            for micro in range(self.settings.accumulate):
                losses.append(self._micro_batch(micro))
                if self.ranks.world == 1:
                    parts.append(self._gradients())
        gradients = reduce(parts, self.recipe.reduction) if parts else self._gradients()
        loss = self._mean(losses)
        if not math.isfinite(loss):
            self._stop(loss)
        overflowed = self.scaler.unscale(gradients)
        for gradient in gradients.values():
            gradient.mul_(1 / self.recipe.loss_factor)
        scale, skipped = self.scaler.scale, self.scaler.skipped or bool(self.stopped)
        row: dict[str, Any] = {"step": self.steps, "loss": loss, "scale": scale, "skipped": skipped}
        row["overflowed"] = overflowed
        row |= self._update(gradients, skipped)
        self.scaler.update()
        self._share_scales()
        watched(self, gradients)
        row["seconds"] = time.perf_counter() - began
        self.rows.append(row)
        self.steps += 1
        return row

    def _micro_batch(self, micro: int) -> float:
        """The loss of one micro-batch, whose gradients, of the scaled loss, are left with the weights."""
        settings, ranks = self.settings, self.ranks
        index = ranks.rank * settings.accumulate + micro  # micro-batches are dealt out rank by rank
        inputs, targets = self.data.batch(
            settings.seed, self.steps, index, batch=settings.batch, context=settings.context
        )
        for layer in self.layers.values():
            if layer.steps is not None:
                layer.steps.fill_(self.steps * settings.accumulate * ranks.world + index)
        self.model.train()
        alone = ranks.world == 1
        if alone or micro == 0:
            self.model.zero_grad(set_to_none=True)
        waits = not alone and micro < settings.accumulate - 1  # for the last one, with which all are sent
        with self._shared.no_sync() if waits else contextlib.nullcontext():
            loss = self._loss(self._shared, inputs, targets)
            (loss * (self.recipe.loss_factor * self.scaler.scale)).backward()
        return loss.item()

    def _loss(self, model: Any, inputs: Array, targets: Array) -> Any:
        return loss_of(model, torch.from_numpy(inputs), torch.from_numpy(targets), self.recipe.numerics)

    def _gradients(self) -> dict[str, Tensor]:
        return {name: weight.grad for name, weight in self.weights.items() if weight.grad is not None}

    def _mean(self, losses: list[float]) -> float:
        """The mean loss of the micro-batches of all processes."""
        all_losses = self.ranks.gathered(np.array(losses))
        return math.fsum(float(loss) for each in all_losses for loss in each) / (len(losses) * self.ranks.world)

    def _share_scales(self) -> None:
        """Give all processes the largest amax of each step, and so the same scales from the next step on."""
        if self.ranks.world == 1:
            return
        for layer in self.layers.values():
            if layer.scales is not None:
                state = array_of(layer.scales)
                state[:, 1:] = self.ranks.all_reduce_max({"amax": state[:, 1:]})["amax"]
                state[:, 0] = -self.ranks.all_reduce_max({"scale": -state[:, 0]})["scale"]

    def _update(self, gradients: dict[str, Tensor], skipped: bool) -> dict[str, Any]:
        """Change the weights, unless the step is left out."""
        if skipped:
            return dict.fromkeys(("lr", "gradient_norm", "clip_factor", "lost_updates", "update_ratio"), math.nan)
        error = weight_error(self.layers) if self.recipe.optimizer.lr_follows_error else None
        report = self.optimizer.step(gradients, steps_total=self.settings.steps, weight_error=error)
        return {
            "lr": report.lr, "gradient_norm": report.gradient_norm, "clip_factor": report.clip_factor,
            "lost_updates": report.lost_share, "update_ratio": report.update_ratio,
        }  # fmt: skip

    def _follow(self) -> None:
        """Give every layer the recipes of this step."""
        for name, layer in self.layers.items():
            wanted = []
            for product in PRODUCTS:
                own = self.recipe.linear_of(name, product, self.steps, self.settings.steps)
                linear = own if self.levels is None else self.levels.recipe(name, own)
                wanted.append(seeded(linear, self.settings.seed))
            if self._followed.get(name) != wanted:
                layer.follow(*wanted)
                self._followed[name] = wanted

    def _watching(self) -> Any:
        """What looks at the products of this step, if anything does."""
        measures = self.settings.measure and self.steps % self.settings.measure == 0
        return _Watch(bool(measures), self.levels is not None)

    def _stop(self, loss: float) -> None:
        """Say why the loss is no number, from another forward pass that is watched."""
        calls: list[ProductCall] = []
        settings = self.settings
        inputs, targets = self.data.batch(
            settings.seed, self.steps, self.ranks.rank * settings.accumulate, batch=settings.batch,
            context=settings.context,
        )  # fmt: skip
        with watching(calls.append), torch.no_grad():
            self.model.eval()
            self._loss(self.model, inputs, targets)
        where = first_overflow(calls) or "no product of a quantised layer has one, so it is a norm, softmax or the head"
        self.stopped = f"the loss of step {self.steps} is {loss}; first Inf or NaN: {where}."

    def validation_loss(self) -> float:
        """The mean loss of the validation batches, by the recipe's forward pass."""
        settings, batch = self.settings, self.settings.batch
        if settings.model == "perceptron":  # there are few digits
            batch = min(batch, len(self.data.held_out) // VALIDATION)
        self._follow()
        self.model.eval()
        losses = []
        with torch.no_grad():
            for inputs, targets in self.data.validation(VALIDATION, batch, settings.context):
                losses.append(
                    loss_of(
                        self.model, torch.from_numpy(inputs), torch.from_numpy(targets), self.recipe.numerics
                    ).item()
                )
        return math.fsum(losses) / len(losses)

    # ---- checkpoints

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that later steps depend on, and the rows so far: arrays, and facts that JSON holds."""
        arrays, optimizer = self.optimizer.state()
        found = {f"optimizer/{name}": array for name, array in arrays.items()}
        found |= {f"model/{name}": array_of(tensor).copy() for name, tensor in self.model.state_dict().items()}
        facts = {
            "steps": self.steps, "optimizer": optimizer, "scaler": self.scaler.state(), "rows": self.rows,
            "levels": None if self.levels is None else self.levels.state(), "measured": self.measured,
            "stopped": self.stopped,
        }  # fmt: skip
        return found, facts

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Go on where `state` was called; every later bit is as if nothing had happened in between."""
        self.steps = facts["steps"]
        if self.levels is not None:
            self.levels.load(facts["levels"])
        self._follow()  # which makes the buffers that the state has
        states = {name.removeprefix("model/"): array for name, array in arrays.items() if name.startswith("model/")}
        self.model.load_state_dict({name: tensor_of(array.copy()) for name, array in states.items()})
        own = {
            name.removeprefix("optimizer/"): array for name, array in arrays.items() if name.startswith("optimizer/")
        }
        self.optimizer.load(own, facts["optimizer"])
        self.scaler.load(facts["scaler"])
        self.rows, self.measured = list(facts["rows"]), list(facts["measured"])
        self.stopped = facts["stopped"]


class _Watch:
    """Looks at the products of a step, for measurements and for the controller."""

    def __init__(self, measures: bool, controls: bool) -> None:
        self._measures, self._controls = measures, controls
        self._rows: list[dict[str, Any]] = []
        self._figures: dict[str, Any] = {}
        self._context: Any = None
        self.step = 0

    def __enter__(self) -> Callable[[Trainer, dict[str, Tensor]], None]:
        if self._measures or self._controls:
            self._context = watching(self._see)
            self._context.__enter__()
        return self._finish

    def __exit__(self, *error: Any) -> None:
        if self._context is not None:
            self._context.__exit__(*error)

    def _see(self, call: ProductCall) -> None:
        if self._measures:
            self._rows += rows_of(call, 0)
        if self._controls and call.product == "wgrad":
            self._figures[call.layer] = figures(call.a)

    def _finish(self, trainer: Trainer, gradients: dict[str, Tensor]) -> None:
        for row in self._rows:
            trainer.measured.append({**row, "step": trainer.steps})
        if trainer.levels is None:
            return
        watch = trainer.levels.controller.watch
        if watch == "gradient_norm":
            seen = {
                name: float(torch.linalg.vector_norm(gradients[weight_name(name, trainer.weights)]))
                for name in trainer.layers
            }
        else:
            seen = {name: getattr(found, watch) for name, found in self._figures.items()}
        trainer.levels.see(trainer.steps, seen)


def weight_name(layer: str, weights: Mapping[str, Tensor]) -> str:
    """The name of a layer's weight among the parameters."""
    return next(name for name in (f"{layer}.weight", f"{layer}.linear.weight") if name in weights)


def weight_error(layers: Mapping[str, QuantLinear]) -> float:
    """The relative error of all quantised weights together: sqrt(sum (w - q)^2 / sum w^2)."""
    noise = signal = 0.0
    for layer in layers.values():
        spec, _ = layer.recipe.cast_of("weight", backward=False)
        source = layer.weight.detach()
        values = quantizer(spec)(source) if spec else source
        noise += float((source.double() - values.double()).square().sum())
        signal += float(source.double().square().sum())
    return math.sqrt(noise / signal) if signal else 0.0


# ---- making the model


def _model(recipe: Recipe, settings: Settings, data: Any) -> Any:
    if settings.model == "perceptron":
        return Perceptron(settings.seed, recipe.numerics)
    config = Config(len(data.vocabulary), settings.context, parametrisation=recipe.parametrisation)
    return Transformer(config, settings.seed, recipe.numerics)


def layers_of(model: Any) -> dict[str, Any]:
    """The linear layers of a model by the names that recipes have for them, which leave out what unit scaling adds."""
    return {
        name.removesuffix(".linear"): module
        for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)
    }  # fmt: skip


def quantized_layers(model: Any, recipe: Recipe, settings: Settings) -> dict[str, QuantLinear]:
    """Quantise the linear layers that ever follow another recipe than float32, by name."""
    names = {module: name for name, module in model.named_modules()}
    found = {}
    for layer, module in layers_of(model).items():
        own = [recipe.linear_of(layer, product, 0, 1) for product in PRODUCTS]
        own += [linear_recipe(row.linear) for row in recipe.overrides if fnmatchcase(layer, row.layers)]
        if recipe.controller is None and all(each == FP32 for each in own):
            continue
        quantize_linears(model, FP32, names[module], backend=settings.backend)
        found[layer] = module
    return found


def seeded(linear: LinearRecipe, seed: int) -> LinearRecipe:
    """A recipe that draws for a run of a seed; recipes that never draw stay as they are."""
    modes = {rounding_mode(linear.rounding), rounding_mode(linear.grad_rounding)}
    draws = Rounding.STOCHASTIC in modes or linear.hadamard
    return linear.replace(seed=(linear.seed + RUNS * seed) % 2**64) if draws and seed else linear


def _store(model: Any, row: Stored) -> None:
    """Keep what the modules of a pattern need for the backward pass in a format."""
    spec = spec_text(row.fmt, row.scaling, "nearest_even", None, "keep", 32)
    for name, module in model.named_modules():
        if isinstance(module, STORING) and fnmatchcase(name, row.modules):
            store(module, quantizer(spec))


# ---- what cannot be


def refuse_names(recipe: Recipe, model: Any) -> None:
    """A ValueError for a pattern that matches no layer or module."""
    layers = list(layers_of(model))
    modules = [name for name, module in model.named_modules() if isinstance(module, STORING)]
    patterns = [("keep", pattern, layers) for pattern in recipe.keep]
    patterns += [("overrides", row.layers, layers) for row in recipe.overrides]
    patterns += [("stored", row.modules, modules) for row in recipe.stored]
    if recipe.controller is not None:
        patterns.append(("controller", recipe.controller.layers, layers))
    for field, pattern, names in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"{field} of recipe {recipe.name!r} must name layers of the model; {pattern!r} matches none of "
                f"{', '.join(names) or 'none that store activations'}."
            )


def refuse_shapes(recipe: Recipe, layers: Mapping[str, QuantLinear], settings: Settings) -> None:
    """A ValueError where the terms of a product are no multiple of the blocks that share a scale."""
    tokens = settings.batch * (settings.context if settings.model == "transformer" else 1)
    for name, layer in layers.items():
        terms = {"fprop": layer.in_features, "dgrad": layer.out_features, "wgrad": tokens}
        for product, k in terms.items():
            for row in (recipe.linear_of(name, product, step, 20) for step in range(20)):
                block = _block(row, product)
                if k % block:
                    raise ValueError(
                        f"{product} of layer {name!r} sums over {k} {'tokens' if product == 'wgrad' else 'features'}, "
                        f"which must be a multiple of the {block} that share a scale or a transform in recipe "
                        f"{recipe.name!r}. Change batch and context, or take another scaling."
                    )


def _block(linear: LinearRecipe, product: str) -> int:
    """The terms of a product that share a scale or are mixed, 1 for none."""
    along_k = {
        "fprop": ((linear.input_scaling, 1), (linear.weight_scaling, 1)),
        "dgrad": ((linear.grad_scaling, 1), (_other(linear, "weight"), 0)),
        "wgrad": ((_other(linear, "grad"), 0), (_other(linear, "input"), 0)),
    }[product]
    blocks = [scaling.block[axis] for scaling, axis in along_k if scaling is not None]
    return math.lcm(*(block for block in blocks if block > 0), max(linear.hadamard if product == "wgrad" else 1, 1))


def _other(linear: LinearRecipe, operand: str) -> Scaling | None:
    """The scaling of the product that reads the other axis."""
    found: Any = getattr(linear, f"{operand}_scaling_backward")
    same: Scaling | None = getattr(linear, f"{operand}_scaling")
    if isinstance(found, str):
        return same
    assert found is None or isinstance(found, Scaling)
    return found
