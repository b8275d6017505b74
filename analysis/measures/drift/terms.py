"""Operands of the sums and dot products whose rounding error is measured, with their exact sums.

The operands are drawn from a distribution or given as arrays. They are then rounded to an operand format, and the exact
sums are those of the rounded operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.tensors.chunks import Floats
from fpsim.arrays import Array, float_array, without_gradient
from fpsim.casts.cast import quantize
from fpsim.errors import shown, unknown
from fpsim.formats.named import Format

Draw = Callable[[np.random.Generator, int], Array]

# Name -> the function that draws one trial, term after term, so that a longer trial begins with the shorter one.
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, k: rng.standard_normal(k, np.float32),  # N(0, 1)
    "half_normal": lambda rng, k: np.abs(rng.standard_normal(k, np.float32)),
    "uniform": lambda rng, k: rng.random(k, np.float32),  # U[0, 1)
    "lognormal": lambda rng, k: np.exp(rng.standard_normal(k)),
    "cauchy": lambda rng, k: rng.standard_cauchy(k),
}
SYMMETRIC = ("normal", "cauchy")  # signs are fair coins, independent of the magnitudes


@dataclass(frozen=True)
class TermSource:
    """The source of the terms of sums: distributions or arrays, and the seed of the draws.

    Attributes:
      a, b: operands: the name of a distribution, or float64 values (trials, K); b is None for sums of a alone.
      trials: number of sums.
      longest: number of terms of the longest sum.
      seed: seed of the draws, which also depend on the trial and the operand.
    """

    a: str | Floats
    b: str | Floats | None
    trials: int
    longest: int
    seed: int

    @property
    def has_random_signs(self) -> bool:
        """True if the products are known to have independent signs, + and - with equal probability."""
        return any(isinstance(x, str) and x in SYMMETRIC for x in (self.a, self.b))

    def values(self, operand: int) -> Floats:
        """Return the unrounded values (trials, longest) of an operand, as float64.

        operand: 0 for a, 1 for b. If b is None, its values are ones.
        """
        x = (self.a, self.b)[operand]
        if x is None:
            return np.ones((self.trials, self.longest))
        if not isinstance(x, str):
            return x[:, : self.longest]
        rows = [
            DISTRIBUTIONS[x](np.random.default_rng([self.seed, trial, operand]), self.longest)
            for trial in range(self.trials)
        ]
        return np.stack(rows).astype(np.float64)


@dataclass(frozen=True)
class Terms:
    """The rounded operands of many sums, with their exact products and sums.

    Attributes:
      a, b: operands (trials, K), float32; b is None for sums of a alone.
      products: (trials, K), exact in float64, as operands have at most 24 bits.
      sums: cache of `exact_sums`, by number of terms.
      aligned: cache of the powers of two by which matrix units align the products, arrays (trials, K). Its keys are
        (whether the unit aligns by scales alone, format of a, format of b).
    """

    a: Array
    b: Array | None
    products: Floats
    sums: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, repr=False)
    aligned: dict[Any, Floats] = field(default_factory=dict, repr=False)

    @cached_property
    def magnitudes(self) -> Floats:
        """Magnitudes of the products, (trials, K)."""
        return np.abs(self.products)

    @cached_property
    def _rows(self) -> list[list[float]]:
        """The products as a list of Python floats for each trial, cached."""
        return [row.tolist() for row in self.products]

    def exact_sums(self, length: int) -> tuple[Floats, Floats]:
        """Return the exact sums of the first `length` terms as (nearest float64, remainder), each (trials,)."""
        if length not in self.sums:
            high = [math.fsum(row[:length]) for row in self._rows]
            low = [math.fsum([*row[:length], -h]) for row, h in zip(self._rows, high, strict=True)]
            self.sums[length] = np.array(high), np.array(low)
        return self.sums[length]

    def magnitude_sums(self, length: int) -> Floats:
        """Return sum |a b| over the first `length` terms of each trial, added in float64 with rounding errors."""
        total: Floats = self.magnitudes[:, :length].sum(axis=1)
        return total


def terms_of(source: TermSource, formats: tuple[Format, Format], *, plain: bool) -> Terms:
    """Return the terms of a source; operands are rounded to nearest even, and saturate.

    formats: the formats of a and of b. plain: if the source has no b, whether the terms are a itself (True) or the
    products a * 1 (False).
    """
    a = _rounded(source.values(0), formats[0])
    if plain and source.b is None:
        return Terms(a, None, a.astype(np.float64))
    b = _rounded(source.values(1), formats[1])
    return Terms(a, b, a.astype(np.float64) * b)


def _rounded(values: Floats, fmt: Format) -> Array:
    """Return values rounded to nearest even in a format, saturating, as float32."""
    rounded: Array = quantize(values, fmt, overflow="saturate").astype(np.float32)
    return rounded


def checked_operand(x: Any, name: str, longest: int, trials: int | None) -> str | Floats:
    """Return a distribution's name unchanged, or the first `longest` columns of an array (trials, K) as float64.

    name: the argument's name, for error messages. trials: the number of rows that the array must have, or None for any.

    Raises:
      TypeError: x is neither a name nor an array of floats.
      ValueError: an unknown name, another shape, too few terms, or terms of Inf or NaN.
    """
    if isinstance(x, str):
        if x not in DISTRIBUTIONS:
            raise unknown(name, x, list(DISTRIBUTIONS), others="or an array (trials, K)")
        return x
    array, _ = float_array(without_gradient(x), name)
    if array.ndim != 2 or not array.shape[0]:
        raise ValueError(
            f"{name} must be an array (trials, K), one sum a row; got shape {array.shape}. Pass {name}[None] for one."
        )
    if array.shape[1] < longest:
        raise ValueError(
            f"{name} must have as many terms as the longest length, {longest}; got {array.shape[1]}. Shorten lengths."
        )
    if trials is not None and array.shape[0] != trials:
        raise ValueError(f"a and b must have the same number of trials; got {trials} and {array.shape[0]}.")
    values: npt.NDArray[np.float64] = array[:, :longest].astype(np.float64)
    wrong = int(np.count_nonzero(~np.isfinite(values)))
    if wrong:
        raise ValueError(f"{name} must have finite terms, whose sum is known; got {wrong} NaN or Inf: {shown(x)}.")
    return values
