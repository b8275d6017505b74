"""Recordings of a model's copy on the batches of a diagnosis: in exact products, and by a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fpsim.analysis.models.measuring import FORMATS
from fpsim.analysis.models.recorder import record
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.layers import left_out, operands_of
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.analysis.studies.sensitivity.request import left_out_layers
from fpsim.analysis.studies.sensitivity.twin import Assignment, Twin, layer_by_layer
from fpsim.display.wording import plural
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe

STEPS = 1000  # more than a recording of a few batches has
Loss = Callable[[Any, Any], Any] | None


def recorded(model: Any, batches: Sequence[Any], loss: Loss, seed: int) -> Recording:
    """Record what the products of a model read on some batches, with a loss backwards too; the model stays as it is.

    Raises:
      TypeError, ValueError: a batch or a loss that does not fit, or a loss that does not call the model.
    """
    found = _recorded(Twin(model, (), loss, seed, "emulated"), batches)
    if not found.operands and loss is not None:
        raise ValueError(
            "loss must call the model that it is given, as model(...), whose layers are recorded there; loss(model, "
            "batch) did not."
        )
    return found


def recorded_low(
    model: Any, batches: Sequence[Any], loss: Loss, seed: int, recipe: LinearRecipe, layers: Sequence[str]
) -> Recording:
    """The same where some layers follow a recipe.

    Raises:
      ValueError: a layer cannot follow it.
    """
    low = {(layer, product): recipe for layer in layers for product in PRODUCTS}
    # whoever reads it asks for operands and their amax, and not what formats would make of them
    return _recorded(Twin(model, layers, loss, seed, "emulated"), batches, low, formats=())


def _recorded(
    twin: Twin, batches: Sequence[Any], low: Assignment | None = None, formats: Sequence[str] = FORMATS
) -> Recording:
    with warnings.catch_warnings(), layer_by_layer():
        # notes of the diagnosis say so
        warnings.filterwarnings(
            "ignore", message="nothing was recorded|.*had inputs of fewer than|Only .* are seen", category=UserWarning
        )
        with record(twin.model, keep=STEPS, formats=formats) as found:
            for index, batch in enumerate(batches):
                outcome = twin.tried(batch, index, low)
                if twin.loss is not None:
                    twin.gradients(outcome.loss, index, keep=False)
                if twin.model.training:  # else each call of the model is a step
                    found.step()
    return found


def recorded_name(layer: str) -> str:
    """What a recording calls a layer: one that is the model itself by its weight."""
    return layer or "weight"


def unrecorded(model: Any, layers: Iterable[str]) -> dict[str, str]:
    """Layers with weights that a recording has nothing of, nor of any part of them, and why they stay exact.

    Args:
      layers: those that it has.
    """
    there = tuple(layers)
    return {
        name: why
        for name, why in left_out_layers(model).items()
        if not any(other == name or other.startswith(f"{name}.") for other in there)
    }


def left_out_notes(
    recording: Recording, layers: Sequence[str], wanted: Sequence[str], unseen: Mapping[str, str],
    exact: Mapping[str, str], recording_has_loss: bool = True,
) -> tuple[str, ...]:  # fmt: skip
    """What of a model is not diagnosed, a sentence for each reason.

    Args:
      layers: the layers that are.
      wanted: those that were asked for, also where the loss does not run through them.
      unseen: layers that were not recorded, and why.
      exact: layers that follow no recipe, recorded or not, and why.
      recording_has_loss: whether the recording is of a loss, or of the model's outputs alone.
    """
    notes, operands = Notes(), recording.operands
    there = {recorded_name(layer) for layer in wanted}
    for step, layer in dict.fromkeys((step, layer) for step, layer, _ in operands):
        if layer not in there:
            of = operands_of(recording, step, layer)
            why = left_out(of, recording.role(step, layer, "weight"), recording.settings(step, layer))
            attention = "attention is no layer that a recipe names"
            other = attention if "query" in of else "it is no linear layer or convolution that layers= names"
            judged = "Not diagnosed" if why else "Judged by its own errors alone"
            notes.add(f"{judged}, since {why or exact.get(layer, other)}", layer)
    for layer, why in unseen.items():
        notes.add(f"Not diagnosed, since {why}", layer or "the model")
    for layer in wanted:
        if layer not in layers:
            runs = "the loss" if recording_has_loss else "model(batch)"
            notes.add(f"Not diagnosed, since {runs} does not run through it", layer)
    few = [layer for layer in recording.too_few() if layer in there]
    if few:
        notes.add(
            f"Figures of {plural(len(few), 'layer')} mean little, with inputs of fewer than 1,000 values",
            ", ".join(few),
        )
    return notes.sentences
