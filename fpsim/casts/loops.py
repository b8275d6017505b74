"""CPU loops of the casts. One loop body serves every format; only the rounding mode is compiled in.

Kernels get a layout, a named tuple of a format's constants, as a small array. `frozen` compiles it in instead: the same
body, a quarter faster, worth a compilation for the named formats. Measured: docs/performance.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.core.decode import DecodeLayout, decode_bits_32, decode_bits_64, decode_fields
from fpsim.core.encode import EncodeLayout, encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.nearest import encode_nearest_32
from fpsim.core.philox import philox4x32
from fpsim.core.rounding import STOCHASTIC
from fpsim.runtime.compile import inner_loop, kernel
from fpsim.runtime.stream import aligned_empty, element_loop

u32, u64, i64 = np.uint32, np.uint64, np.int64

WORDS = 1024  # random words made at a time: they stay in the L1 cache
WORD = np.zeros(0, np.uint32)
Frozen = EncodeLayout | DecodeLayout | None


def constants_of(kind: Any, word: Any, frozen: Frozen) -> Any:
    """Return a layout (a named tuple of a format's constants) whose values numba compiles in as constants.

    kind: the layout's class, EncodeLayout or DecodeLayout. word: the type of the values, np.uint32 or np.uint64.
    frozen: the values; None makes all of them zeros, for kernels that read the layout from an argument instead.
    """
    return kind(*(word(value) for value in frozen or (0,) * len(kind._fields)))


@cache
def encode_kernel(
    width: int, mode: int, kind: int, frozen: Frozen = None, streamed: bool = False, by_sum: bool = False
) -> Any:
    """Return the kernel (bits, codes, layout) -> None that rounds floats to codes in a deterministic mode.

    bits: 1-D uint32 or uint64 float bits. codes: 1-D results in the format's storage dtype. layout: the format's
    constants as an array.

    Args:
      width: bits of the source floats, 32 or 64.
      mode: a `fpsim.Rounding` as an integer.
      kind: the checks that the encoder needs: PLAIN (signed formats with -0, Inf treated like overflow), FULL (any
        signed format and policy) or UNUSUAL (any format), as `fpsim.core.layouts.encode_plan` chooses it.
      frozen: the layout as compile-time constants; None to read it from the argument `layout`.
      streamed: True writes the results without caching them.
      by_sum: round by one float32 addition (`core.nearest`); the mode must be to nearest even, and the layout one that
        `core.nearest` serves.
    """
    word: Any = u32 if width == 32 else u64
    encode_bits = encode_nearest_32 if by_sum else encode_bits_32 if width == 32 else encode_bits_64
    constants = constants_of(EncodeLayout, word, frozen)
    is_frozen = frozen is not None
    # as int64, of which the encoder is compiled once; Python's numbers are types of their own to numba
    no_random, mode_64, kind_64 = word(0), i64(mode), i64(kind)

    def convert(bits: Any, f: EncodeLayout) -> Any:
        return encode_bits(bits, no_random, f, mode_64, kind_64)

    loop = element_loop(convert, streamed)

    def encode(bits: Any, codes: Any, layout: Any) -> None:
        loop(bits, codes, constants if is_frozen else encode_fields(layout))

    return kernel(encode)


def _fill(words: Any, counter: Any, k0: Any, k1: Any) -> None:
    """Fill `words`, a 1-D uint32 array, with random numbers by Philox, from a value of its counter on.

    Each value of the counter yields four numbers, so words.size must be a multiple of 4. counter: the first value,
    uint64. k0, k1: low and high 32 bits of the seed, uint64.
    """
    for j in range(words.size // 4):
        position = u64(counter + u64(j))
        w0, w1, w2, w3 = philox4x32(position, u64(position >> u64(32)), u64(0), u64(0), k0, k1)
        words[4 * j] = w0
        words[4 * j + 1] = w1
        words[4 * j + 2] = w2
        words[4 * j + 3] = w3


fill_random = inner_loop(_fill)


@cache
def random_kernel() -> Any:
    """Return the kernel (words, counter, k0, k1) -> None that fills a uint32 array with random numbers.

    words: 1-D, with a multiple of 4 elements. counter: the first value of the Philox counter, uint64; each value yields
    four numbers. k0, k1: low and high 32 bits of the seed, uint64.
    """
    return kernel(_fill)


def random_words(seed: int, first: int, size: int) -> Array:
    """Return a random uint32 for each of the elements first .. first + size - 1, in 1-D; seed: 0 to 2**64 - 1."""
    skip = first % 4  # each value of the counter yields four numbers; some of the first may be skipped
    words = np.empty((skip + size + 3) // 4 * 4, np.uint32)
    random_kernel()(words, u64(first // 4), u64(seed & 0xFFFFFFFF), u64(seed >> 32))
    return words[skip : skip + size]


@cache
def stochastic_kernel(width: int, kind: int, frozen: Frozen = None) -> Any:
    """Return the kernel (bits, codes, layout, first, k0, k1) -> None that rounds floats to codes stochastically.

    bits: 1-D bits of floats of `width` bits (32 or 64). codes: 1-D results in the format's storage dtype. layout: the
    format's constants as an array. first: flat index of the first element. k0, k1: low and high 32 bits of the seed.
    first, k0 and k1 are uint64.

    kind: the checks that the encoder needs, as for `encode_kernel`. frozen: the layout as compile-time constants; None
    to read it from the argument.
    """
    word: Any = u32 if width == 32 else u64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
    constants = constants_of(EncodeLayout, word, frozen)
    is_frozen = frozen is not None
    stochastic, kind_64 = i64(STOCHASTIC), i64(kind)

    @inner_loop
    def encode_block(bits: Any, codes: Any, random: Any, f: Any) -> None:
        for i in range(bits.size):
            codes[i] = encode_bits(bits[i], word(random[i]), constants if is_frozen else f, stochastic, kind_64)

    def encode_stochastic(bits: Any, codes: Any, layout: Any, first: Any, k0: Any, k1: Any) -> None:
        f = encode_fields(layout)
        words = aligned_empty(WORDS + 4, WORD)
        skip = int(first & u64(3))  # each value of the counter yields four words; some of the first may be skipped
        for start in range(0, bits.size, WORDS):
            fill_random(words, u64(u64(first + u64(start)) >> u64(2)), k0, k1)
            encode_block(bits[start : start + WORDS], codes[start : start + WORDS], words[skip : skip + WORDS], f)

    return kernel(encode_stochastic)


@cache
def decode_kernel(width: int, frozen: Frozen = None, streamed: bool = False) -> Any:
    """Return the kernel (codes, bits, layout) -> None that decodes codes to floats.

    codes: 1-D, unsigned. bits: 1-D results, the float bits as uint32 or uint64. layout: the format's
    constants as an array.

    width: bits of the floats, 32 or 64. frozen: the layout as compile-time constants; None to read it from the
    argument. streamed: True writes the results without caching them.
    """
    word: Any = u32 if width == 32 else u64
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64
    constants = constants_of(DecodeLayout, word, frozen)
    is_frozen = frozen is not None

    def convert(code: Any, f: DecodeLayout) -> Any:
        return decode_bits(word(code), f)

    loop = element_loop(convert, streamed)

    def decode(codes: Any, bits: Any, layout: Any) -> None:
        loop(codes, bits, constants if is_frozen else decode_fields(layout))

    return kernel(decode)


@cache
def quantize_kernel(
    width: int, mode: int, kind: int, frozen: tuple[Frozen, Frozen], streamed: bool = False, by_sum: bool = False
) -> Any:
    """Return the kernel (bits, rounded, encode_layout, decode_layout) -> None that rounds floats to a format's values.

    bits, rounded: 1-D float bits of `width` bits, before and after. encode_layout, decode_layout: the format's
    constants for rounding and for decoding, as arrays.

    mode: a `fpsim.Rounding` as an integer. kind, streamed, by_sum: as for `encode_kernel`. frozen: both layouts as
    compile-time constants; (None, None) to read them from the arguments.
    """
    word: Any = u32 if width == 32 else u64
    encode_bits = encode_nearest_32 if by_sum else encode_bits_32 if width == 32 else encode_bits_64
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64
    encode_constants = constants_of(EncodeLayout, word, frozen[0])
    decode_constants = constants_of(DecodeLayout, word, frozen[1])
    is_frozen = frozen[0] is not None
    no_random, mode_64, kind_64 = word(0), i64(mode), i64(kind)

    def convert(bits: Any, layouts: Any) -> Any:
        f, g = layouts
        return decode_bits(encode_bits(bits, no_random, f, mode_64, kind_64), g)

    loop = element_loop(convert, streamed)

    def quantize(bits: Any, rounded: Any, encode_layout: Any, decode_layout: Any) -> None:
        f = encode_constants if is_frozen else encode_fields(encode_layout)
        g = decode_constants if is_frozen else decode_fields(decode_layout)
        loop(bits, rounded, (f, g))

    return kernel(quantize)
