"""Probabilities in checks of random results: what chance allows, and the smallest bias that is detected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FALSE_ALARM = 1e-6  # probability that a check fails a right function
POWER = 0.99  # probability with which the bias in a report is detected


def detectable_bias(draws: int, tests: int) -> float:
    """Return the smallest bias of a share that is detected with probability POWER."""
    from scipy.special import ndtri

    return float(-(ndtri(level_of_one_test(tests) / 2) + ndtri(1 - POWER)) * math.sqrt(0.25 / draws))


def level_of_one_test(tests: int) -> float:
    """Return the probability of a false alarm allowed to each of `tests` tests of a kind; there are about 8 kinds."""
    return FALSE_ALARM / (8 * tests)


def unlikely(count: Any, of: int, share: Any, tests: int) -> Any:
    """Return whether counts of independent draws are farther from their means than chance allows."""
    from scipy.special import bdtr, bdtrc

    count, share = np.asarray(count, np.float64), np.asarray(share, np.float64)
    below, above = bdtr(count, of, share), bdtrc(count - 1, of, share)
    above = np.where(count == 0, 1.0, above)
    return np.minimum(below, above) < level_of_one_test(tests) / 2
