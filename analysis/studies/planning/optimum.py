"""The choice of recipes with the least total harm within a budget, found by integer programming."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from fpsim.analysis.studies.planning.problem import Choice, ChoiceProblem
from fpsim.analysis.studies.planning.searches import greedy

NODES = 100_000  # nodes of branch and bound after which the best plan so far is taken: the same on every machine
CUTS = 64  # most choices that are excluded one by one, as they are affordable only in float64
# The solver keeps constraints to 1e-6 and stops within 1e-6 of the optimum; coefficients of this size make that exact.
ROW_BITS, GOAL_BITS = 20, 30


class Optimum(NamedTuple):
    """The best choice of recipes found, and whether it is proven that no other choice within the budget is better.

    Attributes:
      choice: index of a recipe for each unit (set of products with one recipe).
      proven: True if no other choice can have a smaller sum of harms (squared errors, or changes of the loss).
    """

    choice: Choice
    proven: bool


def optimum(problem: ChoiceProblem, limit: int, rival: Choice | None = None) -> Optimum | None:
    """Return the choice of least total harm at a price of at most `limit`; of equal ones, the cheapest.

    Harms and prices are integers, with which every answer of the float64 solver is checked. If the solver stops early,
    the better of its choice and `rival` is returned; `proven` says whether the solver's lower bound rules out a choice
    of less harm. Return None if no choice is found.

    Args:
      problem: the problem of choosing a recipe for each unit (set of products with one recipe).
      limit: the largest price, as an integer multiple of the problem's `coin`.
      rival: a known choice within the limit, whose harm bounds the search; None for the choice that `greedy` finds.
    """
    rival = greedy(problem, limit) if rival is None else rival
    program = _Program(problem)
    first, bound = program.solved(program.harms, limit, None if rival is None else problem.harm(rival))
    if rival is not None and first is None and bound == math.inf:  # the solver says that there is no rival either
        first, bound = program.solved(program.harms, limit)
        bound = -math.inf if first is None else bound
    choices = [choice for choice in (first, rival) if choice is not None]
    if not choices:
        return None
    best = min(choices, key=problem.rank)
    cheaper, _ = program.solved(program.prices, limit, problem.harm(best))
    if cheaper is not None:
        best = min(best, cheaper, key=problem.rank)
    return Optimum(best, problem.harm(best) - bound < 1)


def cheapest(problem: ChoiceProblem) -> Choice:
    """Return the choice (index of a recipe for each unit) of the lowest price.

    Of choices with equal price, it is the one of the least total harm (squared errors, or changes of the loss).
    """
    program = _Program(problem)
    cheap, _ = program.solved(program.prices)
    assert cheap is not None  # every unit has a recipe
    price = problem.price(cheap)
    others = program.solved(program.harms, price)[0], greedy(problem, price)
    return min((cheap, *filter(None, others)), key=problem.rank)


class _Program:
    """The problem of choosing recipes as an integer program, for SciPy's solver `milp`.

    The program has a 0-1 variable for each unit (set of products with one recipe) and recipe, and a further variable
    for each item of cost, such as a copy of a weight, that several units or recipes share.
    """

    def __init__(self, problem: ChoiceProblem) -> None:
        self.problem = problem
        self.columns = [(unit, recipe) for unit in range(len(problem.units)) for recipe in problem.open(unit)]
        self.place = {column: i for i, column in enumerate(self.columns)}
        shared = [item for item in problem.items if len(item.users) > 1]
        self.size = len(self.columns) + len(shared)
        self.harms, self.prices = np.zeros(self.size), np.zeros(self.size)
        self.harms[: len(self.columns)] = [problem.harm_of(unit, recipe) for unit, recipe in self.columns]
        for item in problem.items:
            if len(item.users) == 1 and item.users[0] in self.place:
                self.prices[self.place[item.users[0]]] += item.price
        self.prices[len(self.columns) :] = [item.price for item in shared]
        self.rows: list[dict[int, float]] = [{} for _ in problem.units]
        for i, (unit, _) in enumerate(self.columns):
            self.rows[unit][i] = 1.0
        self.low, self.high = [1.0] * len(self.rows), [1.0] * len(self.rows)
        for i, item in enumerate(shared, len(self.columns)):  # an item is paid if one of its users is chosen
            for user in item.users:
                if user in self.place:
                    self._add({self.place[user]: 1.0, i: -1.0}, 0.0)

    def _add(self, row: dict[int, float], high: float) -> None:
        """Add the constraint that the sum of coefficient times variable is at most `high`.

        `row`: index of the variable -> coefficient.
        """
        self.rows.append(row)
        self.low.append(-math.inf)
        self.high.append(high)

    def solved(
        self, goal: npt.NDArray[np.float64], limit: int | None = None, most: int | None = None
    ) -> tuple[Choice | None, float]:  # fmt: skip
        """Return the choice of least harm or price, at a price of at most `limit` and a total harm of at most `most`.

        The choice is None if none was found. Also return a bound of the goal (total harm or price) below which no
        choice exists: -Inf if nothing is proven, Inf if no choice meets the limits.

        `goal`: the array `harms` or `prices` of this program, to minimise harm or price. `limit`, `most`: in the
        problem's integers; None for no limit.
        """
        kept, top = len(self.rows), np.ones(self.size)
        limits = [(x, bound) for x, bound in ((self.prices, limit), (self.harms, most)) if bound is not None]
        for numbers, bound in limits:  # what is beyond a limit by itself
            top[numbers > bound] = 0.0
        try:
            for numbers, bound in limits:
                possible = np.where(top > 0, numbers, 0.0)
                unit = _power(possible.sum(), ROW_BITS)
                self._add({i: x / unit for i, x in enumerate(possible) if x}, bound / unit)
            return self._answered(goal, top, limit, most)
        finally:
            del self.rows[kept:], self.low[kept:], self.high[kept:]

    def _answered(
        self, goal: npt.NDArray[np.float64], top: npt.NDArray[np.float64], limit: int | None, most: int | None
    ) -> tuple[Choice | None, float]:
        """Run the float64 solver until an answer meets the limits in exact integers; exclude answers that do not.

        Return (choice, bound) as `solved` does. The choice is None also if 64 answers did not meet the limits.
        `goal`: numbers whose sum over the chosen variables is minimised. `top`: upper bound of each variable. Both are
        float64 of shape (variables,). `limit`, `most`: largest price, and largest total harm (squared errors, or
        changes of the loss), or None.
        """
        whole = np.concatenate([np.ones(len(self.columns)), np.zeros(self.size - len(self.columns))])
        unit = _power(goal[top > 0].max(initial=0.0), GOAL_BITS)
        for _ in range(CUTS):
            places = [(k, i, x) for k, row in enumerate(self.rows) for i, x in row.items()]
            k, i, x = zip(*places, strict=True)
            solution = milp(
                np.where(top > 0, goal, 0.0) / unit,
                integrality=whole,
                bounds=Bounds(0, top),
                constraints=LinearConstraint(csr_array((x, (k, i)), shape=(len(self.rows), self.size)),
                                             self.low, self.high),
                options={"mip_rel_gap": 0.0, "node_limit": NODES},
            )  # fmt: skip
            bound = -math.inf if solution.mip_dual_bound is None else float(solution.mip_dual_bound) * unit
            if solution.x is None:
                return None, math.inf if solution.status == 2 else bound
            taken = [place for place in range(len(self.columns)) if solution.x[place] > 0.5]
            choice = tuple(recipe for _, recipe in (self.columns[place] for place in taken))
            fits = limit is None or self.problem.price(choice) <= limit
            if fits and (most is None or self.problem.harm(choice) <= most):
                return choice, bound
            self._add(dict.fromkeys(taken, 1.0), len(taken) - 1.0)
        return None, -math.inf


def _power(largest: float, bits: int) -> float:
    """Return the smallest power of two p >= 1 for which largest / p < 2**bits."""
    return 2.0 ** max(0, math.frexp(largest)[1] - bits)
