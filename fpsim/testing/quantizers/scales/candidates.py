"""Search for the scaling recipe that reproduces a quantizer's results: tiles, scale format and rule, then details."""

from __future__ import annotations

import functools
import itertools
from contextlib import suppress
from typing import Any, NamedTuple

from fpsim.formats.element import Element
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, E2M1, E4M3, E8M0, FP32
from fpsim.scaling.recipes import ANY_ELEMENT, NVFP4_46, ROWS
from fpsim.scaling.scaling import Scaling, scaling_fields
from fpsim.testing.quantizers.scales.differences import CountedDifference, RecipeDifferences, Results

FINALISTS = 32  # recipes that are compared for every matrix
CARRIED = 6  # best recipes that are kept; recipes that differ from them in one field are tried next
BLOCKS = (
    (-1, -1), (1, -1), (-1, 1), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (16, 1), (32, 1), (64, 1), (128, 1),
    (16, 16), (32, 32), (64, 64), (128, 128),
)  # fmt: skip
SCALE_FORMATS = (FP32, E8M0, BF16, E4M3)
RULES: tuple[dict[str, Any], ...] = (
    {}, {"quotient": "amax*(1/max)"}, {"quotient": "1/(max/amax)"}, {"scale_rule": "floor"}, {"scale_rule": "ceil"},
    {"scale_rule": "even"}, {"scale_rule": "rceil"}, {"scale_rule": "rceil", "quotient": "amax*(1/max)"},
    {"scale_rule": "nearest"}, {"scale_rounding": "down"}, {"scale_rounding": "up"},
)  # fmt: skip
CHOICES: dict[str, tuple[Any, ...]] = {
    "division": ("divide", "multiply"), "amax_floor": (0.0, 1e-12, 1e-10, 1e-8, 1e-4), "nan": ("tile", "element"),
    "infinity": ("skip", "propagate", "one"), "zero_scale": ("one", "smallest"),
    "overflow": ("saturate_finite", "saturate", "nonfinite"),
    "tensor_scale": (False, True), "smallest_scale": (None, 2.0**-6),
    "scale_rounding": ("nearest_even", "nearest_away", "down", "up"),
}  # fmt: skip


class FoundScaling(NamedTuple):
    """Result of a search for the scaling recipe of a quantizer.

    Attributes:
      scaling: the recipe with the fewest differences, a named one if possible.
      fitting: all recipes with as few differences.
      differ, of: number of codes and scales that differ from the recipe's, and number of all.
      layout: name of the layout of the returned scales, such as "tiles".
      excluded: number of recipes tried that have more differences.
    """

    scaling: Scaling
    fitting: tuple[Scaling, ...]
    differ: int
    of: int
    layout: str
    excluded: int


def found_scaling(results: Results, differences: RecipeDifferences, affine: bool) -> FoundScaling:
    """Return the recipe with which the fewest returned codes and scales differ.

    results: pairs of a matrix and what the quantizer returned for it. differences: cache of the differences between
    recipes and these results. affine: whether the results have zero points.
    """
    seen: dict[Scaling, CountedDifference] = {}
    first = results[1:2] or results  # a matrix at which most recipes differ
    candidates = _candidates_for(differences.fmt, affine)
    roughly = {scaling: differences.of(first, scaling).wrong for scaling in candidates}

    telling = results[::-1]  # the last matrices, with NaN, Inf and ties, exclude more recipes
    least: list[int] = []  # the CARRIED smallest counts of differences so far

    def score(scaling: Scaling) -> None:
        if scaling not in seen:
            seen[scaling] = differences.of(telling, scaling, least[-1] if len(least) == CARRIED else None)
            least[:] = sorted([*least, seen[scaling].wrong])[:CARRIED]

    for scaling in sorted(roughly, key=lambda scaling: roughly[scaling])[:FINALISTS]:
        score(scaling)
    best = sorted(seen, key=lambda scaling: seen[scaling].wrong)[:CARRIED]
    for _ in range(len(CHOICES)):  # change one field at a time, from the best so far
        for changed in [changed for scaling in best[:3] for changed in _choices(scaling)]:
            score(changed)
        ranked = sorted(seen, key=lambda scaling: (seen[scaling].wrong, len(scaling_fields(scaling))))
        if ranked[:3] == best[:3]:
            break
        best = ranked[:CARRIED]
    differ = seen[best[0]].wrong
    fitting = tuple(scaling for scaling in seen if seen[scaling].wrong == differ)
    named = names_of(fitting)
    chosen = ROWS[named[0]] if named else min(fitting, key=lambda scaling: len(scaling_fields(scaling)))
    _, of, layout = seen[chosen]
    return FoundScaling(chosen, fitting, differ, of, layout, len(roughly.keys() | seen.keys()) - len(fitting))


def names_of(scalings: tuple[Scaling, ...]) -> tuple[str, ...]:
    """Return the names in `fp.scalings` of those of the given recipes that are named."""
    return tuple(name for name, row in ROWS.items() if row in scalings)


@functools.cache
def _candidates() -> tuple[Scaling, ...]:
    """Return the named recipes, and all valid combinations of blocks, scale formats and rules."""
    combinations = itertools.product(BLOCKS, SCALE_FORMATS, RULES)
    scalings = [_scaling(block=block, scale_format=fmt, **rule) for block, fmt, rule in combinations]
    return (*ANY_ELEMENT.values(), *(scaling for scaling in scalings if scaling is not None))


@functools.cache
def _candidates_for(fmt: Element, affine: bool) -> tuple[Scaling, ...]:
    """Return the recipes that an element format can have; if `affine`, those with zero points are first."""
    plain = _candidates() if not isinstance(fmt, IntegerFormat) or fmt.signed else ()
    if fmt == E2M1:
        plain = (*plain, NVFP4_46)
    if not affine:
        return plain
    combinations = itertools.product(BLOCKS, SCALE_FORMATS)
    with_zero_points = [_scaling(block=block, scale_format=fmt, symmetric=False) for block, fmt in combinations]
    return (*(scaling for scaling in with_zero_points if scaling is not None), *plain)


def _scaling(**fields: Any) -> Scaling | None:
    """Return the scaling with the given fields, or None if they cannot be combined."""
    try:
        return Scaling(**fields)
    except ValueError:
        return None


@functools.lru_cache(maxsize=1024)
def _choices(scaling: Scaling) -> tuple[Scaling, ...]:
    """Return the scalings that differ from `scaling` in one field that CHOICES lists, such as overflow."""
    choices = []
    for name, values in CHOICES.items():
        for value in values:
            with suppress(ValueError):  # no such combination
                choices.append(scaling.replace(**{name: value}))
    return tuple(choices)
