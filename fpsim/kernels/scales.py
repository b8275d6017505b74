"""CPU loops of scales: the amax of every tile in, its scale and the factor of its elements out.

Tiles are many where blocks are small, so that these loops must vectorise as well: rules and formats are compiled in,
nothing branches, and tiles with NaN or Inf, which are rare, are put right afterwards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.jit import kernel
from fpsim.core.scale import (
    AMAX_BY_MAX,
    AMAX_TIMES_INVERSE,
    BY_SCALE,
    INVERSE_OF_ENCODE,
    ScaleNumbers,
    power_quotient_32,
    power_quotient_64,
)

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64
LARGEST = f32(np.finfo(np.float32).max)

# Counters of a report.
ZERO_TILES, NAN_TILES, INFINITE_TILES, CLAMPED_LOW, CLAMPED_HIGH = range(5)
COUNTERS = 5
MIRROR = 254  # E8M0 codes of x and 1 / x add up to this
LARGEST_POWER = f32(2.0**127)  # of E8M0
# What a tile holds besides finite numbers, as bits.
HAS_NAN, HAS_INFINITY = 1, 2


@cache
def scale_kernel(width: int, rule: int, applied: int, levels: int, mode: int, kind: int, is_single: bool) -> Any:
    """The loop `(tops, scales, codes, factors, numbers, exact, emax, half_place, layout, table, ...)`.

    tops: bits of the finite amax of each tile. scales: float32, filled. codes: of the scale format, filled (not for
    FP32). factors: filled with what elements are divided by or multiplied with. numbers: ScaleNumbers in an array.
    layout: encodes a quotient into the scale format; table: its values by code. edge_codes: codes of the smallest
    scale, of the scale of zeros. levels: 1, or 2 with a scale of the array. is_single: the scale format is FP32 and
    the quotient needs no rounding.
    """
    word: Any = u32 if width == 32 else u64
    real: Any = f32 if width == 32 else f64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
    power_quotient = power_quotient_32 if width == 32 else power_quotient_64
    no_random = word(0)
    zero, one, infinite = real(0), real(1), real(np.inf)
    largest = real(LARGEST)

    def scale_tiles(
        tops: Any, scales: Any, codes: Any, factors: Any, numbers: Any, exact: Any, emax: Any, half_place: Any,
        layout: Any, table: Any, edge_codes: Any, counts: Any,
    ) -> None:  # fmt: skip
        n = ScaleNumbers(
            numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7], numbers[8],
            numbers[9],
        )  # fmt: skip
        f = encode_fields(layout)
        zeros = lows = highs = 0
        # the quotient, which `factors` holds for a while
        for j in range(tops.size):
            amax = max(word(tops[j]).view(real), n.amax_floor)
            if rule == AMAX_BY_MAX:
                quotient = real(amax / n.largest)
                if levels == 2:
                    quotient = real(quotient / n.tensor)
            elif rule == AMAX_TIMES_INVERSE:
                quotient = real(amax * n.inverse)
            elif rule == INVERSE_OF_ENCODE:
                quotient = real(amax * n.tensor_factor)
            else:
                quotient = power_quotient(word(real(amax).view(word)), emax, half_place, rule)
            factors[j] = quotient
        if not is_single:
            for j in range(tops.size):
                codes[j] = encode_bits(real(factors[j]).view(word), no_random, f, mode, kind)
        for j in range(tops.size):
            quotient = factors[j]
            if is_single:
                scale = real(f32(quotient))
                scale = min(scale, n.scale_max) if quotient < infinite else scale
            else:
                scale = real(table[codes[j]])
            if rule != INVERSE_OF_ENCODE:
                empty = max(word(tops[j]).view(real), n.amax_floor) == zero
                low = ((quotient <= n.half_smallest) | (scale < n.smallest)) & (quotient == quotient)
                scale = n.smallest if low else scale
                scale = n.zero_scale if empty else scale
                lows += int(low and not empty)
                if not is_single:
                    code = edge_codes[0] if low else codes[j]
                    codes[j] = edge_codes[1] if empty else code
            zeros += int(word(tops[j]) == word(0))
            highs += int(quotient > n.scale_max)
            if levels == 1:
                scales[j] = f32(scale)
                factors[j] = scale if applied == BY_SCALE else real(one / scale)
            else:
                total = real(scale * n.tensor)
                scales[j] = f32(total)
                if rule == INVERSE_OF_ENCODE:
                    factors[j] = min(real(one / total), largest)
                elif applied == BY_SCALE:
                    factors[j] = total
                else:
                    factors[j] = real(n.inverse_tensor / scale)
        counts[ZERO_TILES] += zeros
        counts[CLAMPED_LOW] += lows
        counts[CLAMPED_HIGH] += highs

    return kernel(scale_tiles)


@cache
def encode_scale_kernel(width: int, mode: int, kind: int, is_single: bool) -> Any:
    """The loop of encode scales, with the same arguments; exact: largest value and amax_floor in float64.

    The factor of a tile is e = largest / amax, one float64 division rounded to float32 and then, unless is_single,
    into powers of two; its scale is 1 / e. Those are mirror images: codes of e and 1 / e add up to 254 in E8M0.
    """
    word: Any = u32 if width == 32 else u64
    real: Any = f32 if width == 32 else f64
    no_random, zero = u32(0), real(0)
    mirror = MIRROR

    def encode_scale_tiles(
        tops: Any, scales: Any, codes: Any, factors: Any, numbers: Any, exact: Any, emax: Any, half_place: Any,
        layout: Any, table: Any, edge_codes: Any, counts: Any,
    ) -> None:  # fmt: skip
        f = encode_fields(layout)
        largest, amax_floor = exact[0], exact[1]
        of_zeros = f32(f32(1) / f32(numbers[6]))
        zeros = lows = 0
        for j in range(tops.size):
            amax = max(f64(word(tops[j]).view(real)), amax_floor)
            encode_scale = f32(largest / amax)
            low = encode_scale > LARGEST
            encode_scale = LARGEST if low else encode_scale
            encode_scale = of_zeros if amax == f64(0) else encode_scale
            lows += int(low and amax > f64(0))
            zeros += int(word(tops[j]) == word(0))
            factors[j] = real(encode_scale)
        if not is_single:
            for j in range(tops.size):
                codes[j] = encode_bits_32(f32(factors[j]).view(u32), no_random, f, mode, kind)
            for j in range(tops.size):
                # an encode scale of 0, that of an infinite amax, has no code, and stays
                factors[j] = real(table[codes[j]]) if factors[j] > zero else zero
                codes[j] = mirror - codes[j]
        for j in range(tops.size):
            scale = f32(f32(1) / f32(factors[j]))
            scales[j] = scale if is_single else min(scale, LARGEST_POWER)
        counts[ZERO_TILES] += zeros
        counts[CLAMPED_LOW] += lows

    return kernel(encode_scale_tiles)
