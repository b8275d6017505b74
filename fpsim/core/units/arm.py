"""Scalar core: BFloat16 dot-product instructions of Arm processors, two products each. Integers only.

The rules are stated in docs/matrix-units.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.exact_arithmetic import add, multiply, zero
from fpsim.core.number import FINITE, NAN, ZERO, Number, UnpackLayout, unpack
from fpsim.core.rounding import NEAREST_EVEN, ODD
from fpsim.core.units.nvidia import Layouts, UnitLayout, packed
from fpsim.runtime.compile import scalar

i64, u64 = np.int64, np.uint64


@scalar
def _operand(codes: Any, k: Any, kept: Any, f: UnpackLayout) -> Number:
    """Return element k of a row of codes as a number, +0 beyond its end; kept: mask of the code's bits that count."""
    return unpack(u64(u64(codes[k]) & u64(kept)), f) if k < i64(codes.size) else zero(ZERO)


@scalar
def _flushed(x: Number, f: Layouts) -> Number:
    """Return x, or a zero of its sign if it is below the smallest normal value of the accumulator."""
    least = u64(u64(f.c.rebias + f.c.mantissa_bits) + f.c.smallest_field)
    return zero(x.negative) if (x.kind == u64(FINITE)) & (x.field < least) else x


@scalar
def _odd(x: Number, f: Layouts, u: UnitLayout) -> Number:
    """Return x rounded to odd; a value below the normal range before rounding becomes a zero of its sign."""
    code = packed(_flushed(x, f), f.result, ODD, u)
    return unpack(u64(u.nan) if x.kind >= u64(NAN) else code, f.c)


@scalar
def odd_pair_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c + (first product + second product), with products and sums rounded to odd and flushed.

    a, b: codes of a row and a column; start: index of the first product.
    """
    first, _ = multiply(_flushed(_operand(a, start, u.kept_a, f.a), f), _flushed(_operand(b, start, u.kept_b, f.b), f))
    k = i64(start + i64(1))
    second, _ = multiply(_flushed(_operand(a, k, u.kept_a, f.a), f), _flushed(_operand(b, k, u.kept_b, f.b), f))
    pair, _ = add(_odd(first, f, u), _odd(second, f, u), ODD)
    total, _ = add(_flushed(unpack(c, f.c), f), _odd(pair, f, u), ODD)
    return u64(u.nan) if total.kind >= u64(NAN) else packed(_flushed(total, f), f.result, ODD, u)


@scalar
def fused_pair_step(a: Any, b: Any, start: Any, c: Any, f: Layouts, u: UnitLayout) -> Any:
    """Return the code of c + (first product + second product), two roundings to nearest even: of the pair, of the sum.

    a, b: codes of a row and a column; start: index of the first product.
    """
    k = i64(start + i64(1))
    first, _ = multiply(_operand(a, start, u.kept_a, f.a), _operand(b, start, u.kept_b, f.b))
    second, _ = multiply(_operand(a, k, u.kept_a, f.a), _operand(b, k, u.kept_b, f.b))
    pair, _ = add(first, second, NEAREST_EVEN)
    code = u64(u.nan) if pair.kind >= u64(NAN) else packed(pair, f.result, NEAREST_EVEN, u)
    total, _ = add(unpack(c, f.c), unpack(code, f.c), NEAREST_EVEN)
    return u64(u.nan) if total.kind >= u64(NAN) else packed(total, f.result, NEAREST_EVEN, u)
