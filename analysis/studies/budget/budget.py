"""The function fp.analysis.budget, which splits the error of each matrix product of a model by cause."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from fpsim.analysis.models.coverage import EVERY
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.causes import rows_of
from fpsim.analysis.studies.budget.layers import Kept, kept_layers, recorded_layer
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.analysis.studies.budget.replay import Amaxes
from fpsim.analysis.studies.budget.report import OWN_UNITS, Budget, added
from fpsim.analysis.studies.budget.row import BudgetRow
from fpsim.display.wording import listed
from fpsim.recipes.hardware import Hardware, Note, placed
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.look_up import LinearLike, find_either
from fpsim.recipes.training_recipe import Recipe


def budget(
    recording: Recording,
    *,
    recipe: LinearLike,
    on: Hardware = "H100",
    arriving: Recording | None = None,
    layers: str | Sequence[str] = ("*",),
) -> Budget:
    """Split the error of every matrix product of a recorded model by cause: rounding, scales, accumulation, cast.

    The products are those of linear layers (y = x w^T, dx = dy w, dw = dy^T x), of convolutions (the same with patches)
    and of attention (scores and values). Each is computed from the recorded operands, bit for bit as a layer that
    follows the recipe does, and compared with the exact product. Then it is computed with one cause of error at a time:
    the rounding of one operand, scales, the matrix unit that adds, its promotion and schedule, the cast of the result
    (docs/budget.md).

    Args:
      recording: a recording of a model in float32 with its operands, made by `fp.analysis.record(model, keep=1)`.
      recipe: an `fp.torch.LinearRecipe`, an `fp.train.Recipe` (with the layers that it leaves exact, and the overrides
        of the first step), the name of either, or a TOML file.
      on: the hardware that adds: a chip ("H100", "B200", "MI300X", "A100"), which stands for its matrix unit for the
        operands' formats; a library on a chip ("H100 cuBLAS", "H100 CUTLASS", "H100 DeepGEMM"), for its unit and
        schedule; a unit, schedule or accumulator, or its name; "this CPU" for torch.mm on the processor of this
        machine; None for the units and schedules of the recipe.
      arriving: a recording of the same steps of the same model in low precision, or None. The inherited error of a
        product is the error of the exact product of these operands, compared with that of `recording`'s operands.
      layers: shell patterns of the names of the layers to include.
    Returns:
      A Budget with a row for each layer and product; the squared errors of several recorded steps are added.
    Raises:
      TypeError: recording, recipe or on is of another type.
      ValueError: no operands were recorded, an operand contains NaN or Inf, a name is unknown, the chip has no unit for
        the operands' formats, or the library refuses the shape.

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
    recipe = find_either(recipe)
    notes = Notes()
    products = kept_layers(recording, layers, notes)
    others = {} if arriving is None else _arriving(recording, arriving, layers)
    rows: dict[tuple[int, str, str], BudgetRow] = {}
    for kept in products:
        recipes, remarks = followed_by(recipe, kept.layer, on)
        notes.extend(remarks)
        other = others.get((kept.step, kept.layer, kept.part))
        if arriving is not None:
            notes.extend((reason, kept.layer) for reason in _differences(kept, other))
        later: Amaxes = {} if other is None or arriving is None else _amaxes(arriving, other)
        amaxes = _amaxes(recording, kept)
        with _noting(notes, kept.layer):
            for row in rows_of(kept, recipes, amaxes, other, later):
                key = kept.step, row.layer, row.product
                rows[key] = rows[key].with_part(row) if key in rows else row
        new = [name for name, which in _recorded_names(kept).items() if which not in amaxes]
        if new and any(linear.delayed is not None for linear in recipes):
            why = f"are 1 at step {kept.step}, since no amax was recorded before it"
            notes.add(f"Delayed scales of {listed([name.replace('_', ' ') for name in new])} {why}", kept.layer)

    steps = tuple(sorted({kept.step for kept in products}))
    hardware = OWN_UNITS if on is None else str(getattr(on, "name", on))
    names = {recorded_layer(kept.layer, kept.kind) for kept in products}
    coverage = recording.coverage.of(names, layers not in EVERY)
    name = recipe.name or ("a recipe of training" if isinstance(recipe, Recipe) else repr(recipe))
    return Budget(added(tuple(rows.values())), name, hardware, recording.model, steps, notes.sentences, coverage)


def followed_by(
    recipe: LinearRecipe | Recipe, layer: str, hardware: Any
) -> tuple[tuple[LinearRecipe, LinearRecipe, LinearRecipe], tuple[Note, ...]]:  # fmt: skip
    """Return the recipes of fprop, dgrad and wgrad that a layer follows on some hardware, and notes.

    The notes are pairs (effect of the hardware that a user might not expect, name of the product). `recipe`: a recipe
    of linear layers, which all three products follow; or a recipe of training, whose settings for this layer at the
    first step are taken. `layer`: the layer's name. `hardware`: as `on` in `budget`.

    Raises:
      ValueError: the hardware cannot compute one of the products.
    """
    place = _placed if isinstance(hardware, Hashable) else placed  # whose error says what hardware is accepted
    if isinstance(recipe, LinearRecipe):
        linear = place(recipe, hardware)
        return (linear.recipe,) * 3, linear.notes
    x, dx, dw = (place(recipe.linear_of(layer, product, 0, 1), hardware) for product in PRODUCTS)
    return (x.recipe, dx.recipe, dw.recipe), tuple(dict.fromkeys((*x.notes, *dx.notes, *dw.notes)))


_placed = lru_cache(maxsize=64)(placed)


@contextmanager
def _noting(notes: Notes, layer: str) -> Iterator[None]:
    """Add the UserWarnings raised in a `with` block to the notes on a layer.

    Other warnings are shown after the block. `layer`: name of the layer.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        if warning.category is UserWarning:
            notes.add(str(warning.message).removesuffix("."), layer)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _arriving(
    recording: Recording, arriving: Any, layers: str | Sequence[str]
) -> dict[tuple[int, str, str], Kept]:  # fmt: skip
    """Return (step, layer, part) -> operands that the run in low precision recorded.

    The part is "group 3" or "head 3" in a layer with several products, else "". `recording`: the exact run. `arriving`:
    the Recording of the run in low precision. `layers`: shell patterns of the names of the layers to include.

    Raises:
      ValueError: `arriving` is a recording of another model, or has no step in common with `recording`.
    """
    products = kept_layers(arriving, layers, Notes(), "arriving recording")
    if arriving.model != recording.model:
        raise ValueError(f"arriving must be a recording of {recording.model}, the same model; got {arriving.model}.")
    steps, others = ({step for step, _, _ in run.operands} for run in (recording, arriving))
    if not steps & others:
        raise ValueError(
            f"arriving must have kept one of the steps {sorted(steps)} of the recording; got {sorted(others)}. Record "
            "both with the same every, keep and seed."
        )
    return {(kept.step, kept.layer, kept.part): kept for kept in products}


def _differences(kept: Kept, other: Kept | None) -> list[str]:
    """Return notes saying why a layer's inherited error is unknown, or includes a difference of weights; [] otherwise.

    `kept`: the operands of the exact run. `other`: the operands of the same product and step in the run in low
    precision; None if missing. Raise a ValueError if the inputs differ in shape.
    """
    if other is None:
        return [f"Inherited errors are not known, since the arriving recording has no operands of step {kept.step}"]
    if other.x.shape != kept.x.shape:
        raise ValueError(
            f"arriving must be of the same batch; got an input of {kept.layer!r} of shape {other.x.shape} instead of "
            f"{kept.x.shape} at step {kept.step}."
        )
    if other.weight.shape == kept.weight.shape and (other.weight != kept.weight).any():
        return [f"Weights of the two runs differ at step {kept.step}, which counts as inherited"]
    return []


def _amaxes(recording: Recording, kept: Kept) -> Amaxes:
    """Return the amaxes of a layer's tensors at earlier recorded steps, from which delayed scales are computed.

    The result maps the name of a tensor, such as "input", to a list of amaxes (largest magnitudes), the earliest first.
    `recording`: the run. `kept`: names the layer, and the step before which the amaxes are taken.
    """
    amaxes: dict[str, list[float]] = {}
    names, layer = _recorded_names(kept), recorded_layer(kept.layer, kept.kind)
    for row in recording:
        if row.layer == layer and row.tensor in names and row.step < kept.step:
            amaxes.setdefault(names[row.tensor], []).append(row.range.amax)
    return amaxes


def _recorded_names(kept: Kept) -> dict[str, str]:
    """Return the names of a product's tensors in a recording, such as "query" -> their names here, such as "input"."""
    names = ("input", "weight") if kept.gradient is None else ("input", "weight", "output_gradient")
    return {kept.called.get(name, name): name for name in names}
