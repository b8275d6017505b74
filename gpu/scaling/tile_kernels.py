"""CUDA kernels that find the amax of tiles, and that encode their elements.

Tiles that a block of threads can read twice, the second time from the cache, are encoded in one kernel. Larger ones,
integers with a zero point, and given scales need one kernel for the amax, one for the scales, and one for the elements.
An amax is the largest magnitude as an integer, so that the order of the threads does not matter.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.core.decode import decode_bits_32, decode_bits_64, decode_fields
from fpsim.core.philox import random_word
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.scaled_element import ElementChoices, element_of, integer_of
from fpsim.core.tile_scale import COUNTERS, HAS_INFINITY, HAS_NAN, ScaleChoices
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.gpu.scaling.areas import BATCH, Areas, area_fields, batch_of, block_threads, part_of, walk_of
from fpsim.gpu.scaling.scale_kernels import AREAS, DECODER, ENCODER, SOURCE, plan_readers, settler, word_of
from fpsim.runtime.compile import scalar
from fpsim.runtime.records import fields_of

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64


_areas_of = fields_of(Areas, i64)


class ElementKernels(NamedTuple):
    """Compile-time choices of a kernel over elements.

    Attributes:
      width: bits of the floats in which elements are scaled.
      widened: whether the source's elements have fewer bits than `width`.
      mode: a Rounding.
      kind: the special cases that the encoder checks, PLAIN, FULL or UNUSUAL of fpsim/core/encode.py.
      applied: BY_SCALE if elements are divided by factors, BY_INVERSE if multiplied.
      integer: whether codes are two's complement.
      back: whether results are float32 values instead of codes.
      affine: whether elements are integers with a zero point.
    """

    width: int
    widened: bool
    mode: int
    kind: int
    applied: int
    integer: bool
    back: bool
    affine: bool


def choice_words(e: ElementKernels) -> ElementChoices:
    """Return the fields of e that decide how one element is rounded (mode, kind, applied, integer), as int64."""
    return ElementChoices(*(i64(choice) for choice in (e.mode, e.kind, e.applied, e.integer)))


@cache
def loader(width: int, widened: bool) -> Any:
    """Return the scalar function `(source, i, g)` that returns the bits of element i as a float of `width` bits.

    source: flat unsigned integers. If `widened`, they are codes of a narrower format, which the DecodeLayout g decodes;
    otherwise they are bits of floats of `width` bits, and g is not used.
    """
    word: Any = word_of(width)
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64

    def load(source: Any, i: Any, g: Any) -> Any:
        return decode_bits(word(source[i]), g) if widened else word(source[i])

    return scalar(load)


@cache
def raiser(width: int, affine: bool) -> Any:
    """Return the scalar function `(bits, top, low, specials) -> (top, low, specials)` that updates maxima.

    bits: the element, a float of `width` bits. top, low, specials: results for the elements so far, as bits of floats
    and as flags. top: the largest finite magnitude; with `affine`, that of the positive elements. low: with `affine`,
    the largest finite magnitude of the negative elements, else unchanged. specials: HAS_NAN and HAS_INFINITY.
    """
    word: Any = word_of(width)
    sign_bit = word(1 << (width - 1))
    magnitude_mask = word(sign_bit - word(1))
    infinity = word(0x7F800000 if width == 32 else 0x7FF0000000000000)

    @scalar
    def raised(bits: Any, top: Any, low: Any, specials: Any) -> Any:
        magnitude = word(bits & magnitude_mask)
        finite = magnitude if magnitude < infinity else word(0)
        of_top = word(0) if affine and bits >= sign_bit else finite
        of_low = finite if affine and bits >= sign_bit else word(0)
        specials |= HAS_INFINITY if magnitude == infinity else 0
        specials |= HAS_NAN if magnitude > infinity else 0
        return of_top if of_top > top else top, of_low if of_low > low else low, specials

    return raised


@cache
def top_finder(width: int, widened: bool, affine: bool) -> Any:
    """Return the scalar function `(source, walk, layout) -> (top, low, specials)` that examines a thread's elements.

    top: bits of the largest finite magnitude, and low: 0; with `affine`, top is the largest finite magnitude of the
    positive elements, and low that of the negative ones. specials: flags of NaN and Inf. walk: the order of the
    thread's elements, a Walk. source: flat unsigned integers: if `widened`, codes of a narrower format, which the
    DecodeLayout `layout` decodes; else bits of floats of `width` bits.
    """
    word: Any = word_of(width)
    load, raised = loader(width, widened), raiser(width, affine)

    def find(source: Any, w: Any, h: Any) -> Any:
        top, low, specials = word(0), word(0), 0
        i, c, left = w.first, w.column, w.count
        while left > 0:
            i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
            b0, b1, b2, b3 = load(source, i0, h), load(source, i1, h), load(source, i2, h), load(source, i3, h)
            top, low, specials = raised(b0, top, low, specials)
            top, low, specials = raised(b1, top, low, specials)
            top, low, specials = raised(b2, top, low, specials)
            top, low, specials = raised(b3, top, low, specials)
            left = i64(left - BATCH)
        return top, low, specials

    return scalar(find)


@scalar
def largest_of_tile(shared: Any, thread: Any, g: Any) -> None:
    """Set shared[t], for the first thread t of each tile, to the largest value of all threads of the tile.

    All threads of the block must call it. shared: one value per thread, overwritten. thread: index of the calling
    thread in the block. g: the division of the array among threads, an Areas. The function is in the module of the
    kernels that call it, since numba's simulator replaces `cuda` module by module.
    """
    thread_x = i64(thread & i64(g.threads_x - 1))
    thread_y = i64(thread >> i64(g.shift_x + g.shift_across))
    rows_apart = i64(g.threads_x * g.across)  # threads from one row to the next
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
    """Return the GPU kernel `(source, source_layout, areas, tops, lows, specials)` that finds the amax of tiles.

    width: bits of the floats whose magnitudes are compared, 32 or 64. widened: whether the source holds codes of a
    narrower format, to be decoded to these floats. affine: True to find the largest magnitudes of positive and of
    negative elements separately, for formats with a zero point.

    Arguments of the kernel, flat arrays:
      source: unsigned integers: codes, which the DecodeLayout `source_layout` decodes, if `widened`; else float bits.
      areas: how the array is divided among blocks of threads: the fields of an Areas (areas.py), as int64.
      tops, lows, specials: receive one element per tile; the caller has set them to 0. tops: bits of the largest finite
        magnitude, with `affine` among the positive elements only. lows: that among the negative elements, only written
        with `affine`. specials: sum of HAS_NAN and HAS_INFINITY.
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
            top, low, specials_of_thread = find_top(source, walk_of(part, g), h)
            if specials_of_thread != 0:
                cuda.atomic.or_(specials, part.tile, u32(specials_of_thread))
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
    """Return the scalar function `(i, k0, k1)` that returns the random number of element i, or 0.

    It is 0 if the mode is not stochastic. k0, k1: low and high 32 bits of the seed. width: bits of the integer
    returned. mode: a Rounding.
    """
    word: Any = word_of(width)
    stochastic = mode == STOCHASTIC

    @scalar
    def random_of(i: Any, k0: Any, k1: Any) -> Any:
        return word(random_word(i, k0, k1)) if stochastic else word(0)

    return random_of


@cache
def tiles_kernel(e: ElementKernels, s: ScaleChoices) -> Any:
    """Return the GPU kernel that computes amax, scales and codes of tiles; each block processes whole tiles.

    e, s: compile-time choices of how elements are rounded, and of how an amax becomes a scale.

    The kernel's arguments: `(source, out, scales, codes, counts, seed, numbers, plan, table)`.

    source: bits of elements. out: receives their codes or values. scales, codes: receive the float32 bits of scales,
    and their codes. counts: 5 uint64, which are increased: the counts zero_tiles .. clamped_high of ScaleReport
    (scaling/report.py). seed: low and high 32 bits of the seed. numbers: limits of elements and scales, the fields of
    ScaleNumbers. plan: matrix of 64-bit integers with these rows of scale_kernels.py: AREAS (division among threads),
    SOURCE, ENCODER and DECODER (constants that decode the source, and encode and decode elements), SCALE_ENCODER
    (constants that encode scales), RULES (the scale rule). table: values of the scale format's codes.
    """
    word: Any = word_of(e.width)
    real: Any = f32 if e.width == 32 else f64
    threads = block_threads()
    load, settle = loader(e.width, e.widened), settler(s)
    element, choices = element_of(e.width, e.back, True), choice_words(e)
    find_top, random_of = top_finder(e.width, e.widened, False), drawer(e.width, e.mode)
    encoder_of, decoder_of = plan_readers(e.width)
    is_single = s.is_single

    def quantize(
        source: Any, out: Any, scales: Any, codes: Any, counts: Any, seed: Any, numbers: Any, plan: Any, table: Any
    ) -> None:  # fmt: skip
        shared_tops = cuda.shared.array(threads, word)
        shared_specials = cuda.shared.array(threads, u32)
        shared_factors = cuda.shared.array(threads, real)
        shared_scales = cuda.shared.array(threads, u32)
        shared_counts = cuda.shared.array(COUNTERS, u32)
        g, h, (k0, k1) = _areas_of(plan[AREAS]), decoder_of(plan[SOURCE]), seed
        f, back = encoder_of(plan[ENCODER]), decoder_of(plan[DECODER])
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
            top, _, specials_of_thread = find_top(source, w, h)
            if specials_of_thread != 0:
                cuda.atomic.or_(shared_specials, place, u32(specials_of_thread))
            shared_tops[thread] = top
            largest_of_tile(shared_tops, thread, g)
            if thread < g.across:
                # thread i computes the scale of tile i of the area: the part of the first thread of that tile
                tile = part_of(area, i64(thread << g.shift_x), g)
                if tile.is_tile:
                    bits, code, factor, events = settle(
                        shared_tops[thread << g.shift_x], shared_specials[thread], numbers, plan, table
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
    """Return the GPU kernel that encodes the elements of tiles with known scales and factors.

    e: compile-time choices of how elements are rounded.

    The kernel's arguments: `(source, out, scales, factors, zero_points, plan, seed, limits)`. source: bits of elements.
    out: receives their codes or values. scales, factors, zero_points: one per tile; elements are divided or multiplied
    by factors. plan: matrix of 64-bit integers, of which the rows AREAS (division among threads), SOURCE (constants
    that decode the source), ENCODER and DECODER (constants of the elements' format) are read. seed: low and high 32
    bits of the seed. limits: the lowest and highest integer of an integer format with a zero point.
    """
    word: Any = word_of(e.width)
    real: Any = f32 if e.width == 32 else f64
    load = loader(e.width, e.widened)
    element, choices = element_of(e.width, e.back, True), choice_words(e)
    to_integer = integer_of(e.width, e.mode, e.kind, e.applied)
    affine, random_of = e.affine, drawer(e.width, e.mode)
    encoder_of, decoder_of = plan_readers(e.width)

    @scalar
    def code_of(
        bits: Any, factor: Any, scale: Any, zero_point: Any, random: Any, f: Any, back: Any, lowest: Any, highest: Any
    ) -> Any:
        """Return the code of an element or, if e.back, the float32 bits of the value of this code.

        bits: the element, a float of e.width bits. factor, scale, zero_point: those of the element's tile. random: a
        random number. f, back: constants of the format, an EncodeLayout and a DecodeLayout. lowest, highest: smallest
        and largest integer of the format.
        """
        if affine:
            code = to_integer(bits, factor, random, f) + zero_point
            return u32(min(max(code, lowest), highest) & 255)
        return element(bits, factor, scale, random, f, back, choices)

    def encode(
        source: Any, out: Any, scales: Any, factors: Any, zero_points: Any, plan: Any, seed: Any, limits: Any
    ) -> None:  # fmt: skip
        lowest, highest = limits
        g, h, (k0, k1) = _areas_of(plan[AREAS]), decoder_of(plan[SOURCE]), seed
        f, back = encoder_of(plan[ENCODER]), decoder_of(plan[DECODER])
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
