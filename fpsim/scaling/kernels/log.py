"""CPU loops of LogFMT: each tile gets its levels, each element the nearest one. Rules: docs/scaling.md.

Both loops compute a tile's levels from its two float32 numbers, step and low, by the same function, so decoding sees
the levels that encoding chose from. log2 and exp2 are those of the system's libm in float64, which may differ in their
last bit: a float32 then differs about once in 2**28 times. All other operations are exact or rounded by integers.

The midpoints of ideal levels have equal distances in log2, so the logarithm of an element alone gives its level. Only
if it is so close to a midpoint that the rounding of step and low could matter are levels searched and compared.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from fpsim.core.tile_scale import INFINITE_TILES, NAN_TILES, ZERO_TILES
from fpsim.runtime.compile import kernel, scalar
from fpsim.scaling.kernels.amax import float_words

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64

OCTAVES = 32.0  # no level is further below the largest magnitude; "Insights into DeepSeek-V3", section 3.2
LARGEST = f64((2.0 - 2.0**-23) * 2.0**127)  # of float32
SMALLEST_NORMAL, SMALLEST = f64(2.0**-126), f64(2.0**-149)  # of float32
# Steps from here on give levels that all differ among float32's normal numbers: 2**COARSE is 1 + 5.5 * 2**-24.
COARSE = f64(2.0**-21)
# Rounding a level to float32 moves log2 of it, and of a midpoint, by up to 1.45 * 2**-24. The rest is float64's error.
DOUBT = f64(2.0**-23)

# Rounding of a float64's pattern to float32.
HIDDEN, FRACTION = u64(1 << 52), u64((1 << 52) - 1)
DROPPED, KEPT = u64(29), u64((1 << 64) - (1 << 29))
BELOW_HALF, ONE = u64((1 << 28) - 1), u64(1)
NORMAL_FIELD = u64(1023 - 126)  # float64's exponent field of float32's smallest normal number
ZERO_FIELD = u64(1023 - 150)  # that of half float32's smallest number; smaller magnitudes round to zero

SIGN_32, NAN_32 = u32(0x80000000), u32(0x7FC00000)
SIGN_SHIFT = u32(31)


@scalar
def round_to_float32(x: Any) -> Any:
    """Return x, a float64 in 0 .. 2**128, normal or 0, rounded to the nearest float32 (or 2**128), as a float64.

    Ties go to even.
    """
    bits = f64(x).view(u64)
    field = u64(bits >> u64(52))
    if field >= NORMAL_FIELD:
        odd = u64(u64(bits >> DROPPED) & ONE)
        return u64(u64(bits + u64(BELOW_HALF + odd)) & KEPT).view(f64)
    if field < ZERO_FIELD:
        return f64(0.0)
    dropped = u64(u64(DROPPED + NORMAL_FIELD) - field)  # 30 .. 53
    significand = u64(u64(bits & FRACTION) | HIDDEN)
    odd = u64(u64(significand >> dropped) & ONE)
    below_half = u64(u64(ONE << u64(dropped - ONE)) - ONE)
    return f64(f64(u64(u64(significand + u64(below_half + odd)) >> dropped)) * SMALLEST)


@scalar
def float32_bits(x: Any) -> Any:
    """Return the uint32 pattern of x, a float32 number >= 0 that is passed as a float64."""
    if x < SMALLEST_NORMAL:
        return u32(f64(x / SMALLEST))  # conversions of subnormals obey the processor's switches
    return u32(f32(x).view(u32))


@scalar
def level(k: Any, low: Any, step: Any) -> Any:
    """Return the magnitude that index k >= 0 stands for in a tile (0 for k = 0), a float32 number as a float64.

    low: log2 of level 1. step: the distance of neighbouring levels in log2.
    """
    if k == 0:
        return f64(0.0)
    exponent = f64(low + f64(step * f64(k - 1)))
    if exponent <= -150.0:
        return f64(0.0)
    if exponent >= 128.0:
        return LARGEST
    return min(f64(round_to_float32(math.exp2(exponent))), LARGEST)


@scalar
def midpoint(a: Any, b: Any) -> Any:
    """Return (a + b) / 2 of neighbouring levels a < b, which float64 holds exactly.

    Levels have 24 significant bits, and b / a is at most 2**16.1 unless a is 0.
    """
    return f64(f64(a + b) * f64(0.5))


@scalar
def nearest_level(x: Any, low: Any, step: Any, count: Any) -> Any:
    """Return the index, 0 .. count, of the level nearest to x >= 0: the larger in a tie, the first of equal levels.

    low: log2 of level 1. step: the distance of neighbouring levels in log2. count: the index of the largest level.
    """
    k, above = 0, count + 1
    while above - k > 1:
        middle = (k + above) // 2
        if x >= midpoint(level(middle - 1, low, step), level(middle, low, step)):
            k = middle
        else:
            above = middle
    value, below = level(k, low, step), -1
    while k - below > 1:
        middle = (below + k) // 2
        if level(middle, low, step) == value:
            k = middle
        else:
            below = middle
    return k


@cache
def _magnitudes(width: int) -> tuple[Any, Any]:
    """Return two functions of a magnitude's bit pattern, which return its value and its logarithm to base 2 as float64.

    width: bits of the pattern, 32 or 64.
    """
    word: Any = u32 if width == 32 else u64
    first_normal = word(1 << (23 if width == 32 else 52))

    @scalar
    def widen_32(bits: Any) -> Any:
        """Return a magnitude as a float64, exactly; bits: its float32 pattern."""
        return f64(word(bits).view(f32)) if bits >= first_normal else f64(f64(bits) * SMALLEST)

    @scalar
    def widen_64(bits: Any) -> Any:
        """Return a magnitude as a float64; bits: its float64 pattern."""
        return word(bits).view(f64)

    @scalar
    def log2_32(bits: Any) -> Any:
        """Return log2 of a finite nonzero magnitude as a float64; bits: its float32 pattern."""
        return f64(math.log2(widen_32(bits)))

    @scalar
    def log2_64(bits: Any) -> Any:
        """Return log2 of a finite nonzero magnitude as a float64; bits: its float64 pattern.

        A subnormal magnitude is an integer times 2**-1074.
        """
        if bits < first_normal:
            return f64(math.log2(f64(bits)) - 1074.0)
        return f64(math.log2(widen_64(bits)))

    return (widen_32, log2_32) if width == 32 else (widen_64, log2_64)


@scalar
def _round_signed(x: Any) -> Any:
    """Return x, a float64 of either sign, rounded to float32, as a float64."""
    return f64(-round_to_float32(-x)) if x < 0.0 else f64(round_to_float32(x))


@cache
def encode_kernel(width: int) -> Any:
    """Return the loop that encodes a matrix to LogFMT.

    Its arguments are (values, codes, steps, lows, counts, block_rows, block_columns, level_count, nan_is_max). values:
    2-D, floats of `width` bits, 32 or 64. codes: filled, of the same shape, integers of the format's storage. steps,
    lows: filled, 2-D float32, one number per tile of block_rows x block_columns elements (fewer at the edges): the
    distance of levels in log2, and log2 of the lowest nonzero level. counts: int64; the numbers of tiles with an amax
    of 0, with NaN and with Inf are added to its first three entries. level_count: the number of nonzero levels
    of one sign. nan_is_max: True turns a NaN into the tile's largest level; False makes step and low of its tile NaN,
    and all codes 0.
    """
    word, _, magnitude, infinity = float_words(width)
    sign = word(1 << (width - 1))
    nothing = word(0)
    widen, log2 = _magnitudes(width)

    @scalar
    def spread(tile: Any) -> Any:
        """Return (smallest, largest, has_infinity, has_nan) of a tile, a 2-D array of bit patterns.

        smallest, largest: patterns of the smallest and largest finite nonzero magnitude; those of Inf and of 0 if the
        tile has no such element. has_infinity, has_nan: whether the tile holds an Inf or a NaN.
        """
        smallest, largest, has_infinity, has_nan = infinity, nothing, False, False
        for i in range(tile.shape[0]):
            for j in range(tile.shape[1]):
                bits = word(tile[i, j] & magnitude)
                smallest = min(smallest, bits if bits != nothing else infinity)
                largest = max(largest, bits if bits < infinity else nothing)
                has_infinity |= bits == infinity
                has_nan |= bits > infinity
        return smallest, largest, has_infinity, has_nan

    @scalar
    def encode_tile(tile: Any, codes: Any, low: Any, step: Any, level_count: Any) -> None:
        """Fill the codes of a tile with given levels; NaN becomes the largest level, without a sign.

        tile: 2-D bit patterns. codes: array of the tile's shape. low: log2 of the lowest nonzero level. step: the
        distance of levels in log2. level_count: the number of nonzero levels.
        """
        count = level_count if step > 0.0 else 1  # without a step all levels are the first
        top = level(count, low, step)
        half_lowest = midpoint(f64(0.0), level(1, low, step))
        is_coarse = step >= COARSE and low >= -126.0 and low + step * f64(count - 1) <= 128.0
        inverse, middle, margin = f64(0.0), f64(0.0), f64(0.0)
        if is_coarse:
            inverse = f64(1.0) / step
            middle = f64(math.log2(f64(0.5) + f64(0.5) * math.exp2(step)) * inverse)  # of two levels, in steps
            margin = f64(DOUBT * inverse)
        sign_bit = level_count + 1
        for i in range(tile.shape[0]):
            for j in range(tile.shape[1]):
                bits = word(tile[i, j] & magnitude)
                x = widen(min(bits, infinity))
                if x < half_lowest:
                    k = 0
                elif not is_coarse:
                    k = nearest_level(x, low, step, count)
                elif x >= top:
                    k = count
                else:
                    place = f64(f64(math.log2(x) - low) * inverse - middle)  # integers are midpoints
                    below = math.floor(place)
                    rest = f64(place - f64(below))
                    if margin < rest < f64(1.0) - margin:
                        k = max(int(below) + 2, 1)
                    else:
                        k = nearest_level(x, low, step, count)
                negative = word(tile[i, j] & sign) != nothing and bits <= infinity
                codes[i, j] = k + sign_bit if negative else k

    def encode(
        values: Any, codes: Any, steps: Any, lows: Any, counts: Any, rows: Any, columns: Any, level_count: Any,
        nan_is_max: Any,
    ) -> None:  # fmt: skip
        bits = values.view(word)
        for r in range(steps.shape[0]):
            for c in range(steps.shape[1]):
                tile = bits[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
                target = codes[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
                smallest, largest, has_infinity, has_nan = spread(tile)
                counts[NAN_TILES] += int(has_nan)
                counts[INFINITE_TILES] += int(has_infinity)
                if has_nan and not nan_is_max:
                    steps[r, c] = lows[r, c] = np.nan
                    target[:, :] = 0
                    continue
                counts[ZERO_TILES] += int(largest == nothing)
                low = step = f64(0.0)
                if largest != nothing:
                    high = log2(largest)
                    lowest = max(log2(smallest), high - OCTAVES)
                    low, step = _round_signed(lowest), _round_signed((high - lowest) / f64(level_count - 1))
                steps[r, c] = step
                lows[r, c] = low
                encode_tile(tile, target, low, step, level_count)

    return kernel(encode)


@cache
def decode_kernel() -> Any:
    """Return the loop (codes, steps, lows, values, block_rows, block_columns, level_count) -> None that decodes LogFMT.

    codes: 2-D, uint8 or uint16. A code of n bits is a sign bit, the highest, and the index k of a level in the other
    n - 1 bits. Index 0 is the magnitude 0. Index k >= 1 is 2**(low + (k - 1) * step), rounded to float32 and at most
    float32's largest value. Zeros have a sign, too.
    values: filled, float32, of the same shape. steps, lows: 2-D float32, one number per tile of block_rows x
    block_columns elements (fewer at the edges): the distance of levels in log2, and log2 of the lowest nonzero level. A
    NaN step makes all values of its tile NaN. level_count: the number of nonzero levels of one sign, 2**(n - 1) - 1,
    which is also the mask of the index in a code.
    """

    def decode(codes: Any, steps: Any, lows: Any, values: Any, rows: Any, columns: Any, level_count: Any) -> None:
        bits = values.view(u32)
        for r in range(steps.shape[0]):
            for c in range(steps.shape[1]):
                tile = codes[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
                target = bits[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
                step, low = f64(steps[r, c]), f64(lows[r, c])
                if step != step:
                    target[:, :] = NAN_32
                    continue
                for i in range(tile.shape[0]):
                    for j in range(tile.shape[1]):
                        code = int(tile[i, j])
                        magnitude = u32(float32_bits(level(code & level_count, low, step)))
                        target[i, j] = u32(magnitude | SIGN_32) if code > level_count else magnitude

    return kernel(decode)
