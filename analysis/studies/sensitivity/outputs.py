"""Runs of a copy of a model without a loss or backward pass: how products in low precision change its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fpsim.analysis.models.counting import counting
from fpsim.analysis.studies.cells import Cells
from fpsim.analysis.studies.sensitivity.compare import distance
from fpsim.analysis.studies.sensitivity.measuring import ExactRun, Measurer, Report, SingleProducts
from fpsim.analysis.studies.sensitivity.one_pass import Key
from fpsim.analysis.studies.sensitivity.prefix import ExactPrefix
from fpsim.analysis.studies.sensitivity.row import UNCHANGED, BatchFigures
from fpsim.analysis.studies.sensitivity.spot import RefusedProduct, Spot
from fpsim.analysis.studies.sensitivity.twin import layer_by_layer
from fpsim.recipes.linear_recipe import LinearRecipe

KEPT = 1 << 30  # most bytes of exact outputs of layers that are kept for other runs
NAN = math.nan
Read = Callable[[Spot, int, torch.Tensor], None]


class OutputMeasurer(Measurer):
    """The measurement of how forward products in low precision change a model's outputs, without a loss.

    Metrics of losses and gradients are NaN. The arguments are those of Measurer: a Twin without a loss, the batches,
    name -> recipe, the products ("fprop",), a digest of model, batches and draws, and a folder that stores each
    measurement, or None.
    """

    def single(self, progress: Report) -> SingleProducts:
        """Measure, on every batch, how each forward product in each recipe, one at a time, changes the outputs.

        `progress`: called with (share of the work done, text).
        """
        with layer_by_layer(), self._cells() as cells:
            unsteady = self.prepare()
            for index in range(len(self.batches)):
                self._all_of_batch(index, self._keys(), cells, progress)
        return self.measured(unsteady)

    def prepare(self) -> float:
        """Run every batch with exact products, and count the operands' values and the model's multiplications.

        The counts are stored in `elements` and `coverage`.

        Returns:
          Relative difference of the outputs of two runs of the first batch. The difference is 0 for a deterministic
          model, if this method ran before, or if the outputs are too large to be stored.
        """
        if self.elements:
            return 0.0
        with layer_by_layer(), counting(self.twin.model) as tally:
            for spot in self.twin.spots.values():
                spot.read = self._count
            for index, batch in enumerate(self.batches):
                self._keep(index, ExactRun(NAN, self.twin.tried(batch, index).outputs, [], None))
                for spot in self.twin.spots.values():
                    if (spot.name, "fprop") in self.elements:
                        spot.read = None
            for spot in self.twin.spots.values():
                spot.read = None
        self.coverage = tally.coverage
        with layer_by_layer():
            return distance(self._exact(0).outputs, self._kept[0].outputs).error if 0 in self._kept else 0.0

    def measure(self, keys: Sequence[Key], progress: Report) -> None:
        """Run the model on all batches with one product at a time in a recipe, and store the errors of the outputs.

        `keys`: (layer, product, recipe name) of each run. `progress`: called with (share of the work done, text).
        """
        with layer_by_layer(), self._cells() as cells:
            for index in range(len(self.batches)):
                self._all_of_batch(index, keys, cells, progress)

    def measured(self, unsteady: float = 0.0) -> SingleProducts:
        """Return a row for each product and recipe, and notes; losses, and metrics that were not measured, are NaN.

        `unsteady`: relative difference of the outputs of two exact runs of one batch, as `prepare` returns it.
        """
        return self._single(UNKNOWN, (NAN,) * len(self.batches), unsteady)

    def _count(self, spot: Spot, x: torch.Tensor) -> None:
        """Add the number of input values that a call of a layer multiplies to the layer's count in `elements`.

        `spot`: the layer. `x`: the input of the call. The layer's weight counts once, however often the layer is
        called.
        """
        inputs, weight = spot.operand_values(x)
        if not inputs or not weight:
            self.idle[spot.name] = None
            return
        self.elements[spot.name, "fprop"] = inputs + self.elements.get((spot.name, "fprop"), (0, 0))[0], weight

    def _all_of_batch(self, index: int, keys: Sequence[Key], cells: Cells | None, progress: Report) -> None:
        """Measure and store, on batch number `index`, those products and recipes whose results are not stored yet.

        `keys`: (layer, product, recipe name) of each. `cells`: the file of finished measurements, or None. `progress`:
        called with (share of the work done, text).
        """
        missing = [key for key in keys if self._read(self._name(key, index), cells) is None and key not in self.refused]
        prefix = ExactPrefix(KEPT)
        for spot in self.twin.spots.values():
            spot.prefix = prefix if missing else None
        exact = self._exact(index) if missing else None
        for done, key in enumerate(missing):
            layer, product, name = key
            progress((index + done / len(missing)) / len(self.batches), f"{layer} in {name}, batch {index + 1}")
            prefix.restart({layer})
            assert exact is not None
            try:
                figures = self._changed(exact, index, {(layer, product): self.recipes[name]})
            except RefusedProduct as reason:
                self.refused[key] = str(reason)
                continue
            point = {"layer": layer, "product": product, "recipe": name, "batch": str(index)}
            self._write(self._name(key, index), point, figures, cells)
        for spot in self.twin.spots.values():
            spot.prefix = None

    def _exact(self, index: int, seer: Any = None) -> ExactRun:
        """Return the outputs of batch number `index` with exact products, as an ExactRun without a loss.

        `seer` is ignored, since there is no backward pass.
        """
        return ExactRun(NAN, self.twin.run(self.batches[index], index).outputs, [], None)

    def _changed(
        self, exact: ExactRun, index: int, low: Mapping[tuple[str, str], LinearRecipe], layer: str | None = None
    ) -> BatchFigures:
        """Return how the outputs of batch number `index` change if some products follow recipes.

        `exact`: the results of the batch with exact products. `low`: (layer, product) -> recipe. `layer` is ignored,
        since there are no gradients.
        """
        outputs = self.twin.run(self.batches[index], index, low).outputs
        error, cosine = distance(outputs, exact.outputs)
        return UNKNOWN._replace(output_error=error, output_cosine=cosine)


UNKNOWN = BatchFigures(*(NAN,) * len(UNCHANGED))
