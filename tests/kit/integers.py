"""Operands of integer units for tests: of whole ranges, at their ends, and in runs whose sums leave and return."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.matrix_units.integer_unit import IntegerElement, IntegerUnit

Array = npt.NDArray[Any]
KINDS = ("uniform", "ends", "runs")


class IntegerRows(NamedTuple):
    """Operands a and b (N, K) and accumulators c (N,)."""

    a: Array
    b: Array
    c: Array


def drawn(element: IntegerElement, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Array:
    """Draw integers of an element; "runs": one end for the first part of K and another one for the rest."""
    if kind == "uniform":
        return rng.integers(element.lowest, element.highest, shape, endpoint=True).astype(element.dtype)
    ends = np.array([element.lowest, element.highest])
    if kind == "ends":
        return ends[rng.integers(0, 2, shape)].astype(element.dtype)
    seam = rng.integers(0, shape[-1] + 1, (*shape[:-1], 1))
    return np.asarray(np.where(np.arange(shape[-1]) < seam, ends[1], ends[0]), element.dtype)


def integer_rows(unit: IntegerUnit, kind: str, rows: int, k: int, seed: int = 0) -> IntegerRows:
    """Draw rows of a unit, with accumulators close to the ends of their range in most of them."""
    rng = np.random.default_rng([seed, rows, k])
    a, b = (drawn(element, (rows, k), kind, rng) for element in (unit.a, unit.b))
    far = rng.integers(unit.d.lowest, unit.d.highest, rows, endpoint=True)
    near = rng.choice([unit.d.lowest, unit.d.highest, 0], rows)
    step = rng.integers(0, 300000, rows) * np.where(near > 0, -1, 1)
    return IntegerRows(a, b, np.where(rng.random(rows) < 0.3, far, near + step).astype(unit.d.dtype))
