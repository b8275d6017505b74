"""A plain oracle for scaled quantisation: scales in a loop over tiles, each rounding step an explicit NumPy scalar.

The rules are those of docs/scaling.md. oracles/casts.py rounds values into formats, with exact fractions for scales
and its sorted tables for elements. LogFMT is not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import Format
from tests.oracles import casts

Array = npt.NDArray[Any]
Real = Any  # np.float32 or np.float64: the type that the arithmetic runs in

RANGES = {"INT8": (-128, 127), "INT4": (-8, 7), "UINT8": (0, 255), "UINT4": (0, 15)}
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


@dataclass
class Expected:
    """What an encoding should hold."""

    codes: Array
    scales: Array  # float32
    scale_codes: Any  # of the scale format's storage dtype; None where scales are given
    tensor_scale: Any  # a float32, or None with one level
    zero_points: Array | None
    sizes: tuple[int, ...]  # of a tile, along every axis
    ratio: Array  # the scaled elements that are rounded, in float64
    report: Report = field(default_factory=Report)


class Step(NamedTuple):
    """What is done with the elements of one tile."""

    stored: float  # the scale in the scale format
    scale: float  # the scale that decodes
    operand: Real  # x is divided by this, or multiplied with it
    multiply: bool = False


# ---- tiles


def tile_sizes(shape: tuple[int, ...], block: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the size of a tile along every axis of an array."""
    block = (1, block) if isinstance(block, int) else tuple(block)
    leading = (-1,) if block[0] == -1 else (1,)
    block = leading * (len(shape) - len(block)) + block
    block = block[len(block) - len(shape) :]
    return tuple(max(size, 1) if b == -1 else b for size, b in zip(shape, block, strict=True))


def scales_shape(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the array of scales."""
    return tuple(-(-size // b) for size, b in zip(shape, sizes, strict=True))


def tiles(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield the index of every scale, and the slices of its elements."""
    for index in product(*(range(count) for count in scales_shape(shape, sizes))):
        yield index, tuple(slice(i * b, (i + 1) * b) for i, b in zip(index, sizes, strict=True))


def in_tiles(y: Array, sizes: tuple[int, ...]) -> Array:
    """Return a row of elements for every tile, in the order of the scales; beyond the array's edge they are +0."""
    counts = scales_shape(y.shape, sizes)
    padded = np.zeros([count * b for count, b in zip(counts, sizes, strict=True)], y.dtype)
    padded[tuple(map(slice, y.shape))] = y
    apart = padded.reshape([size for pair in zip(counts, sizes, strict=True) for size in pair])
    axes = [*range(0, apart.ndim, 2), *range(1, apart.ndim, 2)]
    return apart.transpose(axes).reshape(math.prod(counts), math.prod(sizes))


def repeated(scales: Array, shape: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """Return the scale of every element."""
    for axis, (size, b) in enumerate(zip(shape, sizes, strict=True)):
        scales = np.repeat(scales, b, axis=axis).take(range(size), axis=axis)
    return scales


# ---- facts of formats


def is_integer(fmt: Any) -> bool:
    """Whether elements are integers."""
    return str(fmt.name) in RANGES


@cache
def largest(fmt: Any) -> float:
    """Return the largest value of an element or scale format."""
    return float(RANGES[fmt.name][1]) if is_integer(fmt) else float(casts.largest(fmt))


def largest_exponent(fmt: Any) -> int:
    """floor(log2(max))."""
    return math.frexp(largest(fmt))[1] - 1


def smallest_scale(scaling: Any) -> float:
    """Return the lower bound of scales."""
    return default_smallest(scaling.scale_format) if scaling.smallest_scale is None else float(scaling.smallest_scale)


@cache
def default_smallest(fmt: Format) -> float:
    """Return the smallest scale with a reciprocal in float32, and a normal one where float32 has the choice."""
    normal = casts.power(casts.lowest_exponent(fmt))
    subnormal = normal / 2**fmt.mantissa_bits if fmt.subnormals else normal
    return float(subnormal if subnormal >= casts.power(-127) else max(normal, casts.power(-127)))


def scale_rounding(scaling: Any) -> str:
    """Return the mode in which a quotient is rounded into the scale format."""
    if scaling.scale_rule == "rceil":
        return "up"
    if scaling.scale_rule == "amax" and scaling.scale_rounding is not None:
        return str(getattr(scaling.scale_rounding, "name", scaling.scale_rounding)).lower()
    return "up" if scaling.scale_rule == "amax" and scaling.scale_format.mantissa_bits == 0 else "nearest_even"


@lru_cache(maxsize=1 << 16)
def rounded(q: float, fmt: Format, rounding: str) -> float:
    """Return a number rounded into a scale format, at most the largest value."""
    return casts.value(fmt, casts.encode(q, fmt, rounding, "saturate"))


@lru_cache(maxsize=1 << 16)
def code_of_scale(s: float, fmt: Format) -> int:
    """Return the code of a value of a scale format."""
    return casts.encode(s, fmt)


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
    return math.ldexp(1.0, exponent - largest_exponent(fmt))


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
    found = rounded(q, fmt, scale_rounding(scaling))
    if q <= least / 2 or found < least:
        report.clamped_low += 1
        return least
    return found


def by_scale(s: float, scaling: Any, real: Any) -> Step:
    """Elements divided by s, or multiplied with its reciprocal."""
    if scaling.division == "multiply":
        return Step(s, s, real(1) / real(s), multiply=True)
    return Step(s, s, real(s))


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
    both = real(largest(scaling.scale_format)) * real(largest(fmt))
    most = largest_tensor_scale(largest(scaling.scale_format)) if amax < math.inf else math.inf
    if scaling.quotient == "1/(max/amax)":
        g = np.float32(both / amax)
        if g > LARGEST_FLOAT32:
            report.clamped_low += 1
            g = np.float32(LARGEST_FLOAT32)
        while amax < math.inf and np.float32(1) / g > most:
            g = max(np.nextafter(g, np.float32(math.inf)), np.float32(0.999) / np.float32(most))
        g = np.float32(1) if g == 0 else g
        return TensorScale(np.float32(1) / g, real(g))
    t = min(np.float32(amax / both), np.float32(most))
    if t < SMALLEST_TENSOR_SCALE:
        report.clamped_low += 1
        t = np.float32(SMALLEST_TENSOR_SCALE)
    return TensorScale(t, real(math.nan))


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
        b = 0.0 if unclamped else 1.0 if scaling.zero_scale == "one" else smallest_scale(scaling)
    else:
        a = max(tile.amax, real(np.float32(scaling.amax_floor)))
        if unclamped:
            q = float(a * (g * (real(1) / most)))
            if q > largest(scaling.scale_format):
                report.clamped_high += 1
            b = rounded(q, scaling.scale_format, scale_rounding(scaling))
        else:
            b = held_scale(float((a / most) / t), bool(np.isinf(a)), scaling, report)
    scale = float(np.float32(np.float64(b) * np.float64(tensor.t)))
    if unclamped:
        return Step(b, scale, min(real(1) / (real(b) * t), real(LARGEST_FLOAT32)), multiply=True)
    if scaling.division == "multiply":
        return Step(b, scale, (real(1) / t) / real(b), multiply=True)
    return Step(b, scale, real(b) * t)


# ---- given scales


def by_given_scale(tile: Tile, s: Real, scaling: Any, real: Any) -> Step:
    """Return the step of a tile whose scale the caller gives."""
    if tile.has_nan and scaling.nan == "tile":
        return Step(math.nan, math.nan, real(math.nan))
    if scaling.division == "multiply" or scaling.quotient == "1/(max/amax)":
        return Step(s, s, real(1) / real(s), multiply=True)
    return Step(s, s, real(s))


# ---- integers


def whole(ratio: Array, rounding: str) -> Array:
    """Numbers rounded to integers; NaN stays NaN, and magnitudes beyond 2**20 become 2**20."""
    size = np.minimum(np.abs(ratio), 2.0**20)
    below = np.floor(size)
    rest, negative, odd = size - below, np.signbit(ratio), below % 2 == 1
    away = casts.AWAY[rounding](rest, odd, negative)
    found: Array = np.where(negative, -1.0, 1.0) * (below + away)
    return found


def integer_codes(ratio: Array, fmt: Any, rounding: str) -> Array:
    """Codes of integers without a zero point."""
    most = RANGES[fmt.name][1]
    codes = np.clip(whole(ratio, rounding), -most, most)
    return np.where(np.isnan(codes), most, codes).astype(np.int8)


def encode_with_zero_points(
    y: Array, fmt: Any, scaling: Any, rounding: str, real: Any, found: Expected, scales: Any
) -> None:
    """Scales, zero points and codes of tiles that need not be symmetric; scales: those that are given, or None."""
    low, high = RANGES[fmt.name]
    dtype = np.dtype(np.int8 if low < 0 else np.uint8)
    rows = in_tiles(y, found.sizes)
    least, most = (bound(rows, axis=1, initial=0, where=np.isfinite(rows)) for bound in (np.min, np.max))
    steps: list[Step] = []
    for i, tile in enumerate(look_at(rows, scaling)):
        count_tile(tile, scaling, found.report, scales is not None)
        s = 1.0
        if tile.has_nan and scaling.nan == "tile":
            s = math.nan
        elif scales is not None:
            s = float(scales.flat[i])
        elif tile.amax != 0 and not (tile.has_infinity and scaling.infinity == "one"):
            unbounded = bool(np.isinf(tile.amax))
            spread = real(math.inf) if unbounded else min(most[i] - least[i], np.finfo(real).max)
            s = held_scale(float(real(spread) / real(high - low)), unbounded, scaling, found.report)
        steps.append(by_scale(s, scaling, real))
    numbers = np.array([step.scale for step in steps], np.float32).reshape(found.scales.shape)
    found.scales[...] = numbers
    points = np.clip(low - whole(apply(least, steps), "nearest_even"), low, high)
    has_range = np.logical_or(least != 0, most != 0) & ~np.isnan(numbers.reshape(-1))
    zero_points = np.where(has_range, points, low).reshape(found.scales.shape)
    found.zero_points = zero_points.astype(dtype)
    ratio = whole(by_element(y, steps, found), rounding)
    codes = np.clip(ratio + repeated(zero_points, y.shape, found.sizes), low, high)
    found.codes = np.where(np.isnan(codes), high, codes).astype(dtype)


# ---- everything


def apply(values: Array, steps: Sequence[Step]) -> Array:
    """Return x / s or x * m of one value for every step, rounded once; a NaN has the sign of x."""
    operands = np.array([step.operand for step in steps], values.dtype)
    return scaled(values, operands, np.array([step.multiply for step in steps], np.bool_))


def scaled(values: Array, operands: Array, multiply: Array) -> Array:
    """Return x * m where `multiply` is true, else x / s."""
    ratio = np.where(multiply, values * operands, values / operands)
    signed: Array = np.copysign(ratio.astype(np.float64), values)
    return signed


def by_element(y: Array, steps: Sequence[Step], found: Expected) -> Array:
    """`apply` of every element of an array, with the step of its tile."""
    operands, multiply = (
        repeated(np.array(each, dtype).reshape(found.scales.shape), y.shape, found.sizes)
        for each, dtype in (
            ([step.operand for step in steps], y.dtype),
            ([step.multiply for step in steps], np.dtype(np.bool_)),
        )
    )
    return scaled(y, operands, multiply)


def count_tile(tile: Tile, scaling: Any, report: Report, is_given: bool = False) -> None:
    """Count the kinds of a tile."""
    report.nan_tiles += tile.has_nan
    report.infinite_tiles += tile.has_infinity
    if is_given:
        report.zero_tiles += tile.is_zero and not (tile.has_nan and scaling.nan == "tile")
        return
    has_other_scale = (tile.has_nan and scaling.nan == "tile") or (tile.has_infinity and scaling.infinity == "one")
    report.zero_tiles += bool(tile.amax == 0) and not has_other_scale


def encode(
    x: Array,
    fmt: Any,
    scaling: Any,
    rounding: str = "nearest_even",
    overflow: str | None = None,
    subnormals: str = "keep",
    scales: Any = None,
) -> Expected:
    """Codes and scales of an array, or codes with given scales."""
    with np.errstate(all="ignore"):
        return _encode(np.asarray(x), fmt, scaling, rounding, overflow or scaling.overflow, subnormals, scales)


def _encode(x: Array, fmt: Any, scaling: Any, rounding: str, overflow: str, subnormals: str, scales: Any) -> Expected:
    real: Any = np.float64 if x.dtype == np.float64 else np.float32
    y = x.astype(real)
    found = empty(y.shape, scaling)
    if scales is not None:
        scales = np.broadcast_to(np.asarray(scales, np.float32), found.scales.shape)
    if not scaling.symmetric:
        encode_with_zero_points(y, fmt, scaling, rounding, real, found, scales)
        return found if scales is not None else with_scale_codes(found, found.scales, scaling)
    tensor = None
    if scaling.tensor_scale and scales is None:
        tensor = tensor_scale(y, fmt, scaling, real, found.report)
    steps: list[Step] = []
    for i, tile in enumerate(look_at(in_tiles(y, found.sizes), scaling)):
        count_tile(tile, scaling, found.report, scales is not None)
        if scales is not None:
            steps.append(by_given_scale(tile, scales.flat[i], scaling, real))
        elif tensor is None:
            steps.append(one_level(tile, fmt, scaling, real, found.report))
        else:
            steps.append(two_levels(tile, tensor, fmt, scaling, real, found.report))
    found.scales = np.array([step.scale for step in steps], np.float32).reshape(found.scales.shape)
    stored = np.array([step.stored for step in steps], np.float64).reshape(found.scales.shape)
    found.ratio = by_element(y, steps, found)
    if is_integer(fmt):
        found.codes = integer_codes(found.ratio, fmt, rounding)
    else:
        found.codes = casts.encode_all(found.ratio.reshape(-1), fmt, rounding, overflow, subnormals).reshape(y.shape)
    found.tensor_scale = None if tensor is None else tensor.t
    return found if scales is not None else with_scale_codes(found, stored, scaling)


def empty(shape: tuple[int, ...], scaling: Any) -> Expected:
    """Return an encoding to fill."""
    sizes = tile_sizes(shape, scaling.block)
    scales = np.zeros(scales_shape(shape, sizes), np.float32)
    return Expected(np.zeros(0), scales, None, None, None, sizes, np.zeros(shape), Report(tiles=scales.size))


def with_scale_codes(found: Expected, stored: Array, scaling: Any) -> Expected:
    """Return the same with the codes of its scales."""
    fmt = scaling.scale_format
    codes = [code_of_scale(s, fmt) for s in stored.reshape(-1).tolist()]
    found.scale_codes = np.array(codes, fmt.storage).reshape(stored.shape)
    return found


def decode(found: Expected, fmt: Any, dtype: Any = np.float32) -> Array:
    """Return the values: codes times scales, rounded once."""
    shape = found.codes.shape
    scales = repeated(found.scales.astype(np.float64), shape, found.sizes)
    if found.zero_points is not None:
        values = found.codes.astype(np.float64) - repeated(found.zero_points.astype(np.float64), shape, found.sizes)
    elif is_integer(fmt):
        values = found.codes.astype(np.float64)
    else:
        values = casts.values(fmt)[found.codes]
    with np.errstate(all="ignore"):
        decoded: Array = np.asarray(values * scales).astype(dtype)
    return decoded
