"""Scalar core: encodes the bit pattern of one float to the code of a format. Integers only, so CPU and CUDA agree.

There are no branches: a subnormal result only moves the place of the last kept bit further up, and a carry out of the
mantissa increments the exponent by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.core.rounding import rounds_up_32, rounds_up_64, split_32, split_64
from fpsim.formats.rounding import Rounding
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of

# Kinds of encoders, by the parts of the layout that formats and policies need. Each adds checks to the one before.
PLAIN = 0  # signed with -0, subnormals kept, Inf treated like overflow
FULL = 1  # any signed format and policy
UNUSUAL = 2  # unsigned, without zero, powers of two, or with values below the source's normal range

SOURCE_LIFT = 64  # more than the mantissa bits of the source

DIRECTED = sum(1 << mode for mode in Rounding if mode.is_directed)  # a bit for each mode that asks for the sign


@reloadable
class EncodeLayout(NamedTuple):
    """A format's constants for encoding from a source: a float32, a float64 or an exact `Number` (core/number.py).

    Every field is an integer: a Python int, or a NumPy unsigned integer of 32 bits (float32) or 64 bits. A
    magnitude code is a code without its sign bit.

    Attributes:
      depth: the source's exponent field of the format's smallest normal value, minus 1.
      place: number of low bits that are split off a source whose exponent field is 0 or 1: depth plus the mantissa bits
        that a normal result drops.
      max_code: magnitude code of the largest finite value.
      flush_below: smaller magnitude codes become zero; 0 flushes nothing.
      overflow, overflow_negative: magnitude codes of the results for positive and for negative finite values that are
        too large; only directed modes use the second one.
      infinite: magnitude code of the result for Inf.
      nan: code of the result for NaN.
      nan_sign: bits that are inverted in `nan` for a negative NaN.
      sign_bit: mask of the sign bit.
      signed_from: the smallest magnitude code that gets the sign bit, 1 if the format has no -0, else 0.
      random_mask: mask of the top `random_bits` of 32 bits.
      parity: mask of the bits that make a kept magnitude odd: 1, or all ones if every significand is odd.
      offset: 0; for formats without zero and subnormals 2**mantissa_bits, which is subtracted from the magnitude.
      zero: code of the result for 0.
      below: code of the result for negative values if refuses_negative is 1.
      refuses_negative: 1 for an unsigned format, unless its policy casts the magnitude of negative values; else 0.
    """

    depth: Any
    place: Any
    max_code: Any
    flush_below: Any
    overflow: Any
    overflow_negative: Any
    infinite: Any
    nan: Any
    nan_sign: Any
    sign_bit: Any
    signed_from: Any
    random_mask: Any
    # The other fields matter only to unusual formats: unsigned, without zero, powers of two, or wider than the source.
    parity: Any
    offset: Any
    zero: Any
    below: Any
    refuses_negative: Any


encode_fields = fields_of(EncodeLayout)


def _make_deliver(word: type) -> Any:
    """Return the compiled function `deliver`, which turns a rounded magnitude into a signed code.

    word: np.uint32 or np.uint64, the type of codes and of the layout's fields.
    """
    zero = word(0)

    @scalar
    def deliver(
        code: Any, negative: Any, is_zero: Any, infinite: Any, nan: Any, f: EncodeLayout, mode: int, kind: int
    ) -> Any:
        """Return the signed code of a rounded magnitude, or another code of f if the format does not hold the value.

        This is f.overflow, f.infinite, f.nan, f.zero or f.below, which the overflow policy determines.
        All codes are unsigned integers of one width, 32 or 64 bits.
        code: the rounded magnitude code (without sign), as if exponents were unbounded; negative: sign of the value, 0
        or 1.
        is_zero: True if the exact value is zero; infinite: True if it is Inf or NaN; nan: True if it is NaN.
        f: EncodeLayout, the constants of the format and its policies; mode: a Rounding.
        kind: the least general encoder that suits format and policies. PLAIN: signed, with -0, subnormals kept, Inf
        treated like overflow; FULL: any signed format; UNUSUAL: any format. mode and kind are constants of the compiled
        code.
        """
        overflow = f.overflow
        if (DIRECTED >> mode) & 1:
            overflow = f.overflow if negative == zero else f.overflow_negative
        if kind != PLAIN:
            code = zero if code < f.flush_below else code
        code = overflow if code > f.max_code else code
        if kind != PLAIN:
            code = f.infinite if infinite else code
        if kind == UNUSUAL:
            code = f.zero if is_zero else code
            refused = word(word(f.refuses_negative & negative) & word((code != zero) | (f.offset != zero)))
            code = f.below if refused != zero else code

        sign = f.sign_bit if negative != zero else zero
        if kind == PLAIN:
            code = f.nan if nan else code
            return word(code | sign)
        signed = word(code | (sign if code >= f.signed_from else zero))
        return word(f.nan ^ word(sign & f.nan_sign)) if nan else signed

    return deliver


deliver_32 = _make_deliver(np.uint32)
deliver_64 = _make_deliver(np.uint64)


def _make_encode_bits(
    word: type, width: int, mantissa_bits: int, rounds_up: Any, split: Any, deliver: Any, real: type
) -> Any:
    """Return the compiled functions (encode_bits, encode_parts), which encode source floats of `width` bits.

    word, real: NumPy's unsigned integer and float types of `width` bits; width: 32 or 64; mantissa_bits: 23 or 52,
    those of `real`. rounds_up, split, deliver: the functions of core/rounding.py and of this file for words of that
    width.
    """
    zero, one = word(0), word(1)
    sign_shift = word(width - 1)
    magnitude_mask = word((1 << (width - 1)) - 1)
    mantissa = word(mantissa_bits)
    exponent_mask = (1 << (width - 1 - mantissa_bits)) - 1
    infinity = word(exponent_mask << mantissa_bits)
    hidden = word(1 << mantissa_bits)
    # Each binade of source subnormals gets its own exponent field; those of normal numbers move up by SOURCE_LIFT.
    lift = word(SOURCE_LIFT << mantissa_bits)
    source_bias = (exponent_mask >> 1) + mantissa_bits - 1  # value = integer * 2**-source_bias
    unlift = word((source_bias - SOURCE_LIFT) << mantissa_bits)

    @scalar
    def encode_parts(bits: Any, random: Any, f: EncodeLayout, mode: int, kind: int) -> Any:
        """Return (code, rest) of one float rounded once to a format; both are unsigned integers of the float's width.

        rest: nonzero if rounding dropped nonzero bits of a finite float (in stochastic mode, of those that matter),
        else 0. It does not report overflow or flushing, and has no meaning for Inf and NaN.
        bits: pattern of the float; random: 32-bit random number, used in stochastic mode.
        f: EncodeLayout, the constants of the format and its policies; mode: a Rounding.
        kind: PLAIN (signed formats with -0, Inf treated like overflow), FULL (any signed format) or UNUSUAL (any
        format).
        mode and kind are constants of the compiled code.
        """
        negative = word(bits >> sign_shift)
        magnitude = word(bits & magnitude_mask)
        exact = magnitude
        if kind == UNUSUAL:
            normalised = word(real(magnitude).view(word) - unlift)  # an exact conversion that finds the top bit
            exact = word(magnitude + lift) if magnitude >= hidden else normalised
            exact = exact if magnitude > zero else zero

        field = word(exact >> mantissa)
        drop = word(min(word(max(field, one) - one), f.depth))
        significand = word(exact - word(drop << mantissa))
        kept, rest = split(significand, word(f.place - drop), mode)
        odd = word(kept & one)
        if kind == UNUSUAL:
            odd = word(min(word(word(kept + f.offset) & f.parity), one))
        code = word(kept + rounds_up(odd, rest, negative, random, f.random_mask, mode))

        if kind == UNUSUAL:
            code = word(max(code, f.offset) - f.offset)
        is_zero, infinite, nan = magnitude == zero, magnitude >= infinity, magnitude > infinity
        return deliver(code, negative, is_zero, infinite, nan, f, mode, kind), rest

    @scalar
    def encode_bits(bits: Any, random: Any, f: EncodeLayout, mode: int, kind: int) -> Any:
        """Return the code of one float rounded once to a format, as an unsigned integer of the float's width.

        bits: pattern of the float; random: 32-bit random number, used in stochastic mode.
        f: EncodeLayout, the constants of the format and its policies; mode: a Rounding.
        kind: PLAIN (signed formats with -0, Inf treated like overflow), FULL (any signed format) or UNUSUAL (any
        format).
        mode and kind are constants of the compiled code.
        """
        code, _ = encode_parts(bits, random, f, mode, kind)
        return code

    return encode_bits, encode_parts


encode_bits_32, encode_parts_32 = _make_encode_bits(np.uint32, 32, 23, rounds_up_32, split_32, deliver_32, np.float32)
encode_bits_64, encode_parts_64 = _make_encode_bits(np.uint64, 64, 52, rounds_up_64, split_64, deliver_64, np.float64)
