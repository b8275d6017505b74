"""The gradients of a step: of each micro-batch, added in a format, and then their mean over all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fpsim.arithmetic.functions import add
from fpsim.casts.cast import decode, encode, refuse_unless_held
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.torch.operators import Tensor, array_of, tensor_of
from fpsim.train.hooks.ranks import Ranks
from fpsim.train.hooks.reduction import Reduction, reduce


class StepGradients:
    """The gradients of one step, from all micro-batches of all processes.

    Each process adds its micro-batches in the format that is passed, or in float32; then the sums are averaged over the
    processes. One process alone that has no such format averages its micro-batches as if each was of another process.

    Args:
      fmt: the format in which a process keeps its sum, `Recipe.gradients`; None for float32.
      reduction: the format, accumulator and divisor of the mean.
      ranks: the processes that train together.
    """

    def __init__(self, fmt: Any, reduction: Reduction, ranks: Ranks) -> None:
        self._sum = None if fmt is None else GradientSum(fmt)
        self._reduction, self._ranks = reduction, ranks
        self._parts: list[dict[str, Tensor]] = []

    def add(self, gradients: dict[str, Tensor]) -> None:
        """Take the gradients of a micro-batch: name -> float32 tensor, which later ones may be added to."""
        if self._sum is not None:
            self._sum.add(gradients)
        elif self._ranks.world == 1 or not self._parts:
            self._parts.append(gradients)
        else:
            for name, gradient in gradients.items():
                self._parts[0][name].add_(gradient)

    def reduce(self) -> dict[str, Tensor]:
        """Return the mean of all micro-batches over all processes."""
        if self._sum is not None:
            return self._ranks.averaged(self._sum.gradients, self._reduction)
        if self._ranks.world > 1:
            return self._ranks.averaged(self._parts[0], self._reduction)
        if len(self._parts) == 1 and self._reduction.fmt is None:
            return self._parts[0]
        return reduce(self._parts, self._reduction.fmt)


class GradientSum:
    """A running sum of micro-batches' gradients that is kept in a format, as frameworks keep `.grad`.

    Each gradient is rounded into the format, to nearest even, and so is each sum of two. So a BF16 gradient is lost
    where it is smaller than half an ulp of the sum, as no float32 sum is kept.

    Args:
      fmt: the format, by name, dtype or object: float32 must hold it.
    Raises:
      TypeError, ValueError: no such format.

    Example:
      >>> import torch
      >>> from fpsim.train.hooks.gradients import GradientSum
      >>> total = GradientSum("bf16")
      >>> for value in (256.0, 1.0, 1.0):
      ...     total.add({"w": torch.tensor([value])})
      >>> total.gradients
      {'w': tensor([256.])}
    """

    def __init__(self, fmt: Any) -> None:
        self.fmt = find_format(fmt)
        refuse_unless_held(self.fmt, FP32, "take one of up to 32 bits")
        self.gradients: dict[str, Tensor] = {}

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients of a micro-batch, a mapping of names to float32 tensors."""
        for name, gradient in gradients.items():
            codes = encode(array_of(gradient), self.fmt)
            if name in self.gradients:
                codes = np.asarray(add(encode(array_of(self.gradients[name]), self.fmt), codes, fmt=self.fmt))
            self.gradients[name] = tensor_of(decode(codes, self.fmt))
