"""Search for a fault of scales, of elements or of tiles of zeros that explains all results of a quantizer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.runtime.general_loops import general_loops
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.quantizers.rounder import words_of
from fpsim.testing.quantizers.scales.element_faults import faults_of_elements
from fpsim.testing.quantizers.scales.encoding import (
    Case,
    Fault,
    FaultFunction,
    FaultOutcome,
    RightEncoding,
    spread_over,
    with_right_scales,
)
from fpsim.testing.quantizers.scales.scale_faults import faults_of_scales
from fpsim.testing.quantizers.scales.tiles import reduced_tiles


def explaining_faults(cases: list[Case], recipe: RightEncoding) -> list[tuple[str, Scaling]]:
    """Return the faults that reproduce all results, as (clause such as "drops the sign, in its elements", scaling).

    The scaling is `recipe.scaling` with the fields `infinity` and `nan` changed if the results show it. Pairs with an
    unchanged scaling come first. cases: matrices with a quantizer's results. recipe: the encoding that it promises.
    """
    plain = [case for case in (*cases[1:], *cases[:1]) if not case.special]
    right = with_right_scales(lambda recipe, case, scales: recipe.values(case.x, scales))
    plain.sort(key=lambda case: _gives(right, recipe, case))  # cases with wrong results exclude most faults
    special = [case for case in cases if case.special]
    treatments = []
    for infinity, nan in itertools.product(("skip", "propagate", "one"), ("tile", "element")):
        with suppress(ValueError):  # no such combination
            treatments.append(recipe._replace(scaling=recipe.scaling.replace(infinity=infinity, nan=nan)))
    treatments.sort(key=lambda treated: treated.scaling != recipe.scaling)
    outcomes = {} if recipe.kept is None else recipe.kept.outcomes

    def gives(name: tuple[str, int], fault: FaultFunction, treated: RightEncoding, case: Case) -> bool:
        key = name, treated.scaling, id(case.x), id(case.before)
        if key not in outcomes:
            outcomes[key] = _gives(fault, treated, case)
        return outcomes[key]

    matches: dict[str, Scaling] = {}
    numbers: Counter[str] = Counter()  # clause -> number of faults with this clause so far
    for words, fault in _faults(recipe, cases):
        numbers[words] += 1
        name = words, numbers[words]  # key of the cache
        if all(gives(name, fault, recipe, case) for case in plain):
            for treated in treatments:
                if words not in matches and all(gives(name, fault, treated, case) for case in special):
                    matches[words] = treated.scaling
    return sorted(matches.items(), key=lambda pair: pair[1] != recipe.scaling)


def _gives(fault: FaultFunction, recipe: RightEncoding, case: Case) -> bool:
    """Return whether a fault reproduces the result of a case; NaN scales are equal to each other.

    fault: function from (recipe, case) to the faulty result. recipe: the encoding that the quantizer promises.
    """
    try:
        with np.errstate(all="ignore"), general_loops():
            got = fault(recipe, case)
            if case.scales is not None:
                same = (got.scales == case.scales) | (np.isnan(got.scales) & np.isnan(case.scales))
                if not same.all():
                    return False
            if got.some is not None:
                places, some = got.some()
                if not _same_elements(some, got.scales, places, recipe, case):
                    return False
            return _same_elements(np.ascontiguousarray(got.elements()).ravel(), got.scales, slice(None), recipe, case)
    except (ValueError, TypeError):
        return False  # encode_scaled rejects such scales


def _same_elements(elements: Array, scales: Array, places: Any, recipe: RightEncoding, case: Case) -> bool:
    """Return whether elements, float64 values, equal those of a case's result.

    places: the indices of the elements in the flattened matrix, or a slice. If the case has no returned scales, the
    elements are multiplied by `scales` (one per tile) in float32 first. recipe: the promised encoding, for its tiles.
    """
    if case.scales is None:
        spread = spread_over(scales, case.x, recipe).ravel()[places].astype(np.float64)
        elements = (elements * spread).astype(np.float32).astype(np.float64)
    return bool((words_of(elements) == case.elements[places]).all())


def _faults(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
    """Yield every known fault of quantizers with scales, as (clause such as "drops the sign", fault function).

    recipe: the encoding that the quantizer promises. cases: matrices with results; they suggest a factor of scales and
    a limit of elements to try.
    """
    yield from faults_of_scales(recipe, cases)
    yield from faults_of_elements(recipe, cases)
    for element, scale in ((np.nan, None), (np.nan, np.nan), (None, np.nan), (None, 0.0), (np.nan, 0.0), (None, 1.0)):
        parts = [f"elements {shown(element)}"] if element is not None else []
        parts += [f"the scale {shown(scale)}"] if scale is not None else []
        yield f"gives tiles of zeros {' and '.join(parts)}", _zeros(element, scale)
    if cases[0].scales is None and recipe.scaling.block[:-1] == (1,):
        yield "cuts tiles from the flattened array, across the ends of rows", _flattened


def _flattened(recipe: RightEncoding, case: Case) -> FaultOutcome:
    """Return the result of a quantizer whose tiles continue from the end of a row at the start of the next row.

    The elements are values, already multiplied by their scales, so all scales of the result are 1. recipe: the promised
    encoding. case: the matrix.
    """
    row = case.x.reshape(1, -1)
    values = encode_scaled(row, recipe.fmt, recipe.scaling, **recipe.cast).decode().reshape(case.x.shape)
    ones = np.ones_like(recipe.scales(case.x))
    return FaultOutcome(lambda: values.astype(np.float64), ones)


def _zeros(element: float | None, scale: float | None) -> FaultFunction:
    """Return the fault function for giving tiles of zeros wrong elements or a wrong scale.

    It maps (promised encoding, case) to the faulty result for the case's matrix. element, scale: the value of every
    element, and the scale, of such a tile; None for the right ones.
    """

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        right = recipe.scales(case.x)
        amax = reduced_tiles(np.maximum, np.abs(case.x), recipe.scaling.block)
        scales = np.where(amax == 0, right if scale is None else np.float32(scale), right).astype(np.float32)

        def elements() -> Array:
            values = recipe.values(case.x, right)
            return values if element is None else np.where(spread_over(amax, case.x, recipe) == 0, element, values)

        return FaultOutcome(elements, scales)

    return fault
