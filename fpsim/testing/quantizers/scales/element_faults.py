"""Faults of elements whose scales are right: roundings, ties, intermediate formats, wrong order, casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

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
from fpsim.testing.quantizers.arrangement import reversed_groups
from fpsim.testing.quantizers.family import deviations
from fpsim.testing.quantizers.model import QuantizerModel, model_of
from fpsim.testing.quantizers.rounder import SplitInputs, evenly_spread, in_elements, rule_words, taken_apart, words_of
from fpsim.testing.quantizers.scales.encoding import (
    Case,
    Fault,
    FaultFunction,
    FaultOutcome,
    RightEncoding,
    flushed,
    of_changed_input,
    quotients_of,
    rounded_to,
    with_right_scales,
)
from fpsim.testing.quantizers.scales.scale_faults import divisor_of, quotient_of_amax
from fpsim.testing.quantizers.scales.tiles import reduced_tiles

SOME = 60  # elements with wrong results, and elements with right ones, that are enough to exclude most faults
TIES_ALONE = ("nearest_zero", "nearest_up", "nearest_down", "nearest_odd")
OF_NEGATIVE = {"negative_away": "nearest_away", "negative_zero": "nearest_zero"}  # rules for negative elements alone
FIRST = (TILE_1X128, BLOCK_128X128, ROW, TENSOR, MX, MX_CEIL, NVFP4)  # recipes of a first quantisation


def faults_of_elements(recipe: RightEncoding, cases: list[Case]) -> Iterator[Fault]:
    """Yield faults with right scales and wrong elements, as (clause such as "drops the sign", fault function).

    recipe: the encoding that the quantizer promises. cases: matrices with results; their largest element is a limit to
    try.
    """
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
        yield f"rounds elements to {fmt} before it divides them by their scale", with_right_scales(partial(
            lambda to, recipe, case, scales: recipe.values(rounded_to(case.x, to), scales), fmt))  # fmt: skip
        yield f"rounds the input to {fmt} first", of_changed_input(rounded_to, fmt)
        yield f"rounds quotients to {fmt} before they are rounded to elements", _on_quotient(fmt)
    if isinstance(recipe.fmt, Format):
        if recipe.fmt.subnormals:
            yield "turns subnormal elements into zeros", _elements(subnormals="flush")
        values = np.concatenate([case.elements for case in cases]).view(np.float64)
        limit = 0.0 if cases[0].scales is None else float(np.abs(values[np.isfinite(values)]).max(initial=0))
        if 0 < limit < recipe.fmt.max:
            yield f"limits elements to +-{limit:g}", _after(lambda values: np.clip(values, -limit, limit))
    yield "takes subnormals of the input for zeros", of_changed_input(flushed)
    yield "loses the signs of zeros", _after(lambda v: v + 0.0)
    yield "loses the signs of elements", _after(np.abs)
    for axis, along in ((1, "row"), (0, "column")):
        for group, said in ((2, "exchanges the two elements of each pair"), (8, "reverses each group of 8 elements")):
            yield f"{said} along the {along}, as packed codes in the wrong order", _after(_reversed(group, axis))
    for scaling in dict.fromkeys((recipe.scaling, *FIRST)):
        for first in dict.fromkeys((recipe.fmt, E4M3, E5M2)):
            name = next((f"fp.scalings.{name}" for name, row in ROWS.items() if row == scaling), repr(scaling))
            yield f"quantises twice, first to {first} by {name}", of_changed_input(
                lambda x, *to: np.asarray(encode_scaled(x, *to).decode(), np.float32), first, scaling)  # fmt: skip
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
            divisor, highest = divisor_of(recipe, cases), recipe.fmt.highest
            if divisor:
                words = f"has as scales amax/{divisor:.9g}, not amax/{highest}"
                yield f"{words}, and elements down to {-beyond}", _of_quotients(divisor, -beyond)
            if recipe.scaling.scale_format == FP32 and not recipe.scaling.tensor_scale:
                words = f"has as scales amax/{highest} also where that is below 2**-126, the recipe's smallest scale"
                yield words, _of_quotients(highest, -highest)
        yield from _of_model(QuantizerModel(recipe.fmt.magnitudes, rounding, "max", "max"))


def _reversed(group: int, axis: int) -> Callable[[Array], Array]:
    """Return a function of a matrix that reverses each whole group of `group` elements along an axis."""
    return lambda values: values.take(reversed_groups(values.shape[axis], group), axis)


def _wrapping(largest: int | None) -> FaultFunction:
    """Return the fault function for integers that lose their high bits instead of saturating.

    A fault function maps (promised encoding, case) to the faulty result for the case's matrix. largest: None if the
    scales are right; an integer if the quantizer also divides amax by this integer to get its scales.
    """

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        assert isinstance(recipe.fmt, IntegerFormat)
        scales = recipe.scales(case.x)
        if largest is not None:
            magnitudes = np.where(np.isfinite(case.x), np.abs(case.x), np.float32(0))
            amax = reduced_tiles(np.maximum, magnitudes, recipe.scaling.block)
            scales = np.where(amax > 0, amax / np.float32(largest), scales).astype(np.float32)
        quotients = quotients_of(recipe, case.x, scales).astype(np.float64)
        wrapped = (np.rint(quotients) - recipe.fmt.lowest) % (1 << recipe.fmt.bits) + recipe.fmt.lowest
        return FaultOutcome(
            lambda: np.where(np.isfinite(quotients), wrapped, recipe.values(case.x, scales)) + 0.0, scales
        )

    return fault


def _of_quotients(divisor: float, lowest: int) -> FaultFunction:
    """Return the fault function for scales amax / `divisor`, with elements limited to `lowest` and above.

    The elements are x / scale, rounded to integers; their upper limit is the right one. A fault function maps (promised
    encoding, case) to the faulty result for the case's matrix.
    """

    def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
        assert isinstance(recipe.fmt, IntegerFormat)
        scales = quotient_of_amax(np.float32(divisor), False, recipe, case)
        integers = np.rint(quotients_of(recipe, case.x, scales).astype(np.float64))
        limited = np.clip(integers, lowest, recipe.fmt.highest)
        right = recipe.values(case.x, recipe.scales(case.x))  # for Inf and NaN
        return FaultOutcome(lambda: np.where(np.isfinite(case.x), limited, right) + 0.0, scales)

    return fault


def _of_model(model: QuantizerModel) -> Iterator[Fault]:
    """Yield the known faults of the cast that rounds quotients to elements, as (clause, fault function).

    model: the model of the correct cast.
    """
    shared = SharedQuotients()
    for fault in deviations(model, FP32, False):
        yield in_elements(fault.words), shared.changed(fault.apply(model))


def _to_integers(largest: float) -> FaultFunction:
    """Return the fault function for rounding quotients to integers up to +-`largest`, not to values of the format.

    It maps (promised encoding, case) to the faulty result for the case's matrix.
    """

    def integers(recipe: RightEncoding, case: Case, scales: Array) -> Array:
        rounded = np.rint(quotients_of(recipe, case.x, scales)).astype(np.float64)
        return np.clip(rounded, -largest, largest)

    return with_right_scales(integers)


class QuotientsOfCase(NamedTuple):
    """A matrix x, the right scale of each tile, and the quotients of x by the scales.

    places: flat indices of a few elements for which the quantizer's result is wrong, and of a few with a right one.
    some: the quotients at these indices.
    """

    x: Array
    scales: Array
    quotients: SplitInputs
    places: Array
    some: SplitInputs


class SharedQuotients:
    """Cache of scales and quotients of matrices, shared by all faults that change only elements."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Scaling], QuotientsOfCase] = {}

    def changed(self, model: QuantizerModel) -> FaultFunction:
        """Return the fault function for rounding quotients to elements as `model` does.

        It maps (promised encoding, case) to the faulty result for the case's matrix.
        """

        def fault(recipe: RightEncoding, case: Case) -> FaultOutcome:
            of = self.of(recipe, case)

            def values(quotients: SplitInputs) -> Array:
                values = model.values(quotients)
                return values if isinstance(recipe.fmt, Format) else values + 0.0

            return FaultOutcome(
                lambda: values(of.quotients).reshape(case.x.shape), of.scales,
                lambda: (of.places, values(of.some)),
            )  # fmt: skip

        return fault

    def of(self, recipe: RightEncoding, case: Case) -> QuotientsOfCase:
        """Return the right scales and the quotients of a case's matrix, from the cache if possible.

        recipe: the encoding that the quantizer promises.
        """
        key = id(case.x), recipe.scaling
        if key not in self._kept:
            scales = recipe.scales(case.x)
            quotients = taken_apart(quotients_of(recipe, case.x, scales)).with_steps()
            wrong = words_of(recipe.values(case.x, scales).ravel()) != case.elements
            places = np.union1d(evenly_spread(np.flatnonzero(wrong), SOME), evenly_spread(np.flatnonzero(~wrong), SOME))
            some = quotients.part(places).with_steps()
            self._kept[key] = QuotientsOfCase(case.x, scales, quotients, places, some)  # keeping x keeps its id
        return self._kept[key]


def _elements(**cast: Any) -> FaultFunction:
    """Return the fault function for casting elements with other keywords of `fpsim.encode` than promised.

    It maps (promised encoding, case) to the faulty result for the case's matrix. cast: the keywords.
    """
    return with_right_scales(lambda recipe, case, scales: recipe.values(case.x, scales, **cast))


def _ties(rule: str) -> FaultFunction:
    """Return the fault function for rounding ties between elements by `rule`, and all else correctly, to nearest even.

    It maps (promised encoding, case) to the faulty result for the case's matrix. rule: "nearest_zero", "nearest_up",
    "nearest_down" or "nearest_odd"; or "negative_away" or "negative_zero", for the ties of negative elements alone,
    away from or toward zero.
    """

    def elements(recipe: RightEncoding, case: Case, scales: Array) -> Array:
        even = recipe.values(case.x, scales)
        low, high = (recipe.values(case.x, scales, rounding=word) for word in ("down", "up"))
        quotient = quotients_of(recipe, case.x, scales)
        tie = np.isfinite(quotient) & (low != high) & (quotient == low + (high - low) / 2)
        negative = np.signbit(quotient)
        chosen = {
            "nearest_up": high, "nearest_down": low, "nearest_odd": np.where(even == low, high, low),
            "nearest_zero": np.where(negative, high, low), "negative_away": np.where(negative, low, even),
            "negative_zero": np.where(negative, high, even),
        }[rule]  # fmt: skip
        return np.where(tie, chosen, even)

    return with_right_scales(elements)


def _on_quotient(fmt: Format) -> FaultFunction:
    """Return the fault function for rounding quotients to `fmt` before they are rounded to elements.

    It maps (promised encoding, case) to the faulty result for the case's matrix.
    """

    def elements(recipe: RightEncoding, case: Case, scales: Array) -> Array:
        quotients = rounded_to(quotients_of(recipe, case.x, scales), fmt)
        return recipe.values(quotients, np.where(np.isnan(scales), scales, np.float32(1)))

    return with_right_scales(elements)


def _after(change: Callable[[Array], Array]) -> FaultFunction:
    """Return the fault function for applying `change` to right elements: float64 values not yet multiplied by scales.

    It maps (promised encoding, case) to the faulty result for the case's matrix.
    """
    return with_right_scales(lambda recipe, case, scales: change(recipe.values(case.x, scales)))
