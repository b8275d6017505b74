"""Data that bites in tiles: every kind of scale, of zero and of special; each array is made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.samples import float32_patterns

Array = npt.NDArray[Any]
SHAPE = (3, 150)


def made_once(make: Callable[..., Array]) -> Callable[..., Array]:
    """Keep what a function makes, and give copies of it."""
    kept = cache(make)

    @wraps(make)
    def copied(*arguments: Any) -> Array:
        return np.array(kept(*arguments))

    return copied


@made_once
def normal(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


@made_once
def between(low: float, high: float, shape: tuple[int, ...], seed: int) -> Array:
    """Gaussian numbers times 2^low to 2^high."""
    powers = np.exp2(np.random.default_rng(seed).uniform(low, high, shape))
    limit = np.finfo(np.float32).max
    x: Array = np.clip(normal(shape, seed) * powers, -limit, limit).astype(np.float32)
    return x


@made_once
def wide(shape: tuple[int, ...] = SHAPE) -> Array:
    return between(-40, 40, shape, 1)


@made_once
def tiny(shape: tuple[int, ...] = SHAPE) -> Array:
    """Around and below the smallest normal float32; each row has its own range."""
    x = between(-20, 0, shape, 2)
    x *= np.float32(2) ** -np.linspace(100, 145, x.shape[0], dtype=np.float32).round()[:, None]
    return x


@made_once
def subnormal(shape: tuple[int, ...] = SHAPE) -> Array:
    """Small multiples of the smallest float32."""
    x = np.random.default_rng(3).integers(-9, 10, shape) * np.float64(2**-149)
    x[:, ::64] *= 2**20
    return x.astype(np.float32)


@made_once
def huge(shape: tuple[int, ...] = SHAPE) -> Array:
    """Up to the largest float32."""
    x = between(118, 128, shape, 4)
    x[0, 0] = -np.finfo(np.float32).max
    return x


@made_once
def edges_of_scales(shape: tuple[int, ...] = SHAPE) -> Array:
    """Tiles whose largest value is the edge of a binade, a format's largest value, or a float32 next to one."""
    generator = np.random.default_rng(5)
    x = between(-2, 0, shape, 5).clip(-1, 1)
    x *= np.float32(0.5)
    tops = np.array([1, 1.5, 1.75, 1.875, 1.9375, 448 / 256, 57344 / 32768, 127 / 64], np.float32)
    tops = np.concatenate([np.nextafter(tops, np.float32(0)), tops, np.nextafter(tops, np.float32(2))])
    for row in x:
        for start in range(0, row.size, 16):
            power = np.float32(2.0) ** generator.integers(-30, 30)
            row[start : start + 16] *= power
            row[start] = generator.choice(tops) * power * generator.choice([-1, 1])
    return x


@made_once
def zeros(shape: tuple[int, ...] = SHAPE) -> Array:
    """Zeros of both signs, whole tiles of them too."""
    x = normal(shape, 6)
    x[:, ::5] = 0
    x[:, 1::7] = -0.0
    x[0, : shape[1] // 2] = 0
    x[-1] = -0.0
    x[:, -40:-20] = 0
    return x


@made_once
def only_zeros(shape: tuple[int, ...] = SHAPE) -> Array:
    x = np.zeros(shape, np.float32)
    x[:, ::3] = -0.0
    return x


@made_once
def with_nan(shape: tuple[int, ...] = SHAPE) -> Array:
    x = wide(shape)
    x[0, 5] = x[-1, ::100] = np.nan
    x[0, 6] = -np.float32(np.nan)
    x[0, 32:64] = np.nan
    return x


@made_once
def with_infinities(shape: tuple[int, ...] = SHAPE) -> Array:
    x = normal(shape, 7)
    x[0, 5] = x[-1, ::100] = np.inf
    x[0, 6], x[0, 140], x[0, 40:50] = -np.inf, -np.inf, 0
    x[1, 32:64] = np.inf
    return x


@made_once
def anything(shape: tuple[int, ...] = SHAPE) -> Array:
    """Bit patterns of float32: every exponent, NaN and Inf."""
    return float32_patterns(8, int(np.prod(shape))).reshape(shape)


DATA = [
    normal, wide, tiny, subnormal, huge, edges_of_scales, zeros, only_zeros, with_nan, with_infinities, anything,
]  # fmt: skip
SPECIALS = [zeros, with_nan, with_infinities, anything]
