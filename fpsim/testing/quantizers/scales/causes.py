"""Causes of wrong results of quantizers with scales: another recipe, a fault of the promised one, or moved codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.element import Element
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import E8M0
from fpsim.formats.rounding import rounding_mode
from fpsim.scaling.scaling import Scaling
from fpsim.testing.quantizers.family import UNROUNDED
from fpsim.testing.quantizers.report import explained
from fpsim.testing.quantizers.scales.candidates import CHOICES, RULES
from fpsim.testing.quantizers.scales.comparing import RightParts
from fpsim.testing.quantizers.scales.differences import RecipeDifferences, Results
from fpsim.testing.quantizers.scales.encoding import KeptEncodings
from fpsim.testing.quantizers.scales.identity import ScalingIdentity, difference, fault_fields, identified, unrounded
from fpsim.testing.quantizers.scales.results import ReturnedParts, in_tiles, same_scales
from fpsim.testing.quantizers.scales.zero_point_faults import zero_point_causes

LISTED = 8  # rivals that a report lists
LAYOUTS_IN_WORDS = {
    "tiles reciprocal": "returns encode scales, 1 / scale, instead of scales",
    "transposed": "returns its scales transposed",
    "transposed reciprocal": "returns encode scales, 1 / scale, transposed, instead of scales",
    "another shape": "returns scales in another shape than that of the grid of tiles",
}  # layout of scales -> clause without subject
FIELDS = ("block", "scale_format", "scale_rule", "scale_rounding", "quotient")  # compared with the promise, and CHOICES
UNUSUAL = ("an Inf", "a NaN")  # names of matrices that recipes treat differently
EXTREME = (
    "a tile of zeros", "very small values", "very large values", "subnormal values",
    "a largest magnitude of a few subnormals",
)  # fmt: skip


@dataclass(frozen=True)
class ScaledResults:
    """Results of a quantizer with scales, with the scaling and cast that it promises.

    Attributes:
      by_name: name of a matrix -> the matrix and its result.
      counts: name of a matrix -> number of wrong codes and scales.
      fmt: the element format.
      scaling: the promised scaling.
      cast: keywords of the promised cast of elements.
    """

    by_name: dict[str, tuple[Array, ReturnedParts]]
    counts: dict[str, int]
    fmt: Element
    scaling: Scaling
    cast: dict[str, Any]

    @property
    def all(self) -> Results:
        """All matrices with their results, as pairs."""
        return list(self.by_name.values())

    @cached_property
    def differences(self) -> RecipeDifferences:
        """Cache of the numbers of differences between recipes and these results."""
        accepted = {name: self.cast[name] for name in ("rounding", "subnormals", "seed")}  # by every scaling
        return RecipeDifferences(self.fmt, accepted)

    @cached_property
    def kept(self) -> KeptEncodings:
        """Cache of correct encodings of the matrices, shared by searches for faults."""
        return KeptEncodings(x for x, _ in self.all)

    def usual(self) -> Iterator[tuple[tuple[str, ...], Results]]:
        """Yield two pairs (names of the matrices left out, the other matrices with their results).

        First the matrices with Inf and NaN are left out, then also those with extreme values.
        """
        for names in (UNUSUAL, (*UNUSUAL, *EXTREME)):
            yield names, [result for name, result in self.by_name.items() if name not in names]

    def fault_of(self, results: Results, other: Scaling) -> dict[str, Any]:
        """Return `QuantizerReport` fields on a fault that explains `results`; {} if none does.

        The fault is added to the promised recipe, to a copy of it with another rule for power-of-two scales, or to
        `other`. results: pairs of a matrix and the quantizer's result for it.
        """
        scalings = [self.scaling, *_akin(self.scaling), other]
        return fault_fields(results, self.fmt, scalings, self.cast, self.kept)


def causes_of(results: ScaledResults) -> dict[str, Any]:
    """Return the `QuantizerReport` fields on the causes of wrong results of a quantizer with scales.

    Also return the fields `excluded` (number of recipes with other results) and `rivals` (recipes with the same
    results). results: the quantizer's results, with what it promises.
    """
    fmt, scaling = results.fmt, results.scaling
    wrong = sum(results.counts.values()) > 0
    nearest = identified(results.all, results.differences, not scaling.symmetric, scaling)
    rivals = tuple(repr(rival) for rival in nearest.rivals if rival != scaling)
    fields = {"excluded": nearest.excluded, "rivals": rivals[:LISTED], "unexplained": nearest.differ if wrong else 0}
    if not wrong:
        return fields
    if unrounded(results.all):
        return fields | explained(UNROUNDED)
    fields |= _cause(nearest, scaling)
    if not nearest.exact:
        fields |= results.fault_of(results.all, nearest.scaling) or _usual_fault(results)
    if not fields.get("causes"):
        fields |= _cause_of_codes(results)
    if not fields.get("causes") and isinstance(fmt, IntegerFormat) and not scaling.symmetric:
        fields |= _cause_of_zero_points(results, fmt)
    return fields


def _cause(nearest: ScalingIdentity, scaling: Scaling) -> dict[str, Any]:
    """Return the `QuantizerReport` fields on the recipe nearest to the results, with causes only if it reproduces all.

    nearest: that recipe. scaling: the promised scaling.
    """
    if not nearest.exact:
        return {"diagnosis": f"no recipe that was tried explains all. {nearest}"}
    causes = difference(nearest.scaling, scaling)
    if nearest.layout not in ("tiles", "values"):
        causes.append(LAYOUTS_IN_WORDS.get(nearest.layout, f"lays its scales out as {nearest.layout}"))
    if not causes:
        text = "all codes and scales are those of the promised recipe, and other parts are not"
        return {"causes": (), "diagnosis": text, "unexplained": 0}
    fields = explained(*causes)
    name = f". Its recipe is fp.scalings.{nearest.names[0]}" if nearest.names else ""
    return {**fields, "diagnosis": f"{fields['diagnosis']}{name}"}


def _usual_fault(results: ScaledResults) -> dict[str, Any]:
    """Return the `QuantizerReport` fields on a cause that explains the results for most matrices, or {}.

    Matrices with Inf and NaN are left out; if nothing explains the other results, also those with extreme values.
    """
    scaling = results.scaling
    for unusual, kept in results.usual():
        nearest = identified(kept, results.differences, not scaling.symmetric, scaling)
        if nearest.exact:
            nearest = replace(nearest, scaling=_nearest(kept, nearest.scaling, scaling, results.differences), names=())
        wrong = [name for name in unusual if results.counts.get(name)]
        left, names = sum(results.counts[name] for name in wrong), " and ".join(wrong)
        fields = _cause(nearest, scaling) if nearest.exact else results.fault_of(kept, nearest.scaling)
        if not fields:
            continue
        if not fields["causes"]:
            cause = f"treats matrices with {names} as no recipe that was tried does"
            return {
                "causes": (cause,),
                "diagnosis": f"it {cause}, in {left:,} result{'s' * (left > 1)}",
                "unexplained": left,
            }
        text = f"{fields['diagnosis'].rstrip('.')}. With {names}, which are left out of that, {left:,} results differ."
        return {**fields, "diagnosis": text, "unexplained": left}
    return {}


def _cause_of_codes(results: ScaledResults) -> dict[str, Any]:
    """Return the `QuantizerReport` fields if codes are packed in the wrong order or off by a constant; else {}.

    results: the quantizer's results for all matrices, with what it promises.
    """
    fmt = results.fmt
    rights = [(parts, RightParts.of(x, fmt, results.scaling, results.cast)) for x, parts in results.all]
    if all(parts.swapped is not None and (parts.swapped == right.codes).all() for parts, right in rights):
        return explained("packs the first of two codes in the high bits of a byte, not in the low ones")
    if not isinstance(fmt, IntegerFormat) or results.scaling.symmetric:
        return {}
    pairs = [_points_and_codes(parts, right) for parts, right in rights]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        return {}
    of_points, of_codes = (_shift([pair[part] for pair in known], fmt) for part in (0, 1))
    if of_points is None or of_codes is None:
        return {}
    if of_points == of_codes:
        return explained(f"has zero points that are off by {of_points:+d}")
    if of_codes == 0:
        return explained(f"returns zero points that are off by {of_points:+d}, and codes of the right ones")
    if of_points == 0:
        return explained(f"adds zero points that are off by {of_codes:+d}, and returns the right ones")
    return {}


def _cause_of_zero_points(results: ScaledResults, fmt: IntegerFormat) -> dict[str, Any]:
    """Return the `QuantizerReport` fields if faults of elements or zero points explain all results; else {}.

    The faults are wrong roundings, wrapping, and a wrong use of zero points. Matrices with Inf and NaN are left out; if
    no fault explains the other results, also those with extreme values.
    """
    rounding = rounding_mode(results.cast["rounding"]).name.lower()
    for unusual, kept in results.usual():
        causes = zero_point_causes(kept, fmt, results.scaling, rounding)
        if causes:
            left = sum(results.counts.get(name, 0) for name in unusual)
            names = " and ".join(unusual)
            apart = f". With {names}, which are left out of that, {left:,} results differ." if left else ""
            fields = explained(*causes)
            return {**fields, "diagnosis": f"{fields['diagnosis']}{apart}", "unexplained": left}
    return {}


Pair = tuple[Array, Array]  # returned integers, and the right ones


def _points_and_codes(parts: ReturnedParts, right: RightParts) -> tuple[Pair, Pair] | None:
    """Return ((zero points, right zero points), (codes, right codes)), flat arrays of integers.

    Return None if there are no zero points or scales, or if the scales or the shapes are wrong. parts: the quantizer's
    result for a matrix. right: the right result.
    """
    if parts.zero_points is None or right.zero_points is None or parts.scales is None:
        return None
    points = in_tiles(parts.zero_points, right.zero_points.shape)
    scales = in_tiles(parts.scales, right.scales.shape)
    if points is None or scales is None or not same_scales(np.ascontiguousarray(scales), right.scales).all():
        return None
    codes, right_codes = (words_.view(np.float64).astype(np.int64) for words_ in (parts.elements, right.codes))
    return (points.ravel(), right.zero_points.ravel().astype(np.int64)), (codes, right_codes)


def _shift(pairs: list[Pair], fmt: IntegerFormat) -> int | None:
    """Return the constant by which all returned integers exceed the right ones, or None if there is none.

    A returned integer may also be the sum of the right one and the constant, limited to the range of `fmt`.
    pairs: (returned integers, right integers).
    """
    got, want = (np.concatenate([pair[place] for pair in pairs]) for place in (0, 1))
    inner = (want > fmt.lowest) & (want < fmt.highest)
    shift = int(np.median((got - want)[inner])) if inner.any() else 0
    moved = want + shift
    return shift if ((got == np.clip(moved, fmt.lowest, fmt.highest)) | (got == moved)).all() else None


def _nearest(results: Results, scaling: Scaling, promised: Scaling, differences: RecipeDifferences) -> Scaling:
    """Return a scaling that reproduces all results, made as similar to the promised one as they allow.

    Each field in FIELDS and CHOICES gets its value in `promised`, unless the scaling then no longer reproduces all
    results.

    Args:
      results: pairs of a matrix and the quantizer's result for it.
      scaling: a scaling that reproduces all results.
      promised: the promised scaling.
      differences: cache of the differences between recipes and these results.
    """
    for name in (*FIELDS, *CHOICES):
        try:
            other = scaling.replace(**{name: getattr(promised, name)})
        except ValueError:
            continue  # no such combination
        if other != scaling and not differences.of(results, other).wrong:
            scaling = other
    return scaling


def _akin(scaling: Scaling) -> Iterator[Scaling]:
    """Yield copies of a scaling, each with another rule for power-of-two scales; nothing for other scale formats."""
    if scaling.scale_format != E8M0:
        return
    for rule in dict.fromkeys(row["scale_rule"] for row in RULES if "scale_rule" in row):
        with suppress(ValueError):  # no such combination
            other = scaling.replace(scale_rule=rule, scale_rounding=None)
            if other != scaling:
                yield other
