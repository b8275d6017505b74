"""CUDA kernels of tiles: from elements to codes, and from codes to values.

Tiles that a block of threads can read twice, the second time from the cache, go from amax to codes in one kernel.
Larger ones, integers with a zero point and given scales take a kernel for the amax, one for the scales, and one for
the elements. Which thread does what: fpsim/gpu/patches.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.core.decode import decode_bits_64, decode_fields
from fpsim.core.encode import encode_fields
from fpsim.core.philox import random_word
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.scale import COUNTERS, HAS_INFINITY, HAS_NAN
from fpsim.core.scaled import element_of, integer_of, integer_value, value_of
from fpsim.gpu.functions import gpu_function
from fpsim.gpu.launch import gpu_kernel
from fpsim.gpu.patches import block_threads, part_of, patch_fields
from fpsim.gpu.scale_kernels import loader, settler, word_of
from fpsim.kernels.scale_plan import ScaleChoices

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64


class Elements(NamedTuple):
    """What decides the kernels of elements at compile time."""

    width: int  # of the arithmetic
    widened: bool  # the source is of another width
    mode: int
    kind: int
    applied: int  # whether factors divide or multiply
    integer: bool  # codes are two's complement numbers
    back: bool  # deliver float32 values instead of codes
    affine: bool  # integers with a zero point


@cache
def tiles_kernel(e: Elements, s: ScaleChoices) -> Any:
    """The kernel that does all: amax, scales and codes of the tiles of a patch.

    Arguments: source, out; layout of the source, patches; scales, their codes, counts; layouts of the elements; words
    of the seed; then those of `settler`.
    """
    find_part = gpu_function(part_of)
    word: Any = word_of(e.width)
    real: Any = f32 if e.width == 32 else f64
    threads = block_threads()
    load, settle = loader(e.width, e.widened), settler(s)
    element = gpu_function(element_of(e.width, e.mode, e.kind, e.applied, e.integer, e.back, True))
    magnitude_mask = word((1 << (e.width - 1)) - 1)
    infinity = word(0x7F800000 if e.width == 32 else 0x7FF0000000000000)
    stochastic, is_single = e.mode == STOCHASTIC, s.is_single

    def quantize(
        source: Any, out: Any, of_source: Any, places: Any, scales: Any, codes: Any, counts: Any, encode_layout: Any,
        decode_layout: Any, k0: Any, k1: Any, numbers: Any, exact: Any, rules: Any, layout: Any, table: Any,
    ) -> None:  # fmt: skip
        shared_tops = cuda.shared.array(threads, word)
        shared_specials = cuda.shared.array(threads, u32)
        shared_factors = cuda.shared.array(threads, real)
        shared_scales = cuda.shared.array(threads, u32)
        shared_counts = cuda.shared.array(COUNTERS, u32)
        g, h = patch_fields(places), decode_fields(of_source)
        f, back = encode_fields(encode_layout), decode_fields(decode_layout)
        thread = i64(cuda.threadIdx.x)
        lane_x = i64(thread & i64(g.lanes_x - 1))
        place = i64(i64(thread >> g.shift_x) & i64(g.across - 1))
        lane_y = i64(thread >> i64(g.shift_x + g.shift_across))
        rows_apart = i64(g.lanes_x * g.across)  # threads between one row's and the next one's
        shared_specials[thread] = u32(0)
        if thread == 0:
            for k in range(COUNTERS):
                shared_counts[k] = u32(0)
        cuda.syncthreads()
        for patch in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = find_part(patch, thread, g)
            top, found = word(0), 0
            for r in range(part.row, part.bottom, g.lanes_y):
                for c in range(part.column, part.right, g.lanes_x):
                    magnitude = word(load(source, u64(r * g.columns + c), h) & magnitude_mask)
                    finite = magnitude if magnitude < infinity else word(0)
                    top = finite if finite > top else top
                    if magnitude >= infinity:
                        found |= HAS_INFINITY if magnitude == infinity else HAS_NAN
            if found != 0:
                cuda.atomic.or_(shared_specials, place, u32(found))
            shared_tops[thread] = top
            cuda.syncthreads()
            step = i64(g.lanes_x >> 1)
            while step > 0:
                if lane_x < step:
                    shared_tops[thread] = max(shared_tops[thread], shared_tops[thread + step])
                step = i64(step >> 1)
                cuda.syncthreads()
            step = i64(g.lanes_y >> 1)
            while step > 0:
                if lane_y < step:
                    other = shared_tops[thread + i64(step * rows_apart)]
                    shared_tops[thread] = max(shared_tops[thread], other)
                step = i64(step >> 1)
                cuda.syncthreads()
            if thread < g.across:
                # the thread settles the tile at its own place, and here it stands for the first one there
                tile = find_part(patch, i64(thread << g.shift_x), g)
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
            for r in range(part.row, part.bottom, g.lanes_y):
                for c in range(part.column, part.right, g.lanes_x):
                    i = u64(r * g.columns + c)
                    random = word(random_word(i, k0, k1)) if stochastic else word(0)
                    out[i] = element(load(source, i, h), factor, scale, random, f, back)
        cuda.syncthreads()
        if thread == 0:
            for k in range(COUNTERS):
                if shared_counts[k] != 0:
                    cuda.atomic.add(counts, k, u64(shared_counts[k]))

    return gpu_kernel(quantize)


@cache
def elements_kernel(e: Elements) -> Any:
    """The kernel of the elements of tiles whose scales and factors are known.

    Arguments: source, out; layout of the source, patches; scales, factors, zero points; layouts of the elements; words
    of the seed; lowest and highest integer.
    """
    find_part = gpu_function(part_of)
    word: Any = word_of(e.width)
    real: Any = f32 if e.width == 32 else f64
    load = loader(e.width, e.widened)
    element = gpu_function(element_of(e.width, e.mode, e.kind, e.applied, e.integer, e.back, True))
    to_integer = gpu_function(integer_of(e.width, e.mode, e.kind, e.applied))
    stochastic, affine = e.mode == STOCHASTIC, e.affine

    def encode(
        source: Any, out: Any, of_source: Any, places: Any, scales: Any, factors: Any, zero_points: Any,
        encode_layout: Any, decode_layout: Any, k0: Any, k1: Any, lowest: Any, highest: Any,
    ) -> None:  # fmt: skip
        g, h = patch_fields(places), decode_fields(of_source)
        f, back = encode_fields(encode_layout), decode_fields(decode_layout)
        thread = i64(cuda.threadIdx.x)
        for patch in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = find_part(patch, thread, g)
            if part.is_tile:
                factor, scale = word(factors[part.tile]).view(real), u32(scales[part.tile]).view(f32)
                zero_point = i64(0)
                if affine:
                    zero_point = i64(zero_points[part.tile])
                    zero_point = zero_point - 256 if zero_point > highest else zero_point
                for r in range(part.row, part.bottom, g.lanes_y):
                    for c in range(part.column, part.right, g.lanes_x):
                        i = u64(r * g.columns + c)
                        random = word(random_word(i, k0, k1)) if stochastic else word(0)
                        bits = load(source, i, h)
                        if affine:
                            code = to_integer(bits, factor, random, f) + zero_point
                            out[i] = u32(min(max(code, lowest), highest) & 255)
                        else:
                            out[i] = element(bits, factor, scale, random, f, back)

    return gpu_kernel(encode)


@cache
def values_kernel(width: int, target: int) -> Any:
    """The kernel `(codes, values, patches, scales, layout, sign bit)`; target: bits of the values' float."""
    find_part = gpu_function(part_of)
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64
    single = target == 32
    value_bits = gpu_function(value_of(width, True))
    nan, sign = u64(0x7FF8000000000000), u64(1 << 63)

    def decode(codes: Any, values: Any, places: Any, scales: Any, layout: Any, sign_bit: Any) -> None:
        g, back = patch_fields(places), decode_fields(layout)
        thread = i64(cuda.threadIdx.x)
        for patch in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = find_part(patch, thread, g)
            if part.is_tile:
                scale = real(u32(scales[part.tile]).view(f32))
                for r in range(part.row, part.bottom, g.lanes_y):
                    for c in range(part.column, part.right, g.lanes_x):
                        i = u64(r * g.columns + c)
                        code = word(codes[i])
                        if single:
                            values[i] = value_bits(code, scale, sign_bit, back)
                        else:
                            value = f64(u64(decode_bits_64(u64(code), back)).view(f64) * f64(scale))
                            signed = u64(nan | sign) if word(code & sign_bit) != word(0) else nan
                            values[i] = f64(value).view(u64) if value == value else signed

    return gpu_kernel(decode)


@cache
def integers_kernel(target: int, affine: bool) -> Any:
    """The kernel `(codes, values, patches, scales, zero points, highest)`; target: bits of the values' float."""
    find_part = gpu_function(part_of)
    single = target == 32

    def decode(codes: Any, values: Any, places: Any, scales: Any, zero_points: Any, highest: Any) -> None:
        g = patch_fields(places)
        thread = i64(cuda.threadIdx.x)
        for patch in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = find_part(patch, thread, g)
            if part.is_tile:
                scale = u32(scales[part.tile]).view(f32)
                zero_point = i64(0)
                if affine:
                    zero_point = i64(zero_points[part.tile])
                    zero_point = zero_point - 256 if zero_point > highest else zero_point
                for r in range(part.row, part.bottom, g.lanes_y):
                    for c in range(part.column, part.right, g.lanes_x):
                        i = u64(r * g.columns + c)
                        code = i64(codes[i])
                        code = code - 256 if code > highest else code
                        if single:
                            values[i] = integer_value(code, zero_point, scale)
                        else:
                            values[i] = f64(f64(i64(code - zero_point)) * f64(scale)).view(u64)

    return gpu_kernel(decode)


@cache
def transpose_kernel() -> Any:
    """The kernel `(source, target, rows, columns)` over flat matrices of words."""

    def transpose(source: Any, target: Any, rows: Any, columns: Any) -> None:
        for i in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            target[i] = source[i % rows * columns + i // rows]

    return gpu_kernel(transpose)
