"""Scalar core: one instruction of NVIDIA's matrix units, the specification of the fast kernels. Integers only.

All terms are aligned to the largest exponent among them, truncated, added exactly, and the sum is rounded once. The
rules are stated in docs/matrix-units.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.exact_arithmetic import add, zero
from fpsim.core.number import BIAS, NAN, TOP, ZERO, Number, UnpackLayout, normalise, unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.sums.term import (
    HAS_NAN,
    NO_SPECIAL,
    magnitude_of,
    shifted,
    signed,
    special_code,
    specials_of,
    specials_of_product,
    term_of,
)
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of

i64, u64 = np.int64, np.uint64

GROUP = 16  # products of one exact dot product of FP4
PRODUCT_BITS = i64(2)  # fraction bits of a product of two E2M1 numbers


@reloadable
class UnitLayout(NamedTuple):
    """Constants of one matrix instruction, 64-bit integers.

    Attributes:
      terms: products per instruction.
      fraction_bits: number of bits that are kept below the largest exponent.
      floor_exponent: the lowest exponent to which terms are aligned, also if all of them are zero.
      mode: Rounding of the result.
      lost: number of low bits of the result's code that are always 0; the layout of the result does not have them.
      nan: code of the instruction's NaN.
      block: number of terms that share a scale, or 0 without scales.
      kept_a, kept_b, kept_scale_bits: masks of the bits of operands' and scales' codes that the instruction reads.
      step: terms of K from one instruction to the next.
      origin: the lowest digit of an exact sum counts units of 2**origin.
    """

    terms: Any
    fraction_bits: Any
    floor_exponent: Any
    mode: Any
    lost: Any
    nan: Any
    block: Any
    kept_a: Any
    kept_b: Any
    kept_scale_bits: Any
    step: Any
    origin: Any


unit_fields = fields_of(UnitLayout)


@reloadable
class Layouts(NamedTuple):
    """The formats of a matrix instruction, as constants for reading and for writing codes.

    Attributes:
      a, b, c, scale: UnpackLayouts of both operands, of the accumulator and of scales.
      result: EncodeLayout of the result.
    """

    a: UnpackLayout
    b: UnpackLayout
    c: UnpackLayout
    scale: UnpackLayout
    result: EncodeLayout


WORDS = len(UnpackLayout._fields)


@scalar
def layouts_in(words: Any) -> Layouts:
    """Return the Layouts whose fields the 1-D integer array `words` holds, those of a, b, c, scale, result in turn."""
    a, b = unpack_fields(words), unpack_fields(words[WORDS:])
    c, scale = unpack_fields(words[2 * WORDS :]), unpack_fields(words[3 * WORDS :])
    return Layouts(a, b, c, scale, encode_fields(words[4 * WORDS :]))


@scalar
def packed(x: Number, f: EncodeLayout, mode: Any, u: UnitLayout) -> Any:
    """Return the code, a uint64, of the Number x rounded once to the bits of the result.

    f: EncodeLayout of the result without the u.lost low bits, which are appended as zeros; mode: a Rounding; u:
    UnitLayout. A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    code, _ = pack(x, NO_FLAG, ZERO, f, mode, ZERO)
    return u64(code << u64(u.lost))


@scalar
def packed_or_nan(x: Number, f: EncodeLayout, mode: Any, u: UnitLayout) -> Any:
    """Return the code, a uint64, of the Number x rounded once to the bits of the result; a NaN becomes the unit's NaN.

    f: EncodeLayout of the result without the u.lost low bits, which are appended as zeros; mode: a Rounding; u:
    UnitLayout. A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return u64(u.nan) if x.kind >= u64(NAN) else packed(x, f, mode, u)


@scalar
def operand_at(codes: Any, k: Any, kept: Any, f: UnpackLayout) -> Number:
    """Return codes[k] as an exact Number, or +0 if k is beyond the array's end.

    codes: 1-D array; kept: mask of the bits of a code that the unit reads; f: UnpackLayout of the codes' format.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return unpack(u64(u64(codes[k]) & u64(kept)), f) if k < i64(codes.size) else zero(ZERO)


@scalar
def special_result(specials: Any, f: EncodeLayout, u: UnitLayout) -> Any:
    """Return the code, a uint64, of a sum with NaN or Inf among its terms.

    specials: flags HAS_NAN, HAS_PLUS (+Inf) and HAS_MINUS (-Inf), or-ed. f: EncodeLayout of the result without the
    u.lost low bits; u: UnitLayout, constants of the instruction.
    """
    return special_code(specials, u64(u.nan), u64(f.infinite << u64(u.lost)), u64(f.sign_bit << u64(u.lost)))


@scalar
def rounded(total: Any, exponent: Any, f: EncodeLayout, u: UnitLayout) -> Any:
    """Return the code, a uint64, of total * 2**exponent, rounded once by u.mode; a zero gets the sign +.

    total, exponent: int64; f: EncodeLayout of the result; u: UnitLayout, constants of the instruction.
    """
    negative, magnitude = magnitude_of(total)
    x = normalise(negative, u64(i64(exponent + i64(BIAS + TOP))), magnitude)
    return packed(x, f, u.mode, u)


@scalar
def positive_zero(code: Any, f: EncodeLayout, u: UnitLayout) -> Any:
    """Return the uint64 code, with +0 in place of -0.

    f: EncodeLayout of the result without the u.lost low bits; u: UnitLayout, constants of the instruction.
    """
    return ZERO if code == u64(f.sign_bit << u64(u.lost)) else code


@scalar
def fused_step(
    a: Any, b: Any, start: Any, stride: Any, c: Any, scale_exponent: Any, specials: Any, f: Layouts, u: UnitLayout
) -> Any:
    """Return the code of c plus the products of one instruction, truncated, added exactly, and rounded once by u.mode.

    c and the products are aligned to the largest exponent of those that are not 0 (at least u.floor_exponent) and
    truncated to u.fraction_bits bits after it; a zero result is +0.
    a, b: 1-D arrays of codes, a row of A and a column of B. start: index of the first product, int64. stride: the
    products are of elements start, start + 1, start + stride, start + stride + 1, ..., so 2 for consecutive ones;
    elements beyond the row's end count as 0. c: code of the accumulator; the result is the code of the new one, both
    uint64.
    scale_exponent: int64, added to the exponent of every product. specials: flags HAS_NAN, HAS_PLUS (+Inf) and
    HAS_MINUS (-Inf) of scales, or-ed. f: Layouts, the formats; u: UnitLayout, constants of the instruction.
    """
    largest = u.floor_exponent
    places = i64(i64(f.a.mantissa_bits) + i64(f.b.mantissa_bits))
    for i in range(u.terms):
        k = i64(start + i64(i64(i >> 1) * stride)) + i64(i & 1)
        if k < a.size:
            x, y = term_of(u64(u64(a[k]) & u64(u.kept_a)), f.a), term_of(u64(u64(b[k]) & u64(u.kept_b)), f.b)
            specials = i64(specials | specials_of_product(x, y))
            if (x.significand != i64(0)) & (y.significand != i64(0)):
                largest = max(largest, i64(i64(x.exponent + y.exponent) + scale_exponent))
    z = term_of(c, f.c)
    specials = i64(specials | specials_of(z))
    if z.significand != i64(0):
        largest = max(largest, z.exponent)
    if specials != NO_SPECIAL:
        return special_result(specials, f.result, u)
    total = i64(0)
    for i in range(u.terms):
        k = i64(start + i64(i64(i >> 1) * stride)) + i64(i & 1)
        if k < a.size:
            x, y = term_of(u64(u64(a[k]) & u64(u.kept_a)), f.a), term_of(u64(u64(b[k]) & u64(u.kept_b)), f.b)
            exponent = i64(i64(x.exponent + y.exponent) + scale_exponent)
            left = i64(i64(exponent - largest) + i64(u.fraction_bits - places))
            product = shifted(i64(x.significand * y.significand), left)
            total = i64(total + signed(i64(x.negative ^ y.negative), product))
    left = i64(i64(z.exponent - largest) + i64(u.fraction_bits - i64(f.c.mantissa_bits)))
    total = i64(total + signed(z.negative, shifted(z.significand, left)))
    return positive_zero(rounded(total, i64(largest - u.fraction_bits), f.result, u), f.result, u)


@scalar
def scaled_step(a: Any, b: Any, scale_a: Any, scale_b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c plus the products of one instruction, multiplied by the scales of its block.

    c and the scaled products are aligned to the largest exponent, truncated to u.fraction_bits bits after it, added
    exactly, and rounded once by u.mode.
    a, b: 1-D arrays of codes, a row of A and a column of B; scale_a, scale_b: 1-D arrays of codes of their scales,
    powers of two, one per block of u.block terms. start: index of the first product, int64. c: code of the accumulator;
    the result is the code of the new one, both uint64. f: Layouts, the formats; u: UnitLayout, constants of the
    instruction.
    """
    block = i64(start // u.block)
    p = term_of(u64(u64(scale_a[block]) & u64(u.kept_scale_bits)), f.scale)
    q = term_of(u64(u64(scale_b[block]) & u64(u.kept_scale_bits)), f.scale)
    specials = HAS_NAN if (p.kind == i64(NAN)) | (q.kind == i64(NAN)) else NO_SPECIAL
    return fused_step(a, b, start, i64(2), c, i64(p.exponent + q.exponent), specials, f, u)


@scalar
def _group(a: Any, b: Any, start: Any, f: Layouts) -> Any:
    """Return (exact dot product of up to 16 E2M1 codes, nonzero if any product is nonzero), two int64.

    a, b: 1-D arrays of codes, a row of A and a column of B. start: index of the first product. The dot product ends at
    the row's end and is in units of 2**-PRODUCT_BITS. f: Layouts, the formats.
    """
    total, any_product = i64(0), i64(0)
    for k in range(start, min(start + GROUP, a.size)):
        x, y = term_of(u64(a[k]), f.a), term_of(u64(b[k]), f.b)
        left = i64(x.exponent + y.exponent)  # >= 0: the smallest exponent of E2M1 is 0
        product = i64(i64(x.significand * y.significand) << left)
        total = i64(total + signed(i64(x.negative ^ y.negative), product))
        any_product = i64(any_product | product)
    return total, any_product


@scalar
def grouped_step(a: Any, b: Any, scale_a: Any, scale_b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c plus exact dot products of 16 terms, each multiplied by the scales of its block.

    There are u.terms / 16 of them, fewer at the row's end. c and the dot products are aligned to the largest exponent,
    truncated to u.fraction_bits bits after it, added exactly, and rounded once by u.mode. A dot product's exponent is
    the sum of its scales' exponents, even if its products cancel to zero.
    a, b: 1-D arrays of FP4 (E2M1) codes, a row of A and a column of B; scale_a, scale_b: 1-D arrays of codes of their
    scales, one per block of u.block terms. start: index of the first product, int64. c: code of the accumulator; the
    result is the code of the new one, both uint64. f: Layouts, the formats; u: UnitLayout, constants of the
    instruction.
    """
    largest = u.floor_exponent
    z = term_of(c, f.c)
    specials = specials_of(z)
    if z.significand != i64(0):
        largest = max(largest, z.exponent)
    stop = min(i64(start + u.terms), i64(a.size))
    for first in range(start, stop, GROUP):
        p = term_of(u64(u64(scale_a[first // u.block]) & u64(u.kept_scale_bits)), f.scale)
        q = term_of(u64(u64(scale_b[first // u.block]) & u64(u.kept_scale_bits)), f.scale)
        _, any_product = _group(a, b, first, f)
        if (p.kind == i64(NAN)) | (q.kind == i64(NAN)):
            specials = i64(specials | HAS_NAN)
        if (any_product != i64(0)) & (p.significand != i64(0)) & (q.significand != i64(0)):
            largest = max(largest, i64(p.exponent + q.exponent))
    if specials != NO_SPECIAL:
        return special_result(specials, f.result, u)
    places = i64(PRODUCT_BITS + i64(i64(f.scale.mantissa_bits) + i64(f.scale.mantissa_bits)))
    total = i64(0)
    for first in range(start, stop, GROUP):
        p = term_of(u64(u64(scale_a[first // u.block]) & u64(u.kept_scale_bits)), f.scale)
        q = term_of(u64(u64(scale_b[first // u.block]) & u64(u.kept_scale_bits)), f.scale)
        group, _ = _group(a, b, first, f)
        negative, magnitude = magnitude_of(group)
        magnitude = i64(i64(magnitude) * i64(p.significand * q.significand))
        left = i64(i64(i64(p.exponent + q.exponent) - largest) + i64(u.fraction_bits - places))
        total = i64(total + signed(i64(negative), shifted(magnitude, left)))
    left = i64(i64(z.exponent - largest) + i64(u.fraction_bits - i64(f.c.mantissa_bits)))
    total = i64(total + signed(z.negative, shifted(z.significand, left)))
    return positive_zero(rounded(total, i64(largest - u.fraction_bits), f.result, u), f.result, u)


@scalar
def two_pass_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c plus the products of two FP16 instructions: terms 0, 1 of every four, then terms 2, 3.

    The first instruction starts from +0, the second from the first's result; c is added last, and that sum rounded to
    nearest even.
    a, b: 1-D arrays of codes, a row of A and a column of B; start: index of the first product, int64. c: code of the
    accumulator; the result is the code of the new one, both uint64. f: Layouts, the formats; u: UnitLayout, constants
    of the instruction.
    """
    partial = ZERO
    for half in range(2):
        partial = fused_step(a, b, i64(start + i64(2 * half)), i64(4), partial, i64(0), NO_SPECIAL, f, u)
    x, _ = add(unpack(c, f.c), unpack(partial, f.c), NEAREST_EVEN)
    return packed_or_nan(x, f.result, NEAREST_EVEN, u)
