"""Faults of quantizers whose scales are right but not their codes or zero points: rounding, wrapping, offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.integer_format import IntegerFormat
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.quantizers.given_scales.causes import changes_of
from fpsim.testing.quantizers.given_scales.promise import GivenScale
from fpsim.testing.quantizers.rounder import RULES, TIES, in_elements, round_to_integers, rule_words
from fpsim.testing.quantizers.scales.results import ReturnedParts
from fpsim.testing.quantizers.scales.tiles import reduced_tiles, spread_tiles

ZERO_POINT_RULES = ("nearest_away", "nearest_up", "nearest_zero", "toward_zero", "up", "half_added")


class AffineCase(NamedTuple):
    """A matrix with a quantizer's result, whose scales are right.

    Attributes:
      x: the matrix.
      codes: the returned codes, float64, in the matrix's shape.
      zero_points: the returned zero point of each tile; None if none were returned.
      scales: the right scale of each tile.
    """

    x: Array
    codes: Array
    zero_points: Array | None
    scales: Array


def zero_point_causes(
    cases: list[tuple[Array, ReturnedParts]], fmt: IntegerFormat, scaling: Scaling, rounding: str = "nearest_even"
) -> tuple[str, ...]:
    """Return the faults that reproduce all codes and zero points, as clauses ("drops the sign"); () if none do.

    Args:
      cases: matrices and the result for each; () is returned unless all are finite and have right scales.
      fmt, scaling: the promised element format and scaling.
      rounding: name of the promised rounding of elements.
    """
    affine = [_case(x, parts, fmt, scaling) for x, parts in cases]
    comparable = [case for case in affine if case is not None]
    if not comparable or len(comparable) < len(affine) or rounding not in RULES:
        return ()
    for clauses, for_points, changes in _faults(comparable, fmt, scaling, rounding):
        if all(_gives(case, fmt, scaling, rounding, for_points, changes) for case in comparable):
            return clauses
    return ()


def _case(x: Array, parts: ReturnedParts, fmt: IntegerFormat, scaling: Scaling) -> AffineCase | None:
    """Return a matrix with its result as an AffineCase; None if x is not finite or the returned scales are wrong.

    parts: the result for the matrix x. fmt, scaling: the promised element format and scaling.
    """
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
    return AffineCase(x, parts.elements.view(np.float64).reshape(x.shape), points, right.scales)


def _faults(
    cases: list[AffineCase], fmt: IntegerFormat, scaling: Scaling, rounding: str
) -> Iterator[tuple[tuple[str, ...], str, dict[str, object]]]:
    """Yield known faults, as (clauses ("drops the sign"), rounding rule of zero points, changes).

    `changes` is a dict {field of the `GivenScale` that models the elements: its wrong value}; {} if only zero points
    are wrong. cases: matrices with the quantizer's results. fmt, scaling, rounding: the promised element format,
    scaling and rounding of elements.
    """
    changes = changes_of(_model(cases[0], fmt, scaling, rounding, np.ones_like(cases[0].scales)))
    kept = {words: change for words, change in changes.items() if "zero_point" not in change}
    for words, change in kept.items():
        yield (in_elements(words),), "nearest_even", change
    for rule in ZERO_POINT_RULES:
        how = f"{rule_words(rule, rounding)}, in zero points"
        if rule in TIES:
            how = f"takes ties of zero points {TIES[rule]}"
        yield (how,), rule, {}
        for words, change in kept.items():
            yield (in_elements(words), how), rule, change


def _model(case: AffineCase, fmt: IntegerFormat, scaling: Scaling, rounding: str, points: Array) -> GivenScale:
    """Return the model of a correct quantizer for a case, with a scale and a zero point for each element.

    fmt, scaling, rounding: the promised element format, scaling and rounding. points: zero points of the tiles.
    """
    tiles = (case.scales, points.astype(np.float64))
    scales, offsets = (spread_tiles(of_tiles, case.x.shape, scaling.block) for of_tiles in tiles)
    quotient = "float32" if scaling.division == "divide" else "reciprocal"
    return GivenScale(fmt, scales, offsets, rounding, {}, quotient=quotient, lowest=fmt.lowest, highest=fmt.highest)


def _gives(
    case: AffineCase, fmt: IntegerFormat, scaling: Scaling, rounding: str, for_points: str, changes: dict[str, object]
) -> bool:
    """Return whether a faulty quantizer has the codes and zero points of a case.

    fmt, scaling, rounding: the promised element format, scaling and rounding of elements. for_points: rule by which
    zero points are rounded. changes: fields of the model of a correct quantizer -> other values.
    """
    points = _zero_points(case, fmt, scaling, for_points)
    if case.zero_points is not None and (points != case.zero_points).any():
        return False
    model = _model(case, fmt, scaling, rounding, points)._replace(**changes)  # type: ignore[arg-type]
    return bool((model.codes(case.x) == case.codes).all())


def _zero_points(case: AffineCase, fmt: IntegerFormat, scaling: Scaling, rule: str) -> Array:
    """Return the zero points of a case's tiles: (lowest code) - (lowest value) / scale, rounded by a rule, saturated.

    The lowest value of a tile without negative values is 0. fmt, scaling: the promised element format and scaling.
    rule: a name in `rounder.RULES`, such as "nearest_even".
    """
    lows = np.minimum(reduced_tiles(np.minimum, case.x, scaling.block), np.float32(0))
    with np.errstate(all="ignore"):
        divides = scaling.division == "divide"
        quotients = lows / case.scales if divides else lows * (np.float32(1) / case.scales)
    values = np.float32(fmt.lowest) - quotients.astype(np.float32)
    return np.asarray(np.clip(round_to_integers(values.astype(np.float64), rule), fmt.lowest, fmt.highest))
