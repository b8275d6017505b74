"""Small problems with random harms, and reports with planted ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.planning.problem import Choice, ChoiceProblem, Unit, problem_of

torch: Any = pytest.importorskip("torch")

PRODUCTS = ("fprop", "dgrad", "wgrad")
RECIPES = ("BF16", "FP8_TENSOR", "DEEPSEEK_V3", "MXFP8", "NVFP4", "FP8_RAW", "FP32", "TE_HYBRID")


def problem(seed: int, budget: str, layers: int = 2, recipes: int = 4, spread: float = 4.0) -> ChoiceProblem:
    """Harms over many orders of magnitude, some of them 0, some recipes that cannot be had."""
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.choice(RECIPES, recipes, replace=False)]
    weights = {f"l{i}": int(rng.choice([128 * 128, 128 * 256, 96 * 128, 1000])) for i in range(layers)}
    slots = [(layer, product) for layer in weights for product in PRODUCTS]
    values = {slot: (int(rng.integers(1, 9)) * 4096, weights[slot[0]]) for slot in slots}
    harms = {}
    for slot, (place, name) in itertools.product(slots, enumerate(names)):
        draw = rng.random()
        size = float(np.exp(rng.normal(0, spread)))
        harms[(*slot, name)] = size if draw < 0.85 or place == 0 else 0.0 if draw < 0.95 else math.inf
    units = [Unit((slot,), int(slot[0][1:])) for slot in slots]
    return problem_of(units, {name: fp.torch.RECIPES[name] for name in names}, harms, values, weights, budget)


def every_choice(one: ChoiceProblem) -> list[tuple[int, int, Choice]]:
    """Rank every choice that there is."""
    choices = itertools.product(*(one.open(unit) for unit in range(len(one.units))))
    return [one.rank(choice) for choice in choices]


class Together:
    """Measures an assignment as if harms added up, with a gap, and counts how often."""

    def __init__(self, rows: Mapping[tuple[str, str, str], Any], gap: float) -> None:
        self.rows, self.gap, self.calls = rows, gap, 0

    def joint(self, assignment: Mapping[tuple[str, str], Any], name: str) -> Any:
        self.calls += 1
        of = {recipe: name for name, recipe in fp.torch.RECIPES.items()}
        squares = [self.rows[(*slot, of[recipe])].gradient_error ** 2 for slot, recipe in assignment.items()]
        return row("*", "*", name, self.gap * math.sqrt(math.fsum(squares)))


def row(layer: str, product: str, recipe: str, error: float, change: Sequence[float] = (0.0, 0.0)) -> Any:
    """Make a row of a sensitivity with an error of the gradient, and changes of the loss of two batches."""
    from fpsim.analysis.studies.sensitivity.row import BatchFigures, SensitivityRow

    figures = [BatchFigures(loss_change, error, 1.0, error, 1.0, error) for loss_change in change]
    return SensitivityRow.of(layer, product, recipe, (128 * 128, 128 * 128), figures)


def report(
    errors: Mapping[tuple[str, str, str], float], *, gap: float = 1.0, identity: str = "0123",
    changes: Mapping[tuple[str, str, str], Sequence[float]] | None = None,
) -> Any:  # fmt: skip
    """Make a sensitivity of layers of 128 x 128 with these errors of the gradient; joint ones are off by a factor."""
    rows = tuple(row(*key, error, (changes or {}).get(key, (0.0, 0.0))) for key, error in errors.items())
    layers = {layer: 128 * 128 for layer, _, _ in errors}
    recipes = {name: fp.torch.RECIPES[name] for _, _, name in errors}
    measurer = Together({(one.layer, one.product, one.recipe): one for one in rows}, gap)
    return fp.analysis.Sensitivity(rows, (), layers, recipes, (1.0, 1.0), "Fake", identity, (), measurer)


USUAL = {"BF16": 0.003, "DEEPSEEK_V3": 0.03, "NVFP4": 0.15}


def usual(layers: Sequence[str] = ("a", "b", "c"), **planted: float) -> dict[tuple[str, str, str], float]:
    """Errors as they usually are, larger by a factor in the layers that are named."""
    return {
        (layer, product, name): error * planted.get(layer, 1.0)
        for layer in layers for product in PRODUCTS for name, error in USUAL.items()
    }  # fmt: skip
