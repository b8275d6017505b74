"""A kernel that adds one instruction's products to a row of results by `Rule.FUSED`, with the sums in registers.

It computes sixteen columns at a time. The sums and the powers of two that align products, which fused_row.py keeps in
memory between its loops, stay in vectors. Measured: docs/performance.md.

The processor must have AVX2 (`has_avx2`), whose registers hold half of the columns at a time. With AVX-512, integers
are converted to float32 by instructions that round toward zero; otherwise the bits that would be rounded are cleared
first. fused_row.py is the reference. `builder` is always llvmlite's IRBuilder.
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
    EXPONENT,
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

EIGHT = 8  # terms whose cut products an int32 holds
SHORT_GROUPS = 2  # of columns whose powers and sums fit the registers of AVX2
BELOW_SINGLE = 29  # bits of a float64's significand that a float32 has no place for


def _idle(builder: Any, tops: Any, exponent: Any, avx512: bool) -> Any:
    """Emit and return a mask of columns without additions: all products are 0, or the accumulator is Inf or NaN.

    tops: vector of the products' largest exponents, int32. exponent: exponent fields of the accumulators. avx512: True
    makes the mask a vector of bools; False makes it int32, whose sign bit is set for such columns.
    """
    if avx512:
        without = builder.icmp_signed("<=", tops, v.constant(NO_TERM, v.INTS))
        return builder.or_(without, builder.icmp_signed("==", exponent, v.constant(EXPONENT, v.INTS)))
    without = builder.sub(tops, v.constant(NO_TERM + 1, v.INTS))
    return builder.or_(without, builder.sub(v.constant(EXPONENT - 1, v.INTS), exponent))


def _in_doubles(builder: Any, sums: Any) -> list[Any]:
    """Emit the exact sum of int32 vectors of 16 columns; return a list of two vectors of eight float64.

    sums: a list of the vectors.
    """
    kind = v.vector(v.DOUBLE, EIGHT)
    halves = []
    for first in (0, EIGHT):
        parts = [builder.sitofp(v.lanes_of(builder, x, first, EIGHT), kind) for x in sums]
        whole = parts[0]
        for part in parts[1:]:
            whole = builder.fadd(whole, part)
        halves.append(whole)
    return halves


def _whole_to_zero(builder: Any, x: Any) -> Any:
    """Emit and return int32 converted to float32, rounded toward zero, without AVX-512.

    x: a vector of 16 int32.
    """
    nothing = v.constant(0, v.INTS)
    magnitude = v.larger(builder, x, builder.sub(nothing, x))
    # without the bit below the 24 that are kept, rounding to nearest is a cut
    seen = builder.lshr(magnitude, v.constant(PLACES + 1, v.INTS))
    near = builder.bitcast(builder.sitofp(builder.and_(magnitude, builder.not_(seen)), v.FLOATS), v.INTS)
    return builder.bitcast(builder.or_(near, builder.and_(x, v.constant(SIGN, v.INTS))), v.FLOATS)


def _single_to_zero(builder: Any, x: Any) -> Any:
    """Emit and return eight float64 converted to float32, rounded toward zero, without AVX-512.

    x: a vector of eight float64 within the range of normal float32.
    """
    bits = builder.and_(builder.bitcast(x, v.LONGS), v.constant(-1 << BELOW_SINGLE, v.LONGS))
    return builder.fptrunc(builder.bitcast(bits, x.type), v.vector(v.SINGLE, EIGHT))


def _cut_sum(builder: Any, sums: Any, half: bool, avx512: bool) -> Any:
    """Emit and return the sum of int32 vectors as 16 float32, rounded toward zero.

    sums: a list of one int32 vector, or of several, which are added in float64. half: set the last bit to 1 where bits
    were lost (rounding to odd), as later rounding to FP16 requires. avx512: use AVX-512, else AVX2.
    """
    if len(sums) == 1:
        near = v.whole_to_zero(builder, sums[0]) if avx512 else _whole_to_zero(builder, sums[0])
        # the largest one that is not above an integer fits an integer
        lost = builder.icmp_signed("!=", builder.fptosi(near, v.INTS), sums[0]) if half else None
    else:
        wholes = _in_doubles(builder, sums)
        parts = [v.single_to_zero(builder, x) if avx512 else _single_to_zero(builder, x) for x in wholes]
        near = v.joined(builder, *parts)
        masks = [builder.fcmp_ordered("!=", builder.fpext(x, y.type), y) for x, y in zip(parts, wholes, strict=True)]
        lost = v.joined(builder, *masks) if half else None
    if not half:
        return near
    odd = builder.or_(builder.bitcast(near, v.INTS), v.constant(1, v.INTS))
    return builder.select(lost, builder.bitcast(odd, v.FLOATS), near)


@cache
def _step_of(terms: int, joined: bool, half: bool, scaled: bool, avx512: bool) -> Any:
    """Return the intrinsic that adds one instruction's products to a row of a tile of results.

    Its arguments are (a, ea, b, eb, c, e, scales, (r, after, width, scale, fraction_bits, floor, kept, base, least)).
    It adds to row r of c the products of row r of a, and replaces e by the largest exponents of the products of row
    `after`.

    Args:
      terms: products of one instruction.
      joined: the sum of all products may overflow an int32, so they are added by eights in int32, and these sums
        exactly in float64.
      half: the result is FP16, held as float32.
      scaled: the unit multiplies block scales.
      avx512: use AVX-512, else AVX2.

    Arguments of the intrinsic:
      a, ea: (rows, terms) float32 values and int8 exponents. b, eb: (terms, VECTOR_COLUMNS) of these dtypes.
      c: (rows, VECTOR_COLUMNS) float32 patterns as int32, changed in place.
      e: (VECTOR_COLUMNS,) int8, the largest exponents of row r's products.
      scale, scales: exponents of the scale of row r, and of the columns' scales, (VECTOR_COLUMNS,); read if `scaled`.
      width: number of columns that are not padding.
      fraction_bits: bits kept below the largest exponent. floor: exponent of a zero term.
      kept: mask of the result's kept bits. base: exponent of a product minus the int8 exponents of its factors.
      least: smallest exponent of the accumulator's format.
    """

    def row(_typing: Any, a: Any, ea: Any, b: Any, eb: Any, c: Any, e: Any, scales: Any, numbers: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, ea, b, eb, c, e, scales = (
                v.start_of(context, builder, kind, arg) for kind, arg in zip(sig.args[:7], args[:7], strict=True)
            )
            r, after, width, *facts = numbers_in(builder, args[7])
            of_row = v.row_at(builder, a, r, 4 * terms), v.row_at(builder, ea, after, terms)
            of_c = v.row_at(builder, c, r, GROUPS * v.SIZE)
            places = *of_row, b, eb, of_c, e, scales
            top = v.load(builder, e, 0, v.BYTES)
            few = builder.icmp_signed("<=", width, v.LONG(SHORT_GROUPS * v.WIDTH))
            if avx512:
                with builder.if_else(few) as (then, otherwise):
                    with then:
                        _row(builder, places, facts, top, range(SHORT_GROUPS))
                    with otherwise:
                        _row(builder, places, facts, top, range(GROUPS))
            else:
                _row(builder, places, facts, top, range(SHORT_GROUPS))
                with builder.if_then(builder.not_(few)):
                    _row(builder, places, facts, top, range(SHORT_GROUPS, GROUPS))
            return context.get_dummy_value()

        return types.void(a, ea, b, eb, c, e, scales, numbers), build

    def _powers(builder: Any, places: Any, numbers: Any, top: Any, groups: range) -> list[Any]:
        """Emit, for each group of 16 columns in `groups`, the powers of two that align products and accumulator.

        Return a list of (accumulator bits, 2**(F - M), 2**(F - M) times both scales, mask of columns without
        additions). F: fraction bits. M: the largest exponent of products and accumulator. places: addresses, of which
        those of this row of c (the fifth) and of the exponents of the columns' scales (the last) are read. numbers:
        (exponent of this row's scale, F, exponent of a zero term, a mask that is not read, exponent of a product minus
        the int8 exponents of its factors, smallest exponent of the accumulator's format). top: int8 vector, for each
        column the largest exponent of this row's products.
        """
        *_, c, _, scales = places
        scale, fraction_bits, floor, _, base, least = numbers
        shift = v.constant(PLACES, v.INTS)
        bias = v.constant(FLOAT_BIAS, v.INTS)
        lowest = v.larger(builder, v.everywhere(builder, floor, v.INTS), v.constant(-FLOAT_BIAS, v.INTS))
        lowest = builder.shl(builder.add(lowest, bias), shift)
        least = builder.shl(builder.add(v.everywhere(builder, least, v.INTS), bias), shift)
        base = builder.add(v.everywhere(builder, base, v.INTS), bias)
        highest = builder.add(fraction_bits, v.WORD(2 * FLOAT_BIAS))
        highest = builder.shl(v.everywhere(builder, highest, v.INTS), shift)
        powers = []
        for g in groups:
            tops = builder.sext(v.lanes_of(builder, top, g * v.WIDTH, v.WIDTH), v.INTS)
            bits = v.load(builder, c, g * v.SIZE, v.INTS)
            exponent = accumulator_exponents(builder, bits, least, half)
            idle = _idle(builder, tops, exponent, avx512)
            tops = builder.add(tops, base)
            if scaled:
                both = builder.add(v.everywhere(builder, scale, v.INTS), v.load(builder, scales, g * v.SIZE, v.INTS))
                tops = builder.add(tops, both)
            largest = v.larger(builder, v.larger(builder, builder.shl(tops, shift), lowest), exponent)
            power = builder.sub(highest, largest)
            of_products = power
            if scaled:
                of_products = builder.add(power, builder.shl(both, shift))
                of_products = v.larger(builder, of_products, v.constant(0, v.INTS))
            powers.append((bits, power, builder.bitcast(of_products, v.FLOATS), idle))
        return powers

    def _parts(builder: Any, sums: list[Any], old: Any) -> list[Any]:
        """Emit those additions of `sums` and the accumulator that cannot overflow int32; return the list of results.

        The results are int32 vectors, whose sum is still to be computed. A single sum is added to the accumulator. Two
        or four sums are added in pairs, and the accumulator follows them in the list. sums: a list of one, two or four
        int32 vectors, one element per column. old: the accumulator as an int32 vector, in multiples of the same power
        of two as the sums.
        """
        if len(sums) > 1:  # two sums of eight fill an int32, one leaves room for the accumulator
            return [*(builder.add(*sums[i : i + 2]) for i in range(0, len(sums), 2)), old]
        return [builder.add(sums[0], old)]

    def _row(builder: Any, places: Any, numbers: Any, top: Any, groups: range) -> None:
        """Emit the additions of one instruction to one row of results, for the groups of 16 columns in `groups`.

        If group 0 is among them, the code also writes to the array e the largest exponents of the products of the row
        that is computed next.

        places: addresses of: this row of a; the exponents of the next row of a; b; b's exponents; this row of c; e; the
        exponents of the columns' scales. numbers: (exponent of this row's scale, fraction bits, exponent of a zero
        term, mask of the result's kept bits, exponent of a product minus the int8 exponents of its factors, smallest
        exponent of the accumulator's format). top: int8 vector, for each column the largest exponent of this row's
        products.
        """
        a, coming, b, eb, c, e, _ = places
        kept = v.everywhere(builder, numbers[3], v.INTS)
        powers = _powers(builder, places, numbers, top, groups)
        largest = [v.constant(2 * ZERO_EXPONENT, v.BYTES)] if groups.start == 0 else []
        sums: list[list[Any]] = [[] for _ in groups]

        def add_terms(first: int) -> Any:
            """Return the function (i, values) -> values that adds term first + i to the sums.

            values: a list of vectors: the sums of each group of 16 columns, then the largest exponents so far of the
            next row.
            """

            def add(i: Any, values: list[Any]) -> list[Any]:
                so_far, largest = values[: len(groups)], values[len(groups) :]
                k = builder.add(i, v.LONG(first))
                x = v.everywhere(builder, v.load(builder, a, builder.mul(k, v.LONG(4)), v.SINGLE), v.FLOATS)
                start = builder.mul(k, v.LONG(GROUPS * v.SIZE))
                new = []
                for g, (_, _, power, _), total in zip(groups, powers, so_far, strict=True):
                    y = v.load(builder, b, builder.add(start, v.LONG(g * v.SIZE)), v.FLOATS)
                    cut = builder.fptosi(builder.fmul(builder.fmul(x, y), power), v.INTS)
                    new.append(builder.add(total, cut))
                return new + (larger_so_far(builder, [coming], eb, k, largest) if largest else [])

            return add

        length = min(terms, EIGHT) if joined else terms
        for first in range(0, terms, length):
            start = [v.constant(0, v.INTS)] * len(groups)
            new = v.repeated(builder, length, start + largest, add_terms(first))
            largest = new[len(groups) :]
            for mine, total in zip(sums, new, strict=False):
                mine.append(total)
        for exponents in largest:
            v.store(builder, exponents, e, 0)
        results = []
        for mine, (bits, power, _, _) in zip(sums, powers, strict=True):
            old = builder.fmul(builder.bitcast(bits, v.FLOATS), builder.bitcast(power, v.FLOATS))
            old = builder.fptosi(old, v.INTS)
            near = _cut_sum(builder, _parts(builder, mine, old), half, avx512)
            inverse = builder.sub(v.constant(2 * FLOAT_BIAS << PLACES, v.INTS), power)
            result = builder.fmul(near, builder.bitcast(inverse, v.FLOATS))
            result = nearest_half(builder, result) if half else result
            result = builder.bitcast(builder.and_(builder.bitcast(result, v.INTS), kept), v.FLOATS)
            results.append(builder.bitcast(builder.fadd(result, v.constant(0.0, v.FLOATS)), v.INTS))  # +0 for -0
        put_results(builder, results, [(c, g) for g in groups], [idle for *_, idle in powers], kept)

    return intrinsic(row)


@cache
def vector_row(terms: int, joined: bool, half: bool, scaled: bool, avx512: bool) -> RowLoops:
    """Return the loops of units of `Rule.FUSED`, or of a rule built from it, in vectors of AVX-512 or AVX2.

    terms: products of one instruction. joined: the sum of all products may overflow an int32, so they are added by
    eights in int32, and these sums exactly in float64. half: results are FP16, held as float32. scaled: the unit
    multiplies block scales. avx512: use AVX-512, else AVX2.
    """
    row, largest = _step_of(terms, joined, half, scaled, avx512), largest_of(terms, 1)

    def step(a: Any, ea: Any, b: Any, eb: Any, c: Any, scale_b: Any, place: RowPlace, u: RowFacts, e: Any) -> None:
        after = min(i64(place.r + 1), i64(place.rows - 1))
        numbers = (
            i64(place.r), after, i64(place.width), i32(place.scale), u.fraction_bits, u.floor, u.kept, u.base, u.least,
        )  # fmt: skip
        row(a, ea, b, eb, c, e, scale_b, numbers)

    def begin(ea: Any, r: Any, _rows: Any, eb: Any, e: Any) -> None:
        largest(ea, i64(r), i64(r), eb, e)

    return RowLoops(
        VECTOR_COLUMNS, 1, panel_of(terms, False), decoder_of(terms), fills_of(terms, False), scalar(begin),
        scalar(step), exponents_alone,
    )  # fmt: skip
