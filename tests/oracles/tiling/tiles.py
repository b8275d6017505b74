"""Tiles of an array, and the facts of formats that scales depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import Format
from tests.oracles import casts

Array = npt.NDArray[Any]

# ---- tiles

RANGES = {"INT8": (-128, 127), "INT4": (-8, 7), "UINT8": (0, 255), "UINT4": (0, 15)}


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
