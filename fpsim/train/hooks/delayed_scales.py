"""Delayed scales of layers: every micro-batch of a step begins with the same ones, and they move once a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fpsim.torch.delayed import with_largest_amax
from fpsim.torch.linear import QuantLinear
from fpsim.torch.operators import Tensor, array_of, tensor_of
from fpsim.train.hooks.ranks import Ranks


class DelayedScales:
    """The delayed scales of a model's layers in one step.

    After the step they follow from the largest amax of all its micro-batches and of all processes.

    Args:
      layers: the layers by name, before the step.
    """

    def __init__(self, layers: Mapping[str, QuantLinear]) -> None:
        self._layers = layers
        self._before = self._copies()
        self._after: list[dict[str, Tensor]] = []

    def micro_batches(self, count: int) -> Iterator[int]:
        """Yield the number of each micro-batch, with the scales as they were before the step."""
        self._after = []
        for micro in range(count):
            for name, scales in self._before.items():
                self._layers[name].scales = scales.clone()
            yield micro
            self._after.append(self._copies())
        for name in self._before:
            largest = with_largest_amax([array_of(scales[name]) for scales in self._after])
            self._layers[name].scales = tensor_of(largest)

    def share(self, ranks: Ranks) -> None:
        """Set the scales of all processes from the largest amax of any, so that their next steps use equal ones."""
        for layer in self._layers.values() if ranks.world > 1 else ():
            if layer.scales is not None:
                layer.scales = tensor_of(with_largest_amax(ranks.gathered(array_of(layer.scales))))

    def _copies(self) -> dict[str, Tensor]:
        """Return copies of the scales of all layers that have some."""
        return {name: layer.scales.clone() for name, layer in self._layers.items() if layer.scales is not None}
