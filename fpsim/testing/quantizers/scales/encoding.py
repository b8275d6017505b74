"""A matrix with the result of a quantizer, its right encoding, and the outcome of a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.quantizers.rounder import Words
from fpsim.testing.quantizers.scales.tiles import spread_tiles


class Case(NamedTuple):
    """A matrix and the result of a quantizer: elements as bit patterns (values if scales is None), a scale per tile."""

    x: Array
    elements: Words
    scales: Array | None
    before: Array | None  # the matrix of the call before

    @property
    def special(self) -> bool:
        """True if the matrix has an Inf or a NaN, which recipes treat in different ways."""
        return not np.isfinite(self.x).all()


class KeptEncodings:
    """Right encodings of the matrices of a check, shared by hundreds of faults, and the outcomes of these faults.

    The format, the keywords of the cast and the results of the quantizer are the same for all that is kept here.

    Args:
      matrices: the matrices.

    Attributes:
      outcomes: whether a fault gave the result of a case, by names of both.
    """

    def __init__(self, matrices: Iterable[Array]) -> None:
        self._matrices = {id(x): x for x in matrices}  # which keeps them alive, so that no other array has their ids
        self._arrays: dict[tuple[Any, ...], Array] = {}
        self.outcomes: dict[tuple[Any, ...], bool] = {}

    def hold(self, x: Array) -> bool:
        """Return whether x is one of the matrices."""
        return id(x) in self._matrices

    def once(self, x: Array, parameters: tuple[Any, ...], encoded: Callable[[], Array]) -> Array:
        """Return the encoding of x, read-only; it is computed once if x is one of the check's matrices."""
        if not self.hold(x):
            return encoded()
        key = id(x), *parameters
        if key not in self._arrays:
            self._arrays[key] = encoded()
            self._arrays[key].flags.writeable = False
        return self._arrays[key]


class RightEncoding(NamedTuple):
    """The encoding that a quantizer should have: format, scaling and keywords of the cast.

    Attributes:
      fmt, scaling, cast: format, scaling and keywords.
      kept: encodings of matrices that were computed before, with the same format and keywords; None keeps nothing.
    """

    fmt: Element
    scaling: Scaling
    cast: dict[str, Any]
    kept: KeptEncodings | None = None

    def scales(self, x: Array) -> Array:
        """Return the right scales of the tiles of a matrix."""

        def encoded() -> Array:
            return np.asarray(encode_scaled(x, self.fmt, self.scaling, **self.cast).scales)

        return encoded() if self.kept is None else self.kept.once(x, ("scales", self.scaling), encoded)

    def values(self, x: Array, scales: Array, **cast: Any) -> Array:
        """Return the elements of a matrix for given scales, as float64; cast: keywords that differ from these."""

        def encoded() -> Array:
            return _encoded_values(self, x, scales, cast)

        if self.kept is None or not self.kept.hold(x) or scales is not self.scales(x):
            return encoded()
        return self.kept.once(x, ("values", self.scaling, *cast.items()), encoded)


class ElementsAt(NamedTuple):
    """Values of some elements, as a faulty quantizer gives them: indices into the flattened matrix, and the values."""

    places: Array
    values: Array


class FaultOutcome(NamedTuple):
    """The outcome of a fault.

    Attributes:
      elements: a function that computes the values of elements, float64; wrong scales rule out most faults without it.
      scales: the scales that come back with them.
      some: a function that computes some of the values, in less time; None where there is none.
    """

    elements: Callable[[], Array]
    scales: Array
    some: Callable[[], ElementsAt] | None = None


FaultFunction = Callable[[RightEncoding, Case], FaultOutcome]
Fault = tuple[str, FaultFunction]  # what the faulty quantizer does, as a clause ("it ..."), and its outcome


def spread_over(scales: Array, x: Array, recipe: RightEncoding) -> Array:
    """Return the scales of tiles expanded to one per element."""
    return spread_tiles(scales, x.shape, recipe.scaling.block)


def with_right_scales(elements: Callable[[RightEncoding, Case, Array], Array]) -> FaultFunction:
    """Return the fault whose scales are right, and whose elements a function of (recipe, case, scales) gives."""

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        return FaultOutcome(lambda: elements(recipe, case, scales), scales)

    return fault


def of_changed_input(change: Callable[[Array], Array]) -> FaultFunction:
    """Return the fault that applies `change` to the matrix, and then encodes it correctly."""

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        x = change(case.x)
        scales = recipe.scales(x)
        return FaultOutcome(lambda: recipe.values(x, scales), scales)

    return fault


def _encoded_values(recipe: RightEncoding, x: Array, scales: Array, cast: dict[str, Any]) -> Array:
    """Return the elements of a matrix for given scales, as float64; cast: keywords that differ from the recipe's."""
    if (scales < 0).any():
        flipped = spread_over(scales < 0, x, recipe)
        return _encoded_values(recipe, np.where(flipped, -x, x), np.abs(scales), cast)
    infinite = np.isinf(scales)  # which encode_scaled refuses as scales
    finite = np.where(infinite, np.float32(1), scales)
    q = encode_scaled(x, recipe.fmt, recipe.scaling, scales=finite, **{**recipe.cast, **cast})
    values = recipe.fmt.table()[q.codes] if isinstance(recipe.fmt, Format) else q.codes.astype(np.float64)
    if not infinite.any():
        return np.asarray(values)
    return np.where(spread_over(infinite, x, recipe), np.where(np.isfinite(x), np.copysign(0.0, x), np.nan), values)


def flushed(x: Array) -> Array:
    """Return float32 values with subnormals replaced by zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def rounded_to(x: Array, fmt: Format) -> Array:
    """Return float32 values rounded to a format."""
    return np.asarray(quantize(x, fmt), np.float32)


def quotients_of(recipe: RightEncoding, x: Array, scales: Array) -> Array:
    """Return elements divided by their scales, or multiplied by the reciprocals, as the recipe says, in float32."""
    spread = spread_over(scales, x, recipe)
    divides = recipe.scaling.division == "divide"
    return np.asarray(x / spread if divides else x * (np.float32(1) / spread), np.float32)
