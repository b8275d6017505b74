"""Scalar core: rounds a float32 to the nearest code of a format, ties to even, by one float32 addition.

The magnitude is added to the power of two whose ulp is the last bit that the result keeps. The processor must be set to
round to nearest even. The integer body in `encode` is the specification: tests/core/test_nearest.py compares both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.encode import FULL, PLAIN, EncodeLayout, deliver_32
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.runtime.compile import scalar

u32, f32 = np.uint32, np.float32

MANTISSA = 23
SIGN_SHIFT, MANTISSA_SHIFT = u32(31), u32(MANTISSA)
MAGNITUDE, INFINITY, FIELD_MASK = u32(0x7FFFFFFF), u32(0x7F800000), u32(0x7F800000)
ONE, ZERO = u32(1), u32(0)
LARGEST_FIELD = 254  # of a finite float32


def serves(width: int, mode: int, kind: int, layout: EncodeLayout) -> bool:
    """Return whether `encode_nearest_32` gives the results of `encode_bits` for a source width, mode, kind and layout.

    It does for float32 sources, rounding to nearest even, and PLAIN and FULL encoders, if the format meets three
    conditions: it has 1 to 22 mantissa bits; half its smallest subnormal is a normal float32; and e + d is at most 254,
    the largest exponent field of a finite float32. Here e is the float32 exponent field of the smallest power of two
    above the format's largest value, and d is the number of mantissa bits that the format drops, 23 minus its own.

    width: bits of the source floats. mode: the number of a `fpsim.Rounding`. kind: the encoder, PLAIN (0: signed
    formats with -0, Inf treated like overflow), FULL (1: any signed format) or UNUSUAL (2: any format). layout:
    EncodeLayout, the constants of the format and its policies, with Python integers as fields.
    """
    if width != 32 or mode != NEAREST_EVEN or kind not in (PLAIN, FULL):
        return False
    dropped = layout.place - layout.depth
    kept = MANTISSA - dropped
    smallest_field = layout.depth + 1 - kept - 1  # of half the smallest subnormal value
    if dropped <= 0 or kept <= 0 or smallest_field <= 0:
        return False
    beyond = int(layout.max_code >> kept) + int(layout.depth) + 1  # field from which on every magnitude overflows
    return beyond + int(dropped) <= LARGEST_FIELD


@scalar
def encode_nearest_32(bits: Any, random: Any, f: EncodeLayout, mode: Any, kind: Any) -> Any:
    """Return the code of one float32, rounded to nearest even, as a uint32.

    bits: pattern of the float32, uint32; f: EncodeLayout of a format that `serves` accepts.
    kind: PLAIN (signed formats with -0, Inf treated like overflow) or FULL (any signed format). mode: nearest even.
    random: not used; it is there because `encode_bits` has the same arguments.
    """
    dropped = u32(f.place - f.depth)
    kept = u32(MANTISSA_SHIFT - dropped)
    smallest_normal = u32(u32(f.depth + ONE) << MANTISSA_SHIFT)
    beyond = u32(u32(u32(f.max_code >> kept) + u32(f.depth + ONE)) << MANTISSA_SHIFT)

    magnitude = u32(bits & MAGNITUDE)
    near = u32(min(magnitude, beyond))
    # the exponent fields above that of the smallest normal value, which subnormals share
    binades = u32(u32(max(u32(near & FIELD_MASK), smallest_normal)) - smallest_normal)
    last_place = u32(binades + u32(smallest_normal + u32(dropped << MANTISSA_SHIFT)))
    total = f32(u32(near).view(f32) + u32(last_place).view(f32))
    significand = u32(f32(total).view(u32) - last_place)
    code = u32(significand + u32(binades >> dropped))

    # until here a NaN is treated as a value that is too large; f.overflow may be its right code
    nan = (magnitude > INFINITY) & ((kind != PLAIN) | (f.nan != f.overflow))
    return deliver_32(code, u32(bits >> SIGN_SHIFT), magnitude == ZERO, magnitude >= INFINITY, nan, f, mode, kind)
