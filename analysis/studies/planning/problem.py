"""The choice of recipes as a problem in integers: units (products that share a recipe), prices and harms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from fpsim.analysis.studies.planning.prices import product_bits, weight_copy
from fpsim.recipes.linear_recipe import LinearRecipe

Slot = tuple[str, str]  # layer, product
Choice = tuple[int, ...]  # index of a recipe for each unit
STEPS = 1 << 26  # steps of harm in the least harmful plan; smaller differences are rounded away


class Unit(NamedTuple):
    """A set of products that must follow one recipe (not a matrix unit).

    Attributes:
      slots: (layer, product) of each product.
      group: index of the group of layers to which the products belong.
    """

    slots: tuple[Slot, ...]
    group: int

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers whose products are in the unit, in order, without repetitions."""
        return tuple(dict.fromkeys(layer for layer, _ in self.slots))


class Item(NamedTuple):
    """A cost, such as that of a copy of a weight, which is paid once if any of its users needs it.

    Attributes:
      price: the cost as a multiple of the problem's `coin`.
      users: pairs of indices, (unit, recipe); the pair needs the item if the unit (a set of products that share a
        recipe) follows the recipe.
    """

    price: int
    users: tuple[tuple[int, int], ...]  # (index of the unit, index of the recipe)


class ChoiceProblem(NamedTuple):
    """The problem of choosing a recipe for each unit (products that share a recipe) within a budget, in integers.

    A choice is a tuple with the index of a recipe for each unit.

    Attributes:
      units: the units, each of which follows one recipe.
      names: names of the recipes.
      harms: harms[unit][recipe], the harm (squared error, or change of the loss) as a multiple of `step`; None if the
        unit cannot follow the recipe.
      step: the harm for which the integer 1 stands.
      items: the costs that add up to a choice's price.
      coin: the cost for which a price of 1 stands, in bits per value or in bytes.
    """

    units: tuple[Unit, ...]
    names: tuple[str, ...]
    harms: tuple[tuple[int | None, ...], ...]
    step: float
    items: tuple[Item, ...]
    coin: Fraction

    def open(self, unit: int) -> list[int]:
        """Return the indices in `names` of the recipes that the products of a unit can follow.

        `unit`: index in `units`. A unit is a set of products that must share one recipe.
        """
        return [recipe for recipe, harm in enumerate(self.harms[unit]) if harm is not None]

    def harm_of(self, unit: int, recipe: int) -> int:
        """Return the harm (squared error, or change of the loss) of a unit in a recipe, as an integer multiple of
        `step`.

        `unit`, `recipe`: given by index; the unit must be able to follow the recipe.
        """
        harm = self.harms[unit][recipe]
        assert harm is not None
        return harm

    def harm(self, choice: Sequence[int]) -> int:
        """Return the total harm (squared errors, or changes of the loss) of a choice, as an integer multiple of `step`.

        `choice`: index of a recipe for each unit.
        """
        return sum(self.harm_of(unit, recipe) for unit, recipe in enumerate(choice))

    def price(self, choice: Sequence[int]) -> int:
        """Return the price of a choice (index of a recipe for each unit), as an integer multiple of `coin`."""
        return sum(item.price for item in self.items if any(choice[unit] == recipe for unit, recipe in item.users))

    def rank(self, choice: Choice) -> tuple[int, int, Choice]:
        """Return a sort key that is smallest for the best choice: (total harm, price, indices of the recipes).

        The harm is the sum of squared errors, or of changes of the loss.
        """
        return self.harm(choice), self.price(choice), choice

    def cost(self, choice: Sequence[int]) -> float:
        """Return the cost of a choice (index of a recipe for each unit): bits per value, or bytes."""
        return float(self.price(choice) * self.coin)

    def limit(self, budget: float) -> int:
        """Return the largest price within a budget (bits per value, or bytes), as an integer multiple of `coin`.

        A price is within the budget if its cost as a float, as `cost` returns it, is at most `budget`.
        """
        price = math.floor(Fraction(budget) / self.coin)
        return price + (float((price + 1) * self.coin) <= budget)

    def assignment(self, choice: Sequence[int]) -> dict[Slot, str]:
        """Return the recipe of every product, as (layer, product) -> name of the recipe.

        `choice`: for each unit in `units`, in order, the index in `names` of its recipe. A unit is a set of products
        that must share one recipe.
        """
        return {slot: self.names[r] for unit, r in zip(self.units, choice, strict=True) for slot in unit.slots}


def problem_of(
    units: Sequence[Unit], recipes: Mapping[str, LinearRecipe], harms: Mapping[tuple[str, str, str], float],
    values: Mapping[Slot, tuple[int, int]], weights: Mapping[str, int], budget: str,
) -> ChoiceProblem:  # fmt: skip
    """Return the problem of choosing recipes for some units, which are products that share a recipe.

    The harm of a unit is the sum of its products' harms, rounded to a multiple of the problem's `step`. The step is the
    sum over units of their smallest harms above 0, divided by 2^26.

    Args:
      units: products that share a recipe.
      recipes: name -> recipe.
      harms: (layer, product, recipe) -> harm (squared error, or change of the loss), not negative; recipes without a
        finite harm cannot be chosen.
      values: (layer, product) -> number of values of both operands.
      weights: layer -> number of values of its weight.
      budget: "bits", the mean bits per value over all values that products read; or "bytes", of the copies of weights,
        where products that read the same codes share a copy.
    """
    names = tuple(recipes)
    rows = [[sum(harms.get((*slot, name), math.inf) for slot in unit.slots) for name in names] for unit in units]
    smallest = (min((x for x in row if 0 < x < math.inf), default=0.0) for row in rows)
    step = math.fsum(smallest) / STEPS or 1.0  # so small that rounding to it changes nothing
    if budget == "bits":  # an item for each unit and recipe
        prices: dict[tuple[tuple[int, int], ...], Fraction] = {
            ((u, r),): sum((product_bits(recipe, slot[1], values[slot]) for slot in unit.slots), Fraction(0))
            for u, unit in enumerate(units)
            for r, recipe in enumerate(recipes.values())
        }
        items, coin = _in_coins(prices, Fraction(1, sum(sum(values[slot]) for unit in units for slot in unit.slots)))
    else:
        items, coin = _items_of_bytes(units, recipes, weights)
    whole = tuple(tuple(round(x / step) if math.isfinite(x) else None for x in row) for row in rows)
    return ChoiceProblem(tuple(units), names, whole, step, items, coin)


def _items_of_bytes(
    units: Sequence[Unit], recipes: Mapping[str, LinearRecipe], weights: Mapping[str, int]
) -> tuple[tuple[Item, ...], Fraction]:
    """Return an item of cost for each copy of a weight, and the factor that converts an item's price to bytes.

    `units`: products that share a recipe. The price, an integer, is proportional to the size of the copy. The users are
    the pairs (unit, recipe), by index, whose products read the copy. Copies with the same users are one item.
    `recipes`: name -> recipe. `weights`: layer -> number of values of its weight.
    """
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
    prices: dict[tuple[tuple[int, int], ...], Fraction] = {}
    for key, readers in users.items():  # copies that the same products read are one item
        prices[tuple(readers)] = prices.get(tuple(readers), Fraction(0)) + bits[key]
    return _in_coins(prices, Fraction(1, 8))


def _in_coins(
    prices: Mapping[tuple[tuple[int, int], ...], Fraction], worth: Fraction
) -> tuple[tuple[Item, ...], Fraction]:
    """Convert costs in bits to items with the smallest possible integer prices.

    Return the items, and the factor that converts a price to the budget's unit of measure (bits per value, or bytes).

    Args:
      prices: users -> bits. The users are pairs of indices (unit, recipe); the bits are paid once if one of these units
        follows its recipe.
      worth: the cost of one bit in the budget's unit of measure.
    """
    if not prices:  # products that read no weight
        return (), worth
    parts = math.lcm(*(price.denominator for price in prices.values()))
    whole = {users: int(price * parts) for users, price in prices.items()}
    common = math.gcd(*whole.values()) or 1
    return tuple(Item(price // common, users) for users, price in whole.items()), worth * common / parts
