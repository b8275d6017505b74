"""The evidence from which a plan is made: the measured error of each product in each recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fpsim.analysis.studies.budget.report import OWN_UNITS, Budget
from fpsim.analysis.studies.planning.problem import Slot
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import figure_of, spread_of
from fpsim.display.wording import listed, plural
from fpsim.errors import require_word, shown
from fpsim.recipes.blocks import STRICT, block_of
from fpsim.recipes.hardware import placed
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.look_up import find_either

FIGURES = ("gradient_error", "output_error", "loss_change")  # metrics of a sensitivity
JOINT = "joint"  # the metric of a budget
LABELS = {"gradient_error": "error of the gradient", "output_error": "error of the outputs",
          "loss_change": "change of the loss", JOINT: "error of the products"}  # fmt: skip
NAMED = 4  # missing rows that a message names


class Measured(NamedTuple):
    """A model's metric, measured with one or several products in low precision, and the harm that a plan counts for it.

    Attributes:
      value: the measured value.
      spread: standard deviation over batches; NaN for one batch, or if unknown.
      harm: the number whose sum over products a plan minimises. For a relative error, it is the square of the error,
        since squares of independent rounding errors add up. For a change of the loss, it is the change, or 0 if the
        change is at most `spread`.
    """

    value: float
    spread: float
    harm: float

    @classmethod
    def of(cls, figure: str, value: float, spread: float) -> Measured:
        """Return a measured value of a metric with its harm, the number whose sum over products a plan minimises.

        The harm is the square of a relative error. For "loss_change" it is the change, or 0 if that is at most
        `spread`; a NaN spread counts as 0.

        Args:
          figure: name of the metric, such as "gradient_error".
          value: the measured value.
          spread: standard deviation over batches; NaN if unknown.

        Example:
          >>> from fpsim.analysis.studies.planning.evidence import Measured
          >>> Measured.of("gradient_error", 0.5, 0.1).harm, Measured.of("loss_change", 0.5, 0.1).harm
          (0.25, 0.5)
          >>> [Measured.of("loss_change", change, 0.1).harm for change in (0.05, -0.2)]
          [0.0, 0.0]
        """
        if figure != "loss_change":
            return cls(value, spread, value * value)
        differs = 0.0 if math.isnan(spread) else spread
        return cls(value, spread, 0.0 if value <= differs else value)


class Refusal(NamedTuple):
    """A recipe that plans do not consider for a product of a layer, and the reason.

    Attributes:
      layer, recipe: names of the layer and of the recipe.
      product: "fprop", "dgrad" or "wgrad".
      reason: the rest of a clause that begins with "since".
    """

    layer: str
    product: str
    recipe: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The triple (layer, product, recipe) of names, by which a refusal is found."""
        return self.layer, self.product, self.recipe

    @property
    def sentence(self) -> str:
        """A sentence for a plan's notes, saying that the recipe is not offered to the product, and why."""
        return f"{self.recipe} is not offered to {self.product} of {self.layer}, since {self.reason}."


@dataclass(frozen=True)
class Evidence:
    """The measured error of every product in every recipe, from which a plan is made.

    Attributes:
      figure: name of the measured metric.
      slots: (layer, product) of every product, in the model's order; a product is "fprop", "dgrad" or "wgrad".
      recipes: name -> recipe.
      measured: (layer, product, recipe) -> the metric, without the combinations in `refusals`.
      values: (layer, product) -> number of values of each of its two operands.
      weights: layer -> number of values of its weight.
      model: name of the model's class.
      identity: digest of weights, batches and recipes; "" for budgets.
      together: called with (layer, product) -> recipe name; runs the model with all these products in their recipes at
        once, and returns a SensitivityRow. None if there is no model to run.
      refusals: recipes that plans do not consider for a product.
      unplanned: layer -> sentence saying why plans ignore the layer.
      convolutions: the layers that are convolutions.
    """

    figure: str
    slots: tuple[Slot, ...]
    recipes: Mapping[str, LinearRecipe]
    measured: Mapping[tuple[str, str, str], Measured]
    values: Mapping[Slot, tuple[int, int]]
    weights: Mapping[str, int]
    model: str
    identity: str
    together: Callable[[Mapping[Slot, str]], Any] | None
    refusals: tuple[Refusal, ...] = ()
    unplanned: Mapping[str, str] = field(default_factory=dict)
    convolutions: frozenset[str] = frozenset()

    @property
    def uncounted(self) -> str:
        """A sentence saying how many measured changes of the loss a plan counts as 0; "" if there are none."""
        small = [one for one in self.measured.values() if one.harm == 0 and one.value != 0]
        if self.figure != "loss_change" or not small:
            return ""
        one = len(small) == 1
        return (
            f"{len(small)} of {plural(len(self.measured), 'change')} of the loss {'counts' if one else 'count'} as 0, "
            f"since {'it lowers the loss or is' if one else 'they lower the loss or are'} within "
            f"{'its' if one else 'their'} standard deviation over batches."
        )

    def notes(self, kept: Collection[str]) -> list[str]:
        """Return a sentence for each refused recipe and for each layer that is not planned.

        `kept`: names of layers that the user excludes from the plan; they get no sentence.
        """
        notes = [text for layer, text in self.unplanned.items() if layer not in kept]
        return notes + [refusal.sentence for refusal in self.refusals if refusal.layer not in kept]

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that have products, in the model's order."""
        return tuple(dict.fromkeys(layer for layer, _ in self.slots))


def evidence_of(source: Any, figure: str | None) -> Evidence:
    """Return the evidence for a plan: the measured error of every product in every recipe.

    Args:
      source: a Sensitivity, or a Budget or a sequence of Budgets, one for each recipe.
      figure: name of the metric. None is the gradients' error in a sensitivity, the outputs' error if it has no
        backward products, and the products' own error in budgets.
    Raises:
      TypeError: source is neither a Sensitivity nor one or several Budgets.
      ValueError: the metric is unknown; the sensitivity has backward products, on which the metric does not depend; or
        the budgets are of several models, or lack rows.
    """
    if isinstance(source, Sensitivity):
        return _of_sensitivity(source, figure)
    budgets = list(source) if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    wrong = [budget for budget in budgets if not isinstance(budget, Budget)]
    if wrong or not budgets:
        raise TypeError(
            "plan needs an fp.analysis.Sensitivity, or a list of budgets of one recipe each; got "
            f"{shown(wrong[0] if wrong else source)}."
        )
    return _of_budgets(budgets, figure)


def _of_sensitivity(report: Sensitivity, figure: str | None) -> Evidence:
    """Return the evidence for a plan, taken from a sensitivity report.

    `figure`: the metric, "gradient_error", "output_error" or "loss_change". None is "output_error" if all products are
    forward ones, else "gradient_error". Raise a ValueError for another metric, or if there are backward products, on
    which the metric does not depend.
    """
    products = {row.product for row in report.rows}
    if figure is None:
        figure = "output_error" if products == {"fprop"} else "gradient_error"
    require_word("by", figure, FIGURES)
    backward = [product for product in PRODUCTS[1:] if product in products]
    if figure != "gradient_error" and backward:
        raise ValueError(
            f"by must be a metric that depends on every product; got {figure!r}, which is 0 for "
            f"{' and '.join(backward)}. Use 'gradient_error', or measure sensitivity(..., products='fprop')."
        )
    slots = tuple(dict.fromkeys((row.layer, row.product) for row in report.rows))
    measured = {
        (row.layer, row.product, row.recipe): Measured.of(figure, figure_of(row, figure), spread_of(row, figure))
        for row in report.rows
    }
    values = {(row.layer, row.product): row.elements for row in report.rows}
    refusals = [
        *_unmeasured(figure, measured),
        *(
            Refusal(layer, product, recipe, "the sensitivity has no row of it")
            for layer, product in slots for recipe in report.recipes if (layer, product, recipe) not in measured
        ),
        *_undivided(measured, report.recipes, {slot: _terms(slot, values, report) for slot in slots}),
    ]  # fmt: skip
    measured = _without(measured, refusals)
    together = report.measure if report.can_measure else None
    return Evidence(
        figure, slots, report.recipes, measured, values, report.layers, report.model, report.identity, together,
        tuple(refusals), convolutions=frozenset(report.convolutions),
    )  # fmt: skip


def _of_budgets(budgets: Sequence[Budget], figure: str | None) -> Evidence:
    """Return the evidence for a plan, taken from error budgets of one recipe each: the products' relative errors.

    `figure`: None or "joint", the only metric of budgets. Raise a ValueError if the budgets are of several models, if
    two are of one recipe, or if a row is missing.
    """
    if figure not in (None, JOINT):
        raise ValueError(f"by of budgets must be 'joint', the error of a product; got {shown(figure)}.")
    models = list(dict.fromkeys(budget.model for budget in budgets))
    if len(models) > 1:
        raise ValueError(f"budgets must be of one model; got {' and '.join(map(str, models))}.")
    recipes: dict[str, LinearRecipe] = {}
    for budget in budgets:
        if budget.recipe in recipes:
            raise ValueError(f"budgets must be of one recipe each; got two of {budget.recipe}. Merge them.")
        recipes[budget.recipe] = _recipe_of(budget)
    every = [(budget.recipe, row) for budget in budgets for row in budget.rows]
    rows = {(row.layer, row.product, recipe): row for recipe, row in every if row.kind != "attention"}
    attention = dict.fromkeys(row.layer for _, row in every if row.kind == "attention")
    slots = tuple(dict.fromkeys((layer, product) for layer, product, _ in rows))
    lost = [(*slot, name) for slot in slots for name in recipes if (*slot, name) not in rows]
    if lost:
        names = listed([f"{product} of {layer} in {recipe}" for layer, product, recipe in lost], NAMED)
        raise ValueError(
            f"budgets must have a row for every layer, product and recipe; {plural(len(lost), 'row')} "
            f"{'is' if len(lost) == 1 else 'are'} missing, such as {names}. Make all budgets from one recording."
        )
    measured = {key: Measured.of(JOINT, row.joint, math.nan) for key, row in rows.items()}
    shapes = {(layer, product): row.shape for (layer, product, _), row in rows.items()}
    parts = {(layer, product): row.parts for (layer, product, _), row in rows.items()}
    values = {slot: (m * k * parts[slot], n * k * parts[slot]) for slot, (m, n, k) in shapes.items()}
    weights = {}
    for (layer, product), (m, n, k) in shapes.items():
        weights[layer] = (m * n if product == "wgrad" else n * k) * parts[layer, product]
    undivided = _undivided(measured, recipes, {slot: k for slot, (_, _, k) in shapes.items()})
    refusals = (*_unmeasured(JOINT, measured), *undivided)
    unplanned = {layer: f"{layer} is not planned, since attention multiplies no weights." for layer in attention}
    convolutions = frozenset(layer for (layer, _, _), row in rows.items() if row.kind == "convolution")
    return Evidence(
        JOINT, slots, recipes, _without(measured, refusals), values, weights, models[0], "", None, refusals, unplanned,
        convolutions,
    )  # fmt: skip


def _recipe_of(budget: Budget) -> LinearRecipe:
    """Return the recipe of linear layers named in a budget, with the matrix units of the budget's hardware.

    Raise a ValueError if there is no such recipe or hardware.
    """
    try:
        recipe = find_either(budget.recipe)
        if not isinstance(recipe, LinearRecipe):
            raise ValueError("it is a recipe of training, in which layers may have different recipes.")
        return placed(recipe, None if budget.on == OWN_UNITS else budget.on).recipe
    except ValueError as reason:
        raise ValueError(
            "budgets must have a recipe of fp.torch.RECIPES and hardware with a name; got "
            f"{shown(budget.recipe)} on {shown(budget.on)}: {reason}"
        ) from None


def _terms(slot: Slot, values: Mapping[Slot, tuple[int, int]], report: Sensitivity) -> int:
    """Return K, the number of terms that each sum of a product adds; 0 if unknown.

    Let x, y and w be the numbers of values of input, output and weight, and g the number of groups of a convolution (1
    for a linear layer). For fprop, K = k is stored in the report. For dgrad, K = w / (k g). For wgrad, K is the number
    of rows, x / (k g). An older report lacks k: there, the number of rows is r = sqrt(x y / (w g)), and k = x / (r g).

    `slot`: (layer, product). `values`: (layer, product) -> number of values of each operand. `report`: the sensitivity,
    which stores w, k and g.
    """
    layer, product = slot
    weight, groups = report.layers[layer], report.convolutions.get(layer, 1)
    x, dy = values.get((layer, "fprop"), (0, 0))[0], values.get((layer, "dgrad"), (0, 0))[0]
    dy, x = values.get((layer, "wgrad"), (dy, x))
    k = report.terms.get(layer, 0)
    if not k:
        rows = math.isqrt(x * dy // (weight * groups)) if weight else 0
        if not rows or rows * rows * weight * groups != x * dy:
            return 0
        k = x // (rows * groups)
    return {"fprop": k, "dgrad": weight // (k * groups), "wgrad": x // (k * groups)}[product]


def _undivided(
    keys: Iterable[tuple[str, str, str]], recipes: Mapping[str, LinearRecipe], terms: Mapping[Slot, int]
) -> list[Refusal]:
    """Return a Refusal for each product and recipe for which K is not a multiple of the recipe's block length.

    A Refusal says that plans do not consider the recipe, and why. The block length is the number of terms that share a
    scale, or that a Hadamard transform mixes. `keys`: (layer, product, recipe) to check. `recipes`: name -> recipe.
    `terms`: (layer, product) -> K.
    """
    refusals = []
    for layer, product, name in keys:
        block, length = block_of(recipes[name], product), terms[layer, product]
        if length % block:
            # the terms of wgrad are the rows of the batch, which can be changed
            batch = f"; measure with batches whose terms are a multiple of {block}" if product == "wgrad" else ""
            refusals.append(Refusal(
                layer, product, name,
                f"its {length} terms are not a multiple of {block}, the terms that share a scale or a transform, which "
                f"{STRICT} require; fp.torch.quantize_linears would pad them with zeros{batch}",
            ))  # fmt: skip
    return refusals


def _unmeasured(figure: str, measured: Mapping[tuple[str, str, str], Measured]) -> list[Refusal]:
    """Return a Refusal, which excludes a recipe from plans, for each product and recipe whose metric is Inf or NaN.

    `figure`: name of the metric. `measured`: (layer, product, recipe) -> the metric.
    """
    return [
        Refusal(*key, f"its {figure} is {one.value:g}")
        for key, one in measured.items() if not math.isfinite(one.harm)
    ]  # fmt: skip


def _without(
    measured: Mapping[tuple[str, str, str], Measured], refusals: Sequence[Refusal]
) -> dict[tuple[str, str, str], Measured]:
    """Return a copy of `measured`, (layer, product, recipe) -> the metric, without the keys of `refusals`."""
    refused = {refusal.key for refusal in refusals}
    return {key: one for key, one in measured.items() if key not in refused}
