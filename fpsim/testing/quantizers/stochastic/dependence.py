"""Tests whether random numbers depend on each other: among elements, calls and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.quantizers.report import Broken
from fpsim.testing.quantizers.stochastic.chance import unlikely
from fpsim.testing.quantizers.stochastic.report import StochasticMeasurements
from fpsim.testing.quantizers.stochastic.source import RandomSource

FROM_CALL_TO_CALL = "uses random numbers that depend on each other from call to call"
OF_LAGS = 8192  # elements of a call that tests independence
LAGS = (1, 2, 3, 4, 7, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # distances at which equal numbers are reported
SHAPES = ((OF_LAGS,), (64, OF_LAGS // 64), (OF_LAGS // 64, 64), (4, 32, OF_LAGS // 128), (2, OF_LAGS // 2))
LONG = 1 << 21  # elements of a call that finds random numbers used again after up to 2**20 and more elements
OVERLAP = 256  # fewest elements that an array and its shifted copy have in common
SEED_BITS = 63  # bits of seeds; larger ones are negative numbers for many libraries
SEEDED = 256  # elements that tell two seeds apart; they are equal by chance with probability 2**-256


def dependence_causes(name: str, draws: list[Any]) -> list[str]:
    """Return the cause of dependent draws, as a list of one clause or none.

    name: "elements" or "calls". draws: for each call, a mask of the elements rounded away from zero.
    """
    alike = all(bits.all() or not bits.any() for bits in draws)
    if name == "elements":
        if alike:
            return ["uses one random number for all elements of a call"]
        for lag in LAGS:
            if all((bits[lag:] == bits[:-lag]).all() for bits in draws):
                return [f"uses the same random numbers again after {lag} elements"]
        for group in LAGS[:0:-1]:  # a group of 1 would fit any numbers
            groups = [bits[: bits.size // group * group].reshape(-1, group) for bits in draws]
            if all((bits == bits[:, :1]).all() for bits in groups):
                return [f"uses one random number for each {group} elements"]
        return ["uses random numbers that depend on each other from element to element"]
    first = draws[0]
    if all((first == bits).all() for bits in draws[1:]):
        return ["uses the same random numbers in every call"]
    for later, bits in enumerate(draws[1:], 1):
        if (first == bits).all() and not alike:
            return [f"uses the random numbers of a call again in the {'next one' if later == 1 else f'{later}th next'}"]
    return [] if alike else [FROM_CALL_TO_CALL]


def dependent_elements(source: RandomSource, x: Array, draws: list[Any]) -> Broken | None:
    """Return the broken property "elements" if elements at some distance depend on each other, else None.

    For each distance d, elements i and i + d must be rounded in the same direction in half of the pairs, within what
    chance allows. source: the quantizer. x: the input of the calls. draws: for each call, a flat mask of the elements
    rounded away from zero.
    """
    for number, bits in enumerate(draws):
        same, of = _agreements(bits, bits)
        lag = _most_alike(same, of, 1, len(SHAPES) * len(draws))
        if lag is not None:
            times = f"{same[lag]:,} of {of[lag]:,} times in call {number}"
            alike = "an element and that of the row before" if lag == x.shape[-1] else f"elements {lag} apart"
            why = f"{alike} were rounded the same way {times}; want half"
            of_shape = f"an array of shape {x.shape} of {x.flat[0]!r}"
            return Broken(
                "elements", why, input=f"{source.box.name} on {of_shape}", got="equal draws", want="independent ones",
                count=int(same[lag]), of=int(of[lag]),
            )  # fmt: skip
    return None


def _agreements(first: Any, second: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return, for each shift from 0 to n - 1, how often first[i + shift] equals second[i], and the number of indices i.

    Both are int64 (n,); shift s has n - s indices, those for which i + s is below n. first, second: masks, (n,).
    """
    size = first.size
    signs = [np.where(draws, 1.0, -1.0) for draws in (first, second)]
    spectra = [np.fft.rfft(draws, 2 * size) for draws in signs]
    products = np.rint(np.fft.irfft(spectra[0] * np.conj(spectra[1]), 2 * size)[:size]).astype(np.int64)  # integers
    of = size - np.arange(size)
    return (of + products) // 2, of


def _most_alike(same: Any, of: Any, first: int, tests: int) -> int | None:
    """Return the shift whose number of equal pairs is, by chance, least likely; None if chance allows that number.

    By chance, half of the pairs are equal, with a standard deviation of sqrt(pairs) / 2. Shifts below `first`, and the
    OVERLAP last ones, which have the fewest pairs, are left out. same, of: for each shift the numbers of equal pairs
    and of all pairs. tests: number of such searches in a check.
    """
    same, of = same[first : same.size - OVERLAP], of[first : of.size - OVERLAP]
    deviations = np.abs(2 * same - of) / np.sqrt(of)
    shift = int(np.argmax(deviations))
    return first + shift if unlikely(same[shift], of[shift], 0.5, tests * same.size) else None


def dependent_calls(draws: list[Any]) -> Broken | None:
    """Return the broken property "calls" if elements of one call depend on those of another, else None.

    Element i of one call is compared with element i + shift of the other, for every shift. They must be rounded in the
    same direction in half of the pairs, within chance. draws: for each call, a flat mask of the elements rounded away
    from 0.
    """
    pairs = [(first, first + 1) for first in range(len(draws) - 1)] + [(0, 2), (0, 4)]
    for pair in pairs:
        for first, second in (pair, pair[::-1]):
            same, of = _agreements(draws[first], draws[second])
            shift = _most_alike(same, of, 0, 2 * len(pairs))
            if shift is not None:
                apart = f", shifted by {shift}" if shift else ""
                times = f"{same[shift]:,} of {of[shift]:,} times"
                why = f"calls {first} and {second} were rounded the same way {times}{apart}; want half"
                return Broken("calls", why, count=int(same[shift]), of=int(of[shift]))
    return None


def seeds_alike(source: RandomSource, x: Array, measured: StochasticMeasurements) -> Broken | None:
    """Return the broken property "seeds" if two seeds have the same results for x, as when seeds lose bits, else None.

    source: the quantizer, which is called with the seeds 0, 1, and 2**i and 2**i + 1 for i up to 62. If only 32 bits of
    a seed matter, or large seeds are refused, a note is added to `measured` instead.
    """
    seen: dict[bytes, int] = {}
    for seed in (0, 1, *(near for bit in range(1, SEED_BITS) for near in (1 << bit, (1 << bit) + 1))):
        try:
            draws = source(x, seed).tobytes()
        except FunctionMisbehaved as refusal:
            if refusal.rule != "runs" or seed < 1 << 16:
                raise
            measured.notes.append(f"it refuses seeds from {seed:,} on: {refusal.sentence}")
            return None
        other = seen.setdefault(draws, seed)
        if other != seed:
            text = f"seeds {other:,} and {seed:,} give the same results"
            if max(other, seed) >> 32:
                measured.notes.append(f"{text}: only 32 bits of a seed are used")
                return None
            bits = max(other, seed).bit_length() - 1
            return Broken("seeds", f"{text}: bit {bits} of a seed does not count", got="equal draws", want="others")
    return None
