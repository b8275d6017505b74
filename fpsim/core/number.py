"""Scalar core: codes unpacked into exact numbers. Integers only, so CPU and CUDA agree.

The value is significand * 2**(field - BIAS - TOP). A significand is zero or has its highest bit at TOP. Bits that an
operation cannot keep are or-ed into bit 0 (sticky), so that a later rounding still sees that they were nonzero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of

u64 = np.uint64

TOP = 61  # significands are below 2**62, so that a shift by a whole word leaves less than half a unit
BIAS = 1 << 14  # keeps the exponents of all results positive
FIELD_OF_ZERO = 1  # below that of every other number
FIELD_OF_INFINITY = 1 << 15  # above that of every other number

FINITE, INFINITE, NAN, SIGNALLING = 0, 1, 2, 3  # the kinds

ZERO, ONE = u64(0), u64(1)
LEADING = u64(1 << TOP)


@reloadable
class Number(NamedTuple):
    """An exact number, (-1)**negative * significand * 2**(field - BIAS - TOP), with BIAS = 2**14 and TOP = 61.

    The four fields are uint64. Bit 0 of the significand of a computed number is sticky: it is also set if nonzero bits
    after it were dropped.

    Attributes:
      negative: 0 or 1.
      field: the exponent plus BIAS.
      significand: 0, or 2**61 to 2**62 - 1.
      kind: FINITE (0), INFINITE (1), NAN (2) or SIGNALLING (3, a signalling NaN).
    """

    negative: Any
    field: Any
    significand: Any
    kind: Any


@reloadable
class UnpackLayout(NamedTuple):
    """A format's constants for `unpack`, which reads codes as exact numbers; every field is a 64-bit integer.

    A magnitude code is a code without its sign bit.

    Attributes:
      magnitude_mask, sign_bit: masks of the magnitude code and of the sign bit; sign_bit is 0 for unsigned formats.
      max_code: magnitude code of the largest finite value.
      infinity: magnitude code of Inf, all ones if the format has none.
      own_nan: whole code of the canonical NaN; all ones if the format has none.
      quiet_from: the smallest magnitude code of a quiet NaN, 0 if all NaNs are quiet.
      mantissa_bits: width of the format's mantissa.
      smallest_field: exponent field of the smallest normal value: 1, or 0 if the format has no subnormals.
      flush_below: smaller magnitude codes are read as zero; 0 flushes nothing.
      rebias: BIAS minus the format's exponent bias and its mantissa bits.
    """

    magnitude_mask: Any
    sign_bit: Any
    max_code: Any
    infinity: Any
    own_nan: Any
    quiet_from: Any
    mantissa_bits: Any
    smallest_field: Any
    flush_below: Any
    rebias: Any


unpack_fields = fields_of(UnpackLayout)


@scalar
def least_field(f: UnpackLayout) -> Any:
    """Return the field, the exponent + 2**14, that a format's smallest normal value has as a Number.

    The result is a uint64. f: UnpackLayout, the format's constants.
    """
    return u64(u64(f.rebias + f.mantissa_bits) + f.smallest_field)


@scalar
def infinite(negative: Any) -> Number:
    """Return an infinity as a Number; negative: its sign as uint64, 0 or 1.

    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return Number(negative, u64(FIELD_OF_INFINITY), LEADING, u64(INFINITE))


@scalar
def leading_place(word: Any) -> Any:
    """Return the index of the highest set bit of `word`, a uint64 > 0, as a uint64; bit 0 is the lowest."""
    high = u64(word >> u64(32))
    part = high if high != ZERO else word
    # the conversion of so small an integer is exact, and its exponent says where the highest bit is
    field = u64(np.float64(part).view(np.uint64) >> u64(52))
    return u64(field - u64(1023 - 32)) if high != ZERO else u64(field - u64(1023))


@scalar
def shift_right_jam(word: Any, n: Any) -> Any:
    """Return the uint64 `word` shifted right by n >= 0 bits; bit 0 is also set if any bit that was lost is 1."""
    near = u64(min(n, u64(63)))
    kept = u64(word >> near)
    return u64(kept | u64(u64(kept << near) != word))


@scalar
def normalise(negative: Any, field: Any, word: Any) -> Number:
    """Return (-1)**negative * word * 2**(field - BIAS - TOP) as a finite Number.

    Its significand is 0 or has its highest bit at index TOP, 61. BIAS is 2**14.
    negative: 0 or 1, also the sign of a zero; field: exponent plus BIAS; word: any integer. All are uint64.
    Bits of `word` after its leading 62 are dropped, and bit 0 of the significand is set if one of them was 1.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    place = leading_place(word if word != ZERO else ONE)
    left, right = u64(TOP - min(place, u64(TOP))), u64(max(place, u64(TOP)) - u64(TOP))
    significand = shift_right_jam(u64(word << left), right)
    field = u64(u64(field + right) - left) if word != ZERO else u64(FIELD_OF_ZERO)
    return Number(negative, field, significand, u64(FINITE))


@scalar
def unpack(code: Any, f: UnpackLayout) -> Number:
    """Return the exact Number of a code.

    code: uint64; f: UnpackLayout, the constants of the code's format. Codes below f.flush_below in magnitude become
    zeros of their sign. The canonical NaN has sign 0; any NaN has kind NAN or SIGNALLING.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    magnitude = u64(code & f.magnitude_mask)
    negative = u64((u64(code & f.sign_bit) != ZERO) & (code != f.own_nan))
    is_nan = ((magnitude > f.max_code) & (magnitude != f.infinity)) | (code == f.own_nan)
    nan = u64(NAN) if magnitude >= f.quiet_from else u64(SIGNALLING)
    field = u64(magnitude >> f.mantissa_bits)
    hidden = u64(field >= f.smallest_field)
    mantissa = u64(magnitude ^ u64(field << f.mantissa_bits))
    significand = u64(mantissa | u64(hidden << f.mantissa_bits))
    significand = ZERO if magnitude < f.flush_below else significand
    x = normalise(negative, u64(u64(max(field, f.smallest_field) + f.rebias) + u64(TOP)), significand)
    if magnitude == f.infinity:
        return infinite(negative)
    return Number(negative, x.field, x.significand, nan if is_nan else u64(FINITE))
