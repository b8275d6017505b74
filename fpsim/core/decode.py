"""Scalar core: decodes one code of a format to the bit pattern of a float."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of


@reloadable
class DecodeLayout(NamedTuple):
    """A format's constants for decoding its codes to a float of 32 or 64 bits, the target.

    Every field is an integer: a Python int, or a NumPy unsigned integer of the target's width. A magnitude code is
    a code without its sign bit.

    Attributes:
      magnitude_mask, sign_bit: masks of the magnitude code and of the sign bit; sign_bit is 0 for unsigned formats.
      max_code: magnitude code of the largest finite value.
      infinity: magnitude code of Inf, all ones if the format has none.
      own_nan: whole code of the canonical NaN; all ones if the format has none.
      normal_from: the smallest magnitude code that is decoded by shifting it left by `shift` bits and adding `rebias`.
      shift, rebias: number of bits, and number added modulo 2**width, for codes from normal_from on.
      scale: smaller codes are converted from integer to float; then `scale` is added to that float's bits modulo
        2**width.
    """

    magnitude_mask: Any
    sign_bit: Any
    max_code: Any
    infinity: Any
    own_nan: Any
    normal_from: Any
    shift: Any
    rebias: Any
    scale: Any


decode_fields = fields_of(DecodeLayout)


def _make_decode_bits(word: type, width: int, mantissa_bits: int, real: type) -> Any:
    """Return the compiled function `decode_bits(code, f)`, which returns the bits of a float of `width` bits.

    code: unsigned integer; f: DecodeLayout, the constants of the code's format. word, real: NumPy's unsigned integer
    and float types of `width` bits; width: 32 or 64; mantissa_bits: 23 or 52, those of `real`.
    """
    zero = word(0)
    infinity = word(((1 << (width - 1 - mantissa_bits)) - 1) << mantissa_bits)
    nan = word(infinity | word(1 << (mantissa_bits - 1)))
    sign_bit = word(1 << (width - 1))

    @scalar
    def decode_bits(code: Any, f: DecodeLayout) -> Any:
        """Return the bit pattern of the float that equals the value of a code.

        The result is an unsigned integer of the float's width. code: unsigned integer; f: DecodeLayout, the constants
        of the code's format. The canonical NaN (code f.own_nan) becomes the quiet NaN without a sign. Any other NaN
        becomes the quiet NaN with the code's sign; payloads are dropped.
        """
        magnitude = word(code & f.magnitude_mask)
        normal = word(word(magnitude << f.shift) + f.rebias)
        # a subnormal is an integer times a power of two, and the conversion of so small an integer is exact
        subnormal = word(real(magnitude).view(word) + f.scale) if magnitude != zero else zero
        bits = normal if magnitude >= f.normal_from else subnormal
        bits = nan if magnitude > f.max_code else bits
        bits = infinity if magnitude == f.infinity else bits
        bits = word(bits | (sign_bit if word(code & f.sign_bit) != zero else zero))
        return nan if code == f.own_nan else bits

    return decode_bits


decode_bits_32 = _make_decode_bits(np.uint32, 32, 23, np.float32)
decode_bits_64 = _make_decode_bits(np.uint64, 64, 52, np.float64)
