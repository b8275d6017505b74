"""Plans found by simple searches, for comparison with the optimum: greedy, random, and one recipe for all products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fpsim.analysis.studies.planning.problem import Choice, ChoiceProblem


class RecipeStep(NamedTuple):
    """A step of a search: units (sets of products that share a recipe) change to another recipe.

    Attributes:
      harm, price: the resulting changes of harm (squared error, or change of the loss) and price, in the problem's
        integers.
      units: indices of the units.
      recipe: index of the recipe to which they change.
    """

    harm: int
    price: int
    units: tuple[int, ...]
    recipe: int


class Spending:
    """A choice of recipes that a search changes step by step, with its price.

    Args:
      problem: the problem of choosing a recipe for each unit (set of products that share a recipe).
      choice: the choice to begin with, the index of a recipe for each unit.
    """

    def __init__(self, problem: ChoiceProblem, choice: Sequence[int]) -> None:
        self.problem, self.choice = problem, list(choice)
        self._uses: dict[tuple[int, int], list[int]] = {}
        for place, item in enumerate(problem.items):
            for user in item.users:
                self._uses.setdefault(user, []).append(place)
        self._users = [0] * len(problem.items)
        for unit, recipe in enumerate(choice):
            self._count(unit, recipe, 1)
        self.price = problem.price(choice)

    def _count(self, unit: int, recipe: int, more: int) -> int:
        """Count a unit that begins (`more` = 1) or ceases (-1) to follow a recipe; return the change of price.

        `unit`, `recipe`: given by index. An item of cost is paid while any unit follows a recipe that needs it.
        """
        change = 0
        for place in self._uses.get((unit, recipe), ()):
            self._users[place] += more
            if self._users[place] == (1 if more > 0 else 0):
                change += more * self.problem.items[place].price
        return change

    def step(self, units: Sequence[int], recipe: int) -> RecipeStep:
        """Return, as a RecipeStep, by how much harm and price would change if some units changed to one recipe.

        `units`: indices of the units (sets of products that share a recipe). `recipe`: index of the recipe.
        """
        before = [self.choice[unit] for unit in units]
        harm, price = self.take(units, [recipe] * len(units))
        self.take(units, before)
        return RecipeStep(harm, price, tuple(units), recipe)

    def take(self, units: Sequence[int], recipes: Sequence[int]) -> tuple[int, int]:
        """Change some units to other recipes; return (change of harm, change of price), in the problem's integers.

        Harm is the squared error, or the change of the loss. `units`: indices of the units. `recipes`: index of the new
        recipe of each.
        """
        harm = price = 0
        for unit, recipe in zip(units, recipes, strict=True):
            old = self.choice[unit]
            harm += self.problem.harm_of(unit, recipe) - self.problem.harm_of(unit, old)
            price += self._count(unit, old, -1) + self._count(unit, recipe, 1)
            self.choice[unit] = recipe
        self.price += price
        return harm, price

    def steps(self) -> Iterator[RecipeStep]:
        """Yield every step in which one unit, or all units of a group of layers, change to another recipe.

        The units of a group change to the same recipe, which may save a copy of a weight that they share.
        """
        groups: dict[int, list[int]] = {}
        for unit, spec in enumerate(self.problem.units):
            groups.setdefault(spec.group, []).append(unit)
        for unit, old in enumerate(self.choice):
            for recipe in self.problem.open(unit):
                if recipe != old:
                    yield self.step([unit], recipe)
        for units in groups.values():
            if len(units) > 1:
                for recipe in set.intersection(*(set(self.problem.open(unit)) for unit in units)):
                    yield self.step(units, recipe)


def most_careful(problem: ChoiceProblem) -> Choice:
    """Return the choice of the least harm at any price; of recipes with equal harm, the cheapest.

    A choice is the index of a recipe for each unit of the problem. Harm is the squared error, or the change of the
    loss.

    Example:
      >>> from fractions import Fraction
      >>> from fpsim.analysis.studies.planning.problem import ChoiceProblem, Item, Unit
      >>> from fpsim.analysis.studies.planning.searches import greedy, most_careful
      >>> units = [Unit((("0", "fprop"),), 0), Unit((("1", "fprop"),), 1)]
      >>> items = [Item(price, ((unit, r),)) for unit in (0, 1) for r, price in enumerate((16, 8))]
      >>> problem = ChoiceProblem(tuple(units), ("BF16", "MXFP8"), ((0, 5), (0, 9)), 1.0, tuple(items), Fraction(1))
      >>> most_careful(problem), greedy(problem, 24), greedy(problem, 15)
      ((0, 0), (1, 0), None)
    """
    alone = {user: 0 for item in problem.items for user in item.users}
    for item in problem.items:
        for user in item.users:
            alone[user] += item.price
    return tuple(
        min(problem.open(unit), key=lambda r: (problem.harm_of(unit, r), alone.get((unit, r), 0), r))
        for unit in range(len(problem.units))
    )


def greedy(problem: ChoiceProblem, limit: int) -> Choice | None:
    """Return a choice (index of a recipe for each unit) at a price of at most `limit`, found greedily.

    Its harm is the sum of squared errors, or of changes of the loss. The search begins with the choice of least harm.
    While the price is above the limit, it takes the step that adds the least harm per price saved. Then it takes steps
    that reduce the harm and stay within the limit, the most harm per added price first. Return None if no step reduces
    a price above the limit, which can happen if several products share copies of weights.
    """
    now = Spending(problem, most_careful(problem))
    while now.price > limit:
        saving = [step for step in now.steps() if step.price < 0]
        if not saving:
            return None
        best = min(saving, key=lambda step: (step.harm / -step.price, step.price, step.units, step.recipe))
        now.take(best.units, [best.recipe] * len(best.units))
    while True:
        better = [step for step in now.steps() if step.harm < 0 and now.price + step.price <= limit]
        if not better:
            return tuple(now.choice)
        best = min(better, key=lambda step: (max(step.price, 0) / -step.harm, step.harm, step.units, step.recipe))
        now.take(best.units, [best.recipe] * len(best.units))


def at_random(problem: ChoiceProblem, limit: int, floor: Choice, seed: int) -> Choice:
    """Return a random choice of recipes (index of a recipe for each unit) at a price of at most `limit`.

    The search begins with a random recipe for each unit. While the price is above the limit, a random unit gets its
    recipe in `floor`. Then random changes that reduce the squared errors (or changes of the loss) and stay within the
    limit are made.

    Args:
      problem: the problem of choosing a recipe for each unit.
      limit: the largest price, as an integer multiple of the problem's `coin`.
      floor: a choice whose price is at most `limit`.
      seed: seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    now = Spending(problem, [int(rng.choice(problem.open(unit))) for unit in range(len(floor))])
    for unit in rng.permutation(len(floor)):
        if now.price <= limit:
            break
        now.take([unit], [floor[unit]])
    moves = [(unit, recipe) for unit in range(len(floor)) for recipe in problem.open(unit)]
    for place in rng.permutation(len(moves)):
        unit, recipe = moves[place]
        step = now.step([unit], recipe)
        if step.harm < 0 and now.price + step.price <= limit:
            now.take([unit], [recipe])
    return tuple(now.choice)


def uniform(problem: ChoiceProblem, limit: int) -> Choice | None:
    """Return the best choice among those with one recipe for all units at a price of at most `limit`.

    The best choice has the least sum of squared errors, or of changes of the loss. Return None if no single recipe for
    all units meets the limit. A choice is a tuple with the index of a recipe for each unit (set of products that share
    a recipe).
    """
    same = [(recipe,) * len(problem.units) for recipe in range(len(problem.names))]
    possible = [choice for choice in same if all(r in problem.open(unit) for unit, r in enumerate(choice))]
    return min((c for c in possible if problem.price(c) <= limit), key=problem.rank, default=None)
