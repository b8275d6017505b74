"""Splits the error of a model's products by cause: fp.analysis.budget."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fpsim.analysis.models.coverage import EVERY
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.causes import rows_of
from fpsim.analysis.studies.budget.layers import Kept, kept_layers, recorded_layer
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.analysis.studies.budget.recipes import followed_by
from fpsim.analysis.studies.budget.replay import Amaxes
from fpsim.analysis.studies.budget.report import OWN_UNITS, Budget, added
from fpsim.analysis.studies.budget.row import BudgetRow
from fpsim.recipes.look_up import find_either
from fpsim.recipes.training_recipe import Recipe


def budget(
    recording: Recording,
    *,
    recipe: Any,
    on: Any = "H100",
    arriving: Recording | None = None,
    layers: str | Sequence[str] = ("*",),
) -> Budget:
    """Split the error of every product of a model by cause.

    Each product of a linear layer (y = x w^T, dx = dy w, dw = dy^T x), of a convolution (the same of its patches) and
    of attention (scores, and values) is computed from the kept operands as a layer with that recipe computes it, bit
    for bit, and compared with the exact product. Then each cause is let in alone: the rounding of one operand, scales,
    the unit that adds, its promotion and schedule, the cast of the result (docs/budget.md).

    Args:
      recording: of a model in float32, with operands that `fp.analysis.record(model, keep=1)` kept.
      recipe: an `fp.torch.LinearRecipe`, an `fp.train.Recipe` with the layers that it keeps and its overrides of the
        first step, the name of either, or a TOML file.
      on: the hardware that adds: a chip ("H100", "B200", "MI300X", "A100"), whose unit for the operands' formats it is;
        a library on it ("H100 cuBLAS", "H100 CUTLASS", "H100 DeepGEMM"), whose schedule as well; a unit, schedule or
        accumulator or its name; None for what the recipe has.
      arriving: the recording of the same steps of the same model in low precision: what its layers read and got back
        there is what they inherit.
      layers: shell patterns of the layers to look at.
    Returns:
      A Budget with a row for each layer and product; several kept steps are added up.
    Raises:
      TypeError: no recording, recipe or hardware.
      ValueError: nothing was kept, an operand has NaN or Inf, an unknown name, a chip without a unit for the operands,
        or a shape that the library refuses.

    Example:
      >>> import torch
      >>> _ = torch.manual_seed(0)
      >>> model = torch.nn.Sequential(torch.nn.Linear(128, 64))
      >>> with fp.analysis.record(model, keep=1) as r:
      ...     y = model(torch.randn(256, 128))
      >>> row = fp.analysis.budget(r, recipe="DEEPSEEK_V3").row("0", "fprop")
      >>> row.unit, abs(row.joint - (2 * 0.0265**2) ** 0.5) < 0.002, row.accumulator < 2e-4
      ('hopper_e4m3_f32', True, True)
    """
    found = find_either(recipe)
    notes = Notes()
    kept = kept_layers(recording, layers, notes)
    others = {} if arriving is None else _arriving(recording, arriving, layers)
    found_rows: dict[tuple[int, str, str], BudgetRow] = {}
    for one in kept:
        followed = followed_by(found, one.layer, on)
        notes.extend(followed.notes)
        other = others.get((one.step, one.layer, one.part))
        if arriving is not None:
            notes.extend((reason, one.layer) for reason in _differences(one, other))
        later: Amaxes = {} if other is None or arriving is None else _amaxes(arriving, other)
        amaxes = _amaxes(recording, one)
        with _noting(notes, one.layer):
            for row in rows_of(one, followed.three, amaxes, other, later):
                key = one.step, row.layer, row.product
                found_rows[key] = found_rows[key].with_part(row) if key in found_rows else row
        if not amaxes and any(each.delayed is not None for each in followed.three):
            notes.add(f"Delayed scales are 1 at step {one.step}, since none before it was recorded", one.layer)

    steps = tuple(sorted({one.step for one in kept}))
    where = OWN_UNITS if on is None else str(getattr(on, "name", on))
    names = {recorded_layer(one.layer, one.kind) for one in kept}
    coverage = recording.coverage.of(names, layers not in EVERY)
    rows = added(tuple(found_rows.values()))
    return Budget(rows, _name(found), where, recording.model, steps, notes.sentences, coverage)


@contextmanager
def _noting(notes: Notes, layer: str) -> Iterator[None]:
    """Turn what products warn of, such as a shape for which a library takes other kernels, into notes."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        yield
    for each in found:
        if each.category is UserWarning:
            notes.add(str(each.message).removesuffix("."), layer)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _name(recipe: Any) -> str:
    """What a recipe is called; what it is where it has no name."""
    return recipe.name or ("a recipe of training" if isinstance(recipe, Recipe) else repr(recipe))


def _arriving(
    recording: Recording, arriving: Any, layers: str | Sequence[str]
) -> dict[tuple[int, str, str], Kept]:  # fmt: skip
    """What was kept of the run in low precision, by step, layer and part.

    Raises:
      ValueError: of another model, or of other steps.
    """
    found = kept_layers(arriving, layers, Notes(), "recording that arrives")
    if arriving.model != recording.model:
        raise ValueError(
            f"arriving must be a recording of the same model; got {arriving.model} beside {recording.model}."
        )
    steps, others = ({step for step, _, _ in each.operands} for each in (recording, arriving))
    if not steps & others:
        raise ValueError(
            f"arriving must have kept a step that the recording kept; got {sorted(others)} beside {sorted(steps)}. "
            "Record both with the same every, keep and seed."
        )
    return {(one.step, one.layer, one.part): one for one in found}


def _differences(one: Kept, other: Kept | None) -> list[str]:
    """Why what a layer inherits is not known, or not from its inputs alone."""
    if other is None:
        return [f"What is inherited is not known, since nothing arriving was kept at step {one.step}"]
    if other.x.shape != one.x.shape:
        raise ValueError(
            f"arriving must have seen the same batch; got an input of {one.layer!r} of shape {other.x.shape} beside "
            f"{one.x.shape} at step {one.step}."
        )
    if other.weight.shape == one.weight.shape and (other.weight != one.weight).any():
        return [f"Weights differ at step {one.step}, which counts as inherited: the runs had parted"]
    return []


def _amaxes(recording: Recording, one: Kept) -> Amaxes:
    """The amax of a layer's tensors at the steps before one, for delayed scales."""
    found: dict[str, list[float]] = {}
    for row in recording:
        if row.layer == one.layer and row.step < one.step:
            found.setdefault(row.tensor, []).append(row.range.amax)
    return found
