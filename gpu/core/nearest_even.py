"""Scalar functions that round a float32 to a code, to nearest even, with half the work of the integer encoder.

A subnormal result is a multiple of the format's smallest subnormal. Adding a power of two whose last bit has this
weight rounds to such a multiple: one float32 addition, to nearest even, with no product that a compiler could fuse into
it. Overflow, infinities and NaN are handled as in the integer encoder.
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
    """Return whether `nearest_encoder` is correct for casts of floats to a format.

    layout: the constants by which the integer encoder rounds to the format. width: bits of a source float, 32 or 64.
    kind: the special cases that the encoder checks, PLAIN, FULL or UNUSUAL of fpsim/core/encode.py. mode: the
    number of a rounding mode in fpsim/core/rounding.py.

    The answer is True if the source is float32, the mode nearest even, and the format has signs and a zero (is not
    UNUSUAL). The cast must also drop 1 to 22 of the 23 fraction bits, and the power of two that it adds must be finite.
    """
    if width != 32 or kind == UNUSUAL or mode != NEAREST_EVEN:
        return False
    dropped = layout.place - layout.depth
    return bool(1 <= dropped < FRACTION_BITS and layout.depth + 1 + dropped <= LARGEST_FIELD)


@cache
def nearest_encoder(layout: EncodeLayout, kind: int) -> Any:
    """Return a compiled scalar function that rounds a float32 to a code of a format, to nearest even.

    The function takes the bits of the float32 as uint32 and returns the code as uint32. layout: the constants of the
    format's encoder, as Python integers; `serves` must be True for it. kind: the special cases that the encoder checks,
    PLAIN or FULL of fpsim/core/encode.py.
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
