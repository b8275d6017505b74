"""A kernel that adds one instruction's products to a row of results by `Rule.FUSED`, for FP8 with 13 fraction bits.

A sum between 2**23 and 2**24 units of the last kept bit rounds what is added to it to that bit. A fused multiply-add
toward zero therefore truncates a product and adds it at once, as long as all products have the sign of the sum.
Positive and negative products go to separate sums, from two copies of the panel (the decoded terms of b): one has zeros
for negative values, the other for positive ones. The sum of both is exactly the instruction's result. Measured:
docs/performance.md.

The processor must have AVX-512 (`has_avx512`); fused_row.py is the reference. `builder` is always llvmlite's IRBuilder.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from fpsim.products.kernels.fused_row import RowFacts, RowLoops, RowPlace, exponents_alone
from fpsim.products.kernels.panel import NO_TERM, ZERO_EXPONENT
from fpsim.products.kernels.panel_vectors import decoder_of, fills_of
from fpsim.products.kernels.row_vectors import (
    FLOAT_BIAS,
    GROUPS,
    PLACES,
    SIGN,
    VECTOR_COLUMNS,
    accumulator_exponents,
    larger_so_far,
    largest_of,
    nearest_half,
    numbers_in,
    panel_of,
    put_results,
)
from fpsim.runtime import vectors as v
from fpsim.runtime.compile import scalar

i8, i32, i64, f32 = np.int8, np.int32, np.int64, np.float32

LARGE = 100 + FLOAT_BIAS << PLACES  # an accumulator from 2**100 on is beyond all products, and near the end of float32


def _numbers(builder: Any, facts: Any) -> tuple[Any, Any, Any]:
    """Emit and return three int32 vectors of 16 equal elements, which follow from facts on a unit.

    facts: LLVM values (fraction bits, exponent of a zero term, mask of the result's kept bits, smallest exponent of the
    accumulator's format). The vectors are: the exponent of a zero term, at least -127; 23 - fraction bits, shifted to
    float32's exponent field; and the exponent field of the smallest exponent.
    """
    fraction_bits, floor, _kept, least = facts
    places = builder.shl(builder.sub(v.WORD(PLACES), fraction_bits), v.WORD(PLACES))
    least = builder.shl(builder.add(least, v.WORD(FLOAT_BIAS)), v.WORD(PLACES))
    floor, places, least = (v.everywhere(builder, x, v.INTS) for x in (floor, places, least))
    return v.larger(builder, floor, v.constant(-FLOAT_BIAS, v.INTS)), places, least


def _sums_at_start(builder: Any, bits: Any, top: Any, numbers: Any, half: bool) -> tuple[Any, Any, Any]:
    """Emit and return (positive sum, negative sum, mask of columns without additions), the start of 16 columns.

    A sum starts at plus or minus 2**23 units of the last kept bit, plus the accumulator if that has the sum's sign.
    bits: float32 patterns of the accumulators, int32. top: the products' largest exponents, int32. numbers: int32
    vectors: the exponent of a zero term, at least -127; 23 - fraction bits, shifted to float32's exponent field; and
    the exponent field of the accumulator format's smallest exponent. half: the accumulators are FP16, held as float32.
    """
    floor, places, least = numbers
    nothing = v.constant(0, v.INTS)
    shift = v.constant(PLACES, v.INTS)
    idle = builder.icmp_signed("<=", top, v.constant(NO_TERM, v.INTS))
    largest = builder.shl(builder.add(v.larger(builder, top, floor), v.constant(FLOAT_BIAS, v.INTS)), shift)
    exponent = accumulator_exponents(builder, bits, least, half)
    idle = builder.or_(idle, builder.icmp_signed(">=", exponent, v.constant(LARGE, v.INTS)))
    unit = builder.add(v.larger(builder, largest, exponent), places)
    above, below = v.larger(builder, bits, nothing), v.smaller(builder, bits, nothing)
    starts = (unit, above), (builder.xor(unit, v.constant(SIGN, v.INTS)), below)
    sums = [v.rounded(builder, "add", v.TO_ZERO, *(builder.bitcast(x, v.FLOATS) for x in start)) for start in starts]
    return sums[0], sums[1], idle


def _result(builder: Any, positive: Any, negative: Any, kept: Any, half: bool) -> Any:
    """Emit the results of 16 columns from their positive and negative sums, and return them as float32 patterns.

    positive, negative: vectors of float32. kept: mask of the result's kept bits. half: round to FP16.
    """
    total = builder.fadd(positive, negative)
    if half:
        total = builder.fadd(nearest_half(builder, total), v.constant(0.0, v.FLOATS))  # +0 for -0
    return builder.and_(builder.bitcast(total, v.INTS), kept)


@cache
def _step_of(terms: int, half: bool, count: int) -> Any:
    """Return the intrinsic that adds one instruction's products to one row of a tile of results, or to two rows.

    Its arguments are (a, ea, b, eb, c, e, (r, next, after, last, width), (fraction_bits, floor, kept, least)). It adds
    the products of rows r and next of a to the same rows of c. It replaces e by the largest exponents of the products
    of rows after and last, which may be the same row. With count 1, it changes only row r of c, and not e.

    Args:
      terms: products of one instruction.
      half: the result is FP16, held as float32.
      count: rows that are computed, 1 or 2.

    Arguments of the intrinsic:
      a, ea: (rows, terms) float32 values and int8 exponents.
      b: (terms, 2, VECTOR_COLUMNS) float32, positive values with zeros for others, then negative ones.
      eb: (terms, VECTOR_COLUMNS) int8 exponents of b.
      c: (rows, VECTOR_COLUMNS) float32 patterns as int32, changed in place.
      e: (2, VECTOR_COLUMNS) int8, the largest exponents of the products of rows r and next.
      width: number of columns that are not padding.
      fraction_bits: bits kept below the largest exponent. floor: exponent of a zero term.
      kept: mask of the result's kept bits. least: smallest exponent of the accumulator's format.
    """
    part = GROUPS * v.SIZE  # bytes from the positive values of a term to the negative ones

    def row(_typing: Any, a: Any, ea: Any, b: Any, eb: Any, c: Any, e: Any, places: Any, facts: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, ea, b, eb, c, e = (
                v.start_of(context, builder, kind, arg) for kind, arg in zip(sig.args[:6], args[:6], strict=True)
            )
            (*places, width), facts = numbers_in(builder, args[6]), numbers_in(builder, args[7])
            rows = [
                [v.row_at(builder, start, place, size) for place in pair[:count]]
                for start, pair, size in ((a, places[:2], 4 * terms), (ea, places[2:], terms), (c, places[:2], part))
            ]
            few = builder.icmp_signed("<=", width, v.LONG(2 * v.WIDTH))
            with builder.if_else(few) as (then, otherwise):
                with then:
                    _rows(builder, rows, (b, eb, e), facts, 2)
                with otherwise:
                    _rows(builder, rows, (b, eb, e), facts, GROUPS)
            return context.get_dummy_value()

        return types.void(a, ea, b, eb, c, e, places, facts), build

    def _rows(builder: Any, rows: Any, of_b: Any, facts: Any, groups: int) -> None:
        """Emit the additions of one instruction to one or two rows, for the first 16 * `groups` columns.

        rows: three lists of addresses with an entry for each row: the row of a; the exponents (in ea) of the row that
        is computed after it; the row of c. of_b: addresses of b, of eb, and of e. facts: LLVM values (fraction bits,
        exponent of a zero term, mask of the result's kept bits, smallest exponent of the accumulator's format).
        """
        (of_a, coming, of_c), (b, eb, e) = rows, of_b
        kept, numbers = v.everywhere(builder, facts[2], v.INTS), _numbers(builder, facts)
        sums, idle = [], []
        for i in range(count):
            top = v.load(builder, e, i * v.SIZE, v.BYTES)
            for g in range(groups):
                tops = builder.sext(v.lanes_of(builder, top, g * v.WIDTH, v.WIDTH), v.INTS)
                bits = v.load(builder, of_c[i], g * v.SIZE, v.INTS)
                *starts, mask = _sums_at_start(builder, bits, tops, numbers, half)
                sums += starts
                idle.append(mask)
        signs = [_signs(builder, row) for row in of_a]

        def add_terms(exchanged: int) -> Any:
            """Return the function (k, values) -> values that adds the products of term k to the sums.

            values: a list of vectors: for each row, the positive and the negative sum of each group of 16 columns;
            then, if two rows are computed, the largest exponents so far of the next two rows. exchanged: 1 if a's
            values in the two rows have different signs, 0 if they have the same sign.
            """

            def add(k: Any, values: list[Any]) -> list[Any]:
                so_far, largest = values[: len(sums)], values[len(sums) :]
                place = builder.mul(k, v.LONG(4))
                xs = [v.everywhere(builder, v.load(builder, row, place, v.SINGLE), v.FLOATS) for row in of_a]
                # a negative value of the first row exchanges the parts of the panel
                turned = builder.mul(builder.and_(builder.lshr(signs[0], k), v.LONG(1)), v.LONG(part))
                positive = builder.add(builder.mul(k, v.LONG(2 * part)), turned)
                negative = builder.sub(builder.add(builder.mul(k, v.LONG(2 * part)), v.LONG(part)), turned)
                new = list(so_far)
                for g in range(groups):
                    for side, start in enumerate((positive, negative)):
                        y = v.load(builder, b, builder.add(start, v.LONG(g * v.SIZE)), v.FLOATS)
                        for i, x in enumerate(xs):
                            at = 2 * (i * groups + g) + (side ^ (i & exchanged))
                            new[at] = v.rounded(builder, "vfmadd", v.TO_ZERO, x, y, so_far[at])
                return new + (larger_so_far(builder, coming, eb, k, largest) if largest else [])

            return add

        if count == 1:
            sums = v.repeated(builder, terms, sums, add_terms(0))
        else:
            lowest = v.constant(2 * ZERO_EXPONENT, v.BYTES)
            differ = builder.xor(*signs)
            same = builder.xor(differ, v.LONG((1 << terms) - 1))
            values = v.over_bits(builder, same, [*sums, lowest, lowest], add_terms(0))
            *sums, first, second = v.over_bits(builder, differ, values, add_terms(1))
            v.store(builder, first, e, 0)
            v.store(builder, second, e, v.SIZE)
        pairs = zip(sums[::2], sums[1::2], strict=True)
        results = [_result(builder, positive, negative, kept, half) for positive, negative in pairs]
        put_results(builder, results, [(row, g) for row in of_c for g in range(groups)], idle, kept)

    def _signs(builder: Any, row: Any) -> Any:
        """Emit and return an int64 whose bit k is set if value k of a row of a is negative.

        row: address of the row's float32 values.
        """
        values = v.load(builder, row, 0, v.vector(v.WORD, terms))
        negative = builder.icmp_signed("<", values, v.constant(0, values.type))
        return builder.zext(builder.bitcast(negative, v.integer(terms)), v.LONG)

    return intrinsic(row)


@cache
def chained_row(terms: int, half: bool) -> RowLoops:
    """Return the kernels over a row for units of `Rule.FUSED` whose sums fit a float32, for AVX-512.

    terms: products of one instruction. half: the result is FP16, held as float32. For these units `rows_of` returns
    "chained".
    """
    two_rows, one_row = _step_of(terms, half, 2), _step_of(terms, half, 1)
    largest_of_two, largest_of_one = largest_of(terms, 2), largest_of(terms, 1)

    def step(a: Any, ea: Any, b: Any, eb: Any, c: Any, _scale_b: Any, place: RowPlace, u: RowFacts, e: Any) -> None:
        row, last, wide = i64(place.r), i64(place.rows - 1), i64(place.width)
        facts = u.fraction_bits, u.floor, u.kept, u.least
        if row < last:
            two_rows(a, ea, b, eb, c, e, (row, row + 1, min(row + 2, last), min(row + 3, last), wide), facts)
        else:
            one_row(a, ea, b, eb, c, e, (row, row, row, row, wide), facts)

    def begin(ea: Any, r: Any, rows: Any, eb: Any, e: Any) -> None:
        if r + 1 < rows:
            largest_of_two(ea, i64(r), i64(r + 1), eb, e)
        else:
            largest_of_one(ea, i64(r), i64(r), eb, e)

    return RowLoops(
        VECTOR_COLUMNS,
        2,
        panel_of(terms, True),
        decoder_of(terms),
        fills_of(terms, True),
        scalar(begin),
        scalar(step),
        exponents_alone,
    )
