"""Sentences of a diagnosis on the layers that cannot use the low-precision recipe, why not, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fpsim.analysis.studies.diagnosis.diagnosed import (
    NAMED,
    Diagnosed,
    effect_of,
    harms_by_effect,
    high_recipes,
    ill_layers,
    judged_by,
    kind_of,
    name_of,
    verdicts_by_layer,
)
from fpsim.analysis.studies.diagnosis.verdict import Verdict, relative
from fpsim.display.wording import capitalized, listed, plural
from fpsim.recipes.linear_recipe import PRODUCTS


def layer_sentences(diagnosis: Diagnosed) -> list[str]:
    """Return sentences on the layers that cannot use the recipe `diagnosis.low`, the worst first.

    A last sentence counts the layers that can; if all can, it is the only one.
    """
    layers = verdicts_by_layer(diagnosis, diagnosis.low)
    ill = ill_layers(diagnosis, diagnosis.low)
    recipe = f"{diagnosis.low} on {diagnosis.on}"
    if not ill:
        return [_all_fit(diagnosis, layers, recipe)]
    reasons = [_reason(diagnosis, layers[layer]) for layer in ill[:NAMED]]
    said = [capitalized(f"{name_of(ill[0])} cannot use {recipe} as it is: {reasons[0]}.")]
    said += [
        capitalized(f"{name_of(layer)} cannot either: {reason}.")
        for layer, reason in zip(ill[1:NAMED], reasons[1:], strict=True)
    ]
    more = [name_of(layer) for layer in ill[NAMED:]]
    if more:
        said.append(f"{plural(len(more), 'more layer')} cannot either: {listed(more, NAMED)}.")
    well = [layer for layer in layers if layer not in ill]
    everything = plural(len(layers), kind_of(diagnosis))
    if len(well) == 1:
        said.append(f"Only {name_of(well[0])} of {everything} can use {diagnosis.low} as it is.")
    elif well:
        said.append(f"The other {len(well)} of {everything} can use {diagnosis.low} as they are.")
    elif len(layers) > 1:
        said.append(f"None of the {everything} can use {diagnosis.low} as it is.")
    return said


def _all_fit(diagnosis: Diagnosed, layers: Mapping[str, Sequence[Verdict]], recipe: str) -> str:
    """Return the sentence saying that all layers can use the recipe, with the largest error of a product.

    `layers`: layer -> its verdicts. `recipe`: name of the recipe and its hardware.
    """
    worst = max((verdict for verdicts in layers.values() for verdict in verdicts), key=lambda verdict: verdict.error)
    kind = kind_of(diagnosis)
    largest = f"{worst.off} ({worst.product} of {name_of(worst.layer)}), and the limit is {relative(diagnosis.limit)}."
    if len(layers) == 1:
        return f"The one {kind} can use {recipe} as it is: no product is off by more than {largest}"
    return f"All {plural(len(layers), kind)} can use {recipe} as they are: no product is off by more than {largest}"


def _reason(diagnosis: Diagnosed, verdicts: Sequence[Verdict]) -> str:
    """Return, as the end of a sentence, why a layer's worst product does not fit, and the remedy.

    `verdicts`: the verdicts on the layer's products in one recipe.
    """
    failed = [verdict for verdict in verdicts if not verdict.fits]
    worst = max(failed, key=lambda verdict: (_severity(diagnosis, verdict), -PRODUCTS.index(verdict.product)))
    others = [verdict.product for verdict in failed if verdict is not worst]
    also = f" ({listed(others)} {'fails' if len(others) == 1 else 'fail'} too)" if others else ""
    return f"{worst.why}{also}; {remedy(diagnosis, worst)}"


def _severity(diagnosis: Diagnosed, verdict: Verdict) -> tuple[bool, float]:
    """Return a sort key for `verdict`, by which the worst product of a layer has the largest key.

    A product whose own errors (capped at 1) exceed the limit ranks above one that is exact enough itself, but causes
    errors above the limit in gradients or outputs.
    """
    if harms_by_effect(diagnosis, verdict):
        return False, effect_of(diagnosis, verdict)
    if math.isnan(verdict.error):
        return True, 1.0
    return True, min(max(verdict.error, 0.0 if math.isnan(verdict.lines) else verdict.lines), 1.0)


def remedy(diagnosis: Diagnosed, verdict: Verdict) -> str:
    """Return advice, as the end of a sentence, on a product that does not fit its recipe.

    `verdict`: the verdict on the product in that recipe. Only measured remedies are named, each with the error that
    remains. They are: to add the sums to a float32 total every 128 terms, if the error is then within the limit; the
    recipe of the fewest bits below 16 that fits the product; and the recipe of 16 bits.
    """
    others = [
        other for other in diagnosis.verdicts
        if (other.layer, other.product) == (verdict.layer, verdict.product) and other.recipe != verdict.recipe
    ]  # fmt: skip
    choices = []
    promoted = diagnosis.promoted.get((verdict.layer, verdict.product, verdict.recipe), math.nan)
    if promoted <= diagnosis.limit:
        choices.append(f"promote its sums to float32 every 128 terms, which leaves an error of {relative(promoted)}")
    lower = [other for other in others if other.fits and other.recipe not in high_recipes(diagnosis)]
    if lower:
        best = min(lower, key=lambda other: (other.bits, other.error))
        choices.append(f"use {best.recipe} there, where it is off by {best.off}")
    high = next((other for other in others if other.recipe == diagnosis.high), None)
    if high is not None:
        choices.append(f"keep it in {high.recipe}, where it is off by {high.off}{_beyond_too(diagnosis, high)}")
    return ", or ".join(choices) if choices else "no recipe that was measured fits it"


def _beyond_too(diagnosis: Diagnosed, high: Verdict) -> str:
    """Return a clause saying that a product does not fit the 16-bit recipe either; "" if it fits that recipe.

    `high`: the verdict on the product in the 16-bit recipe.
    """
    if high.fits:
        return ""
    if harms_by_effect(diagnosis, high):
        effect = relative(effect_of(diagnosis, high))
        return f" and changes the {judged_by(diagnosis)} by {effect}, beyond the limit too"
    return ", beyond the limit too"
