"""Layer outputs of an exact run, reused by runs until their first layer in low precision."""

from __future__ import annotations

from collections.abc import Collection

import torch


class ExactPrefix:
    """The outputs of all layers in one exact run without gradients, in the order of the calls.

    A run with some layers in low precision equals the exact run up to the first call of these layers. Until then,
    layers return the stored outputs, instead of computing the same bits again.

    Args:
      room: most bytes of outputs to store; the outputs of later layers are computed again.

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
        """Store a copy of the output y of a layer's call; a copy, since operations in place may overwrite y.

        If the copies would need more than `room` bytes together, only the call is stored, without its output. After
        `restart`, nothing is stored.
        """
        if self._keeps:
            self._room -= y.numel() * y.element_size()
            self._calls.append((layer, y.detach().clone() if self._room >= 0 else None))

    def restart(self, low: Collection[str]) -> None:
        """Begin a run in which the layers named in `low` are in low precision.

        In that run, `take` returns stored outputs until the first call of one of these layers.
        """
        self._keeps, self._place = False, 0
        self._end = next((i for i, (layer, _) in enumerate(self._calls) if layer in low), 0)

    def take(self, layer: str) -> torch.Tensor | None:
        """Return a copy of the exact run's stored output for the next call in order, which is a call of `layer`.

        Return None if the output must be computed: it was not stored, or may differ in this run.
        """
        if self._keeps or self._place >= self._end:
            return None
        name, y = self._calls[self._place]
        self._place += 1
        if name != layer:  # a model that does not repeat itself
            self._end = 0
            return None
        return None if y is None else y.clone()
