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
    large = max(float(np.abs(z).max(initial=0.0)) for z in parts) > 2.0**1020
    x, reference = (z / 4 if large else z for z in parts)  # so that no difference overflows
    (norm, scale), (apart, places) = _norm(reference), _norm(x - reference)
    if not norm:
        return math.inf if apart else 0.0
    with np.errstate(over="ignore"):
        return float(np.ldexp(apart / norm, max(places - scale, -1074)))  # other than 0 if there is a difference


def _norm(x: Array) -> tuple[float, int]:
    """Return (m, e): the norm of x is m * 2**e, computed without squares that over- or underflow."""
    exponent = math.frexp(float(np.abs(x).max(initial=0.0)))[1]
    return float(np.linalg.norm(np.ldexp(x, -exponent))), exponent
