"""Watchers of a training step: operands' rounding errors, layers' precision levels, and the first Inf or NaN."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import TableFormat
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.recipes.parts import Controller
from fpsim.scaling.clipping import bounds
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.tiling import spread, tile_sizes
from fpsim.torch.operators import array_of, tensor_of, torch
from fpsim.torch.plan import plan_of
from fpsim.torch.products import CastOperand, operand
from fpsim.torch.trace import ProductCall, watching
from fpsim.train.ranks import Ranks

DECAY = 0.9  # weight of the old value in the running average of gradient norms
OPERANDS = {"fprop": ("input", "weight"), "dgrad": ("output_gradient", "weight"), "wgrad": ("output_gradient", "input")}


class CastFigures(NamedTuple):
    """Metrics of the rounding of a product's operand.

    Attributes:
      underflow: share of the operand's non-zero values that became zero.
      saturation: share of the operand's values beyond the format's range, infinities included: those that
        `fpsim.analysis.error` counts as saturation, or as overflow where the cast does not saturate.
      at_maximum: share of the operand's codes at the format's largest magnitude, Inf and NaN included. Where scales
        follow amax (the largest magnitude of a tile), each tile's largest value has that code without being clipped.
      sqnr_db: signal-to-noise ratio in dB; Inf if nothing was rounded, NaN if all values are 0 or one is Inf or NaN.
    """

    underflow: float
    saturation: float
    at_maximum: float
    sqnr_db: float


EXACT = CastFigures(0.0, 0.0, 0.0, math.inf)


def figures(operand: CastOperand) -> CastFigures:
    """Return the metrics of an operand's rounding by its cast.

    operand: the values before the cast, the codes after it, and the format. In the example, 1 of 3 non-zero values
    becomes 0, 1 of 4 values is beyond E4M3's largest, 448, and 2 of 4 codes are 448.

    Example:
      >>> from fpsim.torch.products import CastOperand
      >>> from fpsim.train.monitors import figures
      >>> x = np.float32([[500.0, 0.0, 448.0, 2.0**-20]])
      >>> figures(CastOperand(x, fp.encode(x, fp.E4M3, overflow="saturate"), fp.E4M3))[:3]
      (0.3333333333333333, 0.25, 0.5)
    """
    if operand.fmt is None and not isinstance(operand.encoded, Scaled):
        return EXACT
    source = operand.source.astype(np.float64)
    with np.errstate(all="ignore"):
        values = operand.values.astype(np.float64)
        noise, signal = float(np.square(values - source).sum()), float(np.square(source).sum())
        ratio = signal / noise if noise else math.inf
    count = int(np.count_nonzero(source))
    lost = int(np.count_nonzero((values == 0) & (source != 0)))
    usable = math.isfinite(signal) and math.isfinite(noise) and signal > 0
    sqnr = (10 * math.log10(ratio) if math.isfinite(ratio) else math.inf) if usable else math.nan
    return CastFigures(lost / count if count else 0.0, _saturated(operand), _at_maximum(operand), sqnr)


def _saturated(operand: CastOperand) -> float:
    """Return the share of an operand's values, divided by their scales if any, that are beyond the format's range.

    If the format's range follows the values (LogFMT, table formats, zero points), only infinities count.
    """
    source = operand.source if operand.source.dtype == np.float64 else operand.source.astype(np.float32, copy=False)
    if not source.size:
        return 0.0
    fmt: Any = operand.fmt
    if isinstance(operand.encoded, Scaled):
        scaled, fmt = operand.encoded, operand.encoded.fmt
        if isinstance(fmt, (LogFMT, TableFormat)) or scaled.zero_points is not None:
            return int(np.count_nonzero(np.isinf(source))) / source.size  # the formats' ranges follow the values
        fmt = fmt.magnitudes if isinstance(fmt, IntegerFormat) else fmt
        sizes = tile_sizes(scaled.shape, scaled.scaling.block)
        with np.errstate(all="ignore"):
            source = source / spread(scaled.scales.astype(source.dtype), sizes, scaled.shape)
    _, highest = bounds(fmt, Rounding.NEAREST_EVEN, 8 * source.itemsize)
    return int(np.count_nonzero(np.abs(source) > highest)) / source.size


def _at_maximum(operand: CastOperand) -> float:
    """Return the share of codes at a float format's largest magnitude, Inf and NaN included; 0 for other formats."""
    fmt: Any = operand.encoded.fmt if isinstance(operand.encoded, Scaled) else operand.fmt
    codes = operand.encoded.codes if isinstance(operand.encoded, Scaled) else operand.encoded
    if not isinstance(fmt, Format) or not codes.size:
        return 0.0
    return int(np.count_nonzero((codes & fmt.top_magnitude) >= fmt.max_code)) / codes.size


def rows(call: ProductCall, step: int) -> list[dict[str, Any]]:
    """Return a dict for each operand of a matrix product: step, layer, product, operand, and rounding metrics.

    The metrics are the fields of `CastFigures`. call: the layer, the product ("fprop", "dgrad" or "wgrad") and its two
    operands. step: the number of the training step.
    """
    return [
        {"step": step, "layer": call.layer, "product": call.product, "operand": name, **figures(cast_operand)._asdict()}
        for name, cast_operand in zip(OPERANDS[call.product], (call.a, call.b), strict=True)
    ]


class StepWatch:
    """A context that measures how one training step's casts round, for the log and for the precision controller.

    Args:
      step: the number of the step.
      measures: whether to measure every operand of every product, for `rows`.
      watched: the metric of output gradients that the controller reads, a field of `CastFigures`; "" for none.
      layers: names of the layers for which the metric is collected.
      below: layer -> the recipe of its "wgrad" product one precision level below, for layers above level 0.

    Attributes:
      rows: the rows of `monitors.rows` for each product, if `measures` is True.
      figures: layer -> the controller's metric of its output gradient, the largest over the step's micro-batches.
      below: layer -> what that metric would be one precision level below, for layers above level 0.
    """

    def __init__(
        self, step: int, measures: bool, watched: str = "", layers: Sequence[str] = (),
        below: Mapping[str, LinearRecipe] | None = None,
    ) -> None:  # fmt: skip
        self.rows: list[dict[str, Any]] = []
        self.figures: dict[str, float] = {}
        self.below: dict[str, float] = {}
        self._step, self._measures, self._watched = step, measures, watched
        self._layers, self._recipes = frozenset(layers), below or {}
        self._context: Any = contextlib.nullcontext()

    def __enter__(self) -> StepWatch:
        if self._measures or self._watched:
            self._context = watching(self._see)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def largest(self, layers: Sequence[str], ranks: Ranks) -> tuple[dict[str, float], dict[str, float]]:
        """Return copies of the attributes `figures` and `below`, each {layer: largest metric over all processes}.

        layers: the names of the layers in both dicts; the metric is NaN where no process has one. ranks: the processes.
        """
        mine = np.array([[kept.get(name, math.nan) for name in layers] for kept in (self.figures, self.below)])
        high, low = ranks.all_reduce_max({"figures": mine})["figures"].tolist()
        return dict(zip(layers, high, strict=True)), dict(zip(layers, low, strict=True))

    def _see(self, call: ProductCall) -> None:
        """Store the rounding metrics of a matrix product's operands; for "wgrad", also the controller's metric.

        call: the layer, the product and its two operands.
        """
        if self._measures:
            self.rows += rows(call, self._step)
        if self._watched and call.product == "wgrad" and call.layer in self._layers:
            self._keep(self.figures, call.layer, call.a)
            if call.layer in self._recipes:  # as that recipe casts the gradient, without delayed scales
                cast = plan_of(self._recipes[call.layer], call.layer).grad_backward._replace(delayed=False)
                gradient = operand(tensor_of(call.a.source.T), cast, torch.tensor(0)).transposed
                self._keep(self.below, call.layer, gradient)

    def _keep(self, figures_of: dict[str, float], layer: str, gradient: CastOperand) -> None:
        """Set figures_of[layer] to the watched metric of an output gradient, unless it is larger already.

        figures_of: {layer: metric}, changed in place. gradient: the output gradient of the layer before and after its
        cast.
        """
        figure: float = getattr(figures(gradient), self._watched)
        figures_of[layer] = max(figures_of.get(layer, 0.0), figure)


# ---- controller


class LevelChange(NamedTuple):
    """A layer's change from one precision level to another.

    Attributes:
      step, layer: number of the step at which the level changed, and name of the layer.
      watched, figure: name and value of the metric that caused the change.
      before, after: the levels; level 0, the least precise, is that of the recipe itself.
    """

    step: int
    layer: str
    watched: str
    figure: float
    before: int
    after: int


class Levels:
    """The precision level of every layer that a controller may change; level 0 is the recipe, the least precise.

    Args:
      controller: the thresholds, the recipes of levels 1, 2, ..., and the metric to watch.
      layers: names of the layers; those that the controller's pattern does not match are left out.

    Attributes:
      levels, log: {layer: current level}, and the list of all changes of levels.

    Example:
      >>> from fpsim.train.monitors import Levels
      >>> from fpsim.recipes.parts import Controller
      >>> levels = Levels(Controller(high=0.1, low=0.01, patience=2), ["up", "down"])
      >>> [levels.see(step, {"up": 0.5, "down": 0.0}) for step in (0, 1)][1]
      [LevelChange(step=1, layer='up', watched='underflow', figure=0.5, before=0, after=1)]
    """

    def __init__(self, controller: Controller, layers: list[str]) -> None:
        self.controller = controller
        self.levels = {name: 0 for name in layers if fnmatchcase(name, controller.layers)}
        self.log: list[LevelChange] = []
        self._above = dict.fromkeys(self.levels, 0)  # steps in a row above high; as a negative number, below low
        self._norms: dict[str, float] = {}

    @property
    def watched(self) -> str:
        """Metric of operands that the controller follows, a field of `CastFigures`; "" if it follows gradient norms."""
        return "" if self.controller.watch == "gradient_norm" else self.controller.watch

    def recipe(self, layer: str, own_recipe: LinearRecipe, down: int = 0) -> LinearRecipe:
        """Return the recipe that a layer follows `down` levels below its current level, but not below level 0.

        layer: its name. own_recipe: the recipe of level 0, the least precise. Level i > 0 has the recipe levels[i - 1]
        of the controller, and each level is more precise than the one below.
        """
        level = max(self.levels.get(layer, 0) - down, 0)
        recipe = self.controller.levels[level - 1] if level else own_recipe
        assert isinstance(recipe, LinearRecipe)
        return recipe

    def see(
        self, step: int, figures: Mapping[str, float], below: Mapping[str, float] | None = None
    ) -> list[LevelChange]:
        """Update the levels from a step's metrics, and return the changes, which take effect in the next step.

        Args:
          step: the number of the step.
          figures: layer -> the metric of its output gradient at the current level, or the norm of its weight gradient.
          below: layer -> the metric that it would have at its level minus 1, a less precise recipe. A layer moves down
            if this metric is low; None to decide by `figures`.
        """
        changes = []
        for layer, level in self.levels.items():
            figure = figures.get(layer, math.nan)
            if self.controller.watch == "gradient_norm":  # relative to the average of the earlier norms
                norm, average = figure, self._norms.get(layer, figure)
                if math.isfinite(norm):
                    self._norms[layer] = DECAY * average + (1 - DECAY) * norm
                figure = norm / average if average else math.inf if norm else 0.0
            lower = figure if below is None or level == 0 else below.get(layer, math.nan)
            change = self._moved(step, layer, figure, lower)
            if change is not None:
                self.levels[layer] = change.after
                self._above[layer] = 0
                changes.append(change)
        self.log += changes
        return changes

    def _moved(self, step: int, layer: str, figure: float, below: float) -> LevelChange | None:
        """Return a layer's change of precision level; None if the level stays.

        The level rises if `figure` was above the controller's `high` in `patience` steps in a row, and falls if `below`
        was under `low` in `patience` steps in a row.

        step: the number of the step. layer: its name. figure: the layer's metric; NaN counts as too high. below: the
        metric that the layer would have one level lower.
        """
        controller, count, level = self.controller, self._above[layer], self.levels[layer]
        high, low = controller.limits
        if not figure <= high:
            count = max(count, 0) + 1
        elif below < low:
            count = min(count, 0) - 1
        else:
            count = 0
        self._above[layer] = count
        after = level + (count >= controller.patience) - (count <= -controller.patience)
        after = min(max(after, 0), len(controller.levels))
        seen = figure if after > level else below
        return None if after == level else LevelChange(step, layer, controller.watch, seen, level, after)

    @property
    def raised(self) -> float:
        """Share of the layers in `levels` that are above level 0."""
        return sum(level > 0 for level in self.levels.values()) / len(self.levels) if self.levels else 0.0

    def state(self) -> dict[str, Any]:
        """Return the levels, the counts and norms that decide on changes, and the log of changes, for JSON."""
        return {
            "levels": dict(self.levels), "above": dict(self._above), "norms": dict(self._norms),
            "log": [list(change) for change in self.log],
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.levels, self._above = dict(state["levels"]), dict(state["above"])
        self._norms = dict(state["norms"])
        self.log = [LevelChange(*change) for change in state["log"]]


# ---- overflow


class Overflows:
    """A context that finds the first Inf or NaN in quantised products and in other modules' results and gradients.

    modules: {name for the message: torch module}; a module that has submodules is not watched. first: a text on the
    first array with Inf or NaN; "" if there was none.

    Example:
      >>> import torch
      >>> from fpsim.train.monitors import Overflows
      >>> layer = torch.nn.Linear(2, 1, bias=False)
      >>> with Overflows({"head": layer}) as overflows:
      ...     y = layer(torch.tensor([[torch.inf, 1.0]]))
      >>> overflows.first
      'head, forwards: 1 of 1 values of its result are Inf or NaN'
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self.first = ""
        self._modules = modules
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Overflows:
        self._stack.enter_context(watching(self._see_product))
        for name, module in self._modules.items():
            if not any(module.children()):
                self._stack.callback(module.register_forward_hook(partial(self._see_module, name)).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def _see_product(self, call: ProductCall) -> None:
        """Look for Inf and NaN in a matrix product's operands before their casts, and in its result.

        call: the layer, the product, its operands and its result.
        """
        names = (*OPERANDS[call.product], "result")
        for role, array in zip(names, (call.a.source, call.b.source, call.result), strict=True):
            self._look(f"{call.layer}, {call.product}", role, array)

    def _see_module(self, name: str, module: Any, inputs: Any, result: Any) -> None:
        """Look for Inf and NaN in a torch module's result, and in the result's gradient once that is computed.

        name: the module's name for the message. module, inputs: passed by torch, and not used.
        """
        self._look(f"{name}, forwards", "result", array_of(result.detach()))
        if result.requires_grad:
            result.register_hook(lambda gradient: self._look(f"{name}, backwards", "gradient", array_of(gradient)))

    def _look(self, where: str, role: str, array: Array) -> None:
        """Set `first` to a sentence if an array has Inf or NaN; do nothing if an earlier array has set `first`.

        where: name of the operation that reads or computes the array, such as "head, forwards". role: the array's name
        in this operation, such as "result". Both are part of the sentence. array: floats.
        """
        wrong = 0 if self.first else int(np.count_nonzero(~np.isfinite(array)))
        if wrong:
            self.first = f"{where}: {wrong} of {array.size} values of its {role} are Inf or NaN"
