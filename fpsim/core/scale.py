"""Scalar core: the amax of a tile in, the quotient that becomes its scale out. Floats divide and multiply only.

Every step is one IEEE operation to nearest even, so that CPU and CUDA agree: there is no sum that could be contracted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.core.jit import scalar

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64

# How a quotient follows from amax; docs/scaling.md has the table.
AMAX_BY_MAX, AMAX_TIMES_INVERSE, INVERSE_OF_ENCODE, FLOOR, CEIL, EVEN = range(6)
# What the elements are divided by or multiplied with.
BY_SCALE, BY_INVERSE = range(2)


class ScaleNumbers(NamedTuple):
    """The numbers of a rule, floats of the width that the arithmetic has."""

    largest: Any  # of the element format
    inverse: Any  # 1 / largest
    amax_floor: Any
    smallest: Any  # scale
    half_smallest: Any
    scale_max: Any  # largest value of the scale format
    zero_scale: Any  # of a tile of zeros
    tensor: Any  # scale of the array, 1 without one
    inverse_tensor: Any  # 1 / tensor
    tensor_factor: Any  # what INVERSE_OF_ENCODE multiplies amax by


def _make_power_quotient(word: type, real: type, width: int, mantissa_bits: int) -> Any:
    """The quotients that are powers of two, for words of one width."""
    exponent_mask = (1 << (width - 1 - mantissa_bits)) - 1
    bias = exponent_mask >> 1
    field_mask = word(exponent_mask)
    mantissa = word(mantissa_bits)
    mantissa_mask = word((1 << mantissa_bits) - 1)
    one, zero = word(1), word(0)
    lowest = -bias - mantissa_bits + 1  # exponent of the smallest subnormal

    @scalar
    def power_quotient(top: Any, emax: int, half_place: Any, rule: int) -> Any:
        """2**(exponent of a finite amax - emax) as a float; 0 where it is too small for one, Inf where too large.

        top: bits of amax; half_place: what rounds it to the element's mantissa bits, ties away (EVEN).
        """
        if rule == EVEN:
            top = word(top + half_place)
        field = word(word(top >> mantissa) & field_mask)
        exponent: Any = np.int64(field) - bias - emax
        if rule == CEIL:
            exponent += np.int64(1 if word(top & mantissa_mask) != zero else 0)
        exponent = max(min(exponent, bias + 1), lowest - 1)
        normal = word(word(max(exponent + bias, 0)) << mantissa)
        subnormal = word(one << word(max(min(exponent - lowest, mantissa_bits - 1), 0)))
        bits = normal if exponent > -bias else subnormal
        bits = bits if exponent >= lowest else zero
        return word(bits).view(real)

    return power_quotient


power_quotient_32 = _make_power_quotient(u32, f32, 32, 23)
power_quotient_64 = _make_power_quotient(u64, f64, 64, 52)
