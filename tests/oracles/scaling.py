"""A plain oracle for scaled quantisation: scales in a loop over tiles, each rounding step an explicit NumPy scalar.

The rules are those of docs/scaling.md. oracles/casts.py rounds values into formats, with exact fractions for scales
and its sorted tables for elements. LogFMT is not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracles import casts
from tests.oracles.tiling.scales import (
    Report,
    Step,
    Tile,
    by_given_scale,
    by_scale,
    held_scale,
    look_at,
    one_level,
    tensor_scale,
    two_levels,
)
from tests.oracles.tiling.tiles import (
    RANGES,
    code_of_scale,
    in_tiles,
    is_integer,
    repeated,
    scales_shape,
    smallest_scale,
    tile_sizes,
)

Array = npt.NDArray[Any]


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
        elif (
            tile.amax == 0
            and scaling.zero_scale == "smallest"
            and not (tile.has_infinity and scaling.infinity == "one")
        ):
            s = smallest_scale(scaling)
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
    got = empty(y.shape, scaling)
    if scales is not None:
        scales = np.broadcast_to(np.asarray(scales, np.float32), got.scales.shape)
    if not scaling.symmetric:
        encode_with_zero_points(y, fmt, scaling, rounding, real, got, scales)
        return got if scales is not None else with_scale_codes(got, got.scales, scaling)
    tensor = None
    if scaling.tensor_scale and scales is None:
        tensor = tensor_scale(y, fmt, scaling, real, got.report)
    steps: list[Step] = []
    for i, tile in enumerate(look_at(in_tiles(y, got.sizes), scaling)):
        count_tile(tile, scaling, got.report, scales is not None)
        if scales is not None:
            steps.append(by_given_scale(tile, scales.flat[i], scaling, real))
        elif tensor is None:
            steps.append(one_level(tile, fmt, scaling, real, got.report))
        else:
            steps.append(two_levels(tile, tensor, fmt, scaling, real, got.report))
    got.scales = np.array([step.scale for step in steps], np.float32).reshape(got.scales.shape)
    stored = np.array([step.stored for step in steps], np.float64).reshape(got.scales.shape)
    got.ratio = by_element(y, steps, got)
    if is_integer(fmt):
        got.codes = integer_codes(got.ratio, fmt, rounding)
    else:
        got.codes = casts.encode_all(got.ratio.reshape(-1), fmt, rounding, overflow, subnormals).reshape(y.shape)
    got.tensor_scale = None if tensor is None else tensor.t
    return got if scales is not None else with_scale_codes(got, stored, scaling)


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
