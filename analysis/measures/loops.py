"""Compiled loops that measure rounding errors in blocks of 2048 elements, with sums in vectors of float64.

The range of a block's values decides which of three loop bodies is used. The compiler may reorder only the sums inside
a block: it keeps the order of the operations in scalar functions, which do the elementwise arithmetic. Sums of blocks
are added by compensated summation in the order of the array, so the number of threads does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.measures.sums import COUNTS, MAXIMA, TOTALS
from fpsim.arrays import Array
from fpsim.reload import reloadable
from fpsim.runtime.compile import inner_loop, kernel, reordered_sums, scalar

u32, u64, i64 = np.uint32, np.uint64, np.int64
f32, f64 = np.float32, np.float64

BLOCK = 2048  # elements: long enough to amortise a call, short enough that few blocks require the slowest loop

LARGEST, SMALLEST, ENERGY, NONZERO = range(4)  # columns of a block's description, which `describe_kernel` explains
DESCRIPTION = 4

BEYOND, TOP, NORMAL_FROM, SUBNORMAL_BELOW, MAY_REFUSE, LOWEST_FIELD, HIGHEST_FIELD, PRECISION = range(8)
FACTS = 8  # `FormatFacts` in fpsim/analysis/measures/candidates.py explains these indices of the facts of a format

(
    COUNT, COMPARED, NONZERO_COUNT, UNDERFLOW, SUBNORMAL, OVERFLOW, SATURATION, FINITE_SATURATION, NAN, EXACT,
) = range(len(COUNTS))  # fmt: skip
SIGNAL, PRODUCT, ERROR, ULPS, RELATIVE, NORMAL_NOISE, SUBNORMAL_NOISE, LOST, CLIPPED = range(len(TOTALS))
MAX_ULP, MAX_RELATIVE = range(len(MAXIMA))

NEAR_ONE = 1.0 - 2.0**-50  # smallest ratio of a product with a rounded reciprocal to the quotient
INFINITE = i64(0x7FF0000000000000)  # `in_order` of Inf; `in_order` of NaN is larger
MAY_VANISH = 2.0**-120  # magnitudes below which a value times its scale may become zero in float32


@scalar
def difference(result: Any, x: Any) -> Any:
    """Return result - x, two float scalars, in float64; exact for float32 values within 29 binades of each other."""
    return f64(result) - f64(x)


@scalar
def product(a: Any, b: Any) -> Any:
    """Return a * b rounded to float64, which the compiler does not fuse with a later addition."""
    return f64(a) * f64(b)


@scalar
def quotient(a: Any, b: Any) -> Any:
    """Return a / b in float64; 0 for b = 0."""
    return f64(a) / f64(b) if f64(b) != 0.0 else 0.0


@scalar
def in_order(size: Any) -> Any:
    """Return the bits of a float64 >= 0 or NaN as an int64; these compare as the floats do, with NaN as the largest."""
    return f64(size).view(i64)


@scalar
def two_sum(total: Any, rest: Any, term: Any) -> Any:
    """Return (total + term, rest + the rounding error of that addition): a step of compensated summation."""
    added = total + term
    back = added - total
    lost = (total - (added - back)) + (term - back)
    return added, rest + (lost if abs(added) < np.inf else 0.0)


@scalar
def inverse_ulp_32(value: Any, lowest: Any, highest: Any, precision: Any) -> Any:
    """Return 1 / ulp, a float64, of a float32 value in a format with `precision` mantissa bits.

    The value's exponent field is clamped to lowest .. highest, the fields of the format's normal range.
    """
    field = u32(f32(value).view(u32) & u32(0x7F800000))
    field = u32(min(max(field, u32(lowest << i64(23))), u32(highest << i64(23))))
    upper = u32(u32((i64(1023 + 127) + precision) << i64(20)) - u32(field >> u32(3)))
    return u64(u64(upper) << u64(32)).view(f64)


@scalar
def single_difference(result: Any, x: Any) -> Any:
    """Return result - x in float32."""
    return f32(result) - f32(x)


@scalar
def inverse_ulp_single(value: Any, lowest: Any, highest: Any, precision: Any) -> Any:
    """Return 1 / ulp as `inverse_ulp_32` does, but as a float32 <= 2**127; exact if |value| >= 2**(precision - 126)."""
    field = u32(f32(value).view(u32) & u32(0x7F800000))
    field = u32(min(max(field, u32(lowest << i64(23))), u32(highest << i64(23))))
    inverse = u32(u32((i64(127 + 127) + precision) << i64(23)) - field)
    return u32(min(inverse, u32(0x7F000000))).view(f32)


@scalar
def ulp_64(value: Any, lowest: Any, highest: Any, precision: Any) -> Any:
    """Return the ulp of a float64 `value` in a format with `precision` mantissa bits, as a float64, possibly subnormal.

    lowest, highest: the float64 exponent fields of the format's normal range, to which the value's field is clamped.
    """
    field = i64(u64(f64(value).view(u64) & u64(0x7FF0000000000000)) >> u64(52))
    field = i64(min(max(field, lowest), highest) - precision)
    normal = u64(u64(max(field, i64(1))) << u64(52))
    subnormal = u64(u64(1) << u64(max(i64(51) + min(field, i64(0)), i64(0))))
    return u64(normal if field > 0 else subnormal).view(f64)


@cache
def describe_kernel(width: int) -> Any:
    """Return the loop `(x, reciprocals, descriptions)` that describes x (groups, length), floats of `width` bits.

    It writes 1 / |x| (0 for 0) to `reciprocals` (groups, length), and for each block of 2048 elements to `descriptions`
    (groups, blocks, 4): largest magnitude, smallest nonzero one (Inf for none), sum of squares, number of nonzeros.
    """
    word: Any = u32 if width == 32 else u64
    real: Any = f32 if width == 32 else f64

    def describe_block(x: Any, reciprocals: Any, row: Any) -> None:
        energy = 0.0
        largest, above, zeros = word(0), ~word(0), word(0)
        for i in range(x.size):
            size = f64(abs(x[i]))
            order = word(real(abs(x[i])).view(word))
            energy += product(size, size)
            largest = max(largest, order)
            above = min(above, word(order - word(1)))  # 0 comes last
            zeros = word(zeros + word(order == word(0)))
            reciprocals[i] = quotient(1.0, size)
        smallest = f64(word(above + word(1)).view(real))
        row[LARGEST], row[SMALLEST] = f64(word(largest).view(real)), smallest if smallest != 0.0 else np.inf
        row[ENERGY], row[NONZERO] = energy, f64(x.size - i64(zeros))

    loop = reordered_sums(describe_block)

    def describe(x: Any, reciprocals: Any, descriptions: Any) -> None:
        for group in range(x.shape[0]):
            for block in range(descriptions.shape[1]):
                part = slice(block * BLOCK, (block + 1) * BLOCK)
                loop(x[group, part], reciprocals[group, part], descriptions[group, block])

    return kernel(describe)


@inner_loop
def largest_of(values: Any) -> Any:
    """Return the largest magnitude of an array, as float64; NaN if an element is NaN."""
    largest = i64(0)
    for i in range(values.size):
        largest = max(largest, in_order(abs(f64(values[i]))))
    return i64(largest).view(f64)


@scalar
def clamped(value: Any, top: Any, limit: Any) -> Any:
    """Return `top` with the sign of `value` if top < |value| <= limit, else `value`."""
    size = abs(value)
    over = (size > top) & (size <= limit)
    return (top if value > 0 else -top) if over else value


@cache
def divide_kernel() -> Any:
    """Return the loop `(x, scale, exact, top, limit)` over 1-d arrays: exact = clamped(x / scale, top, limit)."""

    def divide(x: Any, scale: Any, exact: Any, top: Any, limit: Any) -> None:
        for i in range(x.size):
            exact[i] = clamped(x[i] / scale, top, limit)

    return kernel(divide)


@cache
def rescale_kernel() -> Any:
    """Return the loop `(x, values, scales, exact, results, top, limit)` over 1-d arrays of equal size.

    It writes x / scales to `exact`, where magnitudes in (top, limit] become top, and values * scales to `results`.
    """

    def rescale(x: Any, values: Any, scales: Any, exact: Any, results: Any, top: Any, limit: Any) -> None:
        for i in range(x.size):
            exact[i] = clamped(x[i] / scales[i], top, limit)
            results[i] = values[i] * scales[i]

    return kernel(rescale)


@inner_loop
def smallest_source_of(exact: Any, x: Any) -> Any:
    """Return the smallest |exact| (exact = x / scale) over the elements whose x is not 0; Inf if there are none."""
    smallest = INFINITE
    for i in range(x.size):
        smallest = min(smallest, in_order(abs(f64(exact[i]))) if f64(x[i]) != 0.0 else INFINITE)
    return i64(smallest).view(f64)


@inner_loop
def largest_quotient(x: Any, results: Any, least: Any) -> Any:
    """Return the largest finite |result - x| / |x| where x is not 0, or `least` if that is larger."""
    largest = in_order(least)
    for i in range(x.size):
        relative = quotient(abs(difference(results[i], x[i])), abs(f64(x[i])))
        order = in_order(relative)
        largest = max(largest, order if order < INFINITE else i64(0))
    return i64(largest).view(f64)


@reloadable
class RoundedPiece(NamedTuple):
    """Arrays of one piece x: `exact` (x / scales), `values` (rounded), `results` (values * scales), scales or None."""

    exact: Array  # the unrounded piece, divided by its scales
    values: Array  # `exact` rounded to the format
    results: Array  # values times scales
    scales: Array | None  # None without scales; compiled loops then get any array instead

    def each(self, change: Callable[[Array], Array]) -> RoundedPiece:
        """Return the piece with change(array) in place of each of its arrays; a field that is None stays None."""
        scales = None if self.scales is None else change(self.scales)
        return RoundedPiece(change(self.exact), change(self.values), change(self.results), scales)


def _make_measure_block(width: int, scaled: bool, small: bool, rare: bool) -> Any:
    """Return the loop body `(x, reciprocals, rounded, facts, sums, counts, maxima)` that measures a block.

    It overwrites `sums` and maxima[MAX_RELATIVE], adds to `counts`, and raises maxima[MAX_ULP]. Its other arguments are
    as in `measure_kernel`. width: bits of a value. scaled: whether values have scales. small: whether some values may
    be below the format's normal range. rare: whether some may be Inf, NaN or beyond the range; if False, the body sets
    sums[SIGNAL] to 0 and does not count compared and nonzero values.
    """
    # results of normal values are within a factor of 2, so that float32 holds their difference and its number of ulps
    single = width == 32 and not (scaled or small or rare)

    def measure_block(x: Any, reciprocals: Any, rounded: Any, facts: Any, sums: Any, counts: Any, maxima: Any) -> None:
        exact, values, results, scales = rounded
        beyond, top, below = facts[BEYOND], facts[TOP], facts[SUBNORMAL_BELOW]
        lowest, highest, precision = i64(facts[LOWEST_FIELD]), i64(facts[HIGHEST_FIELD]), i64(facts[PRECISION])
        signal, inner, errors, ulps, relatives = 0.0, 0.0, 0.0, 0.0, 0.0
        normal_noise, subnormal_noise, lost, clipped = 0.0, 0.0, 0.0, 0.0
        max_ulp, max_relative = i64(0), i64(0)
        equal, zeros, tiny_count, compared, nonzero = i64(0), i64(0), i64(0), i64(0), i64(0)
        overflowed, saturated, finite_saturated, nans = i64(0), i64(0), i64(0), i64(0)
        for i in range(x.size):
            value, kept = f64(x[i]), abs(f64(values[i]))
            result = f64(results[i]) if scaled else f64(values[i])
            error = difference(result, value)
            if rare:
                size = in_order(abs(value))
                finite = size < INFINITE
                judged = finite & (in_order(abs(result)) < INFINITE)
                error = error if judged else f64(0)
                value = value if judged else f64(0)
                signal += value * value
                compared += i64(judged)
                nonzero += i64(judged & (value != 0.0))
                overflowed += i64(finite & (judged == False))  # noqa: E712
                nans += i64(size > INFINITE)
                equal += i64((judged & (error == 0.0)) | ((size == INFINITE) & (f64(x[i]) == result)))
                at_top = (kept == top) & (result != 0.0) & (abs(f64(exact[i] if scaled else x[i])) >= beyond)
                saturated += i64(at_top)
                finite_saturated += i64(at_top & finite)
            else:
                equal += i64(error == 0.0)
            distance = abs(error)
            square = error * error
            inner += value * (result if (not rare) or judged else 0.0)
            errors += error
            before = exact[i] if scaled else x[i]
            if single:
                close = abs(single_difference(values[i], x[i]))
                ulp_count = f64(f32(close * inverse_ulp_single(before, lowest, highest, precision)))
            elif width == 32:
                # the factor is a power of two, so that the product equals the quotient
                ulp_count = product(distance, inverse_ulp_32(before, lowest, highest, precision))
                if scaled:
                    ulp_count = quotient(ulp_count, scales[i])
            else:
                spacing = ulp_64(before, lowest, highest, precision)
                ulp_count = quotient(distance, product(spacing, scales[i]) if scaled else spacing)
            ulp_count = ulp_count if (not rare) or judged else f64(0)  # in a tile whose scale is NaN, it is NaN
            ulps += ulp_count
            max_ulp = max(max_ulp, in_order(ulp_count))
            if width == 32:
                relative = distance * (reciprocals[i] if (not rare) or judged else 0.0)
            else:
                relative = quotient(distance, abs(value))
            relatives += relative
            if small or rare:
                zero = (result == 0.0) & ((f64(x[i]) != 0.0) if rare else (error != 0.0))
                tiny = (kept < below) & (result != 0.0) & (kept != 0.0)
                # the relative error of a value that becomes zero is exactly 1; the product above may round differently
                max_relative = max(max_relative, i64(0) if zero else in_order(relative))
                zeros += i64(zero)
                tiny_count += i64(tiny)
                lost += square if zero else 0.0
                subnormal_noise += square if tiny else 0.0
                if rare:
                    clipped += square if at_top else 0.0
                    normal_noise += 0.0 if zero | tiny | at_top else square
                else:
                    normal_noise += 0.0 if zero | tiny else square
            else:
                max_relative = max(max_relative, in_order(relative))
                normal_noise += square
        sums[SIGNAL], sums[PRODUCT], sums[ERROR], sums[ULPS], sums[RELATIVE] = signal, inner, errors, ulps, relatives
        sums[NORMAL_NOISE], sums[SUBNORMAL_NOISE] = normal_noise, subnormal_noise
        sums[LOST], sums[CLIPPED] = lost, clipped
        maxima[MAX_ULP] = max(maxima[MAX_ULP], i64(max_ulp).view(f64))
        maxima[MAX_RELATIVE] = i64(max_relative).view(f64)
        counts[EXACT] += equal
        counts[UNDERFLOW] += zeros
        counts[SUBNORMAL] += tiny_count
        if rare:
            counts[COMPARED] += compared
            counts[NONZERO_COUNT] += nonzero
            counts[OVERFLOW] += overflowed
            counts[SATURATION] += saturated
            counts[FINITE_SATURATION] += finite_saturated
            counts[NAN] += nans

    return reordered_sums(measure_block)


@cache
def measure_kernel(width: int, scaled: bool) -> Any:
    """Return the loop `(x, reciprocals, descriptions, done, rounded, totals, counts, maxima, facts)` over x.

    It adds the errors of `rounded`, a RoundedPiece of x (groups, length), to the arrays of an ErrorSums (groups,), but
    skips blocks with a nonzero `done`, uint8 (groups, blocks). reciprocals, descriptions: as `describe_kernel` writes
    them. facts: `FormatFacts.floats`. width: bits of a float. scaled: whether the piece has scales.
    """
    common = _make_measure_block(width, scaled, small=False, rare=False)
    with_small = _make_measure_block(width, scaled, small=True, rare=False)
    any_kind = _make_measure_block(width, scaled, small=True, rare=True)

    def measure(
        x: Any, reciprocals: Any, descriptions: Any, done: Any, rounded: Any, totals: Any, counts: Any,
        maxima: Any, facts: Any,
    ) -> None:  # fmt: skip
        exact, values, results, scales = rounded
        sums, largest_errors = np.zeros(len(TOTALS)), np.zeros(len(MAXIMA))
        for group in range(x.shape[0]):
            for block in range(descriptions.shape[1]):
                if done[group, block] != 0:
                    continue
                part = slice(block * BLOCK, (block + 1) * BLOCK)
                about = descriptions[group, block]
                counts[group, COUNT] += x[group, part].size
                xs, kept, out = x[group, part], values[group, part], results[group, part]
                source = exact[group, part]
                of_scales = scales[group, part] if scaled else out
                largest, smallest = about[LARGEST], about[SMALLEST]
                if scaled:
                    largest, smallest = largest_of(source), smallest_source_of(source, xs)
                    if about[SMALLEST] < MAY_VANISH:
                        smallest = 0.0
                ordinary = (about[LARGEST] < np.inf) & (largest <= facts[TOP])
                if facts[MAY_REFUSE] != 0.0:
                    ordinary = ordinary & (largest_of(kept) < np.inf)
                    smallest = 0.0  # a negative value of any size may become 0
                if scaled:
                    ordinary = ordinary & (largest_of(out) < np.inf)
                largest_errors[MAX_ULP], largest_errors[MAX_RELATIVE] = maxima[group, MAX_ULP], 0.0
                arguments = (xs, reciprocals[group, part], RoundedPiece(source, kept, out, of_scales), facts)
                compared = counts[group, COMPARED]
                nonzero, underflowed = counts[group, NONZERO_COUNT], counts[group, UNDERFLOW]
                if not ordinary:
                    any_kind(*arguments, sums, counts[group], largest_errors)
                else:
                    if smallest < facts[NORMAL_FROM]:
                        with_small(*arguments, sums, counts[group], largest_errors)
                    else:
                        common(*arguments, sums, counts[group], largest_errors)
                    sums[SIGNAL] = about[ENERGY]
                    counts[group, COMPARED] += xs.size
                    counts[group, NONZERO_COUNT] += i64(about[NONZERO])
                if counts[group, COMPARED] > compared:
                    maxima[group, MAX_ULP] = largest_errors[MAX_ULP]
                if counts[group, NONZERO_COUNT] > nonzero:
                    best = maxima[group, MAX_RELATIVE]
                    if counts[group, UNDERFLOW] > underflowed:
                        best = max(best, 1.0)
                        maxima[group, MAX_RELATIVE] = best
                    if width == 32 and largest_errors[MAX_RELATIVE] >= best * NEAR_ONE:
                        maxima[group, MAX_RELATIVE] = largest_quotient(xs, out, max(best, 0.0))
                    elif largest_errors[MAX_RELATIVE] > best:
                        maxima[group, MAX_RELATIVE] = largest_errors[MAX_RELATIVE]
                for k in range(len(TOTALS)):
                    totals[group, k, 0], totals[group, k, 1] = two_sum(
                        totals[group, k, 0], totals[group, k, 1], sums[k]
                    )

    return kernel(measure)
