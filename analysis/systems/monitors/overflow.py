"""A search for the first tensor that overflows on any rank of a training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fpsim.analysis.models.recording import Recording
from fpsim.display.wording import plural, printable
from fpsim.errors import shown


class Overflow(NamedTuple):
    """The first tensor of a training that holds Inf or NaN.

    Attributes:
      step, rank: the training step, and the rank on which the tensor overflowed.
      layer, tensor: name of the layer, and of its tensor: "output", "input", "weight_gradient" and so on.
      infinities, nans: numbers of the tensor's elements that are Inf, and NaN.
      ranks: number of ranks with some tensor that holds Inf or NaN at that step.
      world: number of all ranks.
    """

    step: int
    rank: int
    layer: str
    tensor: str
    infinities: int
    nans: int
    ranks: int
    world: int

    def __str__(self) -> str:
        """Return a sentence that names the step, the rank, the tensor, its layer, and its numbers of Inf and NaN."""
        tensor = self.tensor.replace("_", " ")
        others = f"; {plural(self.ranks, 'rank')} had one at that step" if self.ranks > 1 else ""
        where = f" on rank {self.rank}" if self.world > 1 else ""
        return (
            f"Inf or NaN first at step {self.step}{where}, in the {tensor} of layer {printable(self.layer)}: "
            f"{self.infinities} Inf and {self.nans} NaN{others}."
        )


def first_overflow(recordings: Sequence[Recording | str | Path] | Recording | str | Path) -> Overflow | None:
    """Return the first tensor that held Inf or NaN on any rank, or None if there is none.

    The first is the one at the earliest training step; within the step, the one computed first; among ranks with the
    same tensor, the one on the lowest rank.

    Args:
      recordings: one recording, or one for each rank in the order of ranks: objects of `fp.analysis.record`, or paths
        of their files.

    Raises:
      TypeError: recordings are something else.
      ValueError: there are no recordings, or they are of different models.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 32))
      >>> with torch.no_grad():
      ...     _ = model[1].weight.mul_(3e38)
      >>> with fp.analysis.record(model) as r:
      ...     y = model(torch.full((64, 32), 1e3))
      >>> overflow = fp.analysis.first_overflow(r)
      >>> overflow.layer, overflow.tensor
      ('1', 'output')
    """
    if not isinstance(recordings, (Recording, str, Path, Iterable)):
        raise TypeError(f"recordings must be a recording or its file, or one for each rank; got {shown(recordings)}.")
    listed = [recordings] if isinstance(recordings, (Recording, str, Path)) else list(recordings)
    if not listed:
        raise ValueError("recordings must hold one recording for each rank; got none.")
    loaded = [one if isinstance(one, Recording) else Recording.load(one) for one in listed]
    models = {one.model for one in loaded}
    if len(models) > 1:
        raise ValueError(f"recordings must be of one model; got {shown(sorted(models))}.")
    overflows: dict[tuple[int, int, int], Overflow] = {}
    for rank, recording in enumerate(loaded):
        places = dict.fromkeys((row.layer, row.tensor) for row in recording)
        order = {place: i for i, place in enumerate(places)}
        for row in recording:
            if row.range.infinities or row.range.nans:
                key = (row.step, order[row.layer, row.tensor], rank)
                overflows[key] = Overflow(
                    row.step, rank, row.layer, row.tensor, row.range.infinities, row.range.nans, 1, len(loaded)
                )  # fmt: skip
    if not overflows:
        return None
    first = min(overflows)
    ranks = {rank for step, _, rank in overflows if step == first[0]}
    return overflows[first]._replace(ranks=len(ranks))
