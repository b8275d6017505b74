"""A matrix with what came for it, what should have come, and what a fault gives instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tile_sizes
from fpsim.testing.quantizers.rounder import Words


class Case(NamedTuple):
    """A matrix and what came for it: elements (values where scales is None) as patterns, scales as one per tile."""

    x: Array
    elements: Words
    scales: Array | None
    before: Array | None  # the matrix of the call before

    @property
    def special(self) -> bool:
        """True where there is an Inf or a NaN, which recipes treat each in their own way."""
        return not np.isfinite(self.x).all()


class RightEncoding(NamedTuple):
    """The encoding that is right: format, scaling and cast."""

    fmt: Element
    scaling: Scaling
    cast: dict[str, Any]

    def scales(self, x: Array) -> Array:
        """The scales of a matrix."""
        return np.asarray(encode_scaled(x, self.fmt, self.scaling, **self.cast).scales)


class FaultOutcome(NamedTuple):
    """The outcome of a fault: values of elements, float64, the scales that they had, and those that come back."""

    elements: Array
    used: Array
    scales: Array


Fault = tuple[str, Callable[[RightEncoding, Case], FaultOutcome]]


def spread_over(scales: Array, x: Array, recipe: RightEncoding) -> Array:
    """Scales, one per element."""
    height, width = tile_sizes(x.shape, recipe.scaling.block)
    return scales.repeat(height, 0)[: x.shape[0]].repeat(width, 1)[:, : x.shape[1]]


def encoded_values(recipe: RightEncoding, x: Array, scales: Array, **cast: Any) -> Array:
    """The elements that given scales lead to, as float64."""
    if (scales < 0).any():
        flipped = spread_over(scales < 0, x, recipe)
        return encoded_values(recipe, np.where(flipped, -x, x), np.abs(scales), **cast)
    endless = np.isinf(scales)  # which are no scales to give
    finite = np.where(endless, np.float32(1), scales)
    q = encode_scaled(x, recipe.fmt, recipe.scaling, scales=finite, **{**recipe.cast, **cast})
    values = recipe.fmt.table()[q.codes] if isinstance(recipe.fmt, Format) else q.codes.astype(np.float64)
    if not endless.any():
        return np.asarray(values)
    return np.where(spread_over(endless, x, recipe), np.where(np.isfinite(x), np.copysign(0.0, x), np.nan), values)


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def rounded_to(x: Array, fmt: Format) -> Array:
    return np.asarray(quantize(x, fmt), np.float32)


def quotients_of(recipe: RightEncoding, x: Array, scales: Array) -> Array:
    spread = spread_over(scales, x, recipe)
    divides = recipe.scaling.division == "divide"
    return np.asarray(x / spread if divides else x * (np.float32(1) / spread), np.float32)
