"""Precision gained by averaging stochastic results, and the means of recipes with scales."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fpsim.arrays import Array
from fpsim.testing.quantizers.report import Broken, input_fields
from fpsim.testing.quantizers.stochastic.chance import level_of_one_test
from fpsim.testing.quantizers.stochastic.report import AVERAGED, StochasticMeasurements
from fpsim.testing.quantizers.stochastic.source import RandomSource

ENOUGH = 64  # fewest elements whose mean squared error is precise enough
OF_RECIPE = 4096  # calls with the caller's array


def gain_of_averaging(source: RandomSource, x: Array) -> tuple[tuple[float, ...], Broken | None]:
    """Return (correct bits of means of 1, 4, 16 and 64 calls with x, broken property "averaging" or None).

    source: the quantizer. Correct bits are -1/2 log2 of the relative squared error, sum((mean - x)**2) / sum(x**2).
    From each mean to the next, of 4 times as many calls, they must grow by 1, within chance. They are Inf if every
    result is exact. If too few elements decide the error, chance allows every growth.
    """
    exact = x.astype(np.float64).ravel()
    total, squares = np.zeros(exact.size), np.zeros(exact.size)
    bits, done = [], 0
    for count in AVERAGED:
        while done < count:
            got = source(x, 1000 + done)
            total += got
            squares += (got - exact) ** 2
            done += 1
        error = ((total / count - exact) ** 2).sum()
        with np.errstate(divide="ignore"):
            bits.append(-0.5 * math.log2(error / (exact**2).sum()) if error else math.inf)
    deciding = squares.sum() ** 2 / max((squares**2).sum(), 1e-300)  # elements, weighted by their share of the error
    if deciding < ENOUGH:
        return tuple(bits), None
    gains = np.diff(bits)
    spread = 6 * math.sqrt(2 / deciding) / (2 * math.log(2)) * 2  # 6 sigma of half a log2 of a mean square, both ends
    if (gains < 1 - spread).any():
        worst = int(np.argmin(gains))
        why = (
            f"the mean of {AVERAGED[worst + 1]} calls gains {gains[worst]:.2f} bits on that of {AVERAGED[worst]}; "
            f"independent unbiased results gain 1 (at least {1 - spread:.2f})"
        )
        return tuple(bits), Broken("averaging", why)
    return tuple(bits), None


def recipe_means(
    source: RandomSource, x: Array, measured: StochasticMeasurements
) -> Iterator[tuple[str, Broken | None]]:
    """Yield ("mean", broken property or None) from 4,096 calls with x: each element's mean must equal x within chance.

    If x has 64 elements or more, also yield "averaging": means of 4 times as many calls must have 1 more correct bit.
    source: the quantizer. measured: the record in which the detectable bias and the correct bits of means are stored.
    """
    from scipy.special import ndtri

    exact = x.astype(np.float64).ravel()
    total, squares = np.zeros(exact.size), np.zeros(exact.size)
    for number in range(OF_RECIPE):
        got = source(x, number)
        total += got
        squares += (got - exact) ** 2
    mean = total / OF_RECIPE
    deviation = np.sqrt(np.maximum(squares / OF_RECIPE - (mean - exact) ** 2, 0) / OF_RECIPE)
    threshold = float(-ndtri(level_of_one_test(max(exact.size, 1)) / 2)) * 1.1  # a margin for distributions with tails
    wrong = np.abs(mean - exact) > np.maximum(threshold * deviation, 1e-6 * np.abs(exact))
    measured.detects = float(deviation.max() * (threshold + 2.33))
    broken = None
    if wrong.any():
        worst = int(np.argmax(np.where(wrong, np.abs(mean - exact), 0)))
        place = tuple(int(i) for i in np.unravel_index(worst, x.shape))
        off = abs(mean[worst] - exact[worst]) / max(deviation[worst], 1e-300)
        why = (
            f"the mean of {OF_RECIPE:,} calls is {mean[worst]:.6g} +- {deviation[worst]:.1g} for element {place}, "
            f"which is {float(exact[worst])!r}: {off:.0f} standard errors off"
        )
        broken = Broken(
            "mean", why, **input_fields(x.ravel()[[worst]]), got=f"{mean[worst]:.6g}", want=f"{exact[worst]:.6g}",
            count=int(wrong.sum()), of=exact.size,
        )  # fmt: skip
    yield "mean", broken
    if exact.size >= ENOUGH:
        measured.bits, failed = gain_of_averaging(source, x)
        yield "averaging", failed
