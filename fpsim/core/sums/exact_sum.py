"""Scalar core: the exact sum of products, or of terms, rounded once. Integers only, so CPU and CUDA agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.core import exact_arithmetic
from fpsim.core.encode import EncodeLayout
from fpsim.core.number import UnpackLayout, infinite
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import DOWN
from fpsim.core.sums import long_sum, term
from fpsim.core.sums.sum_order import Function, Rows

i64, u64 = np.int64, np.uint64

PLUS_ZERO, MINUS_ZERO, NO_ZERO = i64(1), i64(2), i64(4)  # which terms a sum had: bits


class SumLayouts(NamedTuple):
    """The formats of an exact sum, and how it is rounded."""

    a: UnpackLayout
    b: UnpackLayout
    c: UnpackLayout
    result: EncodeLayout


def exact_sum(compiled: Callable[[Function], Function]) -> Function:
    """The code of c[i, j] plus the products of row i of a and column j of its rows of b.

    `(rows, i, j, products, digits, origin, layouts, random word, mode, rules)`: rows are of codes. products: there is
    an a, otherwise the terms are those of b. digits: what the sum is held in, of which the first counts units of
    2**origin. compiled: as for `fpsim.core.sums.sum_order`.
    """
    term_of, total, one_pack = compiled(term.term_of), compiled(long_sum.total), compiled(pack)
    add_term, add_product = compiled(long_sum.add_term), compiled(long_sum.add_product)
    specials_of, specials_of_product = compiled(term.specials_of), compiled(term.specials_of_product)
    clear = compiled(long_sum.clear)

    def exact(
        rows: Rows, i: int, j: int, products: Any, digits: Any, origin: Any, f: SumLayouts, word: Any, mode: int,
        rules: Any,
    ) -> Any:  # fmt: skip
        a, b, c, row = rows.a, rows.b, rows.c, i * rows.step
        a_bits, b_bits = i64(f.a.mantissa_bits), i64(f.b.mantissa_bits)
        clear(digits)
        met, zeros = term.NO_SPECIAL, i64(0)
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
        down = u64(mode == DOWN)
        sign = u64(zeros == MINUS_ZERO) if (zeros == MINUS_ZERO) | (zeros == PLUS_ZERO) else down
        value = total(digits, origin, sign)
        if met != term.NO_SPECIAL:
            plus, minus = (met & term.HAS_PLUS) != i64(0), (met & term.HAS_MINUS) != i64(0)
            value = infinite(u64(minus))
            if ((met & term.HAS_NAN) != i64(0)) | (plus & minus):
                value = exact_arithmetic.nan()
        code, _ = one_pack(value, NO_FLAG, word, f.result, mode, rules)
        return code

    return exact
