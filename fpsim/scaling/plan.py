"""A scaling and an element format as the numbers that are passed to the compiled loops over scales."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.core.encode import FULL
from fpsim.core.layouts import EncodePlan, encode_plan
from fpsim.core.rounding import DOWN, UP
from fpsim.core.tile_scale import (
    AMAX_BY_MAX,
    AMAX_TIMES_INVERSE,
    BY_INVERSE,
    BY_SCALE,
    INVERSE_OF_ENCODE,
    NAN_ELEMENT,
    NAN_TILE,
    ONE,
    POWER_RULES,
    PROPAGATE,
    SKIP,
    TABLE,
    ScaleChoices,
    ScaleNumbers,
    ScaleRules,
    scale_steps_32,
    scale_steps_64,
)
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding
from fpsim.runtime.processor import under_ieee
from fpsim.scaling.kernels.amax import float_words
from fpsim.scaling.kernels.scales import settle_kernel
from fpsim.scaling.scaling import Scaling

FEW_TILES = 1 << 12  # number of tiles from which compiling a loop for one scaling, a second, pays off
INFINITIES = {"skip": SKIP, "propagate": PROPAGATE, "one": ONE}


class ScalePlan(NamedTuple):
    """The rule by which scales are made, and the arguments of the loop that makes them.

    scaling: the recipe. largest: the largest value of the element format. width: bits, 32 or 64, of the float in which
    elements are divided by scales. choices: integers that select the loop's code, such as the rule. rules: int64, the
    fields of ScaleRules and of `choices`, then the bits of two float64, `largest` and scaling.amax_floor. layout: the
    constants (EncodeLayout) of the encoder to the scale format. table: the values of the scale codes, with 0 for NaN.
    applied: BY_SCALE if factors divide elements, BY_INVERSE if they multiply them. code_dtype: the dtype of the scale
    codes, None if scales are float32. single_level: the result of `arguments` if the scale of the whole array is 1.
    """

    scaling: Scaling
    largest: float  # value of the element format
    width: int
    choices: ScaleChoices
    rules: Array  # int64, as core/tile_scale.py says
    layout: Array  # encodes into the scale format
    table: Array  # values of its codes, 0 for NaN, floats of `width` bits
    applied: int
    code_dtype: np.dtype[Any] | None  # of the scale codes; None where the scale is the float itself
    single_level: tuple[Array, ...] = ()  # result of `arguments` with a second-level scale of 1

    @under_ieee
    def numbers(self, tensor: TensorScale) -> Array:
        """Return the fields of `ScaleNumbers`, which the loop over scales reads, as floats of self.width bits.

        They are the largest element value, the scaling's amax_floor, limits of scales, and the scale of the whole
        array. tensor: the scale of the whole array, by which two-level recipes multiply all scales.
        """
        _, real, _, _ = float_words(self.width)
        scaling = self.scaling
        smallest = scaling.lower_bound
        zero_scale = 1.0 if scaling.zero_scale == "one" else smallest
        scale, inverse, factor = self._second_level(tensor)
        with np.errstate(all="ignore"):
            numbers = ScaleNumbers(
                largest=real(self.largest),
                inverse=real(1) / real(self.largest),
                amax_floor=real(np.float32(scaling.amax_floor)),
                smallest=real(smallest),
                half_smallest=real(smallest / 2),
                scale_max=real(scaling.scale_format.max),
                zero_scale=real(zero_scale),
                tensor=scale,
                inverse_tensor=inverse,
                tensor_factor=factor,
            )
        return np.array(numbers, real)

    @under_ieee
    def _second_level(self, tensor: TensorScale) -> tuple[Any, Any, Any]:
        """Return the whole array's scale s, 1 / s, and the factor from a tile's amax to its scale, from `tensor`.

        They are the last three fields of `ScaleNumbers`, as floats of self.width bits.
        """
        _, real, _, _ = float_words(self.width)
        with np.errstate(all="ignore"):
            return real(tensor.scale), real(1) / real(tensor.scale), real(tensor.factor)

    @property
    def highest(self) -> Any:
        """Largest scale allowed for a tile times the largest element value, as float64.

        With a `width` of 32 the product is first rounded to float32, unless the rounded one would be Inf or subnormal.
        """
        _, real, _, _ = float_words(self.width)
        top = self.scaling.scale_format.max if self.scaling.tensor_top is None else self.scaling.tensor_top
        with np.errstate(all="ignore"):
            product = np.float64(top) * np.float64(self.largest)
            rounded = real(product)
            return np.float64(rounded) if np.finfo(real).smallest_normal <= rounded < np.inf else product

    @property
    def is_inverse(self) -> bool:
        """True if the encode scale max / amax is computed first and then inverted."""
        return self.scaling.quotient == "1/(max/amax)"

    @under_ieee
    def factors(self, scales: Array) -> Array:
        """Return a factor for each of `scales`, float32: the scale if elements are divided by it, else its inverse.

        A factor is the number that divides or multiplies the elements of a tile, a float of self.width bits. An inverse
        that overflows becomes the largest float, so that zeros stay zeros.
        """
        _, real, _, _ = float_words(self.width)
        with np.errstate(all="ignore"):
            wide: Array = scales.astype(real)
            return wide if self.applied == BY_SCALE else np.minimum(real(1) / wide, np.finfo(real).max)

    def settle(self, tiles: int) -> Any:
        """Return the loop that computes the scales of `tiles` tiles from their amaxes, as `settle_kernel` describes it.

        For more than FEW_TILES the loop is compiled for this scaling; else it is the general, slower loop, which reads
        the rules at run time.
        """
        return settle_kernel(self.width, self.choices.encodes, self.choices if tiles > FEW_TILES else None)

    def arguments(self, tensor: TensorScale) -> tuple[Array, ...]:
        """Return the last three arguments of the loop that computes scales (`settle_kernel`), as three arrays.

        They are self.numbers(tensor) followed by self.table, then self.rules, then self.layout. tensor: the scale of
        the whole array.
        """
        if not self.single_level:
            return np.concatenate([self.numbers(tensor), self.table]), self.rules, self.layout
        if not self.scaling.tensor_scale:
            return self.single_level
        numbers = self.single_level[0].copy()
        numbers[TABLE - 3 : TABLE] = self._second_level(tensor)
        return numbers, self.rules, self.layout


class TensorScale(NamedTuple):
    """The second-level scale of a whole array, by which the scales of all tiles are multiplied; 1 if there is none.

    scale: the float32 scale. factor: the number by which a tile's amax is multiplied to get its scale, used by the
    quotient "1/(max/amax)" only. clamped: True if the scale was raised to the smallest one allowed.
    """

    scale: np.float32 = np.float32(1)
    factor: float = 1.0  # multiplies the amax of a tile to get its scale, where the rule is a product
    clamped: bool = False


def tensor_scale(plan: ScalePlan, amax: float) -> TensorScale:
    """Return the second-level scale of an array whose largest magnitude, NaN ignored, is `amax`.

    It is amax / `plan.highest`, or with the quotient "1/(max/amax)" the reciprocal of plan.highest / amax; 1 for an
    array of zeros. It is limited so that its product with every tile's scale is finite (docs/scaling.md).
    """
    _, real, _, _ = float_words(plan.width)
    steps = scale_steps_32 if plan.width == 32 else scale_steps_64
    # for one number plain Python is faster than compiling
    body = getattr(steps.tensor_scale_of, "py_func", steps.tensor_scale_of)
    numbers = ScaleNumbers._make(plan.single_level[0][:TABLE])
    with np.errstate(all="ignore"):
        scale, factor, clamped = body(real(amax), plan.highest, numbers, plan.is_inverse)
    return TensorScale(scale, float(factor), bool(clamped))


@lru_cache(maxsize=1024)
@under_ieee  # the cached plan must not depend on the processor's mode now
def scale_plan(scaling: Scaling, largest: float, mantissa_bits: int, width: int) -> ScalePlan:
    """Return the ScalePlan (rule and loop arguments) of scales that map a tile's amax to `largest`; cached.

    scaling: the recipe. largest: in most cases the largest value of the element format. mantissa_bits: mantissa bits of
    the element format. width: bits, 32 or 64, of the float in which elements are divided by scales.
    """
    fmt, single = scaling.scale_format, scaling.scale_format == FP32
    word, real, _, _ = float_words(width)
    rounding = scaling.quotient_rounding
    inverse = scaling.quotient == "1/(max/amax)"
    encoding = inverse and not scaling.tensor_scale
    if encoding:
        rounding = {UP: Rounding.DOWN, DOWN: Rounding.UP}.get(int(rounding), rounding)
    quotient_width = 32 if encoding else width
    # an infinite amax gives Inf where there is one, but for the encode scales of two levels
    overflow = "saturate_finite" if fmt.has_infinity and not (inverse and scaling.tensor_scale) else "saturate"
    encoder = encode_plan(fmt, quotient_width, rounding, overflow, "keep", 32)
    rule = POWER_RULES.get(scaling.scale_rule, AMAX_BY_MAX)
    if scaling.quotient == "amax*(1/max)" and rule == AMAX_BY_MAX:
        rule = AMAX_TIMES_INVERSE
    elif inverse:
        rule = INVERSE_OF_ENCODE
    applied = BY_SCALE if scaling.division == "divide" else BY_INVERSE
    levels = 2 if scaling.tensor_scale else 1
    choices = ScaleChoices(width, rule, applied, levels, int(rounding), encoder.kind, single, encoding)
    multiplies = scaling.division == "multiply" or inverse
    table = np.zeros(1) if single else fmt.table()
    amax_floor = scaling.amax_floor if encoding else np.float32(scaling.amax_floor)
    places = (23 if width == 32 else 52) - mantissa_bits
    emax = math.frexp(largest)[1] - 1 - (scaling.scale_rule == "twice_floor")
    sees_exponents = rule in POWER_RULES.values()
    smallest_code, zero_code, one_code = _ruled_codes(scaling)
    rules = ScaleRules(
        nan=NAN_TILE if scaling.nan == "tile" else NAN_ELEMENT,
        infinity=INFINITIES[scaling.infinity],
        nan_code=fmt.nan_code or 0,
        one_code=one_code,
        # powers of two see Inf's exponent, which is 128 in float32, whatever the arithmetic
        infinite_top=int(real(2.0**128 if width == 64 and sees_exponents else np.inf).view(word)),
        emax=emax,
        half_place=1 << (places - 1) if places > 0 else 0,
        smallest_code=smallest_code,
        zero_code=zero_code,
        largest_code=0 if single else fmt.max_code,
    )
    plan = ScalePlan(
        scaling=scaling,
        largest=largest,
        width=width,
        choices=choices,
        rules=np.array([*rules, *choices, *np.array([largest, amax_floor]).view(np.int64)], np.int64),
        layout=encoder.layout,
        table=np.where(np.isnan(table), 0.0, table).astype(real),
        applied=BY_INVERSE if multiplies else BY_SCALE,
        code_dtype=None if single else fmt.storage,
    )
    return plan._replace(single_level=plan.arguments(TensorScale()))


def element_plan(options: CastOptions, width: int, *, integer: bool) -> EncodePlan:
    """Return the constants of the encoder from scaled floats of `width` bits to codes.

    options: the options of the elements' cast. integer: True for codes of integers, in which -0 becomes 0; False for
    codes of a float format.
    """
    fmt, rounding, overflow, subnormals, _, random_bits = options
    plan = encode_plan(fmt, width, rounding, overflow, subnormals, random_bits)
    if not integer:
        return plan
    fields = plan.frozen._replace(signed_from=1)  # integers have one zero
    return EncodePlan(plan.width, max(plan.kind, FULL), np.array(fields, plan.layout.dtype), fields)


def _ruled_codes(scaling: Scaling) -> tuple[int, int, int]:
    """Return (code of the smallest scale, code of the scale for tiles of zeros, code of the scale 1).

    The third is 0 unless the scaling's `zero_scale` or `infinity` is "one". All are 0 for scales in FP32, which have
    no codes.
    """
    fmt = scaling.scale_format
    if fmt == FP32:
        return 0, 0, 0
    smallest = code_of(scaling.lower_bound, fmt)
    one = code_of(1.0, fmt) if "one" in (scaling.zero_scale, scaling.infinity) else 0
    return smallest, one if scaling.zero_scale == "one" else smallest, one


def code_of(value: float, fmt: Format) -> int:
    """Return the code in `fmt`, a format of up to 16 bits, of a positive value that the format can hold."""
    return int(np.flatnonzero(fmt.table() == value)[0])
