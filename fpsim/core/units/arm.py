"""Scalar core: BFloat16 dot-product instructions of Arm processors, two products each. Integers only.

The rules are stated in docs/matrix-units.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.exact_arithmetic import add, flushed, multiply
from fpsim.core.number import Number, least_field, unpack
from fpsim.core.rounding import NEAREST_EVEN, ODD
from fpsim.core.units.nvidia import Layouts, UnitLayout, operand_at, packed_or_nan
from fpsim.runtime.compile import scalar

i64, u64 = np.int64, np.uint64


@scalar
def _odd(x: Number, f: Layouts, u: UnitLayout) -> Number:
    """Return the Number x rounded to odd in the result's format; a value below the normal range becomes zero.

    That zero has the sign of x, and the value is compared with the normal range before rounding. A NaN becomes the
    unit's NaN. f: Layouts, the formats of the instruction; u: UnitLayout, its constants.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    return unpack(packed_or_nan(flushed(x, least_field(f.c)), f.result, ODD, u), f.c)


@scalar
def odd_pair_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c + (first product + second product), with products and sums rounded to odd and flushed.

    Flushed: operands, products and sums below the accumulator's smallest normal value become zeros of their sign.
    a, b: 1-D arrays of codes, a row of A and a column of B; products beyond their end are +0. start: index of the first
    product, int64. c: code of the accumulator; the result is the code of the new one, both uint64. f: Layouts, the
    formats; u: UnitLayout, constants of the instruction.
    """
    k, least = i64(start + i64(1)), least_field(f.c)
    x, y = flushed(operand_at(a, start, u.kept_a, f.a), least), flushed(operand_at(b, start, u.kept_b, f.b), least)
    first, _ = multiply(x, y)
    second, _ = multiply(
        flushed(operand_at(a, k, u.kept_a, f.a), least), flushed(operand_at(b, k, u.kept_b, f.b), least)
    )
    pair, _ = add(_odd(first, f, u), _odd(second, f, u), ODD)
    total, _ = add(flushed(unpack(c, f.c), least), _odd(pair, f, u), ODD)
    return packed_or_nan(flushed(total, least), f.result, ODD, u)


@scalar
def fused_pair_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c + (first product + second product), two roundings to nearest even: of the pair, of the sum.

    a, b: 1-D arrays of codes, a row of A and a column of B; products beyond their end are +0. start: index of the first
    product, int64. c: code of the accumulator; the result is the code of the new one, both uint64. f: Layouts, the
    formats; u: UnitLayout, constants of the instruction.
    """
    k = i64(start + i64(1))
    first, _ = multiply(operand_at(a, start, u.kept_a, f.a), operand_at(b, start, u.kept_b, f.b))
    second, _ = multiply(operand_at(a, k, u.kept_a, f.a), operand_at(b, k, u.kept_b, f.b))
    pair, _ = add(first, second, NEAREST_EVEN)
    code = packed_or_nan(pair, f.result, NEAREST_EVEN, u)
    total, _ = add(unpack(c, f.c), unpack(code, f.c), NEAREST_EVEN)
    return packed_or_nan(total, f.result, NEAREST_EVEN, u)
