"""CUDA kernels that compute scales from the amax of tiles, with the same scalar core as the CPU's loops.

One thread computes the scale of one tile.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.core.decode import DecodeLayout
from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.scaled_element import integer_of
from fpsim.core.tile_scale import (
    BY_SCALE,
    CLAMPED_LOW,
    COUNTERS,
    EXACT,
    HAS_INFINITY,
    HAS_NAN,
    INFINITE_TILES,
    NAN_TILES,
    ZERO_TILES,
    ScaleChoices,
    ScaleNumbers,
    ScaleRules,
    choice_words,
    scale_numbers,
    scale_steps_32,
    scale_steps_64,
    tile_settler,
)
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64
NAN_BITS = u32(0x7FC00000)


def word_of(width: int) -> Any:
    """Return np.uint32 for a width of 32 bits, else np.uint64."""
    return u32 if width == 32 else u64


# Rows of a plan, a matrix of 64-bit words: the areas, the layout of the source, those of the elements' encoder and
# decoder and of the scales' encoder, and the rules of core/tile_scale.py.
AREAS, SOURCE, ENCODER, DECODER, SCALE_ENCODER, RULES = range(6)


class PlanReaders(NamedTuple):
    """Functions that read a layout from a row of a plan, a matrix of 64-bit integers whose rows are layouts and rules.

    encoder: row -> EncodeLayout; decoder: row -> DecodeLayout.
    """

    encoder: Any
    decoder: Any


@cache
def plan_readers(width: int) -> PlanReaders:
    """Return the functions that read layouts as integers of `width` bits, 32 or 64; cached."""
    return PlanReaders(fields_of(EncodeLayout, word_of(width)), fields_of(DecodeLayout, word_of(width)))


_rules_of = fields_of(ScaleRules, i64)


@cache
def settler(s: ScaleChoices) -> Any:
    """Return the function `(top, specials, numbers, plan, table) -> (scale, code, factor, events)` for a tile's scale.

    top: bits of the tile's amax, a float of s.width bits. specials: flags HAS_NAN and HAS_INFINITY. numbers:
    ScaleNumbers as an array. plan: 64-bit integers, of which row SCALE_ENCODER is the EncodeLayout of scales and row
    RULES holds ScaleRules, ScaleChoices and the bits of two float64 (largest element, lowest amax). table: values of
    the scale format's codes. scale: bits of the float32 decode scale, whose code in the scale format is `code`. factor:
    the float by which the tile's elements are divided or multiplied (s.applied). events: bit k is set if counter k of
    the report goes up by 1.
    """
    settle_tile = tile_settler(s.width, s.encodes).settle_tile
    choices, encoder_of = choice_words(s), plan_readers(32 if s.encodes else s.width).encoder

    def settle(top: Any, specials: Any, numbers: Any, plan: Any, table: Any) -> Any:
        n, r, f = scale_numbers(numbers), _rules_of(plan[RULES]), encoder_of(plan[SCALE_ENCODER])
        exact = u64(plan[RULES, EXACT]).view(f64), u64(plan[RULES, EXACT + 1]).view(f64)
        scale, code, factor, events = settle_tile(top, specials, n, exact, r, f, table, choices)
        return f32(scale).view(u32), code, factor, events

    return scalar(settle)


@cache
def settle_kernel(s: ScaleChoices) -> Any:
    """Return the kernel that computes scales: `(tops, specials, scales, codes, factors, counts, numbers, plan, table)`.

    One thread per tile. tops, specials: bits of each tile's amax, flags of NaN and Inf. It fills scales (float32 bits),
    codes of the scales, and factors (bits of what elements are divided or multiplied by), and adds to `counts` of the
    report. numbers: ScaleNumbers. plan: rows of 64-bit integers, of which SCALE_ENCODER (an EncodeLayout) and RULES are
    read. table: values of the scale format's codes.
    """
    word: Any = word_of(s.width)
    settle = settler(s)
    is_single = s.is_single

    def settle_all(
        tops: Any, specials: Any, scales: Any, codes: Any, factors: Any, counts: Any, numbers: Any, plan: Any,
        table: Any,
    ) -> None:  # fmt: skip
        for j in range(cuda.grid(1), scales.size, cuda.gridsize(1)):
            bits, code, factor, events = settle(tops[j], specials[j], numbers, plan, table)
            scales[j] = bits
            if not is_single:
                codes[j] = code
            factors[j] = factor.view(word)
            for k in range(COUNTERS):
                if (events >> k) & 1:
                    cuda.atomic.add(counts, k, u64(1))

    return gpu_kernel(settle_all)


@cache
def given_kernel(width: int, applied: int) -> Any:
    """Return the kernel `(tops, specials, scales, factors, counts, nan_tile)` for scales given by the caller.

    It fills factors, floats of `width` bits, and raises counts of special tiles. tops: 0 for tiles whose finite
    elements are all 0. A scale becomes NaN if nan_tile is not 0 and the tile has a NaN. applied: BY_SCALE if elements
    are divided by factors, BY_INVERSE if they are multiplied.
    """
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64

    def find_factors(tops: Any, specials: Any, scales: Any, factors: Any, counts: Any, nan_tile: Any) -> None:
        for j in range(cuda.grid(1), scales.size, cuda.gridsize(1)):
            has_nan = (specials[j] & HAS_NAN) != 0
            lost = has_nan & (nan_tile != 0)
            if lost:
                scales[j] = NAN_BITS
            if has_nan:
                cuda.atomic.add(counts, NAN_TILES, u64(1))
            if (specials[j] & HAS_INFINITY) != 0:
                cuda.atomic.add(counts, INFINITE_TILES, u64(1))
            if (tops[j] == word(0)) & (not lost):
                cuda.atomic.add(counts, ZERO_TILES, u64(1))
            scale = real(u32(scales[j]).view(f32))
            factor = scale if applied == BY_SCALE else real(real(1) / scale)
            factors[j] = real(factor).view(word)

    return gpu_kernel(find_factors)


@cache
def spread_kernel(width: int) -> Any:
    """Return the kernel `(tops, lows)`, which replaces tops by the range of each tile, highest - lowest element.

    tops, lows: bits, of floats of `width` bits, of the largest magnitudes of the positive and of the negative elements
    of each tile; lows become bits of the lowest element.
    """
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64
    sign_bit, largest = word(1 << (width - 1)), real(np.finfo(real).max)

    def find_spreads(tops: Any, lows: Any) -> None:
        for j in range(cuda.grid(1), tops.size, cuda.gridsize(1)):
            # both numbers come from memory, so that there is no product to contract
            spread = real(word(tops[j]).view(real) + word(lows[j]).view(real))
            tops[j] = real(spread if spread < largest else largest).view(word)
            lows[j] = word(lows[j] | sign_bit) if lows[j] != word(0) else word(0)

    return gpu_kernel(find_spreads)


@cache
def zero_points_kernel(width: int, kind: int, applied: int) -> Any:
    """Return the kernel `(lows, factors, zero_points, lowest, highest, layout)`, which fills zero points.

    A zero point is lowest - round(low / scale), clamped to lowest .. highest. lows: bits of each tile's lowest element,
    floats of `width` bits. factors: the scales or their inverses. lowest, highest: the range of the integer format.
    layout: the EncodeLayout by which quotients are rounded to integers. kind: the encoder's checks, PLAIN, FULL or
    UNUSUAL of core/encode.py; applied: BY_SCALE if values are divided by factors, BY_INVERSE if multiplied.
    """
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64
    to_integer = integer_of(width, NEAREST_EVEN, kind, applied)

    def find_zero_points(lows: Any, factors: Any, zero_points: Any, lowest: Any, highest: Any, layout: Any) -> None:
        f = encode_fields(layout)
        for j in range(cuda.grid(1), lows.size, cuda.gridsize(1)):
            offset = to_integer(lows[j], word(factors[j]).view(real), word(0), f)
            zero_points[j] = u32(min(max(lowest - offset, lowest), highest) & 255)

    return gpu_kernel(find_zero_points)


@cache
def tensor_kernel(width: int) -> Any:
    """Return the kernel that computes the second-level scale of an array from its amax, with one thread.

    Its arguments: `(top, specials, plain, highest, propagates, is_inverse, numbers, tensor, counts)`, mostly arrays of
    one element. top: bits of the finite amax of the array. specials: flags of NaN and Inf. plain: ScaleNumbers without
    a second level. highest: largest scale of a tile times largest element. propagates: 1 if an Inf makes the scale Inf.
    is_inverse: 1 if highest / amax is computed and inverted, 0 for amax / highest. numbers: filled with ScaleNumbers.
    tensor: filled with the float32 bits of the scale. counts: counters of the report, raised if the scale was clamped.
    """
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64
    steps = scale_steps_32 if width == 32 else scale_steps_64
    tensor_scale_of = steps.tensor_scale_of
    infinite, one = real(np.inf), real(1)
    numbers_of_it = len(ScaleNumbers._fields)

    def settle_tensor(
        top: Any, specials: Any, plain: Any, highest: Any, propagates: Any, is_inverse: Any, numbers: Any,
        tensor: Any, counts: Any,
    ) -> None:  # fmt: skip
        if cuda.grid(1) == 0:
            finite = word(top[0]).view(real)
            amax = infinite if (propagates != 0) & ((specials[0] & HAS_INFINITY) != 0) else finite
            scale, factor, clamped = tensor_scale_of(amax, highest[0], plain[0], is_inverse != 0)
            for k in range(numbers_of_it - 3):
                numbers[k] = plain[k]
            numbers[numbers_of_it - 3] = real(scale)
            numbers[numbers_of_it - 2] = real(one / real(scale))
            numbers[numbers_of_it - 1] = factor
            tensor[0] = f32(scale).view(u32)
            if clamped:
                counts[CLAMPED_LOW] += u64(1)

    return gpu_kernel(settle_tensor)
