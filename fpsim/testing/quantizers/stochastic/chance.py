"""Probabilities in checks of random results: deviations that chance allows, and the smallest detectable bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FALSE_ALARM = 1e-6  # upper limit of the probability that a correct function fails a check
POWER = 0.99  # probability with which the bias in a report is detected


def detectable_bias(draws: int, tests: int) -> float:
    """Return the smallest bias of a share near 1/2 that `draws` draws detect with a probability of 99 %.

    tests: number of shares that are tested in the check.
    """
    from scipy.special import ndtri

    return float(-(ndtri(level_of_one_test(tests) / 2) + ndtri(1 - POWER)) * math.sqrt(0.25 / draws))


def level_of_one_test(tests: int) -> float:
    """Return the probability of a false alarm that each of `tests` tests of one kind may have.

    A check has about 8 kinds of tests, and all of them together have the probability FALSE_ALARM.
    """
    return FALSE_ALARM / (8 * tests)


def unlikely(count: Any, of: int, share: Any, tests: int) -> Any:
    """Return a bool mask of the counts that are farther from `share` * `of` than chance allows.

    Args:
      count: a count, or an array of them: how many of `of` draws had a certain result.
      of: number of draws.
      share: the expected share of the draws, a number or an array like count.
      tests: number of counts that are tested in the check.
    """
    from scipy.special import bdtr, bdtrc

    count, share = np.asarray(count, np.float64), np.asarray(share, np.float64)
    below, above = bdtr(count, of, share), bdtrc(count - 1, of, share)
    above = np.where(count == 0, 1.0, above)
    return np.minimum(below, above) < level_of_one_test(tests) / 2
