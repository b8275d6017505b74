"""Scalar core: the amax of a tile in, the quotient that becomes its scale out. Floats divide and multiply only.

Every step is one IEEE operation to nearest even, so that CPU and CUDA agree: no sum follows a product, so that nothing
can be contracted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.runtime.compile import scalar

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64

# How a quotient follows from amax; docs/scaling.md has the table.
AMAX_BY_MAX, AMAX_TIMES_INVERSE, INVERSE_OF_ENCODE, FLOOR, CEIL, EVEN = range(6)
# What the elements are divided by or multiplied with.
BY_SCALE, BY_INVERSE = range(2)

# Counters of a report.
ZERO_TILES, NAN_TILES, INFINITE_TILES, CLAMPED_LOW, CLAMPED_HIGH = range(5)
COUNTERS = 5
# What a tile holds besides finite numbers, as bits.
HAS_NAN, HAS_INFINITY = 1, 2
# How tiles with NaN or Inf are treated: nan="tile" or "element", and the words of infinity.
NAN_TILE, NAN_ELEMENT = 1, 0
SKIP, PROPAGATE, ONE = range(3)

LARGEST = f32(np.finfo(np.float32).max)
MIRROR = 254  # E8M0 codes of x and 1 / x add up to this
LARGEST_POWER = f32(2.0**127)  # of E8M0
SMALLEST_TENSOR_SCALE = f32(2.0**-126)


class ScaleNumbers(NamedTuple):
    """The numbers of a rule, floats of the width that the arithmetic has."""

    largest: Any  # of the element format
    inverse: Any  # 1 / largest
    amax_floor: Any
    smallest: Any  # scale
    half_smallest: Any
    scale_max: Any  # largest value of the scale format
    zero_scale: Any  # of a tile of zeros
    tensor: Any  # scale of the array, 1 without one
    inverse_tensor: Any  # 1 / tensor
    tensor_factor: Any  # what INVERSE_OF_ENCODE multiplies amax by


def _make_power_quotient(word: type, real: type, width: int, mantissa_bits: int) -> Any:
    """The quotients that are powers of two, for words of one width."""
    exponent_mask = (1 << (width - 1 - mantissa_bits)) - 1
    bias = exponent_mask >> 1
    field_mask = word(exponent_mask)
    mantissa = word(mantissa_bits)
    mantissa_mask = word((1 << mantissa_bits) - 1)
    one, zero = word(1), word(0)
    lowest = -bias - mantissa_bits + 1  # exponent of the smallest subnormal

    @scalar
    def power_quotient(top: Any, emax: int, half_place: Any, rule: int) -> Any:
        """2**(exponent of a finite amax - emax) as a float; 0 where it is too small for one, Inf where too large.

        top: bits of amax; half_place: what rounds it to the element's mantissa bits, ties away (EVEN).
        """
        if rule == EVEN:
            top = word(top + half_place)
        field = word(word(top >> mantissa) & field_mask)
        exponent: Any = np.int64(field) - bias - emax
        if rule == CEIL:
            exponent += np.int64(1 if word(top & mantissa_mask) != zero else 0)
        exponent = max(min(exponent, bias + 1), lowest - 1)
        normal = word(word(max(exponent + bias, 0)) << mantissa)
        subnormal = word(one << word(max(min(exponent - lowest, mantissa_bits - 1), 0)))
        bits = normal if exponent > -bias else subnormal
        bits = bits if exponent >= lowest else zero
        return word(bits).view(real)

    return power_quotient


power_quotient_32 = _make_power_quotient(u32, f32, 32, 23)
power_quotient_64 = _make_power_quotient(u64, f64, 64, 52)


class ScaleSteps(NamedTuple):
    """The steps from the amax of a tile to its scale, for words of one width; all are scalar functions."""

    ruled_top: Any
    quotient_of: Any
    single_scale: Any
    bounded: Any
    applied_to: Any
    encode_scale_of: Any
    decode_scale_of: Any
    tensor_scale_of: Any


def _make_scale_steps(word: type, real: type, power_quotient: Any) -> ScaleSteps:
    """The steps for words of one width; comparisons are spelt out because `max` differs from target to target."""
    zero, one, infinite = real(0), real(1), real(np.inf)
    nan, largest_single = real(np.nan), real(LARGEST)

    @scalar
    def ruled_top(top: Any, specials: Any, nan_tile: Any, infinity: Any, of_one: Any, of_infinity: Any) -> Any:
        """The amax bits that count for a tile whose finite amax is `top`: Inf, or those of scale 1, where ruled so."""
        infinite_tile = (specials & HAS_INFINITY) != 0
        top = of_infinity if infinite_tile and infinity == PROPAGATE else top
        top = of_one if infinite_tile and infinity == ONE else top
        return of_one if nan_tile and (specials & HAS_NAN) != 0 else top

    @scalar
    def quotient_of(top: Any, n: Any, emax: Any, half_place: Any, rule: int, levels: int) -> Any:
        """What is rounded into the scale format."""
        found = word(top).view(real)
        amax = n.amax_floor if n.amax_floor > found else found
        if rule == AMAX_BY_MAX:
            quotient = real(amax / n.largest)
            if levels == 2:
                quotient = real(quotient / n.tensor)
        elif rule == AMAX_TIMES_INVERSE:
            quotient = real(amax * n.inverse)
        elif rule == INVERSE_OF_ENCODE:
            quotient = real(amax * n.tensor_factor)
        else:
            quotient = power_quotient(word(real(amax).view(word)), emax, half_place, rule)
        if levels == 2:  # Inf / Inf; processors differ in the sign of the NaN that they give
            quotient = quotient if quotient == quotient else nan
        return quotient

    @scalar
    def single_scale(quotient: Any, n: Any) -> Any:
        """A quotient as a scale in FP32; Inf stays."""
        scale = real(f32(quotient))
        limited = n.scale_max if n.scale_max < scale else scale
        return limited if quotient < infinite else scale

    @scalar
    def bounded(top: Any, quotient: Any, scale: Any, n: Any) -> Any:
        """(scale, whether it is the smallest one instead, whether the tile is zero and gets the scale for that)."""
        found = word(top).view(real)
        amax = n.amax_floor if n.amax_floor > found else found
        empty = amax == zero
        low = ((quotient <= n.half_smallest) | (scale < n.smallest)) & (quotient == quotient)
        scale = n.smallest if low else scale
        return n.zero_scale if empty else scale, low, empty

    @scalar
    def applied_to(scale: Any, n: Any, rule: int, applied: int, levels: int) -> Any:
        """(the scale that decodes, in float32; what elements are divided by or multiplied with)."""
        if levels == 1:
            return f32(scale), scale if applied == BY_SCALE else real(one / scale)
        total = real(scale * n.tensor)
        if rule == INVERSE_OF_ENCODE:
            factor = real(one / total)
            factor = largest_single if largest_single < factor else factor
        elif applied == BY_SCALE:
            factor = total
        else:
            factor = real(n.inverse_tensor / scale)
        return f32(total), factor

    @scalar
    def encode_scale_of(top: Any, largest: Any, amax_floor: Any, of_zeros: Any) -> Any:
        """(largest / amax by one float64 division, rounded to float32, at most the largest one; whether it was cut)."""
        found = f64(word(top).view(real))
        amax = amax_floor if amax_floor > found else found
        encode_scale = f32(largest / amax)
        low = encode_scale > LARGEST
        encode_scale = LARGEST if low else encode_scale
        return of_zeros if amax == f64(0) else encode_scale, low & (amax > f64(0))

    @scalar
    def decode_scale_of(encode_scale: Any, is_single: Any) -> Any:
        """The float32 scale that undoes an encode scale."""
        scale = f32(f32(1) / f32(encode_scale))
        if is_single:
            return scale
        return LARGEST_POWER if scale > LARGEST_POWER else scale

    @scalar
    def tensor_scale_of(amax: Any, highest: Any, largest: Any, is_inverse: Any) -> Any:
        """(float32 scale of an array, the factor of its tiles' amaxes, whether the scale was clamped).

        highest: largest value of the scale format times that of the elements. Each step is rounded as docs/scaling.md
        says, in the width of the arithmetic, and the scale to float32.
        """
        empty = amax == zero
        if is_inverse:
            encode_scale = f32(highest / amax)
            encode_scale = f32(1) if empty else encode_scale
            clamped = encode_scale > LARGEST
            encode_scale = LARGEST if clamped else encode_scale
            encode_scale = f32(1) if encode_scale == f32(0) else encode_scale
            factor = real(real(encode_scale) * real(one / largest))
            return f32(f32(1) / encode_scale), factor, clamped
        scale = f32(real(amax / highest))
        scale = f32(1) if empty else scale
        clamped = scale < SMALLEST_TENSOR_SCALE
        return SMALLEST_TENSOR_SCALE if clamped else scale, one, clamped

    return ScaleSteps(
        ruled_top, quotient_of, single_scale, bounded, applied_to, encode_scale_of, decode_scale_of, tensor_scale_of
    )


scale_steps_32 = _make_scale_steps(u32, f32, power_quotient_32)
scale_steps_64 = _make_scale_steps(u64, f64, power_quotient_64)
