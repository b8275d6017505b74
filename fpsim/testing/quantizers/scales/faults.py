"""The faults that quantizers with scales are known to have beside another recipe: wrong scales, elements, tiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.errors import shown
from fpsim.formats.cast_options import cast_options
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, E4M3, E5M2, E8M0, FP16, FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.recipes import BLOCK_128X128, MX, MX_CEIL, NVFP4, ROW, ROWS, TENSOR, TILE_1X128
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tile_sizes
from fpsim.testing.quantizers.family import deviations
from fpsim.testing.quantizers.model import QuantizerModel, model_of
from fpsim.testing.quantizers.rounder import NEAREST, TIES, SplitInputs, Words, taken_apart, words_of

DIRECTED = {
    "toward_zero": "rounds elements toward zero", "up": "rounds elements up", "down": "rounds elements down",
    "odd": "rounds elements to odd",
}  # fmt: skip
ELEMENT_TIES = {
    "nearest_zero": "takes ties of elements toward zero", "nearest_up": "takes ties of elements up",
    "nearest_down": "takes ties of elements down", "nearest_odd": "takes ties of elements to the odd code",
    "negative_away": "takes ties of negative elements away from zero",
    "negative_zero": "takes ties of negative elements toward zero",
}  # fmt: skip
FIRST = (TILE_1X128, BLOCK_128X128, ROW, TENSOR, MX, MX_CEIL, NVFP4)  # recipes of a first quantisation
ADDED = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
LIMITS = (240.0, 448.0, 57344.0, 28.0, 7.5, 6.0, 4.0, 127.0)


class Case(NamedTuple):
    """A matrix and what came for it: elements (values where scales is None) as patterns, scales as one per tile."""

    x: Array
    elements: Words
    scales: Array | None
    before: Array | None  # the matrix of the call before

    @property
    def special(self) -> bool:
        """Whether there is an Inf or a NaN, which recipes treat each in their own way."""
        return not np.isfinite(self.x).all()


class RightEncoding(NamedTuple):
    """What should have been done."""

    fmt: Element
    scaling: Scaling
    cast: dict[str, Any]

    def scales(self, x: Array) -> Array:
        """The scales of a matrix."""
        return np.asarray(encode_scaled(x, self.fmt, self.scaling, **self.cast).scales)


class FaultOutcome(NamedTuple):
    """What a fault comes to: the values of elements, float64, the scales that they had, and those that come back."""

    elements: Array
    used: Array
    scales: Array


Fault = tuple[str, Callable[[RightEncoding, Case], FaultOutcome]]


def explained(cases: list[Case], recipe: RightEncoding) -> list[tuple[str, Scaling]]:
    """The faults that give all that came, as clauses after "it", the likely ones first.

    Each comes with its scaling, which treats Inf and NaN as what came does, and is else the recipe's.
    """
    plain = [case for case in (*cases[1:], *cases[:1]) if not case.special]
    special = [case for case in cases if case.special]
    treatments = [
        treated for infinity in ("skip", "propagate", "one") for nan in ("tile", "element")
        if (treated := _treated(recipe, infinity, nan)) is not None
    ]  # fmt: skip
    treatments.sort(key=lambda treated: treated.scaling != recipe.scaling)
    found: dict[str, Scaling] = {}
    for words, fault in _faults(recipe, cases):
        if all(_gives(fault, recipe, case) for case in plain):
            for treated in treatments:
                if words not in found and all(_gives(fault, treated, case) for case in special):
                    found[words] = treated.scaling
    return sorted(found.items(), key=lambda pair: pair[1] != recipe.scaling)


def _treated(recipe: RightEncoding, infinity: str, nan: str) -> RightEncoding | None:
    """A recipe that treats Inf and NaN in some way; None where there is none."""
    try:
        return recipe._replace(scaling=recipe.scaling.replace(infinity=infinity, nan=nan))
    except ValueError:
        return None


def _gives(fault: Callable[[RightEncoding, Case], FaultOutcome], recipe: RightEncoding, case: Case) -> bool:
    try:
        with np.errstate(all="ignore"):
            got = fault(recipe, case)
            if case.scales is None:
                values = got.elements * _spread(got.used, case.x, recipe).astype(np.float64)
                return bool((words_of(values.ravel().astype(np.float32).astype(np.float64)) == case.elements).all())
    except (ValueError, TypeError):
        return False  # scales that no tile can have
    same = (got.scales == case.scales) | (np.isnan(got.scales) & np.isnan(case.scales))
    return bool(same.all()) and bool((words_of(np.ascontiguousarray(got.elements).ravel()) == case.elements).all())


def _spread(scales: Array, x: Array, recipe: RightEncoding) -> Array:
    """Scales, one per element."""
    height, width = tile_sizes(x.shape, recipe.scaling.block)
    return scales.repeat(height, 0)[: x.shape[0]].repeat(width, 1)[:, : x.shape[1]]


def _values(recipe: RightEncoding, x: Array, scales: Array, **cast: Any) -> Array:
    """The elements that given scales lead to, as float64."""
    if (scales < 0).any():
        flipped = _spread(scales < 0, x, recipe)
        return _values(recipe, np.where(flipped, -x, x), np.abs(scales), **cast)
    endless = np.isinf(scales)  # which are no scales to give
    finite = np.where(endless, np.float32(1), scales)
    q = encode_scaled(x, recipe.fmt, recipe.scaling, scales=finite, **{**recipe.cast, **cast})
    values = recipe.fmt.table()[q.codes] if isinstance(recipe.fmt, Format) else q.codes.astype(np.float64)
    if not endless.any():
        return np.asarray(values)
    return np.where(_spread(endless, x, recipe), np.where(np.isfinite(x), np.copysign(0.0, x), np.nan), values)


def _faults(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
    yield from _of_scales(recipe, cases)
    yield from _of_elements(recipe, cases)
    yield from _of_zeros()
    if cases[0].scales is None and recipe.scaling.block[:-1] == (1,):
        yield "cuts tiles from the flattened array, across the ends of rows", _flattened


def _flattened(recipe: RightEncoding, case: Case) -> FaultOutcome:
    """The values of tiles that run on from row to row; their scales are no grid, and count as 1."""
    row = case.x.reshape(1, -1)
    values = encode_scaled(row, recipe.fmt, recipe.scaling, **recipe.cast).decode().reshape(case.x.shape)
    ones = np.ones_like(recipe.scales(case.x))
    return FaultOutcome(values.astype(np.float64), ones, ones)


# ---- scales


def _of_scales(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
    """Other scales: for elements and in what comes back, or for one of these alone."""
    changes: list[tuple[str, Callable[[RightEncoding, Case], Array]]] = [
        ("those of the call before", _stale),
        ("those of the largest value, not the largest magnitude", lambda r, c: r.scales(_signed(c.x, 1))),
        ("those of the lowest value, not the largest magnitude", lambda r, c: r.scales(_signed(c.x, -1))),
        ("those of the largest value with its sign, not the largest magnitude", _with_sign),
        ("powers of two nearest in the logarithm (2**round(log2(amax / max)))", _nearest_logarithm),
    ]
    for axis, along in ((1, "row"), (0, "column")):
        for by, where in ((1, "before"), (-1, "after")):
            changes += [
                (f"those of the tile {where} along the {along}", _moved(by, axis)),
                (f"those of the tile {where} along the {along}, around the end", _rolled(by, axis)),
            ]
        changes += [
            (f"that of the first tile of each {along}", _first(axis)),
            (f"that of the tile before in the last tile of each {along}", _last_again(axis)),
            (f"those without the last element of each tile along the {along}", _without_last(axis)),
        ]
    changes += [("that of the first tile for all", lambda r, c: _all_first(r.scales(c.x)))]
    for fmt in (BF16, FP16):
        changes += [(f"those of the input rounded to {fmt}", _of_input(_of(_rounded, fmt)))]
    changes += [("those of the input without its subnormals", _of_input(_flushed))]
    for added in ADDED:
        changes += [(f"those of amax + {added:g}", _of_input(_of(_enlarged, added)))]
    if recipe.scaling.scale_format != FP32 or recipe.scaling.scale_rule != "amax":
        changes += [("those before they are rounded", _exact)]
    for fmt, (mode, how) in itertools.product(
        (E8M0, E4M3, BF16, FP16), (("nearest_even", "to"), ("up", "up to"), ("down", "down to"))
    ):
        if fmt != recipe.scaling.scale_format:
            changes += [(f"the right ones rounded {how} {fmt}", _rounded_scales(fmt, mode))]
    ratio = _ratio(recipe, cases)
    for factor in dict.fromkeys([*([ratio] if ratio else []), 2.0, 0.5]):
        times = f"{factor:g} times the right ones"
        changes += [(times, _times(factor))]
    for words, change in changes:
        yield f"has as scales {words}", _both(change)
        yield f"scales elements by {words}, and returns the right scales", _used(change)
        yield f"returns as scales {words}, and scales elements by the right ones", _returned(change)


def _both(change: Callable[[RightEncoding, Case], Array]) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = change(recipe, case)
        return FaultOutcome(_values(recipe, case.x, scales), scales, scales)

    return fault


def _used(change: Callable[[RightEncoding, Case], Array]) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        right = recipe.scales(case.x)
        return FaultOutcome(_values(recipe, case.x, change(recipe, case)), right, right)

    return fault


def _returned(change: Callable[[RightEncoding, Case], Array]) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = change(recipe, case)
        return FaultOutcome(_values(recipe, case.x, recipe.scales(case.x)), scales, scales)

    return fault


def _stale(recipe: RightEncoding, case: Case) -> Array:
    """Return the scales of the call before, where it had as many tiles in the same grid."""
    right = recipe.scales(case.x)
    before = right if case.before is None else recipe.scales(case.before)
    return before if before.shape == right.shape else right


def _signed(x: Array, sign: int) -> Array:
    """Values of one sign alone, NaN as it is."""
    return np.where(np.isnan(x), x, np.maximum(x * np.float32(sign), np.float32(0)))


def _moved(by: int, axis: int) -> Callable[[RightEncoding, Case], Array]:
    def scales(recipe: RightEncoding, case: Case) -> Array:
        right = recipe.scales(case.x)
        return right.take(np.clip(np.arange(right.shape[axis]) - by, 0, right.shape[axis] - 1), axis)

    return scales


def _with_sign(recipe: RightEncoding, case: Case) -> Array:
    """The scales of the largest value of each tile, negative where all values are."""
    x = case.x
    height, width = tile_sizes(x.shape, recipe.scaling.block)
    starts = [np.arange(0, size, step) for size, step in zip(x.shape, (height, width), strict=True)]
    largest = np.maximum.reduceat(np.maximum.reduceat(x, starts[0], 0), starts[1], 1)
    same = recipe.scales(_spread(np.abs(largest), x, recipe))
    return np.where(largest < 0, -same, same)


def _exact(recipe: RightEncoding, case: Case) -> Array:
    """The scales of the same tiles as quotients in float32."""
    fields = {"scale_rule": "amax", "scale_format": FP32, "scale_rounding": None, "tensor_scale": False}
    return recipe._replace(scaling=recipe.scaling.replace(**fields)).scales(case.x)


def _nearest_logarithm(recipe: RightEncoding, case: Case) -> Array:
    exponents = np.clip(np.rint(np.log2(_exact(recipe, case).astype(np.float64))), -127, 127)
    return np.asarray(np.exp2(exponents), np.float32)


def _rounded_scales(fmt: Format, mode: str) -> Callable[[RightEncoding, Case], Array]:
    def scales(recipe: RightEncoding, case: Case) -> Array:
        return np.asarray(quantize(recipe.scales(case.x), fmt, rounding=mode, overflow="saturate_finite"), np.float32)

    return scales


def _rolled(by: int, axis: int) -> Callable[[RightEncoding, Case], Array]:
    return lambda recipe, case: np.roll(recipe.scales(case.x), by, axis)


def _first(axis: int) -> Callable[[RightEncoding, Case], Array]:
    def scales(recipe: RightEncoding, case: Case) -> Array:
        right = recipe.scales(case.x)
        return right.take(np.zeros(right.shape[axis], np.intp), axis)

    return scales


def _last_again(axis: int) -> Callable[[RightEncoding, Case], Array]:
    def scales(recipe: RightEncoding, case: Case) -> Array:
        right = recipe.scales(case.x)
        size = right.shape[axis]
        return right.take([*range(size - 1), max(size - 2, 0)], axis)

    return scales


def _without_last(axis: int) -> Callable[[RightEncoding, Case], Array]:
    def scales(recipe: RightEncoding, case: Case) -> Array:
        block = recipe.scaling.block
        size = block[axis] if len(block) == 2 and block[axis] > 0 else case.x.shape[axis]
        kept = np.arange(case.x.shape[axis]) % size != size - 1
        return recipe.scales(np.where(kept[None] if axis else kept[:, None], case.x, np.float32(0)))

    return scales


def _all_first(scales: Array) -> Array:
    return np.full_like(scales, scales.flat[0])


def _of(function: Callable[..., Array], argument: Any) -> Callable[[Array], Array]:
    """A function with its last argument given."""
    return lambda x: function(x, argument)


def _of_input(change: Callable[[Array], Array]) -> Callable[[RightEncoding, Case], Array]:
    """The scales of a changed matrix."""
    return lambda recipe, case: recipe.scales(change(case.x))


def _times(factor: float) -> Callable[[RightEncoding, Case], Array]:
    return lambda recipe, case: np.asarray(recipe.scales(case.x) * np.float32(factor), np.float32)


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), x), x)


def _enlarged(x: Array, added: float) -> Array:
    return np.asarray(np.abs(x) + np.float32(added))


def _rounded(x: Array, fmt: Format) -> Array:
    return np.asarray(quantize(x, fmt), np.float32)


def _ratio(recipe: RightEncoding, cases: list[Case]) -> float:
    """What the scales that came are of the right ones, where that is one number; else 0."""
    for case in cases[1:2]:
        if case.scales is None:
            continue
        with np.errstate(all="ignore"):
            ratios = (case.scales.astype(np.float64) / recipe.scales(case.x)).ravel()
        middle = float(np.median(ratios))
        if np.isfinite(middle) and middle > 0 and (np.abs(ratios / middle - 1) < 1e-6).all():
            return _plain(middle) if middle != 1 else 0.0
    return 0.0


def _plain(ratio: float) -> float:
    """A ratio as that of two largest values, where it is one."""
    for one in LIMITS:
        for other in LIMITS:
            if abs(one / other / ratio - 1) < 1e-6:
                return one / other
    return float(np.float32(ratio))


# ---- elements


def _of_elements(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
    """Right scales, and other elements."""
    rounding = rounding_mode(recipe.cast.get("rounding") or "nearest_even").name.lower()
    for word in (mode.name.lower() for mode in Rounding if mode is not Rounding.STOCHASTIC):
        if word != rounding:
            yield _rounding_words(word, rounding), _elements(rounding=word)
    if rounding == "nearest_even":
        for rule, words in ELEMENT_TIES.items():
            yield words, _ties(rule)
    for fmt in (BF16, FP16):
        yield f"rounds elements to {fmt} before it divides them by their scale", _on_input(fmt)
        yield f"rounds the input to {fmt} first", _first_rounded(fmt)
        yield f"rounds quotients to {fmt} before they are rounded to elements", _on_quotient(fmt)
    if isinstance(recipe.fmt, Format):
        if recipe.fmt.subnormals:
            yield "turns subnormal elements into zeros", _elements(subnormals="flush")
        limit = _largest(cases)
        if 0 < limit < recipe.fmt.max:
            yield f"limits elements to +-{limit:g}", _clipped(limit)
    yield "takes subnormals of the input for zeros", _on_flushed
    yield "loses the signs of zeros", _after(lambda v: v + 0.0)
    yield "loses the signs of elements", _after(np.abs)
    for axis, along in ((1, "row"), (0, "column")):
        for group, said in ((2, "exchanges the two elements of each pair"), (8, "reverses each group of 8 elements")):
            yield f"{said} along the {along}, as packed codes in the wrong order", _after(_reversed(group, axis))
    for scaling in dict.fromkeys((recipe.scaling, *FIRST)):
        for first in dict.fromkeys((recipe.fmt, E4M3, E5M2)):
            name = _name(scaling)
            yield f"quantises twice, first to {first} by {name}", _twice(RightEncoding(first, scaling, {}))
    cast = {name: value for name, value in recipe.cast.items() if value is not None}
    if isinstance(recipe.fmt, Format):
        largest = float(recipe.fmt.max)
        yield f"rounds elements to integers, which are evenly spaced, not to {recipe.fmt}", _to_integers(largest)
        yield from _of_model(model_of(cast_options(recipe.fmt, **{"overflow": recipe.scaling.overflow, **cast})))
    elif isinstance(recipe.fmt, IntegerFormat):
        yield from _of_model(QuantizerModel(recipe.fmt.magnitudes, rounding, "max", "max"))


def _rounding_words(word: str, promised: str) -> str:
    """Return what a quantizer does whose elements are rounded by another mode, as a clause after "it"."""
    if word not in TIES:
        return DIRECTED.get(word, f"rounds elements as {word} does")
    return (
        f"takes ties of elements {TIES[word]}"
        if promised in NEAREST
        else f"rounds elements to nearest, ties {TIES[word]}"
    )


def _name(scaling: Scaling) -> str:
    names = [name for name, row in ROWS.items() if row == scaling]
    return f"fp.scalings.{names[0]}" if names else repr(scaling)


def _reversed(group: int, axis: int) -> Callable[[Array], Array]:
    def change(values: Array) -> Array:
        places = np.arange(values.shape[axis])
        whole = places.size // group * group
        places[:whole] = places[:whole].reshape(-1, group)[:, ::-1].ravel()
        return values.take(places, axis)

    return change


def _twice(first: RightEncoding) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        x = np.asarray(encode_scaled(case.x, first.fmt, first.scaling).decode(), np.float32)
        scales = recipe.scales(x)
        return FaultOutcome(_values(recipe, x, scales), scales, scales)

    return fault


def _of_model(model: QuantizerModel) -> Iterator[Fault]:
    """The faults of a cast, in that of quotients to elements."""
    shared = SharedQuotients()
    for one in deviations(model, FP32, False):
        yield f"{one.words}, in its elements", shared.changed(one.apply(model))


def _to_integers(largest: float) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        integers = np.rint(_quotients(recipe, case.x, scales)).astype(np.float64)
        return FaultOutcome(np.clip(integers, -largest, largest), scales, scales)

    return fault


class SharedQuotients:
    """Scales and quotients of matrices, which all faults share that change elements alone."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Scaling], tuple[Array, Array, Array, SplitInputs]] = {}

    def changed(self, model: QuantizerModel) -> Callable[[RightEncoding, Case], FaultOutcome]:
        """Return the fault whose elements are what a model makes of quotients."""

        def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
            scales, quotients, apart = self.of(recipe, case)
            values = model.values(apart).reshape(quotients.shape)
            return FaultOutcome(values if isinstance(recipe.fmt, Format) else values + 0.0, scales, scales)

        return fault

    def of(self, recipe: RightEncoding, case: Case) -> tuple[Array, Array, SplitInputs]:
        """Return scales and quotients, these also taken apart."""
        key = id(case.x), recipe.scaling
        if key not in self._kept:
            scales = recipe.scales(case.x)
            quotients = _quotients(recipe, case.x, scales)
            self._kept[key] = case.x, scales, quotients, taken_apart(quotients).with_steps()  # x keeps its id taken
        return self._kept[key][1:]


def _quotients(recipe: RightEncoding, x: Array, scales: Array) -> Array:
    spread = _spread(scales, x, recipe)
    divides = recipe.scaling.division == "divide"
    return np.asarray(x / spread if divides else x * (np.float32(1) / spread), np.float32)


def _elements(**cast: Any) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        return FaultOutcome(_values(recipe, case.x, scales, **cast), scales, scales)

    return fault


def _ties(rule: str) -> Callable[[RightEncoding, Case], FaultOutcome]:
    """Return the fault of right elements but for ties, which go to the neighbour that a rule names."""

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        even = _values(recipe, case.x, scales)
        low, high = (_values(recipe, case.x, scales, rounding=word) for word in ("down", "up"))
        quotient = _quotients(recipe, case.x, scales)
        tie = np.isfinite(quotient) & (low != high) & (quotient == low + (high - low) / 2)
        odd = np.where(even == low, high, low)
        zero = np.where(np.signbit(quotient), high, low)
        negative = np.signbit(quotient)
        chosen = {
            "nearest_up": high, "nearest_down": low, "nearest_odd": odd, "nearest_zero": zero,
            "negative_away": np.where(negative, low, even), "negative_zero": np.where(negative, high, even),
        }[rule]  # fmt: skip
        return FaultOutcome(np.where(tie, chosen, even), scales, scales)

    return fault


def _on_input(fmt: Format) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        return FaultOutcome(_values(recipe, _rounded(case.x, fmt), scales), scales, scales)

    return fault


def _first_rounded(fmt: Format) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        rounded = _rounded(case.x, fmt)
        scales = recipe.scales(rounded)
        return FaultOutcome(_values(recipe, rounded, scales), scales, scales)

    return fault


def _on_flushed(recipe: RightEncoding, case: Case) -> FaultOutcome:
    x = _flushed(case.x)
    scales = recipe.scales(x)
    return FaultOutcome(_values(recipe, x, scales), scales, scales)


def _on_quotient(fmt: Format) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        quotient = _quotients(recipe, case.x, scales)
        ones = np.where(np.isnan(scales), scales, np.float32(1))
        return FaultOutcome(_values(recipe, _rounded(quotient, fmt), ones), scales, scales)

    return fault


def _clipped(limit: float) -> Callable[[RightEncoding, Case], FaultOutcome]:
    return _after(lambda values: np.clip(values, -limit, limit))


def _after(change: Callable[[Array], Array]) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        return FaultOutcome(change(_values(recipe, case.x, scales)), scales, scales)

    return fault


def _largest(cases: list[Case]) -> float:
    """The largest element that came."""
    if cases[0].scales is None:
        return 0.0
    values = np.concatenate([case.elements for case in cases]).view(np.float64)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))


# ---- tiles of zeros


def _of_zeros() -> Iterator[Fault]:
    for element, scale in ((np.nan, None), (np.nan, np.nan), (None, np.nan), (None, 0.0), (np.nan, 0.0), (None, 1.0)):
        parts = [
            *([f"elements {shown(element)}"] if element is not None else []),
            *([f"the scale {shown(scale)}"] if scale is not None else []),
        ]
        yield f"gives tiles of zeros {' and '.join(parts)}", _zeros(element, scale)


def _zeros(element: float | None, scale: float | None) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        right = recipe.scales(case.x)
        values = _values(recipe, case.x, right)
        height, width = tile_sizes(case.x.shape, recipe.scaling.block)
        rows, columns = (np.arange(0, size, step) for size, step in zip(case.x.shape, (height, width), strict=True))
        amax = np.maximum.reduceat(np.maximum.reduceat(np.abs(case.x), rows, 0), columns, 1)
        scales = np.where(amax == 0, right if scale is None else np.float32(scale), right).astype(np.float32)
        if element is not None:
            values = np.where(_spread(amax, case.x, recipe) == 0, element, values)
        return FaultOutcome(values, scales, scales)

    return fault
