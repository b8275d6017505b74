"""Scalar core: turns the largest magnitude (amax) of a tile into its scale and the factor of its elements."""

# Floats are only divided and multiplied, by single IEEE operations; as no sum follows a product, CPU and CUDA agree.
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.core.number import leading_place
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64
AMAX_BY_MAX, AMAX_TIMES_INVERSE, INVERSE_OF_ENCODE, FLOOR, CEIL, EVEN = range(6)  # rules, tabled in docs/scaling.md
POWER_RULES = {"floor": FLOOR, "twice_floor": FLOOR, "ceil": CEIL, "even": EVEN}  # those that see exponents alone
BY_SCALE, BY_INVERSE = range(2)  # what the elements are divided by or multiplied with
ZERO_TILES, NAN_TILES, INFINITE_TILES, CLAMPED_LOW, CLAMPED_HIGH = range(5)  # counters of a report
COUNTERS = 5
HAS_NAN, HAS_INFINITY = 1, 2  # what a tile holds besides finite numbers, as bits
NAN_TILE, NAN_ELEMENT = 1, 0  # treatment of a tile with NaN
SKIP, PROPAGATE, ONE = range(3)  # treatment of a tile with Inf
LARGEST = f32(np.finfo(np.float32).max)
MIRROR = 254  # E8M0 codes of x and 1 / x add up to this
LARGEST_POWER = f32(2.0**127)  # of E8M0
SMALLEST_TENSOR_SCALE = f32(2.0**-126)
SMALLEST_ENCODE_SCALE = f32(2.0**-128 + 2.0**-149)  # the first whose reciprocal float32 holds


@reloadable
class ScaleChoices(NamedTuple):
    """The integers that decide how a tile gets its scale: constants of a compiled loop, or read at run time.

    width: bits of the elements' floats, 32 or 64. rule: AMAX_BY_MAX to EVEN (docs/scaling.md). applied: BY_SCALE (a
    tile's factor divides its elements) or BY_INVERSE (it multiplies them). levels: 2 if the whole array has a scale
    too, else 1. mode, kind: the Rounding and the encoder (core/encode.py) that round scales. is_single: True if scales
    are FP32. encodes: True if max / amax is computed first, whose reciprocal is the scale.
    """

    width: int
    rule: int
    applied: int
    levels: int
    mode: int
    kind: int
    is_single: bool
    encodes: bool


scale_choices = fields_of(ScaleChoices)


def choice_words(s: ScaleChoices) -> ScaleChoices:
    """Return the ScaleChoices s with int64 fields, as numba compiles a function again for every other type."""
    words: list[Any] = [i64(choice) for choice in s]
    return ScaleChoices(*words)


@reloadable
class ScaleRules(NamedTuple):
    """The integers of a scale rule, int64: treatment of NaN and Inf, exponents, and codes of scales.

    nan: NAN_TILE (a NaN makes the tile's scale NaN) or NAN_ELEMENT (it does not). infinity: an Inf in a tile does not
    count in amax (SKIP), makes amax the float with the bits infinite_top (PROPAGATE), or makes the scale 1 (ONE). emax:
    exponent of the largest element. half_place: number that rule EVEN adds to amax's bits. nan_code, one_code: codes of
    the scales NaN and 1. smallest_code, largest_code: codes of the smallest and the largest scale. zero_code: code of
    the scale of a tile of zeros.
    """

    nan: Any
    infinity: Any
    nan_code: Any
    one_code: Any
    infinite_top: Any
    emax: Any
    half_place: Any
    smallest_code: Any
    zero_code: Any
    largest_code: Any


scale_rules = fields_of(ScaleRules)


@reloadable
class ScaleNumbers(NamedTuple):
    """The numbers of a scale rule, in floats of one width: largest values and limits of elements and scales.

    largest: the largest value of the element format; inverse: 1 / largest. amax_floor: a smaller amax counts as this.
    smallest, scale_max: the smallest and the largest scale; half_smallest: smallest / 2. zero_scale: scale of a tile of
    zeros. tensor: scale of the whole array, or 1; inverse_tensor: 1 / tensor. tensor_factor: number by which the rule
    INVERSE_OF_ENCODE multiplies amax.
    """

    largest: Any
    inverse: Any
    amax_floor: Any
    smallest: Any
    half_smallest: Any
    scale_max: Any
    zero_scale: Any
    tensor: Any
    inverse_tensor: Any
    tensor_factor: Any


scale_numbers = fields_of(ScaleNumbers)

CHOICES = len(ScaleRules._fields)  # the rules of a scaling are an int64 array: ScaleRules, then from here ScaleChoices,
EXACT = CHOICES + len(ScaleChoices._fields)  # from here the bits of two float64, the largest value and amax_floor
TABLE = len(ScaleNumbers._fields)  # its numbers: ScaleNumbers, then the values of the scale format's codes, 0 for NaN


def _make_power_quotient(word: type, real: type, width: int, mantissa_bits: int) -> Any:
    """Return the compiled function `power_quotient`, which computes a tile's power of two 2**(exponent of amax - emax).

    width, mantissa_bits: bits of the floats, and of their mantissas. word, real: NumPy's unsigned integer type and
    float type of that width.
    """
    exponent_mask = (1 << (width - 1 - mantissa_bits)) - 1
    bias = exponent_mask >> 1
    field_mask = word(exponent_mask)
    mantissa = word(mantissa_bits)
    mantissa_mask = word((1 << mantissa_bits) - 1)
    one, zero = word(1), word(0)
    lowest = -bias - mantissa_bits + 1  # exponent of the smallest subnormal

    @scalar
    def power_quotient(top: Any, emax: int, half_place: Any, rule: int) -> Any:
        """Return 2**(floor(log2(amax)) - emax), a float32 or float64; 0 if that underflows, Inf if it overflows.

        The rule CEIL takes ceil instead of floor. top: bit pattern of amax, which is finite. emax: the exponent that is
        subtracted, see ScaleRules. half_place: integer that the rule EVEN adds to `top` first, which rounds amax to
        the elements' mantissa bits. rule: FLOOR, CEIL or EVEN.
        """
        empty, moved = top == zero, np.int64(0)
        if word(top >> mantissa) == zero:  # a subnormal amax: shift its digits into those of a normal number
            moved = np.int64(mantissa_bits) - np.int64(leading_place(u64(one if empty else top)))
            top = word(top << word(moved))  # the leading digit becomes field 1
        if rule == EVEN:
            top = word(top + half_place)
        field = word(word(top >> mantissa) & field_mask)
        exponent: Any = np.int64(field) - moved - bias - emax
        if rule == CEIL:
            exponent += np.int64(1 if word(top & mantissa_mask) != zero else 0)
        exponent = max(min(exponent, bias + 1), lowest - 1)
        normal = word(word(max(exponent + bias, 0)) << mantissa)
        subnormal = word(one << word(max(min(exponent - lowest, mantissa_bits - 1), 0)))
        bits = normal if exponent > -bias else subnormal
        bits = bits if (exponent >= lowest) & (not empty) else zero
        return word(bits).view(real)

    return power_quotient


power_quotient_32 = _make_power_quotient(u32, f32, 32, 23)
power_quotient_64 = _make_power_quotient(u64, f64, 64, 52)


@reloadable
class ScaleSteps(NamedTuple):
    """Compiled scalar functions for floats of one width that turn amax, the largest magnitude of a tile, into a scale.

    `_make_scale_steps` defines them, and explains their arguments and results.

    Attributes:
      ruled_top: returns the amax that counts if the tile holds NaN or Inf.
      quotient_of: returns the scale before it is rounded.
      single_scale: returns the scale rounded to float32.
      bounded: returns the scale, raised to the smallest one allowed if it is below.
      applied_to: returns the factor that divides or multiplies elements, for a scale.
      encode_scale_of: returns the encode scale (largest element / amax), which multiplies elements.
      decode_scale_of: returns the scale for an encode scale, its reciprocal.
      tensor_scale_of: returns the scale of a whole array whose tiles have scales too.
    """

    ruled_top: Any
    quotient_of: Any
    single_scale: Any
    bounded: Any
    applied_to: Any
    encode_scale_of: Any
    decode_scale_of: Any
    tensor_scale_of: Any


def _make_scale_steps(word: type, real: type, power_quotient: Any) -> ScaleSteps:
    """Return the ScaleSteps for floats of type `real`, whose bit patterns have the unsigned integer type `word`.

    power_quotient: the function that `_make_power_quotient` returns for these types. The steps don't call `max`, which
    treats NaN differently on CPUs and GPUs.
    """
    zero, one, infinite = real(0), real(1), real(np.inf)
    nan, largest_single, largest_real = real(np.nan), real(LARGEST), real(np.finfo(real).max)

    @scalar
    def ruled_top(top: Any, specials: Any, nan_tile: Any, infinity: Any, of_one: Any, of_infinity: Any) -> Any:
        """Return the bits of the amax from which the scale of a tile is computed; `top` if all elements are finite.

        For a tile with NaN they are of_one if nan_tile (a NaN makes the scale NaN). Otherwise, for a tile with Inf,
        they depend on `infinity`: `top` if it is SKIP, of_infinity if PROPAGATE, of_one if ONE. top: bits of the
        largest finite magnitude. specials: HAS_NAN and HAS_INFINITY, or-ed, as the tile holds them. of_one: bits of 1.
        of_infinity: bits of the amax that stands for Inf.
        """
        infinite_tile = (specials & HAS_INFINITY) != 0
        top = of_infinity if infinite_tile and infinity == PROPAGATE else top
        top = of_one if infinite_tile and infinity == ONE else top
        return of_one if nan_tile and (specials & HAS_NAN) != 0 else top

    @scalar
    def quotient_of(top: Any, n: Any, emax: Any, half_place: Any, rule: int, levels: int) -> Any:
        """Return the unrounded scale of a tile, amax / n.largest as `rule` computes it; top: bits of amax.

        n: a ScaleNumbers. emax: exponent of the element format's largest value. half_place: number that the rule EVEN
        adds to amax's bits, to round it to the element's mantissa bits. rule: AMAX_BY_MAX to EVEN (docs/scaling.md).
        levels: 2 if the whole array has a scale too, else 1.
        """
        top_value = word(top).view(real)
        amax = n.amax_floor if n.amax_floor > top_value else top_value
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
        """Return a tile's scale: `quotient` rounded to float32, but at most n.scale_max if the quotient is finite.

        The result has the type `real` of `_make_scale_steps`, float32 or float64. n: a ScaleNumbers.
        """
        scale = real(f32(quotient))
        limited = n.scale_max if n.scale_max < scale else scale
        return limited if quotient < infinite else scale

    @scalar
    def bounded(top: Any, quotient: Any, scale: Any, n: Any) -> Any:
        """Return (scale, is low, is empty): a tile's scale that is at least the smallest one allowed.

        is empty: True if amax, which counts as n.amax_floor if it is smaller, is 0; the result is then n.zero_scale.
        is low: True if `scale` is below n.smallest, or `quotient` is at most half of n.smallest; the result is then
        n.smallest. Otherwise it is `scale`.
        top: bits of amax. quotient: the scale before it was rounded to `scale`. n: a ScaleNumbers.
        """
        top_value = word(top).view(real)
        amax = n.amax_floor if n.amax_floor > top_value else top_value
        empty = amax == zero
        low = ((quotient <= n.half_smallest) | (scale < n.smallest)) & (quotient == quotient)
        scale = n.smallest if low else scale
        return n.zero_scale if empty else scale, low, empty

    @scalar
    def applied_to(scale: Any, n: Any, rule: int, applied: int, levels: int) -> Any:
        """Return (float32 scale that multiplies decoded elements, factor that divides or multiplies them at encoding).

        Where an inverse overflows, the factor is the largest float, so that zeros stay zeros.
        scale: the tile's scale without the array's. n: a ScaleNumbers. rule: AMAX_BY_MAX to EVEN (docs/scaling.md).
        applied: BY_SCALE or BY_INVERSE. levels: 2 if the whole array has a scale too, else 1.
        """
        if levels == 1:
            inverse = real(one / scale)
            inverse = largest_real if largest_real < inverse else inverse
            return f32(scale), scale if applied == BY_SCALE else inverse
        total = real(scale * n.tensor)
        if rule == INVERSE_OF_ENCODE:
            factor = real(one / total)
            factor = largest_single if largest_single < factor else factor
        elif applied == BY_SCALE:
            factor = total
        else:
            factor = real(n.inverse_tensor / scale)
            factor = largest_real if largest_real < factor else factor
        return f32(total), factor

    @scalar
    def encode_scale_of(top: Any, largest: Any, amax_floor: Any, of_zeros: Any) -> Any:
        """Return (encode scale, is limited): the factor largest / amax in float32, by which elements are multiplied.

        is limited: True if the factor was lowered to the largest float32. If amax is finite, the factor is raised as
        far as its reciprocal needs to be finite. top: bit pattern of amax. largest: the largest element, float64.
        amax_floor: float64; a smaller amax counts as this. of_zeros: the encode scale for amax = 0.
        """
        top_value = f64(word(top).view(real))
        amax = amax_floor if amax_floor > top_value else top_value
        encode_scale = f32(largest / amax)
        low = encode_scale > LARGEST
        encode_scale = LARGEST if low else encode_scale
        lost = (encode_scale < SMALLEST_ENCODE_SCALE) & (amax < f64(np.inf))
        encode_scale = SMALLEST_ENCODE_SCALE if lost else encode_scale
        return of_zeros if amax == f64(0) else encode_scale, low & (amax > f64(0))

    @scalar
    def decode_scale_of(encode_scale: Any, is_single: Any) -> Any:
        """Return the float32 reciprocal of `encode_scale`; at most 2**127, the largest E8M0 scale, unless is_single."""
        scale = f32(f32(1) / f32(encode_scale))
        if is_single:
            return scale
        return LARGEST_POWER if scale > LARGEST_POWER else scale

    @scalar
    def tensor_scale_of(amax: Any, highest: Any, n: Any, is_inverse: Any) -> Any:
        """Return (scale, factor, is clamped) for the float32 scale of a whole array whose tiles have scales too.

        scale: limited so that its product with any tile's scale is finite, if amax is. factor: number by which the amax
        of a tile is multiplied to get the tile's scale, if is_inverse. is clamped: True if the scale was raised to the
        smallest one allowed. amax: largest magnitude of the array. highest: float64, the largest element value times
        the largest scale of a tile; the scale maps amax to it. n: a ScaleNumbers. is_inverse: True to compute the scale
        as the reciprocal of highest / amax, False as amax / highest.
        """
        empty = amax == zero
        top = f64(n.scale_max)
        limit = f32(f64(LARGEST) / top) if top > f64(1) else LARGEST
        limit = u32(f32(limit).view(u32) - u32(1)).view(f32) if f64(limit) * top > f64(LARGEST) else limit
        if is_inverse:
            encode_scale = f32(highest / f64(amax))
            encode_scale = f32(1) if empty else encode_scale
            clamped = encode_scale > LARGEST
            encode_scale = LARGEST if clamped else encode_scale
            lowest = f32(f32(1) / limit)
            beyond = f32(f32(1) / lowest) > limit  # its reciprocal exceeds the limit; that of the next one does not
            lowest = u32(f32(lowest).view(u32) + u32(1)).view(f32) if beyond else lowest
            encode_scale = lowest if (encode_scale < lowest) & (amax < infinite) else encode_scale
            encode_scale = f32(1) if amax == infinite else encode_scale
            factor = real(real(encode_scale) * real(n.inverse))
            factor = largest_real if largest_real < factor else factor  # Inf times an amax of 0 would be NaN
            return f32(f32(1) / encode_scale), factor, clamped
        scale = f32(f64(amax) / highest)
        scale = f32(1) if empty else scale
        scale = limit if (scale > limit) & (amax < infinite) else scale
        scale = f32(infinite) if amax == infinite else scale
        clamped = scale < SMALLEST_TENSOR_SCALE
        return SMALLEST_TENSOR_SCALE if clamped else scale, one, clamped

    return ScaleSteps(ruled_top, quotient_of, single_scale, bounded, applied_to, encode_scale_of, decode_scale_of,
                      tensor_scale_of)  # fmt: skip


scale_steps_32 = _make_scale_steps(u32, f32, power_quotient_32)
scale_steps_64 = _make_scale_steps(u64, f64, power_quotient_64)
