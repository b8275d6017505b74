"""A diagnosis in words: which layers can go lower as they are, which cannot and why, what to do, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from fpsim.analysis.models.coverage import Coverage
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.diagnosis.choosing import SAVES, alike_over_batches
from fpsim.analysis.studies.diagnosis.recording import recorded_name
from fpsim.analysis.studies.diagnosis.verdict import FIGURES, KV_CACHE, LINES, Verdict, by_layer, is_high, relative
from fpsim.analysis.studies.planning.report import Plan
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of
from fpsim.display.wording import listed, plural, printable

NAMED = 3  # layers of a sentence, each with its reason


class Diagnosed(Protocol):
    """What is put in words: a `Diagnosis`."""

    @property
    def budgets(self) -> Mapping[str, Budget]: ...
    @property
    def recording(self) -> Recording: ...
    @property
    def sensitivity(self) -> Sensitivity: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def verdicts(self) -> tuple[Verdict, ...]: ...
    @property
    def low(self) -> str: ...
    @property
    def high(self) -> str: ...
    @property
    def joint(self) -> SensitivityRow | None: ...
    @property
    def missed(self) -> float | None: ...
    @property
    def pays(self) -> bool: ...
    @property
    def promoted(self) -> Mapping[tuple[str, str, str], float]: ...
    @property
    def limit(self) -> float: ...
    @property
    def on(self) -> str: ...
    @property
    def unseen(self) -> tuple[str, ...]: ...
    @property
    def alone(self) -> tuple[Verdict, ...]: ...
    @property
    def coverage(self) -> Coverage: ...


def sentences(found: Diagnosed) -> tuple[str, ...]:
    """The answer: what cannot go lower, or that all can; where most of the model is not judged, that comes first."""
    coverage = found.coverage
    first = (*filter(None, [coverage.headline]), *_overflows(found))
    last = (*_judged_alone(found), *coverage.sentences, *_not_judged(found), *_without_loss(found))
    if not found.low:
        return (*first, _no_low(found), *_recommended(found), *last)
    return (*first, *_layers(found), *_together(found), *_recommended(found), *_others(found), *last)


def _without_loss(found: Diagnosed) -> list[str]:
    """Say that gradients were not judged, where no loss was given."""
    return [] if found.sensitivity.has_loss else ["No loss was given: outputs alone were judged."]


def _effect(found: Diagnosed, one: Verdict) -> float:
    """Return what a product alone does to the gradients, or without a loss to the outputs; 0 if it was not measured."""
    if found.sensitivity.has_loss:
        return one.gradient_error
    return 0.0 if math.isnan(one.output_error) else one.output_error


def _error(found: Diagnosed, row: SensitivityRow) -> float:
    """Return the figure of a row by which recipes are compared."""
    return figure_of(row, found.sensitivity.figure)


def judged_by(found: Diagnosed) -> str:
    """Return what recipes are compared by: "gradients", or without a loss "outputs"."""
    return FIGURES[found.sensitivity.figure]


def name_of(layer: str) -> str:
    """What a layer is called in a sentence.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.advice import name_of
      >>> name_of("blocks.0.mlp"), name_of("2"), name_of("")
      ('blocks.0.mlp', 'layer 2', 'the model')
    """
    return f"layer {layer}" if layer.isdigit() else printable(layer) or "the model"


def _opened(sentence: str) -> str:
    """A sentence that begins with a layer's name, whose "layer" and "the" are written large then."""
    return sentence[0].upper() + sentence[1:] if sentence.startswith(("layer ", "the ")) else sentence


def _no_low(found: Diagnosed) -> str:
    """Where no recipe of fewer than 16 bits was measured."""
    return (
        f"Nothing below 16 bits was measured on {found.on}, since no recipe that it has takes fewer: all layers "
        f"stay in {found.high}."
    )


# ---- which layers


def _layers(found: Diagnosed) -> list[str]:
    """The layers that cannot follow the recipe as it is, the worst first, and the others."""
    layers = by_layer({(one.layer, one.product, one.recipe): one for one in found.verdicts}, found.low)
    bad = ill_layers(found, found.low)
    where = f"{found.low} on {found.on}"
    if not bad:
        return [_all_can(found, layers, where)]
    alone = len(bad) == len(layers)
    reasons = [_reason(found, layer, layers[layer]) for layer in bad[:NAMED]]
    head = _opened(f"{name_of(bad[0])} cannot go to {where} as it is: {reasons[0]}.")
    rest = [f"{name_of(layer)}: {reason}." for layer, reason in zip(bad[1:NAMED], reasons[1:], strict=True)]
    if rest:
        rest[0] = f"Nor can {rest[0]}"
    more = [name_of(layer) for layer in bad[NAMED:]]
    if more:
        rest.append(f"{plural(len(more), 'more layer')} cannot either: {listed(more, NAMED)}.")
    if alone:
        rest.append(f"So none of the {plural(len(layers), kind_of(found))} can." if len(layers) > 1 else "")
    else:
        well = [layer for layer in layers if layer not in bad]
        names = f", {name_of(well[0])}," if len(well) == 1 else ""
        rest.append(f"The other {len(well)} of {plural(len(layers), kind_of(found))}{names} can.")
    return [head, *filter(None, rest)]


def kind_of(found: Diagnosed) -> str:
    """What the layers are, in a word."""
    there, convolutions = {one.layer for one in found.verdicts}, set(found.sensitivity.convolutions)
    if not there & convolutions:
        return "linear layer"
    return "layer" if there - convolutions else "convolution"


def ill_layers(found: Diagnosed, recipe: str) -> list[str]:
    """The layers with a product that a recipe does not fit: first those whose own products are off, in the order of
    the budget, then those that harm the gradients alone; the worst first. What inherits more than it adds comes last,
    after the layers in which the error begins.
    """
    bad = by_layer({(one.layer, one.product, one.recipe): one for one in found.verdicts if not one.fits}, recipe)
    ranked = [layer for layer, _ in found.budgets[recipe].ranking] if recipe in found.budgets else []
    off = {layer for layer, each in bad.items() if any(not _harms_alone(found, one) for one in each)}
    rest = sorted(set(bad) - off, key=lambda layer: (-max(_effect(found, one) for one in bad[layer]), layer))
    ordered = [layer for layer in ranked if layer in off] + sorted(off - set(ranked)) + rest
    return sorted(ordered, key=lambda layer: all(one.inherited > one.error for one in bad[layer]))


def _harms_alone(found: Diagnosed, one: Verdict) -> bool:
    """Whether what does not fit is what a product does to the gradients, and not the product itself."""
    itself = one.error <= found.limit and not one.lines > LINES * found.limit
    return itself and not _effect(found, one) <= found.limit


def _all_can(found: Diagnosed, layers: Mapping[str, Sequence[Verdict]], where: str) -> str:
    worst = max((one for each in layers.values() for one in each), key=lambda one: one.error)
    many = f"All {plural(len(layers), kind_of(found))}" if len(layers) > 1 else f"The one {kind_of(found)}"
    return (
        f"{many} can go to {where} as {'they are' if len(layers) > 1 else 'it is'}: no product is off by more than "
        f"{worst.off} ({worst.product} of {name_of(worst.layer)}), and the limit is {relative(found.limit)}."
    )


def _reason(found: Diagnosed, layer: str, verdicts: Sequence[Verdict]) -> str:
    """Why a layer cannot, of its worst product, and what to do about it."""
    bad = [one for one in verdicts if not one.fits]
    worst = max(bad, key=lambda one: (_size(found, one), -("fprop", "dgrad", "wgrad").index(one.product)))
    others = [one.product for one in bad if one is not worst]
    also = f" ({listed(others)} likewise)" if others else ""
    return f"{worst.why}{also}; {remedy(found, worst)}"


def _size(found: Diagnosed, one: Verdict) -> tuple[bool, float]:
    """How bad a product is: first what is off itself, and from an error as large as the product on all alike."""
    if _harms_alone(found, one):
        return False, _effect(found, one)
    return True, 1.0 if math.isnan(one.error) else min(
        max(one.error, one.lines if one.lines == one.lines else 0.0), 1.0
    )


def remedy(found: Diagnosed, one: Verdict) -> str:
    """What to do about a product that does not fit, as the end of a sentence: of what was measured alone."""
    same = [
        other for other in found.verdicts
        if (other.layer, other.product) == (one.layer, one.product) and other.recipe != one.recipe
    ]  # fmt: skip
    promoted = found.promoted.get((one.layer, one.product, one.recipe), math.nan)
    words = []
    if promoted <= found.limit:
        words.append(f"promote its sums to float32 every 128 terms, which leaves {relative(promoted)}")
    fitting = [other for other in same if other.fits]
    lower = [other for other in fitting if other.recipe not in _high(found)]
    if lower:
        best = min(lower, key=lambda other: (other.bits, other.error))
        words.append(f"take {best.recipe} there, which is off by {best.off}")
    high = next((other for other in same if other.recipe == found.high), None)
    if high is not None:
        words.append(f"keep it in {high.recipe}, which is off by {high.off}{_nor_fits(found, high)}")
    return ", or ".join(words) if words else "no recipe that was measured fits it"


def _nor_fits(found: Diagnosed, high: Verdict) -> str:
    """Why a recipe of 16 bits does not fit either, which leaves nothing better; "" where it does."""
    if high.fits:
        return ""
    if _harms_alone(found, high):
        return f" and changes the {judged_by(found)} by {relative(_effect(found, high))}, beyond the limit too"
    return ", beyond the limit too"


def _high(found: Diagnosed) -> set[str]:
    return {name for name, recipe in found.sensitivity.recipes.items() if is_high(recipe)}


# ---- what it comes to


def _together(found: Diagnosed) -> list[str]:
    """What all products that fit do at once."""
    row = found.joint
    if row is None or all(not one.fits for one in found.verdicts if one.recipe == found.low):
        return []
    fits = all(one.fits for one in found.verdicts if one.recipe == found.low)
    subject = "All of them at once" if fits else f"All that fits at once, and the rest in {found.high},"
    s = "" if fits else "s"
    loss = math.fsum(found.sensitivity.losses) / len(found.sensitivity.losses)
    error = _error(found, row)
    beyond = "" if error <= found.limit else ", beyond the limit,"
    if not found.sensitivity.has_loss:
        return [f"{subject} leave{s} the outputs {relative(error)} off{beyond.removesuffix(',')}."]
    return [
        f"{subject} leave{s} the gradients {relative(error)} off{beyond} and change{s} the loss of "
        f"{loss:.4g} by {row.loss_change:+.2g}, {beside_batches(row)}."
    ]


def beside_batches(row: SensitivityRow) -> str:
    """A change of the loss beside how much it differs between batches, in words: on each of them it is exact."""
    if row.loss_change == 0:
        return "which is nothing"
    if math.isnan(row.loss_spread):
        return "on one batch, which does not tell what others give"
    batches = plural(len(row.batches), "batch", "batches")
    if abs(row.loss_change) <= row.loss_spread:
        return f"no more than it differs between {batches} ({row.loss_spread:.2g}), so that others may tell otherwise"
    return f"more than it differs between {batches} ({row.loss_spread:.2g})"


def _recommended(found: Diagnosed) -> list[str]:
    """The plan in a sentence, and where it is not what was hoped for, why."""
    said = []
    if found.missed is not None:
        said.append(
            f"{found.missed:g} bits a value cannot be met with what fits: the fewest are {found.plan.cost:.4g}."
        )
    if found.low and not found.pays and found.missed is None and set(found.plan.assignment.values()) == {found.high}:
        fits = sum(one.fits for one in found.verdicts if one.recipe == found.low)
        of = plural(len(found.plan.choices), "product")
        why = f"would save less than {relative(SAVES)} of the bits" if _saved(found) < SAVES else _beyond(found)
        said.append(f"Recommended: {found.high} everywhere, since what fits {found.low}, {fits} of {of}, {why}.")
        return said + _high_beyond(found)
    error = found.plan.measured
    said.append(
        f"Recommended: {_assigned(found)}: {found.plan.cost:.3g} bits a value{_beside(found)}, and the "
        f"{judged_by(found)} {relative(error)} off, measured with all products at once."
    )
    if not error <= found.limit:
        said.append(f"That is more than the limit of {relative(found.limit)}: nothing that was measured does better.")
    return said


def _saved(found: Diagnosed) -> float:
    """The share of the bits of 16-bit products that the recipe of which the answer speaks saves where it fits."""
    high = {(one.layer, one.product): one.bits * one.values for one in found.verdicts if one.recipe == found.high}
    low = {
        (one.layer, one.product): one.bits * one.values
        for one in found.verdicts if one.recipe == found.low and one.fits
    }  # fmt: skip
    return 1 - math.fsum((high | low).values()) / math.fsum(high.values())


def _beyond(found: Diagnosed) -> str:
    """That the gradients are too far off with all that fits, as the end of a sentence."""
    off = "" if found.joint is None else f" {relative(_error(found, found.joint))}"
    return f"leaves the {judged_by(found)}{off} off at once, more than the limit of {relative(found.limit)}"


def _high_beyond(found: Diagnosed) -> list[str]:
    """That 16 bits everywhere are no better, where that is so."""
    error = found.plan.measured
    if error <= found.limit:
        return []
    return [
        f"{found.high} itself leaves them {relative(error)} off, and the limit is {relative(found.limit)}: where "
        f"{judged_by(found)} nearly cancel errors are relative to little, so take larger batches, or another limit."
    ]


def _assigned(found: Diagnosed) -> str:
    """The recipes of a plan, with how many products each has, and which they are where they are few."""
    of: dict[str, list[str]] = {}
    for (layer, product), name in found.plan.assignment.items():
        of.setdefault(name, []).append(f"{name_of(layer)} {product}")
    if len(of) == 1:
        where = f"for all {kind_of(found)}s" if found.alone else "everywhere"
        return f"{next(iter(of))} {'for all that is judged' if _not_judged(found) else where}"
    parts = []
    for name, slots in sorted(of.items(), key=lambda item: -len(item[1])):
        which = f" ({listed(slots)})" if len(slots) <= NAMED else ""
        parts.append(f"{name} for {plural(len(slots), 'product')}{which}")
    return listed(parts)


def _beside(found: Diagnosed) -> str:
    """How many bits 16-bit products take, where the plan has others."""
    if set(found.plan.assignment.values()) == {found.high}:
        return ""
    rows = [one for one in found.verdicts if one.recipe == found.high]
    bits = math.fsum(one.bits * one.values for one in rows) / sum(one.values for one in rows)
    return f", where {found.high} takes {bits:.3g}"


def _others(found: Diagnosed) -> list[str]:
    """The other recipes of fewer than 16 bits, in a sentence each."""
    said = []
    joint = {row.recipe: row for row in found.sensitivity.joint}
    for name in found.sensitivity.recipes:
        if name in _high(found) or name == found.low:
            continue
        bad = ill_layers(found, name)
        if bad:
            said.append(_misfit(found, name, bad))
            continue
        row, mine = joint[name], found.joint
        told = f" and those of {found.low} {relative(_error(found, mine))}" if mine is not None else ""
        if mine is not None and alike_over_batches(row, mine, found.sensitivity.figure):
            told += ", which these batches cannot tell apart"
        off = relative(_error(found, row))
        said.append(f"{name} fits everywhere too: its {judged_by(found)} are {off} off{told}.")
    return said


def _misfit(found: Diagnosed, name: str, bad: Sequence[str]) -> str:
    """Where another recipe does not fit, and why at the first place."""
    misfits = [one for one in found.verdicts if one.recipe == name and not one.fits]
    more = [plural(len(bad) - NAMED, "more layer")] if len(bad) > NAMED else []
    shown = listed([*map(name_of, bad[:NAMED]), *more])
    first = next(one for one in misfits if one.layer == bad[0])
    of = f"of {name_of(bad[0])} " if len(bad) > 1 else ""
    return f"{name} does not fit {shown} ({plural(len(misfits), 'product')}): {of}{first.why}."


# ---- products that follow no recipe of linear layers


def judged_alone(found: Diagnosed) -> set[str]:
    """Return the layers, as the recording calls them, that are judged by their own errors alone."""
    recorded = set(found.recording.layers)
    return {one.layer if one.layer in recorded else one.layer.rpartition(".")[0] for one in found.alone}


def _overflows(found: Diagnosed) -> list[str]:
    """Name the products that give Inf in a recipe though the answer does not begin with it, as the model runs them."""
    others = [one for one in found.verdicts if one.recipe != found.low]
    order = {layer: place for place, layer in enumerate(found.recording.layers)}
    bad = [one for one in (*found.alone, *others) if math.isinf(one.error)]
    bad.sort(key=lambda one: order.get(recorded_name(one.layer), order.get(one.layer.rpartition(".")[0], len(order))))
    said = [
        _opened(f"{name_of(one.layer)} cannot go to {one.recipe} on {found.on}: {one.why}.") for one in bad[:NAMED]
    ]  # fmt: skip
    if len(bad) > NAMED:
        said.append(f"{plural(len(bad) - NAMED, 'more product')} overflow likewise.")
    return said


def _judged_alone(found: Diagnosed) -> list[str]:
    """Say what attention and other products lose in the recipe that the answer speaks of."""
    recipe = found.low or found.high
    rows = [one for one in found.alone if one.recipe == recipe and one.product != KV_CACHE]
    if not rows:
        return []
    bad = sorted((one for one in rows if not one.fits and not math.isinf(one.error)), key=lambda one: -one.error)
    lost = [one for one in rows if math.isinf(one.error)]
    of = plural(len(rows), "product")
    head = f"By their own errors alone, {len(rows) - len(bad) - len(lost)} of {of} of attention and of layers by hand"
    fits = [one for one in rows if one.fits]
    worst = f", off by at most {max(fits, key=lambda one: one.error).off}" if fits else ""
    names = list(dict.fromkeys(name_of(one.layer) for one in rows))
    said = [f"{head} ({listed(names, NAMED + 1)}) fit {recipe}{worst}."]
    said += [_opened(f"{name_of(one.layer)} does not: {one.why}.") for one in bad[:NAMED]]
    return said + _caches(found, recipe)


def _caches(found: Diagnosed, recipe: str) -> list[str]:
    """Say in a sentence what a KV cache in the recipe costs the products that read it."""
    rows = [one for one in found.alone if (one.recipe, one.product) == (recipe, KV_CACHE)]
    if not rows:
        return []
    worst, bad = max(rows, key=lambda one: one.error), [one for one in rows if not one.fits]
    if not bad:
        return [f"A KV cache in {recipe} fits: {name_of(worst.layer)} is off by {worst.off} at most."]
    return [f"A KV cache in {recipe} does not fit {listed([name_of(one.layer) for one in bad[:NAMED]])}: {bad[0].why}."]


def _not_judged(found: Diagnosed) -> list[str]:
    """The recorded layers that have no verdict, of which the answer says nothing."""
    there = {recorded_name(one.layer) for one in found.verdicts} | judged_alone(found)
    others = [name_of(layer) for layer in found.recording.layers if layer not in there]
    others += (name_of(layer) for layer in found.unseen if layer not in there)
    if not others:
        return []
    stays = "as it is" if len(others) == 1 else "as they are"
    return [f"Not judged, and left {stays}: {listed(others, NAMED)}."]
