"""CPU loops of the arithmetic by the processor's float32 and float64 operations, corrected to be exact.

Operands are decoded to a float that holds them, the result of the operation is rounded to odd in that float, and then
rounded by the encoder of the casts. A first rounding to odd with two bits to spare does not change the second one, in
any mode, and its error, which the processor computes too, determines the flags (Boldo and Melquiond 2008). `float_plan`
decides for which operations this is exact. The processor must round to nearest and keep subnormals.

Arguments of the kernels: a, b, c, codes: 1-D arrays of codes, unsigned integers; results are written to codes, and to
flags: uint8, bits of `fp.Flags`. layouts: DecodeLayouts of the operands, then EncodeLayout of the result, one a row,
unsigned integers of `width` bits. limits: the fields of Thresholds, then for each operand the smallest code, without
its sign, of a quiet NaN. mode: a Rounding. flip: the mask of a float's sign bit to subtract b, 0 to add it. width: bits
of the float that computes. nearest: True compiles for nearest even only, a third faster, and ignores mode.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from fpsim.core.decode import DecodeLayout, decode_bits_32, decode_bits_64, decode_fields
from fpsim.core.encode import FULL, encode_fields, encode_parts_32, encode_parts_64
from fpsim.core.rounding import DOWN, NEAREST_EVEN
from fpsim.formats.ieee import Flags
from fpsim.reload import reloadable
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.records import fields_of

INEXACT, UNDERFLOW, OVERFLOW = int(Flags.INEXACT), int(Flags.UNDERFLOW), int(Flags.OVERFLOW)
DIVIDE_BY_ZERO, INVALID = int(Flags.DIVIDE_BY_ZERO), int(Flags.INVALID)

# As int64, of which the encoder is compiled once; Python's numbers are types of their own to numba.
TO_NEAREST: Any = np.int64(NEAREST_EVEN)
EVERY_KIND: Any = np.int64(FULL)


@reloadable
class Thresholds(NamedTuple):
    """Magnitudes from which on the flags of a finite result change, as bits of the float that is rounded to the format.

    All are uint32 or uint64.

    Attributes:
      overflow, negative_overflow: the smallest magnitude of a positive, and of a negative, result that overflows.
      tiny, negative_tiny: the smallest magnitude of a positive, and of a negative, result that is not tiny.
    """

    overflow: Any
    negative_overflow: Any
    tiny: Any
    negative_tiny: Any


thresholds_of = fields_of(Thresholds)


@cache
def real_width(width: int) -> SimpleNamespace:
    """Return the compiled scalar functions on bits of float32 (width 32) or float64 (width 64), cached.

    Attributes of the result: word, real: the unsigned integer and the float type of that width; bits are values of type
    `word`. decode, encode: `decode_bits` and `encode_parts` of fpsim.core for that width. The others are the functions
    defined here.
    """
    word: Any = np.uint32 if width == 32 else np.uint64
    real: Any = np.float32 if width == 32 else np.float64
    zero, one = word(0), word(1)
    sign = word(1 << (width - 1))
    magnitude_mask = word((1 << (width - 1)) - 1)
    infinity = word(np.array(np.inf, real).view(word))

    @scalar
    def to_odd(total: Any, error: Any) -> Any:
        """Return the bits of the exact sum total + error, rounded to odd.

        total: the sum rounded to nearest, a float; error: what this rounding dropped, a float.
        """
        bits = word(real(total).view(word))
        error_bits = word(real(error).view(word))
        # NaN, which is the error of an infinite total, compares false
        moves = word(real(abs(error)) > real(0)) & word(word(bits ^ one) & one)
        inward = word(bits ^ error_bits) >= sign
        return word(bits - moves) if inward else word(bits + moves)

    @scalar
    def without_sign(bits: Any) -> Any:
        """Return the bits of a float unchanged, but those of a NaN without its sign bit."""
        magnitude = word(bits & magnitude_mask)
        return magnitude if magnitude > infinity else bits

    @scalar
    def sum_to_odd(first: Any, second: Any) -> Any:
        """Return the bits of first + second, two floats, rounded to odd."""
        total = real(first + second)
        back = real(total - first)
        error = real(real(first - real(total - back)) + real(second - back))
        return word(to_odd(total, error))

    @scalar
    def add(x: Any, y: Any, mode: int) -> Any:
        """Return the bits of x + y, rounded to odd; x, y: bits of floats. The NaN of the result has no sign.

        mode: a Rounding; in mode DOWN an exact zero from operands of unlike signs is -0, else +0.
        """
        bits = word(sum_to_odd(word(x).view(real), word(y).view(real)))
        signs = word(word(x | y) & sign) if mode == DOWN else zero
        return without_sign(word(bits | signs) if word(bits & magnitude_mask) == zero else bits)

    @scalar
    def root(x: Any) -> Any:
        """Return the bits of the square root of x, rounded to nearest.

        x: bits of a float. Rounding the result once more, to the format, gives the correctly rounded root. A NaN
        result has no sign.
        """
        return without_sign(word(real(np.sqrt(word(x).view(real))).view(word)))

    @scalar
    def fused(x: Any, y: Any, z: Any, mode: int) -> Any:
        """Return (bits of x * y + z rounded to odd, bits of x * y); the float must hold the product exactly.

        x, y, z: bits of floats. mode: a Rounding, which decides the sign of an exact zero sum: -0
        in mode DOWN if the operands' signs differ, else +0.
        """
        product = word(real(word(x).view(real) * word(y).view(real)).view(word))
        return word(add(product, z, mode)), product

    @scalar
    def flags(bits: Any, rest: Any, limits: Thresholds) -> Any:
        """Return the flags INEXACT, UNDERFLOW and OVERFLOW of rounding a float to a format; 0 for Inf and NaN.

        bits: the float's bits. rest: nonzero if the rounding drops nonzero bits. limits: the magnitudes from which
        flags change. The flags are an unsigned integer of `width` bits.
        """
        magnitude = word(bits & magnitude_mask)
        negative = bits >= sign
        overflow_from = limits.negative_overflow if negative else limits.overflow
        tiny_below = limits.negative_tiny if negative else limits.tiny
        finite = magnitude < infinity
        overflow = finite & (magnitude >= overflow_from)
        inexact = finite & ((rest != zero) | overflow)
        raised = word(INEXACT) if inexact else zero
        raised = word(raised | word(UNDERFLOW)) if inexact & (magnitude < tiny_below) else raised
        return word(raised | word(OVERFLOW)) if overflow else raised

    @scalar
    def is_nan(bits: Any) -> Any:
        """Return whether the bits of a float are those of a NaN."""
        return word(bits & magnitude_mask) > infinity

    @scalar
    def is_infinite(bits: Any) -> Any:
        """Return whether the bits of a float are those of Inf or -Inf."""
        return word(bits & magnitude_mask) == infinity

    @scalar
    def signals(code: Any, f: DecodeLayout, quiet_from: Any) -> Any:
        """Return whether a code is a signalling NaN; False for formats without IEEE 754's NaNs.

        code: an unsigned integer. f: constants of the code's format. quiet_from: the smallest code, without its
        sign, of a quiet NaN; 0 if all NaNs are quiet.
        """
        magnitude = word(code & f.magnitude_mask)
        return (magnitude > f.infinity) & (magnitude < quiet_from)

    return SimpleNamespace(
        word=word, real=real, decode=decode_bits_32 if width == 32 else decode_bits_64,
        encode=encode_parts_32 if width == 32 else encode_parts_64, sum_to_odd=sum_to_odd, add=add, fused=fused,
        root=root, flags=flags, without_sign=without_sign, is_nan=is_nan, is_infinite=is_infinite, signals=signals,
    )  # fmt: skip


@cache
def binary_kernel(name: str, width: int, nearest: bool, flagged: bool) -> Any:
    """Return the kernel (a, b, codes, flags, layouts, limits, mode, flip) -> None that adds, multiplies or divides.

    name: "add", "multiply" or "divide". width: bits of the float that computes, 32 or 64. nearest: True compiles for
    nearest even only, a third faster, and the kernel ignores `mode`. flagged: True computes flags too; if False, the
    kernel ignores `flags` and `limits`.

    Arguments of the kernel:
      a, b, codes: 1-D arrays of codes of one size, unsigned integers; the results are written to `codes`.
      flags: 1-D uint8, which is written too: bits of `fp.Flags`.
      layouts: unsigned integers of `width` bits; its rows are constants of formats: DecodeLayouts, for reading a and b;
        EncodeLayout, for rounding the result.
      limits: array of the fields of Thresholds (magnitudes from which flags change), then for each operand the
        smallest code, without its sign, of a quiet NaN.
      mode: a Rounding.
      flip: what the bits of b are xored with: the mask of the sign bit to subtract b, else 0.
    """
    w = real_width(width)
    word, decode, encode, raised_by = w.word, w.decode, w.encode, w.flags
    is_nan, is_infinite, signals = w.is_nan, w.is_infinite, w.signals
    operation, no_random, divides = _operation(name, w), word(0), name == "divide"

    def binary(a: Any, b: Any, codes: Any, flags: Any, layouts: Any, limits: Any, mode: int, flip: Any) -> None:
        fa, fb, f = decode_fields(layouts[0]), decode_fields(layouts[1]), encode_fields(layouts[2])
        used_mode = TO_NEAREST if nearest else mode
        thresholds = thresholds_of(limits)
        for i in range(codes.size):
            p, q = word(a[i]), word(b[i])
            x, y = word(decode(p, fa)), word(word(decode(q, fb)) ^ flip)
            bits = operation(x, y, used_mode)
            code, rest = encode(bits, no_random, f, used_mode, EVERY_KIND)
            codes[i] = code
            if flagged:
                raised = raised_by(bits, rest, thresholds)
                if divides:
                    raised = word(DIVIDE_BY_ZERO) if is_infinite(bits) & (not is_infinite(x)) else raised
                invalid = is_nan(bits) & (not is_nan(x)) & (not is_nan(y))
                invalid = invalid | signals(p, fa, limits[4]) | signals(q, fb, limits[5])
                flags[i] = word(INVALID) if invalid else raised

    return kernel(binary)


@cache
def sqrt_kernel(width: int, flagged: bool) -> Any:
    """Return the kernel (a, codes, flags, layouts, limits, mode) -> None that writes the square roots of codes a.

    a, codes: 1-D arrays of codes, unsigned integers. flags: uint8, bits of `fp.Flags`. layouts: unsigned integers of
    `width` bits; its rows are constants of formats: DecodeLayout, for reading a; EncodeLayout, for rounding the result.
    limits: the fields of Thresholds (magnitudes from which flags change), then the smallest code, without its sign, of
    a quiet NaN of a. mode: a Rounding. width: bits of the float that computes, 32 or 64. flagged: True computes flags
    too; if False, the kernel ignores `flags` and `limits`.
    """
    w = real_width(width)
    word, decode, encode, root, raised_by = w.word, w.decode, w.encode, w.root, w.flags
    is_nan, signals, no_random = w.is_nan, w.signals, word(0)

    def sqrt(a: Any, codes: Any, flags: Any, layouts: Any, limits: Any, mode: int) -> None:
        fa, f = decode_fields(layouts[0]), encode_fields(layouts[1])
        thresholds = thresholds_of(limits)
        for i in range(codes.size):
            p = word(a[i])
            x = word(decode(p, fa))
            bits = word(root(x))
            code, rest = encode(bits, no_random, f, mode, EVERY_KIND)
            codes[i] = code
            if flagged:
                invalid = (is_nan(bits) & (not is_nan(x))) | signals(p, fa, limits[4])
                flags[i] = word(INVALID) if invalid else raised_by(bits, rest, thresholds)

    return kernel(sqrt)


@cache
def fma_kernel(width: int, nearest: bool, flagged: bool) -> Any:
    """Return the kernel (a, b, c, codes, flags, layouts, limits, mode) -> None that writes the codes of a * b + c.

    a, b, c, codes: 1-D arrays of codes, unsigned integers. flags: uint8, bits of `fp.Flags`. layouts: unsigned integers
    of `width` bits; its rows are constants of formats: DecodeLayouts, for reading a, b and c; EncodeLayout, for
    rounding the result.
    limits: the fields of Thresholds (magnitudes from which flags change), then for each operand the smallest code,
    without its sign, of a quiet NaN. mode: a Rounding. width: bits of the float that computes, 32 or 64. nearest: True
    compiles for nearest even only; `mode` is then ignored. flagged: True computes flags too; if False, the kernel
    ignores `flags` and `limits`.
    """
    w = real_width(width)
    word, decode, encode, fused, raised_by = w.word, w.decode, w.encode, w.fused, w.flags
    is_nan, signals = w.is_nan, w.signals
    no_random = word(0)

    def fma(a: Any, b: Any, c: Any, codes: Any, flags: Any, layouts: Any, limits: Any, mode: int) -> None:
        fa, fb, fc = decode_fields(layouts[0]), decode_fields(layouts[1]), decode_fields(layouts[2])
        f = encode_fields(layouts[3])
        used_mode = TO_NEAREST if nearest else mode
        thresholds = thresholds_of(limits)
        for i in range(codes.size):
            p, q, r = word(a[i]), word(b[i]), word(c[i])
            x, y, z = word(decode(p, fa)), word(decode(q, fb)), word(decode(r, fc))
            bits, product = fused(x, y, z, used_mode)
            code, rest = encode(bits, no_random, f, used_mode, EVERY_KIND)
            codes[i] = code
            if flagged:
                # 0 * Inf is invalid whatever c is
                invalid = is_nan(product) & (not is_nan(x)) & (not is_nan(y))
                invalid = invalid | (is_nan(bits) & (not is_nan(product)) & (not is_nan(z)))
                invalid = invalid | signals(p, fa, limits[4]) | signals(q, fb, limits[5]) | signals(r, fc, limits[6])
                flags[i] = word(INVALID) if invalid else raised_by(bits, rest, thresholds)

    return kernel(fma)


def _operation(name: str, w: SimpleNamespace) -> Any:
    """Return the compiled function (x, y, mode) -> result, all bits of floats but mode; a NaN result has no sign.

    name: "add", "multiply" or "divide". w: the functions for floats of this width. Sums are rounded to odd, products
    and quotients to nearest. mode: a Rounding, which only sums read: DOWN makes an exact zero -0.
    """
    word, real, add = w.word, w.real, w.add
    without_sign = w.without_sign

    @scalar
    def product_bits(x: Any, y: Any, mode: int) -> Any:
        return without_sign(word(real(word(x).view(real) * word(y).view(real)).view(word)))

    @scalar
    def quotient_bits(x: Any, y: Any, mode: int) -> Any:
        return without_sign(word(real(word(x).view(real) / word(y).view(real)).view(word)))

    return {"add": add, "multiply": product_bits, "divide": quotient_bits}[name]
