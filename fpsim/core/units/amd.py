"""Scalar core: one instruction of AMD's matrix units, and of fused multiply-adds. Integers only.

The rules are stated in docs/matrix-units.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.exact_arithmetic import add, multiply, zero
from fpsim.core.number import BIAS, FINITE, TOP, ZERO, Number, least_field, normalise, unpack
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.sums.long_sum import add_product, add_term, clear, total
from fpsim.core.sums.term import (
    HAS_MINUS,
    HAS_PLUS,
    NO_SPECIAL,
    magnitude_of,
    shifted,
    signed,
    specials_of,
    specials_of_product,
    term_of,
)
from fpsim.core.units.nvidia import Layouts, UnitLayout, packed, packed_or_nan, rounded, special_result
from fpsim.runtime.compile import scalar

i64, u64 = np.int64, np.uint64

NOTHING = i64(-(1 << 20))  # the exponent of a sum without terms, below all others
SUM_BITS = i64(32)  # fraction bits that the sum of products keeps when the accumulator is added
RESULT_BITS = i64(31)  # fraction bits that the total keeps before it is rounded
OVERFLOWS = i64(128)  # the exponent from which a product is infinite


@scalar
def exact_step(a: Any, b: Any, start: Any, c: Any, digits: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c plus the products of one instruction, summed exactly and rounded once to nearest even.

    a, b: 1-D arrays of codes, a row of A and a column of B; start: index of the first product, int64; the instruction
    ends at the end of the row. c: code of the accumulator; the result is the code of the new one, both uint64. digits:
    int64 scratch array for the exact sum, overwritten. f: Layouts, the formats; u: UnitLayout, constants of the
    instruction.
    A fused multiply-add (one product) keeps the -0 of IEEE 754; longer instructions return +0 for every sum that is
    zero.
    """
    z = term_of(c, f.c)
    specials = specials_of(z)
    negative = z.negative if u.terms == i64(1) else i64(0)
    places = i64(i64(f.a.mantissa_bits) + i64(f.b.mantissa_bits))
    clear(digits)
    add_term(digits, u.origin, z, i64(f.c.mantissa_bits))
    for k in range(start, min(i64(start + u.terms), i64(a.size))):
        x, y = term_of(u64(u64(a[k]) & u64(u.kept_a)), f.a), term_of(u64(u64(b[k]) & u64(u.kept_b)), f.b)
        specials = i64(specials | specials_of_product(x, y))
        negative = i64(negative & i64(x.negative ^ y.negative))
        add_product(digits, u.origin, x, y, places)
    if specials != NO_SPECIAL:
        return special_result(specials, f.result, u)
    return packed(total(digits, u.origin, negative), f.result, NEAREST_EVEN, u)


@scalar
def _flushed(x: Number, least: Any) -> Number:
    """Return the Number x, or +0 if it is zero or below the smallest normal value.

    least: field (exponent + 2**14) of the smallest normal value, uint64. Inf and NaN are returned unchanged.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return zero(ZERO) if (x.kind == u64(FINITE)) & ((x.field < least) | (x.significand == ZERO)) else x


@scalar
def _flushed_product(a: Any, b: Any, k: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of a[k] * b[k] in the accumulator's format, rounded once; +0 if k is beyond the row's end.

    Operands and products below the smallest normal value of their formats count as +0. a, b: 1-D arrays of codes. f:
    Layouts, the formats of the instruction; u: UnitLayout, its constants.
    """
    if k >= a.size:
        return ZERO
    x = _flushed(unpack(u64(u64(a[k]) & u64(u.kept_a)), f.a), least_field(f.a))
    y = _flushed(unpack(u64(u64(b[k]) & u64(u.kept_b)), f.b), least_field(f.b))
    product, _ = multiply(x, y)
    return packed_or_nan(product, f.result, NEAREST_EVEN, u)


@scalar
def flushed_step(a: Any, b: Any, start: Any, c: Any, nodes: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c + (p0 + p1), or of c + ((p0 + p1) + (p2 + p3)), for the products of one instruction.

    Every product and sum is rounded to float32 with subnormals flushed; subnormal operands are read as +0, and so is c
    if start is 0 (a later c is never subnormal). u.terms says whether the products p are 2 or 4.
    a, b: 1-D arrays of codes, a row of A and a column of B; start: index of the first product, int64. c: code of the
    accumulator; the result is the code of the new one, both uint64. nodes: int64 scratch array of 2 * u.terms codes,
    overwritten. f: Layouts, the formats; u: UnitLayout, constants of the instruction.
    """
    if start == i64(0):
        x = _flushed(unpack(c, f.c), least_field(f.c))
        c = ZERO if (x.significand == ZERO) & (x.kind == u64(FINITE)) else c
    nodes[0] = i64(c)
    for i in range(u.terms):
        nodes[u.terms + i] = i64(_flushed_product(a, b, i64(start + i), f, u))
    for i in range(u.terms - 1, -1, -1):
        x, _ = add(unpack(u64(nodes[2 * i]), f.c), unpack(u64(nodes[2 * i + 1]), f.c), NEAREST_EVEN)
        nodes[i] = i64(packed_or_nan(x, f.result, NEAREST_EVEN, u))
    return u64(nodes[0])


@scalar
def _cut_products(a: Any, b: Any, start: Any, stop: Any, stride: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return (sum, exponent, flags), int64, of every stride-th product of indices start .. stop - 1, aligned and cut.

    Products are aligned to the largest exponent, truncated to u.fraction_bits bits after it, and added. a, b: 1-D
    arrays of codes, a row of A and a column of B. sum: in units of 2**(exponent - u.fraction_bits). flags: HAS_NAN,
    HAS_PLUS (+Inf) and HAS_MINUS (-Inf), or-ed; a product of 2**128 or more counts as Inf. f: Layouts, the formats; u:
    UnitLayout, constants of the instruction.
    """
    largest, specials, sum_ = NOTHING, NO_SPECIAL, i64(0)
    places = i64(i64(f.a.mantissa_bits) + i64(f.b.mantissa_bits))
    for k in range(start, stop, stride):
        x, y = term_of(u64(u64(a[k]) & u64(u.kept_a)), f.a), term_of(u64(u64(b[k]) & u64(u.kept_b)), f.b)
        product, exponent = i64(x.significand * y.significand), i64(x.exponent + y.exponent)
        specials = i64(specials | specials_of_product(x, y))
        if product != i64(0):
            largest = max(largest, exponent)
            place = i64(i64(OVERFLOWS - exponent) + places)  # position of 2**128 in units of the product
            if i64(product >> min(max(place, i64(0)), i64(63))) != i64(0):
                specials = i64(specials | (HAS_PLUS if x.negative == y.negative else HAS_MINUS))
    for k in range(start, stop, stride):
        x, y = term_of(u64(u64(a[k]) & u64(u.kept_a)), f.a), term_of(u64(u64(b[k]) & u64(u.kept_b)), f.b)
        left = i64(i64(i64(x.exponent + y.exponent) - largest) + i64(u.fraction_bits - places))
        product = shifted(i64(x.significand * y.significand), left)
        sum_ = i64(sum_ + signed(i64(x.negative ^ y.negative), product))
    return sum_, largest, specials


@scalar
def _floored(value: Any, left: Any) -> Any:
    """Return value * 2**left rounded down to an integer, all int64; left may be negative."""
    if left >= i64(0):
        return i64(value << min(left, i64(62)))
    return i64(value >> min(i64(-left), i64(63)))


@scalar
def _joined(sum_: Any, exponent: Any, c: Any, drops_small: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c plus a sum of products, which is sum_ * 2**(exponent - u.fraction_bits).

    sum_, exponent: int64; c: code of the accumulator; f: Layouts, the formats; u: UnitLayout, constants of the
    instruction.
    With e the larger one of `exponent` and c's, the sum is rounded down to a multiple of 2**(e - SUM_BITS) and c to one
    of 2**(e - u.fraction_bits). The total of both is rounded down to RESULT_BITS bits after its leading one, then by
    u.mode.
    drops_small: True reads c as 0 if its exponent is below e - u.fraction_bits - 1.
    """
    z = term_of(c, f.c)
    largest = max(exponent, z.exponent)
    products = _floored(sum_, i64(i64(exponent - largest) + i64(SUM_BITS - u.fraction_bits)))
    left = i64(i64(z.exponent - largest) + i64(u.fraction_bits - i64(f.c.mantissa_bits)))
    kept = _floored(signed(z.negative, z.significand), left)
    if drops_small & (z.exponent < i64(i64(largest - u.fraction_bits) - i64(1))):
        kept = i64(0)
    whole = i64(products + i64(kept << i64(SUM_BITS - u.fraction_bits)))  # units of 2**(largest - SUM_BITS)
    negative, magnitude = magnitude_of(whole)
    x = normalise(negative, u64(i64(i64(largest - SUM_BITS) + i64(BIAS + TOP))), magnitude)
    top = max(i64(i64(x.field) - i64(BIAS)), u.floor_exponent)  # the exponent of the total
    excess = max(i64(i64(i64(top - RESULT_BITS) - largest) + SUM_BITS), i64(0))
    whole = _floored(whole, i64(-excess))
    return rounded(whole, i64(i64(largest - SUM_BITS) + excess), f.result, u)


@scalar
def separate_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c plus the products of one instruction, which are aligned and added before c is.

    Products are aligned to the largest exponent among them, truncated to u.fraction_bits bits after it, and added
    exactly; c is then added to their sum.
    a, b: 1-D arrays of codes, a row of A and a column of B; start: index of the first product, int64. c: code of the
    accumulator; the result is the code of the new one, both uint64. f: Layouts, the formats; u: UnitLayout, constants.
    """
    stop = min(i64(start + u.terms), i64(a.size))
    sum_, exponent, specials = _cut_products(a, b, start, stop, i64(1), f, u)
    specials = i64(specials | specials_of(term_of(c, f.c)))
    if specials != NO_SPECIAL:
        return special_result(specials, f.result, u)
    return _joined(sum_, exponent, c, False, f, u)


@scalar
def even_odd_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c plus the products of one instruction; even and odd ones are aligned and summed separately.

    Each of the two groups is aligned to its largest exponent, truncated to u.fraction_bits bits after it, and added
    exactly. With e the larger exponent of both, their sums are rounded down to multiples of 2**(e - u.fraction_bits),
    and added; c is added last, and counts as 0 if its exponent is below e - u.fraction_bits - 1.
    a, b: 1-D arrays of codes, a row of A and a column of B; start: index of the first product, int64. c: code of the
    accumulator; the result is the code of the new one, both uint64. f: Layouts, the formats; u: UnitLayout, constants.
    """
    stop = min(i64(start + u.terms), i64(a.size))
    even, even_exponent, specials = _cut_products(a, b, start, stop, i64(2), f, u)
    odd, odd_exponent, odd_specials = _cut_products(a, b, i64(start + i64(1)), stop, i64(2), f, u)
    specials = i64(i64(specials | odd_specials) | specials_of(term_of(c, f.c)))
    if specials != NO_SPECIAL:
        return special_result(specials, f.result, u)
    exponent = max(even_exponent, odd_exponent)
    sum_ = i64(_floored(even, i64(even_exponent - exponent)) + _floored(odd, i64(odd_exponent - exponent)))
    return _joined(sum_, exponent, c, True, f, u)
