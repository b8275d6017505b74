"""CUDA kernels that compute scales from the amax of tiles, with the functions of fpsim/core that CPU loops use.

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
)
from fpsim.core.tile_settler import tile_settler
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
    """Functions that read the constants of a format from a row of a matrix of 64-bit integers.

    Attributes:
      encoder: function row -> EncodeLayout, the constants that encode.
      decoder: function row -> DecodeLayout, the constants that decode.
    """

    encoder: Any
    decoder: Any


@cache
def plan_readers(width: int) -> PlanReaders:
    """Return the functions that read a format's constants as integers of `width` bits, 32 or 64; cached."""
    return PlanReaders(fields_of(EncodeLayout, word_of(width)), fields_of(DecodeLayout, word_of(width)))


_rules_of = fields_of(ScaleRules, i64)


@cache
def settler(s: ScaleChoices) -> Any:
    """Return the scalar function `(top, specials, numbers, plan, table) -> (scale, code, factor, events)` for one tile.

    s: choices that are compiled in, such as the rule by which amax becomes a scale.

    Arguments of the function:
      top: bits of the tile's amax, a float of s.width bits.
      specials: flags HAS_NAN and HAS_INFINITY of fpsim/core/tile_scale.py.
      numbers: floats, the fields of ScaleNumbers: largest values and limits of elements and scales.
      plan: matrix of 64-bit integers. Row SCALE_ENCODER has the EncodeLayout of scales. Row RULES has ScaleRules,
      ScaleChoices, and the bits of two float64: largest element and lowest amax.
      table: the values of the scale format's codes.

    Results of the function:
      scale: float32 bits of the decode scale, and `code`: its code in the scale format.
      factor: the float by which the tile's elements are divided or multiplied, as s.applied says.
      events: bit k is 1 if the tile counts for counter k of the report, such as ZERO_TILES.
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
    """Return the GPU kernel that computes the scales of tiles from their amax, one tile per thread.

    s: choices that are compiled in, such as the rule by which amax becomes a scale.

    Arguments of the kernel, in order; arrays without a size below have one element per tile:
      tops: bits of the amax (largest finite magnitude), a float of s.width bits.
      specials: the sum of flags HAS_NAN (a NaN in the tile) and HAS_INFINITY.
      scales: written, uint32: bits of the float32 decode scale.
      codes: written, the scale's code in the scale format; not touched if that format is FP32.
      factors: written: bits of the float, of s.width bits, by which the tile's elements are divided or multiplied.
      counts: 5 uint64, increased by the numbers of tiles with an amax of 0, with NaN, with Inf, with a scale raised to
        the smallest one allowed, and with a scale lowered to the largest one.
      numbers: floats, the fields of ScaleNumbers: largest values and limits of elements and scales.
      plan: matrix of 64-bit integers, constants of the formats and rules; rows SCALE_ENCODER and RULES are read.
      table: the values of the scale format's codes.
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
    """Return the GPU kernel `(tops, specials, scales, factors, counts, nan_tile)` that makes factors of given scales.

    A factor is the number by which a tile's elements are divided or multiplied. tops: bits of each tile's amax; 0 if
    all finite elements are 0. specials: flags of NaN and Inf of each tile. scales: float32 bits; a scale becomes NaN if
    nan_tile is not 0 and the tile has a NaN. factors: receives bits of floats of `width` bits: the scales if `applied`
    is BY_SCALE (elements are divided), their inverses, at most the largest finite float, if it is BY_INVERSE (elements
    are multiplied). counts: 5 uint64 as in `settle_kernel`, of which zero_tiles, nan_tiles and infinite_tiles are
    increased.
    """
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64
    largest = real(np.finfo(real).max)

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
            inverse = real(real(1) / scale)
            inverse = largest if largest < inverse else inverse
            factor = scale if applied == BY_SCALE else inverse
            factors[j] = real(factor).view(word)

    return gpu_kernel(find_factors)


@cache
def spread_kernel(width: int) -> Any:
    """Return the GPU kernel `(tops, lows)` that computes each tile's range, highest - lowest element, in place.

    tops, lows: bits of floats of `width` bits, one per tile. Before, they hold the largest magnitudes of the positive
    and of the negative elements. Afterwards, tops holds the range, at most the largest finite float, and lows the
    lowest element, 0 or negative.
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
    """Return the GPU kernel `(lows, factors, zero_points, lowest, highest, layout)` that computes zero points.

    A zero point is lowest - round(low / scale), clamped to lowest .. highest. lows, factors: for each tile, bits of its
    lowest element and of its factor, floats of `width` bits. zero_points: receives the codes, two's complement of 8
    bits. lowest, highest: the range of the integer format. layout: the EncodeLayout, constants by which quotients are
    rounded to integers. kind: the special cases that the encoder checks, PLAIN, FULL or UNUSUAL of
    fpsim/core/encode.py. applied: BY_SCALE if factors are scales, BY_INVERSE if they are inverses of scales.
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
    """Return the GPU kernel that computes the second-level scale of an array from its amax, with one thread.

    Its arguments: `(top, specials, plain, highest, propagates, is_inverse, numbers, tensor, counts)`, mostly arrays of
    one element.

    width: bits of the floats, 32 or 64. top: bits of the amax of all finite elements. specials: flags of NaN and Inf.
    plain: the fields of ScaleNumbers (limits of elements and scales) without a second level. highest: float64, the
    largest value that a tile's scale times an element can have. propagates: 1 if an Inf makes the scale Inf.
    is_inverse: 1 to compute highest / amax and invert it, 0 for amax / highest. numbers: receives ScaleNumbers with the
    second level. tensor: receives the float32 bits of the scale. counts: 5 uint64 as in `settle_kernel`, of which
    clamped_low is increased if the scale was clamped.
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
            scale, factor, clamped = tensor_scale_of(amax, highest[0], scale_numbers(plain), is_inverse != 0)
            for k in range(numbers_of_it - 3):
                numbers[k] = plain[k]
            numbers[numbers_of_it - 3] = real(scale)
            numbers[numbers_of_it - 2] = real(one / real(scale))
            numbers[numbers_of_it - 1] = factor
            tensor[0] = f32(scale).view(u32)
            if clamped:
                counts[CLAMPED_LOW] += u64(1)

    return gpu_kernel(settle_tensor)
