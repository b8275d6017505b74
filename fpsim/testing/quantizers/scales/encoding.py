"""A matrix with a quantizer's result, its right encoding, and the outcome of a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.quantizers.rounder import Words
from fpsim.testing.quantizers.scales.tiles import spread_tiles


class Case(NamedTuple):
    """A matrix and a quantizer's result for it.

    Attributes:
      x: the matrix.
      elements: values of the returned codes, or, without scales, returned values; bit patterns of float64, flat.
      scales: the returned float32 scale of each tile, or None.
      before: the matrix of the call before, or None.
    """

    x: Array
    elements: Words
    scales: Array | None
    before: Array | None

    @property
    def special(self) -> bool:
        """True if the matrix has an Inf or a NaN, which recipes treat differently."""
        return not np.isfinite(self.x).all()


class KeptEncodings:
    """Cache of correct encodings of a check's matrices, and of whether each fault reproduces each result.

    It serves one quantizer: format, keywords of the cast and results are the same for all entries.

    Attributes:
      outcomes: (fault, scaling, matrix, matrix before) -> whether the fault reproduces the result.
    """

    def __init__(self, matrices: Iterable[Array]) -> None:
        self._matrices = {id(x): x for x in matrices}  # keeps them alive, so that ids stay unique
        self._arrays: dict[tuple[Any, ...], Array] = {}
        self.outcomes: dict[tuple[Any, ...], bool] = {}

    def hold(self, x: Array) -> bool:
        """Return whether x is one of the check's matrices (the same object)."""
        return id(x) in self._matrices

    def once(self, x: Array, parameters: tuple[Any, ...], encoded: Callable[[], Array]) -> Array:
        """Return encoded(), from the cache if x is one of the check's matrices; cached arrays are read-only.

        parameters: the other values on which the encoding depends, as a key of the cache.
        """
        if not self.hold(x):
            return encoded()
        key = id(x), *parameters
        if key not in self._arrays:
            self._arrays[key] = encoded()
            self._arrays[key].flags.writeable = False
        return self._arrays[key]


class RightEncoding(NamedTuple):
    """The encoding that a quantizer promises.

    Attributes:
      fmt, scaling: the element format and the scaling.
      cast: keywords of the cast of elements.
      kept: cache of encodings with the same format and keywords, or None.
    """

    fmt: Element
    scaling: Scaling
    cast: dict[str, Any]
    kept: KeptEncodings | None = None

    def scales(self, x: Array) -> Array:
        """Return the right float32 scale of each tile of a matrix."""

        def encoded() -> Array:
            return np.asarray(encode_scaled(x, self.fmt, self.scaling, **self.cast).scales)

        return encoded() if self.kept is None else self.kept.once(x, ("scales", self.scaling), encoded)

    def values(self, x: Array, scales: Array, **cast: Any) -> Array:
        """Return the float64 values of the codes to which x is encoded with given scales.

        The values are not multiplied by the scales. scales: one per tile. cast: keywords of `fpsim.encode` that replace
        those of the attribute `cast`.
        """

        def encoded() -> Array:
            return _encoded_values(self, x, scales, cast)

        if self.kept is None or not self.kept.hold(x) or scales is not self.scales(x):
            return encoded()
        return self.kept.once(x, ("values", self.scaling, *cast.items()), encoded)


class FaultOutcome(NamedTuple):
    """Result of a faulty quantizer for a matrix.

    Attributes:
      elements: function that returns the values of all elements, float64, not multiplied by scales; it is called only
        if `scales` equal those that the quantizer under test returned, or if that returned none.
      scales: float32 scale of each tile that the faulty quantizer returns.
      some: function that returns (indices into the flattened matrix, the elements there) for some of the elements in
        less time, or None.
    """

    elements: Callable[[], Array]
    scales: Array
    some: Callable[[], tuple[Array, Array]] | None = None


# Function of the promised encoding and a case that returns the faulty result for the case's matrix.
FaultFunction = Callable[[RightEncoding, Case], FaultOutcome]
Fault = tuple[str, FaultFunction]  # clause such as "drops the sign", and the fault's function


def spread_over(scales: Array, x: Array, recipe: RightEncoding) -> Array:
    """Return scales, one per tile of a recipe's scaling, expanded to one per element of the matrix x."""
    return spread_tiles(scales, x.shape, recipe.scaling.block)


def with_right_scales(elements: Callable[[RightEncoding, Case, Array], Array]) -> FaultFunction:
    """Return the fault function of a quantizer with right scales and the elements `elements(recipe, case, scales)`.

    A fault function maps (promised encoding `recipe`, case) to the faulty result for the case's matrix.
    """

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        return FaultOutcome(lambda: elements(recipe, case, scales), scales)

    return fault


def of_changed_input(change: Callable[..., Array], *more: Any) -> FaultFunction:
    """Return the fault function for replacing the matrix by `change(matrix, *more)` before encoding it correctly.

    A fault function maps (promised encoding, case) to the faulty result for the case's matrix.
    """

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        q = encode_scaled(change(case.x, *more), recipe.fmt, recipe.scaling, **recipe.cast)
        return FaultOutcome(lambda: _values_of_codes(q, recipe.fmt), np.asarray(q.scales))

    return fault


def _encoded_values(recipe: RightEncoding, x: Array, scales: Array, cast: dict[str, Any]) -> Array:
    """Return the float64 values of the codes to which the matrix x is encoded with given scales.

    The values are not multiplied by the scales. Negative scales change the signs of elements. Infinite scales make
    elements 0, or NaN where x is Inf or NaN. scales: one per tile. cast: keywords that replace those of `recipe.cast`.
    """
    if (scales < 0).any():
        flipped = spread_over(scales < 0, x, recipe)
        return _encoded_values(recipe, np.where(flipped, -x, x), np.abs(scales), cast)
    infinite = np.isinf(scales)  # which encode_scaled refuses as scales
    finite = np.where(infinite, np.float32(1), scales)
    q = encode_scaled(x, recipe.fmt, recipe.scaling, scales=finite, **{**recipe.cast, **cast})
    values = _values_of_codes(q, recipe.fmt)
    if not infinite.any():
        return values
    zeros = np.copysign(0.0, x) if isinstance(recipe.fmt, Format) else np.zeros(x.shape)
    return np.where(spread_over(infinite, x, recipe), np.where(np.isfinite(x), zeros, np.nan), values)


def _values_of_codes(q: Scaled, fmt: Element) -> Array:
    """Return the float64 values of the codes of a scaled array, without their scales; fmt: the element format."""
    return np.asarray(fmt.table()[q.codes] if isinstance(fmt, Format) else q.codes.astype(np.float64))


def flushed(x: Array) -> Array:
    """Return float32 values with subnormals replaced by zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def rounded_to(x: Array, fmt: Format) -> Array:
    """Return float32 values rounded to the nearest value of a format."""
    return np.asarray(quantize(x, fmt), np.float32)


def quotients_of(recipe: RightEncoding, x: Array, scales: Array) -> Array:
    """Return each element of x divided by the scale of its tile, in float32.

    If `recipe` multiplies instead of dividing, return x * (1 / scale), with the reciprocal rounded to float32. scales:
    one per tile.
    """
    spread = spread_over(scales, x, recipe)
    divides = recipe.scaling.division == "divide"
    return np.asarray(x / spread if divides else x * (np.float32(1) / spread), np.float32)
