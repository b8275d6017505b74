"""Compiled loops that round float32 to nearest even or toward zero in a format, and measure the errors.

They handle blocks whose values are all finite and within the format's range, where rounding needs five operations
instead of thirty. Other blocks are rounded by casts and measured by `fpsim.analysis.measures.loops`. A value and its
rounded value are within a factor of two of each other, or the latter is 0, so float32 holds their difference. Several
short loops over a block are faster than one loop whose operations depend on each other.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from fpsim.analysis.measures.loops import (
    BLOCK,
    COMPARED,
    COUNT,
    ENERGY,
    ERROR,
    EXACT,
    LARGEST,
    LOST,
    MAX_RELATIVE,
    MAX_ULP,
    NEAR_ONE,
    NONZERO,
    NONZERO_COUNT,
    NORMAL_NOISE,
    PRODUCT,
    RELATIVE,
    SIGNAL,
    SMALLEST,
    SUBNORMAL,
    SUBNORMAL_NOISE,
    ULPS,
    UNDERFLOW,
    difference,
    in_order,
    inverse_ulp_single,
    largest_quotient,
    product,
    single_difference,
    two_sum,
)  # fmt: skip
from fpsim.analysis.measures.sums import MAXIMA, TOTALS
from fpsim.runtime.compile import inner_loop, kernel, reordered_sums, scalar

u8, u32, i64 = np.uint8, np.uint32, np.int64
f32, f64 = np.float32, np.float64

# The plan of a candidate, that is of a cast to measure: the largest value of its format, the smallest normal one and
# its exponent field in float32, the number of mantissa bits that rounding drops, the decode scale, the largest quotient
# that is clamped to the largest value, the smallest magnitude other than 0 that these loops accept, the number that
# `nearest_small` adds, and whether the cast rounds toward zero. All are NaN for a cast that these loops cannot do.
TOP, NORMAL_FROM, LOWEST, DROPPED, SCALE, LIMIT, LEAST, MAGIC, TRUNCATES = range(9)
PLAN = 9
MOST = 2.0**126  # largest magnitude that these loops accept: results are smaller than twice this
MOST_DROPPED = 21  # most dropped bits for which the sum of a block's distances, each below 2**21, is below 2**32

SOURCE_BITS = 23  # mantissa bits of float32
MAGIC_IN_ULPS = 1.5 * 2.0**SOURCE_BITS


@scalar
def nearest_normal(x: Any, dropped: Any) -> Any:
    """Round a float32 to nearest even, clearing its last `dropped` (1 to 22) mantissa bits, with carry."""
    bits = f32(x).view(u32)
    one = u32(1)
    below_half = u32(u32(one << u32(dropped - one)) - one)
    odd = u32(u32(bits >> u32(dropped & u32(31))) & one)  # the mask keeps LLVM from 64-bit lanes
    kept = u32(u32(0xFFFFFFFF) << dropped)
    return u32(u32(bits + u32(below_half + odd)) & kept).view(f32)


@scalar
def nearest_small(x: Any, magic: Any) -> Any:
    """Round a float32 to the nearest multiple of the ulp of `magic`; -0 becomes 0.

    magic: 1.5 times a power of two, far above |x|.
    """
    return f32(f32(f32(x) + f32(magic)) - f32(magic))


@scalar
def truncated_normal(x: Any, dropped: Any) -> Any:
    """Round a float32 toward zero by clearing its last `dropped` mantissa bits."""
    return u32(f32(x).view(u32) & u32(u32(0xFFFFFFFF) << dropped)).view(f32)


@scalar
def truncated_small(x: Any, magic: Any, ulp: Any) -> Any:
    """Round a float32 toward zero to a multiple of `ulp`, the ulp of `magic`, which is far above |x|."""
    size = abs(f32(x))
    near = nearest_small(size, magic)
    down = f32(near - (f32(ulp) if near > size else f32(0)))
    return f32(-down) if x < f32(0) else down


@scalar
def dropped_bits(x: Any, dropped: Any) -> Any:
    """Return the distance, in ulps of x, by which `truncated_normal(x, dropped)` moves the float32 x.

    This is the integer in the last `dropped` bits of its mantissa.
    """
    return u32(f32(x).view(u32) & u32(u32(u32(1) << dropped) - u32(1)))


@scalar
def dropped_distance(x: Any, dropped: Any) -> Any:
    """Return the distance, in ulps of x, by which `nearest_normal(x, dropped)` moves the float32 x.

    dropped: the number of mantissa bits that the rounding clears.
    """
    unit = u32(u32(1) << dropped)
    low = u32(f32(x).view(u32) & u32(unit - u32(1)))
    return u32(min(low, u32(unit - low)))


@scalar
def divided(x: Any, scale: Any, top: Any) -> Any:
    """Return x / scale in float32, clamped from -top to top."""
    return f32(max(min(f32(f32(x) / f32(scale)), f32(top)), f32(-top)))


@scalar
def over_scale(size: Any, plan: Any) -> Any:
    """Return the magnitude `size` divided by plan[SCALE], a cast's decode scale, rounded to float32, as a float64."""
    return f64(f32(f32(size) / f32(plan[SCALE])))


@cache
def _make_round_block(scaled: bool, small: bool, truncates: bool) -> Any:
    """Return the loop `(x, exact, results, plan)` that rounds a block of float32 values, toward zero if `truncates`.

    It writes the rounded values to `results`; x, exact and results are float32 (n,). plan: the numbers of the cast, as
    `nearest_plan` in candidates.py returns them. scaled: whether x is first divided by the plan's scale (the quotients
    are written to `exact`), and results are multiplied by it. small: whether some values may be below the format's
    normal range.
    """
    normal = truncated_normal if truncates else nearest_normal

    def round_block(x: Any, exact: Any, results: Any, plan: Any) -> None:
        top, scale, magic = f32(plan[TOP]), f32(plan[SCALE]), f32(plan[MAGIC])
        normal_from, dropped = f32(plan[NORMAL_FROM]), u32(u32(plan[DROPPED]) & u32(31))
        ulp = f32(plan[MAGIC] / MAGIC_IN_ULPS)
        for i in range(x.size):
            value = divided(x[i], scale, top) if scaled else x[i]
            result = normal(value, dropped)
            if small:
                low = truncated_small(value, magic, ulp) if truncates else nearest_small(value, magic)
                result = result if abs(value) >= normal_from else low
            if scaled:
                exact[i] = value
            results[i] = f32(result * scale) if scaled else result

    return inner_loop(round_block)


@cache
def _make_sum_block(small: bool, wide: bool) -> Any:
    """Return the loop that adds the errors of a block, their squares and relative errors to `sums` and `counts`.

    Its arguments are (x, results, reciprocals, plan, sums, counts, largest_errors): a block before and after rounding,
    1 / |x|, the cast's plan, and arrays in the order of TOTALS, COUNTS and MAXIMA. It overwrites
    largest_errors[MAX_RELATIVE] with the block's largest relative error. The sum PRODUCT gets
    x * (result - x) instead of x * result, which takes fewer operations and is more accurate. small: whether some
    values may be below the format's normal range. wide: whether an error may need float64.
    """

    def sum_block(
        x: Any, results: Any, reciprocals: Any, plan: Any, sums: Any, counts: Any, largest_errors: Any
    ) -> None:
        normal_from = f32(f32(plan[NORMAL_FROM]) * f32(plan[SCALE]))
        inner, errors, relatives, normal_noise, subnormal_noise, lost = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        largest, zeros, tiny_count = i64(0), u32(0), u32(0)
        for i in range(x.size):
            value, result = x[i], results[i]
            error = difference(result, value) if wide else f64(single_difference(result, value))
            relative = product(abs(error), reciprocals[i])
            inner += f64(value) * error
            errors += error
            relatives += relative
            if small:
                zero = (result == f32(0)) & (value != f32(0))
                tiny = (abs(result) < normal_from) & (result != f32(0))
                zeros = u32(zeros + u32(zero))
                tiny_count = u32(tiny_count + u32(tiny))
                lost += error * (error if zero else 0.0)
                subnormal_noise += error * (error if tiny else 0.0)
                normal_noise += error * (0.0 if zero | tiny else error)
            else:
                normal_noise += error * error
            largest = max(largest, in_order(relative))
        largest_errors[MAX_RELATIVE] = i64(largest).view(f64)
        sums[PRODUCT] += inner
        sums[ERROR] += errors
        sums[RELATIVE] += relatives
        sums[NORMAL_NOISE] += normal_noise
        sums[SUBNORMAL_NOISE] += subnormal_noise
        sums[LOST] += lost
        counts[UNDERFLOW] += i64(zeros)
        counts[SUBNORMAL] += i64(tiny_count)

    return reordered_sums(sum_block)


@cache
def _make_count_steps(truncates: bool) -> Any:
    """Return the loop `(x, dropped, sums, counts, largest_errors)` that measures a block's rounding errors in ulps.

    It handles normal float32 values without a scale: it adds the errors to sums[ULPS], the number of exact results to
    counts[EXACT], and writes the largest error to largest_errors[MAX_ULP]. dropped: number of mantissa bits that
    rounding drops. truncates: whether rounding is toward zero (True) or to nearest even (False).
    """
    distance = dropped_bits if truncates else dropped_distance

    def count_steps(x: Any, dropped: Any, sums: Any, counts: Any, largest_errors: Any) -> None:
        dropped = u32(u32(dropped) & u32(31))
        total, largest, equal = u32(0), u32(0), u32(0)
        for i in range(x.size):
            step = distance(x[i], dropped)
            total = u32(total + step)
            largest = max(largest, step)
            equal = u32(equal + u32(step == u32(0)))
        ulp = f64(u32(1) << dropped)
        largest_errors[MAX_ULP] = f64(largest) / ulp
        sums[ULPS] += f64(total) / ulp
        counts[EXACT] += i64(equal)

    return reordered_sums(count_steps)


@cache
def _make_ulps_block(wide: bool) -> Any:
    """Return the loop `(x, exact, results, plan, sums, counts, largest_errors)` that measures a block's errors in ulps.

    It adds and writes the same as `_make_count_steps`' loop, for |results - x| / ulp(x), where ulp(x) is the format's
    spacing at x / scale (`exact`), times the scale. wide: whether to compute errors in float64.
    """

    def ulps_block(x: Any, exact: Any, results: Any, plan: Any, sums: Any, counts: Any, largest_errors: Any) -> None:
        fraction, exponent = math.frexp(plan[SCALE])  # ulps are multiplied by the power of two, to stay in range
        lowest, precision = i64(plan[LOWEST]), i64(SOURCE_BITS) - i64(plan[DROPPED]) - i64(exponent)
        total, largest_32, largest_64, equal = 0.0, u32(0), i64(0), u32(0)
        for i in range(x.size):
            inverse = inverse_ulp_single(exact[i], lowest, i64(254), precision)
            if wide:
                count = product(abs(difference(results[i], x[i])), inverse)
                largest_64 = max(largest_64, in_order(count))
                total += count
            else:
                near = f32(abs(single_difference(results[i], x[i])) * inverse)
                largest_32 = max(largest_32, near.view(u32))
                total += f64(near)
            equal = u32(equal + u32(results[i] == x[i]))
        # the scale's fraction divides total and largest at the end, since division by it keeps the order
        largest_errors[MAX_ULP] = (i64(largest_64).view(f64) if wide else f64(u32(largest_32).view(f32))) / fraction
        sums[ULPS] += total / fraction
        counts[EXACT] += i64(equal)

    return reordered_sums(ulps_block)


@inner_loop
def raised(best: Any, underflowed: Any, x: Any, results: Any, largest_product: Any) -> Any:
    """Return the larger of `best`, the largest relative error so far, and the largest |results - x| / |x| of a block.

    The division is done only if the approximation `largest_product`, the largest |results - x| * rounded(1 / |x|), does
    not show that `best` is larger. underflowed: whether a value of the block became 0, which is a relative error of 1.
    x, results: the block before and after rounding.
    """
    best = max(best, 1.0 if underflowed else 0.0)
    # a value that becomes zero has the relative error 1; a larger quotient of float32 numbers is at least 1 + 2**-24
    if largest_product >= (1.0 / NEAR_ONE if best == 1.0 else best * NEAR_ONE):
        best = largest_quotient(x, results, best)
    return best


def _make_measure(scaled: bool, truncates: bool) -> Any:
    """Return the loop that rounds a block, adds its errors to `sums` and `counts`, and sets `largest_errors`.

    scaled: whether values have a scale. truncates: whether they are rounded toward zero (True) or to nearest even
    (False). The loop's arguments are (x, reciprocals, smallest, plan, room, sums, counts, largest_errors). x: a block.
    reciprocals: 1 / |x|. smallest: smallest nonzero magnitude of the block after division by the scale. plan: the
    cast's plan. room: scratch arrays for x / scale and the results. sums, counts, largest_errors: arrays in the order
    of TOTALS, COUNTS and MAXIMA.
    """
    round_normal, round_small = (_make_round_block(scaled, small, truncates) for small in (False, True))
    count_steps = _make_count_steps(truncates)
    # with a scale, a value just above half the smallest one may become a little more than twice as large
    sum_normal, sum_small = _make_sum_block(small=False, wide=False), _make_sum_block(small=True, wide=scaled)
    ulps_normal, ulps_small = _make_ulps_block(wide=False), _make_ulps_block(wide=scaled)

    def measure(
        x: Any, reciprocals: Any, smallest: Any, plan: Any, room: Any, sums: Any, counts: Any, largest_errors: Any
    ) -> None:
        exact, results = room if scaled else (x, room[1])
        if smallest < plan[NORMAL_FROM]:
            round_small(x, exact, results, plan)
            sum_small(x, results, reciprocals, plan, sums, counts, largest_errors)
            ulps_small(x, exact, results, plan, sums, counts, largest_errors)
        else:
            round_normal(x, exact, results, plan)
            sum_normal(x, results, reciprocals, plan, sums, counts, largest_errors)
            if scaled or plan[DROPPED] > MOST_DROPPED:
                ulps_normal(x, exact, results, plan, sums, counts, largest_errors)
            else:
                count_steps(x, plan[DROPPED], sums, counts, largest_errors)

    return inner_loop(measure)


@cache
def nearest_kernel() -> Any:
    """Return the loop `(x, reciprocals, descriptions, plans, done, totals, counts, maxima)`.

    The loop rounds and measures the blocks of 2048 elements whose magnitudes are within a plan's limits. x: float32
    (groups, length). reciprocals: float64, 1 / |x|, 0 for 0. descriptions: float64 (groups, blocks, 4), largest
    magnitude, smallest one other than 0, sum of squares and number of nonzeros of each block. plans: float64
    (candidates, PLAN), as `nearest_plan` in candidates.py returns them. done: uint8 (candidates, groups, blocks),
    set to 1 for measured blocks, else to 0. totals, counts, maxima: the arrays of an ErrorSums with axes (candidates,
    groups, ...), to which the loop adds the errors.
    """
    measure, measure_scaled = (_make_measure(scaled, truncates=False) for scaled in (False, True))
    truncate, truncate_scaled = (_make_measure(scaled, truncates=True) for scaled in (False, True))

    def measure_nearest(
        x: Any, reciprocals: Any, descriptions: Any, plans: Any, done: Any, totals: Any, counts: Any, maxima: Any
    ) -> None:
        room = np.empty(BLOCK, f32), np.empty(BLOCK, f32)
        sums, largest_errors = np.zeros(len(TOTALS)), np.zeros(len(MAXIMA))
        for group in range(x.shape[0]):
            for block in range(descriptions.shape[1]):
                about = descriptions[group, block]
                part = slice(block * BLOCK, (block + 1) * BLOCK)
                xs, rs = x[group, part], reciprocals[group, part]
                for i in range(plans.shape[0]):
                    plan, count, most = plans[i], counts[i, group], maxima[i, group]
                    smallest = over_scale(about[SMALLEST], plan)
                    within = (about[LARGEST] <= MOST) & (over_scale(about[LARGEST], plan) <= plan[LIMIT])
                    within = within & (min(smallest, about[SMALLEST]) >= plan[LEAST])
                    done[i, group, block] = u8(within)
                    if not within:
                        continue
                    sums[:], underflowed = 0.0, count[UNDERFLOW]
                    plain, truncates = plan[SCALE] == 1.0 and plan[LIMIT] == plan[TOP], plan[TRUNCATES] != 0.0
                    if plain and not truncates:
                        measure(xs, rs, smallest, plan, room, sums, count, largest_errors)
                    elif plain:
                        truncate(xs, rs, smallest, plan, room, sums, count, largest_errors)
                    elif not truncates:
                        measure_scaled(xs, rs, smallest, plan, room, sums, count, largest_errors)
                    else:
                        truncate_scaled(xs, rs, smallest, plan, room, sums, count, largest_errors)
                    sums[SIGNAL] = about[ENERGY]
                    sums[PRODUCT] += about[ENERGY]
                    count[COUNT] += xs.size
                    count[COMPARED] += xs.size
                    count[NONZERO_COUNT] += i64(about[NONZERO])
                    most[MAX_ULP] = max(most[MAX_ULP], largest_errors[MAX_ULP])
                    if about[NONZERO] > 0.0:
                        underflow = count[UNDERFLOW] > underflowed
                        most[MAX_RELATIVE] = raised(
                            most[MAX_RELATIVE], underflow, xs, room[1], largest_errors[MAX_RELATIVE]
                        )
                    for k in range(len(TOTALS)):
                        total, rest = totals[i, group, k, 0], totals[i, group, k, 1]
                        totals[i, group, k, 0], totals[i, group, k, 1] = two_sum(total, rest, sums[k])

    return kernel(measure_nearest)
