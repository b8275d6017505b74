"""The recommendation of a diagnosis: the low-precision recipe that fits most products, and one of 16 bits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fpsim.analysis.studies.diagnosis.verdict import Verdict, is_high, mean_bits
from fpsim.analysis.studies.planning.plan import plan
from fpsim.analysis.studies.planning.report import Plan
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of, spread_of
from fpsim.display.wording import listed
from fpsim.recipes.linear_recipe import LinearRecipe

ROOM = 1.05  # recipes whose bits differ by at most this factor are alike, and the lower error decides: scales for every
# 32 values take 3 %
WORTH = 0.25  # a mix of two recipes saves at least this share of the bits of one: libraries run one recipe at a time
SAVES = 0.1  # a recommendation of fewer than 16 bits saves at least this share of the bits
RANDOM = 2  # random plans that are measured for comparison
SHARED = (
    "No product was measured alone in {}, since no recommendation depends on it: the errors of single products "
    "are shares of the joint error, in proportion to the squares of the products' own errors."
)
Slots = Mapping[tuple[str, str], str]  # (layer, product) -> recipe


class Chosen(NamedTuple):
    """The recommended plan, and the recipes from which it was chosen.

    Attributes:
      plan: the recommended plan.
      low: the recipe of fewer than 16 bits that is recommended, or would be if it saved enough; "" if there is none.
      high: the recipe of 16 bits or more for all other products.
      joint: the measured errors of the model, a SensitivityRow, if products follow `low` where it fits, and `high`
        otherwise; None without `low`.
      missed: the requested bits per value if every plan of products that fit needs more; else None.
      pays: whether the plan needs at least a tenth fewer bits than `high` for all products.
    """

    plan: Plan
    low: str
    high: str
    joint: SensitivityRow | None
    missed: float | None
    pays: bool


def chosen(
    report: Sensitivity, verdicts: Sequence[Verdict], limit: float, bits: float | None, out: Path | None
) -> Chosen:
    """Choose the plan to recommend, from the recipes that fit each product.

    Without `bits`, a plan uses one low-precision recipe and the recipe of 16 bits. The chosen plan is the one of the
    fewest bits whose error, measured with all products at once, is within `limit`; it may leave products in 16 bits
    although they fit alone. One low-precision recipe for every product is preferred to a mix of two that saves less
    than a quarter of that recipe's bits. If the plan saves less than a tenth of the bits of the 16-bit recipe (`pays`
    is False), all products follow the 16-bit recipe instead. With `bits`, the plan of the least error with at most
    `bits` per value is chosen, which may mix all recipes that fit.

    Args:
      report: the errors that each product alone causes; its model measures several at once.
      verdicts: which recipe fits which product.
      limit: the largest relative error of the gradients, or of the outputs without a loss.
      bits: the largest mean bits per value, or None.
      out: the folder in which plans store their joint measurements, as in `fp.analysis.plan`; or None.
    """
    high = high_of(report.recipes, [verdict.recipe for verdict in verdicts if math.isinf(verdict.error)])
    lows = [name for name, recipe in report.recipes.items() if not is_high(recipe)]
    everywhere = {(verdict.layer, verdict.product): high for verdict in verdicts}
    offers: dict[str, Slots] = {
        name: everywhere | {
            (verdict.layer, verdict.product): name for verdict in verdicts if verdict.recipe == name and verdict.fits
        } for name in lows
    }  # fmt: skip
    joint = {name: report.measure(slots) for name, slots in offers.items()}
    report = with_shares(report, verdicts, joint)
    if bits is None:
        low, made, missed = *_fewest(report, verdicts, offers, joint, high, limit, out), None
    else:
        low = _best(joint, {name: _bits_of(slots, verdicts) for name, slots in offers.items()}, limit, report.figure)
        made, missed = _of_bits(report, verdicts, {*lows, high}, bits, out)
    high_bits = _bits_of(everywhere, verdicts)
    pays = _bits_of(made.assignment, verdicts) <= (1 - SAVES) * high_bits
    if bits is None and not pays:
        made = plan(_rows_of(report, verdicts, {high}), bits=_up(high_bits), random=0, out=out)
    # products that do not fit were not offered to the plan
    notes = [note for note in made.notes if not note.endswith("since the sensitivity has no row of it.")]
    notes += [note for note in report.notes if note.startswith(SHARED[:30])]
    made = dataclasses.replace(made, notes=tuple(notes))
    return Chosen(made, low, high, joint.get(low), missed, pays)


def high_of(recipes: Mapping[str, LinearRecipe], overflows: Sequence[str]) -> str:
    """Return the name of the recipe of 16 bits or more for products that fit no recipe of fewer bits.

    Of the recipes of 16 bits or more, that in which the fewest products overflow is chosen; of several, the first.
    `recipes`: name -> recipe. `overflows`: for each product and recipe whose result overflows, the recipe's name.
    """
    return min((name for name, recipe in recipes.items() if is_high(recipe)), key=overflows.count)


def _bits_of(slots: Slots, verdicts: Sequence[Verdict]) -> float:
    """Return the mean number of bits per operand value over all products, if each follows its recipe in `slots`.

    `slots`: (layer, product) -> recipe name. `verdicts`: have the bits and the number of values of each product in each
    recipe.
    """
    known = {(verdict.layer, verdict.product, verdict.recipe): verdict for verdict in verdicts}
    return mean_bits([known[(*slot, name)] for slot, name in slots.items()])


def _fewest(
    report: Sensitivity, verdicts: Sequence[Verdict], offers: Mapping[str, Slots], joint: Mapping[str, SensitivityRow],
    high: str, limit: float, out: Path | None,
) -> tuple[str, Plan]:  # fmt: skip
    """Return the name of the low-precision recipe to recommend ("" if there is none), and the plan that uses it.

    The plan assigns the low-precision recipe to every product that fits if the error with all of them at once is within
    the limit, else to as many as the limit admits. Other products follow `high`. If one low-precision recipe for all
    products is within the limit, it replaces a plan of two recipes that saves less than a quarter of its bits.

    Args:
      report: the sensitivity, whose model measures plans.
      verdicts: which recipe fits which product.
      offers: low-precision recipe -> its plan, a mapping (layer, product) -> recipe: that recipe where it fits, else
        `high`.
      joint: low-precision recipe -> errors measured with its plan in `offers`.
      high: the recipe of 16 bits.
      limit: the largest accepted relative error.
      out: the folder in which plans store their joint measurements, or None.
    """
    every = {name: _bits_of(slots, verdicts) for name, slots in offers.items()}
    plans: dict[str, Plan] = {}
    for name in sorted(offers, key=lambda name: every[name]):
        if plans and every[name] > ROOM * min(offer.cost for offer in plans.values()):
            break  # used for some products, it saves even less
        known = {every[name]} if figure_of(joint[name], report.figure) <= limit else set()
        made = _within(report, verdicts, {name, high}, limit, known, out)
        if made.measured <= limit and name in made.assignment.values():
            plans[name] = made
    if not plans:
        low = _best(joint, every, limit, report.figure)
        return low, _within(report, verdicts, {low, high} - {""}, limit, set(), out)
    rows = {name: report.measure(offer.assignment) for name, offer in plans.items()}
    low = _best(rows, {name: offer.cost for name, offer in plans.items()}, limit, report.figure)
    whole = [name for name, slots in offers.items() if {*slots.values()} == {name}]  # they fit every product
    within = {name: joint[name] for name in whole if figure_of(joint[name], report.figure) <= limit}
    alone = _best(within, every, limit, report.figure)
    if alone and len({*plans[low].assignment.values()}) > 1 and plans[low].cost > (1 - WORTH) * every[alone]:
        return alone, plan(_rows_of(report, verdicts, {alone}), bits=_up(every[alone]), random=0, out=out)
    return low, plan(_rows_of(report, verdicts, {low, high}), bits=_up(plans[low].cost), random=RANDOM, out=out)


def _best(joint: Mapping[str, SensitivityRow], bits: Mapping[str, float], limit: float, figure: str) -> str:
    """Return the name of the best recipe: few bits, and an error within the limit; "" if there are no recipes.

    Of the recipes whose error is within the limit (of all, if none is), the one of the fewest bits is compared with the
    one of the least error among those of at most 5 % more bits. The latter is returned if the two errors differ by more
    than the larger of their standard deviations over batches.

    Args:
      joint: recipe -> measured errors.
      bits: recipe -> bits per value.
      limit: the largest relative error.
      figure: the attribute of the errors to compare, such as "gradient_error".
    """
    errors = {name: figure_of(row, figure) for name, row in joint.items()}
    within = [name for name in joint if errors[name] <= limit] or list(joint)
    if not within:
        return ""
    fewest = min(within, key=lambda name: (bits[name], errors[name]))
    alike = [name for name in within if bits[name] <= ROOM * bits[fewest]]
    best = min(alike, key=lambda name: errors[name])
    return fewest if alike_over_batches(joint[fewest], joint[best], figure) else best


def alike_over_batches(first: SensitivityRow, second: SensitivityRow, figure: str) -> bool:
    """Return whether an error of two rows differs by at most the larger of its two standard deviations over batches.

    With one batch, the two errors must be equal. `first`, `second`: the rows. `figure`: name of the compared error,
    such as "gradient_error".
    """
    spreads = [spread_of(row, figure) for row in (first, second) if not math.isnan(spread_of(row, figure))]
    return abs(figure_of(first, figure) - figure_of(second, figure)) <= max(spreads, default=0.0)


def with_shares(
    report: Sensitivity, verdicts: Sequence[Verdict], joint: Mapping[str, SensitivityRow]
) -> Sensitivity:  # fmt: skip
    """Return a sensitivity in which products that were not measured alone get a share of the joint output error.

    This applies to each recipe in which no product was measured alone. Squared errors of independent roundings add up,
    so the square of the joint error is divided in proportion to the squares of the products' own errors. With a loss,
    the report is returned unchanged.

    Args:
      report: the sensitivity.
      verdicts: the products' own errors, and whether they fit.
      joint: recipe -> the model's errors when all products that fit this recipe follow it at once. For a recipe that is
        missing here, the row in `report.joint` counts: there all products follow it, whether they fit or not.
    """
    if report.has_loss:
        return report
    errors = {(verdict.layer, verdict.product, verdict.recipe): verdict.error for verdict in verdicts}
    fits = {(verdict.layer, verdict.product, verdict.recipe) for verdict in verdicts if verdict.fits}
    wholes = {row.recipe: row for row in report.joint} | dict(joint)
    measured = {row.recipe for row in report.rows if not math.isnan(row.output_error)}
    rows: list[SensitivityRow] = []
    shared: dict[str, None] = {}
    for row in report.rows:
        key = row.layer, row.product, row.recipe
        whole = wholes[row.recipe].output_error
        if row.recipe not in measured and math.isfinite(errors[key]) and math.isfinite(whole):
            shared_by = [error for other, error in errors.items() if other[2] == row.recipe and math.isfinite(error)
                         and (row.recipe not in joint or other in fits)]  # fmt: skip
            size = math.hypot(*shared_by)
            share = whole * errors[key] / size if size else 0.0
            row, shared[row.recipe] = dataclasses.replace(row, output_error=share), None
        rows.append(row)
    notes = (*report.notes, SHARED.format(listed(list(shared)))) if shared else report.notes
    return dataclasses.replace(report, rows=tuple(rows), notes=notes)


def _rows_of(report: Sensitivity, verdicts: Sequence[Verdict], names: set[str]) -> Sensitivity:
    """Return the sensitivity `report` restricted to the recipes called `names`.

    A row of a recipe below 16 bits is left out unless `verdicts` say that the product fits this recipe.
    """
    fits = {(verdict.layer, verdict.product, verdict.recipe) for verdict in verdicts if verdict.fits}
    rows = tuple(
        row for row in report.rows
        if row.recipe in names and (is_high(report.recipes[row.recipe]) or (row.layer, row.product, row.recipe) in fits)
    )  # fmt: skip
    return dataclasses.replace(report, rows=rows, recipes={n: r for n, r in report.recipes.items() if n in names})


def _within(
    report: Sensitivity, verdicts: Sequence[Verdict], names: set[str], limit: float, known: set[float], out: Path | None
) -> Plan:
    """Return the plan of the fewest bits whose predicted and measured errors are at most `limit`.

    The error is measured with all products in their recipes at once. If no plan is within the limit, return the plan of
    the least predicted error. The plans tried are the optimal ones for growing budgets of bits.

    Args:
      report: the sensitivity, whose model measures plans.
      verdicts: which recipe fits which product.
      names: the recipes that the plan may use, each where it fits.
      limit: the largest relative error.
      known: bits per value of plans already measured to be within the limit, which are tried first.
      out: the folder in which plans store their joint measurements, or None.
    """
    rows = _rows_of(report, verdicts, names)
    for cost in known:  # the fewest bits of all, for which no other plan needs a prediction
        made = plan(rows, bits=_up(cost), random=0, out=out)
        if made.measured <= limit:
            return made
    quiet = plan(dataclasses.replace(rows, _measurer=None), bits=64, random=0)
    costs = {point.cost for point in quiet.frontier() if point.method == "milp" and point.predicted <= limit}
    for cost in sorted(costs):
        made = plan(rows, bits=_up(cost), random=0, out=out)
        if made.measured <= limit:
            return made
    return plan(rows, bits=64, random=0, out=out)


def _of_bits(
    report: Sensitivity, verdicts: Sequence[Verdict], names: set[str], bits: float, out: Path | None
) -> tuple[Plan, float | None]:
    """Return (plan, missed): the plan of the least error with at most `bits` per value, and None.

    If every plan needs more bits than that, return the plan of the fewest bits, and `bits` as `missed`.

    Args:
      report: the sensitivity, with the products' errors.
      verdicts: which recipe fits which product.
      names: the recipes that the plan may use.
      bits: the requested bits per value.
      out: the folder in which plans store their joint measurements, or None.
    """
    rows = _rows_of(report, verdicts, names)
    there = {(row.layer, row.product, row.recipe) for row in rows.rows}
    cheapest: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        slot = verdict.layer, verdict.product
        if (*slot, verdict.recipe) in there and (slot not in cheapest or verdict.bits < cheapest[slot].bits):
            cheapest[slot] = verdict
    least = _bits_of({slot: verdict.recipe for slot, verdict in cheapest.items()}, verdicts)
    missed = bits if bits < least else None
    return plan(rows, bits=_up(max(least, bits)), random=RANDOM, out=out), missed


def _up(bits: float) -> float:
    """Return bits * (1 + 2^-40): a budget that a plan of `bits` mean bits per value meets despite rounding."""
    return bits * (1 + 2.0**-40)
