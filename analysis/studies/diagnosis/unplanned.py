"""Sentences of a diagnosis on products that recipes of linear layers do not cover, and on unjudged layers."""

from __future__ import annotations

import math

from fpsim.analysis.studies.diagnosis.diagnosed import NAMED, Diagnosed, name_of
from fpsim.analysis.studies.diagnosis.recording import recorded_layers, recorded_name
from fpsim.analysis.studies.diagnosis.verdict import KV_CACHE
from fpsim.display.wording import capitalized, listed, plural


def overflow_sentences(diagnosis: Diagnosed) -> list[str]:
    """Return a sentence for each product whose result contains Inf or NaN, in the order in which layers run.

    Products of linear layers and convolutions in the recipe `low` are left out, since other sentences name them. At
    most 3 products are named; a further sentence counts the others.
    """
    others = [verdict for verdict in diagnosis.verdicts if verdict.recipe != diagnosis.low]
    order = {layer: place for place, layer in enumerate(diagnosis.recording.layers)}
    bad = [verdict for verdict in (*diagnosis.alone, *others) if math.isinf(verdict.error)]
    bad.sort(key=lambda v: order.get(recorded_name(v.layer), order.get(v.layer.rpartition(".")[0], len(order))))
    said = [
        capitalized(f"{name_of(verdict.layer)} cannot use {verdict.recipe} on {diagnosis.on}: {verdict.why}.")
        for verdict in bad[:NAMED]
    ]  # fmt: skip
    if len(bad) > NAMED:
        said.append(f"{plural(len(bad) - NAMED, 'more product')} overflow{'s' * (len(bad) == NAMED + 1)} too.")
    return said


def alone_sentences(diagnosis: Diagnosed) -> list[str]:
    """Return sentences on the errors of attention's products, and of weights multiplied by code outside of layers.

    The errors are those in the recipe `diagnosis.low`, or in `diagnosis.high` if `low` is "". Return [] if the model
    has no such products.
    """
    recipe = diagnosis.low or diagnosis.high
    rows = [verdict for verdict in diagnosis.alone if verdict.recipe == recipe and verdict.product != KV_CACHE]
    if not rows:
        return []
    failed = [verdict for verdict in rows if not verdict.fits and not math.isinf(verdict.error)]
    failed.sort(key=lambda verdict: -verdict.error)
    fitting = [verdict for verdict in rows if verdict.fits]
    inf = sum(math.isinf(verdict.error) for verdict in rows)
    largest = f", off by at most {max(fitting, key=lambda verdict: verdict.error).off}" if fitting else ""
    names = list(dict.fromkeys(name_of(verdict.layer) for verdict in rows))
    said = [
        f"Judged by their own errors alone, {len(rows) - len(failed) - inf} of {plural(len(rows), 'product')} of "
        f"attention and of weights multiplied by hand ({listed(names, NAMED + 1)}) fit {recipe}{largest}."
    ]
    said += [capitalized(f"{name_of(verdict.layer)} does not: {verdict.why}.") for verdict in failed[:NAMED]]
    return said + _cache_sentences(diagnosis, recipe)


def _cache_sentences(diagnosis: Diagnosed, recipe: str) -> list[str]:
    """Return a list of one sentence on a KV cache stored in a recipe; [] if no product reads one.

    The sentence gives the largest error of the products that read the cache, or names those that do not fit. `recipe`:
    the recipe's name.
    """
    rows = [verdict for verdict in diagnosis.alone if (verdict.recipe, verdict.product) == (recipe, KV_CACHE)]
    if not rows:
        return []
    failed = [verdict for verdict in rows if not verdict.fits]
    if not failed:
        worst = max(rows, key=lambda verdict: verdict.error)
        return [f"A KV cache in {recipe} fits: {name_of(worst.layer)} is off by {worst.off} at most."]
    names = listed([name_of(verdict.layer) for verdict in failed[:NAMED]])
    return [f"A KV cache in {recipe} does not fit {names}: {failed[0].why}."]


def unjudged_layers(diagnosis: Diagnosed) -> list[str]:
    """Return the layers with weights that have no verdict, named as in sentences, such as "layer 2"."""
    judged = {recorded_name(layer) for layer in diagnosis.layers}
    judged |= recorded_layers(diagnosis.alone, diagnosis.recording).keys()
    layers = (*diagnosis.recording.layers, *diagnosis.unseen)
    return [name_of(layer) for layer in layers if layer not in judged]


def unjudged_sentences(diagnosis: Diagnosed) -> list[str]:
    """Return a list of one sentence that names the layers without a verdict; [] if all have one."""
    names = unjudged_layers(diagnosis)
    stay = "as it is" if len(names) == 1 else "as they are"
    return [f"Not judged, and left {stay}: {listed(names, NAMED)}."] if names else []
