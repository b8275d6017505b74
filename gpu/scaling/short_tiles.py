"""The CUDA kernel of short contiguous tiles, such as 1x128, MX and NVFP4, which reads memory once.

Short tiles have 8 times a power of two elements, at most 2048, which are contiguous in memory. A thread loads eight
neighbouring elements, as words of 64 bits, and keeps them while one thread per tile computes the scale.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.casts.loops import constants_of
from fpsim.core.decode import decode_bits_32
from fpsim.core.encode import EncodeLayout, encode_bits_32
from fpsim.core.scaled_element import element_of
from fpsim.core.tile_scale import BY_SCALE, COUNTERS, ScaleChoices
from fpsim.gpu.core.nearest_even import nearest_encoder, serves
from fpsim.gpu.device.groups import GROUP_BITS
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.gpu.scaling.areas import block_threads, merged
from fpsim.gpu.scaling.scale_kernels import DECODER, ENCODER, SOURCE, plan_readers, settler
from fpsim.gpu.scaling.tile_kernels import ElementKernels, choice_words, drawer, raiser
from fpsim.runtime.compile import scalar
from fpsim.scaling.tiling import Tiling

i64, u32, u64, f32 = np.int64, np.uint32, np.uint64, np.float32

EACH = 8  # elements of a thread
MAGNITUDE, INFINITY = u32(0x7FFFFFFF), u32(0x7F800000)


class ShortTiles(NamedTuple):
    """Compile-time choices of `short_tiles_kernel`.

    Attributes:
      elements: how elements are rounded.
      scales: how a tile's amax becomes its scale.
      tile_threads: number of threads that share a tile.
      source_bits, target_bits: bits of an element that is read, and of one that is written.
      to_code: the constants of the encoder, to be compiled in; None if the kernel reads them from an array.
    """

    elements: ElementKernels
    scales: ScaleChoices
    tile_threads: int
    source_bits: int
    target_bits: int
    to_code: EncodeLayout | None


def tile_threads_of(tiles: Tiling) -> int:
    """Return the number of threads that share a tile, a power of two; 0 if `short_tiles_kernel` cannot process it.

    The kernel requires tiles that are contiguous in memory, of 8 times a power of two elements, at most 8 per thread of
    a block.
    """
    whole = merged(tiles)
    if whole.batch != 1 or whole.rows != 1 or whole.columns % whole.tile_columns:
        return 0
    tile_threads, rest = divmod(whole.tile_columns, EACH)
    is_power = tile_threads & (tile_threads - 1) == 0
    return tile_threads if not rest and is_power and tile_threads <= block_threads() else 0


@cache
def _encoder(how: ShortTiles) -> Any:
    """Return the scalar function `(bits, random, layout, mode, kind) -> code` that rounds a scaled element.

    how: the kernel's compile-time choices. bits: uint32 bits of the element, a float32. random: a random number, for
    stochastic rounding. layout: the constants of the format, an EncodeLayout. mode: a Rounding. kind: PLAIN, FULL or
    UNUSUAL of fpsim/core/encode.py.

    The function is `nearest_encoder` where that is correct, and otherwise the slower `encode_bits_32`.
    `nearest_encoder` needs a layout that is compiled in, and elements that were divided by factors: it contains a float
    addition, with which a compiler could fuse a multiplication.
    """
    e = how.elements
    if how.to_code is None or e.applied != BY_SCALE or not serves(how.to_code, e.width, e.kind, e.mode):
        return encode_bits_32
    nearest = nearest_encoder(how.to_code, e.kind)

    @scalar
    def encode_nearest(bits: Any, random: Any, f: EncodeLayout, mode: Any, kind: Any) -> Any:
        return nearest(bits)

    return encode_nearest


@cache
def short_tiles_kernel(how: ShortTiles) -> Any:
    """Return the GPU kernel that computes amax, scales and codes of short tiles.

    how: the compile-time choices: widths, rounding, rule of the scales, and threads of a tile.

    Its arguments: `(source, out, scales, codes, counts, seed, numbers, plan, table)`.

    source, out: 1-D uint64 words, each of 64 / how.source_bits elements (out: 64 / how.target_bits), the first in the
    lowest bits; `out` receives codes or float32 values. scales, codes: receive the float32 bits of scales, and their
    codes. counts: 5 uint64, which are increased: the counts zero_tiles .. clamped_high of ScaleReport
    (scaling/report.py). seed: low and high 32 bits of the seed. numbers: limits of elements and scales, the fields of
    ScaleNumbers. plan: matrix of 64-bit integers, of which these rows of scale_kernels.py are read: SOURCE, ENCODER and
    DECODER (constants that decode the source, and encode and decode elements), SCALE_ENCODER (constants that encode
    scales), RULES (the scale rule). table: values of the scale format's codes.
    """
    e, tile_threads = how.elements, how.tile_threads
    encoder_of, decoder_of = plan_readers(e.width)
    threads, shift = block_threads(), tile_threads.bit_length() - 1
    tiles_of_block = threads // tile_threads
    raised, settle, widened = raiser(e.width, False), settler(how.scales), e.widened
    element, choices = element_of(e.width, e.back, True, _encoder(how)), choice_words(e)
    random_of, is_single = drawer(e.width, e.mode), how.scales.is_single
    frozen, constants = how.to_code is not None, constants_of(EncodeLayout, u32, how.to_code)
    source_bits, target_bits = how.source_bits, how.target_bits
    per_load, per_store = GROUP_BITS // source_bits, GROUP_BITS // target_bits
    loads, stores = EACH // per_load, EACH // per_store
    mask, target_mask = u64((1 << source_bits) - 1), u64((1 << target_bits) - 1)
    # if words have as many elements on both sides, the threads of a tile take words in turn and fill whole sectors
    round_robin = per_load == per_store
    apart = tile_threads if round_robin else 1
    own_loads, own_stores = (1, 1) if round_robin else (loads, stores)

    def quantize(
        source: Any, out: Any, scales: Any, codes: Any, counts: Any, seed: Any, numbers: Any, plan: Any, table: Any
    ) -> None:  # fmt: skip
        k0, k1 = seed
        shared_tops = cuda.shared.array(threads, u32)  # numba's simulator identifies shared arrays by their lines
        shared_specials = cuda.shared.array(threads, u32)
        shared_factors = cuda.shared.array(threads, f32)
        shared_scales = cuda.shared.array(threads, u32)
        shared_counts = cuda.shared.array(COUNTERS, u32)
        held, words = cuda.local.array(EACH, np.uint32), cuda.local.array(EACH, np.uint64)
        h, back = decoder_of(plan[SOURCE]), decoder_of(plan[DECODER])
        f = constants if frozen else encoder_of(plan[ENCODER])
        thread = i64(cuda.threadIdx.x)
        if thread == 0:
            for k in range(COUNTERS):
                shared_counts[k] = u32(0)
        cuda.syncthreads()
        tiles = i64(scales.size)
        for first in range(
            i64(i64(cuda.blockIdx.x) * tiles_of_block), tiles, i64(i64(cuda.gridDim.x) * tiles_of_block)
        ):
            place, thread_x = i64(thread >> shift), i64(thread & i64(tile_threads - 1))
            tile = i64(first + place)
            if tile < tiles:
                start = u64(i64(tile * i64(tile_threads * loads)) + i64(thread_x * i64(own_loads)))
                for j in range(loads):
                    words[j] = source[u64(start + u64(j * apart))]
                top, specials_of_thread = u32(0), 0
                for j in range(loads):
                    for k in range(per_load):
                        bits = u32(u64(words[j] >> u64(k * source_bits)) & mask)
                        bits = u32(decode_bits_32(bits, h)) if widened else bits
                        held[j * per_load + k] = bits
                        top = max(top, u32(bits & MAGNITUDE))
                if top >= INFINITY:
                    top = u32(0)
                    for k in range(EACH):
                        top, _, specials_of_thread = raised(held[k], top, u32(0), specials_of_thread)
                shared_tops[thread], shared_specials[thread] = top, u32(specials_of_thread)
            cuda.syncthreads()
            settled = i64(first + thread)
            if thread < tiles_of_block and settled < tiles:
                top, specials = u32(0), u32(0)
                for j in range(tile_threads):
                    of_thread = u64(i64(thread << shift) + i64(j))
                    top, specials = max(top, shared_tops[of_thread]), u32(specials | shared_specials[of_thread])
                bits, code, factor, events = settle(top, specials, numbers, plan, table)
                scales[settled] = bits
                if not is_single:
                    codes[settled] = code
                shared_factors[thread], shared_scales[thread] = factor, bits
                for k in range(COUNTERS):
                    if (events >> k) & 1:
                        cuda.atomic.add(shared_counts, k, u32(1))
            cuda.syncthreads()
            if tile < tiles:
                factor, scale = shared_factors[place], u32(shared_scales[place]).view(f32)
                start = u64(i64(tile * i64(tile_threads * stores)) + i64(thread_x * i64(own_stores)))
                for j in range(stores):
                    at, word = u64(start + u64(j * apart)), u64(0)
                    for k in range(per_store):
                        random = random_of(u64(u64(at * u64(per_store)) + u64(k)), k0, k1)
                        code = element(held[j * per_store + k], factor, scale, random, f, back, choices)
                        word = u64(word | u64(u64(u64(code) & target_mask) << u64(k * target_bits)))
                    out[at] = word
        cuda.syncthreads()
        if thread == 0:
            for k in range(COUNTERS):
                if shared_counts[k] != 0:
                    cuda.atomic.add(counts, k, u64(shared_counts[k]))

    return gpu_kernel(quantize)
