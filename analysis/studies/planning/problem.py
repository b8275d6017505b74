"""The choice as integers: units that share a recipe, the harm of each recipe, and what it takes of the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from fpsim.analysis.studies.planning.prices import product_bits, weight_copy
from fpsim.recipes.linear_recipe import LinearRecipe

Slot = tuple[str, str]  # layer, product
Choice = tuple[int, ...]  # a recipe for each unit
STEPS = 1 << 26  # of harm in the least harmful plan: smaller differences count as none


class Unit(NamedTuple):
    """Products of layers that follow one recipe."""

    slots: tuple[Slot, ...]
    group: int  # which layers these are

    @property
    def layers(self) -> tuple[str, ...]:
        """Its layers, in order."""
        return tuple(dict.fromkeys(layer for layer, _ in self.slots))


class Item(NamedTuple):
    """Something that the budget pays once, whoever uses it."""

    price: int
    users: tuple[tuple[int, int], ...]  # unit, recipe


class ChoiceProblem(NamedTuple):
    """What is to be chosen.

    Attributes:
      units: each takes one recipe.
      names: of the recipes.
      harms: of each unit and recipe in steps; None where it cannot be chosen.
      step: the harm of one step.
      items: what the budget pays.
      coin: what a price of 1 is, in bits a value or bytes.
    """

    units: tuple[Unit, ...]
    names: tuple[str, ...]
    harms: tuple[tuple[int | None, ...], ...]
    step: float
    items: tuple[Item, ...]
    coin: Fraction

    def open(self, unit: int) -> list[int]:
        """The recipes that a unit can follow."""
        return [recipe for recipe, harm in enumerate(self.harms[unit]) if harm is not None]

    def harm_of(self, unit: int, recipe: int) -> int:
        """The harm of one that it can follow."""
        harm = self.harms[unit][recipe]
        assert harm is not None
        return harm

    def harm(self, choice: Sequence[int]) -> int:
        """The harm of one recipe for each unit, in steps."""
        return sum(self.harm_of(unit, recipe) for unit, recipe in enumerate(choice))

    def price(self, choice: Sequence[int]) -> int:
        """What one recipe for each unit costs."""
        return sum(item.price for item in self.items if any(choice[unit] == recipe for unit, recipe in item.users))

    def rank(self, choice: Choice) -> tuple[int, int, Choice]:
        """What makes one choice better than another: less harm, then a lower price, then its place."""
        return self.harm(choice), self.price(choice), choice

    def cost(self, choice: Sequence[int]) -> float:
        """The same in bits a value, or bytes."""
        return float(self.price(choice) * self.coin)

    def limit(self, budget: float) -> int:
        """The largest price that a budget pays."""
        return math.floor(Fraction(budget) / self.coin)

    def assignment(self, choice: Sequence[int]) -> dict[Slot, str]:
        """The recipe of each layer and product."""
        return {slot: self.names[r] for unit, r in zip(self.units, choice, strict=True) for slot in unit.slots}


def problem_of(
    units: Sequence[Unit],
    recipes: Mapping[str, LinearRecipe],
    harms: Mapping[tuple[str, str, str], float],
    values: Mapping[Slot, tuple[int, int]],
    weights: Mapping[str, int],
    budget: str,
) -> ChoiceProblem:
    """The problem of some units.

    Args:
      units: what is chosen together.
      recipes: by name.
      harms: of (layer, product, recipe), not negative; what is missing, NaN or Inf cannot be chosen.
      values: of both operands of each product.
      weights: values of each layer's weight.
      budget: "bits", the mean over all values that products read; or "bytes", of the weights' copies, where products
        that read the same codes share one.
    """
    names = tuple(recipes)
    rows = [[sum(harms.get((*slot, name), math.inf) for slot in unit.slots) for name in names] for unit in units]
    step = _step(rows)
    if budget == "bits":
        items, coin = _items_of_bits(units, recipes, values)
    else:
        items, coin = _items_of_bytes(units, recipes, weights)
    whole = tuple(tuple(round(x / step) if math.isfinite(x) else None for x in row) for row in rows)
    return ChoiceProblem(tuple(units), names, whole, step, items, coin)


def _step(rows: Sequence[Sequence[float]]) -> float:
    """A harm so small that it counts as none: of the smallest ones of all units together 2**-26."""
    smallest = (min((x for x in row if 0 < x < math.inf), default=0.0) for row in rows)
    return math.fsum(smallest) / STEPS or 1.0


def _items_of_bits(
    units: Sequence[Unit], recipes: Mapping[str, LinearRecipe], values: Mapping[Slot, tuple[int, int]]
) -> tuple[tuple[Item, ...], Fraction]:
    prices: dict[tuple[tuple[int, int], ...], Fraction] = {
        ((u, r),): sum((product_bits(recipe, slot[1], values[slot]) for slot in unit.slots), Fraction(0))
        for u, unit in enumerate(units)
        for r, recipe in enumerate(recipes.values())
    }
    return _in_coins(prices, Fraction(1, sum(sum(values[slot]) for unit in units for slot in unit.slots)))


def _items_of_bytes(
    units: Sequence[Unit], recipes: Mapping[str, LinearRecipe], weights: Mapping[str, int]
) -> tuple[tuple[Item, ...], Fraction]:
    users: dict[tuple[str, str], list[tuple[int, int]]] = {}
    bits: dict[tuple[str, str], Fraction] = {}
    for u, unit in enumerate(units):
        for r, recipe in enumerate(recipes.values()):
            for layer, product in unit.slots:
                copy = weight_copy(recipe, product, weights[layer])
                if copy is not None:
                    bits[layer, copy[0]] = copy[1]
                    readers = users.setdefault((layer, copy[0]), [])
                    if (u, r) not in readers:
                        readers.append((u, r))
    found: dict[tuple[tuple[int, int], ...], Fraction] = {}
    for key, who in users.items():  # copies that the same products read are one item
        found[tuple(who)] = found.get(tuple(who), Fraction(0)) + bits[key]
    return _in_coins(found, Fraction(1, 8))


def _in_coins(
    prices: Mapping[tuple[tuple[int, int], ...], Fraction], worth: Fraction
) -> tuple[tuple[Item, ...], Fraction]:
    """Prices in bits as integers, and what one of these is worth where a bit is worth so much."""
    if not prices:  # products that read no weight
        return (), worth
    parts = math.lcm(*(price.denominator for price in prices.values()))
    whole = {users: int(price * parts) for users, price in prices.items()}
    common = math.gcd(*whole.values()) or 1
    return tuple(Item(price // common, users) for users, price in whole.items()), worth * common / parts
