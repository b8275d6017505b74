"""4/6, IF4 and HiF4 again, slowly: in fractions, one row a tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
E2M1 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
MEASURES: dict[str, Callable[[list[float]], float]] = {
    "mse": lambda errors: sum(error * error for error in errors),
    "mae": sum,
    "abs_max": max,
}


class Tile(NamedTuple):
    """Codes, float32 scale, values and error of one tile."""

    codes: list[int]
    scale: np.float32
    values: list[np.float32]
    error: float


def nearest(y: Fraction, levels: list[Fraction]) -> int:
    """Return the index of the nearest level to a magnitude; a tie goes to the even index."""
    return min(range(len(levels)), key=lambda i: (abs(levels[i] - y), i % 2))


def e4m3(q: float) -> Fraction:
    """Return a positive quotient as a scale: nearest even in E4M3, 2**-9 at least."""
    exponent = max(math.frexp(q)[1] - 1, -6)
    step = Fraction(2) ** (exponent - 3)
    return max(min(round(Fraction(q) / step) * step, Fraction(448)), Fraction(1, 512))


def tile(x: Array, b: Fraction, t: np.float32, measure: str, integers: bool = False) -> Tile:
    """Return a tile of float32 encoded with the scale b * t."""
    total = np.float32(np.float32(float(b)) * t)
    codes, values, errors = [], [], []
    levels = [Fraction(float(np.float32(6 * n) / np.float32(7))) for n in range(8)] if integers else E2M1
    for element in x:
        y = Fraction(float(np.float32(element / total)))
        code = nearest(abs(y), levels)
        negative = bool(np.signbit(element)) and not (integers and code == 0)  # integers have one zero
        value = np.float32(np.float32(-float(levels[code]) if negative else float(levels[code])) * total)
        codes.append((-code & 15 if integers else code | 8) if negative else code)
        values.append(value)
        errors.append(abs(float(value) - float(element)))
    return Tile(codes, total, values, MEASURES[measure](errors))


def four_or_six(x: Array, measure: str) -> list[Tile]:
    """Return tiles, rows of x, by 4/6; none of them is zero."""
    t = np.float32(np.abs(x).max() / np.float32(6 * 256))
    chosen = []
    for row in x:
        both = []
        for largest in (6, 4):
            q = np.float32(np.float32(np.abs(row).max() / np.float32(largest)) / t)
            both.append(tile(row, e4m3(float(q)), t, measure))
        chosen.append(both[1] if both[1].error < both[0].error else both[0])
    return chosen


def if4(x: Array, measure: str) -> tuple[list[Tile], list[bool]]:
    """Return tiles, rows of x, by IF4, and which of them are integers; none of them is zero."""
    t = np.float32(np.abs(x).max() / np.float32(6 * 448))
    tiles, marks = [], []
    for row in x:
        b = e4m3(float(np.float32(np.float32(np.abs(row).max() / np.float32(6)) / t)))
        floats, integers = (tile(row, b, t, measure, integers) for integers in (False, True))
        marks.append(integers.error < floats.error)
        tiles.append(integers if marks[-1] else floats)
    return tiles, marks


def bf16(x: Fraction) -> Fraction:
    """Return a positive number rounded to BF16, nearest even."""
    if x == 0:
        return x
    exponent = max(math.floor(math.log2(x)), -126)
    exponent += int(Fraction(2) ** (exponent + 1) <= x) - int(Fraction(2) ** exponent > x and exponent > -126)
    step = Fraction(2) ** (exponent - 7)
    return round(x / step) * step


class HiF4Tile(NamedTuple):
    """Quarters with signs, scale and exponents of 64 elements."""

    quarters: list[int]
    scale: Fraction
    eights: list[int]
    fours: list[int]


def hif4(x: Array) -> HiF4Tile:
    """Return 64 float32 elements in HiF4, each product rounded to float32."""

    def times(a: float, b: Fraction) -> Fraction:
        return Fraction(float(np.float32(np.float32(a) * np.float32(float(b)))))

    amax = np.abs(x).max()
    scale = min(max(bf16(times(amax, bf16(Fraction(1, 7)))), Fraction(1, 2**48)), Fraction(49152))
    step = Fraction(2) ** (math.floor(math.log2(scale)) - 2)
    scale = min(round(scale / step) * step, Fraction(49152))
    inverse = bf16(Fraction(float(np.float32(1) / np.float32(float(scale)))))
    products = [times(abs(element), inverse) for element in x]
    eights = [int(max(products[8 * i : 8 * i + 8]) >= 4) for i in range(8)]
    fours = [int(max(products[4 * i : 4 * i + 4]) / 2 ** eights[i // 2] >= 2) for i in range(16)]
    quarters = []
    for i, (y, element) in enumerate(zip(products, x, strict=True)):
        q = min(math.floor(4 * y / 2 ** (eights[i // 8] + fours[i // 4]) + Fraction(1, 2)), 7)
        quarters.append(q | 8 if np.signbit(element) else q)
    return HiF4Tile(quarters, scale, eights, fours)
