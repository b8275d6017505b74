"""Scalar core: next code up or down, negation, absolute value and class of a code. Integers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.encode import EncodeLayout
from fpsim.core.number import INFINITE, NAN, ONE, SIGNALLING, ZERO, Number, UnpackLayout
from fpsim.core.pack import INVALID, NO_FLAG
from fpsim.formats.ieee import FloatClass
from fpsim.runtime.compile import scalar

u64 = np.uint64

NEGATIVE_SUBNORMAL, NEGATIVE_NORMAL = u64(FloatClass.NEGATIVE_SUBNORMAL), u64(FloatClass.NEGATIVE_NORMAL)
NEGATIVE_ZERO, NEGATIVE_INFINITY = u64(FloatClass.NEGATIVE_ZERO), u64(FloatClass.NEGATIVE_INFINITY)
SIGNALING_NAN, QUIET_NAN = u64(FloatClass.SIGNALING_NAN), u64(FloatClass.QUIET_NAN)
MIRROR = u64(FloatClass.NEGATIVE_INFINITY + FloatClass.POSITIVE_INFINITY)  # the classes of x and -x add up to this


@scalar
def neighbour(code: Any, x: Number, downward: Any, g: UnpackLayout, f: EncodeLayout) -> Any:
    """Return (code, flags), two uint64: the code of the next larger value, or of the next smaller one.

    downward: 1 for the next smaller value, 0 for the next larger one. code: uint64; x: the same code as an exact
    `Number` (core/number.py: sign, exponent, significand of 62 bits, kind). g, f: UnpackLayout and EncodeLayout of the
    format, its constants for reading and for writing codes.
    The value after the largest finite one is what the overflow policy in f makes of Inf. Below zero, an unsigned format
    has no value, and the result is f.below. The result for a NaN is f.nan.
    flags: INVALID, a bit of `fp.Flags`, for a signalling NaN, else 0.
    """
    magnitude = u64(code & g.magnitude_mask)
    is_zero = (magnitude == ZERO) & (f.offset == ZERO)
    signed = g.sign_bit != ZERO
    sign = g.sign_bit if (downward if is_zero else x.negative) != ZERO else ZERO
    outward = (x.negative == downward) | (is_zero & signed)
    beyond = u64(f.infinite | sign)
    further = u64(u64(magnitude + ONE) | sign)
    further = beyond if magnitude == f.max_code else further
    further = u64(magnitude | sign) if x.kind == u64(INFINITE) else further
    nearer = u64(f.max_code) if x.kind == u64(INFINITE) else u64(magnitude - ONE)
    nearer = u64(nearer | (sign if nearer >= f.signed_from else ZERO))
    nearer = f.below if magnitude == ZERO else nearer  # an unsigned format has no value below zero
    result = further if outward else nearer
    if x.kind >= u64(NAN):
        return f.nan, (INVALID if x.kind == u64(SIGNALLING) else NO_FLAG)
    return result, NO_FLAG


@scalar
def classify(code: Any, x: Number, g: UnpackLayout) -> Any:
    """Return the number of a code's IEEE 754 class in `fp.FloatClass`, as a uint64.

    code: uint64; x: the same code as an exact `Number` (core/number.py: sign, exponent, significand of 62 bits, kind);
    g: UnpackLayout, the format's masks and codes.
    """
    magnitude = u64(code & g.magnitude_mask)
    normal = u64(magnitude >> g.mantissa_bits) >= g.smallest_field
    kind = NEGATIVE_NORMAL if normal else NEGATIVE_SUBNORMAL
    kind = NEGATIVE_ZERO if x.significand == ZERO else kind
    kind = NEGATIVE_INFINITY if x.kind == u64(INFINITE) else kind
    kind = kind if x.negative != ZERO else u64(MIRROR - kind)
    if x.kind >= u64(NAN):
        return SIGNALING_NAN if x.kind == u64(SIGNALLING) else QUIET_NAN
    return kind


@scalar
def negative(code: Any, x: Number, g: UnpackLayout, f: EncodeLayout) -> Any:
    """Return the code of -x, a uint64; a NaN gets the other sign if the format's NaNs have one.

    code: uint64; x: the same code as an exact `Number` (core/number.py: sign, exponent, significand of 62 bits, kind).
    g, f: UnpackLayout and EncodeLayout of the format, its constants for reading and for writing codes.
    In an unsigned format, 0 and NaN are returned unchanged. Other codes become f.below: the code to which the overflow
    policy in f (such as "saturate") casts negative values. In a signed format without -0, zero and a NaN that has the
    code of -0 are returned unchanged.
    """
    is_zero = (code & g.magnitude_mask) == ZERO  # without -0, the code of NaN too
    flipped = u64(code ^ g.sign_bit)
    signed = code if is_zero & (f.signed_from != ZERO) else flipped
    keeps = (x.kind >= u64(NAN)) | (is_zero & (f.offset == ZERO))
    unsigned = code if keeps else f.below
    return signed if g.sign_bit != ZERO else unsigned


@scalar
def absolute(code: Any, g: UnpackLayout) -> Any:
    """Return the code of |x| for the code of x, both uint64: the sign bit is cleared, of a NaN too.

    A canonical NaN whose code is that of -0 is returned unchanged. g: UnpackLayout, the format's masks and codes.
    """
    return code if code == g.own_nan else u64(code & g.magnitude_mask)
