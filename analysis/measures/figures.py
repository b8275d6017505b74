"""What the sums of a measurement say: gain, SQNR, error in ulps, rates. Numbers, or arrays of one number a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.analysis.measures.sums import ErrorSums

RATES = ("underflow", "subnormal", "overflow", "saturation", "nan", "exact")
CAUSES = ("normal", "subnormal", "underflow", "saturation")


def _ratio(part: Any, whole: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where(np.asarray(whole) != 0, np.asarray(part, np.float64) / whole, np.nan)


def _measurable(value: Any) -> Any:
    """NaN for a sum that left float64's range."""
    return np.where(np.isfinite(value), value, np.nan)


def _sqnr_db(s: ErrorSums) -> Any:
    signal, noise = s["signal"], s.noise
    with np.errstate(all="ignore"):
        found = 10 * (np.log10(signal) - np.log10(noise))
    found = np.where(noise == 0, np.inf, np.where(signal == 0, -np.inf, found))
    return np.where((s["compared"] == 0) | ~np.isfinite(signal) | ~np.isfinite(noise), np.nan, found)


def _noise_of(name: str) -> Callable[[ErrorSums], Any]:
    return lambda s: np.where(s.noise == 0, np.nan, _ratio(s[name], s.noise))


def _rate_of(name: str) -> Callable[[ErrorSums], Any]:
    return lambda s: _ratio(s[name], s["count"])


FIGURES: dict[str, Callable[[ErrorSums], Any]] = {
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


def figure(sums: ErrorSums, name: str) -> Any:
    """A figure as a float or int, or as an array for sums of several parts."""
    found = FIGURES[name](sums)
    return found.item() if np.ndim(found) == 0 and hasattr(found, "item") else found
