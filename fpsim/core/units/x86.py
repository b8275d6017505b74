"""Scalar core: dot-product instructions of x86: chains of fused multiply-adds that flush subnormals. Integers only.

The rules are stated in docs/matrix-units.md. Inputs below 2**-126, the accumulator included, are read as zeros of
their sign. A result is rounded to 24 bits with an unbounded exponent; below 2**-126 it becomes a zero of its sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.exact_arithmetic import add, flushed, fma, zero
from fpsim.core.number import FINITE, NAN, TOP, ZERO, Number, least_field, unpack
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.units.nvidia import Layouts, UnitLayout, operand_at, packed
from fpsim.runtime.compile import scalar

i64, u64 = np.int64, np.uint64

ROUNDS_UP = 25  # leading bits of a significand, which round up to a power of two where all of them are ones


@scalar
def _flushed_code(x: Number, f: Layouts, u: UnitLayout) -> Any:
    """Return the float32 code, a uint64, of the Number x rounded once to 24 bits, nearest even.

    A result that is below 2**-126 after rounding with an unbounded exponent becomes a zero of its sign. A NaN becomes
    the unit's NaN. f: Layouts, the formats of the instruction; u: UnitLayout, its constants.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    if x.kind >= u64(NAN):
        return u64(u.nan)
    least = least_field(f.c)
    all_ones = u64((1 << ROUNDS_UP) - 1)
    rounds_up = (u64(x.field + u64(1)) == least) & (u64(x.significand >> u64(TOP + 1 - ROUNDS_UP)) == all_ones)
    tiny = (x.kind == u64(FINITE)) & (x.field < least) & (not rounds_up)
    return packed(zero(x.negative) if tiny else x, f.result, NEAREST_EVEN, u)


@scalar
def _multiply_add(a: Any, b: Any, k: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the float32 code, a uint64, of a[k] * b[k] + c, rounded once, with tiny operands and results flushed.

    a, b: 1-D arrays of codes; elements beyond their end are +0. c: uint64 float32 code that is not subnormal. f:
    Layouts, the formats of the instruction; u: UnitLayout, its constants. Operands and results below 2**-126 become
    zeros.
    """
    least = least_field(f.c)
    x, y = flushed(operand_at(a, k, u.kept_a, f.a), least), flushed(operand_at(b, k, u.kept_b, f.b), least)
    total, _ = fma(x, y, unpack(c, f.c), NEAREST_EVEN)
    return _flushed_code(total, f, u)


@scalar
def _accumulator(c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return c, the uint64 code of the accumulator before an instruction; a subnormal becomes a zero of its sign.

    f: Layouts, the formats of the instruction; u: UnitLayout, its constants.
    """
    return _flushed_code(flushed(unpack(c, f.c), least_field(f.c)), f, u)


@scalar
def reversed_chain_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c after one fused multiply-add per product of an instruction, the last product first.

    Each one is rounded to nearest even; operands, c and results below 2**-126 become zeros of their sign.
    a, b: 1-D arrays of codes, a row of A and a column of B; products beyond their end are +0. start: index of the first
    product, int64. c: code of the accumulator; the result is the code of the new one, both uint64. f: Layouts, the
    formats; u: UnitLayout, constants of the instruction.
    """
    total = _accumulator(c, f, u)
    for i in range(u.terms - 1, -1, -1):
        total = _multiply_add(a, b, i64(start + i64(i)), total, f, u)
    return total


@scalar
def _sum(x: Any, y: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the float32 code of x + y, rounded to nearest even; a result below 2**-126 becomes a zero of its sign.

    x, y: float32 codes as uint64, as is the result. f: Layouts, the formats of the instruction; u: UnitLayout.
    """
    total, _ = add(unpack(x, f.c), unpack(y, f.c), NEAREST_EVEN)
    return _flushed_code(total, f, u)


@scalar
def two_chains_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c + (even + odd): chains of fused multiply-adds from +0 over the even and the odd products.

    All sums are rounded to nearest even; operands, c and results below 2**-126 become zeros of their sign.
    a, b: 1-D arrays of codes, a row of A and a column of B; the chains end at their end. start: index of the
    instruction's first product, int64. c: code of the accumulator; the result is the code of the new one, both uint64.
    f: Layouts, the formats; u: UnitLayout, constants of the instruction.
    """
    even, odd = ZERO, ZERO
    stop = min(i64(start + u.terms), i64(a.size))
    for k in range(start, stop, 2):
        even = _multiply_add(a, b, i64(k), even, f, u)
    for k in range(i64(start + i64(1)), stop, 2):
        odd = _multiply_add(a, b, i64(k), odd, f, u)
    return _sum(_accumulator(c, f, u), _sum(even, odd, f, u), f, u)
