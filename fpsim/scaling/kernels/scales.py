"""CPU loops of scales: the amax of every tile in, its scale and the factor of its elements out.

Tiles are many where blocks are small, so that these loops must vectorise as well: rules and formats are compiled in,
nothing branches, and tiles with NaN or Inf, which are rare, are put right afterwards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.tile_scale import (
    CLAMPED_HIGH,
    CLAMPED_LOW,
    INVERSE_OF_ENCODE,
    MIRROR,
    ZERO_TILES,
    ScaleNumbers,
    scale_steps_32,
    scale_steps_64,
)
from fpsim.runtime.compile import kernel

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64


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
    steps = scale_steps_32 if width == 32 else scale_steps_64
    quotient_of, single_scale, bounded, applied_to = (
        steps.quotient_of, steps.single_scale, steps.bounded, steps.applied_to,
    )  # fmt: skip
    no_random = word(0)

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
            factors[j] = quotient_of(tops[j], n, emax, half_place, rule, levels)
        if not is_single:
            for j in range(tops.size):
                codes[j] = encode_bits(real(factors[j]).view(word), no_random, f, mode, kind)
        for j in range(tops.size):
            quotient = factors[j]
            scale = single_scale(quotient, n) if is_single else real(table[codes[j]])
            if rule != INVERSE_OF_ENCODE:
                scale, low, empty = bounded(tops[j], quotient, scale, n)
                lows += int(low and not empty)
                if not is_single:
                    code = edge_codes[0] if low else codes[j]
                    codes[j] = edge_codes[1] if empty else code
            zeros += int(word(tops[j]) == word(0))
            highs += int(quotient > n.scale_max)
            scales[j], factors[j] = applied_to(scale, n, rule, applied, levels)
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
    steps = scale_steps_32 if width == 32 else scale_steps_64
    encode_scale_of, decode_scale_of = steps.encode_scale_of, steps.decode_scale_of
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
            encode_scale, low = encode_scale_of(tops[j], largest, amax_floor, of_zeros)
            lows += int(low)
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
            scales[j] = decode_scale_of(factors[j], is_single)
        counts[ZERO_TILES] += zeros
        counts[CLAMPED_LOW] += lows

    return kernel(encode_scale_tiles)
