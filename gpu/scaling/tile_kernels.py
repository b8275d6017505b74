"""CUDA kernels of tiles: from elements to their amax and to codes, and from codes to values.

Tiles that a block of threads can read twice, the second time from the cache, go from amax to codes in one kernel.
Larger ones, integers with a zero point and given scales take a kernel for the amax, one for the scales, and one for
the elements. An amax is the largest magnitude as an integer, so that the order in which threads meet does not matter.
Which thread does what: gpu/scaling/areas.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.core.decode import decode_bits_32, decode_bits_64, decode_fields
from fpsim.core.encode import encode_fields
from fpsim.core.philox import random_word
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.scaled_element import ElementChoices, element_of, integer_of, integer_value, value_of
from fpsim.core.tile_scale import COUNTERS, HAS_INFINITY, HAS_NAN, ScaleChoices
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.gpu.scaling.areas import BATCH, area_fields, batch_of, block_threads, part_of, walk_of
from fpsim.gpu.scaling.scale_kernels import settler, word_of
from fpsim.runtime.compile import scalar

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64


class ElementKernels(NamedTuple):
    """What decides the kernels of elements at compile time."""

    width: int  # of the arithmetic
    widened: bool  # the source is of another width
    mode: int
    kind: int
    applied: int  # whether factors divide or multiply
    integer: bool  # codes are two's complement numbers
    back: bool  # deliver float32 values instead of codes
    affine: bool  # integers with a zero point


def choice_words(e: ElementKernels) -> ElementChoices:
    """The choices of the core's function of an element, as int64."""
    return ElementChoices(*(i64(choice) for choice in (e.mode, e.kind, e.applied, e.integer)))


@cache
def loader(width: int, widened: bool) -> Any:
    """The function `(source, i, g)`: the bits of element i in the width of the arithmetic."""
    word: Any = word_of(width)
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64

    def load(source: Any, i: Any, g: Any) -> Any:
        return decode_bits(word(source[i]), g) if widened else word(source[i])

    return scalar(load)


@cache
def raiser(width: int, affine: bool) -> Any:
    """The function `(bits, top, low, found)`: the same three with one more element in them.

    top: the largest finite magnitude; affine: of positive elements, and low of negative ones; found: HAS_NAN and so on.
    """
    word: Any = word_of(width)
    sign_bit = word(1 << (width - 1))
    magnitude_mask = word(sign_bit - word(1))
    infinity = word(0x7F800000 if width == 32 else 0x7FF0000000000000)

    @scalar
    def raised(bits: Any, top: Any, low: Any, found: Any) -> Any:
        magnitude = word(bits & magnitude_mask)
        finite = magnitude if magnitude < infinity else word(0)
        of_top = word(0) if affine and bits >= sign_bit else finite
        of_low = finite if affine and bits >= sign_bit else word(0)
        found |= HAS_INFINITY if magnitude == infinity else 0
        found |= HAS_NAN if magnitude > infinity else 0
        return of_top if of_top > top else top, of_low if of_low > low else low, found

    return raised


@cache
def top_finder(width: int, widened: bool, affine: bool) -> Any:
    """The function `(source, walk, layout of the source)`: (top, low, specials) of the elements that a thread reads."""
    word: Any = word_of(width)
    load, raised = loader(width, widened), raiser(width, affine)

    def find(source: Any, w: Any, h: Any) -> Any:
        top, low, found = word(0), word(0), 0
        i, c, left = w.first, w.column, w.count
        while left > 0:
            i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
            b0, b1, b2, b3 = load(source, i0, h), load(source, i1, h), load(source, i2, h), load(source, i3, h)
            top, low, found = raised(b0, top, low, found)
            top, low, found = raised(b1, top, low, found)
            top, low, found = raised(b2, top, low, found)
            top, low, found = raised(b3, top, low, found)
            left = i64(left - BATCH)
        return top, low, found

    return scalar(find)


@scalar
def largest_of_tile(shared: Any, thread: Any, g: Any) -> None:
    """Raise each tile's first place in shared memory to the largest of its threads; all threads of a block take part.

    It stands beside the kernels that call it: numba's simulator gives `cuda` its meaning by module.
    """
    thread_x = i64(thread & i64(g.threads_x - 1))
    thread_y = i64(thread >> i64(g.shift_x + g.shift_across))
    rows_apart = i64(g.threads_x * g.across)  # threads between one row's and the next one's
    cuda.syncthreads()
    step = i64(g.threads_x >> 1)
    while step > 0:
        if thread_x < step:
            shared[thread] = max(shared[thread], shared[thread + step])
        step = i64(step >> 1)
        cuda.syncthreads()
    step = i64(g.threads_y >> 1)
    while step > 0:
        if thread_y < step:
            shared[thread] = max(shared[thread], shared[thread + i64(step * rows_apart)])
        step = i64(step >> 1)
        cuda.syncthreads()


@cache
def tops_kernel(width: int, widened: bool, affine: bool) -> Any:
    """The kernel `(source, layout of the source, areas, tops, lows, specials)`, which raises all three.

    tops: the largest finite magnitude of each tile; affine: of its positive elements, and lows of its negative ones.
    """
    word: Any = word_of(width)
    threads = block_threads()
    find_top = top_finder(width, widened, affine)

    def find(source: Any, of_source: Any, places: Any, tops: Any, lows: Any, specials: Any) -> None:
        shared_tops = cuda.shared.array(threads, word)
        shared_lows = cuda.shared.array(threads if affine else 1, word)
        g, h = area_fields(places), decode_fields(of_source)
        thread = i64(cuda.threadIdx.x)
        thread_x = i64(thread & i64(g.threads_x - 1))
        thread_y = i64(thread >> i64(g.shift_x + g.shift_across))
        for area in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = part_of(area, thread, g)
            top, low, found = find_top(source, walk_of(part, g), h)
            if found != 0:
                cuda.atomic.or_(specials, part.tile, u32(found))
            shared_tops[thread] = top
            largest_of_tile(shared_tops, thread, g)
            if affine:
                shared_lows[thread] = low
                largest_of_tile(shared_lows, thread, g)
            if part.is_tile and thread_x == 0 and thread_y == 0:
                cuda.atomic.max(tops, part.tile, word(shared_tops[thread]))
                if affine:
                    cuda.atomic.max(lows, part.tile, word(shared_lows[thread]))

    return gpu_kernel(find)


@cache
def drawer(width: int, mode: int) -> Any:
    """The function `(i, low and high word of the seed)`: the random word of element i, 0 in deterministic modes."""
    word: Any = word_of(width)
    stochastic = mode == STOCHASTIC

    @scalar
    def random_of(i: Any, k0: Any, k1: Any) -> Any:
        return word(random_word(i, k0, k1)) if stochastic else word(0)

    return random_of


@cache
def tiles_kernel(e: ElementKernels, s: ScaleChoices) -> Any:
    """The kernel that does all: amax, scales and codes of the tiles of an area.

    Arguments: source, out; layout of the source, areas; scales, their codes, counts; layouts of the elements; words
    of the seed; then those of `settler`.
    """
    word: Any = word_of(e.width)
    real: Any = f32 if e.width == 32 else f64
    threads = block_threads()
    load, settle = loader(e.width, e.widened), settler(s)
    element, choices = element_of(e.width, e.back, True), choice_words(e)
    find_top, random_of = top_finder(e.width, e.widened, False), drawer(e.width, e.mode)
    is_single = s.is_single

    def quantize(
        source: Any, out: Any, of_source: Any, places: Any, scales: Any, codes: Any, counts: Any, encode_layout: Any,
        decode_layout: Any, k0: Any, k1: Any, numbers: Any, exact: Any, rules: Any, layout: Any, table: Any,
    ) -> None:  # fmt: skip
        shared_tops = cuda.shared.array(threads, word)
        shared_specials = cuda.shared.array(threads, u32)
        shared_factors = cuda.shared.array(threads, real)
        shared_scales = cuda.shared.array(threads, u32)
        shared_counts = cuda.shared.array(COUNTERS, u32)
        g, h = area_fields(places), decode_fields(of_source)
        f, back = encode_fields(encode_layout), decode_fields(decode_layout)
        thread = i64(cuda.threadIdx.x)
        place = i64(i64(thread >> g.shift_x) & i64(g.across - 1))
        shared_specials[thread] = u32(0)
        if thread == 0:
            for k in range(COUNTERS):
                shared_counts[k] = u32(0)
        cuda.syncthreads()
        for area in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = part_of(area, thread, g)
            w = walk_of(part, g)
            top, _, found = find_top(source, w, h)
            if found != 0:
                cuda.atomic.or_(shared_specials, place, u32(found))
            shared_tops[thread] = top
            largest_of_tile(shared_tops, thread, g)
            if thread < g.across:
                # thread i settles tile i of the area, so it takes the part of the first thread of that tile
                tile = part_of(area, i64(thread << g.shift_x), g)
                if tile.is_tile:
                    bits, code, factor, events = settle(
                        shared_tops[thread << g.shift_x], shared_specials[thread], numbers, exact, rules, layout, table
                    )
                    scales[tile.tile] = bits
                    if not is_single:
                        codes[tile.tile] = code
                    shared_factors[thread], shared_scales[thread] = factor, bits
                    for k in range(COUNTERS):
                        if (events >> k) & 1:
                            cuda.atomic.add(shared_counts, k, u32(1))
                shared_specials[thread] = u32(0)
            cuda.syncthreads()
            factor, scale = shared_factors[place], u32(shared_scales[place]).view(f32)
            i, c, left = w.first, w.column, w.count
            while left > 0:
                i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
                b0, b1, b2, b3 = load(source, i0, h), load(source, i1, h), load(source, i2, h), load(source, i3, h)
                out[i0] = element(b0, factor, scale, random_of(i0, k0, k1), f, back, choices)
                if left > 1:
                    out[i1] = element(b1, factor, scale, random_of(i1, k0, k1), f, back, choices)
                if left > 2:
                    out[i2] = element(b2, factor, scale, random_of(i2, k0, k1), f, back, choices)
                if left > 3:
                    out[i3] = element(b3, factor, scale, random_of(i3, k0, k1), f, back, choices)
                left = i64(left - BATCH)
        cuda.syncthreads()
        if thread == 0:
            for k in range(COUNTERS):
                if shared_counts[k] != 0:
                    cuda.atomic.add(counts, k, u64(shared_counts[k]))

    return gpu_kernel(quantize)


@cache
def elements_kernel(e: ElementKernels) -> Any:
    """The kernel of the elements of tiles whose scales and factors are known.

    Arguments: source, out; layout of the source, areas; scales, factors, zero points; layouts of the elements; words
    of the seed; lowest and highest integer.
    """
    word: Any = word_of(e.width)
    real: Any = f32 if e.width == 32 else f64
    load = loader(e.width, e.widened)
    element, choices = element_of(e.width, e.back, True), choice_words(e)
    to_integer = integer_of(e.width, e.mode, e.kind, e.applied)
    affine, random_of = e.affine, drawer(e.width, e.mode)

    @scalar
    def code_of(
        bits: Any, factor: Any, scale: Any, zero_point: Any, random: Any, f: Any, back: Any, lowest: Any, highest: Any
    ) -> Any:
        """The code of an element, or the bits of its value."""
        if affine:
            code = to_integer(bits, factor, random, f) + zero_point
            return u32(min(max(code, lowest), highest) & 255)
        return element(bits, factor, scale, random, f, back, choices)

    def encode(
        source: Any, out: Any, of_source: Any, places: Any, scales: Any, factors: Any, zero_points: Any,
        encode_layout: Any, decode_layout: Any, k0: Any, k1: Any, lowest: Any, highest: Any,
    ) -> None:  # fmt: skip
        g, h = area_fields(places), decode_fields(of_source)
        f, back = encode_fields(encode_layout), decode_fields(decode_layout)
        thread = i64(cuda.threadIdx.x)
        for area in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = part_of(area, thread, g)
            if part.is_tile:
                factor, scale = word(factors[part.tile]).view(real), u32(scales[part.tile]).view(f32)
                zero_point = i64(0)
                if affine:
                    zero_point = i64(zero_points[part.tile])
                    zero_point = zero_point - 256 if zero_point > highest else zero_point
                w = walk_of(part, g)
                i, c, left = w.first, w.column, w.count
                while left > 0:
                    i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
                    b0, b1, b2, b3 = load(source, i0, h), load(source, i1, h), load(source, i2, h), load(source, i3, h)
                    out[i0] = code_of(b0, factor, scale, zero_point, random_of(i0, k0, k1), f, back, lowest, highest)
                    if left > 1:
                        out[i1] = code_of(
                            b1, factor, scale, zero_point, random_of(i1, k0, k1), f, back, lowest, highest
                        )
                    if left > 2:
                        out[i2] = code_of(
                            b2, factor, scale, zero_point, random_of(i2, k0, k1), f, back, lowest, highest
                        )
                    if left > 3:
                        out[i3] = code_of(
                            b3, factor, scale, zero_point, random_of(i3, k0, k1), f, back, lowest, highest
                        )
                    left = i64(left - BATCH)

    return gpu_kernel(encode)


@cache
def values_kernel(width: int, target: int) -> Any:
    """The kernel `(codes, values, areas, scales, layout, sign bit)`; target: bits of the values' float."""
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64
    nan, sign = u64(0x7FF8000000000000), u64(1 << 63)

    @scalar
    def exact_bits(code: Any, scale: Any, sign_bit: Any, back: Any) -> Any:
        """Bits of the float64 code * scale."""
        value = f64(u64(decode_bits_64(u64(code), back)).view(f64) * f64(scale))
        signed = u64(nan | sign) if word(code & sign_bit) != word(0) else nan
        return f64(value).view(u64) if value == value else signed

    bits_of = scalar(value_of(width, True) if target == 32 else exact_bits)

    def decode(codes: Any, values: Any, places: Any, scales: Any, layout: Any, sign_bit: Any) -> None:
        g, back = area_fields(places), decode_fields(layout)
        thread = i64(cuda.threadIdx.x)
        for area in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = part_of(area, thread, g)
            if part.is_tile:
                scale = real(u32(scales[part.tile]).view(f32))
                w = walk_of(part, g)
                i, c, left = w.first, w.column, w.count
                while left > 0:
                    i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
                    c0, c1, c2, c3 = word(codes[i0]), word(codes[i1]), word(codes[i2]), word(codes[i3])
                    values[i0] = bits_of(c0, scale, sign_bit, back)
                    values[i1] = bits_of(c1, scale, sign_bit, back)
                    values[i2] = bits_of(c2, scale, sign_bit, back)
                    values[i3] = bits_of(c3, scale, sign_bit, back)
                    left = i64(left - BATCH)

    return gpu_kernel(decode)


@cache
def integers_kernel(target: int, affine: bool) -> Any:
    """The kernel `(codes, values, areas, scales, zero points, highest)`; target: bits of the values' float."""

    @scalar
    def exact_bits(code: Any, zero_point: Any, scale: Any) -> Any:
        """Bits of the float64 (code - zero point) * scale."""
        return f64(f64(i64(code - zero_point)) * f64(scale)).view(u64)

    bits_of = scalar(integer_value if target == 32 else exact_bits)

    def decode(codes: Any, values: Any, places: Any, scales: Any, zero_points: Any, highest: Any) -> None:
        g = area_fields(places)
        thread = i64(cuda.threadIdx.x)
        for area in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = part_of(area, thread, g)
            if part.is_tile:
                scale = u32(scales[part.tile]).view(f32)
                zero_point = i64(0)
                if affine:
                    zero_point = i64(zero_points[part.tile])
                    zero_point = zero_point - 256 if zero_point > highest else zero_point
                w = walk_of(part, g)
                i, c, left = w.first, w.column, w.count
                while left > 0:
                    i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
                    c0, c1, c2, c3 = i64(codes[i0]), i64(codes[i1]), i64(codes[i2]), i64(codes[i3])
                    values[i0] = bits_of(c0 - 256 if c0 > highest else c0, zero_point, scale)
                    values[i1] = bits_of(c1 - 256 if c1 > highest else c1, zero_point, scale)
                    values[i2] = bits_of(c2 - 256 if c2 > highest else c2, zero_point, scale)
                    values[i3] = bits_of(c3 - 256 if c3 > highest else c3, zero_point, scale)
                    left = i64(left - BATCH)

    return gpu_kernel(decode)


@cache
def transpose_kernel() -> Any:
    """The kernel `(source, target, rows, columns)` over flat matrices of words."""

    def transpose(source: Any, target: Any, rows: Any, columns: Any) -> None:
        for i in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            target[i] = source[i % rows * columns + i // rows]

    return gpu_kernel(transpose)
