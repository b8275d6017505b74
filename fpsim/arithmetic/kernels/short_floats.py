"""Scalar FP16 and BF16 by float32: load, store to nearest even, and BF16 results in float32's subnormal range.

BF16 products and quotients may be below float32's normal range; those are computed scaled up, and rounded to a multiple
of the smallest subnormal by adding a number whose last bit has that weight. The processor converts FP16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.casts.half import NAN as HALF_NAN
from fpsim.casts.half import from_half, to_half
from fpsim.core.elementary.steps import bits_of, float_of
from fpsim.formats.ieee import Flags
from fpsim.formats.named import BF16, FP16
from fpsim.runtime.compile import scalar

u16, u32, i32 = np.uint16, np.uint32, np.int32
f32, f64 = np.float32, np.float64

ZERO, ONE = u32(0), u32(1)
MAGNITUDE, INFINITY = u32(0x7FFFFFFF), u32(0x7F800000)
SMALLEST_NORMAL = np.int32(0x00800000)  # of float32 and BF16
CODE_MAGNITUDE, CODE_SIGN = u32(0x7FFF), u32(0x8000)
BFLOAT_NAN = u32(BF16.nan_code or 0)
HALF_INFINITY = u32(FP16.infinity_code or 0)

# Results below 2**-126, float32's smallest normal value, are computed times 2**SHIFT, where float32 is precise:
# products only if the factors are below 2**7 and one of them below 2**-63, quotients only if the dividend is below 4
# and the divisor above 2**-7. Then the scaled result is neither zero nor infinite, and what is not scaled is normal.
# Adding MAGIC, whose last bit is worth 2**SHIFT times the smallest subnormal value, 2**-133, rounds to multiples of it.
ONE_BITS = u32(0x3F800000)
FACTOR_BOUND, SMALL_FACTOR = u32(0x4300), u32(0x2000)  # the codes of 2**7 and 2**-63,
DIVIDEND_BOUND, DIVISOR_BOUND = u32(0x4080), u32(0x3C00)  # of 4 and 2**-7
PRODUCT_SHIFT, PRODUCT_MAGIC = u32(127 << 23), f32(2.0 ** (127 - 133 + 23))
QUOTIENT_SHIFT, QUOTIENT_MAGIC = u32(118 << 23), f32(2.0 ** (118 - 133 + 23))
DROPPED = u32(0xFFFF)  # the bits of a float32 that BF16 does not have

INEXACT, TINY_AND_INEXACT = u32(Flags.INEXACT), u32(Flags.INEXACT | Flags.UNDERFLOW)


# ---- BF16: the upper half of a float32


@scalar
def load_bfloat(code: Any) -> Any:
    """Return the value of a BF16 code, an unsigned integer, as float32."""
    return float_of(u32(u32(code) << u32(16)))


@scalar
def round_bfloat(bits: Any) -> Any:
    """Return the uint32 BF16 code nearest to a float32 of either sign, ties to even.

    bits: the uint32 bits of the float32, which is not NaN.
    """
    odd = u32(u32(bits >> u32(16)) & ONE)
    return u32(u32(u32(bits + u32(0x7FFF)) + odd) >> u32(16))  # a carry never changes the sign


@scalar
def store_bfloat(x: Any) -> Any:
    """Return the uint32 BF16 code nearest to a float32, ties to even; NaN becomes the canonical NaN."""
    return round_bfloat(bits_of(x)) if x == x else BFLOAT_NAN


@scalar
def _round_scaled(scaled: Any, shift: Any, magic: Any) -> Any:
    """Divide a float32 by 2**shift and round it to BF16; return (its uint32 code, whether the rounding is inexact).

    scaled: a nonnegative float32. shift: passed as shift << 23, a uint32 that is subtracted from float32 bits. magic: a
    float32 whose last bit is worth 2**shift times BF16's smallest subnormal; adding it rounds subnormal results.
    """
    magnitude = u32(bits_of(scaled) - shift)
    raised = f32(scaled + magic)
    is_tiny = i32(magnitude) < SMALLEST_NORMAL
    code = u32(bits_of(raised) - bits_of(magic)) if is_tiny else round_bfloat(magnitude)
    inexact = f32(raised - magic) != scaled if is_tiny else u32(magnitude & DROPPED) != ZERO
    return code, inexact


@scalar
def _multiply_scaled(p: Any, q: Any) -> Any:
    """Return the product of two BF16 values, scaled up if it may be too small for a normal float32, and the scale.

    p, q: BF16 codes of the factors without signs, uint32. The result is (p's value * q's value * 2**shift, float32;
    shift << 23, uint32). shift is 127 if one factor is below 2**-63 and the other below 2**7, else 0, that is, the
    product is not scaled.
    """
    small, large = u32(min(p, q)), u32(max(p, q))
    shift = PRODUCT_SHIFT if (small < SMALL_FACTOR) & (large < FACTOR_BOUND) else ZERO
    return f32(f32(load_bfloat(small) * float_of(u32(ONE_BITS + shift))) * load_bfloat(large)), shift


@scalar
def _divide_scaled(p: Any, q: Any) -> Any:
    """Return the quotient of two BF16 values, scaled up if it may be too small for a normal float32, and the scale.

    p, q: BF16 codes of the dividend and divisor without signs, uint32. The result is (p's value / q's value * 2**shift,
    float32; shift << 23, uint32). shift is 118 if the dividend is below 4 and the divisor is above 2**-7, else 0, that
    is, the quotient is not scaled.
    """
    shift = QUOTIENT_SHIFT if (p < DIVIDEND_BOUND) & (q > DIVISOR_BOUND) else ZERO
    return f32(f32(load_bfloat(p) * float_of(u32(ONE_BITS + shift))) / load_bfloat(q)), shift


def _make_scaled(scale: Any, magic: Any) -> Any:
    """Return the functions (a, b) -> code and (a, b, tiny_below) -> (code, flags) of BF16 products or quotients.

    a, b: BF16 codes; codes and flags are uint32. tiny_below: bits of the smallest magnitude that is not tiny, as
    `tiny_below` (float_plan.py) returns them if `scaled`.
    scale: `_multiply_scaled` or `_divide_scaled`, which return a result times 2**shift. magic: a float32 whose last bit
    is worth 2**shift times BF16's smallest subnormal.
    """

    @scalar
    def without_flags(a: Any, b: Any) -> Any:
        """Return the uint32 BF16 code of a product or quotient of the BF16 codes a and b, rounded to nearest even."""
        sign = u32(u32(u32(a) ^ u32(b)) & CODE_SIGN)
        scaled, shift = scale(u32(u32(a) & CODE_MAGNITUDE), u32(u32(b) & CODE_MAGNITUDE))
        code, _ = _round_scaled(scaled, shift, magic)
        return u32(code | sign) if bits_of(scaled) <= INFINITY else BFLOAT_NAN

    @scalar
    def with_flags(a: Any, b: Any, tiny_below: Any) -> Any:
        """Return (BF16 code, flags INEXACT and UNDERFLOW) of a product or quotient of the BF16 codes a and b, uint32.

        Flags of Inf and NaN results are not right; callers replace them. tiny_below: bits of the smallest magnitude
        that is not tiny, to be compared as int32.
        """
        sign = u32(u32(u32(a) ^ u32(b)) & CODE_SIGN)
        scaled, shift = scale(u32(u32(a) & CODE_MAGNITUDE), u32(u32(b) & CODE_MAGNITUDE))
        code, inexact = _round_scaled(scaled, shift, magic)
        tiny = i32(bits_of(scaled) - shift) < i32(tiny_below)
        flags = (TINY_AND_INEXACT if tiny else INEXACT) if inexact else ZERO
        return (u32(code | sign) if bits_of(scaled) <= INFINITY else BFLOAT_NAN), flags

    return without_flags, with_flags


multiply_bfloat, flagged_multiply_bfloat = _make_scaled(_multiply_scaled, PRODUCT_MAGIC)
divide_bfloat, flagged_divide_bfloat = _make_scaled(_divide_scaled, QUOTIENT_MAGIC)


@scalar
def narrow_to_odd(wide: Any) -> Any:
    """Return the uint32 bits of the float32 that a float64 becomes when it is rounded to odd."""
    near = f32(wide)
    error = f64(wide - f64(near))
    bits = bits_of(near)
    moves = u32(abs(error) > f64(0)) & u32(u32(bits ^ ONE) & ONE)  # NaN compares false
    inward = (error < f64(0)) != (bits > MAGNITUDE)
    return u32(bits - moves) if inward else u32(bits + moves)


# ---- FP16: converted by the processor


@scalar
def load_half(code: Any) -> Any:
    """Return the value of an FP16 code, an unsigned integer, as float32."""
    return float_of(from_half(u16(code)))


@scalar
def to_half_of(x: Any) -> Any:
    """Return the uint16 FP16 code nearest to a float32, ties to even; a NaN keeps the high bits of its payload."""
    return u16(to_half(bits_of(x)))


@scalar
def store_half(x: Any) -> Any:
    """Return the uint32 FP16 code nearest to a float32, ties to even; NaN becomes the canonical NaN."""
    return u32(to_half(bits_of(x))) if x == x else HALF_NAN
