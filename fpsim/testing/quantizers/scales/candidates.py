"""Finds the recipe of scales that gives the results of a quantizer: tiles, format and rule of scales, then details."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, E2M1, E4M3, E8M0, FP32
from fpsim.scaling.recipes import ANY_ELEMENT, NVFP4_46, ROWS
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling, scaling_fields
from fpsim.testing.quantizers.rounder import Words, words_of
from fpsim.testing.quantizers.scales.results import ReturnedParts, layouts_of, same_scales

Results = list[tuple[Array, ReturnedParts]]  # matrices with what a quantizer returned for each

FINALISTS = 32  # recipes that are held against every matrix
CARRIED = 6  # the best of them, of which others are tried that differ in one choice
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
    """The result of a search: the scaling that differs least, all that differ as little, and counts of differences."""

    scaling: Scaling
    fitting: tuple[Scaling, ...]
    differ: int
    of: int
    layout: str
    excluded: int


def found_scaling(results: Results, fmt: Element, cast: dict[str, Any], affine: bool) -> FoundScaling:
    """Return the scaling that gives most of some results; affine: whether zero points are promised."""
    seen: dict[Scaling, tuple[int, int, str]] = {}
    first = results[1:2] or results  # tells most recipes apart
    roughly = {scaling: differing(first, fmt, scaling, cast)[0] for scaling in _candidates_for(fmt, affine)}

    telling = results[::-1]  # NaN, Inf and ties, which come last, tell more recipes from the best than the first ones
    least: list[int] = []  # the fewest differences so far, as many as recipes are carried on

    def score(scaling: Scaling) -> None:
        if scaling not in seen:
            seen[scaling] = differing(telling, fmt, scaling, cast, least[-1] if len(least) == CARRIED else None)
            least[:] = sorted([*least, seen[scaling][0]])[:CARRIED]

    for scaling in sorted(roughly, key=lambda scaling: roughly[scaling])[:FINALISTS]:
        score(scaling)
    best = sorted(seen, key=lambda scaling: seen[scaling][0])[:CARRIED]
    for _ in range(len(CHOICES)):  # one choice after the other, from the best so far
        for changed in [changed for scaling in best[:3] for changed in _choices(scaling)]:
            score(changed)
        ranked = sorted(seen, key=lambda scaling: (seen[scaling][0], len(scaling_fields(scaling))))
        if ranked[:3] == best[:3]:
            break
        best = ranked[:CARRIED]
    differ = seen[best[0]][0]
    fitting = tuple(scaling for scaling in seen if seen[scaling][0] == differ)
    named = names_of(fitting)
    chosen = ROWS[named[0]] if named else min(fitting, key=lambda scaling: len(scaling_fields(scaling)))
    _, of, layout = seen[chosen]
    return FoundScaling(chosen, fitting, differ, of, layout, len(roughly.keys() | seen.keys()) - len(fitting))


def names_of(scalings: tuple[Scaling, ...]) -> tuple[str, ...]:
    """Return the names that some scalings have in `fp.scalings`."""
    return tuple(name for name, row in ROWS.items() if row in scalings)


@functools.cache
def _candidates() -> tuple[Scaling, ...]:
    """Return the named recipes, and all combinations of blocks, scale formats and rules that exist."""
    combinations = itertools.product(BLOCKS, SCALE_FORMATS, RULES)
    scalings = [_scaling(block=block, scale_format=fmt, **rule) for block, fmt, rule in combinations]
    return (*ANY_ELEMENT.values(), *(scaling for scaling in scalings if scaling is not None))


@functools.cache
def _candidates_for(fmt: Element, affine: bool) -> tuple[Scaling, ...]:
    """Return the recipes that an element format can have; if `affine`, those with zero points come first."""
    plain = _candidates() if not isinstance(fmt, IntegerFormat) or fmt.signed else ()
    if fmt == E2M1:
        plain = (*plain, NVFP4_46)
    if not affine:
        return plain
    combinations = itertools.product(BLOCKS, SCALE_FORMATS)
    with_zero_points = [_scaling(block=block, scale_format=fmt, symmetric=False) for block, fmt in combinations]
    return (*(scaling for scaling in with_zero_points if scaling is not None), *plain)


def _scaling(**fields: Any) -> Scaling | None:
    """Return a scaling, or None where no scaling has these fields together."""
    try:
        return Scaling(**fields)
    except ValueError:
        return None


def _choices(scaling: Scaling) -> Iterator[Scaling]:
    """Yield the scalings that differ from one in a field of CHOICES."""
    for name, values in CHOICES.items():
        for value in values:
            try:
                yield scaling.replace(**{name: value})
            except ValueError:
                continue


def differing(
    results: Results, fmt: Element, scaling: Scaling, cast: dict[str, Any],
    enough: int | None = None,
) -> tuple[int, int, str]:  # fmt: skip
    """Return how many elements and scales a scaling does not give, of how many, and how scales are laid out.

    enough: the number of differences from which on the remaining results are not compared; None compares all.
    """
    total, of, layouts = 0, 0, set()
    for x, parts in results:
        if enough is not None and total > enough:
            break
        elements, scales = _wanted(x, fmt, scaling, cast, values=parts.scales is None)
        if parts.scales is None:
            total, of = total + int((parts.elements != elements).sum()), of + x.size
            layouts.add("values")
            continue
        of += x.size + scales.size
        wrong = int((parts.elements != elements).sum())
        best, layout = scales.size, "another shape"
        for name, read_scales in layouts_of(parts.scales, scales.shape):
            with np.errstate(all="ignore"):
                forms = ((name, scales), (f"{name} reciprocal", np.float32(1) / scales))
            for form, these in forms:
                differ = int((~same_scales(np.ascontiguousarray(read_scales), these)).sum())
                if differ < best:
                    best, layout = differ, form
        total += wrong + best
        layouts.add(layout)
    layouts -= {"tiles"} if len(layouts) > 1 else set()
    return total, of, " or ".join(sorted(layouts))


def _wanted(x: Array, fmt: Element, scaling: Scaling, cast: dict[str, Any], values: bool) -> tuple[Words, Array]:
    """Return elements and scales of an encoded matrix; values: whether decoded values take the place of elements."""
    q = encode_scaled(x, fmt, scaling, **cast)
    return values_of_scaled(q) if values else elements_of(q, fmt), q.scales


def elements_of(q: Scaled, fmt: Element) -> Words:
    """Return what each code of a scaled array stands for without its scale, as the bit pattern of a float64."""
    codes = q.codes.ravel()
    return words_of_codes(fmt)[codes] if isinstance(fmt, Format) else words_of(codes.astype(np.float64))


def values_of_scaled(q: Scaled) -> Words:
    """Return what each code of a scaled array stands for with its scale, as the bit pattern of a float64."""
    return words_of(np.asarray(q.decode().ravel().astype(np.float64)))


@functools.lru_cache(maxsize=16)
def words_of_codes(fmt: Format) -> Words:
    """Return the values of all codes of a format, as bit patterns of float64."""
    return words_of(fmt.table())
