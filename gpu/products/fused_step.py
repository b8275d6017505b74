"""One instruction of `Rule.FUSED` in float32: how operands, the accumulator and the sum are truncated and rounded.

A product of two operands is exact in float32, and so is its product with 2**(F - M), where M is the instruction's
largest exponent and F the fraction bits that the unit keeps; converting that to an integer truncates it. An operand of
exponent e is below 2**(e + 1), so a product, whose exponent is the sum of its operands' exponents, is below 2 to that
exponent plus 2. Nothing is lost:

- Significands have at most 11 bits (FP16, TF32), so a product has at most 22, and is exact if it is normal.
- Operands above 2**HIGHEST are excluded, so no product is 2**126 or more, and none is infinite.
- A product below 2**-126 may lose bits, but M - F >= LEAST_PLACE then makes it less than half a unit: it is truncated
  to zero, as the exact one is.
- Sums of truncated products are integers; the kernel keeps them in integers wide enough. A sum of up to 24 bits times
  2**(M - F) is a normal float32 again, or Inf from 2**128 on, as the unit's result is.

Two kinds of instructions are outside these bounds. M > LAST: an operand is NaN, Inf or too large, or the accumulator is
not finite. M - F < LEAST_PLACE: all terms are tiny. For both the kernel returns NaN, which no other instruction gives,
and integer arithmetic computes the result again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.products.kernels.fused_row import rounded_to_half
from fpsim.runtime.compile import scalar

i32, i64, f32 = np.int32, np.int64, np.float32

MANTISSA_BITS, BIAS, FIELD = i32(23), i32(127), i32(0xFF)  # of float32
MAGNITUDE, SIGN, INFINITE = i32(0x7FFFFFFF), i32(-0x80000000), i32(0x7F800000)
NAN_PATTERN = i32(0x7FFFFFFF)
POWER_OF_ZERO = i32(254 << 23)  # minus the pattern of a power of two gives that of its inverse

HIGHEST = i32(62)  # largest exponent of an operand in the float32 kernels
SPECIAL = i32(1 << 14)  # replaces the exponent of a NaN, an Inf, or a larger operand
NO_TERM = i32(-(1 << 12))  # of a zero; with SPECIAL still above LAST: Inf * 0 is NaN
NOTHING = i32(-1000)  # exponents of products are above this, sums with a zero's exponent below
LAST = i32(127)  # largest exponent of a finite accumulator
LEAST_PLACE = -125  # 2**LEAST_PLACE is more than twice what a product that is not exact can be
NO_SCALE = i32(0xFF)  # the E8M0 code of NaN
SCALE_BIAS = i32(127)

HALF_MANTISSA, HALF_UP, HALF_REBIAS = i32(10), i32(13), i32(112)  # bits, to those of float32, between the two biases
HALF_MAGNITUDE, HALF_SIGN, HALF_INFINITE = i32(0x7FFF), i32(0x8000), i32(0x7C00)
HALF_LEAST = i32(-14)


class OperandFacts(NamedTuple):
    """The constants of an operand's format, as 32-bit integers.

    Attributes:
      kept: mask of the bits of a code that the unit reads.
      magnitude_mask, sign_bit: masks of the bits of the magnitude and of the sign.
      sign_up: distance in bits from the sign to float32's sign.
      mantissa_bits, bias: number of stored mantissa bits, and exponent bias.
      least: the smallest exponent.
      top: the code of the largest finite magnitude.
      power: the float32 bits of 2**(127 - bias).
    """

    kept: Any
    magnitude_mask: Any
    sign_bit: Any
    sign_up: Any
    mantissa_bits: Any
    bias: Any
    least: Any
    top: Any
    power: Any


class StepNumbers(NamedTuple):
    """The properties of a unit's instruction that kernels need, as 32-bit integers.

    Terms are truncated to a multiple of 2**(M - fraction_bits), where M is the largest exponent of the instruction.

    Attributes:
      fraction_bits: number of bits below the exponent M that are kept.
      low: smallest value of M; a smaller M is raised to it. It is the larger of the unit's floor exponent and
        fraction_bits + LEAST_PLACE.
      rare: float32 is not exact if the unraised M is below this and not all terms are zeros; then another kernel
        computes the result.
      least: the smallest exponent of the accumulator's format.
      kept: mask of the bits of the result that the unit returns; the others become 0.
    """

    fraction_bits: Any
    low: Any
    rare: Any
    least: Any
    kept: Any


@scalar
def operand(code: Any, f: OperandFacts) -> Any:
    """Return (float32 bits as int32, exponent) of the value of an operand's code; f: the constants of its format.

    For NaN, Inf and values with an exponent above HIGHEST, the exponent is SPECIAL and the bits are those of a zero. A
    zero has the exponent NO_TERM.
    """
    bits = i32(i32(code) & f.kept)
    magnitude = i32(bits & f.magnitude_mask)
    sign = i32(i32(bits & f.sign_bit) << f.sign_up)
    exponent = max(i32(i32(magnitude >> f.mantissa_bits) - f.bias), f.least)
    taken = (magnitude <= f.top) & (exponent <= HIGHEST)
    up = i32(magnitude << i32(MANTISSA_BITS - f.mantissa_bits)) if taken else i32(0)
    # the product is exact; it also makes a subnormal float32, which a subnormal is so far, a normal one
    value = f32(i32(up).view(f32) * i32(f.power).view(f32))
    exponent = i32(exponent) if taken else SPECIAL
    return i32(f32(value).view(i32) | sign), i32(exponent) if magnitude != i32(0) else NO_TERM


@scalar
def scaled_operand(pattern: Any, exponent: Any, scale: Any, inside: Any) -> Any:
    """Return (float32 bits, exponent) of an operand times its block scale 2**(scale - 127).

    pattern, exponent: float32 bits as int32, and exponent, of the unscaled operand, as `operand` returns them. scale:
    E8M0 code of its block's scale; the code of NaN makes the exponent SPECIAL. inside: whether the operand is within
    the matrix; otherwise a scale of NaN is ignored.

    A result that is subnormal in float32 is exact: operands have at most 4 significant bits and are at least 2**-16.
    """
    shift = i32(i32(scale) - SCALE_BIAS)
    half = i32(shift >> i32(1))  # a power of two may be too small for a normal float32, halves of its exponent are not
    first = i32(i32(half + BIAS) << MANTISSA_BITS).view(f32)
    second = i32(i32(i32(shift - half) + BIAS) << MANTISSA_BITS).view(f32)
    moved = i32(exponent + shift)
    taken = (moved <= HIGHEST) & (exponent != SPECIAL)
    # what is not taken becomes zero first, for it could overflow
    value = f32(f32(i32(pattern if taken else i32(0)).view(f32) * first) * second)
    moved = moved if taken else SPECIAL
    moved = i32(moved) if exponent != NO_TERM else NO_TERM
    return f32(value).view(i32), moved if (i32(scale) != NO_SCALE) | (not inside) else SPECIAL


@scalar
def accumulator_exponent(c: Any, least: Any) -> Any:
    """Return the exponent of an accumulator, at least `least`; NO_TERM if it is zero.

    c: float32 bits of the accumulator, as int32. least: the smallest exponent of its format, int32.
    """
    exponent = max(i32(i32(i32(c >> MANTISSA_BITS) & FIELD) - BIAS), least)
    return i32(exponent) if i32(c & MAGNITUDE) != i32(0) else NO_TERM


@scalar
def power_of_step(largest: Any, c: Any, u: StepNumbers) -> Any:
    """Return the float32 bits of 2**(F - M), by which terms are multiplied before they are truncated to integers, or 0.

    F: u.fraction_bits. M: the largest exponent of products and accumulator, or u.low if that is larger. 0 means that
    float32 does not give the exact result, and another kernel must compute it. The function returns 0 if the largest
    exponent is above LAST (a NaN, an Inf or a value that is too large) or, unless all terms are zeros, below u.rare.

    largest: the largest exponent of the products. c: float32 bits of the accumulator. u: properties of the instruction.
    """
    top = max(i32(largest), accumulator_exponent(c, u.least))
    marked = (top > LAST) | ((top > NOTHING) & (top < u.rare))
    power = i32(i32(i32(BIAS + u.fraction_bits) - max(top, u.low)) << MANTISSA_BITS)
    return i32(0) if marked else power


@scalar
def cut(value: Any, power: Any) -> Any:
    """Return value * 2**p, truncated to an int32; power: the float32 bits of 2**p, from `power_of_step`."""
    return i32(f32(value * i32(power).view(f32)))


@scalar
def cut_accumulator(c: Any, power: Any) -> Any:
    """Return the accumulator times 2**p, truncated to an int32; 0 if power is 0.

    c: float32 bits of the accumulator. power: the float32 bits of 2**p, from `power_of_step`.
    """
    return cut(i32(c if power != i32(0) else i32(0)).view(f32), power)


@scalar
def restored(near: Any, negative: Any, power: Any) -> Any:
    """Return near / 2**p as float32, with a minus sign if `negative`.

    near: float32 >= 0. power: the float32 bits of 2**p, from `power_of_step`.
    """
    signed = i32(f32(near).view(i32) | (SIGN if negative else i32(0)))
    return f32(i32(signed).view(f32) * i32(POWER_OF_ZERO - power).view(f32))


@scalar
def result_of_short(total: Any, power: Any, u: StepNumbers) -> Any:
    """Return the float32 bits of total / 2**p, which is exact; NAN_PATTERN if power is 0.

    total: int32 sum of at most 24 bits. power: the float32 bits of 2**p, from `power_of_step`. u: properties of the
    instruction, whose mask u.kept is applied to the result.
    """
    new = f32(f32(total) * i32(POWER_OF_ZERO - power).view(f32))
    return i32(f32(new).view(i32) & u.kept) if power != i32(0) else NAN_PATTERN


@scalar
def result_of_sum(total: Any, power: Any, u: StepNumbers) -> Any:
    """Return the float32 bits of total / 2**p, rounded toward zero; NAN_PATTERN if power is 0.

    total: int32 sum. power: the float32 bits of 2**p, from `power_of_step`. u: properties of the instruction, whose
    mask u.kept is applied to the result.
    """
    magnitude = i32(abs(i32(total)))
    # without the bit below the 24 that are kept, rounding to nearest is a cut
    near = f32(i32(magnitude & ~i32(magnitude >> i32(24))))
    new = restored(near, total < i32(0), power)
    return i32(f32(new).view(i32) & u.kept) if power != i32(0) else NAN_PATTERN


@scalar
def result_of_long(total: Any, power: Any, u: StepNumbers) -> Any:
    """Return the float32 bits of total / 2**p, rounded toward zero; NAN_PATTERN if power is 0.

    total: int64 sum. power: the float32 bits of 2**p, from `power_of_step`. u: properties of the instruction, whose
    mask u.kept is applied to the result.
    """
    magnitude = i64(abs(i64(total)))
    near = f32(i64(magnitude & ~i64(magnitude >> i64(24))))
    new = restored(near, total < i64(0), power)
    return i32(f32(new).view(i32) & u.kept) if power != i32(0) else NAN_PATTERN


@scalar
def half_result(total: Any, power: Any, u: StepNumbers) -> Any:
    """Return the float32 bits of total / 2**p, rounded to nearest even in FP16; NAN_PATTERN if power is 0.

    total: int64 sum. power: the float32 bits of 2**p, from `power_of_step`. u is not used.
    """
    magnitude = i64(abs(i64(total)))
    near = f32(i64(magnitude & ~i64(magnitude >> i64(24))))
    # what was cut shows in the last bit, which rounds as the exact sum does
    lost = i64(near) != magnitude
    near = i32(i32(f32(near).view(i32)) | i32(lost)).view(f32)
    new = f32(rounded_to_half(restored(near, total < i64(0), power)))
    return new.view(i32) if power != i32(0) else NAN_PATTERN


@scalar
def float_of_half(code: Any) -> Any:
    """Return the float32 bits, as int32, of the value of an FP16 code."""
    magnitude = i32(i32(code) & HALF_MAGNITUDE)
    sign = i32(i32(i32(code) & HALF_SIGN) << i32(16))
    up = i32(magnitude << HALF_UP)
    value = f32(up.view(f32) * i32(i32(HALF_REBIAS + BIAS) << MANTISSA_BITS).view(f32)).view(i32)
    return i32(sign | (i32(INFINITE | up) if magnitude >= HALF_INFINITE else value))


@scalar
def half_of_float(pattern: Any) -> Any:
    """Return the FP16 code of the float32 with the bits `pattern`, which must be a value of FP16 and not NaN."""
    sign = i32(i32(pattern >> i32(16)) & HALF_SIGN)
    magnitude = i32(pattern & MAGNITUDE)
    small = magnitude < i32(i32(HALF_LEAST + BIAS) << MANTISSA_BITS)
    units = i32(f32(i32(magnitude if small else i32(0)).view(f32) * f32(2.0**24)))  # of a subnormal
    normal = i32(i32(magnitude >> HALF_UP) - i32(HALF_REBIAS << HALF_MANTISSA))
    code = i32(units) if small else normal
    return i32(sign | (HALF_INFINITE if magnitude >= INFINITE else code))
