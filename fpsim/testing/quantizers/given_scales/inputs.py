"""Inputs at which results of a quantizer with a given scale change, and further arrays of the same values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fpsim.arrays import Array, words
from fpsim.formats.integer_format import IntegerFormat
from fpsim.testing.boundary_points import points
from fpsim.testing.quantizers.given_scales.promise import GivenScale
from fpsim.testing.quantizers.layouts import LAYOUTS

LARGE = (1 << 20) + 1033  # elements of a large array
CALLS = 256  # most calls, if scales of tiles fix the shape of a matrix
MOST = 1 << 22  # most elements of these calls together, unless two calls have more


def inputs_of(promise: GivenScale, dtype: np.dtype[Any]) -> Array:
    """Return the inputs of a check in `dtype`, at which results of a quantizer with a given scale change.

    They are multiples of the scale near ties and ends of the range, random values, zeros, Inf, subnormals, large
    values, and NaN if the format has NaN; in integer dtypes, also powers of two and the ends of the dtype's range. With
    scales along an axis, the inputs for each scale are along the other axis of a matrix; else they are flat. promise:
    the scale and format of the quantizer.
    """
    if promise.block is not None:
        return _of_tiles(promise, dtype)
    rng = np.random.default_rng(0)
    fmt = promise.fmt
    if isinstance(fmt, IntegerFormat):
        ends = fmt.highest - fmt.lowest + 4
        levels = np.arange(-2 * ends, 2 * ends + 1) / 2
    else:
        finite = points(fmt).astype(np.float64)
        levels = finite[np.isfinite(finite)]
        levels = levels if levels.size <= 4096 else rng.choice(levels, 4096, replace=False)
    scales, along = np.atleast_1d(promise.scale).astype(np.float64), promise.along
    with np.errstate(all="ignore"):
        column = np.concatenate([levels, rng.uniform(levels.min(), levels.max(), 512)])
        x = (column if along is None else np.expand_dims(column, 1 - along)) * scales
        if dtype.kind in "iu":
            return _whole(x, dtype, along)
        single = x.astype(dtype)
        around = [single, *(_next(single, step) for step in (-2, -1, 1, 2))]
        nans = [] if isinstance(fmt, IntegerFormat) or not fmt.has_nan else [np.nan, -np.nan]
        special = np.array([0.0, -0.0, 1e30, -1e30, np.inf, -np.inf, 1e-45, -1e-45, -1e-40, *nans]).astype(dtype)
        if along is not None:
            special = np.expand_dims(special, 1 - along).repeat(single.shape[1 - along], 1 - along)
        return np.concatenate([*around, special], along or 0)


def _whole(x: Array, dtype: np.dtype[Any], along: int | None) -> Array:
    """Return integers of `dtype` next to the float64 numbers x, and those at which casts between integers overflow.

    Between 2**24 and 2**64 only integers that float32 can represent are next to x. The others are 0 and the powers of
    two with both signs, their neighbours, and the ends of the range of `dtype`. along: the axis of a matrix x along
    which its scale stays the same, and to which integers are added; None for a flat x.
    """
    info = np.iinfo(dtype)
    near = np.rint(np.clip(x, -(2.0**65), 2.0**65)).astype(np.float32).astype(np.float64)
    step = np.maximum(np.spacing(np.abs(near).astype(np.float32)).astype(np.float64), 1.0)
    powers = [0, *(1 << bit for bit in range(64))]
    exact = {sign * power + more for power in powers for sign in (1, -1) for more in (-1, 0, 1)} | {info.min, info.max}
    ends = np.array(sorted(value for value in exact if info.min <= value <= info.max), dtype)
    parts = [_within(near + more * step, dtype) for more in (-1, 0, 1)]
    if along is not None:
        ends = np.expand_dims(ends, 1 - along).repeat(x.shape[1 - along], 1 - along)
    return np.concatenate([*parts, ends], along or 0)


def _within(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return integral float64 numbers as integers of `dtype`, limited to its range."""
    info = np.iinfo(dtype)
    limited = np.clip(x, float(info.min), float(np.nextafter(float(info.max) + 1.0, 0.0)))
    return np.where(x >= float(info.max), dtype.type(info.max), limited.astype(dtype))


def _of_tiles(promise: GivenScale, dtype: np.dtype[Any]) -> Array:
    """Return matrices of `dtype` stacked along the rows, in which each tile contains inputs for its scale.

    The inputs for a scale are spread over its tiles of all matrices. There are as many matrices as that takes, but at
    most CALLS, at most as many as have MOST elements together, and at least 2. Inputs that do not fit are left out.
    promise: the scales of the tiles, and the format.
    """
    assert promise.block is not None
    assert promise.matrix is not None
    rng = np.random.default_rng(0)
    height, width = promise.block
    rows, columns = promise.scale.shape
    single = promise._replace(block=None)
    for_scales = {scale: inputs_of(single._replace(scale=scale), dtype) for scale in np.unique(promise.scale)}
    inputs = max(array.size for array in for_scales.values())
    calls = int(np.clip(-(-inputs // (height * width)), 2, CALLS))
    calls = max(min(calls, MOST // (promise.matrix[0] * promise.matrix[1])), 2)
    x = np.empty((calls, rows, height, columns, width), dtype)
    for i, j in np.ndindex(rows, columns):
        for_tile = rng.permutation(for_scales[promise.scale[i, j]])
        x[:, i, :, j, :] = np.resize(for_tile, calls * height * width).reshape(calls, height, width)
    return x.reshape(-1, promise.matrix[1])


def _next(x: Array, steps: int) -> Array:
    """Return floats moved by `steps` floats away from zero, at most to Inf, or toward zero if `steps` is negative.

    Zeros stay zeros. x: floats of up to 32 bits without NaN.
    """
    patterns = words(x)
    infinity = int(words(np.array(np.inf, x.dtype)))
    magnitudes = patterns & (np.iinfo(patterns.dtype).max >> 1)
    moved = np.clip(magnitudes.astype(np.int64) + steps, 0, infinity).astype(patterns.dtype)
    return np.where(x == 0, x, np.copysign(moved.view(x.dtype), x))


def further_arrays(promise: GivenScale, x: Array) -> Iterator[tuple[str, Array]]:
    """Yield (name, array) pairs of further inputs: large and square arrays of values of x, and x in memory layouts.

    With one scale: "large" (about a million values, and 2**20, as functions may treat powers of two apart), "square" (a
    square matrix), and each layout of LAYOUTS, for which x is cut to a multiple of 8 elements and reshaped to the
    layout's number of axes. With scales along an axis: "large" and the layouts of matrices. With a scale per tile: the
    first two matrices of x in the layouts of matrices.
    promise: the scales. x: inputs of `inputs_of`.
    """
    rng = np.random.default_rng(1)
    if promise.matrix is not None:
        few = x[: 2 * promise.matrix[0]]
        yield from ((name, layout.make(few)) for name, layout in LAYOUTS.items() if layout.axes == 2)
        return
    along = promise.along
    if along is None:
        yield "large", x[rng.integers(0, x.size, LARGE)]
        yield "large", x[rng.integers(0, x.size, 1 << (LARGE.bit_length() - 1))]
        side = math.isqrt(x.size)
        yield "square", x[: side * side].reshape(side, side).copy()
        few = x[: x.size // 8 * 8]
        for name, layout in LAYOUTS.items():
            yield name, layout.make(few.reshape(layout.shape))
        return
    count = -(-LARGE // x.shape[1 - along])
    yield "large", x.take(rng.integers(0, x.shape[along], count), along)
    for name, layout in LAYOUTS.items():
        if layout.axes == 2:
            yield name, layout.make(x)
