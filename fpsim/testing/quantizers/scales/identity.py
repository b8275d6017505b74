"""Identification of the recipe of quantizers with scales: tiles, scale rule, and layout of scales."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.display.wording import listed
from fpsim.errors import shown
from fpsim.formats.cast_options import ElementKeywords
from fpsim.formats.element import Element, ElementLike, coded_element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.rounding import Rounding
from fpsim.scaling.recipes import ANY_ELEMENT, ROWS
from fpsim.scaling.scaling import Scaling, scaling_fields
from fpsim.scaling.tiling import tiling
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.quantizers.report import explained
from fpsim.testing.quantizers.scales.candidates import CHOICES, candidates_for, choices_of
from fpsim.testing.quantizers.scales.differences import CountedDifference, RecipeDifferences, Results
from fpsim.testing.quantizers.scales.encoding import Case, KeptEncodings, RightEncoding
from fpsim.testing.quantizers.scales.explaining import explaining_faults
from fpsim.testing.quantizers.scales.results import called, in_tiles, values_of
from fpsim.testing.quantizers.scales.zero_point_faults import zero_point_causes

FINALISTS = 32  # recipes that are compared for every matrix
CARRIED = 6  # best recipes that are kept; recipes that differ from them in one field are tried next
AFFINE_TENSOR = Scaling(block=(-1, -1), symmetric=False)
OPERATORS = {(AFFINE_TENSOR, "UINT8"): "ONNX's DynamicQuantizeLinear"}  # (recipe, element format) of operators


@dataclass(frozen=True)
class ScalingIdentity:
    """The scaling recipe that a quantizer follows, as far as its results for some arrays show it.

    Attributes:
      scaling: the `fp.Scaling` that reproduces all codes and scales, or that with the fewest differences.
      names: names in `fp.scalings` of the recipes that reproduce as many codes and scales as `scaling`.
      exact: whether the scaling reproduces all codes and scales.
      differ, of: number of codes and scales that the scaling does not reproduce, and number of all.
      layout: layout of the returned scales: "tiles" (one per tile, in the shape of the grid of tiles) or "transposed",
        followed by " reciprocal" if they are 1 / scale; "another shape" if they are neither; "values" if the function
        returned values alone.
      element: name of the element format.
      faults: what the quantizer does instead of the recipe, as clauses ("drops the sign"); empty if they do not explain
        all.
      rivals: other scalings with the same results for these arrays.
      excluded: number of scalings that were tried and differ.
    """

    scaling: Scaling
    names: tuple[str, ...]
    exact: bool
    differ: int
    of: int
    layout: str
    rivals: tuple[Scaling, ...] = field(repr=False)
    excluded: int = 0
    faults: tuple[str, ...] = ()
    element: str = ""

    @property
    def operator(self) -> str:
        """Name of the operator that has this recipe, such as ONNX's DynamicQuantizeLinear; "" if none is known."""
        return OPERATORS.get((self.scaling, self.element), "")

    @property
    def block(self) -> tuple[int, ...]:
        """Shape of a tile; -1 means the whole axis."""
        return self.scaling.block

    @property
    def scale_rule(self) -> str:
        """Rule by which the scale of a tile is computed, such as "amax"."""
        return self.scaling.scale_rule

    def __str__(self) -> str:
        name = f"fp.scalings.{self.names[0]}" if self.names else repr(self.scaling)
        name = f"{self.operator}, {name}" if self.operator else name
        if not self.exact and self.faults:
            return f"{name}, scales as {self.layout}, but it {'; it '.join(self.faults)}."
        if not self.exact:
            tried = f"None of {self.excluded:,} recipes gives all codes and scales"
            return f"{tried}. The nearest, {name}, differs in {self.differ:,} of {self.of:,}."
        more = f" {len(self.rivals):,} more give the same for this array (.rivals)." if self.rivals else ""
        return f"{name}, scales as {self.layout}; {self.excluded:,} other recipes differ.{more}"


def identify_scaling(
    fn: Callable[..., Any], fmt: ElementLike, x: npt.ArrayLike, **cast: Unpack[ElementKeywords]
) -> ScalingIdentity:
    """Identify the scaling recipe of a quantizer: tiles, their axis, the rule of scales, and the scales' layout.

    Args:
      fn: a function of a matrix that returns an `fp.Scaled`, (codes, scales), or values.
      fmt: the element format.
      x: a float32 matrix that tells recipes apart: several tiles of different magnitude along both axes. An Inf, a NaN
        and a tile of zeros in x show how the quantizer treats them.
      cast: rounding and subnormals of the elements, as in `fpsim.encode`.

    Returns:
      A record with `.scaling`, `.names`, `.exact`, `.faults`, `.block`, `.layout` and `.rivals`.

    Raises:
      ValueError: the format is unknown, x is not a matrix, or fn raises or returns no result.
      TypeError: a keyword is unknown.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
      >>> recipe = fp.testing.identify_scaling(lambda x: fp.encode_scaled(x, "e4m3", fp.scalings.MX_CEIL), "e4m3", x)
      >>> recipe.names[0], recipe.block, recipe.scale_rule, recipe.layout
      ('MX_CEIL', (1, 32), 'ceil', 'tiles')
    """
    element = coded_element(fmt)
    array = np.asarray(x)
    if array.ndim != 2 or not array.size or array.dtype not in (np.float32, np.float64):
        raise ValueError(f"x must be a float32 matrix with elements; got {shown(x)}.")
    try:
        return identity_on(fn, element, [array], {**cast})
    except FunctionMisbehaved as refusal:
        raise ValueError(refusal.sentence) from refusal


def identity_on(fn: Callable[..., Any], element: Element, arrays: list[Array], cast: dict[str, Any]) -> ScalingIdentity:
    """Return the recipe that reproduces what a quantizer returns for some matrices, or the nearest one and its faults.

    Args:
      fn: the quantizer.
      element: the element format.
      arrays: the matrices.
      cast: keywords of the elements' cast.

    Raises:
      FunctionMisbehaved: the function raises or returns no result.
    """
    results = [(array, called(fn, array.copy(), element)) for array in arrays]
    affine = results[0][1].zero_points is not None or (isinstance(element, IntegerFormat) and not element.signed)
    nearest = identified(results, RecipeDifferences(element, cast), affine)
    kept = KeptEncodings(x for x, _ in results)
    if nearest.exact or unrounded(results):
        return nearest
    fitting = [
        row for row in (AFFINE_TENSOR, *ANY_ELEMENT.values())
        if all(parts.scales is None or in_tiles(parts.scales, tiling(x.shape, row.block).grid) is not None
               for x, parts in results)
    ]  # fmt: skip
    plainer = [nearest.scaling]
    with suppress(ValueError):  # no such combination
        plainer.insert(0, nearest.scaling.replace(tensor_scale=False, smallest_scale=None))
    for scaling in dict.fromkeys([*plainer, *fitting] if 2 * nearest.differ < nearest.of else [*fitting, *plainer]):
        if affine and scaling.symmetric:
            continue
        fields = fault_fields(results, element, [scaling], cast, kept)
        if fields:
            layout = "values" if results[0][1].scales is None else "tiles"
            return replace(nearest, scaling=scaling, names=names_of((scaling,)), faults=fields["causes"], layout=layout)
    for scaling in dict.fromkeys((nearest.scaling, AFFINE_TENSOR)) if affine else ():
        faults = zero_point_causes(results, element, scaling) if isinstance(element, IntegerFormat) else ()
        if faults:
            return replace(nearest, scaling=scaling, names=(), faults=faults)
    return nearest


def telling_matrices(fmt: IntegerFormat) -> list[Array]:
    """Return float32 matrices that tell recipes of an integer format apart: tiles of different magnitude, and ties."""
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((64, 256)) * np.exp2(rng.integers(-6, 6, (64, 256 // 32))).repeat(32, 1)
    steps = fmt.highest - fmt.lowest
    matrices = [spread]
    for offset in (0.5, -0.5, 0.25, -0.25):  # distances of zero points from an integer; the scale is a power of two
        low = -(steps // 2) + offset
        ties = rng.integers(0, 2 * steps + 1, (16, 64)) / 2 + low + (offset % 0.5)
        ties[0, :2] = low, low + steps
        matrices.append(np.clip(ties, low, low + steps) / 8)
    largest = fmt.highest if fmt.signed else steps
    halves = rng.integers(-2 * largest, 2 * largest + 1, (16, 64)) / 2
    halves[0, 0] = largest
    matrices.append(halves / 4)
    return [np.asarray(matrix, np.float32) for matrix in matrices]


def identified(
    results: Results, differences: RecipeDifferences, affine: bool, promised: Scaling | None = None
) -> ScalingIdentity:  # fmt: skip
    """Return the recipe whose codes and scales differ from the returned ones in the fewest places.

    results: pairs of a matrix and what the quantizer returned for it. differences: cache of the differences between
    recipes and these results. affine: whether the results have zero points. promised: a recipe that is tried too.
    """
    seen: dict[Scaling, CountedDifference] = {}
    first = results[1:2] or results  # a matrix at which most recipes differ
    candidates = candidates_for(differences.fmt, affine)
    roughly = {scaling: differences.of(first, scaling).wrong for scaling in candidates}

    telling = results[::-1]  # the last matrices, with NaN, Inf and ties, exclude more recipes
    least: list[int] = []  # the CARRIED smallest counts of differences so far

    def score(scaling: Scaling) -> None:
        if scaling not in seen:
            seen[scaling] = differences.of(telling, scaling, least[-1] if len(least) == CARRIED else None)
            least[:] = sorted([*least, seen[scaling].wrong])[:CARRIED]

    for scaling in [*filter(None, [promised]), *sorted(roughly, key=lambda scaling: roughly[scaling])[:FINALISTS]]:
        score(scaling)
    best = sorted(seen, key=lambda scaling: seen[scaling].wrong)[:CARRIED]
    for _ in range(len(CHOICES)):  # change one field at a time, from the best so far
        for changed in [changed for scaling in best[:3] for changed in choices_of(scaling)]:
            score(changed)
        ranked = sorted(seen, key=lambda scaling: (seen[scaling].wrong, len(scaling_fields(scaling))))
        if ranked[:3] == best[:3]:
            break
        best = ranked[:CARRIED]
    least_wrong = seen[best[0]].wrong
    fitting = tuple(scaling for scaling in seen if seen[scaling].wrong == least_wrong)
    names = names_of(fitting)
    nearest = ROWS[names[0]] if names else min(fitting, key=lambda scaling: len(scaling_fields(scaling)))
    differ, of, layout = seen[nearest]
    rivals = () if differ else tuple(scaling for scaling in fitting if scaling != nearest)
    excluded = len(roughly.keys() | seen.keys()) - len(fitting)
    return ScalingIdentity(
        nearest, names, differ == 0, differ, of, layout, rivals, excluded, element=differences.fmt.name
    )  # fmt: skip


def names_of(scalings: tuple[Scaling, ...]) -> tuple[str, ...]:
    """Return the names in `fp.scalings` of the given recipes, except for those without a name."""
    return tuple(name for name, row in ROWS.items() if row in scalings)


def unrounded(results: Results) -> bool:
    """Return whether every result equals its input."""
    return all(parts.scales is None and (parts.elements == values_of(x, x)).all() for x, parts in results)


def fault_fields(
    results: Results, fmt: Element, scalings: list[Scaling], cast: dict[str, Any], kept: KeptEncodings
) -> dict[str, Any]:
    """Return the `QuantizerReport` fields on a fault that, added to one of `scalings`, explains all results; else {}.

    Args:
      results: pairs of a matrix and the quantizer's result for it.
      fmt: the element format.
      scalings: the promised scaling, then others to try.
      cast: keywords of the cast of elements.
      kept: cache of encodings for the same matrices, results, format and cast.
    """
    cases: list[Case] = []
    for number, (x, parts) in enumerate(results):
        scales = parts.scales
        if scales is not None:
            scales = in_tiles(scales, tiling(x.shape, scalings[0].block).grid)
            if scales is None:
                return {}
        cases.append(Case(x, parts.elements, scales, results[number - 1][0] if number else None))
    for scaling in dict.fromkeys(scalings):
        if cases[0].scales is not None and tiling(cases[0].x.shape, scaling.block).grid != cases[0].scales.shape:
            continue
        faults = explaining_faults(cases, RightEncoding(fmt, scaling, cast, kept))
        if faults:
            (words, treated), *others = faults
            fields = explained(words, *difference(treated, scalings[0]))
            rivals = tuple(other for other, _ in others)
            more = f" As well explained by: {listed([f'it {words}' for words in rivals], 2, '; ')}." if rivals else ""
            return {**fields, "diagnosis": f"{fields['diagnosis']}.{more}", "rivals": rivals}
    return {}


SAID = {
    ("division", "multiply"): ": it multiplies by the rounded reciprocal of the scale",
    ("quotient", "amax*(1/max)"): ": it multiplies amax by the rounded reciprocal of max",
    ("quotient", "1/(max/amax)"): ": its scale is the rounded reciprocal of max/amax",
}  # (field, value) of a scaling -> addition to the clause on it


def difference(scaling: Scaling, promised: Scaling) -> list[str]:
    """Return a clause for each field in which a scaling differs from the promised one, such as "has symmetric=..."."""
    fields = (
        "block", "scale_format", "symmetric", "scale_rule", "scale_rounding", *CHOICES, "quotient", "tensor_scale",
        "tensor_top", "adaptive",
    )  # fmt: skip
    return [
        f"has {name}={_short(getattr(scaling, name))}, not {_short(getattr(promised, name))}"
        f"{SAID.get((name, getattr(scaling, name)), '')}"
        for name in dict.fromkeys(fields)
        if getattr(scaling, name) != getattr(promised, name)
    ]


def _short(value: Any) -> str:
    """Return the value of a scaling's field as text for reports: formats and roundings by name."""
    return value.name if isinstance(value, (Format, Rounding)) else repr(value)
