"""The inherited errors of layers: their inputs in a run where all layers follow a recipe, against exact inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.diagnosis.recording import recorded_name
from fpsim.analysis.studies.sensitivity.outputs import OutputMeasurer
from fpsim.analysis.studies.sensitivity.spot import CALLS, Spot
from fpsim.analysis.studies.sensitivity.twin import Twin, layer_by_layer
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.torch.operators import tensor_of


class Arrivals:
    """The errors of layers' inputs, compared with an exact run, in runs in which all layers follow a recipe.

    Args:
      recording: the exact run, with its operands.
    Attributes:
      energies: recipe -> layer -> the sum of squared errors that the inexact input alone causes in the layer's exact
        product.
    """

    def __init__(self, recording: Recording) -> None:
        self._exact = recording.operands
        self._steps = recording.steps
        self.energies: dict[str, dict[str, float]] = {}
        self._seen: dict[str, set[tuple[str, int]]] = {}
        self._name = ""

    def listen(self, twin: Twin, name: str) -> None:
        """Compare the inputs of all layers with exact ones in the next runs of `twin`, a copy of the model.

        The errors are added up in `energies[name]`, which is emptied first. `name`: name of the recipe that all layers
        follow in these runs.
        """
        self._name, self.energies[name], self._seen[name] = name, {}, set()
        for spot in twin.spots.values():
            spot.read = self._read

    def complete(self, measurer: OutputMeasurer, low: Mapping[tuple[str, str], LinearRecipe], name: str) -> None:
        """Run those recorded batches that did not run since the call of `listen`, then stop comparing inputs.

        These are the batches whose outputs were already stored on disk, so that `measurer` did not run them.

        Args:
          measurer: runs the model's copy on the batches.
          low: (layer, product) -> its recipe.
          name: the recipe's name, as for `listen`.
        """
        there = {index for _, index in self._seen[name]}
        with layer_by_layer():
            for index in range(min(len(self._steps), len(measurer.batches))):
                if index not in there:
                    measurer.twin.run(measurer.batches[index], index, low)
        for spot in measurer.twin.spots.values():
            spot.read = None

    def _read(self, spot: Spot, x: torch.Tensor) -> None:
        """Add to `energies` the squared error that the inexact input of a call alone causes in the output of a layer.

        `spot`: the layer. `x`: the input of the call. Only the first call of a layer on each batch counts. Batches that
        were not recorded are ignored.
        """
        index = (spot.draw - 1) // CALLS
        if index >= len(self._steps) or (spot.name, index) in self._seen[self._name]:
            return  # the recording kept only the first call
        self._seen[self._name].add((spot.name, index))
        exact = self._exact.get((self._steps[index], recorded_name(spot.name), "input"))
        if exact is None or exact.shape != tuple(x.shape):
            return
        dtype = np.float64 if exact.dtype == np.float64 else np.float32  # float32 represents BF16 and FP16 exactly
        wanted = tensor_of(exact.astype(dtype))
        error = x.to(wanted.dtype) - wanted
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            arrived = spot.products.exact(error, spot.layer.weight.to(wanted.dtype), None).double()
        energy = float(arrived.square().sum())
        mine = self.energies[self._name]
        mine[spot.name] = mine.get(spot.name, 0.0) + (energy if math.isfinite(energy) else math.inf)
