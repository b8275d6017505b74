"""Data and metrics that experiments on claims share: seeded normal values, relative errors, SQNR, cosines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
    """Return an array of any float dtype as float64."""
    return np.asarray(x).astype(np.float64)


def relative_error(values: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return norm(values - reference) / norm(reference), with Frobenius norms in float64.

    Example:
      >>> from fpsim.analysis.systems.claims.samples import relative_error
      >>> relative_error([3.0, 9.0], [3.0, 4.0])
      1.0
    """
    return float(np.linalg.norm(wide(values) - wide(reference)) / np.linalg.norm(wide(reference)))


def sqnr_db(values: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the ratio of norm(reference) to norm(values - reference) in dB: the signal-to-quantisation-noise ratio."""
    return float(-20 * np.log10(relative_error(values, reference)))


def cosine(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the cosine of the angle between two arrays of one size, flattened, computed in float64.

    Example:
      >>> from fpsim.analysis.systems.claims.samples import cosine
      >>> cosine([1.0, 0.0], [2.0, 0.0])
      1.0
    """
    first, second = wide(a).ravel(), wide(b).ravel()
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
