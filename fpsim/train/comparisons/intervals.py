"""Means over a few seeds, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from fpsim.arrays import Array

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval, which is NaN for fewer than two values."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with its interval by Student's t.

    Example:
      >>> from fpsim.train.comparisons.intervals import interval
      >>> found = interval([2.0, 2.1, 2.3])
      >>> round(found.mean, 3), round(found.half, 3)
      (2.133, 0.379)
    """
    mean, half = intervals(np.array(values, np.float64)[:, None])
    return Interval(float(mean[0]), float(half[0]))


def intervals(values: Array) -> tuple[Array, Array]:
    """Return the mean of each column, and half the width of its interval: (seeds, n) becomes two arrays (n,)."""
    count = len(values)
    if not count:
        return np.full(values.shape[1:], math.nan), np.full(values.shape[1:], math.nan)
    mean = values.mean(0)
    if count < 2:
        return mean, np.full_like(mean, math.nan)
    quantile = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return mean, quantile * values.std(0, ddof=1) / math.sqrt(count)
