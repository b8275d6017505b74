"""Operands with scales of many sizes, for tests of products of scaled operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling

Array = npt.NDArray[Any]


def matrix(rows: int, columns: int, seed: int = 0) -> Array:
    """Return values whose tiles have scales of many sizes."""
    generator = np.random.default_rng(seed)
    bands = np.ldexp(1.0, generator.integers(-9, 9, (-(-rows // 32), -(-columns // 32)))).repeat(32, 0).repeat(32, 1)
    return (generator.standard_normal((rows, columns)) * bands[:rows, :columns]).astype(np.float32)


def operands(unit: MatrixUnit, a: Scaling, b: Scaling, shape: tuple[int, int, int]) -> tuple[Scaled, Scaled]:
    """Return a (M, K) and b (K, N) in the unit's elements."""
    m, k, n = shape
    return fp.encode_scaled(matrix(m, k), unit.a.fmt, a), fp.encode_scaled(matrix(k, n, 1), unit.b.fmt, b)
