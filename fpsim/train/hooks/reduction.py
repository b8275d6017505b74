"""The sum of gradients of micro-batches and processes: the format they are rounded to, and the order of addition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.cast import decode, encode
from fpsim.errors import require_integer, require_kind, shown
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding
from fpsim.products.reduce import sum as sum_of
from fpsim.sums.accumulators import Accumulator, Sequential
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch


class Reduction:
    """The way in which gradients of several processes or micro-batches become one.

    Args:
      fmt: the format that they are rounded to, by name, dtype or object; None leaves them in float32.
      accumulate: the accumulator that adds them; None is `fp.Sequential(fp.FP32)`. A wider sum is rounded to float32.
      count: the divisor of the sum; None for the number of gradients that are added.
    Raises:
      TypeError, ValueError: no format, no accumulator, a stochastic one, or a count below 1.
    """

    def __init__(self, fmt: Any = None, accumulate: Accumulator | None = None, count: int | None = None) -> None:
        self.fmt: Format | None = None if fmt is None else find_format(fmt)
        self.accumulate = Sequential(FP32) if accumulate is None else accumulate
        self.count = count
        require_kind("accumulate", self.accumulate, Accumulator, "an accumulator such as fp.Sequential(fp.FP32)")
        if self.accumulate.rounding is Rounding.STOCHASTIC:
            raise ValueError(
                "accumulate must round by values alone, since a random number would depend on the bucket that torch "
                f"puts a gradient in; got {shown(self.accumulate)}. Use nearest_even."
            )
        if count is not None:
            require_integer("count", count, 1)

    def sent(self, gradient: Tensor) -> Array:
        """Return what a rank sends for a gradient: codes of the format (or float32 without one), in its shape."""
        if gradient.dtype != torch.float32:
            raise TypeError(f"gradients must be float32; got {gradient.dtype}. Keep the parameters in float32.")
        values = array_of(gradient)
        return values if self.fmt is None else encode(values, self.fmt)

    def average(self, sent: Sequence[Array]) -> Tensor:
        """Return the mean of what the ranks sent, added in the given order and divided by the count, in float32."""
        terms = np.stack(sent)  # (ranks, ...)
        values = terms if self.fmt is None else decode(terms, self.fmt)
        total = np.asarray(sum_of(values, accumulate=self.accumulate, axis=0))
        if total.dtype != np.float32:
            wide = decode(words(total), self.accumulate.result_format, np.float64)
            with np.errstate(over="ignore"):
                total = np.asarray(wide, np.float32)
        return tensor_of(np.asarray(total / np.float32(self.count or len(sent))))


def reduce(
    gradients: Sequence[Mapping[str, Tensor]], fmt: Any = None, accumulate: Accumulator | None = None,
    count: int | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the mean of several ranks' gradients, computed here with the bits that as many processes would get.

    Args:
      gradients: for each rank, or each micro-batch, name -> float32 tensor on the CPU, of the same names and shapes.
      fmt, accumulate, count: as for `Reduction`.
    Returns:
      Name -> new float32 tensor.
    Raises:
      TypeError, ValueError: as for `Reduction`; no gradients, other names or shapes, or another dtype.

    Example:
      >>> import torch
      >>> from fpsim.train.hooks.reduction import reduce
      >>> reduce([{"w": torch.tensor([1.0])}, {"w": torch.tensor([1.001])}], fmt=fp.BF16)
      {'w': tensor([1.])}
    """
    reduction = Reduction(fmt, accumulate, count)
    if not gradients:
        raise ValueError("there must be gradients to reduce; got none.")
    shapes = [{name: tuple(x.shape) for name, x in part.items()} for part in gradients]
    for i, here in enumerate(shapes):
        if here != shapes[0]:
            name = next(name for name in {**shapes[0], **here} if here.get(name) != shapes[0].get(name))
            raise ValueError(
                f"gradients must have the same names and shapes; got {name!r} of {shown(here.get(name))} in number "
                f"{i} and of {shown(shapes[0].get(name))} in number 0."
            )
    return {name: reduction.average([reduction.sent(part[name]) for part in gradients]) for name in gradients[0]}
