"""A kernel that adds one instruction's products to a row of results by `Rule.FUSED`, in float64, for any exponents.

It replaces the faster one of fused_row.py where exponents exceed the latter's range. Products of float32 are exact in
float64, and so are sums of integers below 2**53.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.products.kernels.panel import BIAS, FIELD, INFINITE, MAGNITUDE, MANTISSA_BITS
from fpsim.reload import reloadable
from fpsim.runtime.compile import inner_loop, scalar
from fpsim.runtime.float_steps import nearest_integer, toward_zero
from fpsim.runtime.records import fields_of

i32, i64, f32, f64 = np.int32, np.int64, np.float32, np.float64

NOTHING = i32(-100000)
LEADING_BITS, LONG_FIELD, LONG_BIAS = i64(52), i64(0x7FF), i64(1023)


@scalar
def power_of_two(exponent: Any) -> Any:
    """Return 2.0**exponent as float64; the exponent must be that of a normal float64."""
    return i64(i64(i64(exponent) + LONG_BIAS) << LEADING_BITS).view(f64)


@scalar
def exponent_of(value: Any) -> Any:
    """Return the unbiased exponent of `value`, a normal float64, as int64."""
    return i64(i64(i64(f64(value).view(i64) >> LEADING_BITS) & LONG_FIELD) - LONG_BIAS)


@scalar
def float_exponent(bits: Any, least: Any) -> Any:
    """Return max(unbiased exponent of a float32, least).

    bits: the float32's bits, int32; the exponent of zeros is -127. least: the smallest exponent of normal values in the
    format that the float32 was converted from.
    """
    return max(i32(i32(i32(bits >> MANTISSA_BITS) & FIELD) - BIAS), least)


@scalar
def rounded_result(value: Any, mantissa_bits: Any, least: Any, nearest: Any, highest: Any) -> Any:
    """Return the float32 pattern, as int32, of a float64 rounded to a format of `mantissa_bits` mantissa bits.

    value: float64. nearest: round to nearest even, else toward zero. least: the smallest exponent of the format. A
    rounded magnitude of 2**highest or more becomes Inf with the value's sign.
    """
    place = i64(max(exponent_of(value), i64(least)) - i64(mantissa_bits))
    units = f64(value * power_of_two(-place))
    units = nearest_integer(units) if nearest else toward_zero(units)
    result = f64(units * power_of_two(place))
    bound = power_of_two(highest)
    result = f64(np.inf) if result >= bound else result
    result = f64(-np.inf) if result <= -bound else result
    return i32(f32(result).view(i32))


@scalar
def positive_zero(bits: Any) -> Any:
    """Return the float32 pattern `bits` (int32) unchanged, or that of +0 for -0."""
    return bits if i32(bits & MAGNITUDE) != i32(0) else i32(0)


@reloadable
class WideFacts(NamedTuple):
    """The properties of a unit that the kernel wide_row reads, as 32-bit integers in the order of an array.

    fraction_bits: bits kept below the largest exponent. floor: the exponent of a zero term. least_a, least_b, least_c:
    the smallest exponents of normal values in the formats of a, b and the accumulator. result_bits: mantissa bits of
    the result. nearest: 1 if the result is rounded to nearest even, 0 if toward zero. highest: a rounded magnitude of
    2**highest or more becomes Inf.
    """

    fraction_bits: Any
    floor: Any
    least_a: Any
    least_b: Any
    least_c: Any
    result_bits: Any
    nearest: Any
    highest: Any


wide_facts = fields_of(WideFacts)


@inner_loop
def wide_row(a: Any, b: Any, c: Any, terms: Any, scale_a: Any, scale_b: Any, facts: Any, e: Any, total: Any) -> None:
    """Add one instruction's products to a row c (columns,) of float32 patterns as int32, in place, by `Rule.FUSED`.

    Per column, c and the products are truncated `fraction_bits` below their largest exponent, added exactly, and
    rounded once. An Inf or NaN in c stays.

    Args:
      a, b: (terms,) and (terms, columns), finite float32 patterns as int32.
      terms: number of products.
      scale_a: exponent of the row's scale. scale_b: (columns,) exponents of the columns' scales. All are 0 without
        scales.
      facts: int32 array of the unit's properties, the fields of WideFacts.
      e, total: int32 and float64 scratch buffers (columns,).
    """
    u = wide_facts(facts)
    for j in range(c.size):
        e[j] = NOTHING
    for k in range(terms):
        x, y = i32(a[k]), b[k]
        if i32(x & MAGNITUDE) != i32(0):
            mine = i32(float_exponent(x, u.least_a) + scale_a)
            for j in range(c.size):
                bits = i32(y[j])
                other = i32(i32(mine + float_exponent(bits, u.least_b)) + scale_b[j])
                e[j] = max(e[j], other if i32(bits & MAGNITUDE) != i32(0) else NOTHING)
    for j in range(c.size):
        bits = i32(c[j])
        exponent = float_exponent(bits, u.least_c) if i32(bits & MAGNITUDE) != i32(0) else u.floor
        e[j] = max(max(e[j], u.floor), exponent)
        total[j] = toward_zero(f64(f64(i32(bits).view(f32)) * power_of_two(i32(u.fraction_bits - e[j]))))
    for k in range(terms):
        z, y = f64(i32(a[k]).view(f32)), b[k]
        for j in range(c.size):
            left = i32(i32(u.fraction_bits - e[j]) + i32(scale_a + scale_b[j]))
            product = f64(f64(z * f64(i32(y[j]).view(f32))) * power_of_two(left))
            total[j] = f64(total[j] + toward_zero(product))
    for j in range(c.size):
        bits = i32(c[j])
        summed = f64(total[j] * power_of_two(i32(e[j] - u.fraction_bits)))
        new = positive_zero(rounded_result(summed, u.result_bits, u.least_c, u.nearest != i32(0), u.highest))
        c[j] = bits if i32(bits & MAGNITUDE) >= INFINITE else new
