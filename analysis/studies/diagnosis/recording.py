"""Recordings of a copy of the model on the batches of a diagnosis, with exact products or with a recipe."""

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
    """Record a copy of a model on some batches, with the operands of its products; with a loss, also the backward pass.

    Args:
      model: a torch.nn.Module, which is not changed.
      batches: the batches, each a second argument of the loss, or the model's arguments without a loss.
      loss: called as loss(model, batch), or None.
      seed: seed of the random draws of the first batch.
    Raises:
      TypeError, ValueError: a batch or the loss does not fit the model, or the loss does not call the model.
    """
    recording = _recorded(Twin(model, (), loss, seed, "emulated"), batches)
    if not recording.operands and loss is not None:
        raise ValueError(
            "loss must call the model that it is given, as model(...), whose layers are recorded there; loss(model, "
            "batch) did not."
        )
    return recording


def recorded_low(
    model: Any, batches: Sequence[Any], loss: Loss, seed: int, recipe: LinearRecipe, layers: Sequence[str]
) -> Recording:
    """Record a copy of a model on some batches, with all three products of the given layers in one recipe.

    `loss`: called as loss(model, batch), or None. `seed`: seed of the random draws of the first batch. Raise a
    ValueError if a layer cannot follow the recipe.
    """
    low = {(layer, product): recipe for layer in layers for product in PRODUCTS}
    # only the operands and their amax are needed, not their errors in formats
    return _recorded(Twin(model, layers, loss, seed, "emulated"), batches, low, formats=())


def _recorded(
    twin: Twin, batches: Sequence[Any], low: Assignment | None = None, formats: Sequence[str] = FORMATS
) -> Recording:
    """Record runs of a copy of a model on some batches, without warnings that the diagnosis reports as notes.

    `twin`: the copy of the model. `low`: (layer, product) -> its recipe; None for exact products. `formats`: formats in
    which errors are measured.
    """
    with warnings.catch_warnings(), layer_by_layer():
        # the notes of the diagnosis say the same
        warnings.filterwarnings(
            "ignore", message="nothing was recorded|.*had inputs of fewer than|Only .* are seen", category=UserWarning
        )
        with record(twin.model, keep=STEPS, formats=formats) as recording:
            for index, batch in enumerate(batches):
                outcome = twin.tried(batch, index, low)
                if twin.loss is not None:
                    twin.gradients(outcome.loss, index, keep=False)
                if twin.model.training:  # in eval mode each call of the model is a step by itself
                    recording.step()
    return recording


def recorded_name(layer: str) -> str:
    """Return the name of a layer in a recording: a layer that is the whole model, named "", is recorded as "weight"."""
    return layer or "weight"


def recorded_layers(verdicts: Iterable[Any], recording: Recording) -> dict[str, None]:
    """Return the names that a recording has for the layers of verdicts, in order, as keys of a dictionary.

    Both products of an attention, such as "attention.scores", are of one layer, "attention".
    """
    known = set(recording.layers)
    names = (verdict.layer for verdict in verdicts)
    return dict.fromkeys(name if name in known else name.rpartition(".")[0] for name in names)


def unrecorded(model: Any, layers: Iterable[str]) -> dict[str, str]:
    """Return layer -> why it stays exact, for the layers with weights that were not recorded.

    Args:
      model: a torch.nn.Module.
      layers: names of the recorded layers.
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
    """Return a sentence for each reason why parts of a model are not diagnosed, with the layers to which it applies.

    Args:
      recording: the recording of the model, with operands; its layers that have no recipe get a sentence too.
      layers: the diagnosed layers.
      wanted: the requested layers, including those that the loss does not call.
      unseen: layers that were not recorded -> why.
      exact: layers that follow no recipe, recorded or not -> why.
      recording_has_loss: whether a loss was recorded, or the model's outputs alone.
    """
    notes, operands = Notes(), recording.operands
    there = {recorded_name(layer) for layer in wanted}
    for step, layer in dict.fromkeys((step, layer) for step, layer, _ in operands):
        if layer not in there:
            kept = operands_of(recording, step, layer)
            why = left_out(kept, recording.role(step, layer, "weight"), recording.settings(step, layer))
            attention = "no recipe of linear layers names attention"
            other = (
                attention if "query" in kept else "only linear layers and convolutions that layers= names have recipes"
            )
            judged = "Not diagnosed" if why else "Products judged by their own errors alone"
            notes.add(f"{judged}, since {why or exact.get(layer, other)}", layer)
    for layer, why in unseen.items():
        notes.add(f"Not diagnosed, since {why}", layer or "the model")
    for layer in wanted:
        if layer not in layers:
            runs = "the loss" if recording_has_loss else "model(batch)"
            idle = any(name == recorded_name(layer) for _, name, _ in operands)  # its weight alone was kept
            why = "its inputs are empty" if idle else f"{runs} does not run through it"
            notes.add(f"Not diagnosed, since {why}", layer)
    few = [layer for layer in recording.too_few() if layer in there]
    if few:
        notes.add(
            f"The errors of {plural(len(few), 'layer')} mean little, since the inputs have fewer than 1,000 values",
            ", ".join(few),
        )
    return notes.sentences
