"""Scalar core: the exact sum of products, or of numbers, rounded once. Integers only, so CPU and CUDA agree."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.exact_arithmetic import nan
from fpsim.core.number import UnpackLayout, infinite, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import DOWN
from fpsim.core.sums.long_sum import add_product, add_term, clear, total
from fpsim.core.sums.sum_order import Rows
from fpsim.core.sums.term import HAS_MINUS, HAS_NAN, HAS_PLUS, NO_SPECIAL, specials_of, specials_of_product, term_of
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar

i64, u64 = np.int64, np.uint64

PLUS_ZERO, MINUS_ZERO, NO_ZERO = i64(1), i64(2), i64(4)  # flags, as bits, of the zeros and other terms that a sum has


@reloadable
class SumLayouts(NamedTuple):
    """The layouts of an exact sum's operands and result, and how the sum is rounded.

    Attributes:
      a, b: UnpackLayouts of the factors.
      c: UnpackLayout of the numbers that sums start from.
      result: EncodeLayout of the sums.
      mode: a Rounding.
      rules: bits that `pack` takes (core/pack.py), which decide flags only.
    """

    a: UnpackLayout
    b: UnpackLayout
    c: UnpackLayout
    result: EncodeLayout
    mode: Any
    rules: Any


@scalar
def sum_layouts(words: Any, mode: Any, rules: Any) -> SumLayouts:
    """Return the SumLayouts made of `words`, four arrays: the layout fields of a, b, c and the result.

    mode: a Rounding. rules: bits that `pack` takes (core/pack.py), which decide flags only.
    """
    a, b, c, result = words
    return SumLayouts(unpack_fields(a), unpack_fields(b), unpack_fields(c), encode_fields(result), mode, rules)


@scalar
def exact_sum(rows: Rows, i: int, j: int, products: Any, digits: Any, origin: Any, f: SumLayouts, word: Any) -> Any:
    """Return the code, a uint64, of c[i, j] plus the dot product of row i of a and column j of b, rounded once.

    rows: the operands, arrays of codes: a (M, K), b (K, N) or (M * K, N), c (M, N) or empty. products: False to sum
    column j of b instead of products. digits: int64 scratch array, which is overwritten, for the exact sum; its first
    digit counts units of 2**origin. f: SumLayouts, the formats and the rounding mode. word: 32-bit random number for
    stochastic rounding.
    A sum with NaN, or with Inf of both signs, is NaN; one with Inf of one sign is that Inf. A zero sum is -0 if all
    terms are -0, or in mode DOWN if they are not all +0.
    """
    a, b, c, row = rows.a, rows.b, rows.c, i * rows.step
    a_bits, b_bits = i64(f.a.mantissa_bits), i64(f.b.mantissa_bits)
    clear(digits)
    met, zeros = NO_SPECIAL, i64(0)
    for k in range(a.shape[1]):
        y = term_of(u64(b[row + k, j]), f.b)
        if products:
            x = term_of(u64(a[i, k]), f.a)
            met = i64(met | specials_of_product(x, y))
            is_zero = (x.significand == i64(0)) | (y.significand == i64(0))
            negative = i64(x.negative ^ y.negative)
            add_product(digits, origin, x, y, i64(a_bits + b_bits))
        else:
            met = i64(met | specials_of(y))
            is_zero, negative = y.significand == i64(0), y.negative
            add_term(digits, origin, y, b_bits)
        zero = MINUS_ZERO if negative != i64(0) else PLUS_ZERO
        zeros = i64(zeros | (zero if is_zero else NO_ZERO))
    if c.size > 0:
        z = term_of(u64(c[i, j]), f.c)
        met = i64(met | specials_of(z))
        add_term(digits, origin, z, i64(f.c.mantissa_bits))
        zero = MINUS_ZERO if z.negative != i64(0) else PLUS_ZERO
        zeros = i64(zeros | (zero if z.significand == i64(0) else NO_ZERO))
    down = u64(f.mode == DOWN)
    sign = u64(zeros == MINUS_ZERO) if (zeros == MINUS_ZERO) | (zeros == PLUS_ZERO) else down
    value = total(digits, origin, sign)
    if met != NO_SPECIAL:
        plus, minus = (met & HAS_PLUS) != i64(0), (met & HAS_MINUS) != i64(0)
        value = infinite(u64(minus))
        if ((met & HAS_NAN) != i64(0)) | (plus & minus):
            value = nan()
    code, _ = pack(value, NO_FLAG, word, f.result, f.mode, f.rules)
    return code
