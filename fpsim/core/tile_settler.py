"""Scalar core: the functions that compute the scale of a tile, its code and the factor of its elements."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64
from fpsim.core.tile_scale import (
    CLAMPED_HIGH,
    CLAMPED_LOW,
    HAS_INFINITY,
    HAS_NAN,
    INFINITE_TILES,
    INVERSE_OF_ENCODE,
    MIRROR,
    NAN_TILE,
    NAN_TILES,
    ONE,
    PROPAGATE,
    SMALLEST_ENCODE_SCALE,
    ZERO_TILES,
    scale_steps_32,
    scale_steps_64,
)
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64


@reloadable
class TileSettler(NamedTuple):
    """Compiled scalar functions that compute the scale of a tile: three steps, or all of them in `settle_tile`.

    Their arguments and results are explained at `tile_settler`.

    Attributes:
      quotient_of: function (top, specials, n, exact, r, s) -> (quotient, was cut): the number that is rounded into the
        scale format, and whether it was reduced to the largest encode scale.
      code_of: function (quotient, f, s) -> code of the quotient in the scale format.
      scale_of: function (top, specials, quotient, code, held, n, r, s) -> (scale, code, factor, events); `held` is the
        value of `code`.
      settle_tile: function (top, specials, n, exact, r, f, table, s) -> (scale, code, factor, events).
    """

    quotient_of: Any
    code_of: Any
    scale_of: Any
    settle_tile: Any


@cache
def tile_settler(width: int, encodes: bool) -> TileSettler:
    """Return the functions that compute a tile's scale, factor and events, for floats of `width` bits (32 or 64).

    Args:
      width: bits of the elements' floats.
      encodes: True if the encode scale max / amax is computed first; its reciprocal is then the scale.

    The arguments of the functions are:

    - top: the bit pattern of amax, the largest magnitude of the tile, an unsigned integer of `width` bits.
    - specials: HAS_NAN and HAS_INFINITY, added, for what the tile holds besides finite numbers.
    - n: a ScaleNumbers. r: a ScaleRules. s: a ScaleChoices, int64.
    - exact: float64 array of the largest value of the element format, and amax_floor.
    - f: an EncodeLayout of the scale format. table: values of the scale format's codes, 0 for NaN.

    The results are scale: float32, with which elements are decoded; code: its code; factor: the float that elements are
    divided by or multiplied with; events: bit i is set if counter i (ZERO_TILES, CLAMPED_LOW, ...) goes up by one.
    """
    word: Any = u32 if width == 32 else u64
    real: Any = f32 if width == 32 else f64
    steps = scale_steps_32 if width == 32 else scale_steps_64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
    ruled_top, encode_scale_of, decode_scale_of = steps.ruled_top, steps.encode_scale_of, steps.decode_scale_of
    quotient_by_rule, single_scale, bounded, applied_to = (
        steps.quotient_of, steps.single_scale, steps.bounded, steps.applied_to)  # fmt: skip
    zero, one, nan, infinite = real(0), real(1), real(np.nan), f32(np.inf)
    of_one = word(one.view(word))
    of_zero, of_low, of_high = 1 << ZERO_TILES, 1 << CLAMPED_LOW, 1 << CLAMPED_HIGH
    of_nan, of_infinity = 1 << NAN_TILES, 1 << INFINITE_TILES

    @scalar
    def top_of(top: Any, specials: Any, r: Any) -> Any:
        return ruled_top(word(top), specials, r.nan == NAN_TILE, r.infinity, of_one, word(r.infinite_top))

    def decode_quotient(top: Any, specials: Any, n: Any, exact: Any, r: Any, s: Any) -> Any:
        ruled = top_of(top, specials, r)
        return quotient_by_rule(ruled, n, i64(r.emax), word(r.half_place), s.rule, s.levels), False

    def encode_quotient(top: Any, specials: Any, n: Any, exact: Any, r: Any, s: Any) -> Any:
        of_zeros = f32(f32(1) / f32(n.zero_scale))
        encode_scale, cut = encode_scale_of(top_of(top, specials, r), exact[0], exact[1], of_zeros)
        return real(encode_scale), cut

    def code_of_decode_scale(quotient: Any, f: Any, s: Any) -> Any:
        return word(encode_bits(real(quotient).view(word), word(0), f, s.mode, s.kind))

    def code_of_encode_scale(quotient: Any, f: Any, s: Any) -> Any:
        return word(encode_bits_32(f32(quotient).view(u32), u32(0), f, s.mode, s.kind))

    @scalar
    def from_decode_scale(top: Any, quotient: Any, code: Any, held: Any, n: Any, r: Any, s: Any) -> Any:
        """Return (scale, code, factor, was raised, was lowered) of a tile whose scale rounds to the argument `code`.

        The returned code is that of the scale after raising or lowering. scale: float32, with which elements are
        decoded. factor: the float by which elements are divided (s.applied is BY_SCALE) or multiplied (BY_INVERSE)
        before they are rounded. was raised, was lowered: True if the scale had to be raised to the smallest one, or
        lowered to the largest.

        top: bits of amax. quotient: the scale before it was rounded. code: code of the rounded quotient in the scale
        format. held: value of `code`. n: a ScaleNumbers. r: a ScaleRules. s: a ScaleChoices.
        """
        scale = single_scale(quotient, n) if s.is_single != 0 else real(held)
        over = (quotient == real(infinite)) & (word(top).view(real) < real(infinite))  # of finite elements
        scale = n.scale_max if over else scale
        code = word(r.largest_code) if over else word(code)
        clamped = False
        if s.rule != INVERSE_OF_ENCODE:
            scale, low, empty = bounded(top, quotient, scale, n)
            code = word(r.smallest_code) if low else word(code)
            code = word(r.zero_code) if empty else code
            clamped = low & (not empty)
        single, factor = applied_to(scale, n, s.rule, s.applied, s.levels)
        return f32(single), word(code), real(factor), clamped, quotient > n.scale_max

    @scalar
    def from_encode_scale(top: Any, quotient: Any, code: Any, held: Any, n: Any, r: Any, s: Any) -> Any:
        """Return (scale, code, factor, False, was lowered) of a tile whose encode scale rounds to `code`.

        The scale is the reciprocal of the encode scale. False: the scale is never raised here. was lowered: True if
        scales are FP32 and the encode scale is the smallest one with a finite reciprocal. quotient: the encode scale
        before it was rounded. code: its code in the scale format; held: the code's value. s: a ScaleChoices. top, n and
        r are not used.
        """
        factor = real(quotient)
        if s.is_single == 0:  # an encode scale of 0, that of an infinite amax, has no code, and stays
            factor = real(held) if quotient > zero else zero
        high = (s.is_single != 0) & (quotient > zero) & (quotient <= real(SMALLEST_ENCODE_SCALE))
        return f32(decode_scale_of(factor, s.is_single != 0)), word(u32(MIRROR) - u32(code)), factor, False, high

    held_scale = from_encode_scale if encodes else from_decode_scale

    def scale_of(top: Any, specials: Any, quotient: Any, code: Any, held: Any, n: Any, r: Any, s: Any) -> Any:
        ruled = top_of(top, specials, r)
        scale, code, factor, low, high = held_scale(ruled, quotient, code, held, n, r, s)
        has_nan, has_infinity = (specials & HAS_NAN) != 0, (specials & HAS_INFINITY) != 0
        lost, is_one = has_nan & (r.nan == NAN_TILE), has_infinity & (r.infinity == ONE)
        unbounded = has_infinity & (r.infinity == PROPAGATE) & (scale == infinite)
        events = (of_zero if ruled == word(0) else 0) | (of_low if low else 0) | (of_high if high else 0)
        events = 0 if lost | is_one | unbounded else events  # a scale that is NaN, 1 or Inf by rule was not clamped
        scale = f32(1) if is_one else scale
        code, factor = word(r.one_code) if is_one else code, one if is_one else factor
        events |= (of_nan if has_nan else 0) | (of_infinity if has_infinity else 0)
        return f32(nan) if lost else scale, word(r.nan_code) if lost else code, nan if lost else factor, events

    find_quotient = scalar(encode_quotient if encodes else decode_quotient)
    find_code = scalar(code_of_encode_scale if encodes else code_of_decode_scale)
    find_scale = scalar(scale_of)

    def settle_tile(top: Any, specials: Any, n: Any, exact: Any, r: Any, f: Any, table: Any, s: Any) -> Any:
        quotient, cut = find_quotient(top, specials, n, exact, r, s)
        code, held = word(0), zero
        if s.is_single == 0:
            code = find_code(quotient, f, s)
            held = table[code]
        scale, code, factor, events = find_scale(top, specials, quotient, code, held, n, r, s)
        return scale, code, factor, events | (of_low if cut else 0)

    return TileSettler(find_quotient, find_code, find_scale, scalar(settle_tile))
