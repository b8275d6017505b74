"""The parts of an optimizer's step: clipping, updates rounded into a format, and a report on what they changed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.named import Format
from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.train.operations import kernels

EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm
FAINTEST = 2.0**-32  # in ulps: a smaller update never changes a sum that 32 random bits round


# ---- clipping


class Clipping(NamedTuple):
    """The result of clipping gradients.

    Attributes:
      norm: the norm of all gradients together, after clipping by value and before clipping by norm.
      share: share of the elements that clip_value limited.
      factor: the factor by which clipping by norm multiplied all gradients; 1.0 if it changed nothing.
    """

    norm: float
    share: float
    factor: float


def clip(gradients: Sequence[Tensor], recipe: OptimizerRecipe, specified: bool) -> Clipping:
    """Clip gradients in place, by value and then by norm, as torch.nn.utils does; return norm, share and factor.

    gradients: float32 tensors. recipe: it has the limits, `clip_value` and `clip_norm`, None for no limit. specified:
    True to add the norm in 32 partial sums in float64, False for torch's norm.
    """
    limit, most, limited = recipe.clip_value, recipe.clip_norm, 0
    if limit is not None:
        for gradient in gradients:
            limited += int(torch.count_nonzero(gradient.abs() > limit))
            gradient.clamp_(-limit, limit)
    count = sum(gradient.numel() for gradient in gradients)
    total, factor = norm(gradients, specified), np.float32(1)
    if most is not None:
        with np.errstate(all="ignore"):  # a norm that is Inf or NaN clips as torch's does
            divisor = np.float32(total) + np.float32(EPSILON)
            # torch divides a number by a tensor as the product with its reciprocal
            quotient = np.float32(most) / divisor if specified else np.float32(1) / divisor * np.float32(most)
            factor = np.minimum(quotient, np.float32(1))
        for gradient in gradients:
            gradient.mul_(float(factor))
    return Clipping(total, limited / count if count else 0.0, float(factor))


def norm(gradients: Sequence[Tensor], specified: bool) -> float:
    """Return the Euclidean norm of all elements of several float32 gradients together, as a float32 number.

    specified: True to add squares in 32 partial sums in float64, False for torch's norm.
    """
    if specified:
        with np.errstate(over="ignore"):  # of large gradients it may be Inf
            return float(np.float32(math.sqrt(sum_of_squares(gradients))))
    norms = [torch.linalg.vector_norm(gradient, 2.0) for gradient in gradients]
    return float(torch.linalg.vector_norm(torch.stack(norms), 2.0)) if norms else 0.0


def sum_of_squares(tensors: Iterable[Tensor]) -> float:
    """Return the float64 sum of squares of all elements of float32 tensors, added tensor by tensor.

    Each tensor's sum is that of `kernels.sum_of_squares`.
    """
    total = 0.0
    for tensor in tensors:
        flat = np.ascontiguousarray(array_of(tensor)).reshape(-1)
        total += float(kernels.sum_of_squares(flat, np.empty(-(-flat.size // kernels.CHUNK))))
    return total


# ---- weights without float32 masters: updates to nearest, stochastic, or with Kahan's compensation


def draw_key(seed: int, name: str, kind: str, step: int) -> int:
    """Return the 64-bit random key for one tensor at one step; element i uses random number i of this key.

    It is the BLAKE2b digest of 8 bytes, little-endian, of the UTF-8 text "seed step kind name". kind: "weights",
    "first_moment" or "second_moment".

    Example:
      >>> from fpsim.train.updates import draw_key
      >>> hex(draw_key(0, "head.weight", "weights", 17))
      '0x3616f670cea1cd9d'
    """
    digest = hashlib.blake2b(f"{seed} {step} {kind} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def add_rounded(
    weight: Tensor, update: Tensor, fmt: Format, rounding: str, *, compensation: Tensor | None = None,
    seed: int | None = None,
) -> Tensor:  # fmt: skip
    """Add an update to weights in place, rounding the sum to their format; return which elements' updates were lost.

    "nearest_even" and "stochastic" round the float64 sum once. "kahan" rounds every operation of Kahan's sum to nearest
    even, R: u = R(update), y = R(u - c), s = R(weight + y), c = R(R(s - weight) - y), weight = s.

    Args:
      weight: float32 values of the format; changed in place.
      update: float32, of the same shape.
      fmt: the format.
      rounding: "nearest_even", "stochastic" or "kahan".
      compensation: c of "kahan", values of the format, 0 before the first update; changed in place; None otherwise.
      seed: the seed of the draws of "stochastic"; None otherwise.

    Returns:
      Bool tensor: True where the update is not 0 but changed neither weight nor compensation, and, for "stochastic", is
      below 2**-32 of an ulp, so that no 32-bit random number could have made it count.

    Source: Zamirai et al., arXiv:2010.06192, algorithms 1 and 2.

    Example:
      >>> import torch
      >>> from fpsim.train.updates import add_rounded
      >>> w, u, c = torch.tensor([1.0]), torch.tensor([1e-3]), torch.zeros(1)
      >>> add_rounded(w, u, fp.BF16, "nearest_even"), w
      (tensor([True]), tensor([1.]))
      >>> for _ in range(1000):
      ...     lost = add_rounded(w, u, fp.BF16, "kahan", compensation=c)
      >>> w  # the update is 0.99945e-3 in BF16
      tensor([2.])
    """
    before = weight.clone()
    if rounding == "kahan":
        assert compensation is not None
        old = compensation.clone()

        def rounded(x: Tensor) -> Tensor:  # x: the exact result of an operation, in float64
            return tensor_of(quantize(array_of(x), fmt))

        y = rounded(rounded(update.double()) - compensation)
        weight.copy_(rounded(before.double() + y))
        compensation.copy_(rounded(rounded(weight.double() - before) - y))
        return (update != 0) & (weight == before) & (compensation == old)
    exact = weight.double().add_(update)
    seed = seed if rounding == "stochastic" else None
    weight.copy_(tensor_of(quantize(array_of(exact), fmt, rounding=rounding, seed=seed)))
    lost = (update != 0) & (weight == before)
    if rounding == "stochastic":
        lost &= update.double().abs() < tensor_of(fmt.ulp(array_of(exact))).double() * FAINTEST
    return lost


# ---- the report


@dataclass(frozen=True)
class StepReport:
    """The measured effects of one step of the optimizer.

    An update is the change of a weight that AdamW computes in float32, weight decay included. Stored weights are the
    float32 masters, or the weights themselves without masters.

    Attributes:
      step: the number of the step, from 0.
      lr: the learning rate.
      gradient_norm: the norm of all gradients together, after clipping by value and before clipping by norm.
      clipped_share: share of gradients' elements that clip_value limited.
      clip_factor: the factor by which clipping by norm multiplied all gradients; 1.0 if it changed nothing.
      updates: number of elements whose update is not 0.
      unchanged: number of these whose stored weight did not change.
      lost: number of unchanged ones whose update had no other effect and no chance of one: it did not change Kahan's
        compensation, and no random draw could have rounded it up.
      ratios: {e: number of elements with 2**e <= abs(update) / abs(stored weight) < 2**(e + 1)}, -126 <= e <= 127.
      nonfinite: names of the arrays that hold an Inf or NaN after the step, such as "first_moment/head.weight".
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
        """Share of the nonzero updates that were lost, which means without any effect; NaN if there were none."""
        return self.lost / self.updates if self.updates else math.nan

    @property
    def update_ratio(self) -> float:
        """Median of abs(update) / abs(stored weight), rounded down to a power of two; NaN if there were no updates."""
        counted, half = 0, sum(self.ratios.values()) / 2
        for exponent in sorted(self.ratios):
            counted += self.ratios[exponent]
            if counted >= half:
                return 2.0**exponent
        return math.nan


class UpdateCounts(NamedTuple):
    """The counts of the updates of one weight tensor's elements.

    Attributes:
      updates: number of elements whose update is not 0.
      unchanged: number of these whose weight did not change.
      lost: number of unchanged ones whose update changed no compensation either, and could not be rounded up by chance.
      ratios: int64 (254,), number of elements by exponent of abs(update / weight), from -126 on.
    """

    updates: int
    unchanged: int
    lost: int
    ratios: Array


def count_updates(before: Tensor, update: Tensor, weight: Tensor, lost: Tensor | None) -> UpdateCounts:
    """Return the counts of a weight's updates: nonzero, unchanged, lost, and by exponent of update / weight.

    before, weight: float32, the weight before and after the update. update: float32 of this shape. lost: bool tensor,
    or None if all unchanged elements count as lost.
    """
    exponents = np.zeros(256, np.int64)  # 0 counts zero and subnormal quotients, 255 quotients by a weight of 0
    moves, unchanged = kernels.count(flattened(before), flattened(update), flattened(weight), exponents)
    return UpdateCounts(
        int(moves), int(unchanged), int(unchanged if lost is None else torch.count_nonzero(lost)), exponents[1:255]
    )  # fmt: skip


def report_of(
    step: int, lr: float, clipping: Clipping, counts: Sequence[UpdateCounts], nonfinite: tuple[str, ...]
) -> StepReport:
    """Return the report of an optimizer's step, adding up the counts of all weights.

    step: the number of the step. lr: the learning rate. clipping: the result of clipping the gradients. counts: the
    counts of each weight tensor. nonfinite: names of arrays that hold an Inf or NaN.
    """
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
