"""The report on the weights that a step of the optimizer changed, and the counts that it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.torch.operators import Tensor, array_of, torch
from fpsim.train.operations import kernels
from fpsim.train.optimizer.clipping import Clipping


@dataclass(frozen=True)
class StepReport:
    """The measured effects of one step of the optimizer.

    An update is what AdamW asks for: the step of the moments and the decay together, in float32. Kept weights are
    the masters, or the weights themselves where there are none.

    Attributes:
      step: the number of the step, from 0.
      lr: the learning rate.
      gradient_norm: the norm of all gradients together, after clipping by value and before clipping by norm.
      clipped_share: share of gradients' elements that clip_value limited.
      clip_factor: what clipping by norm multiplied all gradients by; 1.0 where it left them as they were.
      updates: elements whose update is not 0.
      unchanged: those of them whose kept weight is what it was.
      lost: those of them that could not change anything: unchanged, with nothing more in the compensation, and too
        small for a random draw. Over many steps a stochastic update that left a weight as it is arrives, a lost one
        never does.
      ratios: elements by the exponent of two of abs(update) / abs(kept weight), where that is at least 2**-126
        and finite.
      nonfinite: what holds an Inf or NaN after the step, such as "first_moment/head.weight".
    """

    step: int
    lr: float
    gradient_norm: float
    clipped_share: float
    clip_factor: float
    updates: int
    unchanged: int
    lost: int
    ratios: Mapping[int, int] = field(repr=False)
    nonfinite: tuple[str, ...] = ()

    @property
    def lost_share(self) -> float:
        """Share of the updates that were lost; NaN if there were no updates."""
        return self.lost / self.updates if self.updates else math.nan

    @property
    def update_ratio(self) -> float:
        """Power of two below the median of abs(update) / abs(kept weight); NaN if there were no updates."""
        counted, half = 0, sum(self.ratios.values()) / 2
        for exponent in sorted(self.ratios):
            counted += self.ratios[exponent]
            if counted >= half:
                return 2.0**exponent
        return math.nan


class UpdateCounts(NamedTuple):
    """Elements of one weight by what their update did."""

    updates: int
    unchanged: int
    lost: int
    ratios: Array  # by exponent, from -126


def count_updates(before: Tensor, update: Tensor, weight: Tensor, lost: Tensor | None) -> UpdateCounts:
    """Count the updates of a weight that are not 0, leave it unchanged, and are lost (`lost` None: all unchanged)."""
    exponents = np.zeros(256, np.int64)  # zeros and subnormal quotients have 0, those by a weight of 0 have 255
    moves, unchanged = kernels.count(flattened(before), flattened(update), flattened(weight), exponents)
    return UpdateCounts(
        int(moves), int(unchanged), int(unchanged if lost is None else torch.count_nonzero(lost)), exponents[1:255]
    )  # fmt: skip


def report_of(
    step: int, lr: float, clipping: Clipping, counts: Sequence[UpdateCounts], nonfinite: tuple[str, ...]
) -> StepReport:
    """Return the report of a step from the counts of all weights."""
    ratios = sum((count.ratios for count in counts), np.zeros(254, np.int64))
    return StepReport(
        step, lr, *clipping,
        updates=sum(count.updates for count in counts),
        unchanged=sum(count.unchanged for count in counts),
        lost=sum(count.lost for count in counts),
        ratios={int(i) - 126: int(ratios[i]) for i in np.flatnonzero(ratios)},
        nonfinite=nonfinite,
    )  # fmt: skip


def flattened(x: Tensor) -> Array:
    """Return a contiguous tensor as an array of one axis, without a copy."""
    return array_of(x).reshape(-1)
