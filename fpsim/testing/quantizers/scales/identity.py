"""Names the recipe of quantizers with scales: tiles, the rule, and how scales are laid out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fpsim.arrays import Array, is_torch
from fpsim.errors import shown
from fpsim.formats.element import Element, element_format
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, E4M3, E8M0, FP32
from fpsim.formats.rounding import Rounding
from fpsim.scaling.recipes import ROWS
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling, scaling_fields
from fpsim.scaling.tiling import tiling
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.quantizers.black_box import QuantizerMisbehaved
from fpsim.testing.quantizers.rounder import Words, words_of
from fpsim.testing.quantizers.scales.encoding import Case, RightEncoding
from fpsim.testing.quantizers.scales.explaining import explained
from fpsim.testing.quantizers.scales.results import ReturnedParts, values_of
from fpsim.testing.quantizers.scales.zero_point_faults import zero_point_causes

LISTED = 8  # rivals that a report keeps
FINALISTS = 32  # recipes that are held against every matrix
CARRIED = 6  # the best of them, of which others are tried that differ in one choice
BLOCKS = (
    (-1, -1), (1, -1), (-1, 1), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (16, 1), (32, 1), (64, 1), (128, 1),
    (16, 16), (32, 32), (64, 64), (128, 128),
)  # fmt: skip
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


AFFINE_TENSOR = Scaling(block=(-1, -1), symmetric=False)
OPERATORS = {  # recipes that an operator of a library has
    (AFFINE_TENSOR, "UINT8"): "ONNX's DynamicQuantizeLinear",
}


@dataclass(frozen=True)
class ScalingIdentity:
    """The recipe of scales that a quantizer follows, as far as an array tells.

    Attributes:
      scaling: the `fp.Scaling` that gives all codes and scales, or that differs least.
      names: rows of `fp.scalings` that give them too.
      exact: whether it gives all; differ, of: how many codes and scales it does not give, of how many.
      layout: "tiles" (one scale per tile in the shape of the grid), "transposed", "reciprocal" (scales that multiply),
        both joined by " ", or "values" where only values came back.
      element: name of the element format.
      faults: what it does beside that recipe, as clauses after "it", where that gives all; else empty.
      rivals: other scalings that this array does not tell from it.
      excluded: how many of those tried differ.
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
        """The operator that is defined as this recipe, such as ONNX's DynamicQuantizeLinear; "" without one."""
        return OPERATORS.get((self.scaling, self.element), "")

    @property
    def block(self) -> tuple[int, ...]:
        """The shape of its tiles."""
        return self.scaling.block

    @property
    def scale_rule(self) -> str:
        """The rule by which it finds scales."""
        return self.scaling.scale_rule

    def __str__(self) -> str:
        name = f"fp.scalings.{self.names[0]}" if self.names else repr(self.scaling)
        name = f"{self.operator}, {name}" if self.operator else name
        if not self.exact and self.faults:
            return f"{name}, scales as {self.layout}, but it {'; it '.join(self.faults)}."
        if not self.exact:
            return (
                f"None of {self.excluded:,} recipes; nearest {name}, which differs in {self.differ:,} of {self.of:,}."
            )
        more = f" {len(self.rivals):,} more give the same on this array (.rivals)." if self.rivals else ""
        return f"{name}, scales as {self.layout}; {self.excluded:,} others differ.{more}"


def called(
    fn: Callable[..., Any], x: Array, fmt: Element, scaling: Scaling | None = None,
    covered: CoverageRecord | None = None, layout: str = "",
) -> ReturnedParts:  # fmt: skip
    """One call, on NumPy's array or, where fn wants it, on a torch tensor."""
    import sys

    before = x.tobytes()
    try:
        with np.errstate(all="ignore"):
            got = fn(x)
    except Exception as first:
        torch = sys.modules.get("torch")
        if torch is None:
            raise QuantizerMisbehaved(
                "runs", f"fn raised {type(first).__name__}: {first} on shape {x.shape}.", x
            ) from first
        try:
            got = fn(torch.from_numpy(x))
        except Exception as second:
            raise QuantizerMisbehaved(
                "runs", f"fn raised {type(first).__name__}: {first} on an array of NumPy, and {type(second).__name__}: "
                f"{second} on a torch tensor, of shape {x.shape}.", x,
            ) from second  # fmt: skip
    if x.tobytes() != before:
        raise QuantizerMisbehaved("leaves its input alone", f"fn writes into its input of shape {x.shape}.", x)
    if is_torch(got) and got.device.type != "cpu":
        raise QuantizerMisbehaved(
            "device", f"fn must return what it was given, on the CPU; got a tensor on {got.device}.", x
        )
    parts = ReturnedParts(got, x, fmt, scaling)
    if covered is not None:
        covered.note(x, layout)
    return parts


def _wanted(x: Array, fmt: Element, scaling: Scaling, cast: dict[str, Any], values: bool) -> tuple[Words, Array]:
    """Elements and scales that a scaling gives; values: whether values take the place of elements."""
    q = encode_scaled(x, fmt, scaling, **cast)
    if values:
        return words_of(np.asarray(q.decode().ravel().astype(np.float64))), q.scales
    if isinstance(fmt, Format):
        return words_of_codes(fmt)[q.codes.ravel()], q.scales
    return words_of(q.codes.ravel().astype(np.float64)), q.scales


@functools.lru_cache(maxsize=16)
def words_of_codes(fmt: Format) -> Words:
    """The pattern of every code's value."""
    return words_of(fmt.table())


def layouts_of(scales: Array, grid: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Every reading of an array of scales as one per tile."""
    squeezed = tuple(size for size in grid if size != 1)
    if scales.shape == grid or (
        scales.size == int(np.prod(grid)) and _flat(scales.shape) in (squeezed, (scales.size,))
    ):
        yield "tiles", scales.reshape(grid)
    if len(grid) == 2 and scales.shape == grid[::-1]:
        yield "transposed", scales.T


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def same_scales(got: Array, want: Array) -> Any:
    return (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))


# ---- identify


def identify_scaling(fn: Callable[..., Any], fmt: Any, x: Any, **cast: Any) -> ScalingIdentity:
    """The recipe of scales of a quantizer: its tiles, their axis, the rule, and how scales are laid out.

    Args:
      fn: takes a matrix and returns an `fp.Scaled`, (codes, scales), or values.
      fmt: the element format.
      x: a float32 matrix that tells recipes apart: several tiles along both axes, of different size. An Inf, a NaN and
        a tile of zeros tell how these are treated.
      cast: rounding and subnormals of the elements, as in `fpsim.encode`.

    Returns:
      A record: `.scaling`, `.names`, `.exact`, `.block`, `.layout`, `.rivals`.

    Raises:
      ValueError: an unknown format, another shape than a matrix, or a function that raises or returns no result.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
      >>> found = fp.testing.identify_scaling(lambda x: fp.encode_scaled(x, "e4m3", fp.scalings.MX_CEIL), "e4m3", x)
      >>> found.names[0], found.block, found.scale_rule, found.layout
      ('MX_CEIL', (1, 32), 'ceil', 'tiles')
    """
    element = element_format(fmt)
    array = np.asarray(x)
    if array.ndim != 2 or array.dtype not in (np.float32, np.float64):
        raise ValueError(f"x must be a float32 matrix; got {shown(x)}.")
    try:
        return identity_on(fn, element, [array], cast)
    except QuantizerMisbehaved as refusal:
        raise ValueError(refusal.sentence) from refusal


def identity_on(fn: Callable[..., Any], element: Element, arrays: list[Array], cast: dict[str, Any]) -> ScalingIdentity:
    """Return the recipe of scales that gives what a quantizer returns for some matrices.

    Raises:
      QuantizerMisbehaved: the function raises or returns no result.
    """
    cases = [(array, called(fn, array.copy(), element)) for array in arrays]
    affine = cases[0][1].zero_points is not None or (isinstance(element, IntegerFormat) and not element.signed)
    found = identified(cases, element, cast, affine)
    if found.exact or unrounded(cases):
        return found
    fitting = [
        row for row in (AFFINE_TENSOR, *ROWS.values())
        if all(parts.scales is None or _fits(parts.scales, x, row) for x, parts in cases)
    ]  # fmt: skip
    for scaling in dict.fromkeys([found.scaling, *fitting]):
        if affine and scaling.symmetric:
            continue
        fields = fault_beside(cases, element, [scaling], cast)
        if fields:
            names = tuple(name for name, row in ROWS.items() if row == scaling)
            return replace(found, scaling=scaling, names=names, faults=fields["causes"])
    for scaling in dict.fromkeys((found.scaling, AFFINE_TENSOR)) if affine else ():
        faults = zero_point_causes(cases, element, scaling) if isinstance(element, IntegerFormat) else ()
        if faults:
            return replace(found, scaling=scaling, names=(), faults=faults)
    return found


def telling_matrices(fmt: IntegerFormat) -> list[Array]:
    """Return matrices that tell recipes of integers apart: tiles of different size, and ties."""
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((64, 256)) * np.exp2(rng.integers(-6, 6, (64, 256 // 32))).repeat(32, 1)
    steps = fmt.highest - fmt.lowest
    cases = [spread]
    for offset in (0.5, -0.5, 0.25, -0.25):  # of zero points from an integer; the scale is a power of two
        low = -(steps // 2) + offset
        ties = rng.integers(0, 2 * steps + 1, (16, 64)) / 2 + low + (offset % 0.5)
        ties[0, :2] = low, low + steps
        cases.append(np.clip(ties, low, low + steps) / 8)
    largest = fmt.highest if fmt.signed else steps
    halves = rng.integers(-2 * largest, 2 * largest + 1, (16, 64)) / 2
    halves[0, 0] = largest
    cases.append(halves / 4)
    return [np.asarray(case, np.float32) for case in cases]


def _fits(scales: Array, x: Array, scaling: Scaling) -> bool:
    """Return whether scales are as many as a scaling has for a matrix."""
    return any(layout == "tiles" for layout, _ in layouts_of(scales, tiling(x.shape, scaling.block).grid))


def identified(
    cases: list[tuple[Array, ReturnedParts]], fmt: Element, cast: dict[str, Any], affine: bool
) -> ScalingIdentity:
    """Return the recipe of cases; affine: whether zero points are promised."""
    seen: dict[Scaling, tuple[int, int, str]] = {}
    first = cases[1:2] or cases  # tells most recipes apart
    roughly = {scaling: differing(first, fmt, scaling, cast)[0] for scaling in _candidates_for(fmt, affine)}

    telling = cases[::-1]  # those with NaN, Inf and ties tell more recipes from the best than the first ones
    least: list[int] = []  # of what was seen, as many as are carried on

    def score(scaling: Scaling) -> None:
        if scaling not in seen:
            seen[scaling] = differing(telling, fmt, scaling, cast, least[-1] if len(least) == CARRIED else None)
            least[:] = sorted([*least, seen[scaling][0]])[:CARRIED]

    for scaling in sorted(roughly, key=lambda scaling: roughly[scaling])[:FINALISTS]:
        score(scaling)
    best = sorted(seen, key=lambda scaling: seen[scaling][0])[:CARRIED]
    for _ in range(len(CHOICES)):  # one choice after the other, from the best so far
        further = [changed for scaling in best[:3] for changed in _choices(scaling)]
        for scaling in further:
            score(scaling)
        ranked = sorted(seen, key=lambda scaling: (seen[scaling][0], len(scaling_fields(scaling))))
        if ranked[:3] == best[:3]:
            break
        best = ranked[:CARRIED]
    differ = seen[best[0]][0]
    fits = [scaling for scaling in seen if seen[scaling][0] == differ]
    names = tuple(name for name, row in ROWS.items() if row in fits)
    chosen = ROWS[names[0]] if names else min(fits, key=lambda scaling: len(scaling_fields(scaling)))
    _, of, layout = seen[chosen]
    rivals = tuple(scaling for scaling in fits if scaling != chosen) if differ == 0 else ()
    return ScalingIdentity(
        chosen, names, differ == 0, differ, of, layout, rivals, len(roughly.keys() | seen.keys()) - len(fits),
        element=fmt.name,
    )  # fmt: skip


@functools.cache
def _candidates() -> tuple[Scaling, ...]:
    found = [
        _scaling(block=block, scale_format=scale_format, **rule)
        for block, scale_format, rule in itertools.product(BLOCKS, (FP32, E8M0, BF16, E4M3), RULES)
    ]
    return (*ROWS.values(), *(scaling for scaling in found if scaling is not None))


@functools.cache
def _candidates_for(fmt: Element, affine: bool) -> tuple[Scaling, ...]:
    """Return the recipes that an element format can have: with zero points first, where these are promised."""
    plain = _candidates() if not isinstance(fmt, IntegerFormat) or fmt.signed else ()
    if not affine:
        return plain
    with_zero_points = [
        _scaling(block=block, scale_format=scale_format, symmetric=False)
        for block, scale_format in itertools.product(BLOCKS, (FP32, E8M0, BF16, E4M3))
    ]
    return (*(scaling for scaling in with_zero_points if scaling is not None), *plain)


def _scaling(**fields: Any) -> Scaling | None:
    try:
        return Scaling(**fields)
    except ValueError:
        return None  # no such combination


def _choices(scaling: Scaling) -> Iterator[Scaling]:
    for name, values in CHOICES.items():
        for value in values:
            try:
                yield scaling.replace(**{name: value})
            except ValueError:
                continue


def differing(
    cases: list[tuple[Array, ReturnedParts]], fmt: Element, scaling: Scaling, cast: dict[str, Any],
    enough: int | None = None,
) -> tuple[int, int, str]:  # fmt: skip
    """Return how many elements and scales a scaling does not give, of how many, and how scales are laid out.

    enough: where more differ, the rest is not looked at.
    """
    total, of, layouts = 0, 0, set()
    for x, parts in cases:
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


def unrounded(cases: list[tuple[Array, ReturnedParts]]) -> bool:
    """Return whether what came back is always the input."""
    return all(parts.scales is None and (parts.elements == values_of(x, x)).all() for x, parts in cases)


def fault_beside(
    cases: list[tuple[Array, ReturnedParts]], fmt: Element, scalings: list[Scaling], cast: dict[str, Any]
) -> dict[str, Any]:
    """The fault beside a recipe that explains everything, where one does."""
    seen: list[Case] = []
    for number, (x, parts) in enumerate(cases):
        scales = parts.scales
        if scales is not None:
            readings = dict(layouts_of(scales, tiling(x.shape, scalings[0].block).grid))
            if "tiles" not in readings:
                return {}
            scales = readings["tiles"]
        seen.append(Case(x, parts.elements, scales, cases[number - 1][0] if number else None))
    for scaling in dict.fromkeys(scalings):
        if seen[0].scales is not None and tiling(seen[0].x.shape, scaling.block).grid != seen[0].scales.shape:
            continue
        found = explained(seen, RightEncoding(fmt, scaling, cast))
        if found:
            (words, treated), *others = found
            causes = (words, *difference(treated, scalings[0]))
            whole = "all have one cause" if len(causes) == 1 else f"{len(causes)} causes together explain all"
            more = f" So would: it {'; it '.join(other for other, _ in others[:2])}." if others else ""
            text = f"{whole}: it {'; it '.join(causes)} (0 differ from that).{more}"
            rivals = tuple(other for other, _ in others)
            return {"causes": causes, "diagnosis": text, "unexplained": 0, "rivals": rivals}
    return {}


SAID = {
    ("division", "multiply"): ": it multiplies by the rounded reciprocal of the scale",
    ("quotient", "amax*(1/max)"): ": it multiplies amax by the rounded reciprocal of max",
    ("quotient", "1/(max/amax)"): ": its scale is the rounded reciprocal of max/amax",
}  # of fields in which scalings differ, what the value means


def difference(found: Scaling, promised: Scaling) -> list[str]:
    """The fields in which a scaling differs from another, as clauses after "it"."""
    fields = (
        "block", "scale_format", "symmetric", "scale_rule", "scale_rounding", *CHOICES, "quotient", "tensor_scale",
    )  # fmt: skip
    return [
        f"has {name}={_short(getattr(found, name))}, not {_short(getattr(promised, name))}"
        f"{SAID.get((name, getattr(found, name)), '')}"
        for name in dict.fromkeys(fields)
        if getattr(found, name) != getattr(promised, name)
    ]


def _short(value: Any) -> str:
    return value.name if isinstance(value, (Format, Rounding)) else repr(value)
