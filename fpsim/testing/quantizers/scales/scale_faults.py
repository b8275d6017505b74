"""Faults of scales: scales of another tile, input, factor or format are used, returned, or both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import BF16, E4M3, E8M0, FP16, FP32
from fpsim.testing.quantizers.scales.encoding import (
    Case,
    Fault,
    FaultFunction,
    FaultOutcome,
    RightEncoding,
    flushed,
    rounded_to,
    spread_over,
)
from fpsim.testing.quantizers.scales.tiles import reduced_tiles

ADDED = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
LIMITS = (240.0, 448.0, 57344.0, 28.0, 7.5, 6.0, 4.0, 127.0)  # largest values of formats, by which amax is divided
ScaleChange = Callable[[RightEncoding, Case], Array]  # function that returns the wrong float32 scale of each tile


def faults_of_scales(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
    """Yield faults of quantizers that divide by wrong scales, return wrong ones, or both, as (clause, fault function).

    recipe: the encoding that the quantizer promises. cases: matrices with results; the ratio of returned and right
    scales, if constant, is a factor to try.
    """
    scale_format = recipe.scaling.scale_format
    changes: list[tuple[str, ScaleChange]] = [
        ("those of the call before", _stale),
        ("those of the largest value, not the largest magnitude", lambda r, c: r.scales(_signed(c.x, 1))),
        ("those of the lowest value, not the largest magnitude", lambda r, c: r.scales(_signed(c.x, -1))),
        ("those of the largest value with its sign, not the largest magnitude", _with_sign),
        ("powers of two nearest in the logarithm (2**round(log2(amax / max)))", _nearest_logarithm),
    ]
    if not isinstance(recipe.fmt, LogFMT):  # which has no largest value
        changes += [
            ("2**ceil(log2(amax)) / max", partial(_power_over_max, "up", recipe.fmt.max)),
            ("2**floor(log2(amax)) / max", partial(_power_over_max, "down", recipe.fmt.max)),
        ]
    for axis, along in ((1, "row"), (0, "column")):
        for by, where in ((1, "before"), (-1, "after")):
            changes += [
                (f"those of the tile {where} along the {along}", _from_tiles(axis, partial(_neighbours, by))),
                (
                    f"those of the tile {where} along the {along}, around the end",
                    _changed(partial(np.roll, shift=by, axis=axis)),
                ),
            ]
        changes += [
            (f"that of the first tile of each {along}", _from_tiles(axis, lambda count: 0 * np.arange(count))),
            (
                f"that of the tile before in the last tile of each {along}",
                _from_tiles(axis, lambda count: [*range(count - 1), max(count - 2, 0)]),
            ),
            (f"those without the last element of each tile along the {along}", _without_last(axis)),
        ]
    changes += [
        ("that of the first tile for all", _changed(lambda s: np.full_like(s, s.flat[0]))),
        ("that of the whole matrix for all tiles", _changed(lambda s: np.full_like(s, s.max()))),
    ]
    for fmt in (BF16, FP16):
        changes += [(f"those of the input rounded to {fmt}", _of_input(partial(rounded_to, fmt=fmt)))]
    changes += [("those of the input without its subnormals", _of_input(flushed))]
    for added in ADDED:
        changes += [
            (f"those of amax + {added:g}", _of_input(partial(lambda more, x: np.abs(x) + np.float32(more), added)))
        ]
    if scale_format != FP32 or recipe.scaling.scale_rule != "amax":
        changes += [("those before they are rounded", _exact)]
    for fmt, (mode, how) in itertools.product(
        (E8M0, E4M3, BF16, FP16), (("nearest_even", "to"), ("up", "up to"), ("down", "down to"))
    ):
        if fmt != scale_format:
            rounded = partial(quantize, fmt=fmt, rounding=mode, overflow="saturate_finite")
            changes += [(f"the right ones rounded {how} {fmt}", _changed(rounded))]
    if scale_format.subnormals:
        changes += [("the right ones, whose subnormal codes it reads as normal ones", _subnormals_as_normal)]
    changes += [("the right ones rounded to FP16, with Inf for large ones", _changed(partial(quantize, fmt=FP16)))]
    changes += _quotients(recipe, cases)
    ratio = _ratio(recipe, cases)
    for factor in dict.fromkeys([*([ratio] if ratio else []), 2.0, 0.5]):
        changes += [(f"{factor:g} times the right ones", _changed(partial(np.multiply, np.float32(factor))))]
    if scale_format.has_nan and scale_format.max < FP32.max and not recipe.scaling.tensor_scale:
        large = f"scales too large for {scale_format} become {'Inf' if scale_format.has_infinity else 'NaN'}"
        yield f"does not limit scales: {large}", partial(_unlimited, False)
        if scale_format.has_zero:
            yield f"does not limit scales: {large}, and too small ones 0", partial(_unlimited, True)
    for words, change in changes:
        yield f"has as scales {words}", _with_scales(change, used=True, returned=True)
        yield f"scales elements by {words}, and returns the right scales", _with_scales(change, used=True)
        yield f"returns as scales {words}, and scales elements by the right ones", _with_scales(change, returned=True)


def _with_scales(change: ScaleChange, used: bool = False, returned: bool = False) -> FaultFunction:
    """Return the fault function for wrong scales, those that `change` computes.

    It maps (promised encoding, case) to the faulty result for the case's matrix. used: whether elements are divided by
    the wrong scales, not by the right ones. returned: whether the wrong scales are returned.
    """

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        changed = change(recipe, case)
        right = changed if used and returned else recipe.scales(case.x)
        of_elements = changed if used else right
        return FaultOutcome(lambda: recipe.values(case.x, of_elements), changed if returned else right)

    return fault


def _unlimited(also_below: bool, recipe: RightEncoding, case: Case) -> FaultOutcome:
    """Return the result of a quantizer that casts scales to their format without a limit, to Inf, NaN or 0.

    Elements of tiles with such a scale are not compared: values are Inf, NaN or 0 in any case. also_below: whether
    scales that are too small become 0. recipe: the encoding that the quantizer promises. case: the matrix.
    """
    right, exact = recipe.scales(case.x), _exact(recipe, case)
    cast = np.asarray(quantize(exact, recipe.scaling.scale_format), np.float32)
    limited = ~np.isfinite(cast) | (also_below & (cast == 0))
    limited &= np.isfinite(right) & (exact != cast)
    scales = np.where(limited, cast, right)

    def elements() -> Array:
        returned = case.elements.view(np.float64).reshape(case.x.shape)
        return np.where(spread_over(limited, case.x, recipe), returned, recipe.values(case.x, right))

    return FaultOutcome(elements, scales)


def _changed(change: Callable[[Array], Any]) -> ScaleChange:
    """Return the scale function, (recipe, case) -> scales, that applies `change` to the correct scales."""
    return lambda recipe, case: np.asarray(change(recipe.scales(case.x)), np.float32)


def _of_input(change: Callable[[Array], Array]) -> ScaleChange:
    """Return the scale function, (recipe, case) -> scales, that computes the scales of `change(matrix)`."""
    return lambda recipe, case: recipe.scales(change(case.x))


def _from_tiles(axis: int, places: Callable[[int], Any]) -> ScaleChange:
    """Return the scale function, (recipe, case) -> scales, that takes the correct scales of other tiles.

    Tile i along the axis gets the scale of tile `places(number of tiles)[i]`.
    """
    return _changed(lambda scales: scales.take(places(scales.shape[axis]), axis))


def _neighbours(by: int, count: int) -> Array:
    """Return, for the tiles i = 0 .. count - 1, the index i - by of another tile, limited to the same range."""
    return np.clip(np.arange(count) - by, 0, count - 1)


def _stale(recipe: RightEncoding, case: Case) -> Array:
    """Return the correct float32 scales of the previous call's matrix if it has as many tiles, else the case's own.

    recipe: the encoding that the quantizer promises. case: the matrices of this call and of the previous one.
    """
    right = recipe.scales(case.x)
    before = right if case.before is None else recipe.scales(case.before)
    return before if before.shape == right.shape else right


def _signed(x: Array, sign: int) -> Array:
    """Return x * sign with 0 in place of negative products; NaN stays. sign: 1 or -1."""
    return np.where(np.isnan(x), x, np.maximum(x * np.float32(sign), np.float32(0)))


def _with_sign(recipe: RightEncoding, case: Case) -> Array:
    """Return float32 scales computed from each tile's largest value, not magnitude; negative for a negative value.

    For a tile of -3 and -1, the scale is that of amax 1, with a minus sign. recipe: the encoding that the quantizer
    promises. case: the matrix.
    """
    largest = reduced_tiles(np.maximum, case.x, recipe.scaling.block)
    magnitudes = recipe.scales(spread_over(np.abs(largest), case.x, recipe))
    return np.where(largest < 0, -magnitudes, magnitudes)


def _exact(recipe: RightEncoding, case: Case) -> Array:
    """Return float32 scales of tiles that are not rounded to the scale format: amax / largest value of an element.

    recipe: the encoding that the quantizer promises; a scale of the whole array, if it has one, is left out. case: the
    matrix.
    """
    fields = {"scale_rule": "amax", "scale_format": FP32, "scale_rounding": None, "tensor_scale": False}
    return recipe._replace(scaling=recipe.scaling.replace(**fields)).scales(case.x)


def _nearest_logarithm(recipe: RightEncoding, case: Case) -> Array:
    """Return float32 powers of two as scales of tiles: 2**round(log2(amax / largest value of an element)).

    recipe: the encoding that the quantizer promises. case: the matrix.
    """
    exponents = np.clip(np.rint(np.log2(_exact(recipe, case).astype(np.float64))), -127, 127)
    return np.asarray(np.exp2(exponents), np.float32)


def _subnormals_as_normal(recipe: RightEncoding, case: Case) -> Array:
    """Return the correct float32 scales, with subnormal codes decoded as if their exponent were an ordinary one.

    recipe: the encoding that the quantizer promises. case: the matrix.
    """
    fmt, scales = recipe.scaling.scale_format, recipe.scales(case.x)
    smallest = np.float32(fmt.smallest_normal)
    return np.where(scales < smallest, (scales + smallest) / np.float32(2), scales)


def _power_over_max(rounding: Literal["up", "down"], most: float, recipe: RightEncoding, case: Case) -> Array:
    """Return, as scales of tiles, amax rounded to a power of two, divided by the largest value of an element, float32.

    rounding: direction of the rounding, "up" or "down". most: the largest value. recipe: the encoding that the
    quantizer promises. case: the matrix.
    """
    amax = reduced_tiles(np.maximum, np.where(np.isfinite(case.x), np.abs(case.x), np.float32(0)), recipe.scaling.block)
    power = quantize(amax, E8M0, rounding=rounding)
    return np.where(amax > 0, power / np.float32(most), _exact(recipe, case)).astype(np.float32)


def _without_last(axis: int) -> ScaleChange:
    """Return the scale function, (recipe, case) -> scales, that ignores the last element of each tile along an axis."""

    def scales(recipe: RightEncoding, case: Case) -> Array:
        block = recipe.scaling.block
        size = block[axis] if len(block) == 2 and block[axis] > 0 else case.x.shape[axis]
        kept = np.arange(case.x.shape[axis]) % size != size - 1
        return recipe.scales(np.where(kept[None] if axis else kept[:, None], case.x, np.float32(0)))

    return scales


def _quotients(recipe: RightEncoding, cases: list[Case]) -> Iterator[tuple[str, ScaleChange]]:
    """Yield faults of dividing amax by a wrong number, as (clause on the scales, scale function).

    The wrong number is found by `divisor_of` from the results in `cases`, matrices with a quantizer's results; a clause
    is "amax/440, not amax/448". The scale function maps (recipe, case) to the wrong scales. recipe: the encoding that
    the quantizer promises. Nothing is yielded unless its scales are amax / (largest value of the format) in float32.
    """
    scaling = recipe.scaling
    if (scaling.scale_format, scaling.scale_rule, scaling.tensor_scale) != (FP32, "amax", False):
        return
    divisor = divisor_of(recipe, cases)
    if divisor:
        right = f"not amax/{float(getattr(recipe.fmt, 'max', 0.0)):g}"
        yield f"amax/{divisor:.9g}, {right}", partial(quotient_of_amax, np.float32(divisor), False)
        yield f"amax * (1/{divisor:.9g}), {right}", partial(quotient_of_amax, np.float32(divisor), True)


def quotient_of_amax(divisor: np.float32, multiplies: bool, recipe: RightEncoding, case: Case) -> Array:
    """Return amax / divisor of each tile in float32, without the recipe's lower limit of scales.

    It is 1 where the quotient is zero, and the right scale where amax is zero.

    divisor: the number by which the largest magnitude of a tile is divided. multiplies: whether amax is multiplied by
    the rounded reciprocal of the divisor instead. recipe: the encoding that the quantizer promises. case: the matrix.
    """
    right = recipe.scales(case.x)
    amax = reduced_tiles(np.maximum, np.where(np.isfinite(case.x), np.abs(case.x), np.float32(0)), recipe.scaling.block)
    scales = amax * (np.float32(1) / divisor) if multiplies else amax / divisor
    return np.where(amax > 0, np.where(scales > 0, scales, np.float32(1)), right).astype(np.float32)


def divisor_of(recipe: RightEncoding, cases: list[Case]) -> float:
    """Return the wrong number by which a quantizer divides the tiles' amax to get their scales; 0 if there is none.

    The number follows from the scales that the quantizer returned for the second of `cases`, matrices with its results.
    It is replaced by the nearest multiple of 1/2 if that is very near. recipe: the encoding that the quantizer
    promises, which has the right divisor.
    """
    ratio = _ratio(recipe, cases)
    largest = float(getattr(recipe.fmt, "max", 0.0))
    if not ratio or not largest:
        return 0.0
    divisor = largest / ratio
    near = round(2 * divisor) / 2
    divisor = near if abs(near / divisor - 1) < 1e-6 else divisor
    return 0.0 if divisor == largest else float(np.float32(divisor))


def _ratio(recipe: RightEncoding, cases: list[Case]) -> float:
    """Return (returned scale) / (right scale) if it is the same number, other than 1, in all tiles; else 0.

    The tiles are those of the second of `cases`, matrices with a quantizer's results. A ratio near a quotient of two
    numbers in LIMITS (largest values of formats) is replaced by that quotient. recipe: the encoding that the quantizer
    promises.
    """
    scales = cases[1].scales if len(cases) > 1 else None
    if scales is None:
        return 0.0
    with np.errstate(all="ignore"):
        ratios = (scales.astype(np.float64) / recipe.scales(cases[1].x)).ravel()
    ratio = float(np.median(ratios))
    if not np.isfinite(ratio) or ratio <= 0 or ratio == 1 or (np.abs(ratios / ratio - 1) >= 1e-6).any():
        return 0.0
    quotients = (largest / other for largest, other in itertools.product(LIMITS, LIMITS))
    return next((quotient for quotient in quotients if abs(quotient / ratio - 1) < 1e-6), float(np.float32(ratio)))
