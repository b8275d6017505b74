"""The scale of a tile and of a whole array, by every rule, and what is counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.oracles.tiling.tiles import largest, largest_exponent, rounded, scale_rounding, smallest_scale

Array = npt.NDArray[Any]
Real = Any  # np.float32 or np.float64: the type that the arithmetic runs in

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
SMALLEST_TENSOR_SCALE = 2.0**-126


@dataclass
class Report:
    """What `q.report` counts."""

    tiles: int = 0
    zero_tiles: int = 0
    nan_tiles: int = 0
    infinite_tiles: int = 0
    clamped_low: int = 0
    clamped_high: int = 0


class Step(NamedTuple):
    """What is done with the elements of one tile."""

    stored: float  # the scale in the scale format
    scale: float  # the scale that decodes
    operand: Real  # x is divided by this, or multiplied with it
    multiply: bool = False


# ---- the scale of a tile


def floor_log2(a: float) -> int:
    """floor(log2(a)), exactly."""
    return math.frexp(a)[1] - 1


def ceil_log2(a: float) -> int:
    """ceil(log2(a)), exactly."""
    significand, exponent = math.frexp(a)
    return exponent - 1 if significand == 0.5 else exponent


def floor_log2_of_rounded(a: float, mantissa_bits: int) -> int:
    """floor(log2(a')), a' being a with so many mantissa bits, ties away."""
    significand, exponent = math.frexp(a)  # 1/2 <= significand < 1
    digits = math.floor(math.ldexp(significand, mantissa_bits + 1) + 0.5)
    return exponent if digits == 2 ** (mantissa_bits + 1) else exponent - 1


def power_quotient(a: Real, fmt: Any, rule: str) -> float:
    """Return the power of two of the rules floor, ceil and even; Inf counts as 2**128."""
    if np.isinf(a):
        return math.ldexp(1.0, 128 - largest_exponent(fmt))
    exponent = {
        "floor": lambda: floor_log2(float(a)),
        "ceil": lambda: ceil_log2(float(a)),
        "even": lambda: floor_log2_of_rounded(float(a), fmt.mantissa_bits),
    }[rule]()
    exponent -= largest_exponent(fmt)
    return math.ldexp(1.0, exponent) if exponent < 1024 else math.inf


def quotient(a: Real, fmt: Any, scaling: Any, real: Any) -> float:
    """Return q of one level, for `amax/max` and `amax*(1/max)`."""
    if scaling.scale_rule in ("floor", "ceil", "even"):
        return power_quotient(a, fmt, scaling.scale_rule)
    if scaling.scale_rule == "twice_floor":
        return 2 * power_quotient(a, fmt, "floor")
    most = real(largest(fmt))
    return float(a * (real(1) / most) if scaling.quotient == "amax*(1/max)" else a / most)


def held_scale(q: float, infinite: bool, scaling: Any, report: Report) -> float:
    """Return q rounded to the scale format within its bounds. infinite: an Inf comes from an element."""
    fmt = scaling.scale_format
    if infinite and q == math.inf and fmt.infinities:
        return math.inf
    if q > largest(fmt):
        report.clamped_high += 1
        return largest(fmt)
    least = smallest_scale(scaling)
    got = rounded(q, fmt, scale_rounding(scaling))
    if q <= least / 2 or got < least:
        report.clamped_low += 1
        return least
    return got


def by_scale(s: float, scaling: Any, real: Any) -> Step:
    """Elements divided by s, or multiplied with its reciprocal."""
    if scaling.division == "multiply":
        return Step(s, s, inverse_of(real(s), real), multiply=True)
    return Step(s, s, real(s))


def inverse_of(s: Real, real: Any) -> Real:
    """1 / s, at most the largest float."""
    return np.minimum(real(1) / s, np.finfo(real).max)


def by_encode_scale(a: Real, fmt: Any, scaling: Any, real: Any, report: Report) -> Step:
    """Return the step of `1/(max/amax)`, whose division is one of float64."""
    e = np.float64(largest(fmt)) / np.float64(max(float(a), scaling.amax_floor))
    if e > LARGEST_FLOAT32:
        report.clamped_low += 1
        e = np.float64(LARGEST_FLOAT32)
    single = np.float32(e)
    if not np.isinf(a):
        least = np.float32(2.0**-128 + 2.0**-149)  # whose reciprocal is the first that float32 holds
        report.clamped_high += int(single <= least and scaling.scale_format.bits == 32)
        single = max(single, least)
    if single == 0:
        s = math.inf if scaling.scale_format.infinities else largest(scaling.scale_format)
        return Step(s, s, real(0), multiply=True)
    mirrored = {"up": "down", "down": "up"}
    mode = scale_rounding(scaling)
    held = np.float32(rounded(float(single), scaling.scale_format, mirrored.get(mode, mode)))
    s = float(np.float32(1) / held)
    return Step(s, s, real(held), multiply=True)


class Tile(NamedTuple):
    """What is known of a tile before its scale."""

    amax: Real  # of its finite elements, Inf where that propagates
    has_nan: bool
    has_infinity: bool
    is_zero: bool  # as far as it is finite


def look_at(rows: Array, scaling: Any) -> list[Tile]:
    """Return the amax of every row, and its specials."""
    amax = np.max(np.abs(rows), axis=1, initial=0, where=np.isfinite(rows))
    is_zero, has_infinity, has_nan = (np.asarray(x) for x in (amax == 0, np.isinf(rows).any(1), np.isnan(rows).any(1)))
    if scaling.infinity == "propagate":
        amax[has_infinity] = math.inf
    columns = (list(amax), has_nan.tolist(), has_infinity.tolist(), is_zero.tolist())
    return [Tile(*tile) for tile in zip(*columns, strict=True)]


def one_level(tile: Tile, fmt: Any, scaling: Any, real: Any, report: Report) -> Step:
    """Return the step of a tile whose scale stands alone."""
    if tile.has_nan and scaling.nan == "tile":
        return Step(math.nan, math.nan, real(math.nan))
    if tile.has_infinity and scaling.infinity == "one":
        return by_scale(1.0, scaling, real)
    if tile.amax == 0 and not scaling.amax_floor > 0:
        return by_scale(1.0 if scaling.zero_scale == "one" else smallest_scale(scaling), scaling, real)
    if scaling.quotient == "1/(max/amax)":
        return by_encode_scale(tile.amax, fmt, scaling, real, report)
    a = max(tile.amax, real(np.float32(scaling.amax_floor)))
    q = float(real(quotient(a, fmt, scaling, real)))
    return by_scale(held_scale(q, bool(np.isinf(a)), scaling, report), scaling, real)


# ---- two levels


class TensorScale(NamedTuple):
    """The scale t of the scales, and g of the flavour that starts from it."""

    t: Any  # np.float32
    g: Real


def tensor_scale(y: Array, fmt: Any, scaling: Any, real: Any, report: Report) -> TensorScale:
    """Return the scale of an array's scales."""
    (whole_array,) = look_at(y.reshape(1, -1), scaling)
    amax = whole_array.amax
    if amax == 0:
        return TensorScale(np.float32(1), real(1))
    if amax == math.inf:
        return TensorScale(np.float32(1 if scaling.quotient == "1/(max/amax)" else math.inf), real(1))
    top = largest(scaling.scale_format) if scaling.tensor_top is None else scaling.tensor_top
    both, most = product(top, largest(fmt), real), largest_tensor_scale(largest(scaling.scale_format))
    if scaling.quotient == "1/(max/amax)":
        g = np.float32(both / np.float64(amax))
        if g > LARGEST_FLOAT32:
            report.clamped_low += 1
            g = np.float32(LARGEST_FLOAT32)
        while np.float32(1) / g > most:
            g = max(np.nextafter(g, np.float32(math.inf)), np.float32(0.999) / np.float32(most))
        return TensorScale(np.float32(1) / g, real(g))
    t = min(np.float32(np.float64(amax) / both), np.float32(most))
    if t < SMALLEST_TENSOR_SCALE:
        report.clamped_low += 1
        t = np.float32(SMALLEST_TENSOR_SCALE)
    return TensorScale(t, real(math.nan))


def product(top: float, most: float, real: Any) -> Any:
    """Return top * most in float64, rounded to a narrower float within its normal range."""
    exact = Fraction(top) * Fraction(most)
    facts = np.finfo(real)
    is_normal = Fraction(float(facts.smallest_normal)) <= exact <= Fraction(float(facts.max))
    return np.float64(real(float(exact)) if is_normal else float(exact))


def largest_tensor_scale(top: float) -> float:
    """Return the largest float32 whose product with `top`, the largest value of a scale format, float32 holds."""
    t = np.float32(LARGEST_FLOAT32)
    if top > 1:
        t = np.float32(Fraction(LARGEST_FLOAT32) / Fraction(top))
        while Fraction(float(t)) * Fraction(top) > Fraction(LARGEST_FLOAT32):
            t = np.nextafter(t, np.float32(0))
    return float(t)


def two_levels(tile: Tile, tensor: TensorScale, fmt: Any, scaling: Any, real: Any, report: Report) -> Step:
    """Return the step of a tile whose scale is a multiple of the array's."""
    t, g, most = real(tensor.t), tensor.g, real(largest(fmt))
    unclamped = scaling.quotient == "1/(max/amax)"
    if tile.has_nan and scaling.nan == "tile":
        return Step(math.nan, math.nan, real(math.nan))
    if tile.amax == 0 and not scaling.amax_floor > 0:
        nothing = rounded(0.0, scaling.scale_format, scale_rounding(scaling))
        b = nothing if unclamped else 1.0 if scaling.zero_scale == "one" else smallest_scale(scaling)
    else:
        a = max(tile.amax, real(np.float32(scaling.amax_floor)))
        if unclamped:
            q = float(a * min(g * (real(1) / most), np.finfo(real).max))
            if q > largest(scaling.scale_format):
                report.clamped_high += 1
            b = rounded(q, scaling.scale_format, scale_rounding(scaling))
        else:
            b = held_scale(float((a / most) / t), bool(np.isinf(a)), scaling, report)
    scale = float(np.float32(np.float64(b) * np.float64(tensor.t)))
    if unclamped:
        return Step(b, scale, min(real(1) / (real(b) * t), real(LARGEST_FLOAT32)), multiply=True)
    if scaling.division == "multiply":
        return Step(b, scale, np.minimum((real(1) / t) / real(b), np.finfo(real).max), multiply=True)
    return Step(b, scale, real(b) * t)


# ---- given scales


def by_given_scale(tile: Tile, s: Real, scaling: Any, real: Any) -> Step:
    """Return the step of a tile whose scale the caller gives."""
    if tile.has_nan and scaling.nan == "tile":
        return Step(math.nan, math.nan, real(math.nan))
    if scaling.division == "multiply" or scaling.quotient == "1/(max/amax)":
        return Step(s, s, inverse_of(real(s), real), multiply=True)
    return Step(s, s, real(s))
