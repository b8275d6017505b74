"""Kernels that add one instruction's products to a row of results, by the rules of AMD's units or fused multiply-adds.

A row function `(a, b, c, count, facts, room)` replaces c by c plus the products of `count` terms: a (terms,) and b
(terms, PANEL_COLUMNS) floats, c (PANEL_COLUMNS,) floats. Rounded results are those of core/units/amd.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.products.kernels.panel import INFINITE, MAGNITUDE, MANTISSA_BITS, PANEL_COLUMNS
from fpsim.products.kernels.wide_row import NOTHING, exponent_of, float_exponent, power_of_two, rounded_result
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.float_steps import down, fused, toward_zero

u32, i32, u64, i64, f32, f64 = np.uint32, np.int32, np.uint64, np.int64, np.float32, np.float64

TINY = f32(2.0**-126)  # the smallest normal float32
JUST_BELOW = f64(2.0**-126 - 2.0**-151)  # from here on, 24 bits round to TINY or more
OVERFLOW = f64(2.0**128)  # from here on a product is infinite
CUT_BITS, SUM_BITS, RESULT_BITS = i32(24), i32(32), i32(31)  # fraction bits: products and c, their sum, the total
FLOAT_BITS = i32(53)
HIGH_PART = f64(256.0)  # units of 2**-8 split sums of FP16 products into two that float64 holds
RESULT_MANTISSA, LEAST, HIGHEST = i32(23), i32(-126), i32(128)


@reloadable
class StepFacts(NamedTuple):
    """Format facts: smallest exponents least_a, least_b and normals tiny_a, tiny_b; sum of mantissa bits, `places`."""

    least_a: Any
    least_b: Any
    tiny_a: Any
    tiny_b: Any
    places: Any


@reloadable
class StepRoom(NamedTuple):
    """Scratch for a row: largest exponents `e` and `sums` of products (even, odd), and `specials`, its NaN and Inf."""

    e: Any  # (2, PANEL_COLUMNS) int32
    sums: Any  # (2, PANEL_COLUMNS) float64
    specials: Any  # (PANEL_COLUMNS,) float64


def _chain_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add a[k] * b[k, j] to c[j] for k < count in ascending order, by fused multiply-adds; u and room are not used.

    a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,), all float32 or all float64.
    """
    for k in range(count):
        x, y = a[k], b[k]
        for j in range(PANEL_COLUMNS):
            c[j] = fused(x, y[j], c[j])


@scalar
def flush(x: Any, tiny: Any) -> Any:
    """Return a float32 x, or +0 if |x| is below `tiny`, the smallest normal value."""
    return f32(0.0) if abs(x) < tiny else x


@scalar
def _flush_result(x: Any) -> Any:
    """Return a float32 x, or a zero of its sign if x is subnormal."""
    return f32(x * f32(0.0)) if abs(x) < TINY else x


@scalar
def _flushed_product(x: Any, y: Any) -> Any:
    """Return x * y of two float32, rounded, with a subnormal result flushed to a zero of its sign."""
    return _flush_result(f32(x * y))


@scalar
def _flushed_sum(x: Any, y: Any) -> Any:
    """Return x + y of two float32, rounded, with a subnormal result flushed to a zero of its sign."""
    return _flush_result(f32(x + y))


def _flushed_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add 1, 2 or 4 products to c in place, as c + ((p0 + p1) + (p2 + p3)), flushing subnormal results to signed 0.

    a: (1, 2 or 4,), b: (a.size, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32. count, u, room: not used.
    """
    if a.size == 4:
        a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
        b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
        for j in range(PANEL_COLUMNS):
            left = _flushed_sum(_flushed_product(a0, b0[j]), _flushed_product(a1, b1[j]))
            right = _flushed_sum(_flushed_product(a2, b2[j]), _flushed_product(a3, b3[j]))
            c[j] = _flushed_sum(c[j], _flushed_sum(left, right))
        return
    if a.size == 2:
        a0, a1, b0, b1 = a[0], a[1], b[0], b[1]
        for j in range(PANEL_COLUMNS):
            c[j] = _flushed_sum(c[j], _flushed_sum(_flushed_product(a0, b0[j]), _flushed_product(a1, b1[j])))
        return
    x, y = a[0], b[0]
    for j in range(PANEL_COLUMNS):
        c[j] = _flushed_sum(c[j], _flushed_product(x, y[j]))


@scalar
def _flushed_near(x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z rounded once to float32, or a zero of its sign if |x * y + z| is below 2**-126 - 2**-151.

    From there on, a sum rounds to 2**-126 or more. x * y has up to 24 bits, z is not subnormal: float64 finds the side.
    """
    result = fused(x, y, z)
    magnitude = abs(result)
    near = abs(f64(f64(f64(x) * f64(y)) + f64(z)))
    return result if not ((magnitude < TINY) | ((magnitude == TINY) & (near < JUST_BELOW))) else f32(result * f32(0.0))


def _flushed_chain_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add a[k] * b[k, j] to c[j] for k < count in order, by float32 multiply-adds that flush subnormals to signed 0.

    a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32. room: scratch buffers. u: not used.
    """
    start, at_edge = room.specials, False
    for j in range(PANEL_COLUMNS):
        start[j] = f64(c[j])
    for k in range(count):
        x, y = a[k], b[k]
        for j in range(PANEL_COLUMNS):
            result = fused(x, y[j], c[j])
            at_edge |= abs(result) == TINY
            c[j] = _flush_result(result)
    if at_edge:  # whether such a result was rounded up to 2**-126 from below takes twice the time
        for j in range(PANEL_COLUMNS):
            c[j] = f32(start[j])
        for k in range(count):
            x, y = a[k], b[k]
            for j in range(PANEL_COLUMNS):
                c[j] = _flushed_near(x, y[j], c[j])


def _two_chains_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add even + odd to c, where these are chains of fused multiply-adds from +0 over the even and the odd terms.

    a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32. count: number of terms. u: not used. room:
    scratch buffers. No result may be subnormal.
    """
    chains = room.e.view(f32)
    even, odd = chains[0], chains[1]
    for j in range(PANEL_COLUMNS):
        even[j], odd[j] = f32(0.0), f32(0.0)
    whole = count - count % 8
    for k in range(0, whole, 8):
        x0, x1, x2, x3, x4, x5, x6, x7 = a[k], a[k + 1], a[k + 2], a[k + 3], a[k + 4], a[k + 5], a[k + 6], a[k + 7]
        y0, y1, y2, y3, y4, y5, y6, y7 = b[k], b[k + 1], b[k + 2], b[k + 3], b[k + 4], b[k + 5], b[k + 6], b[k + 7]
        for j in range(PANEL_COLUMNS):
            even[j] = fused(x6, y6[j], fused(x4, y4[j], fused(x2, y2[j], fused(x0, y0[j], even[j]))))
            odd[j] = fused(x7, y7[j], fused(x5, y5[j], fused(x3, y3[j], fused(x1, y1[j], odd[j]))))
    for k in range(whole, count):
        x, y, chain = a[k], b[k], chains[k % 2]
        for j in range(PANEL_COLUMNS):
            chain[j] = fused(x, y[j], chain[j])
    for j in range(PANEL_COLUMNS):
        c[j] = f32(c[j] + f32(even[j] + odd[j]))


def _flushed_chains_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add even + odd to c (chains over even and odd terms, see _two_chains_row); flush subnormal results to signed 0.

    a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32. count: terms. u: not used. room: scratch.
    """
    chains, at_edge = room.e.view(f32), False
    even, odd = chains[0], chains[1]
    for exact in range(2):
        if exact and not at_edge:
            break
        for j in range(PANEL_COLUMNS):
            even[j], odd[j] = f32(0.0), f32(0.0)
        for k in range(count):
            x, y, chain = a[k], b[k], chains[k % 2]
            if exact:
                for j in range(PANEL_COLUMNS):
                    chain[j] = _flushed_near(x, y[j], chain[j])
            else:
                for j in range(PANEL_COLUMNS):
                    result = fused(x, y[j], chain[j])
                    at_edge |= abs(result) == TINY
                    chain[j] = _flush_result(result)
    for j in range(PANEL_COLUMNS):
        c[j] = _flushed_sum(c[j], _flushed_sum(even[j], odd[j]))


@scalar
def _sum_and_error(x: Any, y: Any) -> Any:
    """Return (x + y rounded to float64, its exact rounding error), by Knuth's TwoSum."""
    total = f64(x + y)
    back = f64(total - x)
    return total, f64(f64(x - f64(total - back)) + f64(y - back))


@scalar
def _odd_sum(x: Any, y: Any) -> Any:
    """Return x + y rounded to odd in float64; rounded again, to fewer bits, it is the exact sum rounded once."""
    total, error = _sum_and_error(x, y)
    bits = i64(f64(total).view(i64))
    inward = u64(u64(i64(bits ^ i64(f64(error).view(i64)))) >> u64(63))
    odd = i64(i64(bits - i64(inward)) | i64(1))
    return i64(odd if abs(error) > f64(0.0) else bits).view(f64)


def _exact_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add up to four FP16 products or two BF16 products to c in place, with one rounding to float32.

    a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32. count: number of products. u: not used. room:
    scratch buffers. The exact sum is held as two float64: sums of the high and of the low parts of FP16 products, or
    the two BF16 products.
    """
    first, second, plain = room.sums[0], room.sums[1], room.specials
    for j in range(PANEL_COLUMNS):
        first[j], second[j], plain[j] = f64(0.0), f64(0.0), f64(c[j])
    splits = a.size > 2
    for k in range(count):
        x, y = f64(a[k]), b[k]
        for j in range(PANEL_COLUMNS):
            product = f64(x * f64(y[j]))
            high = f64(toward_zero(f64(product * HIGH_PART)) / HIGH_PART)
            low = f64(product - high)
            plain[j] = f64(plain[j] + product)
            first[j] = f64(first[j] + (high if splits else product if k == 0 else f64(0.0)))
            second[j] = f64(second[j] + (low if splits else f64(0.0) if k == 0 else product))
    for j in range(PANEL_COLUMNS):
        pair, pair_error = _sum_and_error(second[j], f64(c[j]))
        whole, error = _sum_and_error(first[j], pair)
        total = _odd_sum(whole, _odd_sum(error, pair_error))
        total = f64(0.0) if total == f64(0.0) else total
        total = plain[j] if not abs(plain[j]) < f64(np.inf) else total  # NaN and Inf
        c[j] = f32(total)


def _exact_short_row(a: Any, b: Any, c: Any) -> None:
    """Add four or two products to c in place with one rounding; float64 must hold their sum exactly (`_add_exactly`).

    a: (4,) or (2,), b: (a.size, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32, finite.
    """
    if a.size == 4:
        a0, a1, a2, a3 = f64(a[0]), f64(a[1]), f64(a[2]), f64(a[3])
        b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
        for j in range(PANEL_COLUMNS):
            total = fused(a1, f64(b1[j]), f64(a0 * f64(b0[j])))
            total = fused(a3, f64(b3[j]), fused(a2, f64(b2[j]), total))
            c[j] = f32(f64(_odd_sum(total, f64(c[j])) + f64(0.0)))  # zero is +0
        return
    x, y, z, w = f64(a[0]), f64(a[1]), b[0], b[1]
    for j in range(PANEL_COLUMNS):
        total = fused(y, f64(w[j]), f64(x * f64(z[j])))
        c[j] = f32(f64(_odd_sum(total, f64(c[j])) + f64(0.0)))


@scalar
def range_of(values: Any) -> Any:
    """Return the bits of the largest magnitude, and those of the smallest nonzero magnitude minus 1, as two int32.

    values: float32 bits as uint32. Minus 1 makes a zero the largest uint32, so that zeros are never the smallest.
    """
    most, least = u32(0), u32(MAGNITUDE)
    for i in range(values.size):
        magnitude = u32(u32(values[i]) & u32(MAGNITUDE))
        most, least = max(most, magnitude), min(least, u32(magnitude - u32(1)))  # zero wraps around
    return i32(most), i32(least)


def _add_exactly(most_a: Any, least_a: Any, most_b: Any, least_b: Any, places: Any) -> Any:
    """Return whether float64 certainly holds the sum of up to four products of elements of a and b without rounding.

    most_a, least_a: float32 bits, as int32, of the largest magnitude in a, and of the smallest nonzero one minus 1.
    most_b, least_b: the same of b. places: mantissa bits of both formats together.
    """
    finite = (most_a < INFINITE) & (most_b < INFINITE)
    highest = i32(i32(i32(most_a >> MANTISSA_BITS) + i32(most_b >> MANTISSA_BITS)) + i32(4))
    lowest = i32(i32(i32(least_a >> MANTISSA_BITS) + i32(least_b >> MANTISSA_BITS)) - places)
    return finite & (i32(highest - lowest) <= FLOAT_BITS)


add_exactly, exact_short_row = scalar(_add_exactly), scalar(_exact_short_row)


def _cut_products(a: Any, b: Any, first: Any, count: Any, stride: Any, u: StepFacts, e: Any, total: Any) -> None:
    """Write for each column the largest exponent of its products to e and the sum of truncated products to `total`.

    The products are those of terms first, first + stride, ... < count. a: (terms,), b: (terms, PANEL_COLUMNS) float32.
    u: facts on the formats. e: (PANEL_COLUMNS,) int32, NOTHING if all products are zero. total: (PANEL_COLUMNS,)
    float64, in units of 2**(e - CUT_BITS), to which each product is truncated; NaN and Inf count as 0.
    """
    for j in range(PANEL_COLUMNS):
        e[j], total[j] = NOTHING, f64(0.0)
    for k in range(first, count, stride):
        x, y = i32(f32(a[k]).view(i32)), b[k].view(i32)
        mine = float_exponent(x, u.least_a)
        counts = (i32(x & MAGNITUDE) != i32(0)) & (i32(x & MAGNITUDE) < INFINITE)
        for j in range(PANEL_COLUMNS):
            bits = i32(y[j])
            magnitude = i32(bits & MAGNITUDE)
            both = counts & (magnitude != i32(0)) & (magnitude < INFINITE)
            e[j] = max(e[j], i32(mine + float_exponent(bits, u.least_b)) if both else NOTHING)
    for k in range(first, count, stride):
        z, w = f64(a[k]), b[k]
        for j in range(PANEL_COLUMNS):
            product = f64(z * f64(w[j]))
            product = product if abs(product) < f64(np.inf) else f64(0.0)
            top = max(e[j], i32(-600))  # of no product; the sum stays zero
            total[j] = f64(total[j] + toward_zero(f64(product * power_of_two(i32(CUT_BITS - top)))))


def _product_specials(a: Any, b: Any, c: Any, count: Any, met: Any) -> None:
    """Set met[j] to the Inf or NaN that column j's sum becomes; to a finite number if c[j] and its products are finite.

    A product that overflows float32 is Inf. a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,) float32. met:
    (PANEL_COLUMNS,) float64. count: number of terms.
    """
    for j in range(PANEL_COLUMNS):
        met[j] = f64(c[j]) if not abs(c[j]) < f32(np.inf) else f64(0.0)
    for k in range(count):
        x, y = f64(a[k]), b[k]
        for j in range(PANEL_COLUMNS):
            product = f64(x * f64(y[j]))
            met[j] = f64(met[j] + (f64(0.0) if abs(product) < OVERFLOW else f64(product * f64(np.inf))))


def _join(c: Any, e: Any, total: Any, met: Any, drops: Any) -> None:
    """Add sums of truncated products to c in place, both aligned to `top`, the largest exponent, as by AMD's units.

    Products are rounded down to units of 2**(top - 32), c to 2**(top - 24), their sum to 32 bits, and then to nearest
    even. c, e, total, met: (PANEL_COLUMNS,). e: largest exponents of the products, int32. total: float64 sums in units
    of 2**(e - 24). met: float64, whose NaN and Inf replace results. drops: c counts as 0 if its exponent < top - 25.
    """
    for j in range(PANEL_COLUMNS):
        bits = i32(f32(c[j]).view(i32))
        exponent = float_exponent(bits, LEAST)
        of_products = e[j] if e[j] != NOTHING else exponent
        top = max(of_products, exponent)
        products = down(f64(total[j] * power_of_two(i32(i32(of_products - top) + i32(SUM_BITS - CUT_BITS)))))
        finite = i32(bits & MAGNITUDE) < INFINITE
        value = f64(c[j]) if finite else f64(0.0)
        mine = f64(down(f64(value * power_of_two(i32(CUT_BITS - top)))) * f64(256.0))  # 2**(SUM_BITS - CUT_BITS)
        mine = f64(0.0) if drops & (exponent < i32(i32(top - CUT_BITS) - i32(1))) else mine
        whole = f64(f64(products + mine) + f64(0.0))  # units of 2**(top - SUM_BITS); zero is +0
        leading = max(i64(exponent_of(whole) + i64(i32(top - SUM_BITS))), i64(LEAST))
        excess = max(i64(i64(leading - i64(RESULT_BITS)) - i64(i32(top - SUM_BITS))), i64(0))
        whole = f64(down(f64(whole * power_of_two(-excess))) * power_of_two(excess))
        result = rounded_result(f64(whole * power_of_two(i32(top - SUM_BITS))), RESULT_MANTISSA, LEAST, True, HIGHEST)
        special = not abs(met[j]) < f64(np.inf)
        c[j] = f32(met[j]) if special else i32(result).view(f32)


def _join_halves(room: StepRoom) -> None:
    """Add the sums of odd products, room.sums[1], to those of even ones, room.sums[0], per column.

    Both sums are first rounded down to units of 2**(top - 24). `top`, the larger of room.e[0] and room.e[1] in that
    column, is written to room.e[0].
    """
    e, odd_e, total, odd = room.e[0], room.e[1], room.sums[0], room.sums[1]
    for j in range(PANEL_COLUMNS):
        top = max(e[j], odd_e[j])
        even = down(f64(total[j] * power_of_two(max(i32(e[j] - top), i32(-600)))))
        other = down(f64(odd[j] * power_of_two(max(i32(odd_e[j] - top), i32(-600)))))
        total[j], e[j] = f64(even + other), top


cut_products, product_specials, join = scalar(_cut_products), scalar(_product_specials), scalar(_join)
join_halves = scalar(_join_halves)


def _separate_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add to c, by `Rule.SEPARATE`, the sum of `count` products, each truncated 24 bits below the largest exponent.

    a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32. u: the formats. room: buffers.
    """
    product_specials(a, b, c, count, room.specials)
    cut_products(a, b, 0, count, 1, u, room.e[0], room.sums[0])
    join(c, room.e[0], room.sums[0], room.specials, False)


def _even_odd_row(a: Any, b: Any, c: Any, count: Any, u: StepFacts, room: StepRoom) -> None:
    """Add to c, by `Rule.EVEN_ODD`, the sum of even products plus that of odd products.

    Each is truncated 24 bits below the largest exponent in its sum. a: (terms,), b: (terms, PANEL_COLUMNS), c:
    (PANEL_COLUMNS,), float32. count: number of terms. u: the formats. room: buffers.
    """
    product_specials(a, b, c, count, room.specials)
    for half in range(2):
        cut_products(a, b, half, count, 2, u, room.e[half], room.sums[half])
    join_halves(room)
    join(c, room.e[0], room.sums[0], room.specials, True)


chain_row, flushed_row, exact_row = scalar(_chain_row), scalar(_flushed_row), scalar(_exact_row)
separate_row, even_odd_row = scalar(_separate_row), scalar(_even_odd_row)
flushed_chain_row, two_chains_row = scalar(_flushed_chain_row), scalar(_two_chains_row)
flushed_chains_row = scalar(_flushed_chains_row)
