"""The faults of scales: those of another tile, input, factor or format, used, returned, or both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, E4M3, E8M0, FP16, FP32
from fpsim.scaling.tiling import tile_sizes
from fpsim.testing.quantizers.scales.encoding import (
    Case,
    Fault,
    FaultOutcome,
    RightEncoding,
    encoded_values,
    flushed,
    rounded_to,
    spread_over,
)

ADDED = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
LIMITS = (240.0, 448.0, 57344.0, 28.0, 7.5, 6.0, 4.0, 127.0)


def faults_of_scales(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
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
        changes += [(f"those of the input rounded to {fmt}", _of_input(_of(rounded_to, fmt)))]
    changes += [("those of the input without its subnormals", _of_input(flushed))]
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
        return FaultOutcome(encoded_values(recipe, case.x, scales), scales, scales)

    return fault


def _used(change: Callable[[RightEncoding, Case], Array]) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        right = recipe.scales(case.x)
        return FaultOutcome(encoded_values(recipe, case.x, change(recipe, case)), right, right)

    return fault


def _returned(change: Callable[[RightEncoding, Case], Array]) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = change(recipe, case)
        return FaultOutcome(encoded_values(recipe, case.x, recipe.scales(case.x)), scales, scales)

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
    same = recipe.scales(spread_over(np.abs(largest), x, recipe))
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


def _enlarged(x: Array, added: float) -> Array:
    return np.asarray(np.abs(x) + np.float32(added))


def _ratio(recipe: RightEncoding, cases: list[Case]) -> float:
    """Return the scales that came over the right ones, where that is one number; else 0."""
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
