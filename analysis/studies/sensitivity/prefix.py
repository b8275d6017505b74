"""Outputs of layers in an exact run, which runs that differ from it only in later layers take over."""

from __future__ import annotations

from collections.abc import Collection

import torch


class ExactPrefix:
    """The layers' outputs of one exact run without gradients, in the order of the calls.

    A run in which one product is low is equal to the exact run up to the first call of that layer: the same values
    meet the same function. Until then layers return what they gave, with the same bits.

    Args:
      room: bytes of outputs that are kept at most; layers after these are computed again.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.prefix import ExactPrefix
      >>> prefix = ExactPrefix(room=1000)
      >>> for name in ("up", "down"):
      ...     prefix.keep(name, torch.ones(2))
      >>> prefix.restart({"down"})
      >>> prefix.take("up"), prefix.take("down")
      (tensor([1., 1.]), None)
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._calls: list[tuple[str, torch.Tensor | None]] = []
        self._keeps = True
        self._place = self._end = 0

    def keep(self, layer: str, y: torch.Tensor) -> None:
        """Keep the output of a layer's call, a copy, as activations may write into it."""
        if self._keeps:
            self._room -= y.numel() * y.element_size()
            self._calls.append((layer, y.detach().clone() if self._room >= 0 else None))

    def restart(self, low: Collection[str]) -> None:
        """Begin a run in which some layers have low products: calls before the first of theirs need no computation."""
        self._keeps, self._place = False, 0
        self._end = next((i for i, (layer, _) in enumerate(self._calls) if layer in low), 0)

    def take(self, layer: str) -> torch.Tensor | None:
        """Return what the next call gave in the exact run; None where it has to be computed."""
        if self._keeps or self._place >= self._end:
            return None
        name, y = self._calls[self._place]
        self._place += 1
        if name != layer:  # a model that does not repeat itself
            self._end = 0
            return None
        return None if y is None else y.clone()
