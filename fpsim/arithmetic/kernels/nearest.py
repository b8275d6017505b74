"""CPU loops of FP16 and BF16 arithmetic to nearest even, the most common mode, at the speed of float32.

A float32 result rounded once more, to FP16 or BF16, is the exact result rounded once: 24 bits are enough for sums,
products, quotients and roots of numbers of 11 bits (Figueroa 1995), in float32's normal range.

Arguments of the kernels: a, b, codes: 1-D uint16 arrays of codes; codes is written, and must not share memory with a or
b. flags: uint8, bits of `fp.Flags`, written too. tiny_below: uint32, the float32 bits of the smallest magnitude that is
not tiny. fmt: FP16 or BF16. name: "add", "subtract", "multiply" or "divide".
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np

from fpsim.arithmetic.kernels.short_floats import (
    DROPPED,
    INEXACT,
    MAGNITUDE,
    SMALLEST_NORMAL,
    TINY_AND_INEXACT,
    ZERO,
    divide_bfloat,
    f32,
    flagged_divide_bfloat,
    flagged_multiply_bfloat,
    load_bfloat,
    load_half,
    multiply_bfloat,
    store_bfloat,
    store_half,
    to_half_of,
    u16,
    u32,
)
from fpsim.casts.half import has_conversion
from fpsim.core.elementary.steps import bits_of
from fpsim.formats.ieee import Flags
from fpsim.formats.named import BF16, FP16, Format
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.stream import block_loop

i32, u64, f64 = np.int32, np.uint64, np.float64

# Flags of infinities and NaNs are found in 16-bit words, twice as many at a time.
SHORT_ZERO, SHORT_ONE, SHORT_MAGNITUDE = u16(0), u16(1), u16(0x7FFF)
SHORT_NORMAL = u16(1 << BF16.mantissa_bits)
SHORT_OVERFLOW, SHORT_BY_ZERO = u16(Flags.INEXACT | Flags.OVERFLOW), u16(Flags.DIVIDE_BY_ZERO)
SHORT_INVALID = u16(Flags.INVALID)

BLOCK = 512  # elements
PATIENCE = 16  # blocks that are scaled without a first attempt, after one that needed scaling


# ---- the operations


# scalar functions of two float32, rounded to float32
OPERATIONS: Any = {
    "add": scalar(lambda x, y: f32(x + y)),
    "subtract": scalar(lambda x, y: f32(x - y)),
    "multiply": scalar(lambda x, y: f32(x * y)),
    "divide": scalar(lambda x, y: f32(x / y)),
}
SCALED: Any = {
    ("BF16", "multiply"): (multiply_bfloat, flagged_multiply_bfloat),
    ("BF16", "divide"): (divide_bfloat, flagged_divide_bfloat),
}


def load_store(fmt: Format) -> Any:
    """Return the scalar functions (code -> float32, float32 -> nearest code, ties to even) of `fmt`, FP16 or BF16.

    The returned code is a uint32; NaN becomes the canonical NaN.
    """
    return (load_half, store_half) if fmt == FP16 else (load_bfloat, store_bfloat)


def serves(fmt: Format, name: str) -> bool:
    """Return whether a loop of nearest.py or nearest_fma.py computes the operation `name` on codes of `fmt`.

    These loops add, subtract, multiply, divide, and compute square roots and a * b + c; they round to nearest even, and
    overflow to Inf. They serve BF16, and FP16 if the processor converts it; none if numba's compiler is disabled.
    """
    if numba.config.DISABLE_JIT or name not in (*OPERATIONS, "sqrt", "fma"):
        return False
    return fmt == BF16 or (fmt == FP16 and has_conversion())


@cache
def code_functions(fmt: Format, name: str) -> Any:
    """Return the scalar functions (a, b) -> code and (a, b, tiny_below) -> (code, flags) of one operation.

    fmt: FP16 or BF16, format of operands and result; name: "add", "subtract", "multiply" or "divide". a, b: codes,
    unsigned integers; code: unsigned integer. tiny_below: float32 bits of the smallest magnitude that is not tiny.
    flags: uint32, INEXACT and UNDERFLOW, right for finite results only.
    """
    if (fmt.name, name) in SCALED:
        return SCALED[fmt.name, name]
    load, store = load_store(fmt)
    store_any = to_half_of if fmt == FP16 else store_bfloat  # any NaN suffices: `_special_flags` follows
    operation = OPERATIONS[name]
    adds, subtracts = name in ("add", "subtract"), name == "subtract"

    @scalar
    def without_flags(a: Any, b: Any) -> Any:
        """Return the code of the operation's result, an unsigned integer, for operands with the codes a and b."""
        return store(operation(load(a), load(b)))

    @scalar
    def with_flags(a: Any, b: Any, tiny_below: Any) -> Any:
        """Return (code of the result, its flags INEXACT and UNDERFLOW), unsigned integers, for operand codes a and b.

        Codes of NaN results and flags of Inf and NaN results are not right, and callers replace them. tiny_below:
        float32 bits of the smallest magnitude that is not tiny.
        """
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


# ---- the loops; `codes` must not share memory with an operand


@cache
def binary_kernel(fmt: Format, name: str, streamed: bool = False) -> Any:
    """Return the kernel (a, b, codes) -> None that writes the codes of a + b, a - b, a * b or a / b to `codes`.

    a, b, codes: 1-D arrays of uint16 codes; codes must not share memory with a or b. fmt: FP16 or BF16. name: "add",
    "subtract", "multiply" or "divide". streamed: True if results are written around the caches, for arrays that would
    not stay in them.
    """
    scales = (fmt.name, name) in SCALED
    loop = block_loop(_fill_scaled(name) if scales else _fill(fmt, name), streamed, BLOCK if scales else 0)

    def binary(a: Any, b: Any, codes: Any) -> None:
        loop((a, b), codes, None)

    return kernel(binary)


def _fill(fmt: Format, name: str) -> Any:
    """Return the function (pair, start, count, codes, facts, to_scale) -> to_scale that computes a block of results.

    It writes the results of elements start .. start + count - 1 of pair, (a, b), to codes[:count]; all are 1-D arrays
    of uint16 codes. It does not use facts, and returns to_scale unchanged: `block_loop` (runtime/stream.py) passes it
    from call to call. fmt: FP16 or BF16; name: "add", "subtract", "multiply" or "divide".
    """
    function = scalar(code_functions(fmt, name)[0])

    def fill(pair: Any, start: int, count: int, codes: Any, facts: Any, to_scale: int) -> int:
        a, b = pair[0][start : start + count], pair[1][start : start + count]
        for i in range(count):
            codes[i] = function(a[i], b[i])
        return to_scale

    return fill


def _fill_scaled(name: str) -> Any:
    """Return the function (pair, start, count, codes, facts, to_scale) -> to_scale of BF16 products or quotients.

    name: "multiply" or "divide". The function writes the results of elements start .. start + count - 1 of pair,
    (a, b), to codes[:count]; all are 1-D arrays of uint16 codes. facts is not used.
    Results that are subnormal in float32 must be computed with scaled operands, which takes longer. If to_scale is 0,
    the function computes without scaling. If a result may then be subnormal, it computes all results again with
    scaling, and returns PATIENCE - 1, the number of following calls that scale from the start. Each of these returns
    its to_scale minus 1.
    """
    operation, scaled = OPERATIONS[name], scalar(SCALED["BF16", name][0])

    def fill(pair: Any, start: int, count: int, codes: Any, facts: Any, to_scale: int) -> int:
        a, b = pair[0][start : start + count], pair[1][start : start + count]
        if to_scale == 0:
            least = SHORT_MAGNITUDE
            for i in range(count):
                code = u16(store_bfloat(f32(operation(load_bfloat(a[i]), load_bfloat(b[i])))))
                codes[i] = code
                least = u16(min(least, u16(u16(code & SHORT_MAGNITUDE) - SHORT_ONE)))  # zeros wrap around
            # float32's subnormals have codes up to that of the smallest normal number. A code of 0 is right: from half
            # the smallest code on, products have no bits that float32 drops, and quotients are further from it
            to_scale = PATIENCE if least < SHORT_NORMAL else 0
        if to_scale > 0:
            to_scale -= 1
            for i in range(count):
                codes[i] = scaled(a[i], b[i])
        return to_scale

    return fill


@cache
def flagged_binary_kernel(fmt: Format, name: str) -> Any:
    """Return the kernel (a, b, codes, flags, tiny_below) -> None that adds, subtracts, multiplies or divides.

    a, b, codes: 1-D arrays of uint16 codes; codes must not share memory with a or b. flags: uint8, bits of `fp.Flags`.
    tiny_below: uint32, the float32 bits of the smallest magnitude that is not tiny. fmt: FP16 or BF16; name: "add",
    "subtract", "multiply" or "divide".
    """
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
                    # a result that underflows to zero is inexact, unless an operand is zero
                    smaller = u16(min(u16(x[i] & SHORT_MAGNITUDE), u16(y[i] & SHORT_MAGNITUDE)))
                    low = (magnitude < u32(SMALLEST_NORMAL)) & (smaller != SHORT_ZERO)
                    subnormal = u32(subnormal | u32(low))
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
            if largest >= infinity:  # a result is Inf or NaN: find the flags of such results
                for i in range(target.size):
                    flag16 = _special_flags(u16(raised[i]), x[i], y[i], target[i], infinity, quiet, divides)
                    raised[i] = flag16
                    target[i] = quiet if u16(target[i] & SHORT_MAGNITUDE) > infinity else target[i]

    return kernel(binary)


@scalar
def _special_flags(flags: Any, a: Any, b: Any, code: Any, infinity: Any, quiet: Any, divides: bool) -> Any:
    """Return the flags of a result as uint16, from uint16 codes of the operands a and b and `code` of the result.

    flags: returned unchanged if the result is finite; not used for Inf and NaN. infinity, quiet: codes of Inf and of
    the quiet NaN. divides: True for quotients, which raise DIVIDE_BY_ZERO for a finite a and b = 0.
    """
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
    """Return the kernel (a, codes) -> None that writes the square roots of codes a to `codes`; fmt: FP16 or BF16.

    a, codes: 1-D uint16 arrays that share no memory.
    """
    load, store = load_store(fmt)

    def sqrt(a: Any, codes: Any) -> None:
        for i in range(codes.size):
            codes[i] = store(f32(np.sqrt(load(a[i]))))

    return kernel(sqrt)


@cache
def flagged_sqrt_kernel(fmt: Format) -> Any:
    """Return the kernel (a, codes, flags) -> None that writes square roots and their flags; fmt: FP16 or BF16.

    a, codes: 1-D uint16 arrays of codes that share no memory. flags: uint8, bits of `fp.Flags`.
    """
    load, store = load_store(fmt)
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
