"""Vectorised kernels over rows of AMD's units: the fast row of cut_product.py, and the exact one of step_product.py.

They compute sixteen columns at a time. Intermediate results stay in registers, and roundings are part of the
instructions. Measured: docs/performance.md. The processor must have AVX-512 (`has_avx512`). The loops of cut_product.py
and step_rows.py are the reference. `builder` is always llvmlite's IRBuilder.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from fpsim.products.kernels.panel import NO_TERM, PANEL_COLUMNS
from fpsim.products.kernels.row_vectors import EXPONENT, FLOAT_BIAS, PLACES, numbers_in
from fpsim.products.kernels.step_rows import CUT_BITS, SUM_BITS
from fpsim.runtime import vectors as v

PART = v.SIZE  # columns whose exponents are one vector of bytes
GROUPS = PART // v.WIDTH
CUT, BELOW_CUT = int(CUT_BITS), int(SUM_BITS - CUT_BITS)  # fraction bits of a product, and the others of their sum
LOW_BITS = 12  # of an integer sum, that one float32 holds together with the bits below it
HALF = 1 << (PLACES - 1)  # the first bit of a mantissa
FULL = (FLOAT_BIAS + PLACES) << PLACES | HALF  # 1.5 * 2**23: integers have no fraction beside it


def _shifted(places: int) -> int:
    """Return the int32 that, added to the bits of a float32 modulo 2^32, multiplies the float32 by 2**places."""
    return int(np.uint32(places << PLACES & 0xFFFFFFFF).view(np.int32))


def _cut_sum(builder: Any, a: Any, b: Any, terms: range, power: Any) -> Any:
    """Emit and return int32 sums, for 16 columns, of a[k] * b[k] * power truncated to integers, over k in `terms`.

    a, b: addresses of a row of a and of b's terms, float32. power: a vector of 16 float32.
    """
    total = None
    for k in terms:
        x = v.everywhere(builder, v.load(builder, a, 4 * k, v.SINGLE), v.FLOATS)
        product = builder.fmul(x, v.load(builder, b, 4 * PANEL_COLUMNS * k, v.FLOATS))
        cut = builder.fptosi(builder.fmul(product, power), v.INTS)
        total = cut if total is None else builder.add(total, cut)
    return total


def _largest(builder: Any, ea: Any, eb: Any, terms: range) -> Any:
    """Emit and return the largest exponents of the products of `terms` for PART (64) columns, a vector of int8.

    They are at least NO_TERM, which stands for columns without products. ea, eb: addresses of the int8 exponents of a
    row of a and of b's terms.
    """
    largest = v.constant(int(NO_TERM), v.BYTES)
    for k in terms:
        mine = v.everywhere(builder, v.load(builder, ea, k, v.BYTE), v.BYTES)
        largest = v.larger(builder, largest, builder.add(mine, v.load(builder, eb, PANEL_COLUMNS * k, v.BYTES)))
    return largest


def _rounded_join(builder: Any, whole: Any, rest: Any) -> Any:
    """Emit and return whole + rest / 2**BELOW_CUT as float32, first rounded down to 32 bits, then to nearest even.

    BELOW_CUT is 8. whole: vector of int32. rest: vector of int32, of which the lowest 8 bits are read as a nonnegative
    number.
    """
    low_mask, rest_mask = (
        v.constant((1 << (LOW_BITS + BELOW_CUT)) - 1, v.INTS),
        v.constant((1 << BELOW_CUT) - 1, v.INTS),
    )
    low = builder.shl(whole, v.constant(BELOW_CUT, v.INTS))
    low = builder.or_(builder.and_(low, builder.not_(rest_mask)), builder.and_(rest, rest_mask))
    low = builder.sitofp(builder.and_(low, low_mask), v.FLOATS)
    high = builder.sitofp(builder.and_(whole, v.constant(-1 << LOW_BITS, v.INTS)), v.FLOATS)
    unit = v.constant(2.0**-BELOW_CUT, v.FLOATS)
    # a number in the binade of the sum, in units of `rest`: its last place is 31 binades below that of the sum
    near = builder.bitcast(v.rounded(builder, "vfmadd", v.TO_ZERO, low, unit, high), v.INTS)
    place = builder.or_(builder.and_(near, v.constant(EXPONENT, v.INTS)), v.constant(HALF, v.INTS))
    place = builder.bitcast(v.larger(builder, place, v.constant(FULL, v.INTS)), v.FLOATS)
    cut = builder.fsub(v.rounded(builder, "add", v.DOWN, low, place), place)
    return v.call(builder, "llvm.fma.v16f32", v.FLOATS, cut, unit, high)


@cache
def vector_cut_rows(terms: int, halves: int) -> Any:
    """Return the intrinsic (a, ea, b, eb, c, (first, stop, base, parts)) -> None that adds products to rows of c.

    Per column it truncates an instruction's products to 24 bits below their largest exponent and adds them up (even and
    odd ones apart if halves is 2, then both sums). Then it adds the sum to c: both are aligned to the larger exponent
    and rounded down, and their sum is rounded down to 32 bits, then to nearest even. terms: number
    of terms of an instruction.

    a, ea: (rows, terms) float32 and int8. b, eb: (terms, PANEL_COLUMNS) of these dtypes. c: (rows, PANEL_COLUMNS)
    float32, of which rows first .. stop - 1 (int64) change. base: int32, the exponent of a product minus the int8
    exponents of its factors. parts: int64, number of blocks of PART (64) columns.
    """
    size = terms // halves

    def rows(_typing: Any, a: Any, ea: Any, b: Any, eb: Any, c: Any, place: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, ea, b, eb, c = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(5))
            first, stop, base, parts = numbers_in(builder, args[5])

            def row(i: Any) -> None:
                r = builder.add(first, i)
                of_row = v.row_at(builder, a, r, 4 * terms), v.row_at(builder, ea, r, terms)
                of_c = v.row_at(builder, c, r, 4 * PANEL_COLUMNS)
                v.over_range(builder, parts, lambda part: part_of_columns(*of_row, of_c, part))

            def part_of_columns(a: Any, ea: Any, c: Any, i: Any) -> None:
                part = builder.mul(i, v.LONG(PART))
                words = builder.mul(part, v.LONG(4))
                eb_part, b_part, c_part = builder.gep(eb, [part]), builder.gep(b, [words]), builder.gep(c, [words])
                bytes_base = builder.trunc(builder.add(base, v.WORD(FLOAT_BIAS)), v.BYTE)
                biased = v.everywhere(builder, bytes_base, v.BYTES)
                halves_of = [range(first, first + size) for first in range(0, terms, size)]
                largest = [builder.add(_largest(builder, ea, eb_part, some), biased) for some in halves_of]
                none = builder.add(base, v.WORD(FLOAT_BIAS + int(NO_TERM)))
                none = v.everywhere(builder, builder.shl(none, v.WORD(PLACES)), v.INTS)
                for g in range(GROUPS):
                    at = v.LONG(g * v.SIZE)
                    exponents = [_in_words(builder, of_half, g) for of_half in largest]
                    sums = [
                        _cut_sum(builder, a, builder.gep(b_part, [at]), some, _power(builder, exponent))
                        for some, exponent in zip(halves_of, exponents, strict=True)
                    ]
                    top, total = _joined_halves(builder, exponents, sums)
                    _join(builder, builder.gep(c_part, [at]), top, total, none, halves == 2)

            v.over_range(builder, builder.sub(stop, first), row)
            return context.get_dummy_value()

        return types.void(a, ea, b, eb, c, place), build

    return intrinsic(rows)


def _in_words(builder: Any, biased: Any, g: int) -> Any:
    """Emit and return the biased exponents of column group g (16 columns) as exponent fields of float32, int32.

    biased: vector of int8 exponents of PART (64) columns.
    """
    words = builder.zext(v.lanes_of(builder, biased, g * v.WIDTH, v.WIDTH), v.INTS)
    return builder.shl(words, v.constant(PLACES, v.INTS))


def _power(builder: Any, exponent: Any) -> Any:
    """Emit and return 2**(24 - exponent) as a vector of float32; exponent: float32 exponent fields, int32."""
    return builder.bitcast(builder.sub(v.constant(_shifted(2 * FLOAT_BIAS + CUT), v.INTS), exponent), v.FLOATS)


def _binades(builder: Any, above: Any, below: Any) -> Any:
    """Emit and return the difference of two float32 exponent fields, above - below, as a number of binades.

    above, below: vectors of int32. The result is a vector of int32.
    """
    return builder.lshr(builder.sub(above, below), v.constant(PLACES, v.INTS))


def _joined_halves(builder: Any, exponents: list[Any], sums: list[Any]) -> tuple[Any, Any]:
    """Emit the addition of sums of even and of odd products, and return (the larger exponent, the sum).

    exponents: vectors of float32 exponent fields, one for each sum. sums: one or two int32 vectors; two are first
    rounded down to units of the larger exponent.
    """
    if len(sums) == 1:
        return exponents[0], sums[0]
    top = v.larger(builder, *exponents)
    cut = [
        v.shifted_down(builder, total, _binades(builder, top, exponent))
        for exponent, total in zip(exponents, sums, strict=True)
    ]
    return top, builder.add(*cut)


def _join(builder: Any, at: Any, exponent: Any, total: Any, none: Any, drops: bool) -> None:
    """Emit the addition of sums of products to 16 float32 accumulators at address `at`, in place.

    With `top` the larger exponent of accumulator and products, the products' sum is rounded down to units of 2**(top -
    32) and the accumulator to 2**(top - 24); the sum of both is rounded down to 32 bits, then to nearest even (the same
    as step_rows._join). exponent: largest exponents of the products, as float32 exponent fields. total: int32 sums of
    the products in units of 2**(that exponent - 24). none: the field that marks columns without products. drops: an
    accumulator with an exponent below top - 25 counts as 0.
    """
    bits = v.load(builder, at, 0, v.INTS)
    old = builder.bitcast(bits, v.FLOATS)
    field = builder.and_(bits, v.constant(EXPONENT, v.INTS))
    of_old = v.larger(builder, field, v.constant(1 << PLACES, v.INTS))
    top = v.larger(builder, of_old, exponent)
    power = _power(builder, top)
    mine = v.floor_of(builder, v.rounded(builder, "mul", v.DOWN, old, power))
    if drops:
        far = builder.icmp_signed("<", of_old, builder.sub(top, v.constant((CUT + 1) << PLACES, v.INTS)))
        mine = builder.select(far, v.constant(0, v.INTS), mine)
    places, eight = _binades(builder, top, exponent), v.constant(BELOW_CUT, v.INTS)
    whole = builder.add(v.shifted_down(builder, total, places), mine)
    rest = v.shifted_up(builder, total, v.above(builder, eight, places))
    rest = v.shifted_down(builder, rest, v.above(builder, places, eight))
    new = builder.fmul(_rounded_join(builder, whole, rest), _inverse(builder, power))
    stays = builder.or_(
        builder.icmp_signed("==", exponent, none), builder.icmp_signed("==", field, v.constant(EXPONENT, v.INTS))
    )
    kept = builder.fadd(old, v.constant(0.0, v.FLOATS))  # +0 for -0
    v.store(builder, builder.select(stays, kept, new), at, 0)


def _inverse(builder: Any, power: Any) -> Any:
    """Emit and return 1 / power; power: vector of float32 powers of two."""
    bits = builder.sub(v.constant(_shifted(2 * FLOAT_BIAS), v.INTS), builder.bitcast(power, v.INTS))
    return builder.bitcast(bits, v.FLOATS)


@cache
def vector_exact_row(terms: int) -> Any:
    """Return the intrinsic (a, b, c, parts) -> None that adds `terms` products to each element of c with one rounding.

    float64 must hold the products' sum exactly. a: (terms,), b: (terms, PANEL_COLUMNS), c: (PANEL_COLUMNS,), float32,
    finite. parts: number of blocks of PART (64) columns that change.
    """

    def row(_typing: Any, a: Any, b: Any, c: Any, parts: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, b, c = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(3))
            few = v.vector(v.SINGLE, v.WIDTH // 2)
            factors = []
            for k in range(terms):
                x = builder.fpext(v.load(builder, a, 4 * k, v.SINGLE), v.DOUBLE)
                factors.append(v.everywhere(builder, x, v.DOUBLES))

            def part_of_columns(i: Any) -> None:
                part = builder.mul(i, v.LONG(4 * PART))
                b_part, c_part = builder.gep(b, [part]), builder.gep(c, [part])
                for first in range(0, 4 * PART, v.SIZE // 2):
                    total = None
                    for k, x in enumerate(factors):
                        y = builder.fpext(v.load(builder, b_part, 4 * PANEL_COLUMNS * k + first, few), v.DOUBLES)
                        if total is None:
                            total = builder.fmul(x, y)
                        else:
                            total = v.call(builder, "llvm.fma.v8f64", v.DOUBLES, x, y, total)
                    old = builder.fpext(v.load(builder, c_part, first, few), v.DOUBLES)
                    new = builder.fadd(v.odd_sum(builder, total, old), v.constant(0.0, v.DOUBLES))  # zero is +0
                    v.store(builder, builder.fptrunc(new, few), c_part, first)

            v.over_range(builder, args[3], part_of_columns)
            return context.get_dummy_value()

        return types.void(a, b, c, parts), build

    return intrinsic(row)
