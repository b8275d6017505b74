"""Names what quantizers that find scales and zero points do wrong with right scales: rounding, wrapping, offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.integer_format import IntegerFormat
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tile_sizes
from fpsim.testing.quantizers.given_scales.causes import changes_of
from fpsim.testing.quantizers.given_scales.promise import GivenScale
from fpsim.testing.quantizers.rounder import RULES, TIES, Words, in_elements, rule_words
from fpsim.testing.quantizers.scales.results import ReturnedParts

ZERO_POINT_RULES = ("nearest_away", "nearest_up", "nearest_zero", "toward_zero", "up", "half_added")


class AffineCase(NamedTuple):
    """A matrix, codes that came for it, zero points (None where none came), and the right scales."""

    x: Array
    codes: Array
    zero_points: Array | None
    scales: Array

    def spread(self, of_tiles: Array, scaling: Scaling) -> Array:
        """Return numbers of tiles, one per element."""
        height, width = tile_sizes(self.x.shape, scaling.block)
        return of_tiles.repeat(height, 0)[: self.x.shape[0]].repeat(width, 1)[:, : self.x.shape[1]]


def zero_point_causes(
    cases: list[tuple[Array, ReturnedParts]], fmt: IntegerFormat, scaling: Scaling, rounding: str = "nearest_even"
) -> tuple[str, ...]:
    """Return the faults of codes and zero points that give all that came, as clauses after "it"; empty without any.

    Args:
      cases: finite matrices and what came for each.
      fmt, scaling: the recipe, whose scales came.
      rounding: of the elements.
    """
    affine = [_case(x, parts, fmt, scaling) for x, parts in cases]
    seen = [case for case in affine if case is not None]
    if not seen or len(seen) < len(affine) or rounding not in RULES:
        return ()
    for clauses, for_points, changes in _faults(seen, fmt, scaling, rounding):
        if all(_gives(case, fmt, scaling, rounding, for_points, changes) for case in seen):
            return clauses
    return ()


def _case(x: Array, parts: ReturnedParts, fmt: IntegerFormat, scaling: Scaling) -> AffineCase | None:
    """Return a case with one scale per tile; None where scales are not the right ones, or none came."""
    right = encode_scaled(x, fmt, scaling)
    if parts.scales is None or parts.scales.size != right.scales.size or not np.isfinite(x).all():
        return None
    if (parts.scales.reshape(right.scales.shape) != right.scales).any():
        return None
    points = parts.zero_points
    if points is not None:
        if points.size != right.scales.size:
            return None
        points = points.reshape(right.scales.shape)
    return AffineCase(x, _integers(parts.elements).reshape(x.shape), points, right.scales)


def _integers(words: Words) -> Array:
    return np.asarray(words.view(np.float64))


def _faults(
    cases: list[AffineCase], fmt: IntegerFormat, scaling: Scaling, rounding: str
) -> Iterator[tuple[tuple[str, ...], str, dict[str, object]]]:
    """Yield clauses, the rule of zero points, and changes of elements."""
    changes = changes_of(_model(cases[0], fmt, scaling, rounding, np.ones_like(cases[0].scales)))
    kept = {words: change for words, change in changes.items() if "zero_point" not in change}
    for words, change in kept.items():
        yield (in_elements(words),), "nearest_even", change
    for rule in ZERO_POINT_RULES:
        how = (
            f"takes ties of zero points {TIES[rule]}"
            if rule in TIES
            else f"{rule_words(rule, rounding)}, in zero points"
        )
        yield (how,), rule, {}
        for words, change in kept.items():
            yield (in_elements(words), how), rule, change


def _model(case: AffineCase, fmt: IntegerFormat, scaling: Scaling, rounding: str, points: Array) -> GivenScale:
    """Return the model of the elements, with a scale and a zero point for each."""
    scales, offsets = (case.spread(part, scaling) for part in (case.scales, points.astype(np.float64)))
    quotient = "float32" if scaling.division == "divide" else "reciprocal"
    return GivenScale(
        fmt, scales, offsets, rounding, {}, quotient=quotient, lowest=fmt.lowest, highest=fmt.highest
    )  # fmt: skip


def _gives(
    case: AffineCase, fmt: IntegerFormat, scaling: Scaling, rounding: str, for_points: str, changes: dict[str, object]
) -> bool:
    points = _zero_points(case, fmt, scaling, for_points)
    if case.zero_points is not None and (points != case.zero_points).any():
        return False
    model = _model(case, fmt, scaling, rounding, points)._replace(**changes)  # type: ignore[arg-type]
    return bool((model.codes(case.x) == case.codes).all())


def _zero_points(case: AffineCase, fmt: IntegerFormat, scaling: Scaling, rule: str) -> Array:
    """Return zero points, lowest - low / scale, rounded by a rule."""
    height, width = tile_sizes(case.x.shape, scaling.block)
    rows, columns = (np.arange(0, size, step) for size, step in zip(case.x.shape, (height, width), strict=True))
    lows = np.minimum(np.minimum.reduceat(np.minimum.reduceat(case.x, rows, 0), columns, 1), np.float32(0))
    with np.errstate(all="ignore"):
        divides = scaling.division == "divide"
        quotients = lows / case.scales if divides else lows * (np.float32(1) / case.scales)
    values = np.float32(fmt.lowest) - quotients.astype(np.float32)
    magnitudes = np.abs(values.astype(np.float64))
    whole = np.floor(magnitudes)
    away = RULES[rule](whole % 2 == 1, magnitudes - whole, values < 0)
    return np.asarray(np.clip(np.copysign(whole + away, values), fmt.lowest, fmt.highest))
