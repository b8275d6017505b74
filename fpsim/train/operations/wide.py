"""exp and log of float64 arrays by float64 products and sums alone: the same bits everywhere, unlike NumPy's.

Relative errors are below 2**-46 (docs/elementary.md), for results that are rounded to formats of up to 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.core.elementary.exponentials import exp_wide
from fpsim.core.elementary.logarithms import log_wide
from fpsim.runtime.compile import kernel
from fpsim.runtime.processor import ieee_arithmetic


@kernel
def _exp(x: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = exp_wide(x[i])


@kernel
def _log(x: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = log_wide(x[i])


def exp(x: Array) -> Array:
    """Return exp of finite numbers from -110 to 90; smaller ones give exp(-110), larger ones exp(90)."""
    y = np.empty(x.shape)
    with ieee_arithmetic():
        _exp(np.ascontiguousarray(x, np.float64).reshape(-1), y.reshape(-1))
    return y


def log(x: Array) -> Array:
    """Return log of float32 values: -Inf for 0 and NaN below."""
    ordinary = (x > 0) & np.isfinite(x)
    y = np.empty(x.shape)
    with ieee_arithmetic():
        _log(np.ascontiguousarray(np.where(ordinary, x, 1.0), np.float64).reshape(-1), y.reshape(-1))
    others = np.where(x == 0, -np.inf, np.where(x > 0, x, np.nan))
    return np.where(ordinary, y, others)
