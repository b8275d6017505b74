"""The faults of elements that have right scales: roundings, ties, formats in between, wrong places, casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.cast_options import cast_options
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.recipes import BLOCK_128X128, MX, MX_CEIL, NVFP4, ROW, ROWS, TENSOR, TILE_1X128
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tile_sizes
from fpsim.testing.quantizers.family import deviations
from fpsim.testing.quantizers.model import QuantizerModel, model_of
from fpsim.testing.quantizers.rounder import SplitInputs, in_elements, rule_words, taken_apart
from fpsim.testing.quantizers.scales.encoding import (
    Case,
    Fault,
    FaultOutcome,
    RightEncoding,
    encoded_values,
    flushed,
    quotients_of,
    rounded_to,
)

TIES_ALONE = ("nearest_zero", "nearest_up", "nearest_down", "nearest_odd")
OF_NEGATIVE = {"negative_away": "nearest_away", "negative_zero": "nearest_zero"}  # rules for negative elements alone
FIRST = (TILE_1X128, BLOCK_128X128, ROW, TENSOR, MX, MX_CEIL, NVFP4)  # recipes of a first quantisation


def faults_of_elements(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
    """Right scales, and other elements."""
    rounding = rounding_mode(recipe.cast.get("rounding") or "nearest_even").name.lower()
    for word in (mode.name.lower() for mode in Rounding if mode is not Rounding.STOCHASTIC):
        if word != rounding:
            yield in_elements(rule_words(word, rounding)), _elements(rounding=word)
    if rounding == "nearest_even":
        for rule in TIES_ALONE:
            yield in_elements(rule_words(rule, rounding)), _ties(rule)
        for rule, of_negative in OF_NEGATIVE.items():
            yield in_elements(f"{rule_words(of_negative, rounding)} for negative values"), _ties(rule)
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
        if rounding == "nearest_even" and recipe.scaling.symmetric:
            beyond = 1 << (recipe.fmt.bits - 1)
            yield in_elements("wraps around where it should saturate"), _wrapping(None)
            yield f"has as scales amax/{beyond}, and wraps around where it should saturate", _wrapping(beyond)
        yield from _of_model(QuantizerModel(recipe.fmt.magnitudes, rounding, "max", "max"))


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


def _wrapping(largest: int | None) -> Callable[[RightEncoding, Case], FaultOutcome]:
    """Return the fault of integers that lose their high bits; largest: what amax becomes, None for the right scales."""

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        assert isinstance(recipe.fmt, IntegerFormat)
        scales = recipe.scales(case.x)
        if largest is not None:
            sizes = np.where(np.isfinite(case.x), np.abs(case.x), np.float32(0))
            starts = [np.arange(0, size, step) for size, step in
                      zip(case.x.shape, tile_sizes(case.x.shape, recipe.scaling.block), strict=True)]  # fmt: skip
            amax = np.maximum.reduceat(np.maximum.reduceat(sizes, starts[0], 0), starts[1], 1)
            scales = np.where(amax > 0, amax / np.float32(largest), scales).astype(np.float32)
        quotients = quotients_of(recipe, case.x, scales).astype(np.float64)
        wrapped = (np.rint(quotients) - recipe.fmt.lowest) % (1 << recipe.fmt.bits) + recipe.fmt.lowest
        right = encoded_values(recipe, case.x, scales)
        return FaultOutcome(np.where(np.isfinite(quotients), wrapped, right) + 0.0, scales, scales)

    return fault


def _twice(first: RightEncoding) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        x = np.asarray(encode_scaled(case.x, first.fmt, first.scaling).decode(), np.float32)
        scales = recipe.scales(x)
        return FaultOutcome(encoded_values(recipe, x, scales), scales, scales)

    return fault


def _of_model(model: QuantizerModel) -> Iterator[Fault]:
    """The faults of a cast, in that of quotients to elements."""
    shared = SharedQuotients()
    for one in deviations(model, FP32, False):
        yield in_elements(one.words), shared.changed(one.apply(model))


def _to_integers(largest: float) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        integers = np.rint(quotients_of(recipe, case.x, scales)).astype(np.float64)
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
            quotients = quotients_of(recipe, case.x, scales)
            self._kept[key] = case.x, scales, quotients, taken_apart(quotients).with_steps()  # x keeps its id taken
        return self._kept[key][1:]


def _elements(**cast: Any) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        return FaultOutcome(encoded_values(recipe, case.x, scales, **cast), scales, scales)

    return fault


def _ties(rule: str) -> Callable[[RightEncoding, Case], FaultOutcome]:
    """Return the fault of right elements but for ties, which go to the neighbour that a rule names."""

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        even = encoded_values(recipe, case.x, scales)
        low, high = (encoded_values(recipe, case.x, scales, rounding=word) for word in ("down", "up"))
        quotient = quotients_of(recipe, case.x, scales)
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
        return FaultOutcome(encoded_values(recipe, rounded_to(case.x, fmt), scales), scales, scales)

    return fault


def _first_rounded(fmt: Format) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        rounded = rounded_to(case.x, fmt)
        scales = recipe.scales(rounded)
        return FaultOutcome(encoded_values(recipe, rounded, scales), scales, scales)

    return fault


def _on_flushed(recipe: RightEncoding, case: Case) -> FaultOutcome:
    x = flushed(case.x)
    scales = recipe.scales(x)
    return FaultOutcome(encoded_values(recipe, x, scales), scales, scales)


def _on_quotient(fmt: Format) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        quotient = quotients_of(recipe, case.x, scales)
        ones = np.where(np.isnan(scales), scales, np.float32(1))
        return FaultOutcome(encoded_values(recipe, rounded_to(quotient, fmt), ones), scales, scales)

    return fault


def _clipped(limit: float) -> Callable[[RightEncoding, Case], FaultOutcome]:
    return _after(lambda values: np.clip(values, -limit, limit))


def _after(change: Callable[[Array], Array]) -> Callable[[RightEncoding, Case], FaultOutcome]:
    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        scales = recipe.scales(case.x)
        return FaultOutcome(change(encoded_values(recipe, case.x, scales)), scales, scales)

    return fault


def _largest(cases: list[Case]) -> float:
    """The largest element that came."""
    if cases[0].scales is None:
        return 0.0
    values = np.concatenate([case.elements for case in cases]).view(np.float64)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))
