"""GPU kernels of casts: one loop that decodes the source's codes, rounds to the target format, and decodes the result.

A thread makes all its loads before the first store, because a store might change what the next load reads. Constants
of named formats are compiled in, which removes two thirds of the instructions; docs/gpu.md counts them for sm_90.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.casts.loops import constants_of
from fpsim.core.decode import DecodeLayout, decode_bits_32, decode_bits_64, decode_fields
from fpsim.core.encode import EncodeLayout, encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.philox import philox4x32
from fpsim.core.rounding import STOCHASTIC
from fpsim.formats.named import BF16, FP16
from fpsim.gpu.core.float_arithmetic import bits_of, layout_of, load_bfloat, load_half
from fpsim.gpu.core.nearest_even import nearest_encoder, serves
from fpsim.gpu.device.groups import WORDS, Grouping, grouping
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.runtime.compile import scalar

i64, u32, u64 = np.int64, np.uint32, np.uint64

COUNTER = 4  # random words of each value of the counter
_SHORT = {layout_of(FP16): load_half, layout_of(BF16): load_bfloat}  # formats that a few instructions turn into float32


class CastWay(NamedTuple):
    """The compile-time parameters of a cast kernel.

    Attributes:
      source_bits, target_bits: bits of an element that is read, and of one that is written.
      width: bits of the floats that the source is decoded to and that are rounded, 32 or 64.
      reads, rounds, gives: the stages that the cast has: decoding of the source's codes, rounding of floats to codes,
        and decoding of these codes to floats.
      mode: number of the rounding mode.
      kind: the checks that the encoder makes, PLAIN, FULL or UNUSUAL of core/encode.py.
      of_source, to_code, of_result: layouts of the three stages to compile in; None if they are passed as arrays.
    """

    source_bits: int
    target_bits: int
    width: int
    reads: bool = False
    rounds: bool = False
    gives: bool = False
    mode: int = 0
    kind: int = 0
    of_source: DecodeLayout | None = None
    to_code: EncodeLayout | None = None
    of_result: DecodeLayout | None = None

    @property
    def groups(self) -> Grouping:
        """Number of elements that a thread processes at once, as a Grouping (elements per load, number of loads).

        It is 8 in all, or 4 with stochastic rounding, since the random generator computes four words at a time.
        """
        stochastic = self.rounds and self.mode == STOCHASTIC
        return grouping(self.source_bits, self.target_bits, elements=COUNTER if stochastic else 8)


@cache
def _reader(way: CastWay) -> Any:
    """Return a compiled scalar function (code, layout) -> float bits that decodes a code of the cast's source.

    way: the cast; way.width is the number of bits of the float. layout: the constants of the source's format. If the
    cast rounds, a NaN may keep its payload here, since rounding replaces it by the canonical NaN.
    """
    decode: Any = decode_bits_32 if way.width == 32 else decode_bits_64
    if way.rounds and way.of_source is not None and way.of_source in _SHORT:
        load = _SHORT[way.of_source]

        @scalar
        def read_short(code: Any, g: DecodeLayout) -> Any:
            return bits_of(load(code))

        return read_short

    @scalar
    def read(code: Any, g: DecodeLayout) -> Any:
        return decode(code, g)

    return read


@cache
def _encoder(way: CastWay) -> Any:
    """Return a compiled scalar function (bits, random, layout) -> code that rounds a float to a code.

    bits: bit pattern of the float, of way.width bits. random: 32 random bits, read only by stochastic rounding. layout:
    the constants of the result's format, an EncodeLayout. way: the cast; its field `mode` is the rounding mode.
    """
    mode, kind = way.mode, way.kind
    encode_bits = encode_bits_32 if way.width == 32 else encode_bits_64
    if way.to_code is not None and serves(way.to_code, way.width, kind, mode):
        nearest = nearest_encoder(way.to_code, kind)

        @scalar
        def encode_nearest(bits: Any, random: Any, f: EncodeLayout) -> Any:
            return nearest(bits)

        return encode_nearest

    @scalar
    def encode(bits: Any, random: Any, f: EncodeLayout) -> Any:
        return encode_bits(bits, random, f, mode, kind)

    return encode


@cache
def cast_kernel(way: CastWay) -> Any:
    """Return the GPU kernel (source, target, wide, wide_target, l0, l1, l2, k0, k1) -> None that casts `source`.

    way: compile-time choices of the cast. source, target: 1-D unsigned integers; target is written. wide, wide_target:
    the same arrays as groups, integers that hold several elements, or empty. l0, l1, l2: layouts (constants of a
    format) to decode the source, to encode, and to decode the result. k0, k1: low and high 32 bits of the seed of
    stochastic rounding.
    """
    word: Any = u32 if way.width == 32 else u64
    decode: Any = decode_bits_32 if way.width == 32 else decode_bits_64
    read, encode = _reader(way), _encoder(way)
    constants = [constants_of(DecodeLayout, word, way.of_source), constants_of(EncodeLayout, word, way.to_code)]
    constants.append(constants_of(DecodeLayout, word, way.of_result))
    c0, c1, c2 = constants
    frozen0, frozen1, frozen2 = (layout is not None for layout in (way.of_source, way.to_code, way.of_result))
    reads, rounds, gives = way.reads, way.rounds, way.gives
    stochastic = rounds and way.mode == STOCHASTIC
    source_bits, target_bits, (count, depth) = way.source_bits, way.target_bits, way.groups
    mask = u64((1 << source_bits) - 1)
    group, element = WORDS[count * target_bits], WORDS[target_bits]
    words = max(count * depth, COUNTER)

    def cast(
        source: Any, target: Any, wide: Any, wide_target: Any, l0: Any, l1: Any, l2: Any, k0: Any, k1: Any
    ) -> None:
        g0 = c0 if frozen0 or not reads else decode_fields(l0)
        f = c1 if frozen1 or not rounds else encode_fields(l1)
        g2 = c2 if frozen2 or not gives else decode_fields(l2)
        size, whole = u64(target.size), u64(wide_target.size)
        groups = u64(u64(size + u64(count - 1)) // u64(count))
        threads = u64(cuda.gridsize(1))
        held, random = cuda.local.array(depth, np.uint64), cuda.local.array(words, np.uint32)
        # neighbouring threads take neighbouring groups, a block one run of them, so that only the last block meets what
        # is no whole group; with random words, a thread takes those of whole counters
        block = u64(cuda.blockDim.x)
        start = u64(u64(u64(cuda.blockIdx.x) * block) * u64(depth))
        first = u64(start + u64(cuda.threadIdx.x))
        if stochastic:
            first = u64(start + u64(u64(cuda.threadIdx.x) * u64(depth)))
        step = u64(1) if stochastic else block
        while first < groups:
            all_whole = u64(first + u64(u64(depth - 1) * step)) < whole
            if all_whole:
                for j in range(depth):
                    held[j] = u64(wide[u64(first + u64(u64(j) * step))])
            else:
                for j in range(depth):
                    held[j] = u64(0)
                    for k in range(count):
                        i = u64(u64(u64(first + u64(u64(j) * step)) * u64(count)) + u64(k))
                        if i < size:
                            held[j] = u64(held[j] | u64(u64(source[i]) << u64(k * source_bits)))
            if stochastic:
                for j in range(words // COUNTER):
                    counter = u64(u64(u64(first * u64(count)) >> u64(2)) + u64(j))
                    w0, w1, w2, w3 = philox4x32(counter, u64(counter >> u64(32)), u64(0), u64(0), k0, k1)
                    random[COUNTER * j], random[COUNTER * j + 1] = w0, w1
                    random[COUNTER * j + 2], random[COUNTER * j + 3] = w2, w3
            for j in range(depth):
                codes = u64(0)
                for k in range(count):
                    bits = word(u64(held[j] >> u64(k * source_bits)) & mask)
                    if reads:
                        bits = word(read(bits, g0))
                    if rounds:
                        bits = word(encode(bits, word(random[j * count + k]) if stochastic else word(0), f))
                    if gives:
                        bits = word(decode(bits, g2))
                    codes = u64(codes | u64(u64(bits) << u64(k * target_bits)))
                held[j] = codes
            if all_whole:
                for j in range(depth):
                    wide_target[u64(first + u64(u64(j) * step))] = group(held[j])
            else:
                for j in range(depth):
                    for k in range(count):
                        i = u64(u64(u64(first + u64(u64(j) * step)) * u64(count)) + u64(k))
                        if i < size:
                            target[i] = element(u64(held[j] >> u64(k * target_bits)))
            first = u64(first + u64(u64(depth) * threads))

    return gpu_kernel(cast)


@cache
def look_up_kernel() -> Any:
    """Return the GPU kernel (codes, bits, table) -> None that sets bits[i] = table[codes[i]]."""

    def look_up(codes: Any, bits: Any, table: Any) -> None:
        for i in range(cuda.grid(1), bits.size, cuda.gridsize(1)):
            bits[u64(i)] = table[u64(codes[u64(i)])]

    return gpu_kernel(look_up)


@cache
def outside_kernel() -> Any:
    """Return the GPU kernel (codes, largest, outside) -> None that finds the highest code above `largest`.

    codes: 1-D unsigned integers. largest: the largest valid code. outside: one uint64, initially 0, which receives the
    highest of the codes above `largest`.
    """

    def search(codes: Any, largest: Any, outside: Any) -> None:
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            if codes[u64(i)] > largest:
                cuda.atomic.max(outside, 0, u64(codes[u64(i)]))

    return gpu_kernel(search)


@cache
def range_kernel() -> Any:
    """Return the GPU kernel (words, lowest, highest, is_outside) -> None that checks the range of integers.

    It sets is_outside[0] to 1 if an integer is below lowest or above highest. words: 1-D bits of 8-bit integers, as
    uint8; they are signed if lowest < 0.
    """

    def look(words: Any, lowest: Any, highest: Any, is_outside: Any) -> None:
        for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
            value = i64(words[i])
            if lowest < i64(0) and value > i64(127):
                value -= i64(256)
            if value < lowest or value > highest:
                is_outside[0] = 1

    return gpu_kernel(look)
