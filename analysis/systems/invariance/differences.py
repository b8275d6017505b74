"""The relative difference of two arrays of any magnitude."""

from __future__ import annotations

import math

import numpy as np

from fpsim.arrays import Array


def relative_difference(x: Array, reference: Array) -> float:
    """Return norm(x - reference) / norm(reference) over the elements that are finite in both; 0 / 0 is 0.

    x, reference: float64 arrays of one shape, of any magnitudes.
    """
    known = np.isfinite(x) & np.isfinite(reference)
    parts = [z[known] for z in (x, reference)]
    largest = max(float(np.abs(z).max(initial=0.0)) for z in parts)
    exponent = math.frexp(largest)[1] + 1  # scaled to less than 1/2, so that no square or difference overflows
    x, reference = (np.ldexp(z, -exponent) for z in parts)
    norm, apart = float(np.linalg.norm(reference)), float(np.linalg.norm(x - reference))
    return apart / norm if norm else (math.inf if apart else 0.0)
