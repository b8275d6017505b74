"""CPU loops of FP16 and BF16 arithmetic to nearest even, the mode that most people want, at the speed of float32.

A float32 result rounded once more, to FP16 or BF16, is the exact one rounded once: 24 bits are enough for sums,
products, quotients and roots of 11 (Figueroa 1995). The exception is what falls below float32's own normal range, as
products and quotients of BF16 do: those are computed a second time, scaled up, and rounded to a multiple of the
smallest subnormal by adding a number that has its last bit there. FP16 is converted by the processor.
tests/test_float_kernels.py compares every loop with the integer core. Measured: docs/performance.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from fpsim.core.jit import kernel, scalar
from fpsim.flags import Flags
from fpsim.formats import BF16, FP16, Format
from fpsim.kernels.native import NAN as HALF_NAN
from fpsim.kernels.native import has_conversion, to_half

u16, u32, i32, f32 = np.uint16, np.uint32, np.int32, np.float32

ZERO, ONE = u32(0), u32(1)
MAGNITUDE, INFINITY = u32(0x7FFFFFFF), u32(0x7F800000)
SMALLEST_NORMAL = np.int32(0x00800000)  # of float32 and BF16
CODE_MAGNITUDE, CODE_SIGN = u32(0x7FFF), u32(0x8000)
BFLOAT_NAN, BFLOAT_INFINITY = u32(BF16.nan_code or 0), u32(BF16.infinity_code or 0)
HALF_INFINITY = u32(FP16.infinity_code or 0)

# Results below 2**-126, float32's smallest normal value, are computed times 2**SHIFT, where float32 is precise:
# products only if the factors are below 2**7 and one of them below 2**-63, quotients only if the dividend is below 4
# and the divisor above 2**-7. Then the scaled result is neither zero nor infinite, and what is not scaled is normal.
# Adding MAGIC, whose last bit is worth 2**SHIFT times the smallest subnormal value, 2**-133, rounds to multiples of it.
ONE_BITS = u32(0x3F800000)
FACTOR_BOUND, SMALL_FACTOR = u32(0x4300), u32(0x2000)  # the codes of 2**7 and 2**-63,
DIVIDEND_BOUND, DIVISOR_BOUND = u32(0x4080), u32(0x3C00)  # of 4 and 2**-7
PRODUCT_SHIFT, PRODUCT_MAGIC = u32(127 << 23), f32(2.0 ** (127 - 133 + 23))
QUOTIENT_SHIFT, QUOTIENT_MAGIC = u32(118 << 23), f32(2.0 ** (118 - 133 + 23))
DROPPED = u32(0xFFFF)  # the bits of a float32 that BF16 does not have

INEXACT, TINY_AND_INEXACT = u32(Flags.INEXACT), u32(Flags.INEXACT | Flags.UNDERFLOW)
# Flags of infinities and NaNs are found in 16-bit words, twice as many at a time.
SHORT_ZERO, SHORT_ONE, SHORT_MAGNITUDE = u16(0), u16(1), u16(0x7FFF)
SHORT_OVERFLOW, SHORT_BY_ZERO = u16(Flags.INEXACT | Flags.OVERFLOW), u16(Flags.DIVIDE_BY_ZERO)
SHORT_INVALID = u16(Flags.INVALID)

BLOCK = 512  # elements
PATIENCE = 16  # blocks that are scaled after one that had to be


@scalar
def bits_of(x: Any) -> Any:
    """The bits of a float32."""
    return u32(f32(x).view(np.uint32))


@scalar
def float_of(bits: Any) -> Any:
    """The float32 of some bits."""
    return f32(u32(bits).view(np.float32))


# ---- BF16: the upper half of a float32


@scalar
def load_bfloat(code: Any) -> Any:
    """The float32 of a code."""
    return float_of(u32(u32(code) << u32(16)))


@scalar
def round_bfloat(magnitude: Any) -> Any:
    """The magnitude code nearest the bits of a magnitude that is not NaN."""
    odd = u32(u32(magnitude >> u32(16)) & ONE)
    return u32(u32(u32(magnitude + u32(0x7FFF)) + odd) >> u32(16))


@scalar
def store_bfloat(x: Any) -> Any:
    """The code nearest a float32; NaN becomes the canonical one."""
    return round_bfloat(bits_of(x)) if x == x else BFLOAT_NAN


@scalar
def _round_scaled(scaled: Any, shift: Any, magic: Any) -> Any:
    """(magnitude code, whether it is inexact) nearest a magnitude times 2**shift, given as an exponent field."""
    magnitude = u32(bits_of(scaled) - shift)
    raised = f32(scaled + magic)
    is_tiny = i32(magnitude) < SMALLEST_NORMAL
    code = u32(bits_of(raised) - bits_of(magic)) if is_tiny else round_bfloat(magnitude)
    inexact = f32(raised - magic) != scaled if is_tiny else u32(magnitude & DROPPED) != ZERO
    return code, inexact


@scalar
def _multiply_scaled(p: Any, q: Any) -> Any:
    """(product of the values of two magnitude codes times 2**shift, shift)."""
    small, large = u32(min(p, q)), u32(max(p, q))
    shift = PRODUCT_SHIFT if (small < SMALL_FACTOR) & (large < FACTOR_BOUND) else ZERO
    return f32(f32(load_bfloat(small) * float_of(u32(ONE_BITS + shift))) * load_bfloat(large)), shift


@scalar
def _divide_scaled(p: Any, q: Any) -> Any:
    """(quotient of the values of two magnitude codes times 2**shift, shift)."""
    shift = QUOTIENT_SHIFT if (p < DIVIDEND_BOUND) & (q > DIVISOR_BOUND) else ZERO
    return f32(f32(load_bfloat(p) * float_of(u32(ONE_BITS + shift))) / load_bfloat(q)), shift


def _make_scaled(scale: Any, magic: Any) -> Any:
    """The product or quotient of two BF16 codes, with and without flags."""

    @scalar
    def without_flags(a: Any, b: Any) -> Any:
        """The code of the result."""
        sign = u32(u32(u32(a) ^ u32(b)) & CODE_SIGN)
        scaled, shift = scale(u32(u32(a) & CODE_MAGNITUDE), u32(u32(b) & CODE_MAGNITUDE))
        code, _ = _round_scaled(scaled, shift, magic)
        return u32(code | sign) if bits_of(scaled) <= INFINITY else BFLOAT_NAN

    @scalar
    def with_flags(a: Any, b: Any, tiny_below: Any) -> Any:
        """(code, INEXACT and UNDERFLOW) of the result; tiny_below: bits of the smallest magnitude that is not tiny."""
        sign = u32(u32(u32(a) ^ u32(b)) & CODE_SIGN)
        scaled, shift = scale(u32(u32(a) & CODE_MAGNITUDE), u32(u32(b) & CODE_MAGNITUDE))
        code, inexact = _round_scaled(scaled, shift, magic)
        tiny = i32(bits_of(scaled) - shift) < i32(tiny_below)
        flags = (TINY_AND_INEXACT if tiny else INEXACT) if inexact else ZERO
        return (u32(code | sign) if bits_of(scaled) <= INFINITY else BFLOAT_NAN), flags

    return without_flags, with_flags


multiply_bfloat, flagged_multiply_bfloat = _make_scaled(_multiply_scaled, PRODUCT_MAGIC)
divide_bfloat, flagged_divide_bfloat = _make_scaled(_divide_scaled, QUOTIENT_MAGIC)


# ---- FP16: converted by the processor


@intrinsic  # type: ignore[untyped-decorator]
def _from_half(_typing: Any, code: Any) -> Any:
    """The pattern of a float16 as a float32."""

    def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        half = builder.bitcast(args[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return types.float32(types.uint16), build


@scalar
def load_half(code: Any) -> Any:
    """The float32 of a code."""
    return f32(_from_half(u16(code)))


@scalar
def to_half_of(x: Any) -> Any:
    """The code nearest a float32, with the payload of a NaN."""
    return u16(to_half(bits_of(x)))


@scalar
def store_half(x: Any) -> Any:
    """The code nearest a float32; NaN becomes the canonical one."""
    return u32(to_half(bits_of(x))) if x == x else HALF_NAN


# ---- the operations


@scalar
def _sum(x: Any, y: Any) -> Any:
    return f32(x + y)


@scalar
def _difference(x: Any, y: Any) -> Any:
    return f32(x - y)


@scalar
def _product(x: Any, y: Any) -> Any:
    return f32(x * y)


@scalar
def _quotient(x: Any, y: Any) -> Any:
    return f32(x / y)


OPERATIONS: Any = {"add": _sum, "subtract": _difference, "multiply": _product, "divide": _quotient}
SCALED: Any = {
    ("BF16", "multiply"): (multiply_bfloat, flagged_multiply_bfloat),
    ("BF16", "divide"): (divide_bfloat, flagged_divide_bfloat),
}


def _load_store(fmt: Format) -> Any:
    return (load_half, store_half) if fmt == FP16 else (load_bfloat, store_bfloat)


def serves(fmt: Format, name: str) -> bool:
    """Whether there is a loop for an operation of a format with itself, to nearest even, with Inf."""
    if numba.config.DISABLE_JIT or name not in (*OPERATIONS, "sqrt"):
        return False
    return fmt == BF16 or (fmt == FP16 and has_conversion())


@cache
def code_functions(fmt: Format, name: str) -> Any:
    """The scalar functions `(a, b) -> code` and `(a, b, tiny_below) -> (code, flags)` of an operation."""
    if (fmt.name, name) in SCALED:
        return SCALED[fmt.name, name]
    load, store = _load_store(fmt)
    store_any = to_half_of if fmt == FP16 else store_bfloat  # any NaN will do: it is looked at again
    operation = OPERATIONS[name]
    adds, subtracts = name in ("add", "subtract"), name == "subtract"

    @scalar
    def without_flags(a: Any, b: Any) -> Any:
        """The code of the result."""
        return store(operation(load(a), load(b)))

    @scalar
    def with_flags(a: Any, b: Any, tiny_below: Any) -> Any:
        """(code, INEXACT and UNDERFLOW) of the result; tiny_below: bits of the smallest magnitude that is not tiny."""
        x, y = f32(load(a)), f32(load(b))
        result = f32(operation(x, y))
        code = u16(store_any(result))
        rounded = f32(load(code))
        if adds:
            # the difference from the larger term is exact, and tells whether the sum is; and a tiny sum is exact
            y = f32(-y) if subtracts else y
            inexact = (f32(rounded - x) != y) | (f32(rounded - y) != x)
            return code, (INEXACT if inexact else ZERO)
        tiny = u32(bits_of(result) & MAGNITUDE) < tiny_below
        return code, ((TINY_AND_INEXACT if tiny else INEXACT) if rounded != result else ZERO)

    return without_flags, with_flags


# ---- the loops; codes must not be an operand


@cache
def binary_kernel(fmt: Format, name: str) -> Any:
    """The loop `(a, b, codes)`."""
    if (fmt.name, name) in SCALED:
        return _scaled_kernel(name)
    function, _ = code_functions(fmt, name)

    def binary(a: Any, b: Any, codes: Any) -> None:
        for i in range(codes.size):
            codes[i] = function(a[i], b[i])

    return kernel(binary)


def _scaled_kernel(name: str) -> Any:
    """The loop `(a, b, codes)` of BF16 products or quotients: unscaled, until a result is subnormal in float32."""
    operation, (scaled, _) = OPERATIONS[name], SCALED["BF16", name]

    def binary(a: Any, b: Any, codes: Any) -> None:
        to_scale = 0  # blocks to scale before the next attempt without
        for start in range(0, codes.size, BLOCK):
            x, y, target = a[start : start + BLOCK], b[start : start + BLOCK], codes[start : start + BLOCK]
            if to_scale == 0:
                subnormal = ZERO
                for i in range(target.size):
                    result = f32(operation(load_bfloat(x[i]), load_bfloat(y[i])))
                    magnitude = u32(bits_of(result) & MAGNITUDE)
                    subnormal = u32(subnormal | u32(u32(magnitude - ONE) < u32(SMALLEST_NORMAL - 1)))
                    target[i] = store_bfloat(result)
                to_scale = PATIENCE if subnormal != ZERO else 0
            if to_scale > 0:
                to_scale -= 1
                for i in range(target.size):
                    target[i] = scaled(x[i], y[i])

    return kernel(binary)


@cache
def flagged_binary_kernel(fmt: Format, name: str) -> Any:
    """The loop `(a, b, codes, flags, bits of the smallest magnitude that is not tiny)`."""
    _, function = code_functions(fmt, name)
    scales = (fmt.name, name) in SCALED
    operation = OPERATIONS[name]
    infinity, quiet = u16(fmt.infinity_code or 0), u16(fmt.nan_code or 0)
    divides = name == "divide"

    def binary(a: Any, b: Any, codes: Any, flags: Any, tiny_below: Any) -> None:
        to_scale = 0  # blocks to scale before the next attempt without
        for start in range(0, codes.size, BLOCK):
            x, y = a[start : start + BLOCK], b[start : start + BLOCK]
            target, raised = codes[start : start + BLOCK], flags[start : start + BLOCK]
            largest = SHORT_ZERO
            if scales and to_scale == 0:
                subnormal = ZERO
                for i in range(target.size):
                    result = f32(operation(load_bfloat(x[i]), load_bfloat(y[i])))
                    magnitude = u32(bits_of(result) & MAGNITUDE)
                    subnormal = u32(subnormal | u32(u32(magnitude - ONE) < u32(SMALLEST_NORMAL - 1)))
                    code = u16(store_bfloat(result))
                    target[i] = code
                    raised[i] = INEXACT if u32(magnitude & DROPPED) != ZERO else ZERO
                    largest = u16(max(largest, u16(code & SHORT_MAGNITUDE)))
                to_scale = PATIENCE if subnormal != ZERO else 0
            if to_scale > 0 or not scales:
                to_scale = max(to_scale - 1, 0)
                for i in range(target.size):
                    code, flag = function(x[i], y[i], tiny_below)
                    target[i] = code
                    raised[i] = flag
                    largest = u16(max(largest, u16(u16(code) & SHORT_MAGNITUDE)))
            if largest >= infinity:  # some result is Inf or NaN: only now look at what happened there
                for i in range(target.size):
                    flag16 = _special_flags(u16(raised[i]), x[i], y[i], target[i], infinity, quiet, divides)
                    raised[i] = flag16
                    target[i] = quiet if u16(target[i] & SHORT_MAGNITUDE) > infinity else target[i]

    return kernel(binary)


@scalar
def _special_flags(flags: Any, a: Any, b: Any, code: Any, infinity: Any, quiet: Any, divides: bool) -> Any:
    """The flags with those of infinities and NaNs, from the codes of operands and result."""
    p, q, result = u16(a & SHORT_MAGNITUDE), u16(b & SHORT_MAGNITUDE), u16(code & SHORT_MAGNITUDE)
    largest = u16(max(p, q))
    of_infinity = SHORT_OVERFLOW if largest < infinity else SHORT_ZERO
    if divides:
        by_zero = (q == SHORT_ZERO) & (p < infinity)
        of_infinity = SHORT_BY_ZERO if by_zero else of_infinity
    flags = of_infinity if result == infinity else flags
    # 0 <= p - infinity - 1 < quiet - infinity - 1 for the NaNs that signal
    above, span = u16(infinity + SHORT_ONE), u16(u16(quiet - infinity) - SHORT_ONE)
    signals = u16(min(u16(p - above), u16(q - above))) < span
    invalid = (largest <= infinity) | signals
    return (SHORT_INVALID if invalid else SHORT_ZERO) if result > infinity else flags


@cache
def sqrt_kernel(fmt: Format) -> Any:
    """The loop `(a, codes)`."""
    load, store = _load_store(fmt)

    def sqrt(a: Any, codes: Any) -> None:
        for i in range(codes.size):
            codes[i] = store(f32(np.sqrt(load(a[i]))))

    return kernel(sqrt)


@cache
def flagged_sqrt_kernel(fmt: Format) -> Any:
    """The loop `(a, codes, flags)`."""
    load, store = _load_store(fmt)
    infinity, quiet = u16(fmt.infinity_code or 0), u16(fmt.nan_code or 0)

    def sqrt(a: Any, codes: Any, flags: Any) -> None:
        for start in range(0, codes.size, BLOCK):
            x, target, raised = a[start : start + BLOCK], codes[start : start + BLOCK], flags[start : start + BLOCK]
            largest = SHORT_ZERO
            for i in range(target.size):
                value = f32(load(x[i]))
                code = u16(store(f32(np.sqrt(value))))
                root = f32(load(code))
                target[i] = code
                raised[i] = INEXACT if f32(root * root) != value else ZERO  # the square of 11 bits is exact
                largest = u16(max(largest, u16(code & SHORT_MAGNITUDE)))
            if largest > infinity:
                for i in range(target.size):
                    raised[i] = _special_flags(u16(raised[i]), x[i], x[i], target[i], infinity, quiet, False)

    return kernel(sqrt)
