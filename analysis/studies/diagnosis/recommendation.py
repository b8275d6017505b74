"""Sentences of a diagnosis on all low-precision products at once, on the recommended plan, and on other recipes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fpsim.analysis.studies.diagnosis.choosing import SAVES, alike_over_batches
from fpsim.analysis.studies.diagnosis.diagnosed import (
    NAMED,
    Diagnosed,
    high_recipes,
    ill_layers,
    joint_error,
    judged_by,
    kind_of,
    name_of,
)
from fpsim.analysis.studies.diagnosis.unplanned import unjudged_layers
from fpsim.analysis.studies.diagnosis.verdict import mean_bits, relative, relative_above
from fpsim.analysis.studies.sensitivity.row import SensitivityRow
from fpsim.display.wording import listed, plural


def joint_sentences(diagnosis: Diagnosed) -> list[str]:
    """Return a list of one sentence on the model's error if all products that fit `diagnosis.low` follow this recipe.

    At the same time, all other products follow the recipe `diagnosis.high`. The list is empty if no product fits.
    """
    row, low = diagnosis.joint, [verdict.fits for verdict in diagnosis.verdicts if verdict.recipe == diagnosis.low]
    if row is None or not any(low):
        return []
    if all(low):
        subject = f"With all products in {diagnosis.low} at once"
    else:
        subject = f"With every product that fits in {diagnosis.low} and the others in {diagnosis.high}"
    error = joint_error(diagnosis, row)
    off = f"{relative_above(error, diagnosis.limit)} off{'' if error <= diagnosis.limit else ', beyond the limit'}"
    if not diagnosis.sensitivity.has_loss:
        return [f"{subject}, the outputs are {off}."]
    loss = math.fsum(diagnosis.sensitivity.losses) / len(diagnosis.sensitivity.losses)
    head = f"{subject}, the gradients are {off}, and the loss of {loss:.4g}"
    if row.loss_change == 0:
        return [f"{head} does not change."]
    return [f"{head} changes by {row.loss_change:+.2g}, {beside_batches(row)}."]


def beside_batches(row: SensitivityRow) -> str:
    """Return a clause that compares a row's change of the loss with its standard deviation over batches.

    In a sentence, the clause follows the change: "+0.01, more than the standard deviation of this change over 2 batches
    (0.001)".
    """
    if row.loss_change == 0:
        return "no change"
    if math.isnan(row.loss_spread):
        return "on one batch, so that other batches may differ"
    batches = plural(len(row.batches), "batch", "batches")
    deviation = f"more than the standard deviation of this change over {batches} ({row.loss_spread:.2g})"
    if abs(row.loss_change) <= row.loss_spread:
        return f"no {deviation}, so that its sign may differ on other batches"
    return deviation


def recommendation_sentences(diagnosis: Diagnosed) -> list[str]:
    """Return the sentences on the recommended plan: its recipes, bits and error.

    If the plan needs more bits than requested, the first sentence says so.
    """
    plan, limit = diagnosis.plan, relative(diagnosis.limit)
    said = []
    if diagnosis.missed is not None:
        said.append(
            f"No plan of products that fit takes as few as {diagnosis.missed:g} bits a value: the fewest are "
            f"{plan.cost:.4g}."
        )
    only_high = set(plan.assignment.values()) == {diagnosis.high}
    if diagnosis.low and not diagnosis.pays and diagnosis.missed is None and only_high:
        why = _high_everywhere(diagnosis)
        if why:
            return why
    high = [verdict for verdict in diagnosis.verdicts if verdict.recipe == diagnosis.high]
    bits = "" if only_high else f" ({diagnosis.high} takes {mean_bits(high):.3g})"
    said.append(
        f"Recommended: {_assignment(diagnosis)}. This takes {plan.cost:.3g} bits a value{bits}, and the "
        f"{judged_by(diagnosis)} are {relative(plan.measured)} off, measured with all products at once."
    )
    if not plan.measured <= diagnosis.limit:
        said.append(f"That is more than the limit of {limit}{_less_elsewhere(diagnosis)}.")
    return said


def _less_elsewhere(diagnosis: Diagnosed) -> str:
    """Return a clause that names the plan or recipe of the least measured error, if that is less than the plan's.

    Errors that are the same in words count as equal.
    """
    plan = diagnosis.plan
    others = [(f"the {other.method} plan", other.joint.value) for other in plan.candidates if other.joint is not None]
    others += [(f"{row.recipe} for all products", joint_error(diagnosis, row)) for row in diagnosis.sensitivity.joint]
    name, least = min((other for other in others if not math.isnan(other[1])), key=lambda other: other[1])
    if least >= plan.measured or relative(least) == relative(plan.measured):
        return ", but no other measured plan has clearly less"
    return f"; the least that was measured is {relative(least)}, with {name}"


def _high_everywhere(diagnosis: Diagnosed) -> list[str]:
    """Return the sentences that recommend the recipe `diagnosis.high` for all products, and say why.

    There are two possible reasons: the recipe `diagnosis.low` would save less than a tenth of the bits; or the model's
    error is beyond the limit when all products that fit `diagnosis.low` use it at once. Return [] if neither holds, as
    for a plan that may take as many bits as `high`.
    """
    high, judged, limit = diagnosis.high, judged_by(diagnosis), relative(diagnosis.limit)
    fits = sum(verdict.fits for verdict in diagnosis.verdicts if verdict.recipe == diagnosis.low)
    head = (
        f"Recommended: {high} everywhere, since {diagnosis.low} fits {fits} of "
        f"{plural(len(diagnosis.plan.choices), 'product')}"
    )
    bits, low_bits = (
        {(verdict.layer, verdict.product): verdict.bits * verdict.values for verdict in diagnosis.verdicts
         if verdict.recipe == recipe and (recipe == high or verdict.fits)} for recipe in (high, diagnosis.low)
    )  # fmt: skip
    if 1 - math.fsum((bits | low_bits).values()) / math.fsum(bits.values()) < SAVES:
        said = [f"{head}, which would save less than {relative(SAVES)} of the bits."]
    else:
        if diagnosis.joint is not None and joint_error(diagnosis, diagnosis.joint) <= diagnosis.limit:
            return []
        off = "" if diagnosis.joint is None else f"{relative(joint_error(diagnosis, diagnosis.joint))} off, "
        said = [f"{head}, and with all of these at once the {judged} are {off}beyond the limit of {limit}."]
    error = diagnosis.plan.measured
    if not error <= diagnosis.limit:
        largest = max(verdict.error for verdict in diagnosis.verdicts if verdict.recipe == high)
        why = f"where {judged} nearly cancel, errors are relative to little, so use larger batches or another limit"
        if largest > diagnosis.limit:
            why = f"its products alone are off by up to {relative(largest)}, so use another limit"
        said.append(f"With {high} itself the {judged} are {relative(error)} off, beyond the limit of {limit}: {why}.")
    return said


def _assignment(diagnosis: Diagnosed) -> str:
    """Return the plan's recipes as text, such as "FP8_TENSOR for 10 products and BF16 for 1 product (head fprop)".

    The products of a recipe are named if they are at most 3. If all products have the same recipe, only the recipe is
    named, followed by "everywhere" or a similar phrase.
    """
    products: dict[str, list[str]] = {}
    for (layer, product), recipe in diagnosis.plan.assignment.items():
        products.setdefault(recipe, []).append(f"{name_of(layer)} {product}")
    if len(products) == 1:
        where = f"for all {kind_of(diagnosis)}s" if diagnosis.alone else "everywhere"
        return f"{next(iter(products))} {'for all that is judged' if unjudged_layers(diagnosis) else where}"
    parts = []
    for recipe, slots in sorted(products.items(), key=lambda item: -len(item[1])):
        names = f" ({listed(slots)})" if len(slots) <= NAMED else ""
        parts.append(f"{recipe} for {plural(len(slots), 'product')}{names}")
    return listed(parts)


def rival_sentences(diagnosis: Diagnosed) -> list[str]:
    """Return a sentence for each recipe below 16 bits except `diagnosis.low`, which other sentences are about.

    The sentence says which layers the recipe does not fit. If it fits all, the sentence gives the model's error with
    all products in the recipe at once.
    """
    joint = {row.recipe: row for row in diagnosis.sensitivity.joint}
    said = []
    for recipe in diagnosis.sensitivity.recipes:
        if recipe in high_recipes(diagnosis) or recipe == diagnosis.low:
            continue
        layers = ill_layers(diagnosis, recipe)
        if layers:
            said.append(_misfit(diagnosis, recipe, layers))
            continue
        row, chosen, ill = joint[recipe], diagnosis.joint, diagnosis.ill()
        error, limit = joint_error(diagnosis, row), diagnosis.limit
        off = f"{relative_above(error, limit)} off{'' if error <= limit else ' (beyond the limit)'}"
        sentence = f"{recipe} fits everywhere{'' if ill else ' too'}: its {judged_by(diagnosis)} are {off}"
        if chosen is not None:
            where = f" where it fits and {diagnosis.high} elsewhere" if ill else ""
            sentence += f", those of {diagnosis.low}{where} {relative(joint_error(diagnosis, chosen))}"
            if alike_over_batches(row, chosen, diagnosis.sensitivity.figure):
                sentence += ", a difference within the spread over these batches"
        said.append(f"{sentence}.")
    return said


def _misfit(diagnosis: Diagnosed, recipe: str, ill: Sequence[str]) -> str:
    """Return the sentence saying which layers a recipe does not fit, and why it does not fit the worst of them.

    `recipe`: name of the recipe. `ill`: these layers, the worst first.
    """
    failed = [verdict for verdict in diagnosis.verdicts if verdict.recipe == recipe and not verdict.fits]
    more = [plural(len(ill) - NAMED, "more layer")] if len(ill) > NAMED else []
    layers = listed([*map(name_of, ill[:NAMED]), *more])
    first = next(verdict for verdict in failed if verdict.layer == ill[0])
    of_layer = f"of {name_of(ill[0])} " if len(ill) > 1 else ""
    return f"{recipe} does not fit {layers} ({plural(len(failed), 'product')}): {of_layer}{first.why}."
