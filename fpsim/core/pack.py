"""Scalar core: rounds an exact number to a code and IEEE flags. Integers only, so CPU and CUDA agree.

Rounding, overflow and subnormals follow the same policies as the casts of arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.encode import UNUSUAL, EncodeLayout, deliver_64
from fpsim.core.number import INFINITE, NAN, TOP, ZERO, Number
from fpsim.core.rounding import rounds_up_64, split_64
from fpsim.formats.ieee import Flags
from fpsim.runtime.compile import scalar

u64 = np.uint64

INEXACT, UNDERFLOW, OVERFLOW = u64(Flags.INEXACT), u64(Flags.UNDERFLOW), u64(Flags.OVERFLOW)
DIVIDE_BY_ZERO, INVALID, NO_FLAG = u64(Flags.DIVIDE_BY_ZERO), u64(Flags.INVALID), u64(0)

# Bits of `rules`: facts on which flags depend and that a layout does not hold.
LOSES_INFINITY = u64(1)  # an infinite result is delivered as something else
LOSES_NAN = u64(2)  # a NaN is delivered as something else
TINY_BEFORE = u64(4)  # tininess is detected before rounding
UNSIGNED = u64(8)

ONE = u64(1)


@scalar
def _rounds_to_normal(x: Number, random: Any, precision: Any, f: EncodeLayout, mode: int) -> Any:
    """Return 1 if x would round up to the smallest normal value if exponents were unbounded, else 0; as a uint64.

    x: a finite Number in the binade just below the smallest normal value. random: 32-bit random number for stochastic
    rounding. precision: bits of the format's significand, uint64; f: EncodeLayout of the format; mode: a Rounding.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    kept, rest = split_64(x.significand, u64(u64(TOP + 1) - precision), mode)
    all_ones = u64(u64(ONE << precision) - ONE)
    # with one bit of precision, odd is 1, as of every significand, or that of the code below the smallest normal one
    odd = u64(u64(precision > ONE) | u64(u64(f.parity != ONE) | u64(f.offset & ONE)))
    up = rounds_up_64(odd, rest, x.negative, random, f.random_mask, mode)
    return u64(u64(kept == all_ones) & up)


@scalar
def pack(x: Number, raised: Any, random: Any, f: EncodeLayout, mode: int, rules: Any) -> Any:
    """Return (code, flags) of an exact Number rounded once to a format; both are uint64.

    x: the Number. raised: flags of the operation that produced x, a uint64 of bits of `fp.Flags`; the result includes
    them.
    random: 32-bit random number for stochastic rounding.
    f: EncodeLayout, the constants of the format and its policies; mode: a Rounding.
    rules: a sum of LOSES_INFINITY (Inf becomes another value), LOSES_NAN (the format has no NaN), TINY_BEFORE (tininess
    is detected before rounding) and UNSIGNED (the format has no negative values).
    INVALID, or a DIVIDE_BY_ZERO of the operation, is returned without other flags.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    is_zero = x.significand == ZERO
    finite = u64(x.kind < u64(INFINITE))
    drop = u64(min(u64(x.field - ONE), f.depth))
    mantissa_bits = u64(u64(TOP) - u64(f.place - f.depth))
    # binades above the smallest normal value, clamped to the number that matters
    excess = u64(min(u64(u64(x.field - ONE) - drop), u64(u64(f.max_code >> mantissa_bits) + u64(2))))
    shift = u64(f.place - drop)
    kept, rest = split_64(x.significand, shift, mode)
    whole = u64(kept + u64(excess << mantissa_bits)) if not is_zero else ZERO
    odd = u64(min(u64(u64(whole + f.offset) & f.parity), ONE))
    rounded = u64(whole + rounds_up_64(odd, rest, x.negative, random, f.random_mask, mode))
    code = u64(max(rounded, f.offset) - f.offset)
    is_nan = x.kind >= u64(NAN)
    delivered = deliver_64(code, x.negative, is_zero, finite == ZERO, is_nan, f, mode, UNUSUAL)

    # flags of a finite number
    near = u64(min(shift, u64(63)))
    inexact = (u64(kept << near) != x.significand) | ((rounded < f.offset) & (not is_zero))
    flushed = (code < f.flush_below) & (code != ZERO)
    tiny = (drop < f.depth) & (not is_zero)
    if u64(rules & TINY_BEFORE) == ZERO:
        at_edge = u64(drop + ONE) == f.depth
        lifted = _rounds_to_normal(x, random, u64(mantissa_bits + ONE), f, mode)
        tiny = tiny & ((not at_edge) | (lifted == ZERO))
    too_large = code > f.max_code
    flags = INEXACT if inexact | too_large | flushed else NO_FLAG
    flags = u64(flags | (UNDERFLOW if (tiny & inexact) | flushed else NO_FLAG))
    flags = u64(flags | (OVERFLOW if too_large else NO_FLAG))
    # flags of an infinite or NaN result
    lost_infinity = u64(OVERFLOW | INEXACT) if u64(rules & LOSES_INFINITY) != ZERO else NO_FLAG
    flags = flags if finite != ZERO else lost_infinity
    # values that the format lacks: a negative one without a sign bit, zero without a code
    nonzero = ((code != ZERO) & (not flushed)) | (f.offset != ZERO) | (finite == ZERO)
    refused = (u64(rules & UNSIGNED) != ZERO) & (x.negative != ZERO) & nonzero
    refused = refused | (is_zero & (f.offset != ZERO))
    flags = INVALID if refused else flags
    lost_nan = INVALID if u64(rules & LOSES_NAN) != ZERO else NO_FLAG
    flags = lost_nan if is_nan else flags
    flags = u64(flags | raised) if raised != DIVIDE_BY_ZERO else raised
    return delivered, (flags if u64(flags & INVALID) == ZERO else INVALID)
