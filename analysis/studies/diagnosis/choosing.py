"""What a diagnosis recommends: the recipe that fits most, and 16 bits for what it does not fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fpsim.analysis.studies.diagnosis.verdict import Verdict, is_high
from fpsim.analysis.studies.planning.plan import plan
from fpsim.analysis.studies.planning.report import Plan
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of, spread_of
from fpsim.display.wording import listed
from fpsim.recipes.linear_recipe import LinearRecipe

ROOM = 1.05  # bits within which recipes are alike, as scales for every 32 values take 3 %: the lower error decides
WORTH = 0.25  # share of the bits of one recipe everywhere that a mix of two saves at least: libraries run one at a time
SAVES = 0.1  # share of the bits of the recipe of 16 bits that a recommendation of fewer saves at least
RANDOM = 2  # random plans beside it
SHARED = (
    "No product was measured alone in {}, as all that fit stay within the limit at once: figures of single products "
    "are shares of what all do, by the squares of their own errors."
)
Slots = Mapping[tuple[str, str], str]  # (layer, product) -> recipe


class Chosen(NamedTuple):
    """What is recommended.

    Attributes:
      plan: it.
      low: the recipe of fewer than 16 bits that is recommended, or would be where that paid; "" without one.
      high: the recipe of 16 bits or more.
      joint: of `low` for all that fits, and `high` for the rest, measured; None without one.
      missed: bits a value that were asked for and that what fits does not meet; None where it does.
      pays: whether fewer than 16 bits save enough.
    """

    plan: Plan
    low: str
    high: str
    joint: SensitivityRow | None
    missed: float | None
    pays: bool


def chosen(
    found: Sensitivity, verdicts: Sequence[Verdict], limit: float, bits: float | None, out: Path | None
) -> Chosen:
    """Choose among the recipes that fit each product.

    Without `bits` it is one recipe and the one of 16 bits: as few bits as keep the gradients, measured with all
    products low at once, within the limit, which may take a product out that fits alone. One recipe for every product
    is preferred to a mix that saves less than a quarter of its bits. With them
    it is the plan of the least harm, of all recipes that fit.
    """
    high = high_of(found.recipes, verdicts)
    lows = [name for name, recipe in found.recipes.items() if not is_high(recipe)]
    offers = {name: _assignment(verdicts, name, high) for name in lows}
    joint = {name: found.measure(each) for name, each in offers.items()}
    found = with_shares(found, verdicts, joint)
    if bits is None:
        low, made, missed = *_fewest(found, verdicts, offers, joint, high, limit, out), None
    else:
        low = _best(joint, {name: _bits_of(slots, verdicts) for name, slots in offers.items()}, limit, found.figure)
        made, missed = _of_bits(found, verdicts, {*lows, high}, high, bits, out)
    everywhere = _bits_of({(one.layer, one.product): high for one in verdicts}, verdicts)
    pays = _bits_of(made.assignment, verdicts) <= (1 - SAVES) * everywhere
    if bits is None and not pays:
        made = plan(_rows_of(found, verdicts, {high}), bits=_up(everywhere), random=0, out=out)
    return Chosen(_without(made, found), low, high, joint.get(low), missed, pays)


def high_of(recipes: Mapping[str, LinearRecipe], verdicts: Sequence[Verdict]) -> str:
    """Return the recipe of 16 bits or more that products stay in: the first of those in which the fewest overflow."""
    overflows = [one.recipe for one in verdicts if math.isinf(one.error)]
    return min((name for name, recipe in recipes.items() if is_high(recipe)), key=overflows.count)


def _assignment(verdicts: Sequence[Verdict], low: str, high: str) -> Slots:
    """A recipe wherever it fits, and the other one elsewhere."""
    slots: dict[tuple[str, str], str] = {(one.layer, one.product): high for one in verdicts}
    return slots | {(one.layer, one.product): low for one in verdicts if one.recipe == low and one.fits}


def _bits_of(slots: Slots, verdicts: Sequence[Verdict]) -> float:
    """Bits a value of all products."""
    of = {(one.layer, one.product, one.recipe): one for one in verdicts}
    found = [of[(*slot, name)] for slot, name in slots.items()]
    return math.fsum(one.bits * one.values for one in found) / sum(one.values for one in found)


def _fewest(
    found: Sensitivity, verdicts: Sequence[Verdict], offers: Mapping[str, Slots], joint: Mapping[str, SensitivityRow],
    high: str, limit: float, out: Path | None,
) -> tuple[str, Plan]:  # fmt: skip
    """The best recipe beside the one of 16 bits and its plan: all that fits where that is within the limit at once,
    else as much of it as is.
    """
    every = {name: _bits_of(slots, verdicts) for name, slots in offers.items()}
    plans: dict[str, Plan] = {}
    for name in sorted(offers, key=lambda name: every[name]):
        if plans and every[name] > ROOM * min(one.cost for one in plans.values()):
            break  # nor is what a part of it saves enough
        known = {every[name]} if figure_of(joint[name], found.figure) <= limit else set()
        made = _within(found, verdicts, {name, high}, limit, known, out)
        if made.measured <= limit and name in made.assignment.values():
            plans[name] = made
    if not plans:
        low = _best(joint, every, limit, found.figure)
        return low, _within(found, verdicts, {low, high} - {""}, limit, set(), out)
    rows = {name: found.measure(one.assignment) for name, one in plans.items()}
    low = _best(rows, {name: one.cost for name, one in plans.items()}, limit, found.figure)
    alone = _best_alone(offers, joint, every, limit, found.figure)
    if alone and len({*plans[low].assignment.values()}) > 1 and plans[low].cost > (1 - WORTH) * every[alone]:
        return alone, plan(_rows_of(found, verdicts, {alone}), bits=_up(every[alone]), random=0, out=out)
    return low, plan(_rows_of(found, verdicts, {low, high}), bits=_up(plans[low].cost), random=RANDOM, out=out)


def _best_alone(
    offers: Mapping[str, Slots], joint: Mapping[str, SensitivityRow], bits: Mapping[str, float], limit: float,
    figure: str,
) -> str:  # fmt: skip
    """Return the best recipe that every product can follow, within the limit at once; "" where there is none."""
    whole = [name for name, slots in offers.items() if {*slots.values()} == {name}]
    within = {name: joint[name] for name in whole if figure_of(joint[name], figure) <= limit}
    return _best(within, bits, limit, figure)


def _best(joint: Mapping[str, SensitivityRow], bits: Mapping[str, float], limit: float, figure: str) -> str:
    """The recipe of the fewest bits within the limit, of those that are alike that of the least error; "" without."""
    errors = {name: figure_of(row, figure) for name, row in joint.items()}
    within = [name for name in joint if errors[name] <= limit] or list(joint)
    if not within:
        return ""
    fewest = min(within, key=lambda name: (bits[name], errors[name]))
    alike = [name for name in within if bits[name] <= ROOM * bits[fewest]]
    best = min(alike, key=lambda name: errors[name])
    return fewest if alike_over_batches(joint[fewest], joint[best], figure) else best


def alike_over_batches(one: SensitivityRow, other: SensitivityRow, figure: str) -> bool:
    """Return whether the errors of gradients or outputs differ by no more than one of them does between batches."""
    spreads = [spread_of(row, figure) for row in (one, other) if not math.isnan(spread_of(row, figure))]
    return abs(figure_of(one, figure) - figure_of(other, figure)) <= max(spreads, default=0.0)


def with_shares(
    found: Sensitivity, verdicts: Sequence[Verdict], joint: Mapping[str, SensitivityRow]
) -> Sensitivity:  # fmt: skip
    """Return a sensitivity in which products that were not measured alone have a share of what all do to the outputs.

    Squares of errors of independent roundings add up, so that shares of the square are those of the products' own.

    Args:
      joint: recipe -> the row of all that fits at once; those of other recipes are of all products.
    """
    if found.has_loss:
        return found
    errors = {(one.layer, one.product, one.recipe): one.error for one in verdicts}
    fits = {(one.layer, one.product, one.recipe) for one in verdicts if one.fits}
    wholes = {row.recipe: row for row in found.joint} | dict(joint)
    measured = {row.recipe for row in found.rows if not math.isnan(row.output_error)}
    rows: list[SensitivityRow] = []
    shared: dict[str, None] = {}
    for row in found.rows:
        key = row.layer, row.product, row.recipe
        whole = wholes[row.recipe].output_error
        if row.recipe not in measured and math.isfinite(errors[key]) and math.isfinite(whole):
            of = [error for other, error in errors.items() if other[2] == row.recipe and math.isfinite(error)
                  and (row.recipe not in joint or other in fits)]  # fmt: skip
            size = math.hypot(*of)
            share = whole * errors[key] / size if size else 0.0
            row, shared[row.recipe] = dataclasses.replace(row, output_error=share), None
        rows.append(row)
    notes = (*found.notes, SHARED.format(listed(list(shared)))) if shared else found.notes
    return dataclasses.replace(found, rows=tuple(rows), notes=notes)


def _rows_of(found: Sensitivity, verdicts: Sequence[Verdict], names: set[str]) -> Sensitivity:
    """The sensitivity of what fits, and of the recipes of 16 bits, of some recipes."""
    fits = {(one.layer, one.product, one.recipe) for one in verdicts if one.fits}
    rows = tuple(
        row for row in found.rows
        if row.recipe in names and (is_high(found.recipes[row.recipe]) or (row.layer, row.product, row.recipe) in fits)
    )  # fmt: skip
    return dataclasses.replace(found, rows=rows, recipes={n: r for n, r in found.recipes.items() if n in names})


def _within(
    found: Sensitivity, verdicts: Sequence[Verdict], names: set[str], limit: float, known: set[float], out: Path | None
) -> Plan:
    """The plan of the fewest bits whose gradients, measured with all products at once, are within a limit.

    Bits of which it is known are tried whatever is predicted; of others those that are predicted to be within it.
    """
    rows = _rows_of(found, verdicts, names)
    for cost in known:  # the fewest bits of all, for which no other plan needs a prediction
        made = plan(rows, bits=_up(cost), random=0, out=out)
        if made.measured <= limit:
            return made
    quiet = plan(dataclasses.replace(rows, _measurer=None), bits=64, random=0)
    found_costs = {point.cost for point in quiet.frontier() if point.method == "milp" and point.predicted <= limit}
    for cost in sorted(found_costs):
        made = plan(rows, bits=_up(cost), random=0, out=out)
        if made.measured <= limit:
            return made
    return plan(rows, bits=64, random=0, out=out)


def _of_bits(
    found: Sensitivity, verdicts: Sequence[Verdict], names: set[str], high: str, bits: float, out: Path | None
) -> tuple[Plan, float | None]:
    """The plan of a budget; where it is too small for what fits, the cheapest one and what was asked for."""
    rows = _rows_of(found, verdicts, names)
    there = {(row.layer, row.product, row.recipe) for row in rows.rows}
    cheapest: dict[tuple[str, str], Verdict] = {}
    for one in verdicts:
        slot = one.layer, one.product
        if (*slot, one.recipe) in there and (slot not in cheapest or one.bits < cheapest[slot].bits):
            cheapest[slot] = one
    least = _bits_of({slot: one.recipe for slot, one in cheapest.items()}, verdicts)
    missed = bits if bits < least else None
    return plan(rows, bits=_up(max(least, bits)), random=RANDOM, out=out), missed


def _up(bits: float) -> float:
    """A budget that such a mean fits in, however it was rounded."""
    return bits * (1 + 2.0**-40)


def _without(made: Plan, found: Sensitivity) -> Plan:
    """The plan without notes on what verdicts left out, which say why themselves."""
    notes = tuple(note for note in made.notes if not note.endswith("of which the sensitivity has no row."))
    shared = tuple(note for note in found.notes if note.startswith(SHARED[:30]))
    return dataclasses.replace(made, notes=(*notes, *shared))
