"""exp and log of float64 arrays by products and sums alone."""

from __future__ import annotations

import math

import numpy as np
from mpmath import mp

from fpsim.testing import assert_bits_equal
from fpsim.train.operations import wide
from tests.oracles.elementary import fraction

BOUND = 2.0**-46  # of relative errors, which docs/elementary.md derives


def test_errors_are_below_the_bound() -> None:
    random = np.random.default_rng(0)
    powers, numbers = random.uniform(-109, 89.9, (10, 20)), random.lognormal(0, 20, 200).astype(np.float32)
    with mp.workdps(40):
        for function, name, xs in ((wide.exp, "exp", powers), (wide.log, "log", numbers)):
            got = function(xs)
            assert got.shape == xs.shape
            for x, y in zip(xs.reshape(-1).tolist(), got.reshape(-1).tolist(), strict=True):
                exact = fraction(getattr(mp, name)(mp.mpf(x)))
                assert abs(fraction(mp.mpf(y)) - exact) <= BOUND * abs(exact), (name, x)


def test_numbers_without_an_ordinary_result() -> None:
    low, high = wide.exp(np.array([-110.0, 90.0]))
    assert_bits_equal(wide.exp(np.array([-1e9, -111.0, 91.0, 1e9])), np.array([low, low, high, high]))
    with np.errstate(all="ignore"):
        smallest = math.log(2.0**-149)
    got = wide.log(np.array([0.0, -0.0, -1.0, np.nan, np.inf, 1.0]))
    assert_bits_equal(got, np.array([-np.inf, -np.inf, np.nan, np.nan, np.inf, 0.0]))
    assert abs(wide.log(np.array([2.0**-149]))[0] / smallest - 1) <= 2 * BOUND
