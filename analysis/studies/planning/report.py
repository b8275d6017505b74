"""The report of a plan: the choice for each product with its evidence, and other plans of the same budget beside it."""

from __future__ import annotations

import dataclasses
import glob
import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fpsim.analysis.studies.planning.evidence import Measured
from fpsim.analysis.studies.planning.libraries import Setting, settings_of
from fpsim.analysis.studies.planning.problem import Slot
from fpsim.deprecation import warn_renamed
from fpsim.display.optional import frame
from fpsim.display.wording import bytes_in_words, plural
from fpsim.errors import require_kind, require_word
from fpsim.recipes.linear import FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.parts import Override
from fpsim.recipes.training_recipe import Recipe

POINTS = 16  # budgets of a frontier
SHOWN = 30  # choices that print shows
SAID = {"gradient_error": "error of the gradient", "output_error": "error of the outputs",
        "loss_change": "change of the loss", "joint": "error of the products"}  # fmt: skip


class Other(NamedTuple):
    """What another recipe would have done to a product.

    Attributes:
      recipe: its name.
      bits: a value that the product reads.
      value: the figure, measured with this product alone.
    """

    recipe: str
    bits: float
    value: float

    def __str__(self) -> str:
        return f"{self.recipe} {self.value:.2g} at {self.bits:.4g}"


@dataclass(frozen=True)
class Choice:
    """The recipe of one product of a layer, and what others would have done.

    Attributes:
      layer, product, recipe: names.
      formats, scalings: of the left and the right operand, as text; "float32" where one is not cast, "none" where it
        has no scales.
      accumulator: what adds: a unit or an accumulator, or "torch" in float32.
      schedule: in which order; "" for one chain, or promotion.
      out_fmt: of the result; "" for the accumulator's.
      bits: a value that the product reads, scales included.
      value, spread: the figure of this product alone, and its standard deviation over batches.
      harm: what is added up of it.
      cheaper, dearer: the next recipes in fewer and in more bits; None without one.
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
        """Return `out_fmt`, by its old name."""
        warn_renamed("Choice.out_format", "Choice.out_fmt")
        return self.out_fmt

    def to_dict(self) -> dict[str, Any]:
        """The row of a table."""
        found: dict[str, Any] = {"layer": self.layer, "product": self.product, "recipe": self.recipe}
        for i, side in enumerate("ab"):
            found |= {f"format_{side}": self.formats[i], f"scaling_{side}": self.scalings[i]}
        names = ("accumulator", "schedule", "out_fmt", "bits", "value", "spread", "harm")
        found |= {name: getattr(self, name) for name in names}
        for name in ("cheaper", "dearer"):
            other = getattr(self, name)
            found |= {name: "" if other is None else other.recipe}
            found |= {
                f"{name}_{part}": math.nan if other is None else getattr(other, part) for part in ("bits", "value")
            }
        return found


@dataclass(frozen=True)
class PlanCandidate:
    """A plan of the budget, however it was found.

    Attributes:
      method: "milp", "greedy", "random 1" or "uniform MXFP8", say.
      cost: in bits a value, or bytes.
      harm: the sum of the harms of single products.
      predicted: the figure that this comes to if they add up: of errors the root.
      joint: the figure as it was measured with all products low at once; None where nothing was.
      assignment: (layer, product) -> recipe.
    """

    method: str
    cost: float
    harm: float
    predicted: float
    joint: Measured | None
    assignment: Mapping[Slot, str] = dataclasses.field(repr=False)

    @property
    def gap(self) -> float:
        """How much larger the measured figure is than the predicted one: 0.1 is 10 %; NaN where it is not known."""
        if self.joint is None or self.predicted == 0:
            return math.nan
        return self.joint.value / self.predicted - 1

    def to_dict(self) -> dict[str, Any]:
        """The row of a table."""
        measured, spread = (math.nan, math.nan) if self.joint is None else self.joint[:2]
        return {"method": self.method, "cost": self.cost, "predicted": self.predicted, "measured": measured,
                "spread": spread, "gap": self.gap}  # fmt: skip


class Point(NamedTuple):
    """What a method does with a budget: the cost and the figure that it predicts."""

    method: str
    budget: float
    cost: float
    predicted: float


@dataclass(frozen=True)
class Plan:
    """A recipe for each product of each layer, under a budget.

    Attributes:
      choices: a Choice for each layer and product, in the model's order.
      kept: layers that stay as they are, outside of the budget.
      budget: "bits" or "bytes", and how many.
      figure: what is minimised: "gradient_error", "output_error", "loss_change" or "joint" (of budgets).
      candidates: this plan first; then greedy, random and uniform ones of the same budget.
      proven: whether no plan of this budget is better, as far as harms add up.
      recipes: name -> the recipe.
      model, identity: the class, and the digest of what was measured.
      notes: a sentence for each thing that one might not expect.
      convolutions: those of the layers that are, and that no recipe of training has.
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
        """The choice for (layer, product)."""
        for choice in self.choices:
            if (choice.layer, choice.product) == key:
                return choice
        raise KeyError(f"no choice for layer and product {key!r}; there are {plural(len(self.choices), 'choice')}")

    @property
    def chosen(self) -> PlanCandidate:
        """This plan beside other ones."""
        return self.candidates[0]

    @property
    def assignment(self) -> dict[Slot, str]:
        """(layer, product) -> name of its recipe, as `Sensitivity.measure` takes it."""
        return dict(self.chosen.assignment)

    @property
    def cost(self) -> float:
        """What it takes of the budget, in bits a value or bytes."""
        return self.chosen.cost

    @property
    def predicted(self) -> float:
        """The figure, if those of single products add up."""
        return self.chosen.predicted

    @property
    def measured(self) -> float:
        """The figure with all products low at once; NaN where it was not measured."""
        return math.nan if self.chosen.joint is None else self.chosen.joint.value

    @property
    def gap(self) -> float:
        """The additivity gap: how much larger the measured figure is than the predicted one; 0.1 is 10 %."""
        return self.chosen.gap

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The closest settings of torchao and Transformer Engine, and what differs."""
        linear = [choice for choice in self.choices if choice.layer not in self.convolutions]
        return settings_of(linear, self.recipes, self._lost)

    def _lost(self, layers: Sequence[str], recipe: str) -> str:
        """What some layers would lose with one recipe for all of their products, in a sentence."""
        found = self._search.instead(self.assignment, layers, recipe)
        if found is None:
            return ""
        after, bits, before = found
        return (
            f"With {recipe} for all products of {'it' if len(layers) == 1 else 'them'} the plan would have "
            f"{after:.3g} predicted, not {self.predicted:.3g}, in {bits:.4g} bits a value, not {before:.4g}."
        )

    def frontier(self, points: int = POINTS) -> tuple[Point, ...]:
        """What integer programming and the greedy search predict for budgets from the cheapest plan to the best one.

        Args:
          points: how many budgets; those that the plan and its rivals take are there as well.
        """
        found: tuple[Point, ...] = self._search.frontier(points, [one.cost for one in self.candidates])
        return found

    def to_recipe(self, base: Recipe | None = None, *, name: str = "PLAN") -> Recipe:
        """The plan as a recipe of training: an override for each linear layer and its products, all else in float32.

        Args:
          base: a recipe whose optimizer, loss scale and other fields to take; None for float32's.
          name: what it is called.
        Raises:
          TypeError: base is no recipe of training.
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
            name=name, linear=FP32, keep=("*",), overrides=overrides, controller=None, source=self._words()
        )

    def to_toml(self, path: str | os.PathLike[str] | None = None, *, base: Recipe | None = None) -> str:
        """The same as TOML, which `fp.train` and `fp.torch.quantize_linears` read; written where a path is given.

        Args:
          path: a file, or None.
          base: as of `to_recipe`.
        Raises:
          OSError: the file cannot be written.
          ImportError: tomli-w or cattrs is not installed.
        """
        return self.to_recipe(base).to_toml(path)

    def to_frame(self, by: str = "choice") -> Any:
        """A pandas DataFrame of the choices with their evidence, or of the candidates.

        Args:
          by: "choice" or "candidate".
        Raises:
          ValueError: another word.
        """
        require_word("by", by, ("choice", "candidate"))
        rows = self.choices if by == "choice" else self.candidates
        return frame([row.to_dict() for row in rows])

    def plot(self, ax: Any = None) -> Any:
        """Draw the figure over the budget, predicted and measured; returns the matplotlib axes."""
        from fpsim.analysis.studies.planning.figure import plan_axes

        return plan_axes(self, ax)

    @property
    def answer(self) -> str:
        """The plan in a few sentences."""
        one = self.chosen
        words = f"{self._words()}."
        if one.joint is None:
            return f"{words} It was not measured jointly."
        rivals = [each for each in self.candidates[1:] if each.joint is not None]
        if not rivals:
            return words
        best = min(rivals, key=lambda each: each.joint.harm if each.joint else math.inf)
        assert best.joint is not None
        if best.assignment == one.assignment:
            return f"{words} No other plan of this budget that was measured is better; {best.method} is the same."
        rest = f"{best.method} with {best.joint.value:.3g}"
        if best.joint.harm >= one.joint.harm:
            return f"{words} The best other one, measured likewise, is {rest}."
        differs = max(one.joint.spread, best.joint.spread)
        if one.joint.value - best.joint.value <= differs:  # False where it is not known
            apart = f"figures differ by {differs:.2g} between batches"
            return f"{words} Measured likewise, {rest} is not to be told from it: {apart}."
        return f"{words} Better, measured likewise, is {rest}: harms do not add up here."

    def _words(self) -> str:
        one, (kind, budget) = self.chosen, self.budget
        spent = f"{one.cost:.4g} bits a value" if kind == "bits" else bytes_in_words(one.cost) + " of weights"
        allowed = f"{budget:.4g}" if kind == "bits" else bytes_in_words(budget)
        found = f"{plural(len(self.choices), 'product')} of {self.model} in {spent} of {allowed}: "
        found += f"{SAID[self.figure]} {one.predicted:.3g} if single ones add up"
        if one.joint is not None:
            found += f", {one.joint.value:.3g} measured jointly"
            found += "" if math.isnan(one.gap) else f" (additivity gap {100 * one.gap:+.0f} %)"
        return found

    def __str__(self) -> str:
        """The plan in words, and a line for each choice and each candidate."""
        head = ("layer", "product", "recipe", "bits", "alone", "cheaper", "dearer")
        rows = [_cells(choice) for choice in self.choices[:SHOWN]]
        lines = [self.answer, "", *_table(head, rows, 3)]
        if len(self.choices) > SHOWN:
            lines.append(f"... and {len(self.choices) - SHOWN} more")
        lines += ["", *_table(("plan", "cost", "predicted", "measured", "gap"), list(map(_line, self.candidates)), 1)]
        if self.kept:
            lines += ["", f"Kept as they are, outside of the budget: {', '.join(self.kept)}."]
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return f"<plan of {self._words()}>"

    def _repr_html_(self) -> str:
        def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
            body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            return f"<table><tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>{body}</table>"

        said = "".join(f"<p>{html.escape(line)}</p>" for line in (*self.notes, *map(str, self.settings)))
        choices = table(("layer", "product", "recipe", "bits", "alone", "cheaper", "dearer"),
                        [_cells(choice) for choice in self.choices])  # fmt: skip
        others = table(("plan", "cost", "predicted", "measured", "gap"), list(map(_line, self.candidates)))
        return f"<p>{html.escape(self.answer)}</p>{choices}{others}{said}"


def _cells(choice: Choice) -> tuple[str, ...]:
    others = ("" if other is None else str(other) for other in (choice.cheaper, choice.dearer))
    return (choice.layer or "(model)", choice.product, choice.recipe, f"{choice.bits:.4g}", f"{choice.value:.2g}",
            *others)  # fmt: skip


def _line(one: PlanCandidate) -> tuple[str, ...]:
    if one.joint is None:
        return one.method, f"{one.cost:.5g}", f"{one.predicted:.3g}", "not measured", ""
    gap = "" if math.isnan(one.gap) else f"{100 * one.gap:+.0f} %"
    return one.method, f"{one.cost:.5g}", f"{one.predicted:.3g}", f"{one.joint.value:.3g}", gap


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]], texts: int) -> list[str]:
    """Lines of columns, the first ones to the left and the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(x.ljust(w) if i < texts else x.rjust(w) for i, (x, w) in enumerate(cells)).rstrip())
    return lines
