"""Compiled loops over a parameter's elements: sums of squares, float64, added in any order, and numbers of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.analysis.measures.loops import difference
from fpsim.runtime.compile import kernel, reordered_sums

f64, i64 = np.float64, np.int64


@reordered_sums
def _squares(x: Any) -> Any:
    """Return the sum of squares of a 1-d float32 or float64 array, as float64, added in any order."""
    total = f64(0.0)
    for i in range(x.size):
        total += f64(x[i]) * f64(x[i])
    return total


@reordered_sums
def _changes(before: Any, after: Any) -> Any:
    """Return the sum of squares of after - before, 1-d float arrays of one size, as float64, added in any order."""
    total = f64(0.0)
    for i in range(before.size):
        change = difference(after[i], before[i])
        total += change * change
    return total


@kernel
def note_gradient(gradient: Any, nonzero: Any) -> Any:
    """Return (float64 sum of squares of a gradient, its number of elements other than 0 as int64).

    gradient: 1-d float32 or float64 array. nonzero: bool array of equal size, which is set to gradient != 0.
    """
    count = i64(0)
    for i in range(gradient.size):
        nonzero[i] = gradient[i] != 0
        count += i64(nonzero[i])
    return _squares(gradient), count


@kernel
def compare_weights(before: Any, after: Any, nonzero: Any) -> Any:
    """Return (sum of squares of `before`, sum of squares of after - before, number of lost updates).

    The sums are float64, the number is int64. A lost update is an element that is equal in both arrays although
    `nonzero` is True for it. before, after: 1-d float32 or float64 arrays of one size; nonzero: bool array of that
    size.
    """
    kept = i64(0)
    for i in range(before.size):
        kept += i64(nonzero[i] & (after[i] == before[i]))
    return _squares(before), _changes(before, after), kept
