"""Scalar encoders to nearest even in which float32 rounds subnormal results: half the work of the integer encoder.

A subnormal result is a multiple of the format's smallest subnormal; adding a power of two whose last bit has just that
weight rounds to such a multiple: a single IEEE addition of float32, to nearest even, without a product that a compiler
could fuse with it. The integer encoder handles overflow, infinities and NaN.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.casts.loops import constants_of
from fpsim.core.encode import UNUSUAL, EncodeLayout, deliver_32
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.runtime.compile import scalar

u32, f32 = np.uint32, np.float32

FRACTION_BITS = 23  # of a float32
LARGEST_FIELD = 254  # its largest exponent field of a finite value
SIGN_SHIFT, MAGNITUDE, INFINITY = u32(31), u32(0x7FFFFFFF), u32(0x7F800000)
ZERO, ONE = u32(0), u32(1)


def serves(layout: EncodeLayout, width: int, kind: int, mode: int) -> bool:
    """Return whether `nearest_encoder` is correct for casts of floats of `width` bits to a format.

    layout: the constants of the format's integer encoder. kind: the special cases that it checks, PLAIN, FULL or
    UNUSUAL of fpsim/core/encode.py. mode: number of the rounding mode. It is correct for float32, nearest even, and
    signed formats with zero (not UNUSUAL) that drop 1 to 22 of the 23 fraction bits, if the constant that it adds is
    finite.
    """
    if width != 32 or kind == UNUSUAL or mode != NEAREST_EVEN:
        return False
    dropped = layout.place - layout.depth
    return bool(1 <= dropped < FRACTION_BITS and layout.depth + 1 + dropped <= LARGEST_FIELD)


@cache
def nearest_encoder(layout: EncodeLayout, kind: int) -> Any:
    """Return a scalar function that rounds float32 bits to a code, both as uint32, to nearest even.

    layout: the constants of the format's encoder, as Python integers, for which `serves` is True. kind: PLAIN or FULL
    of fpsim/core/encode.py.
    """
    f = constants_of(EncodeLayout, u32, layout)
    dropped = u32(layout.place - layout.depth)
    # half a unit in the last place, less one that an odd code adds again, moved down to the format's exponents
    addend = u32(((1 << (layout.place - layout.depth - 1)) - 1 - (layout.depth << FRACTION_BITS)) % (1 << 32))
    normal_from = u32((layout.depth + 1) << FRACTION_BITS)
    magic_bits = u32((layout.depth + 1 + layout.place - layout.depth) << FRACTION_BITS)
    magic = f32(np.array([magic_bits]).view(np.float32)[0])
    has_low_values = layout.depth > 0  # else float32's subnormal values are the format's, and shifted like the others

    @scalar
    def encode(bits: Any) -> Any:
        """Return the code of one float32, given as uint32 bits, rounded once to nearest even."""
        negative = u32(bits >> SIGN_SHIFT)
        magnitude = u32(bits & MAGNITUDE)
        odd = u32(u32(magnitude >> dropped) & ONE)
        code = u32(u32(u32(magnitude + odd) + addend) >> dropped)
        if has_low_values:
            low = u32(u32(f32(magnitude.view(np.float32) + magic).view(np.uint32)) - magic_bits)
            code = low if magnitude < normal_from else code
        infinite, nan = magnitude >= INFINITY, magnitude > INFINITY
        return u32(deliver_32(code, negative, magnitude == ZERO, infinite, nan, f, NEAREST_EVEN, kind))

    return encode
