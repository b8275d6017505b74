"""Rounding of a float64 to a format, as a float64: the value of its code, without computing the code.

The value is expressed in units of its last place by a multiplication with a power of two, which is exact, and that
count is rounded by a processor instruction. Rare cases are returned unrounded, with a mark, for the encoder of
core/encode.py: values beyond the format's largest one, Inf, NaN, and all values if the format or options need codes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.core.rounding import DOWN, NEAREST_EVEN, STOCHASTIC, UP
from fpsim.core.sums.running_sum import TARGET_FIELDS
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar
from fpsim.runtime.float_steps import down, nearest_integer, toward_zero, up
from fpsim.runtime.records import fields_of

f64, u64 = np.float64, np.uint64

SETTLING = TARGET_FIELDS  # index of the first of these fields in a target

SIGN = u64(1 << 63)
EXPONENT = u64(0x7FF << 52)
INVERSE = u64(0x7FE << 52)  # minus the pattern of a power of two gives that of its inverse
ONE, TWO = u64(0x3FF << 52), f64(2.0)
ONE_LEFT = u64(1)
TO_FRACTION = u64(20)  # from 32 random bits to the top of a mantissa


@reloadable
class Settling(NamedTuple):
    """A format's constants for the function `settled`, as uint64.

    Attributes:
      least: bit pattern of the smallest normal value, as a float64.
      places: the format's mantissa bits << 52. Subtracted from the pattern of 2**e, it gives the pattern of the unit in
        the last place of numbers with the exponent e.
      top: pattern of the largest value, or of -1 to leave all values to the encoder.
      random_mask: mask of the bits of a 32-bit random number that stochastic rounding uses.
    """

    least: Any
    places: Any
    top: Any
    random_mask: Any


settling_fields = fields_of(Settling)


@scalar
def _rounded(scaled: Any, word: Any, random_mask: Any, mode: int) -> Any:
    """Return `scaled`, a float64, rounded to an integer, as a float64.

    word: 32-bit random number for stochastic rounding, of which the bits of random_mask are used. mode: a Rounding.
    """
    if mode == NEAREST_EVEN:
        return nearest_integer(scaled)
    if mode == UP:
        return up(scaled)
    if mode == DOWN:
        return down(scaled)
    whole = toward_zero(scaled)
    if mode == STOCHASTIC:
        # fraction and draw together reach 1; a draw is less, so that a float from 1 on holds it
        draw = u64(ONE | u64(u64(word & random_mask) << TO_FRACTION)).view(f64)
        moves = f64(abs(f64(scaled - whole))) >= f64(TWO - draw)
        unit = u64(ONE | u64(f64(scaled).view(u64) & SIGN)).view(f64)
        return f64(whole + unit) if moves else whole
    return whole


@scalar
def settled(bits: Any, word: Any, f: Settling, mode: int) -> Any:
    """Return (uint64 pattern of a float64 rounded to the format, 0), or (bits, 1) if the encoder must round it.

    bits: uint64 pattern of the float64. word: 32-bit random number, used by stochastic rounding. f: constants of the
    format. mode: a Rounding, a compile-time constant.
    """
    power = max(u64(bits & EXPONENT), f.least)
    unit = u64(power - f.places)
    scaled = f64(u64(bits).view(f64) * u64(INVERSE - unit).view(f64))
    value = f64(_rounded(scaled, word, f.random_mask, mode) * unit.view(f64))
    fits = f64(abs(value)) <= u64(f.top).view(f64)  # False for a NaN
    return (value.view(u64) if fits else bits), u64(not fits)
