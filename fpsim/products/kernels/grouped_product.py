"""The product kernel of block-scaled FP4 units: exact dot products of 16 terms in float32, aligned in float64.

Sixteen products of FP4 numbers add up exactly in float32, so a group of 16 terms costs one fused multiply-add per
product and a handful of operations for its scales.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.products.kernels.panel import INFINITE, MAGNITUDE, PANEL_COLUMNS
from fpsim.products.kernels.wide_row import float_exponent, positive_zero, power_of_two, rounded_result
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.float_steps import fused, toward_zero

i32, f32, f64 = np.int32, np.float32, np.float64

GROUP, GROUPS = 16, 4
TERMS = GROUP * GROUPS
ROW_BLOCK = 256
NAN_PATTERN = i32(0x7FFFFFFF)
MANTISSA, LEAST, HIGHEST = i32(23), i32(-126), i32(128)


def _group_sums(a: Any, b: Any, first: Any, sums: Any) -> None:
    """Set sums[j] to the exact dot product of terms first .. first + 15 in column j.

    a: (terms,), b: (terms, PANEL_COLUMNS), sums: (PANEL_COLUMNS,), float32.
    """
    for j in range(PANEL_COLUMNS):
        sums[j] = f32(0.0)
    for k in range(first, first + GROUP, 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for j in range(PANEL_COLUMNS):
            sums[j] = fused(a3, b3[j], fused(a2, b2[j], fused(a1, b1[j], fused(a0, b0[j], sums[j]))))


group_sums = scalar(_group_sums)


def _grouped_row(a: Any, b: Any, c: Any, scales: Any, masks: Any, of_b: Any, facts: Any, room: Any) -> None:
    """Add an instruction's products to a row c (PANEL_COLUMNS,) of float32 patterns as int32, by `Rule.GROUPED`.

    Per column, c and the four groups' exact sums times both scales are truncated to units of 2**(top - fraction bits);
    their sum is rounded toward zero to float32. `top` is the largest exponent of c, of the floor, and of the scales'
    products of groups that have a nonzero product.

    Args:
      a, b: (64,) and (64, PANEL_COLUMNS) float32.
      c: changed in place.
      scales: (4,) float32, of a's groups of 16 terms. masks: (4,) int32, a bit for each nonzero term of a.
      of_b: b's (scales, their exponents, bit masks of nonzero terms), (4, PANEL_COLUMNS) each, and 1 for columns with
        a NaN scale, (PANEL_COLUMNS,).
      facts: (fraction bits, floor exponent, smallest exponent of a scale).
      room: scratch buffers: (4, PANEL_COLUMNS) float32, (PANEL_COLUMNS,) int32, (PANEL_COLUMNS,) float64.
    """
    fraction_bits, floor, least = facts
    sums, top, total = room
    factors, exponents, filled, broken = of_b
    for j in range(PANEL_COLUMNS):
        bits = i32(c[j])
        top[j] = float_exponent(bits, LEAST) if i32(bits & MAGNITUDE) != i32(0) else floor
        top[j] = max(top[j], floor)
    for g in range(GROUPS):
        group_sums(a, b, g * GROUP, sums[g])
        mine = float_exponent(f32(scales[g]).view(i32), least)
        mask, e, f = masks[g], exponents[g], filled[g]
        for j in range(PANEL_COLUMNS):
            top[j] = max(top[j], i32(mine + e[j]) if i32(mask & f[j]) != i32(0) else floor)
    for j in range(PANEL_COLUMNS):
        value = f64(i32(c[j]).view(f32))
        total[j] = toward_zero(f64(value * power_of_two(i32(fraction_bits - top[j]))))
    for g in range(GROUPS):
        mine, factor, sum_ = f64(scales[g]), factors[g], sums[g]
        for j in range(PANEL_COLUMNS):
            value = f64(f64(sum_[j]) * f64(mine * f64(factor[j])))
            total[j] = f64(total[j] + toward_zero(f64(value * power_of_two(i32(fraction_bits - top[j])))))
    nan = False
    for g in range(GROUPS):
        nan = nan or scales[g] != scales[g]
    for j in range(PANEL_COLUMNS):
        bits = i32(c[j])
        value = f64(total[j] * power_of_two(i32(top[j] - fraction_bits)))
        new = positive_zero(rounded_result(value, MANTISSA, LEAST, False, HIGHEST))
        new = bits if i32(bits & MAGNITUDE) >= INFINITE else new
        c[j] = NAN_PATTERN if nan or broken[j] != i32(0) else new


def _fill_scales(b: Any, count: Any, scale_b: Any, first: Any, n: Any, width: Any, least: Any, of_b: Any) -> None:
    """Write the scales of an instruction's terms of b, by group of 16 terms and column, to the four arrays of `of_b`.

    of_b: (scales, their exponents, bit masks of nonzero terms), (4, PANEL_COLUMNS) each, and 1 for columns with a NaN
    scale, (PANEL_COLUMNS,). b: (64, PANEL_COLUMNS) float32. count: number of its terms within K. scale_b: (groups, N)
    float32, read from group `first` and column n on, `width` columns. least: smallest exponent of a scale.
    """
    factors, exponents, filled, broken = of_b
    for j in range(PANEL_COLUMNS):
        broken[j] = i32(0)
    for g in range(GROUPS):
        here = g * GROUP < count
        for j in range(PANEL_COLUMNS):
            scale = scale_b[first + g, n + j] if here and j < width else f32(0.0)
            bits = i32(f32(scale).view(i32))
            if i32(bits & MAGNITUDE) > INFINITE:
                broken[j] = i32(1)
            factors[g, j], exponents[g, j] = scale, float_exponent(bits, least)
            filled[g, j] = i32(0)
        for i in range(GROUP):
            for j in range(PANEL_COLUMNS):
                counts = (b[g * GROUP + i, j] != f32(0.0)) & (factors[g, j] != f32(0.0))
                filled[g, j] = i32(filled[g, j] | i32(i32(counts) << i32(i)))


grouped_row, fill_scales = scalar(_grouped_row), scalar(_fill_scales)


@cache
def grouped_product() -> Any:
    """Return the kernel (a, b, c, scale_a, scale_b, facts, part) -> None, adding a @ b to part of c by `Rule.GROUPED`.

    The exact dot product of each 16 terms is multiplied by its two scales. These numbers and c are then
    truncated to units of 2**(top - fraction bits) and added, and the sum is truncated to float32; `top` is the largest
    of their exponents and of a floor exponent.

    a: (M, K), b: (K, N) float32 values of FP4. c: (M, N) float32 patterns as int32. scale_a: (M, groups), scale_b:
    (groups, N) float32 scales of groups of 16 terms. facts: (fraction bits, floor exponent, smallest exponent
    of a scale). part: (m0, m1, n0, n1), for rows m0 .. m1 - 1 and columns
    n0 .. n1 - 1.
    """

    def product(a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, facts: Any, part: Any) -> None:
        m0, m1, n0, n1 = part
        values, tile = np.zeros((TERMS, PANEL_COLUMNS), f32), np.zeros((ROW_BLOCK, PANEL_COLUMNS), i32)
        x, scales, masks = np.zeros(TERMS, f32), np.zeros(GROUPS, f32), np.zeros(GROUPS, i32)
        of_b = (
            np.empty((GROUPS, PANEL_COLUMNS), f32), np.empty((GROUPS, PANEL_COLUMNS), i32),
            np.empty((GROUPS, PANEL_COLUMNS), i32), np.empty(PANEL_COLUMNS, i32),
        )  # fmt: skip
        room = (np.empty((GROUPS, PANEL_COLUMNS), f32), np.empty(PANEL_COLUMNS, i32), np.empty(PANEL_COLUMNS, f64))
        for n in range(n0, n1, PANEL_COLUMNS):
            width = min(PANEL_COLUMNS, n1 - n)
            for m in range(m0, m1, ROW_BLOCK):
                rows = min(ROW_BLOCK, m1 - m)
                for r in range(rows):
                    tile[r, :width] = c[m + r, n : n + width]
                for k in range(0, a.shape[1], TERMS):
                    count, first = min(TERMS, a.shape[1] - k), k // GROUP
                    values[count:] = f32(0.0)
                    for i in range(count):
                        values[i, :width] = b[k + i, n : n + width]
                    fill_scales(values, count, scale_b, first, n, width, facts[2], of_b)
                    x[count:] = f32(0.0)
                    for r in range(rows):
                        x[:count] = a[m + r, k : k + count]
                        for g in range(GROUPS):
                            scales[g] = scale_a[m + r, first + g] if g * GROUP < count else f32(0.0)
                            masks[g] = i32(0)
                            for i in range(GROUP):
                                counts = (x[g * GROUP + i] != f32(0.0)) & (scales[g] != f32(0.0))
                                masks[g] = i32(masks[g] | i32(i32(counts) << i32(i)))
                        grouped_row(x, values, tile[r], scales, masks, of_b, (facts[0], facts[1], facts[2]), room)
                for r in range(rows):
                    c[m + r, n : n + width] = tile[r, :width]

    return kernel(product)
