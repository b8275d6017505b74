"""The report of a plan: the recipe chosen for each product with its evidence, and other plans within the same
budget.
"""

from __future__ import annotations

import dataclasses
import glob
import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fpsim.analysis.studies.planning.evidence import LABELS, Measured
from fpsim.analysis.studies.planning.libraries import Setting, settings_of
from fpsim.analysis.studies.planning.problem import Slot
from fpsim.deprecation import warn_renamed
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import aligned, html_paragraphs, html_table
from fpsim.display.wording import bytes_in_words, plural
from fpsim.errors import require_kind, require_word
from fpsim.recipes.linear import FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.parts import Override
from fpsim.recipes.training_recipe import Recipe

POINTS = 16  # budgets of a frontier
SHOWN = 30  # choices that str() shows
CHOICE_HEADS = ("layer", "product", "recipe", "bits", "alone", "cheaper", "dearer")
CANDIDATE_HEADS = ("plan", "cost", "predicted", "measured", "gap")


class Other(NamedTuple):
    """A recipe that a plan did not choose for a product.

    Attributes:
      recipe: name of the recipe.
      bits: mean bits per operand value of the product in this recipe.
      value: the plan's metric, measured with this product alone in this recipe.
    """

    recipe: str
    bits: float
    value: float

    def __str__(self) -> str:
        return f"{self.recipe} {self.value:.2g} at {self.bits:.4g}"


@dataclass(frozen=True)
class Choice:
    """The recipe that a plan chose for one product of a layer, with its evidence.

    Attributes:
      layer, recipe: names of the layer and of the recipe.
      product: "fprop", "dgrad" or "wgrad".
      formats: formats of the left and the right operand, as text; "float32" if it is not cast.
      scalings: scalings of both operands, as text; "none" without scales.
      accumulator: the matrix unit or accumulator, as text; "torch" for torch's float32.
      schedule: the schedule, or the promotion every few terms, as text; "" for terms that are added one after another.
      out_fmt: format of the result, as text; "" for the accumulator's.
      bits: mean bits per operand value that the product reads, scales included.
      value, spread: the metric measured with this product alone in the recipe, and its standard deviation over batches.
      harm: the square of a relative error, or a change of the loss; plans minimise the sum of harms over products.
      cheaper, dearer: the next recipes of fewer and of more bits, each an `Other`; None if there is none.
    """

    layer: str
    product: str
    recipe: str
    formats: tuple[str, str]
    scalings: tuple[str, str]
    accumulator: str
    schedule: str
    out_fmt: str
    bits: float
    value: float
    spread: float
    harm: float
    cheaper: Other | None
    dearer: Other | None

    @property
    def out_format(self) -> str:
        """Deprecated name of `out_fmt`; using it warns."""
        warn_renamed("Choice.out_format", "Choice.out_fmt")
        return self.out_fmt

    def to_dict(self) -> dict[str, Any]:
        """Return the names, formats and metrics of the choice as a dictionary, for a row of a table."""
        fields: dict[str, Any] = {"layer": self.layer, "product": self.product, "recipe": self.recipe}
        for i, side in enumerate("ab"):
            fields |= {f"format_{side}": self.formats[i], f"scaling_{side}": self.scalings[i]}
        names = ("accumulator", "schedule", "out_fmt", "bits", "value", "spread", "harm")
        fields |= {name: getattr(self, name) for name in names}
        for name in ("cheaper", "dearer"):
            other = getattr(self, name)
            fields |= {name: "" if other is None else other.recipe}
            fields |= {
                f"{name}_{part}": math.nan if other is None else getattr(other, part) for part in ("bits", "value")
            }
        return fields


@dataclass(frozen=True)
class PlanCandidate:
    """A plan within the budget, and the search that made it.

    Attributes:
      method: the search, such as "milp" (integer programming), "greedy", "random 1" or "uniform MXFP8".
      cost: cost in the budget's unit of measure: bits per value, or bytes.
      harm: the sum over the products of their squared relative errors, or of their changes of the loss.
      predicted: the metric that follows from `harm`: its square root for relative errors, `harm` itself for changes of
        the loss.
      joint: the metric measured with all products in their recipes at once; None if it was not measured.
      assignment: (layer, product) -> name of the recipe.
    """

    method: str
    cost: float
    harm: float
    predicted: float
    joint: Measured | None
    assignment: Mapping[Slot, str] = dataclasses.field(repr=False)

    @property
    def gap(self) -> float:
        """Relative difference of the measured from the predicted metric (0.1: 10 % more). NaN if nothing was measured,
        or if the prediction is 0.
        """
        if self.joint is None or self.predicted == 0:
            return math.nan
        return self.joint.value / self.predicted - 1

    def to_dict(self) -> dict[str, Any]:
        """Return the method, cost and metrics of the plan as a dictionary, for a row of a table."""
        measured, spread = (math.nan, math.nan) if self.joint is None else self.joint[:2]
        return {"method": self.method, "cost": self.cost, "predicted": self.predicted, "measured": measured,
                "spread": spread, "gap": self.gap}  # fmt: skip


class Point(NamedTuple):
    """A point on the curve of the plans that a search finds for growing budgets.

    Attributes:
      method: the search, "milp" (integer programming) or "greedy".
      budget: the largest cost allowed, bits per value or bytes.
      cost, predicted: the cost of the plan found, and its predicted metric.
    """

    method: str
    budget: float
    cost: float
    predicted: float


@dataclass(frozen=True)
class Plan:
    """A recipe for each product of each layer, chosen within a budget.

    Attributes:
      choices: a Choice for each layer and product, in the model's order.
      kept: layers that the user keeps exact, and that the budget does not count.
      budget: ("bits", bits per value) or ("bytes", bytes of weights).
      figure: the metric that is minimised: "gradient_error", "output_error", "loss_change" or "joint" (of budgets).
      candidates: this plan first, then greedy, random and uniform plans of the same budget.
      proven: whether it is proven that no plan within this budget has a smaller predicted metric.
      recipes: name -> recipe.
      model, identity: the name of the model's class, and a digest of the model, the data and the recipes.
      notes: sentences on properties that a user might not expect.
      convolutions: layers that are convolutions, which no recipe of training names.
    """

    choices: tuple[Choice, ...] = dataclasses.field(repr=False)
    kept: tuple[str, ...]
    budget: tuple[str, float]
    figure: str
    candidates: tuple[PlanCandidate, ...] = dataclasses.field(repr=False)
    proven: bool
    recipes: Mapping[str, LinearRecipe] = dataclasses.field(repr=False)
    model: str
    identity: str
    notes: tuple[str, ...] = ()
    _search: Any = dataclasses.field(default=None, repr=False, compare=False)
    convolutions: frozenset[str] = frozenset()

    def __getitem__(self, key: Slot) -> Choice:
        """Return the Choice for (layer, product); raise a KeyError if the plan has no such product."""
        for choice in self.choices:
            if (choice.layer, choice.product) == key:
                return choice
        raise KeyError(f"no choice for layer and product {key!r}; there are {plural(len(self.choices), 'choice')}")

    @property
    def chosen(self) -> PlanCandidate:
        """The plan itself as a PlanCandidate (the first of `candidates`), with its cost and metrics."""
        return self.candidates[0]

    @property
    def assignment(self) -> dict[Slot, str]:
        """(layer, product) -> name of the chosen recipe, as `Sensitivity.measure` accepts it."""
        return dict(self.chosen.assignment)

    @property
    def cost(self) -> float:
        """Cost of the plan in the unit of its budget: bits per value, or bytes."""
        return self.chosen.cost

    @property
    def predicted(self) -> float:
        """The plan's metric, predicted as if the squared errors (or loss changes) of single products add up."""
        return self.chosen.predicted

    @property
    def measured(self) -> float:
        """The plan's metric, measured with all products in their recipes at once; NaN if it was not measured."""
        return math.nan if self.chosen.joint is None else self.chosen.joint.value

    @property
    def gap(self) -> float:
        """Relative difference of the measured from the predicted metric (0.1: 10 % more); NaN if unknown."""
        return self.chosen.gap

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The closest settings of torchao and Transformer Engine for the plan's linear layers, and how they differ from
        the plan."""
        linear = [choice for choice in self.choices if choice.layer not in self.convolutions]
        return settings_of(linear, self.recipes, self._lost)

    def _lost(self, layers: Sequence[str], recipe: str) -> str:
        """Return a sentence on how the plan's metric and bits change if all products of some layers follow one recipe.

        `recipe`: name of the recipe. Return "" if the change is unknown.
        """
        change = self._search.instead(self.assignment, layers, recipe)
        if change is None:
            return ""
        after, bits, before = change
        return (
            f"With {recipe} for all products of {'it' if len(layers) == 1 else 'them'}, the prediction would be "
            f"{after:.3g} instead of {self.predicted:.3g}, at {bits:.4g} instead of {before:.4g} bits a value."
        )

    def frontier(self, points: int = POINTS) -> tuple[Point, ...]:
        """Return the optimal and the greedy plans for several budgets, with predicted metrics.

        The budgets extend from the cost of the cheapest plan to that of the plan of the least predicted metric.

        Args:
          points: number of evenly spaced budgets; the costs of the plan and its rivals are added as further budgets.
        """
        return tuple(self._search.frontier(points, [plan.cost for plan in self.candidates]))

    def to_recipe(self, base: Recipe | None = None, *, name: str = "PLAN") -> Recipe:
        """Return the plan as a recipe of training: an override for each linear layer, and float32 for all else.

        Args:
          base: a recipe of training from which optimizer, loss scale and other fields are taken; None for the
            defaults of `fp.train.Recipe`.
          name: name of the recipe.
        Raises:
          TypeError: base is not a recipe of training.
        """
        require_kind("base", base, (Recipe, type(None)), "an fp.train.Recipe or None")
        rows: dict[tuple[str, str], list[str]] = {}
        for choice in self.choices:
            if choice.layer in self.convolutions:
                continue
            rows.setdefault((choice.layer, choice.recipe), []).append(choice.product)
        overrides = tuple(
            Override(
                glob.escape(layer), products=tuple(sorted(products, key=PRODUCTS.index)), linear=self.recipes[used]
            )
            for (layer, used), products in rows.items()
        )
        whole = Recipe() if base is None else base
        return whole.replace(
            name=name, linear=FP32, keep=("*",), overrides=overrides, controller=None, source=self._summary()
        )

    def to_toml(self, path: str | os.PathLike[str] | None = None, *, base: Recipe | None = None) -> str:
        """Return the plan as TOML, which `fp.train` and `fp.torch.quantize_linears` read; write it to `path` unless
        that is None.

        Args:
          path: a file, or None.
          base: a recipe of training from which optimizer, loss scale and other fields are taken; None for the
            defaults of `fp.train.Recipe`.
        Raises:
          OSError: the file cannot be written.
          ImportError: tomli-w is not installed.
        """
        return self.to_recipe(base).to_toml(path)

    def to_frame(self, by: str = "choice") -> DataFrame:
        """Return a pandas DataFrame with a row for each Choice, or for each PlanCandidate.

        Args:
          by: "choice" or "candidate", the kind of rows.
        Raises:
          ValueError: by is another value.
        """
        require_word("by", by, ("choice", "candidate"))
        rows = self.choices if by == "choice" else self.candidates
        return frame([row.to_dict() for row in rows])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the plans' predicted and measured errors over their costs, and return the matplotlib axes. `ax`: the
        axes to draw into; None for new ones.
        """
        from fpsim.analysis.studies.planning.figure import plan_axes

        return plan_axes(self.candidates, self.frontier(), self.budget, self.figure, ax)

    @property
    def answer(self) -> str:
        """The plan in a few sentences: its cost, its predicted and measured error, and the best other plan."""
        plan, head = self.chosen, f"{self._summary()}."
        if plan.joint is None:
            return f"{head} It was not measured jointly."
        rivals = [rival for rival in self.candidates[1:] if rival.joint is not None]
        if not rivals:
            return head
        best = min(rivals, key=_measured_harm)
        assert best.joint is not None
        if best.assignment == plan.assignment:
            return f"{head} No other measured plan of this budget is better; the {best.method} plan is the same."
        measured = f"{best.joint.value:.3g}, also measured jointly"
        if best.joint.harm >= plan.joint.harm:
            return f"{head} The best other plan is the {best.method} plan with {measured}."
        spread = max(plan.joint.spread, best.joint.spread)
        if plan.joint.value - best.joint.value <= spread:  # False where the spread is not known
            return (
                f"{head} The {best.method} plan has {measured}; the difference is within the standard deviation over "
                f"batches ({spread:.2g})."
            )
        return f"{head} The {best.method} plan is better with {measured}: harms do not add up here."

    def _summary(self) -> str:
        """Return the number of products, the cost and the error of the plan as text, without a final full stop."""
        plan, (kind, budget) = self.chosen, self.budget
        products = f"{plural(len(self.choices), 'product')} of {self.model}"
        if kind == "bits":
            cost = f"{plan.cost:.4g} of {budget:.4g} bits a value"
        else:
            cost = f"{bytes_in_words(plan.cost)} of {bytes_in_words(budget)} of weights"
        text = f"{products} in {cost}: {LABELS[self.figure]} {plan.predicted:.3g} predicted from single products"
        if plan.joint is None:
            return text
        gap = "" if math.isnan(plan.gap) else f" (additivity gap {100 * plan.gap:+.0f} %)"
        return f"{text}, {plan.joint.value:.3g} measured jointly{gap}"

    def __str__(self) -> str:
        """Return the answer, a table with a row for each choice, a table of all candidates, and the notes."""
        rows = [_cells(choice) for choice in self.choices[:SHOWN]]
        lines = [self.answer, "", *aligned([CHOICE_HEADS, *rows], texts=3)]
        if len(self.choices) > SHOWN:
            lines.append(f"... and {len(self.choices) - SHOWN} more")
        lines += ["", *aligned([CANDIDATE_HEADS, *map(_line, self.candidates)], texts=1)]
        if self.kept:
            lines += ["", f"Kept exact, and not counted by the budget: {', '.join(self.kept)}."]
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return f"<plan of {self._summary()}>"

    def _repr_html_(self) -> str:
        """Return the answer, the chosen recipes, rival plans and notes as HTML for notebooks."""
        said = html_paragraphs((*self.notes, *map(str, self.settings)))
        choices = html_table(CHOICE_HEADS, map(_cells, self.choices))
        others = html_table(CANDIDATE_HEADS, map(_line, self.candidates))
        return f"<p>{html.escape(self.answer)}</p>{choices}{others}{said}"


def _measured_harm(candidate: PlanCandidate) -> float:
    """Return the harm of a plan that was measured jointly; Inf if it was not measured, or is NaN."""
    harm = math.nan if candidate.joint is None else candidate.joint.harm
    return math.inf if math.isnan(harm) else harm


def _cells(choice: Choice) -> tuple[str, ...]:
    """Return the table cells for one choice: names, bits per value, metric, the next recipes of fewer and more bits."""
    others = ("" if other is None else str(other) for other in (choice.cheaper, choice.dearer))
    return (choice.layer or "(model)", choice.product, choice.recipe, f"{choice.bits:.4g}", f"{choice.value:.2g}",
            *others)  # fmt: skip


def _line(candidate: PlanCandidate) -> tuple[str, ...]:
    """Return the table cells for one plan: search, cost, predicted and measured metric, and their difference."""
    if candidate.joint is None:
        return candidate.method, f"{candidate.cost:.5g}", f"{candidate.predicted:.3g}", "not measured", ""
    gap = "" if math.isnan(candidate.gap) else f"{100 * candidate.gap:+.0f} %"
    return candidate.method, f"{candidate.cost:.5g}", f"{candidate.predicted:.3g}", f"{candidate.joint.value:.3g}", gap
