"""Scalar core: encodes an element with its tile's factor to a code or value, and decodes a code with its tile's scale.

A tile is a block of elements that share a scale. Floats are only divided, multiplied and converted, one IEEE operation
at a time. No sum follows a product, so no compiler can fuse the two, and CPU and CUDA agree.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.core.decode import decode_bits_32, decode_bits_64
from fpsim.core.encode import encode_bits_32, encode_bits_64
from fpsim.core.tile_scale import BY_SCALE
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64
NAN_32, SIGN_32 = u32(0x7FC00000), u32(0x80000000)
LARGEST_OFFSET = np.int64(32767)  # of integer_format.OFFSETS


@cache
def value_of(width: int, careful: bool) -> Any:
    """Return the compiled function `(code, scale, sign_bit, g) -> bits` that decodes one element of a scaled tile.

    bits: uint32 pattern of the float32 nearest to (value of code) * scale. code: unsigned integer of `width` bits;
    scale: the float32 scale of its tile; sign_bit: mask of the code's sign; g: DecodeLayout, the constants of the
    code's format.

    width: 32 or 64, bits of the float in which the product is computed. careful: True if scales may be NaN, 0 or Inf; a
    NaN result is then set to the quiet NaN with the code's sign, as processors differ in that sign.
    """
    real: Any = f32 if width == 32 else f64
    word: Any = u32 if width == 32 else u64
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64

    def value_bits(code: Any, scale: Any, sign_bit: Any, g: Any) -> Any:
        value = f32(real(word(decode_bits(code, g)).view(real) * scale))
        if careful:
            negative_nan = u32(NAN_32 | SIGN_32)
            signed_nan = negative_nan if word(code & sign_bit) != word(0) else NAN_32
            return f32(value).view(u32) if value == value else signed_nan
        return f32(value).view(u32)

    return scalar(value_bits)


@reloadable
class ElementChoices(NamedTuple):
    """Integers (int64) that decide how an element becomes a code: compiled in as constants, or read at run time.

    Attributes:
      mode: a Rounding.
      kind: the encoder, PLAIN (signed formats with -0, Inf treated like overflow), FULL (any signed format) or UNUSUAL
        (any format).
      applied: BY_SCALE if the tile's factor divides elements, BY_INVERSE if it multiplies them.
      integer: 1 if codes are two's complement integers, else 0.
    """

    mode: Any
    kind: Any
    applied: Any
    integer: Any


element_choices = fields_of(ElementChoices)


@cache
def element_of(width: int, back: bool, careful: bool, encode: Any = None) -> Any:
    """Return the compiled function `(bits, factor, scale, random, f, g, e)`, which encodes an element of a scaled tile.

    It returns the element's code, or, if `back`, the uint32 bits of the float32 that this code and the tile's scale
    stand for.
    bits: pattern of the element, a float of `width` bits, 32 or 64. factor: the float that divides or multiplies it.
    scale: float32 by which codes are decoded, read only if `back`. random: 32-bit random number for stochastic
    rounding. f, g: EncodeLayout and DecodeLayout, the constants of the format; e: ElementChoices.

    careful: True if factors may be NaN, 0 or Inf; a NaN quotient or product then gets the element's sign, as processors
    differ in that sign.
    encode: the rounding function `(bits, random, f, mode, kind) -> code`; None for `encode_bits`.
    """
    real: Any = f32 if width == 32 else f64
    word: Any = u32 if width == 32 else u64
    encode_bits = encode or (encode_bits_32 if width == 32 else encode_bits_64)
    value_bits = value_of(width, careful)
    sign_bit, one = word(1 << (width - 1)), i64(1)
    nan = word(0x7FC00000 if width == 32 else 0x7FF8000000000000)

    def deliver(bits: Any, factor: Any, scale: Any, random: Any, f: Any, g: Any, e: ElementChoices) -> Any:
        x = word(bits).view(real)
        y = real(x / factor) if e.applied == BY_SCALE else real(x * factor)
        scaled = real(y).view(word)
        if careful:
            scaled = scaled if y == y else word(nan | word(bits & sign_bit))
        code = encode_bits(scaled, random, f, e.mode, e.kind)
        if back:
            return value_bits(code, real(scale), f.sign_bit, g)
        # sign and magnitude become two's complement
        magnitude = word(code & word(f.sign_bit - word(1)))
        signed = word(word(0) - magnitude) if code >= f.sign_bit else magnitude
        return signed if e.integer == one else code

    return scalar(deliver)


@cache
def integer_of(width: int, mode: int, kind: int, applied: int) -> Any:
    """Return the compiled function `(bits, factor, random, f)`, which rounds a scaled element to an integer.

    It returns an int64 in -32767 .. 32767, clamped, and 32767 for NaN. bits: pattern of the element x, a float of
    `width` bits, 32 or 64; factor: the float by which x is divided or multiplied, one for all elements of a tile;
    random: 32-bit random number for stochastic rounding; f: EncodeLayout of a format whose magnitude codes are the
    integers.

    mode: a Rounding; kind: the encoder, PLAIN, FULL or UNUSUAL (core/encode.py). applied: BY_SCALE for x / factor,
    BY_INVERSE for x * factor.
    """
    real: Any = f32 if width == 32 else f64
    word: Any = u32 if width == 32 else u64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
    mode_64, kind_64 = i64(mode), i64(kind)
    divides = applied == BY_SCALE

    def to_integer(bits: Any, factor: Any, random: Any, f: Any) -> Any:
        x = word(bits).view(real)
        y = real(x / factor) if divides else real(x * factor)
        code = encode_bits(real(y).view(word), random, f, mode_64, kind_64)
        magnitude = np.int64(word(code & word(f.sign_bit - word(1))))
        integer = -magnitude if code >= f.sign_bit else magnitude
        return integer if y == y else LARGEST_OFFSET  # as formats without NaN do

    return scalar(to_integer)


@scalar
def integer_value(code: Any, zero_point: Any, scale: Any) -> Any:
    """Return the uint32 bits of the float32 nearest to (code - zero_point) * scale; a NaN becomes 0x7FC00000.

    code, zero_point: integers, whose difference float32 holds; scale: float32.
    """
    value = f32(f32(np.int64(code) - np.int64(zero_point)) * scale)
    return f32(value).view(u32) if value == value else NAN_32
