"""cos and powers of float64, rounded to nearest, against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from mpmath import mp

from fpsim.recipes import OptimizerRecipe
from fpsim.recipes.portable import cosine, power
from tests.oracles.elementary import fraction


def exact_cosine(x: float) -> float:
    """Return the float64 nearest to cos(x): 500 bits, which Python rounds as a quotient of integers."""
    with mp.workprec(500):
        return float(fraction(mp.cos(mp.mpf(x))))


def test_cosines_are_those_of_500_bits_rounded_to_nearest() -> None:
    numbers = np.random.default_rng(0).uniform(0, math.pi, 300).tolist()
    for x in [*numbers, 0.0, -0.0, math.pi / 2, math.pi, 1e-9, 5e-324, 1e5]:
        assert cosine(x).hex() == exact_cosine(x).hex(), x


def test_powers_are_those_of_fractions_rounded_to_nearest() -> None:
    for base in (0.9, 0.95, 0.99, 0.999, 0.5, 0.0):
        for n in (*range(1, 40), 100, 999, 2000):
            assert power(base, n) == float(Fraction(base) ** n), (base, n)


def test_ties_of_powers_go_to_even() -> None:
    odd = 2**27 - 1  # its square has 54 bits, the last of them 1
    assert power(float(odd), 2) == odd**2 - 1


def test_the_learning_rate_is_that_of_the_exact_cosine() -> None:
    recipe = OptimizerRecipe(lr=3e-3, schedule="cosine", warmup=5, final_lr_share=0.1)
    for step in (5, 6, 17, 63, 99):
        share = (1 + exact_cosine(math.pi * ((step - 5) / 95))) / 2
        assert recipe.lr_at(step, 100) == 3e-3 * (0.1 + (1 - 0.1) * share)
