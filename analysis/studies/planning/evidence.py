"""What a plan is made from: measured harms of each layer, product and recipe, of a sensitivity or of budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fpsim.analysis.studies.budget.report import OWN_UNITS, Budget
from fpsim.analysis.studies.planning.problem import Slot
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import figure_of, spread_of
from fpsim.display.wording import plural
from fpsim.errors import require_word, shown
from fpsim.recipes.blocks import STRICT, block_of
from fpsim.recipes.hardware import placed
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.look_up import find_either

FIGURES = ("gradient_error", "output_error", "loss_change")  # of a sensitivity
JOINT = "joint"  # the figure of a budget
FILLED = "fp.torch.quantize_linears would fill them up with zeros"
SAID = 4  # missing rows that a message names


class Measured(NamedTuple):
    """A figure of one row.

    Attributes:
      value: the figure as it was measured.
      spread: its standard deviation over batches; NaN of one batch or where it is not known.
      harm: what is added up and minimised: the square of a relative error, as errors of independent roundings add up;
        of a change of the loss the change itself, and 0 where it is no larger than its spread.
    """

    value: float
    spread: float
    harm: float

    @classmethod
    def of(cls, figure: str, value: float, spread: float) -> Measured:
        """What a figure does harm.

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


@dataclass(frozen=True)
class Evidence:
    """Measured harms.

    Attributes:
      figure: which one.
      slots: the layers' products, in the model's order.
      recipes: by name.
      measured: of (layer, product, recipe); what a recipe cannot have is missing.
      values: of both operands of each product.
      weights: values of each layer's weight.
      model: its class.
      identity: of weights, batches and recipes; "" of budgets.
      together: measures an assignment of recipes jointly; None where there is no model to do so.
      notes: layers, each with a sentence for a recipe that it is not offered.
      convolutions: those of the layers that are.
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
    notes: tuple[tuple[str, str], ...] = ()
    convolutions: frozenset[str] = frozenset()

    @property
    def uncounted(self) -> str:
        """How many changes of the loss count as 0, in a sentence; "" of other figures, or where none does."""
        small = [one for one in self.measured.values() if one.harm == 0 and one.value != 0]
        if self.figure != "loss_change" or not small:
            return ""
        return (
            f"Of {plural(len(self.measured), 'change')} of the loss {len(small)} count as 0, being below it or within "
            "their spread over batches."
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """Those that have products, in order."""
        return tuple(dict.fromkeys(layer for layer, _ in self.slots))

    def of_row(self, row: Any) -> Measured:
        """The harm of a row of a sensitivity."""
        return Measured.of(self.figure, figure_of(row, self.figure), spread_of(row, self.figure))


def evidence_of(source: Any, figure: str | None) -> Evidence:
    """What a sensitivity or budgets say.

    Raises:
      TypeError: something else.
      ValueError: an unknown figure, one that says nothing of a product, or budgets that do not belong together.
    """
    if isinstance(source, Sensitivity):
        return _of_sensitivity(source, figure)
    budgets = list(source) if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    wrong = next((each for each in budgets if not isinstance(each, Budget)), None)
    if wrong is not None or not budgets:
        raise TypeError(
            "plan needs an fp.analysis.Sensitivity, or a list of budgets of one recipe each; got "
            f"{shown(source if wrong is None else wrong)}."
        )
    return _of_budgets(budgets, figure)


def _of_sensitivity(report: Sensitivity, figure: str | None) -> Evidence:
    products = {row.product for row in report.rows}
    if figure is None:
        figure = "output_error" if products == {"fprop"} else "gradient_error"
    require_word("by", figure, FIGURES)
    backward = [product for product in PRODUCTS[1:] if product in products]
    if figure != "gradient_error" and backward:
        raise ValueError(
            f"by must be a figure that every product has; got {figure!r}, which is 0 for {' and '.join(backward)}. "
            "Take 'gradient_error', or measure sensitivity(..., products='fprop')."
        )
    slots = tuple(dict.fromkeys((row.layer, row.product) for row in report.rows))
    empty = Evidence(figure, slots, report.recipes, {}, {}, report.layers, report.model, report.identity, None)
    found = {(row.layer, row.product, row.recipe): empty.of_row(row) for row in report.rows}
    values = {(row.layer, row.product): row.elements for row in report.rows}
    undivided = _undivided(
        found, report.recipes,
        {slot: _terms(slot, values, report.layers[slot[0]], report.convolutions.get(slot[0], 1)) for slot in slots},
    )  # fmt: skip
    notes = [*_unmeasured(figure, found), *_missing(slots, report.recipes, found)]
    notes += [(key[0], text) for key, text in undivided.items()]
    found = {key: one for key, one in found.items() if math.isfinite(one.harm) and key not in undivided}
    together = report.measure if report.can_measure else None
    return Evidence(
        figure, slots, report.recipes, found, values, report.layers, report.model, report.identity, together,
        tuple(notes), frozenset(report.convolutions),
    )  # fmt: skip


def _of_budgets(budgets: Sequence[Budget], figure: str | None) -> Evidence:
    if figure not in (None, JOINT):
        raise ValueError(f"by of budgets must be 'joint', the error of a product; got {shown(figure)}.")
    models = list(dict.fromkeys(each.model for each in budgets))
    if len(models) > 1:
        raise ValueError(f"budgets must be of one model; got {' and '.join(map(str, models))}.")
    recipes: dict[str, LinearRecipe] = {}
    for each in budgets:
        if each.recipe in recipes:
            raise ValueError(f"budgets must be of one recipe each; got two of {each.recipe}. Merge them.")
        recipes[each.recipe] = _recipe_of(each)
    every = [(each, row) for each in budgets for row in each.rows]
    rows = {(row.layer, row.product, each.recipe): row for each, row in every if row.kind != "attention"}
    attention = dict.fromkeys(row.layer for _, row in every if row.kind == "attention")
    slots = tuple(dict.fromkeys((layer, product) for layer, product, _ in rows))
    lost = [(*slot, name) for slot in slots for name in recipes if (*slot, name) not in rows]
    if lost:
        raise ValueError(
            f"budgets must have a row for every layer, product and recipe; {plural(len(lost), 'row')} "
            f"{'is' if len(lost) == 1 else 'are'} missing, such as {_said(lost)}. Take them from one recording."
        )
    found = {key: Measured.of(JOINT, row.joint, math.nan) for key, row in rows.items()}
    shapes = {(layer, product): row.shape for (layer, product, _), row in rows.items()}
    parts = {(layer, product): row.parts for (layer, product, _), row in rows.items()}
    values = {slot: (m * k * parts[slot], n * k * parts[slot]) for slot, (m, n, k) in shapes.items()}
    weights = {}
    for (layer, product), (m, n, k) in shapes.items():
        weights[layer] = (m * n if product == "wgrad" else n * k) * parts[layer, product]
    undivided = _undivided(found, recipes, {slot: k for slot, (_, _, k) in shapes.items()})
    notes = [(layer, f"{layer} is not planned, since attention multiplies no weights.") for layer in attention]
    notes += [*_unmeasured(JOINT, found), *((key[0], text) for key, text in undivided.items())]
    found = {key: one for key, one in found.items() if math.isfinite(one.harm) and key not in undivided}
    convolutions = frozenset(layer for (layer, _, _), row in rows.items() if row.kind == "convolution")
    return Evidence(JOINT, slots, recipes, found, values, weights, models[0], "", None, tuple(notes), convolutions)


def _recipe_of(budget: Budget) -> LinearRecipe:
    """The recipe of linear layers of a budget, on its hardware."""
    try:
        recipe = find_either(budget.recipe)
        if not isinstance(recipe, LinearRecipe):
            raise ValueError("it is one of training, which layers may follow differently.")
        return placed(recipe, None if budget.on == OWN_UNITS else budget.on).recipe
    except ValueError as reason:
        raise ValueError(
            "budgets must be of a recipe of fp.torch.RECIPES, on hardware that has a name; got "
            f"{shown(budget.recipe)} on {shown(budget.on)}: {reason}"
        ) from None


def _terms(slot: Slot, values: Mapping[Slot, tuple[int, int]], weight: int, groups: int) -> int:
    """How many terms a product of each group sums, from the values of a layer's operands; 0 where these do not tell."""
    layer, product = slot
    x, dy = values.get((layer, "fprop"), (0, 0))[0], values.get((layer, "dgrad"), (0, 0))[0]
    dy, x = values.get((layer, "wgrad"), (dy, x))
    rows = math.isqrt(x * dy // (weight * groups)) if weight else 0
    if not rows or rows * rows * weight * groups != x * dy:
        return 0
    return {"fprop": x // (rows * groups), "dgrad": dy // (rows * groups), "wgrad": rows}[product]


def _undivided(
    found: Mapping[tuple[str, str, str], Measured], recipes: Mapping[str, LinearRecipe], terms: Mapping[Slot, int]
) -> dict[tuple[str, str, str], str]:
    """Why recipes are not offered to products whose sums their blocks do not divide."""
    lost = {}
    for layer, product, name in found:
        block, length = block_of(recipes[name], product), terms[layer, product]
        if length % block:
            # the terms of wgrad are what a batch has, and no fault of the layer
            batch = f"; a batch whose terms are a multiple of {block} has it measured" if product == "wgrad" else ""
            lost[layer, product, name] = (
                f"{name} is not offered to {product} of {layer}, whose {length} terms are no multiple of its {block} "
                f"that share a scale or a transform, as {STRICT} ask; {FILLED}{batch}."
            )
    return lost


def _unmeasured(figure: str, found: Mapping[tuple[str, str, str], Measured]) -> list[tuple[str, str]]:
    """A sentence for each product and recipe whose figure is no number."""
    return [
        (layer, f"{recipe} is not offered to {product} of {layer}, where its {figure} is {one.value:g}.")
        for (layer, product, recipe), one in found.items() if not math.isfinite(one.harm)
    ]  # fmt: skip


def _missing(
    slots: Sequence[Slot], recipes: Mapping[str, Any], found: Mapping[tuple[str, str, str], Measured]
) -> list[tuple[str, str]]:
    """A sentence for each product and recipe that was not measured."""
    return [
        (layer, f"{recipe} is not offered to {product} of {layer}, of which the sensitivity has no row.")
        for layer, product in slots for recipe in recipes if (layer, product, recipe) not in found
    ]  # fmt: skip


def _said(keys: Sequence[tuple[str, str, str]]) -> str:
    """The first few rows of a list."""
    more = f" and {len(keys) - SAID} more" if len(keys) > SAID else ""
    return "; ".join(f"{product} of {layer} in {recipe}" for layer, product, recipe in keys[:SAID]) + more
