"""Data and metrics that several experiments on claims share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.rounding_error import error
from fpsim.analysis.systems.claims.claim import Figures
from fpsim.formats.named import Format
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import MatrixUnit

Floats = npt.NDArray[np.floating[Any]]


def normal(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return a float32 array of this shape, drawn from N(0, 1) with a seed.

    Example:
      >>> from fpsim.analysis.systems.claims.samples import normal
      >>> normal(2, 3).shape
      (2, 3)
    """
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wide(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return x, an array of any float dtype, converted to float64."""
    return np.asarray(x).astype(np.float64)


def relative_error(values: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return norm(values - reference) / norm(reference), with Frobenius norms in float64.

    Example:
      >>> from fpsim.analysis.systems.claims.samples import relative_error
      >>> relative_error([3.0, 9.0], [3.0, 4.0])
      1.0
    """
    return float(np.linalg.norm(wide(values) - wide(reference)) / np.linalg.norm(wide(reference)))


def cosine(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the cosine of the angle between the arrays a and b of equal size, flattened, computed in float64.

    Example:
      >>> from fpsim.analysis.systems.claims.samples import cosine
      >>> cosine([1.0, 0.0], [2.0, 0.0])
      1.0
    """
    first, second = wide(a).ravel(), wide(b).ravel()
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def softmax(logits: npt.ArrayLike) -> Floats:
    """Return the float64 softmax of each row of logits."""
    powers = np.exp(wide(logits) - wide(logits).max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def units_of(arch: str, *formats: Format) -> list[MatrixUnit]:
    """Return the matrix units of the architecture `arch`, such as "hopper", whose left operand has one of `formats`."""
    return [unit for unit in float_units(arch) if unit.a.fmt in formats]


def sqnr_of_normal(*formats: Format) -> Figures:
    """Return the SQNR of N(0, 1) values in each of `formats`, in dB, under names such as "SQNR in E4M3, dB"."""
    x = normal(1024, 1024)
    return {f"SQNR in {fmt}, dB": error(x, fmt).sqnr_db for fmt in formats}
