"""Updates of weights that have no float32 masters: rounded to nearest, stochastically, or with Kahan's compensation."""

from __future__ import annotations

import hashlib

from fpsim.casts.cast import quantize
from fpsim.formats.named import Format
from fpsim.torch.operators import Tensor, array_of, tensor_of

FAINTEST = 2.0**-32  # of the distance of two neighbours: what 32 random bits tell from nothing


def draw_key(seed: int, name: str, kind: str, step: int) -> int:
    """Return the random key for one tensor at one step; element i uses random number i.

    The first 8 bytes, little-endian, of BLAKE2b over "seed step kind name".

    Example:
      >>> from fpsim.train.optimizer.rounded_updates import draw_key
      >>> hex(draw_key(0, "head.weight", "weights", 17))
      '0x3616f670cea1cd9d'
    """
    digest = hashlib.blake2b(f"{seed} {step} {kind} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def add_rounded(
    weight: Tensor, update: Tensor, fmt: Format, rounding: str, *, compensation: Tensor | None = None,
    seed: int | None = None,
) -> Tensor:  # fmt: skip
    """Add an update to weights in place, rounding the sum to their format; return where the update was lost.

    "nearest_even" and "stochastic" round the sum, which float64 holds, once. "kahan" rounds the update, and then every
    operation of Kahan's sum: y = R(u - c), s = R(w + y), c = R(R(s - w) - y).

    Args:
      weight: float32 values of the format; changed in place.
      update: float32, of the same shape.
      fmt: the format.
      rounding: "nearest_even", "stochastic" or "kahan".
      compensation: c of "kahan": values of the format, 0 at first; changed in place.
      seed: the seed of the draws of "stochastic".

    Returns:
      Where the update was lost: it is not 0, and nothing has changed nor could have.

    Source: Zamirai et al., arXiv:2010.06192, algorithms 1 and 2.

    Example:
      >>> import torch
      >>> from fpsim.train.optimizer.rounded_updates import add_rounded
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
        _kahan(weight, update, fmt, compensation)
        return (update != 0) & (weight == before) & (compensation == old)
    exact = weight.double().add_(update)
    seed = seed if rounding == "stochastic" else None
    weight.copy_(tensor_of(quantize(array_of(exact), fmt, rounding=rounding, seed=seed)))
    lost = (update != 0) & (weight == before)
    if rounding == "stochastic":
        lost &= update.double().abs() < tensor_of(fmt.ulp(array_of(exact))).double() * FAINTEST
    return lost


def _kahan(weight: Tensor, update: Tensor, fmt: Format, compensation: Tensor) -> None:
    """Do one step of Kahan's sum in place; float64 holds each exact result, or enough bits to round it correctly."""

    def rounded(x: Tensor) -> Tensor:
        return tensor_of(quantize(array_of(x), fmt))

    old = weight.double()
    y = rounded(rounded(update.double()) - compensation)
    new = rounded(old + y)
    compensation.copy_(rounded(rounded(new - old) - y))
    weight.copy_(new)
