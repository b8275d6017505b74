"""Formulas of error metrics (SQNR, gain, errors in ulps, rates) from sums of errors.

A formula returns a number, or for the sums of several channels or blocks an array with one number for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.analysis.measures.sums import ErrorSums

LEAST_NOISE = 2.0**-1035  # of an element; a square has an error of up to 2^-1075, which is 12 digits less
LEAST_SIGNAL = 2.0**-900  # a larger signal has an SQNR of more than 400 dB with that noise
RATES = ("underflow", "subnormal", "overflow", "saturation", "nan", "exact")


def _ratio(part: Any, whole: Any) -> Any:
    """Return part / whole in float64; NaN where whole is 0."""
    with np.errstate(all="ignore"):
        return np.where(np.asarray(whole) != 0, np.asarray(part, np.float64) / whole, np.nan)


def _measurable(value: Any) -> Any:
    """Return `value`, one sum or an array of sums, with NaN in place of Inf (a sum beyond float64's range)."""
    return np.where(np.isfinite(value), value, np.nan)


def _sqnr_db(s: ErrorSums) -> Any:
    """Return the SQNR in dB: Inf without noise, -Inf without signal, NaN without data or if a sum is not finite.

    It is also NaN if squares of values near 0 are below float64's range, so that signal and noise are lost.
    """
    signal, noise = s["signal"], s.noise
    lost = (s["max_relative"] > 0) & (noise < np.asarray(s["compared"]) * LEAST_NOISE) & (signal < LEAST_SIGNAL)
    with np.errstate(all="ignore"):
        decibels = 10 * (np.log10(signal) - np.log10(noise))
    decibels = np.where(noise == 0, np.inf, np.where(signal == 0, -np.inf, decibels))
    return np.where((s["compared"] == 0) | ~np.isfinite(signal) | ~np.isfinite(noise) | lost, np.nan, decibels)


def _noise_of(name: str) -> Callable[[ErrorSums], Any]:
    """Return a function of an ErrorSums: the sum `name`, such as "subnormal_noise", divided by the whole noise."""
    return lambda s: _ratio(s[name], s.noise)


def _rate_of(name: str) -> Callable[[ErrorSums], Any]:
    """Return a function of an ErrorSums: the count `name`, such as "underflow", divided by the number of elements."""
    return lambda s: _ratio(s[name], s["count"])


FORMULAS: dict[str, Callable[[ErrorSums], Any]] = {
    "count": lambda s: s["count"],
    "sqnr_db": _sqnr_db,
    "gain": lambda s: _ratio(_measurable(s["product"]), _measurable(s["signal"])),
    "lost_energy": lambda s: _ratio(_measurable(s["lost"]), _measurable(s["signal"])),
    "mse": lambda s: _ratio(_measurable(s.noise), s["compared"]),
    "bias": lambda s: _ratio(_measurable(s["error"]), s["compared"]),
    "max_ulp": lambda s: s["max_ulp"],
    "mean_ulp": lambda s: _ratio(s["ulps"], s["compared"]),
    "max_relative": lambda s: s["max_relative"],
    "mean_relative": lambda s: _ratio(s["relative"], s["nonzero"]),
    **{f"{name}_rate": _rate_of(name) for name in RATES},
    "noise_normal": _noise_of("normal_noise"),
    "noise_subnormal": _noise_of("subnormal_noise"),
    "noise_underflow": _noise_of("lost"),
    "noise_saturation": _noise_of("clipped"),
}


def metric(sums: ErrorSums, name: str) -> Any:
    """Return the metric `name` as a float or int, or as an array for the sums of several channels or blocks.

    name: a key of FORMULAS, such as "sqnr_db" or "underflow_rate".
    """
    value = FORMULAS[name](sums)
    return value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value
