"""The function fp.analysis.plan, which chooses a recipe for each product of each layer within a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpsim.analysis.studies.arguments import require_positive
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.planning.evidence import Evidence, evidence_of
from fpsim.analysis.studies.planning.jointly import Jointly
from fpsim.analysis.studies.planning.optimum import Optimum, cheapest, optimum
from fpsim.analysis.studies.planning.prices import OPERANDS, product_bits, scaling_of
from fpsim.analysis.studies.planning.problem import Choice as Vector
from fpsim.analysis.studies.planning.problem import ChoiceProblem, Slot, problem_of
from fpsim.analysis.studies.planning.report import Choice, Other, Plan, PlanCandidate, Point
from fpsim.analysis.studies.planning.searches import at_random, greedy, most_careful, uniform
from fpsim.analysis.studies.planning.units import matching_layers, units_of
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.display.wording import bytes_in_words, listed, plural
from fpsim.errors import require_integer, shown
from fpsim.files import path_of
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.scaling.recipes import ROWS as SCALINGS

WIDEST = ("BF16", "FP32")  # recipes that a message proposes for a product that overflows in all others


def plan(
    source: Sensitivity | Budget | Sequence[Budget],
    *,
    bits: float | None = None,
    bytes: float | None = None,
    keep: str | Sequence[str] = (),
    groups: str | Sequence[str | Sequence[str]] = (),
    each: str = "product",
    by: str | None = None,
    random: int = 4,
    seed: int = 0,
    out: str | Path | None = None,
) -> Plan:
    """Choose the recipe (format, scaling, accumulator) of every product of every layer within a budget of bits or
    bytes.

    The harm of a product in a recipe is its squared relative error, or its change of the loss, measured with this
    product alone in low precision. Integer programming (`scipy.optimize.milp`) minimises the sum of the harms exactly,
    so that a larger budget never leads to a larger sum. As harms need not add up, the plan is then measured with all
    its products in their recipes at once; a greedy plan, random plans and the best single recipe within the budget are
    measured too (docs/plan.md).

    Args:
      source: an `fp.analysis.Sensitivity`, from whose recipes the plan chooses; or a sequence of error budgets
        (`fp.analysis.Budget`), one for each recipe, without a model to measure jointly.
      bits: the most bits per value, scales included, as a mean over all values of the operands that the products of a
        batch read.
      bytes: the most bytes of weights, in all copies that products read; products that read the same codes share a
        copy, and products that read no weight need none. Pass bits or bytes.
      keep: shell patterns of layers that stay exact, and that the budget does not count.
      groups: shell patterns, or tuples of several, whose layers share one choice: ["*.attn.*", ("*.up", "*.gate")].
      each: "product" to choose a recipe for each product, "layer" to choose one recipe for all products of a layer.
      by: the metric of a sensitivity that is minimised: "gradient_error" (the default with backward products),
        "output_error" (the default without) or "loss_change". Of relative errors the squares are added, as for errors
        of independent roundings. A change of the loss that is negative, or within its standard deviation over batches,
        counts as 0.
      random: number of random plans to measure.
      seed: seed of the random plans.
      out: a folder that stores each joint measurement as soon as it is made, so that the same call continues where it
        stopped; or None.
    Returns:
      A Plan.
    Raises:
      TypeError: an argument has another type.
      ValueError: there is no budget or two, no plan meets the budget, patterns match nothing or share layers, the
        metric does not depend on a product, a product was measured in no recipe, or the folder's measurements are of
        another model, data or recipes.

    Example:
      >>> import torch
      >>> _ = torch.manual_seed(0)
      >>> model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
      >>> measured = fp.analysis.sensitivity(model, [torch.randn(128, 128)], lambda model, x: model(x).square().mean(),
      ...                                    recipes=["BF16", "MXFP8"])
      >>> best = fp.analysis.plan(measured, bits=13)
      >>> best.cost <= 13, best.predicted <= min(rival.predicted for rival in best.candidates)
      (True, True)
    """
    kind, budget = _budget(bits, bytes)
    require_integer("random", random, 0)
    require_integer("seed", seed, 0)
    folder = None if out is None else path_of(out, "out")
    evidence = evidence_of(source, by)
    units = units_of(evidence.slots, keep, groups, each)
    delays = {recipe.delayed: name for name, recipe in evidence.recipes.items() if recipe.delayed is not None}
    if len(delays) > 1:
        raise ValueError(
            f"recipes with delayed scales must have the same options, which the products of a layer share; got "
            f"{listed([*delays.values()])}. Leave one out."
        )
    harms = {key: one.harm for key, one in evidence.measured.items()}
    problem = problem_of(units, evidence.recipes, harms, evidence.values, evidence.weights, kind)
    _refuse_without_recipe(problem)
    search = _PlanSearch(evidence, problem, kind)
    limit = problem.limit(budget)
    quick = greedy(problem, limit)
    best = optimum(problem, limit, quick)
    if best is None:
        raise ValueError(search.too_small(budget))
    choices = [("milp", best.choice), ("greedy", quick), *_rivals(problem, limit, random, seed)]
    with Jointly(evidence, folder) as jointly:
        candidates = tuple(
            search.candidate(method, vector, jointly) for method, vector in choices if vector is not None
        )
    kept = tuple(matching_layers("keep", keep, evidence.layers))
    notes = _notes(evidence, kept, best.proven, candidates[0], search.chips(candidates[0].assignment))
    return Plan(
        search.choices(candidates[0].assignment), kept, (kind, budget), evidence.figure, candidates, best.proven,
        dict(evidence.recipes), evidence.model, evidence.identity, tuple(notes), search, evidence.convolutions,
    )  # fmt: skip


def _refuse_without_recipe(problem: ChoiceProblem) -> None:
    """Raise a ValueError if a unit (set of products that share a recipe) has no recipe with a finite metric."""
    for number, unit in enumerate(problem.units):
        if not problem.open(number):
            layer, product = unit.slots[0]
            more = f" and {len(unit.slots) - 1} with it" if len(unit.slots) > 1 else ""
            wider = next((f", such as {name!r}" for name in WIDEST if name not in problem.names), "")
            raise ValueError(
                f"every product must have a recipe whose metric is finite; {product} of {layer}{more} has none among "
                f"{', '.join(problem.names)}. Measure with another recipe{wider}, or leave the layer out."
            )


def _rivals(problem: ChoiceProblem, limit: int, random: int, seed: int) -> list[tuple[str, Vector | None]]:
    """Return pairs (name, choice) of rival plans: random ones, and the best one with a single recipe for all products.

    A choice is the index of a recipe for each unit; None if no single recipe is within the budget. `limit`: the largest
    price. `random`: number of random plans. `seed`: seed of the first; each further plan has the next integer.
    """
    rivals: list[tuple[str, Vector | None]] = []
    if random:
        floor = cheapest(problem)
        rivals += [(f"random {i + 1}", at_random(problem, limit, floor, seed + i)) for i in range(random)]
    same = uniform(problem, limit)
    return [*rivals, (f"uniform {problem.names[same[0]]}" if same else "", same)]


def _notes(
    evidence: Evidence, kept: Sequence[str], proven: bool, chosen: PlanCandidate, chips: Sequence[str]
) -> list[str]:
    """Return the notes of a plan, sentences on properties that a user might not expect.

    `evidence`: the measured errors, with the recipes and layers that the plan leaves out. `kept`: layers that the user
    excludes from the plan. `proven`: whether the plan is proven optimal. `chosen`: the plan. `chips`: architectures of
    its matrix units.
    """
    notes = [*evidence.notes(kept), *filter(None, [evidence.uncounted])]
    if not proven:
        notes.append("Integer programming stopped before it proved that no other plan of this budget has less harm.")
    convolutions = [layer for layer in evidence.layers if layer in evidence.convolutions and layer not in kept]
    if convolutions:
        are = "is" if len(convolutions) == 1 else "are"
        notes.append(
            f"{plural(len(convolutions), 'convolution')} {are} planned but not in the recipe of training: fp.train, "
            "fp.torch.quantize_linears and the libraries change only linear layers."
        )
    if len(chips) > 1:
        notes.append(f"The recipes are for several chips, {listed(chips)}, so that no chip runs the whole plan.")
    if chosen.joint is None:
        missing = "a report that was loaded has" if evidence.identity else "budgets have"
        notes.append(f"Nothing was measured jointly: {missing} no model to run.")
    return notes


def _budget(bits: Any, size: Any) -> tuple[str, float]:
    """Return the name of the budget that is not None, "bits" or "bytes" (`size`), and its value as a float.

    Raise a ValueError unless exactly one is given and it is positive and finite; a TypeError unless it is a number.
    """
    if (bits is None) == (size is None):
        got = "neither" if bits is None else f"bits={shown(bits)} and bytes={shown(size)}"
        raise ValueError(f"plan needs either bits= or bytes= as its budget; got {got}.")
    name, value = ("bits", bits) if size is None else ("bytes", size)
    require_positive(name, value)
    return name, float(value)


@dataclass(frozen=True)
class _PlanSearch:
    """The search for plans of one problem, and the costs and metrics of the plans.

    Choices are given as a `vector`, the index of a recipe for each unit (products that share a recipe), or as an
    `assignment`, (layer, product) -> recipe name.

    Attributes:
      evidence: the measured error of every product in every recipe.
      problem: the choice of a recipe for each unit, in integers.
      kind: what the budget counts, "bits" or "bytes".
    """

    evidence: Evidence
    problem: ChoiceProblem
    kind: str

    def figure_of(self, harm: float) -> float:
        """Convert a plan's sum of harms (squared errors, or changes of the loss) to the plan's metric.

        For relative errors, return the square root of the sum; for changes of the loss, the sum itself.
        """
        return harm if self.evidence.figure == "loss_change" else math.sqrt(harm)

    def predicted(self, vector: Vector) -> float:
        """Return the metric predicted for a choice of recipes, from the metrics measured with single products.

        For relative errors, the prediction is the root of their sum of squares; for changes of the loss, their sum.
        `vector`: the index of a recipe for each unit (products that share a recipe).
        """
        return self.figure_of(self.problem.harm(vector) * self.problem.step)

    def candidate(self, method: str, vector: Vector, jointly: Jointly) -> PlanCandidate:
        """Return the plan with the choice of recipes that a search made, with its cost and metrics.

        If there is a model, the metric is measured with all products at once, or read from the file of `jointly`.
        `method`: name of the search. `vector`: the index of a recipe for each unit (products that share a recipe).
        """
        assignment = self.problem.assignment(vector)
        harm = self.problem.harm(vector) * self.problem.step
        cost = self.problem.cost(vector)
        return PlanCandidate(method, cost, harm, self.figure_of(harm), jointly.of(assignment), assignment)

    def too_small(self, budget: float) -> str:
        """Return the error message saying that no plan is within the budget, and what the cheapest plan costs.

        `budget`: bits per value, or bytes.
        """
        floor = cheapest(self.problem)
        cost = self.problem.cost(floor)
        names = self.problem.assignment(floor)
        counts = {name: list(names.values()).count(name) for name in dict.fromkeys(names.values())}
        recipes = ", ".join(f"{name} for {count}" for name, count in counts.items())
        digits = 10.0 ** (3 - math.floor(math.log10(cost)))  # four digits, rounded up
        bits = f"{math.ceil(cost * digits) / digits:g}"
        least = bits if self.kind == "bits" else f"{math.ceil(cost)} ({bytes_in_words(cost)})"
        return (
            f"{self.kind} must be at least {least}, which the cheapest plan takes ({recipes} of "
            f"{plural(len(names), 'product')}); got {budget:g}. Add a smaller recipe, or keep layers out of it."
        )

    def frontier(self, points: int, costs: Sequence[float]) -> tuple[Point, ...]:
        """Return the optimal and greedy plans for several budgets, in ascending order of the budgets.

        There are `points` budgets, evenly spaced from the cheapest plan to the one of the least predicted error, and
        further ones equal to `costs`. Raise an error if `points` is not an integer of at least 2.
        """
        require_integer("points", points, 2)
        low, high = self.problem.price(cheapest(self.problem)), self.problem.price(most_careful(self.problem))
        limits = {low + (high - low) * i // (points - 1) for i in range(points)}
        limits |= {limit for cost in costs if low < (limit := self.problem.limit(cost)) < high}
        frontier: list[Point] = []
        best: Optimum | None = None
        for limit in sorted(limits, reverse=True):
            other = greedy(self.problem, limit)
            if best is None or not best.proven or self.problem.price(best.choice) > limit:
                best = optimum(self.problem, limit, other)  # else the optimum of a larger budget is affordable
            budget = float(limit * self.problem.coin)
            for method, vector in (("greedy", other), ("milp", None if best is None else best.choice)):
                if vector is not None:
                    frontier.append(Point(method, budget, self.problem.cost(vector), self.predicted(vector)))
        frontier.reverse()
        return tuple(frontier)

    def instead(self, assignment: Any, layers: Any, recipe: str) -> tuple[float, float, float] | None:
        """Return the metric and bits of a plan in which all products of some layers follow one recipe instead.

        The result is (predicted metric, bits per value, bits per value of the plan as given); None if a product was not
        measured in the recipe. `assignment`: the plan, (layer, product) -> recipe name. `layers`: names of the changed
        layers. `recipe`: name of their new recipe.
        """
        other = {slot: recipe if slot[0] in layers else name for slot, name in assignment.items()}
        measured = [self.evidence.measured.get((*slot, name)) for slot, name in other.items()]
        harms = [one.harm for one in measured if one is not None]
        if len(harms) < len(measured):
            return None
        return self.figure_of(math.fsum(harms)), self._bits(other), self._bits(assignment)

    def _bits(self, assignment: Any) -> float:
        """Return the mean number of bits per operand value, scales included, over the products of an assignment.

        `assignment`: (layer, product) -> recipe name.
        """
        values = self.evidence.values
        bits = sum(
            product_bits(self.evidence.recipes[name], slot[1], values[slot]) for slot, name in assignment.items()
        )
        return float(bits / sum(sum(values[slot]) for slot in assignment))

    def chips(self, assignment: Any) -> tuple[str, ...]:
        """Return the architectures whose matrix units compute the products of an assignment, such as "hopper".

        `assignment`: (layer, product) -> recipe name.
        """
        adds = [self.evidence.recipes[name].accumulator(product) for (_, product), name in assignment.items()]
        return tuple(dict.fromkeys(unit.arch for unit in adds if isinstance(unit, MatrixUnit)))

    def choices(self, assignment: Any) -> tuple[Choice, ...]:
        """Return a Choice for each product of an assignment, in the model's order.

        `assignment`: (layer, product) -> recipe name.
        """
        return tuple(self._choice(slot, assignment[slot]) for slot in self.evidence.slots if slot in assignment)

    def _choice(self, slot: Slot, name: str) -> Choice:
        """Return the Choice of the recipe called `name` for one product, `slot` = (layer, product).

        The Choice also names the measured recipes with the next fewer and the next more bits for this product. If
        several recipes have that number of bits, it names the one with the smallest metric.
        """
        (layer, product), values = slot, self.evidence.values[slot]
        others = [
            Other(other, float(product_bits(recipe, product, values) / sum(values)), self.evidence.measured[key].value)
            for other, recipe in self.evidence.recipes.items()
            if (key := (layer, product, other)) in self.evidence.measured
        ]
        mine = next(other for other in others if other.recipe == name)
        below = [other for other in others if other.bits < mine.bits]
        above = [other for other in others if other.bits > mine.bits]
        # of recipes with equal bits the one with less harm
        cheaper = max(below, key=lambda other: (other.bits, -other.value), default=None)
        dearer = min(above, key=lambda other: (other.bits, other.value), default=None)
        measured = self.evidence.measured[layer, product, name]
        return Choice(layer, product, name, *_arithmetic(self.evidence.recipes[name], product), mine.bits,
                      *measured, cheaper, dearer)  # fmt: skip


def _arithmetic(recipe: LinearRecipe, product: str) -> tuple[tuple[str, str], tuple[str, str], str, str, str]:
    """Return the fields `formats`, `scalings`, `accumulator`, `schedule` and `out_fmt` of a Choice.

    `recipe`, `product`: the chosen recipe, and "fprop", "dgrad" or "wgrad".
    """
    left, right = (
        ("float32" if fmt is None else str(fmt), "none" if fmt is None else _scales(recipe, operand, back))
        for fmt, (operand, back) in zip(recipe.operands(product), OPERANDS[product], strict=True)
    )
    how, adds = getattr(recipe, product), recipe.accumulator(product)
    accumulator = "torch" if adds is None else adds.name if isinstance(adds, MatrixUnit) else repr(adds)
    schedule = repr(how.schedule) if how.schedule is not None else f"promote={how.promote}" if how.promote else ""
    result = "" if how.out_fmt is None else str(how.out_fmt)
    return (left[0], right[0]), (left[1], right[1]), accumulator, schedule, result


def _scales(recipe: LinearRecipe, operand: str, backward: bool) -> str:
    """Return the name of the scaling with which a recipe casts an operand; "none" without scales.

    `operand`: "input", "weight" or "grad". `backward`: whether a backward product reads it.
    """
    scaling = scaling_of(recipe, operand, backward=backward)
    if scaling is None:
        return "none"
    name = scaling.name or next((name for name, row in SCALINGS.items() if row == scaling), "")
    across = next((name for name, row in SCALINGS.items() if row.transposed() == scaling), "")
    text = repr(scaling) if name or not across else f"fp.scalings.{across}, transposed"
    return f"{text}, delayed" if recipe.delayed is not None else text
