"""The least harm under a budget is that of all choices, and no other search is better."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fpsim.analysis.studies.planning import optimum as module
from fpsim.analysis.studies.planning.optimum import cheapest, optimum
from fpsim.analysis.studies.planning.problem import ChoiceProblem, Item, Unit
from fpsim.analysis.studies.planning.searches import at_random, greedy, most_careful, uniform
from tests.analysis.studies.planning.problems import every_choice, problem
from tests.kit.sweeps import case, in_turn, sweep

SEEDS = range(6)


@pytest.mark.parametrize("budget", ["bits", "bytes"])
@in_turn("seed", SEEDS)
def test_the_optimum_is_that_of_all_choices(seed: int, budget: str) -> None:
    one = problem(seed, budget)
    ranks = every_choice(one)
    prices = [price for _, price, _ in ranks]
    for limit in np.linspace(min(prices), max(prices), 4).astype(int).tolist():
        best = optimum(one, limit)
        assert best is not None
        assert best.proven
        assert one.rank(best.choice)[:2] == min(rank[:2] for rank in ranks if rank[1] <= limit)
    assert optimum(one, min(prices) - 1) is None
    assert one.price(cheapest(one)) == min(prices)
    assert one.harm(most_careful(one)) == min(harm for harm, _, _ in ranks)


@pytest.mark.parametrize("budget", ["bits", "bytes"])
@in_turn("seed", SEEDS)
def test_a_choice_is_within_a_budget_of_its_own_cost(seed: int, budget: str) -> None:
    """A cost that float64 rounds down bought a cheaper plan, or none."""
    one = problem(seed, budget, layers=3)
    for choice in {at_random(one, one.price(most_careful(one)), cheapest(one), draw) for draw in range(40)}:
        assert one.limit(one.cost(choice)) == one.price(choice)
        assert one.limit(np.nextafter(one.cost(choice), 0)) == one.price(choice) - 1


@pytest.mark.parametrize("budget", ["bits", "bytes"])
@sweep("seeds", SEEDS[:3], SEEDS[3:])
def test_a_larger_budget_never_gives_more_harm(seeds: range, budget: str) -> None:
    for seed in seeds:
        with case(seed):
            check_growing_budgets(seed, budget)


def check_growing_budgets(seed: int, budget: str) -> None:
    one = problem(seed, budget, layers=5, recipes=5, spread=[0.01, 1.0, 6.0][seed % 3])
    low, high = one.price(cheapest(one)), one.price(most_careful(one))
    harms = []
    for limit in np.linspace(low, high, 9).astype(int).tolist():
        best = optimum(one, limit)
        assert best is not None
        assert one.price(best.choice) <= limit
        harms.append(one.harm(best.choice))
    assert harms == sorted(harms, reverse=True)
    assert harms[-1] == one.harm(most_careful(one))


@in_turn("seed", SEEDS)
def test_no_other_search_finds_less_harm_and_all_keep_to_the_budget(seed: int) -> None:
    one = problem(seed, ["bits", "bytes"][seed % 2], layers=5)
    floor = cheapest(one)
    low, high = one.price(floor), one.price(most_careful(one))
    worse = 0
    for limit in np.linspace(low, high, 4).astype(int).tolist():
        best = optimum(one, limit)
        assert best is not None
        others = [greedy(one, limit), uniform(one, limit), *(at_random(one, limit, floor, s) for s in range(3))]
        for other in filter(None, others):
            assert one.price(other) <= limit
            assert one.harm(other) >= one.harm(best.choice)
            worse += one.harm(other) > one.harm(best.choice)
    assert worse  # or they would be the same search


def test_a_choice_that_float64_takes_for_affordable_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets one short of a price, where the solver's tolerance is made far larger than it is."""
    monkeypatch.setattr(module, "ROW_BITS", -24)
    one = problem(3, "bits")
    ranks = every_choice(one)
    for price in sorted({price for _, price, _ in ranks})[1:40:8]:
        best = optimum(one, price - 1)
        assert best is not None
        assert one.rank(best.choice)[:2] == min(rank[:2] for rank in ranks if rank[1] < price)


@in_turn("seed", SEEDS)
def test_of_equal_harms_the_lowest_price_is_taken(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = problem(seed, "bytes")
    harms = tuple(tuple(None if x is None else int(rng.integers(0, 2)) for x in row) for row in one.harms)
    one = one._replace(harms=harms)
    ranks = every_choice(one)
    for limit in np.quantile([price for _, price, _ in ranks], [0.3, 0.7, 1.0]).astype(int).tolist():
        best = optimum(one, limit)
        assert best is not None
        assert one.rank(best.choice)[:2] == min(rank[:2] for rank in ranks if rank[1] <= limit)


def test_a_solver_that_overlooks_the_rival_is_asked_again() -> None:
    """With the rival's harm as a limit, HiGHS found no choice at all, so that the rival counted as proven."""
    harms = ((1, 3, 3), (2, 2, 1), (1, 0, None), (2, None, 1), (2, 0, 1))
    items = (
        Item(401, ((0, 1), (1, 1), (2, 2))), Item(570901736, ((0, 0), (3, 2), (4, 1), (3, 0))),
        Item(451184182, ((0, 1), (4, 0), (2, 0), (0, 0))), Item(2, ((0, 2), (4, 1), (3, 0), (2, 2))),
        Item(756, ((0, 0), (3, 0))), Item(3, ((1, 1), (2, 0), (2, 1))), Item(169, ((1, 1), (4, 0), (0, 2))),
    )  # fmt: skip
    units = tuple(Unit(((str(number), "fprop"),), number) for number in range(5))
    problem = ChoiceProblem(units, ("a", "b", "c"), harms, 1.0, items, Fraction(1))
    assert greedy(problem, 1022086678) == (2, 2, 1, 2, 1)
    best = optimum(problem, 1022086678)
    assert best is not None
    assert (problem.harm((2, 2, 1, 2, 1)), problem.harm(best.choice), best.proven) == (5, 4, True)
