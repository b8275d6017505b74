"""Scalar core: decides whether a magnitude rounds up, in every mode. Integers only, so CPU and CUDA agree.

An exact magnitude is split at the last bit of the result: `kept` counts whole units of that bit, `rest` is the
remainder, as a fraction of a unit times 2**width (0x80000000 is exactly half a unit in words of 32 bits).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.formats.rounding import Rounding
from fpsim.runtime.compile import scalar

u32, u64 = np.uint32, np.uint64

NEAREST_EVEN = int(Rounding.NEAREST_EVEN)
NEAREST_AWAY = int(Rounding.NEAREST_AWAY)
UP, DOWN, ODD = int(Rounding.UP), int(Rounding.DOWN), int(Rounding.ODD)
STOCHASTIC = int(Rounding.STOCHASTIC)

RANDOM_TOP = 0xFFFFFFFF  # a random word has 32 bits


def _make_rounds_up(word: type, width: int) -> Any:
    """Return the compiled function `rounds_up`, which decides whether a magnitude rounds up, for words of one width.

    word: the unsigned NumPy integer of `width` bits, 32 or 64, which all its arguments but `mode` have.
    """
    half = word(1 << (width - 1))
    zero = word(0)
    random_top = word(RANDOM_TOP)
    down_to_32 = word(width - 32)
    carry_bit = word(31 if width == 32 else 32)

    @scalar
    def rounds_up(odd: Any, rest: Any, negative: Any, random: Any, random_mask: Any, mode: int) -> Any:
        """Return 1 if a magnitude of kept + rest / 2**width rounds to kept + 1, and 0 if it rounds to kept, an integer.

        The result and all arguments but `mode` are unsigned integers of `width` bits, 32 or 64.
        odd: 1 if kept is odd, else 0; rest: the fraction beyond kept, times 2**width; negative: 1 if the value is
        negative, else 0. mode: a Rounding, a compile-time constant.
        random: 32-bit random number, used in stochastic mode: the result is 1 if the top 32 bits of rest plus `random`
        carry out of 32 bits. Of both numbers only the bits in random_mask count, which are the top ones of 32.
        """
        if mode == NEAREST_EVEN:
            # the lowest bit of rest is replaced by odd, which decides ties and nothing else
            return word(word(rest | odd) > half)
        if mode == NEAREST_AWAY:
            return word(rest >= half)
        if mode == UP:
            return word((rest != zero) & (negative == zero))
        if mode == DOWN:
            return word((rest != zero) & (negative != zero))
        if mode == ODD:
            return word((rest != zero) & (odd == zero))
        if mode == STOCHASTIC:
            # does the sum of fraction and random number carry out of 32 bits? In words of 32 bits, the carry is the top
            # bit of the majority of both and the inverted sum (LLVM does not vectorise a comparison here)
            fraction, draw = word(word(rest >> down_to_32) & random_mask), word(random & random_mask)
            total = word(fraction + draw)
            both, either = word(fraction & draw), word(fraction | draw)
            carry = word(both | word(either & word(total ^ random_top))) if width == 32 else total
            return word(carry >> carry_bit)
        return zero  # toward zero

    return rounds_up


rounds_up_32 = _make_rounds_up(np.uint32, 32)
rounds_up_64 = _make_rounds_up(np.uint64, 64)


def _make_split(word: type, width: int) -> Any:
    """Return the compiled function `split(significand, shift, mode)`, which returns (kept, rest).

    kept: the significand without its lowest `shift` bits. rest: those bits, moved to the top of a word. mode: a
    Rounding.
    word: the unsigned NumPy integer of `width` bits, 32 or 64, which significand, shift, kept and rest have.
    """
    top = word(width - 1)
    zero = word(0)
    one = word(1)

    @scalar
    def split(significand: Any, shift: Any, mode: int) -> Any:
        """Return (kept, rest): the significand without its lowest `shift` bits, and these bits.

        rest is the fraction that these bits are of a unit of kept, times 2**width.
        significand: below 2**(width - 1); shift: number of bits >= 0. Both are unsigned integers of `width` bits (32 or
        64), as are kept and rest. mode: a Rounding, a compile-time constant.
        For shift >= width, kept is 0, and rest is below half a unit and not exact, but nonzero if the significand is.
        In stochastic mode, rest is then the exact fraction, rounded down to `width` bits.
        """
        # the mask tells LLVM that the shift fits, which keeps the elements of a vector register narrow
        near = word(min(shift, top) & top)
        kept = word(significand >> near)
        rest = word(word(significand + significand) << word(top - near))
        if mode == STOCHASTIC:
            beyond = word(shift - near)  # > 0 only where shift >= width, and then kept is 0
            far = word(min(word(beyond - min(beyond, one)), top) & top)
            rest = word(significand >> far) if beyond > zero else rest
        return kept, rest

    return split


split_32 = _make_split(np.uint32, 32)
split_64 = _make_split(np.uint64, 64)
