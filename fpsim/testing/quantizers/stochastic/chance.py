"""Probabilities of a check of random results: what chance allows, and the smallest bias that is seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FALSE_ALARM = 1e-6  # of a whole check of a right function
POWER = 0.99  # with which the bias that a report states is seen


def detectable_bias(draws: int, tests: int) -> float:
    """The smallest bias of a share that is seen with POWER."""
    from scipy.special import ndtri

    return float(-(ndtri(level_of_one_test(tests) / 2) + ndtri(1 - POWER)) * math.sqrt(0.25 / draws))


def level_of_one_test(tests: int) -> float:
    """The false alarm of one of so many tests, of about 8 kinds."""
    return FALSE_ALARM / (8 * tests)


def unlikely(count: Any, of: int, share: Any, tests: int) -> Any:
    """Return whether counts of independent draws are farther from their mean than chance allows."""
    from scipy.special import bdtr, bdtrc

    count, share = np.asarray(count, np.float64), np.asarray(share, np.float64)
    below, above = bdtr(count, of, share), bdtrc(count - 1, of, share)
    above = np.where(count == 0, 1.0, above)
    return np.minimum(below, above) < level_of_one_test(tests) / 2
