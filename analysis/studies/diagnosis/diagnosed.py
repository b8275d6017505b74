"""The attributes of a diagnosis from which its advice is written, and functions that name layers and rank them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from fpsim.analysis.models.coverage import Coverage
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.diagnosis.verdict import FIGURES, LINES, Verdict, is_high
from fpsim.analysis.studies.planning.report import Plan
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of
from fpsim.display.wording import printable

NAMED = 3  # layers that a sentence names


class Diagnosed(Protocol):
    """The attributes of a `Diagnosis` that the functions which write its advice read, as a protocol.

    `Diagnosis` calls these functions; the protocol lets them name its type without importing its module.
    """

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


def name_of(layer: str) -> str:
    """Return the name of a layer in sentences: "layer 2" for a number, "the model" for the empty name.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.diagnosed import name_of
      >>> name_of("blocks.0.mlp"), name_of("2"), name_of("")
      ('blocks.0.mlp', 'layer 2', 'the model')
    """
    return f"layer {layer}" if layer.isdigit() else printable(layer) or "the model"


def capitalized(sentence: str) -> str:
    """Return a sentence with a capital first letter if it begins with "layer " or "the ", not with a layer's name."""
    return sentence[0].upper() + sentence[1:] if sentence.startswith(("layer ", "the ")) else sentence


def kind_of(diagnosis: Diagnosed) -> str:
    """Return the noun for the layers of a diagnosis: "linear layer", "convolution", or "layer" if it has both kinds."""
    layers, convolutions = {verdict.layer for verdict in diagnosis.verdicts}, set(diagnosis.sensitivity.convolutions)
    if not layers & convolutions:
        return "linear layer"
    return "layer" if layers - convolutions else "convolution"


def judged_by(diagnosis: Diagnosed) -> str:
    """Return which errors decide between recipes: "gradients", or "outputs" if the diagnosis has no loss."""
    return FIGURES[diagnosis.sensitivity.figure]


def joint_error(diagnosis: Diagnosed, row: SensitivityRow) -> float:
    """Return a row's relative error of the gradients; for a diagnosis without a loss, that of the outputs."""
    return figure_of(row, diagnosis.sensitivity.figure)


def effect_of(diagnosis: Diagnosed, verdict: Verdict) -> float:
    """Return the relative error that a product alone causes in the gradients; without a loss in the outputs.

    The latter is 0 if it was not measured.
    """
    if diagnosis.sensitivity.has_loss:
        return verdict.gradient_error
    return 0.0 if math.isnan(verdict.output_error) else verdict.output_error


def high_recipes(diagnosis: Diagnosed) -> set[str]:
    """Return the names of the diagnosis's recipes of 16 bits or more."""
    return {name for name, recipe in diagnosis.sensitivity.recipes.items() if is_high(recipe)}


def harms_by_effect(diagnosis: Diagnosed, verdict: Verdict) -> bool:
    """Return whether a product's error in gradients or outputs exceeds the limit, while its own errors do not."""
    itself = verdict.error <= diagnosis.limit and not verdict.lines > LINES * diagnosis.limit
    return itself and not effect_of(diagnosis, verdict) <= diagnosis.limit


def verdicts_by_layer(diagnosis: Diagnosed, recipe: str, *, failed: bool = False) -> dict[str, list[Verdict]]:
    """Return layer -> verdicts on its products in one recipe, or only on those that do not fit (`failed`)."""
    layers: dict[str, list[Verdict]] = {}
    for verdict in diagnosis.verdicts:
        if verdict.recipe == recipe and not (failed and verdict.fits):
            layers.setdefault(verdict.layer, []).append(verdict)
    return layers


def ill_layers(diagnosis: Diagnosed, recipe: str) -> list[str]:
    """Return the layers with a product that does not fit a recipe, the worst first.

    Layers with products whose own errors exceed the limit come first, then those whose products only cause too large
    errors in gradients or outputs. Layers whose inherited errors are larger than their own are moved to the end.
    """
    failed = verdicts_by_layer(diagnosis, recipe, failed=True)
    ranked = [layer for layer, _ in diagnosis.budgets[recipe].ranking] if recipe in diagnosis.budgets else []
    wrong = {
        layer for layer, verdicts in failed.items()
        if any(not harms_by_effect(diagnosis, verdict) for verdict in verdicts)
    }  # fmt: skip

    def largest_effect(layer: str) -> float:
        return max(effect_of(diagnosis, verdict) for verdict in failed[layer])

    harmful = sorted(set(failed) - wrong, key=lambda layer: (-largest_effect(layer), layer))
    ordered = [layer for layer in ranked if layer in wrong] + sorted(wrong - set(ranked)) + harmful
    return sorted(ordered, key=lambda layer: all(verdict.inherited > verdict.error for verdict in failed[layer]))
