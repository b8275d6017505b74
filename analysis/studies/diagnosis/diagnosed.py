"""The measurements and verdicts of a diagnosis, and functions that name its layers and rank them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from fpsim.analysis.models.coverage import Coverage
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.diagnosis.recording import recorded_layers, recorded_name
from fpsim.analysis.studies.diagnosis.verdict import FIGURES, LINES, Verdict, is_high
from fpsim.analysis.studies.planning.report import Plan
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of
from fpsim.display.wording import plural, printable
from fpsim.recipes.linear_recipe import PRODUCTS

NAMED = 3  # layers that a sentence names


@dataclass(frozen=True)
class Diagnosed:
    """The part of a Diagnosis from which its advice and page are written; `Diagnosis` describes the attributes."""

    recording: Recording = dataclasses.field(repr=False)
    budgets: Mapping[str, Budget] = dataclasses.field(repr=False)
    sensitivity: Sensitivity = dataclasses.field(repr=False)
    plan: Plan = dataclasses.field(repr=False)
    verdicts: tuple[Verdict, ...] = dataclasses.field(repr=False)
    low: str
    high: str
    joint: SensitivityRow | None = dataclasses.field(repr=False)
    missed: float | None
    pays: bool
    promoted: Mapping[tuple[str, str, str], float] = dataclasses.field(repr=False)
    limit: float
    on: str
    budgeted: int
    notes: tuple[str, ...] = dataclasses.field(repr=False, default=())
    unseen: tuple[str, ...] = ()
    alone: tuple[Verdict, ...] = dataclasses.field(default=(), repr=False)

    @property
    def budget(self) -> Budget:
        """The error budget of the recipe `low`; of the recipe `high` if there is no `low`."""
        return self.budgets[self.low or self.high]

    @property
    def coverage(self) -> Coverage:
        """The share of the model's weights and multiplications that the verdicts cover."""
        names = {recorded_name(layer) for layer in self.layers} | recorded_layers(self.alone, self.recording).keys()
        return self.recording.coverage.of(names, self.sensitivity.coverage.is_chosen)

    @property
    def model(self) -> str:
        """Name of the model's class."""
        return self.sensitivity.model

    @property
    def identity(self) -> str:
        """Digest of the model, the batches, the loss, the random draws and the recipes."""
        return self.sensitivity.identity

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that were diagnosed, in the model's order."""
        return tuple(dict.fromkeys(verdict.layer for verdict in self.verdicts))

    @property
    def products(self) -> tuple[str, ...]:
        """The products that were judged: "fprop", "dgrad" and "wgrad", or without a loss "fprop" alone."""
        return PRODUCTS if self.sensitivity.has_loss else PRODUCTS[:1]

    @property
    def heads(self) -> tuple[str, ...]:
        """Headings of the columns of the table `rows`."""
        return ("layer", *self.products, "")

    def ill(self, recipe: str | None = None) -> tuple[str, ...]:
        """Return the layers with a product that does not fit a recipe (its errors exceed the limit), the worst first.

        Args:
          recipe: name of the recipe; None for `low`.
        """
        return tuple(ill_layers(self, recipe or self.low))

    def __getitem__(self, key: tuple[str, str, str]) -> Verdict:
        """Return the verdict of (layer, product, recipe); raise a KeyError if there is none."""
        for verdict in self.verdicts:
            if (verdict.layer, verdict.product, verdict.recipe) == key:
                return verdict
        raise KeyError(
            f"no verdict of layer, product and recipe {key!r}; there are {plural(len(self.verdicts), 'verdict')}"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of texts for each layer, under the headings `heads`.

        A row has the layer's name, the recommended recipe and the error of each product, and the reason why the layer
        cannot use the recipe `low` ("" if it can).
        """
        rows = []
        assigned = self.plan.assignment
        bad = set(self.ill()) if self.low else set()
        for layer in self.layers:
            cells = []
            for product in self.products:
                name = assigned.get((layer, product))
                cells.append("–" if name is None else f"{name} {self[layer, product, name].off}")
            why = [row.why for row in self.verdicts if (row.layer, row.recipe) == (layer, self.low) and not row.fits]
            rows.append((printable(layer) or "the model", *cells, "; ".join(why) if layer in bad else ""))
        return rows


def name_of(layer: str) -> str:
    """Return the name of a layer in sentences: "layer 2" for a number, "the model" for the empty name.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.diagnosed import name_of
      >>> name_of("blocks.0.mlp"), name_of("2"), name_of("")
      ('blocks.0.mlp', 'layer 2', 'the model')
    """
    return f"layer {layer}" if layer.isdigit() else printable(layer) or "the model"


def kind_of(diagnosis: Diagnosed) -> str:
    """Return the noun for the layers of a diagnosis: "linear layer", "convolution", or "layer" for both kinds."""
    layers, convolutions = {verdict.layer for verdict in diagnosis.verdicts}, set(diagnosis.sensitivity.convolutions)
    if not layers & convolutions:
        return "linear layer"
    return "layer" if layers - convolutions else "convolution"


def judged_by(diagnosis: Diagnosed) -> str:
    """Return which errors decide between recipes: "gradients", or "outputs" if the diagnosis has no loss."""
    return FIGURES[diagnosis.sensitivity.figure]


def joint_error(diagnosis: Diagnosed, row: SensitivityRow) -> float:
    """Return a row's relative error of the gradients; for a diagnosis without a loss, that of the outputs."""
    return figure_of(row, diagnosis.sensitivity.figure)


def effect_of(diagnosis: Diagnosed, verdict: Verdict) -> float:
    """Return the relative error that the product of `verdict` alone causes in the gradients, if the diagnosis has a
    loss.

    Without a loss, return the error that this product causes in the outputs, or 0 if that was not measured.
    """
    if diagnosis.sensitivity.has_loss:
        return verdict.gradient_error
    return 0.0 if math.isnan(verdict.output_error) else verdict.output_error


def high_recipes(diagnosis: Diagnosed) -> set[str]:
    """Return the names of the diagnosis's recipes of 16 bits or more."""
    return {name for name, recipe in diagnosis.sensitivity.recipes.items() if is_high(recipe)}


def harms_by_effect(diagnosis: Diagnosed, verdict: Verdict) -> bool:
    """Return whether a product is exact enough itself, but causes too large an error in the gradients or outputs.

    It is exact enough if the error of its result is at most `diagnosis.limit`, and that of single rows or columns at
    most three times the limit. The error that it causes (`effect_of`) is too large if it exceeds the limit. `verdict`:
    the verdict on the product, with these errors.
    """
    itself = verdict.error <= diagnosis.limit and not verdict.lines > LINES * diagnosis.limit
    return itself and not effect_of(diagnosis, verdict) <= diagnosis.limit


def verdicts_by_layer(diagnosis: Diagnosed, recipe: str, *, failed: bool = False) -> dict[str, list[Verdict]]:
    """Return layer -> the diagnosis's verdicts on the layer's products in one recipe, in the model's order.

    `recipe`: name of the recipe. `failed`: whether only products that do not fit are included.
    """
    layers: dict[str, list[Verdict]] = {}
    for verdict in diagnosis.verdicts:
        if verdict.recipe == recipe and not (failed and verdict.fits):
            layers.setdefault(verdict.layer, []).append(verdict)
    return layers


def ill_layers(diagnosis: Diagnosed, recipe: str) -> list[str]:
    """Return the layers with a product that does not fit a recipe, the worst first.

    Layers with a product whose own error is too large, or that a plan cannot use, come first, in the order of
    `Budget.ranking` (the largest errors first). Then come those whose products only cause too large errors in the
    gradients (without a loss, in the outputs), the largest such error first. A layer is moved to the end if each of its
    products that do not fit has an inherited error (caused by inexact inputs) larger than its own. `recipe`: name of
    the recipe.
    """
    failed = verdicts_by_layer(diagnosis, recipe, failed=True)
    ranked = [layer for layer, _ in diagnosis.budgets[recipe].ranking] if recipe in diagnosis.budgets else []
    wrong = {
        layer for layer, verdicts in failed.items()
        if any(not harms_by_effect(diagnosis, verdict) for verdict in verdicts)
    }  # fmt: skip

    def largest_effect(layer: str) -> float:
        return max(effect_of(diagnosis, verdict) for verdict in failed[layer])

    harmful = sorted(set(failed) - wrong, key=lambda layer: (-largest_effect(layer), layer))
    ordered = [layer for layer in ranked if layer in wrong] + sorted(wrong - set(ranked)) + harmful
    return sorted(ordered, key=lambda layer: all(verdict.inherited > verdict.error for verdict in failed[layer]))
