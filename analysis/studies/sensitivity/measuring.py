"""Runs of a copy of a model on every batch, with one product in low precision, or several at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from fpsim.analysis.models.counting import counting
from fpsim.analysis.models.coverage import EVERY, NOTHING, Coverage
from fpsim.analysis.studies.cells import Cells, SweepCell, stored
from fpsim.analysis.studies.identity import digest
from fpsim.analysis.studies.sensitivity.compare import SAME, UNKNOWN, distance
from fpsim.analysis.studies.sensitivity.content import recipe_words
from fpsim.analysis.studies.sensitivity.one_pass import Key, OnePass
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.request import left_out_notes
from fpsim.analysis.studies.sensitivity.row import JOINT, UNCHANGED, BatchFigures, SensitivityRow
from fpsim.analysis.studies.sensitivity.shapes import groups_of, terms_of
from fpsim.analysis.studies.sensitivity.spot import RefusedProduct
from fpsim.analysis.studies.sensitivity.twin import Twin, TwinRun, layer_by_layer, loss_checked
from fpsim.display.wording import listed
from fpsim.recipes.linear_recipe import LinearRecipe

KEPT = 1 << 30  # most bytes of exact gradients and outputs that are kept for joint runs
PARAMETERS = ["layer", "product", "recipe", "batch"]
ORDER = ("wgrad", "dgrad", "fprop")  # gradients first, which use the graph of the exact run
Report = Callable[[float, str], None]


class ExactRun(NamedTuple):
    """The results of one batch with exact products.

    Attributes:
      loss: value of the loss; NaN without a loss.
      outputs: all float tensors that the model returned.
      gradients: gradient of every trainable parameter; None for an unused one.
      outcome: the run, whose graph another backward pass can use; None if the graph was freed.
    """

    loss: float
    outputs: list[Any]
    gradients: list[Any]
    outcome: TwinRun | None


class SingleProducts(NamedTuple):
    """The effects of products that were measured one at a time in low precision.

    Attributes:
      rows: a row for each layer, product and recipe.
      losses: the loss of each batch with exact products; NaN without a loss.
      notes: sentences on what was not measured, and why.
    """

    rows: list[SensitivityRow]
    losses: tuple[float, ...]
    notes: tuple[str, ...]


class Measurer:
    """The measurement of how products in low precision change a model's loss, outputs and gradients on some batches.

    Args:
      twin: the copy of the model.
      batches: the batches, each a second argument of the loss.
      recipes: name -> recipe.
      products: the products to measure: one or several of "fprop", "dgrad" and "wgrad".
      identity: a digest of model, loss, batches and random draws.
      out: a folder that stores each measurement, or None; refused if it has measurements of another identity.
    """

    def __init__(
        self, twin: Twin, batches: Sequence[Any], recipes: Mapping[str, LinearRecipe], products: Sequence[str],
        identity: str, out: Path | None,
    ) -> None:  # fmt: skip
        self.twin, self.batches, self.recipes, self.products = twin, batches, recipes, products
        self.identity, self.out = identity, out
        self._kept: dict[int, ExactRun] = {}
        self._known: dict[str, BatchFigures] = {}
        self.elements: dict[tuple[str, str], tuple[int, int]] = {}
        self.idle: dict[str, None] = {}  # layers that some batch called with empty inputs
        self.refused: dict[Key, str] = {}
        self.coverage: Coverage = NOTHING

    # ---- all rows

    def single(self, progress: Report) -> SingleProducts:
        """Measure how each product of each layer in each recipe, one at a time, changes the metrics of every batch.

        `progress`: called with (share of the work done, text).
        """
        losses, unsteady = [], 0.0
        with layer_by_layer(), self._cells() as cells:
            with counting(self.twin.model) as tally:  # an unusable batch raises an error before the long work
                first = [_value(self.twin.tried(batch, index).loss) for index, batch in enumerate(self.batches)]
            self.coverage = tally.coverage
            for index in range(len(self.batches)):
                exact = self._batch(index, cells, progress)
                losses.append(exact.loss)
                unsteady = max(unsteady, abs(exact.loss - first[index]))
        return self._single(UNCHANGED, losses, unsteady)

    def _single(self, unknown: BatchFigures, losses: Sequence[float], unsteady: float) -> SingleProducts:
        """Return the rows of all products and recipes, with `unknown` for metrics of batches that are not stored.

        `unsteady`: the largest difference of losses, or without a loss of outputs, between exact runs of a batch.
        """
        rows = []
        for key in self._keys():
            if key not in self.refused:
                names = [self._name(key, index) for index in range(len(self.batches))]
                batches = [self._known.get(name, unknown) for name in names]
                rows.append(SensitivityRow.of(*key, self.elements[key[:2]], batches))
        return SingleProducts(rows, tuple(losses), tuple(self._notes(unsteady)))

    def _keys(self) -> list[Key]:
        """Return (layer, product, recipe name) for every recipe and every product seen in the batches run so far."""
        return [
            (layer, product, recipe)
            for layer in self.twin.spots
            for product in self.products
            if (layer, product) in self.elements
            for recipe in self.recipes
        ]

    def _batch(self, index: int, cells: Cells | None, progress: Report) -> ExactRun:
        """Measure, on batch number `index`, all products and recipes whose results are not stored yet.

        Return the results of the batch with exact products. `cells`: the file of finished measurements, or None.
        `progress`: called with (share of the work done, text).
        """
        missing = [
            (layer, product, name)
            for product in ORDER
            for layer in self.twin.spots
            for name in self.recipes
            if product in self.products and self._read(self._name((layer, product, name), index), cells) is None
        ]
        seer = OnePass(self.recipes, missing)
        exact = self._exact(index, seer)
        for pair, sizes in seer.elements.items():
            if all(sizes):
                self.elements.setdefault(pair, sizes)
            else:  # such as an expert without tokens; it may have some in other batches
                self.idle[pair[0]] = None
        self.refused |= seer.refused
        missing = [key for key in missing if key not in self.refused and all(seer.elements.get(key[:2], (0,)))]
        for done, key in enumerate(missing):
            progress((index + done / len(missing)) / len(self.batches), f"{key[0]} {key[1]}, batch {index + 1}")
            if key[1] == "fprop":
                exact = exact._replace(outcome=None)  # from here on the model runs again
            try:
                figures = self._one(exact, index, key, seer)
            except RefusedProduct as reason:
                self.refused[key] = str(reason)
                continue
            point = dict(zip(PARAMETERS, (*key, str(index)), strict=True))
            self._write(self._name(key, index), point, figures, cells)
        exact = exact._replace(outcome=None)
        self._keep(index, exact)
        return exact

    def _one(self, exact: ExactRun, index: int, key: Key, seer: OnePass) -> BatchFigures:
        """Return how one product in one recipe changes the metrics of batch number `index`.

        For wgrad of a weight that is a parameter, the change is computed from `seer`, without a run. Otherwise the
        model runs again; for dgrad and wgrad, only its backward pass if `exact` still has torch's graph.

        Args:
          exact: the results of the batch with exact products.
          key: (layer, product, recipe name).
          seer: the errors of products in low precision, computed during an exact backward pass.
        """
        layer, product, name = key
        if product == "wgrad":
            place = self.twin.place_of(layer)
            if place is not None:  # the weight is a parameter, so that only its gradient changes
                outputs = SAME if exact.outputs else UNKNOWN
                square = sum(float(g.double().square().sum()) for g in exact.gradients if g is not None)
                whole, part = seer.of_weight(layer, name, exact.gradients[place], square)
                return BatchFigures(0.0, *outputs, *whole, part.error)
        figures = self._changed(exact, index, {(layer, product): self.recipes[name]}, layer)
        if product != "fprop":
            return figures
        first, fisher = seer.estimates(layer, name)
        return figures._replace(first_order=first, fisher=fisher)

    def _exact(self, index: int, seer: OnePass | None = None) -> ExactRun:
        """Return the results of batch number `index` with exact products.

        If `seer` is not None, it observes every layer in the backward pass, and torch's graph is kept for another
        backward pass.
        """
        for spot in self.twin.spots.values():
            spot.read = None if seer is None else seer.read
        outcome = self.twin.run(self.batches[index], index)
        for spot in self.twin.spots.values():
            spot.read = None
        loss = loss_checked(outcome.loss, index)
        if seer is not None:
            seer.terms = _terms(outcome.outputs)
            for spot in self.twin.spots.values():
                spot.seen = seer.see
        gradients = self.twin.gradients(loss, index, keep=seer is not None)
        for spot in self.twin.spots.values():
            spot.seen = None
        if seer is not None:
            seer.add_frozen()
        kept = None if seer is None else outcome
        return ExactRun(_value(loss), outcome.outputs, gradients, kept)

    def _changed(
        self, exact: ExactRun, index: int, low: Mapping[tuple[str, str], LinearRecipe], layer: str | None = None
    ) -> BatchFigures:
        """Return how the metrics of batch number `index` change if some products follow recipes.

        Args:
          exact: the batch's results with exact products; if they have torch's graph, only the backward pass runs again.
          low: (layer, product) -> recipe, for the products in low precision.
          layer: the layer whose weight gradient is also compared alone, or None.
        """
        if exact.outcome is not None:  # only the backward pass changes
            self.twin.assign(low, index)
            outcome, keep = exact.outcome, True
        else:
            outcome, keep = self.twin.run(self.batches[index], index, low), False
        gradients = self.twin.gradients(outcome.loss, index, keep=keep)
        value = _value(outcome.loss)
        change = value - exact.loss
        outputs = SAME if keep else distance(outcome.outputs, exact.outputs)
        if not exact.outputs:
            outputs = UNKNOWN
        place = self.twin.place_of(layer) if layer is not None else None
        weight = math.nan if place is None else distance([gradients[place]], [exact.gradients[place]]).error
        change = change if math.isfinite(value) else math.inf
        return BatchFigures(change, *outputs, *distance(gradients, exact.gradients), weight)

    # ---- several at once

    def joint(self, assignment: Mapping[tuple[str, str], LinearRecipe], name: str) -> SensitivityRow:
        """Measure how the metrics of all batches change if several products follow recipes at once.

        `assignment`: (layer, product) -> recipe. `name`: name of the recipe in the returned row. Raise a ValueError if
        a product cannot be computed in its recipe.
        """
        parts = [text for pair in sorted(assignment) for text in (*pair, recipe_words(assignment[pair]))]
        figures = []
        with layer_by_layer(), self._cells() as cells:
            for index in range(len(self.batches)):
                key = digest("joint", str(index), *parts)
                known = self._read(key, cells)
                if known is None:
                    exact = self._kept.get(index) or self._keep(index, self._exact(index))
                    try:
                        known = self._changed(exact, index, assignment)
                    except RefusedProduct as reason:
                        raise ValueError(
                            f"{reason.product} of layer {reason.layer!r} cannot follow its recipe: {reason}"
                        ) from reason
                    known = known._replace(first_order=math.nan, fisher=math.nan)
                    known = self._write(key, {"layer": JOINT, "batch": str(index)}, known, cells)
                figures.append(known)
        sizes = [self.elements.get(pair, (0, 0)) for pair in assignment]
        elements = sum(left for left, _ in sizes), sum(right for _, right in sizes)
        return SensitivityRow.of(JOINT, JOINT, name, elements, figures)

    def _keep(self, index: int, exact: ExactRun) -> ExactRun:
        """Store the exact results of batch number `index` in memory for `joint`, and return them.

        Nothing is stored if the results of all batches would need more than 1 GiB.
        """
        held = [x for x in (*exact.outputs, *exact.gradients) if x is not None]
        if sum(x.numel() * x.element_size() for x in held) * len(self.batches) <= KEPT:
            self._kept[index] = exact
        return exact

    # ---- cells

    def _cells(self) -> Any:
        """Return a context manager whose value is the file of finished measurements, or None if there is no folder for
        it."""
        if self.out is None:
            return nullcontext(None)
        return Cells(
            self.out, "fpsim.analysis.sensitivity", self.identity, PARAMETERS, kind="sensitivity",
            changed="with other weights, settings, batches, draws or code",
        )  # fmt: skip

    def _name(self, key: Key, index: int) -> str:
        """Return the digest under which the result for a key and batch number `index` is stored.

        `key`: (layer, product, recipe name); the recipe counts by its contents.
        """
        layer, product, name = key
        return digest(layer, product, recipe_words(self.recipes[name]), str(index))

    def _read(self, key: str, cells: Cells | None) -> BatchFigures | None:
        """Return the metrics stored under the digest `key`, in memory or in the file `cells`; None if there are none.

        `cells`: the file of finished measurements, or None.
        """
        if key not in self._known:
            figures = stored(cells, key)
            if figures is None:
                return None
            self._known[key] = BatchFigures.of(**figures)
        return self._known[key]

    def _write(self, key: str, point: dict[str, str], figures: BatchFigures, cells: Cells | None) -> BatchFigures:
        """Store `figures`, metrics of a batch, under the digest `key` in memory and in the file `cells`; return them.

        `point`: names of what was measured, which the file stores too. `cells`: the file of finished measurements, or
        None.
        """
        figures = self._known[key] = BatchFigures.of(*figures)
        if cells is not None:
            cells.add(SweepCell(key, point, figures._asdict()))
        return figures

    # ---- words

    def _notes(self, unsteady: float) -> list[str]:
        """Return sentences on limits of the measurements: runs that differ, layers not called, and refused products.

        `unsteady`: the largest difference between two exact runs of the same batch. This is a difference of losses;
        without a loss, a relative difference of outputs.
        """
        notes = []
        if unsteady:
            named = "losses" if self.twin.loss is not None else "outputs"
            notes.append(
                f"The model does not repeat itself: {named} of the same batch with exact products differ by up to "
                f"{unsteady:.2g}, so that smaller changes mean nothing."
            )
        silent = [layer for layer in self.twin.spots if (layer, "fprop") not in self.elements]
        idle = [layer for layer in silent if layer in self.idle]
        if idle:
            notes.append(f"Called with empty inputs, and therefore without rows: {listed(idle)}.")
        silent = [layer for layer in silent if layer not in self.idle]
        if silent:
            called = "Not called" if self.twin.loss is None else "Not called by the loss"
            notes.append(f"{called}, and therefore without rows: {listed(silent)}.")
        for layer, product, recipe in filter(self.refused.__contains__, self._keys()):
            notes.append(f"{product} of {layer} cannot be computed in {recipe}: {self.refused[layer, product, recipe]}")
        return notes


def _value(loss: Any) -> float:
    """Return the loss, a tensor of one element, as a Python float."""
    return float(loss.detach())


def _terms(outputs: Sequence[Any]) -> int:
    """Return the number of rows of the model's first output tensor; 1 without outputs.

    Estimates take this number as the number of terms whose mean is the loss. `outputs`: all float tensors that the
    model returned.
    """
    return max(1, outputs[0].numel() // max(1, outputs[0].shape[-1])) if outputs and outputs[0].dim() else 1


def sensitivity_of(
    measurer: Measurer, model: Any, layers: str | Sequence[str], sizes: Mapping[str, int], single: SingleProducts,
    joint: tuple[SensitivityRow, ...], notes: Sequence[str] = (),
) -> Sensitivity:  # fmt: skip
    """Return the report of finished measurements of a model.

    `measurer`: the Measurer that made the measurements. `model`: the torch.nn.Module. `layers`: the user's shell
    patterns. `sizes`: layer -> number of elements of its weight. `single`: the rows of single products. `joint`: for
    each recipe, a row of all products at once. `notes`: sentences that come before those of `single`.
    """
    words = [text for name, recipe in measurer.recipes.items() for text in (name, recipe_words(recipe))]
    notes = (*left_out_notes(model, layers), *notes, *single.notes)
    coverage = measurer.coverage.of({row.layer for row in single.rows}, layers not in EVERY)
    return Sensitivity(
        tuple(single.rows), joint, sizes, measurer.recipes, single.losses, type(model).__name__,
        digest(measurer.identity, *words), notes, measurer, groups_of(model, sizes), coverage,
        terms_of(model, sizes),
    )  # fmt: skip
