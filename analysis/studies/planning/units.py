"""The units of a plan, each a set of products that must follow the same recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fpsim.analysis.studies.arguments import matches, nearest_names, patterns_of
from fpsim.analysis.studies.planning.problem import Slot, Unit
from fpsim.errors import require_word, shown

EACH = ("product", "layer")


def units_of(slots: Sequence[Slot], keep: Any, groups: Any, each: str) -> tuple[Unit, ...]:
    """Return the units of a plan: sets of products that must follow the same recipe.

    Args:
      slots: (layer, product) of every product.
      keep: a shell pattern or several; the layers that match are left out.
      groups: patterns, or tuples of patterns; the layers that match one entry share their recipes.
      each: "product" for a choice for each product, "layer" for one choice for all products of a layer.
    Raises:
      TypeError, ValueError: patterns are not texts or match nothing, groups share a layer, or no layer is left.

    Example:
      >>> from fpsim.analysis.studies.planning.units import units_of
      >>> slots = [(layer, product) for layer in ("0", "1", "2") for product in ("fprop", "wgrad")]
      >>> [unit.slots for unit in units_of(slots, "2", ["[01]"], "product")]
      [(('0', 'fprop'), ('1', 'fprop')), (('0', 'wgrad'), ('1', 'wgrad'))]
    """
    require_word("each", each, EACH)
    layers = list(dict.fromkeys(layer for layer, _ in slots))
    kept = matching_layers("keep", keep, layers)
    left = [layer for layer in layers if layer not in kept]
    if not left:
        raise ValueError(f"keep must leave a layer to plan; got {shown(keep)}, which matches all {len(layers)}.")
    units: list[Unit] = []
    for number, together in enumerate(_groups(left, groups)):
        mine = [slot for slot in slots if slot[0] in together]
        products = dict.fromkeys(product for _, product in mine)
        for chosen in [tuple(products)] if each == "layer" else [(product,) for product in products]:
            units.append(Unit(tuple(slot for slot in mine if slot[1] in chosen), number))
    return tuple(units)


def _groups(layers: Sequence[str], groups: Any) -> list[list[str]]:
    """Return lists of layers that share recipes: each of the user's groups, and each other layer alone.

    `groups`: a sequence of shell patterns and tuples of patterns, or one pattern. Raise a ValueError if two groups
    share a layer, or if a pattern matches none.
    """
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        groups = [groups]
    owner: dict[str, Any] = {}
    members: list[list[str]] = []
    for group in groups:
        mine = matching_layers("groups", group, layers, 1)
        for layer in mine:
            if layer in owner:
                raise ValueError(
                    f"groups must not share a layer; got {shown(owner[layer])} and {shown(group)}, which both match "
                    f"{layer!r}."
                )
            owner[layer] = group
        members.append(mine)
    members += [[layer] for layer in layers if layer not in owner]
    return sorted(members, key=lambda mine: layers.index(mine[0]))


def matching_layers(argument: str, patterns: Any, layers: Sequence[str], least: int = 0) -> list[str]:
    """Return those of `layers` that match a shell pattern, or one of several, in order.

    `argument`: name of the user's argument, for messages. `least`: smallest number of patterns. Raise a ValueError for
    fewer patterns or one that matches no layer, a TypeError for patterns that are not texts.
    """
    several = patterns_of(patterns, argument, least)
    for pattern in several:
        if not any(matches(layer, pattern) for layer in layers):
            raise ValueError(
                f"{argument} must match a layer of the plan; got {pattern!r}, which matches none of {len(layers)}. "
                f"Near it: {nearest_names(pattern, layers)}."
            )
    return [layer for layer in layers if matches(layer, several)]
