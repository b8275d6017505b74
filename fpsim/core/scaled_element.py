"""Scalar core: encodes an element with its tile's factor to a code or value, and decodes a code with its tile's scale.

Floats are only divided, multiplied and converted, one IEEE operation to nearest even at a time. No sum follows a
product, so no compiler can fuse the two, and CPU and CUDA agree.
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
    """Return the function `(code, scale, sign_bit, g)` to the bits of the float32 nearest to code * scale.

    code, scale: of the element, and its tile's float32 scale; sign_bit: mask of the sign in a code; g: DecodeLayout.
    width: bits, 32 or 64, of the float in which the product is computed; careful: scales may be NaN, 0 or Inf; a NaN
    result then gets the sign of its code explicitly.
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
    """Integers that decide how an element becomes a code: int64, compiled in as constants or read at run time.

    mode: Rounding; kind: PLAIN, FULL or UNUSUAL, the encoder's (core/encode.py); applied: BY_SCALE (the factor divides)
    or BY_INVERSE (it multiplies); integer: 1 if codes are two's complement integers.
    """

    mode: Any
    kind: Any
    applied: Any  # whether the factor divides or multiplies
    integer: Any  # 1: codes are two's complement numbers


element_choices = fields_of(ElementChoices)


@cache
def element_of(width: int, back: bool, careful: bool, encode: Any = None) -> Any:
    """Return the function `(bits, factor, scale, random, f, g, e)` from an element to its code, or its value's bits.

    bits: of the element; factor: divides or multiplies it; scale: decodes, used if `back`; random: 32-bit word; f, g:
    EncodeLayout and DecodeLayout; e: ElementChoices. back: float32 values instead of codes; careful: factors may be
    NaN, 0 or Inf (processors differ in the sign of the resulting NaN, which is set explicitly then). encode: the
    rounding function, `(bits, random, f, mode, kind) -> code`; None: `encode_bits`.
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
    """Return the function `(bits, factor, random, f)` to x / factor, or x * factor, as an integer; 32767 for NaN.

    The result is rounded and clamped to -32767 .. 32767. bits: of x, a float of `width` bits; random: 32-bit word; f:
    EncodeLayout. mode, kind: a Rounding, and PLAIN, FULL or UNUSUAL, the encoder's (core/encode.py); applied: BY_SCALE
    (divide) or BY_INVERSE (multiply).
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
    """Return the bits of the float32 nearest to (code - zero_point) * scale, as a uint32."""
    value = f32(f32(np.int64(code) - np.int64(zero_point)) * scale)
    return f32(value).view(u32) if value == value else NAN_32
