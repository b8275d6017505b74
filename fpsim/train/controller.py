"""A controller at work: the levels of layers, step by step, and the log of their changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.recipes.parts import Controller

DECAY = 0.9  # of the average that a gradient norm is compared with


class LevelChange(NamedTuple):
    """A layer's move from one level to another."""

    step: int
    layer: str
    watched: str
    figure: float
    before: int
    after: int


class Levels:
    """The level of every layer that a controller governs.

    Example:
      >>> from fpsim.train.controller import Levels
      >>> from fpsim.recipes.parts import Controller
      >>> levels = Levels(Controller(high=0.1, low=0.01, patience=2), ["up", "down"])
      >>> [levels.see(step, {"up": 0.5, "down": 0.0}) for step in (0, 1)][1]
      [LevelChange(step=1, layer='up', watched='underflow', figure=0.5, before=0, after=1)]
    """

    def __init__(self, controller: Controller, layers: list[str]) -> None:
        self.controller = controller
        self.levels = {name: 0 for name in layers if fnmatchcase(name, controller.layers)}
        self.log: list[LevelChange] = []
        self._above = dict.fromkeys(self.levels, 0)  # steps in a row above high, negative below low
        self._norms: dict[str, float] = {}

    @property
    def watched(self) -> str:
        """Metric of products that the controller follows; "" if it follows the norms of gradients."""
        return "" if self.controller.watch == "gradient_norm" else self.controller.watch

    def recipe(self, layer: str, own_recipe: LinearRecipe, down: int = 0) -> LinearRecipe:
        """Return the recipe that a layer follows at its level, or `down` levels below that."""
        level = max(self.levels.get(layer, 0) - down, 0)
        recipe = self.controller.levels[level - 1] if level else own_recipe
        assert isinstance(recipe, LinearRecipe)
        return recipe

    def see(
        self, step: int, figures: Mapping[str, float], below: Mapping[str, float] | None = None
    ) -> list[LevelChange]:
        """Update the levels from the measured values of a step; return the changes, which hold from the next step on.

        Args:
          step: the number of the step.
          figures: the measured value of each layer, as it was cast.
          below: what they would be one level below, which decides whether a layer moves down; None for `figures`.
        """
        changes = []
        for layer, level in self.levels.items():
            figure = figures.get(layer, math.nan)
            if self.controller.watch == "gradient_norm":
                figure = self._relative(layer, figure)
            lower = figure if below is None or level == 0 else below.get(layer, math.nan)
            change = self._moved(step, layer, figure, lower)
            if change is not None:
                self.levels[layer] = change.after
                self._above[layer] = 0
                changes.append(change)
        self.log += changes
        return changes

    def _moved(self, step: int, layer: str, figure: float, below: float) -> LevelChange | None:
        """Return the change of a layer's level after its measured value, or None; NaN counts as too high."""
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

    def _relative(self, layer: str, norm: float) -> float:
        """Return the norm of a layer's gradient divided by the running average of its earlier norms."""
        average = self._norms.get(layer, norm)
        if math.isfinite(norm):
            self._norms[layer] = DECAY * average + (1 - DECAY) * norm
        return norm / average if average else 0.0

    @property
    def raised(self) -> float:
        """Share of the layers above level 0."""
        return sum(level > 0 for level in self.levels.values()) / len(self.levels) if self.levels else 0.0

    def state(self) -> dict[str, Any]:
        """Return the levels, the counts and the log, from which `load` continues."""
        return {
            "levels": dict(self.levels), "above": dict(self._above), "norms": dict(self._norms),
            "log": [list(change) for change in self.log],
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.levels, self._above = dict(state["levels"]), dict(state["above"])
        self._norms = dict(state["norms"])
        self.log = [LevelChange(*change) for change in state["log"]]
