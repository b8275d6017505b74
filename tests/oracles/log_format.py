"""LogFMT again, slowly: every element is compared with the levels around it, in exact arithmetic where it is close.

Independent of the package. Logarithms and powers are those of Python's math module in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LARGEST = float(np.finfo(np.float32).max)


class Encoded(NamedTuple):
    """What encoding gives: codes of the array's shape, two float32 numbers per tile, and what tiles there are."""

    codes: Array
    steps: Array
    lows: Array
    counts: Array  # of tiles: zero, with NaN, with Inf, clamped from below, from above


def tiles(shape: tuple[int, ...], block: tuple[int, int]) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    """(place in the grid, slices) of every tile; the last ones may be smaller."""
    for r in range(math.ceil(shape[0] / block[0])):
        for c in range(math.ceil(shape[1] / block[1])):
            rows = slice(r * block[0], (r + 1) * block[0])
            yield (r, c), (rows, slice(c * block[1], (c + 1) * block[1]))


def grid(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """Return how many tiles there are along each axis."""
    return math.ceil(shape[0] / block[0]), math.ceil(shape[1] / block[1])


@lru_cache(maxsize=64)
def levels(bits: int, step: float, low: float) -> Array:
    """Level 0 .. 2**(bits-1) - 1 of a tile, float32 numbers as float64."""
    exponents = (low + step * np.arange(2 ** (bits - 1) - 1)).tolist()
    powers = [LARGEST if exponent >= 128 else math.exp2(exponent) for exponent in exponents]
    return np.minimum([0.0, *powers], LARGEST).astype(np.float32).astype(np.float64)


def nearest(magnitudes: Array, of: Array) -> Array:
    """Return the number of the nearest level of each; the larger in a tie, the first of several equal ones, the last's
    for Inf.

    The two levels around a magnitude are compared as float64 has their distances, and exactly where these are close.
    """
    distinct, first = np.unique(of, return_index=True)
    place = np.searchsorted(distinct, magnitudes)
    under, over = np.maximum(place - 1, 0), np.minimum(place, len(distinct) - 1)
    with np.errstate(invalid="ignore"):
        down, up = (np.abs(distinct[number] - magnitudes) for number in (under, over))
        goes_up, close = up <= down, np.abs(up - down) <= 1e-12 * np.minimum(up, down)
    for i in np.flatnonzero(close & (under != over) & np.isfinite(magnitudes)).tolist():
        below, exact, above = (Fraction(float(x)) for x in (distinct[under[i]], magnitudes[i], distinct[over[i]]))
        goes_up[i] = abs(above - exact) <= abs(exact - below)
    numbers: Array = first[np.where(goes_up | np.isinf(magnitudes), over, under)]
    return numbers


def parameters(magnitudes: list[float], bits: int) -> tuple[np.float32, np.float32]:
    """Return step and low of a tile without NaN."""
    logarithms = [math.log2(x) for x in magnitudes if 0 < x < math.inf]
    if not logarithms:
        return np.float32(0), np.float32(0)
    high = max(logarithms)
    low = max(min(logarithms), high - 32)
    return np.float32((high - low) / (2 ** (bits - 1) - 2)), np.float32(low)


def encode(x: Array, bits: int, block: tuple[int, int], nan_is_max: bool = False) -> Encoded:
    """Return codes, steps and lows of a two-dimensional array."""
    codes = np.zeros(x.shape, np.uint8 if bits <= 8 else np.uint16)
    steps, lows = np.zeros((2, *grid(x.shape, block)), np.float32)
    zero_tiles = nan_tiles = infinite_tiles = 0
    for place, where in tiles(x.shape, block):
        tile = [float(value) for value in x[where].ravel()]
        infinite_tiles += any(math.isinf(value) for value in tile)
        empty = all(value == 0 or not math.isfinite(value) for value in tile)
        if any(math.isnan(value) for value in tile):
            nan_tiles += 1
            if not nan_is_max:
                steps[place] = lows[place] = np.nan
                continue
            tile = [math.inf if math.isnan(value) else value for value in tile]
        zero_tiles += empty
        steps[place], lows[place] = parameters([abs(value) for value in tile], bits)
        of = levels(bits, float(steps[place]), float(lows[place]))
        if steps[place] == 0:
            of = of[:2]
        numbers = nearest(np.abs(tile), of) + np.signbit(tile) * 2 ** (bits - 1)
        codes[where] = np.reshape(numbers, codes[where].shape)
    return Encoded(codes, steps, lows, np.array([zero_tiles, nan_tiles, infinite_tiles, 0, 0]))


def decode(encoded: Encoded, bits: int, block: tuple[int, int]) -> Array:
    """float32 values of codes."""
    values = np.zeros(encoded.codes.shape, np.float32)
    sign_bit = 2 ** (bits - 1)
    for place, where in tiles(values.shape, block):
        if np.isnan(encoded.steps[place]):
            values[where] = np.nan
            continue
        of = levels(bits, float(encoded.steps[place]), float(encoded.lows[place])).astype(np.float32)
        codes = encoded.codes[where]
        magnitudes = of[codes & (sign_bit - 1)]
        values[where] = np.where(codes & sign_bit, -magnitudes, magnitudes)
    return values
