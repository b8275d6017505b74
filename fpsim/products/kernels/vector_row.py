"""One row of A times a panel of B by the FUSED rule, as fused_row does it, with the sums in registers.

Sixteen columns at a time: what fused_row keeps in memory between its loops, powers and sums above all, stays in
vectors here, and integers become float32 by instructions that round toward zero. Measured: docs/performance.md.

For processors with AVX-512 (`has_vectors`). fused_row does the same for others, and decides what is right.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba.core import types

from fpsim.products.kernels.fused_row import RowFacts, RowLoops, RowScratch
from fpsim.products.kernels.panel import NO_TERM, ZERO_EXPONENT
from fpsim.products.kernels.row_vectors import (
    EXPONENT,
    FLOAT_BIAS,
    GROUPS,
    PLACES,
    VECTOR_LANES,
    decoder_of,
    fills_of,
    larger_so_far,
    largest_of,
    nearest_half,
    panel_of,
    put_results,
)
from fpsim.runtime import vectors as v
from fpsim.runtime.compile import scalar

i8, i32, i64, f32 = np.int8, np.int32, np.int64, np.float32

EIGHT = 8  # terms whose cut products an int32 holds


def _own_exponent(builder: Any, bits: Any, least: Any, half: bool) -> Any:
    """The exponents of accumulators, as the exponent bits of patterns."""
    own = builder.and_(bits, v.constant(EXPONENT, v.INTS))
    if half:  # subnormal numbers of FP16 have the smallest exponent of its normal ones
        nothing = v.constant(0, v.INTS)
        is_zero = builder.icmp_signed("==", builder.shl(bits, v.constant(1, v.INTS)), nothing)
        own = builder.select(is_zero, nothing, v.larger(builder, own, least))
    return own


def _in_doubles(builder: Any, sums: Any) -> list[Any]:
    """The sum of integers as two vectors of float64, exactly."""
    kind = v.vector(v.DOUBLE, EIGHT)
    halves = []
    for first in (0, EIGHT):
        parts = [builder.sitofp(v.lanes_of(builder, x, first, EIGHT), kind) for x in sums]
        whole = parts[0]
        for part in parts[1:]:
            whole = builder.fadd(whole, part)
        halves.append(whole)
    return halves


def _cut_sum(builder: Any, sums: Any, half: bool) -> Any:
    """The sum of integers as float32, cut toward zero; where results are FP16, what was cut shows in the last bit."""
    if len(sums) == 1:
        near = v.whole_to_zero(builder, sums[0])
        # the largest one that is not above an integer fits an integer
        lost = builder.icmp_signed("!=", builder.fptosi(near, v.INTS), sums[0]) if half else None
    else:
        wholes = _in_doubles(builder, sums)
        parts = [v.single_to_zero(builder, whole) for whole in wholes]
        near = v.joined(builder, *parts)
        masks = [builder.fcmp_ordered("!=", builder.fpext(x, y.type), y) for x, y in zip(parts, wholes, strict=True)]
        lost = v.joined(builder, *masks) if half else None
    if not half:
        return near
    odd = builder.or_(builder.bitcast(near, v.INTS), v.constant(1, v.INTS))
    return builder.select(lost, builder.bitcast(odd, v.FLOATS), near)


@cache
def _step_of(terms: int, half: bool, scaled: bool) -> Any:
    """The function `(a, ea, b, eb, c, e, scales, r, after, width, scale, fraction_bits, floor, kept, base, least)`.

    It replaces row r of c by itself plus the products of row r of a step, and e by the largest exponents of row after.

    a, ea: (rows, terms) float32 values and int8 exponents; b, eb: (terms, VECTOR_LANES) likewise; c: (rows,
    VECTOR_LANES) float32 patterns; e: (VECTOR_LANES,) int8: the largest exponents of the products of row r; scale and
    scales: exponents of row r's scale, and of those of the columns, (VECTOR_LANES,), if scaled; width: of the lanes
    that count; half: the result is FP16, held as float32; the numbers are those of fused_row.RowFacts.
    """

    def row(
        _typing: Any, a: Any, ea: Any, b: Any, eb: Any, c: Any, e: Any, scales: Any, r: Any, after: Any, width: Any,
        scale: Any, fraction_bits: Any, floor: Any, kept: Any, base: Any, least: Any,
    ) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, ea, b, eb, c, e, scales = (
                v.start_of(context, builder, kind, arg) for kind, arg in zip(sig.args[:7], args[:7], strict=True)
            )
            r, after, width = args[7:10]
            of_row = v.row_at(builder, a, r, 4 * terms), v.row_at(builder, ea, after, terms)
            of_c = v.row_at(builder, c, r, GROUPS * v.SIZE)
            few = builder.icmp_signed("<=", width, v.LONG(2 * v.WIDTH))
            with builder.if_else(few) as (then, otherwise):
                with then:
                    _row(builder, (*of_row, b, eb, of_c, e, scales), args[10:], 2)
                with otherwise:
                    _row(builder, (*of_row, b, eb, of_c, e, scales), args[10:], GROUPS)
            return context.get_dummy_value()

        given = a, ea, b, eb, c, e, scales, r, after, width, scale, fraction_bits, floor, kept, base, least
        return types.void(*given), build

    def _powers(builder: Any, places: Any, numbers: Any, groups: int) -> list[Any]:
        """Of each group: the accumulator, 2**(F - M), that times the scales, and which lanes may only lose bits."""
        _, _, _, _, c, e, scales = places
        scale, fraction_bits, floor, _, base, least = numbers
        top = v.load(builder, e, 0, v.BYTES)
        shift = v.constant(PLACES, v.INTS)
        bias = v.constant(FLOAT_BIAS, v.INTS)
        lowest = v.larger(builder, v.everywhere(builder, floor, v.INTS), v.constant(-FLOAT_BIAS, v.INTS))
        lowest = builder.shl(builder.add(lowest, bias), shift)
        least = builder.shl(builder.add(v.everywhere(builder, least, v.INTS), bias), shift)
        base = builder.add(v.everywhere(builder, base, v.INTS), bias)
        highest = builder.add(fraction_bits, v.WORD(2 * FLOAT_BIAS))
        highest = builder.shl(v.everywhere(builder, highest, v.INTS), shift)
        found = []
        for g in range(groups):
            tops = builder.sext(v.lanes_of(builder, top, g * v.WIDTH, v.WIDTH), v.INTS)
            bits = v.load(builder, c, g * v.SIZE, v.INTS)
            own = _own_exponent(builder, bits, least, half)
            idle = builder.icmp_signed("<=", tops, v.constant(NO_TERM, v.INTS))
            idle = builder.or_(idle, builder.icmp_signed("==", own, v.constant(EXPONENT, v.INTS)))
            tops = builder.add(tops, base)
            if scaled:
                both = builder.add(v.everywhere(builder, scale, v.INTS), v.load(builder, scales, g * v.SIZE, v.INTS))
                tops = builder.add(tops, both)
            largest = v.larger(builder, v.larger(builder, builder.shl(tops, shift), lowest), own)
            power = builder.sub(highest, largest)
            of_products = power
            if scaled:
                of_products = builder.add(power, builder.shl(both, shift))
                of_products = v.larger(builder, of_products, v.constant(0, v.INTS))
            found.append((bits, power, builder.bitcast(of_products, v.FLOATS), idle))
        return found

    def _row(builder: Any, places: Any, numbers: Any, groups: int) -> None:
        """The step of one row for some groups of lanes."""
        a, coming, b, eb, c, e, _ = places
        kept = v.everywhere(builder, numbers[3], v.INTS)
        powers = _powers(builder, places, numbers, groups)
        largest = v.constant(2 * ZERO_EXPONENT, v.BYTES)
        sums: list[list[Any]] = [[] for _ in range(groups)]

        def add_terms(first: int) -> Any:
            """The loop over the terms from the first one on."""

            def add(i: Any, values: list[Any]) -> list[Any]:
                *so_far, largest = values
                k = builder.add(i, v.LONG(first))
                x = v.everywhere(builder, v.load(builder, a, builder.mul(k, v.LONG(4)), v.SINGLE), v.FLOATS)
                start = builder.mul(k, v.LONG(GROUPS * v.SIZE))
                new = []
                for g, total in enumerate(so_far):
                    y = v.load(builder, b, builder.add(start, v.LONG(g * v.SIZE)), v.FLOATS)
                    cut = builder.fptosi(builder.fmul(builder.fmul(x, y), powers[g][2]), v.INTS)
                    new.append(builder.add(total, cut))
                return [*new, *larger_so_far(builder, [coming], eb, k, [largest])]

            return add

        for first in range(0, terms, EIGHT):
            start = [v.constant(0, v.INTS)] * groups
            *new, largest = v.repeated(builder, min(terms, EIGHT), [*start, largest], add_terms(first))
            for mine, total in zip(sums, new, strict=True):
                mine.append(total)
        v.store(builder, largest, e, 0)
        results = []
        for mine, (bits, power, _, _) in zip(sums, powers, strict=True):
            own = builder.fmul(builder.bitcast(bits, v.FLOATS), builder.bitcast(power, v.FLOATS))
            # two sums of eight fill an int32, one leaves room for the accumulator
            paired = [builder.add(*mine[i : i + 2]) for i in range(0, len(mine), 2)] if len(mine) > 1 else []
            own = builder.fptosi(own, v.INTS)
            near = _cut_sum(builder, [*paired, own] if paired else [builder.add(mine[0], own)], half)
            inverse = builder.sub(v.constant(2 * FLOAT_BIAS << PLACES, v.INTS), power)
            result = builder.fmul(near, builder.bitcast(inverse, v.FLOATS))
            result = nearest_half(builder, result) if half else result
            result = builder.bitcast(builder.and_(builder.bitcast(result, v.INTS), kept), v.FLOATS)
            results.append(builder.bitcast(builder.fadd(result, v.constant(0.0, v.FLOATS)), v.INTS))  # +0 for -0
        put_results(builder, results, [(c, g) for g in range(groups)], [idle for *_, idle in powers], kept)

    return v.named_intrinsic(row, terms, half, scaled)


@cache
def vector_row(terms: int, half: bool, scaled: bool) -> RowLoops:
    """The loops of units whose rows fast_units.rows_of calls vectors."""
    row, largest = _step_of(terms, half, scaled), largest_of(terms, 1)

    def step(
        a: Any, ea: Any, r: Any, rows: Any, b: Any, eb: Any, c: Any, scale_a: Any, scale_b: Any, u: RowFacts,
        _room: RowScratch, e: Any, width: Any,
    ) -> None:  # fmt: skip
        after = min(i64(r + 1), i64(rows - 1))
        row(
            a, ea, b, eb, c, e, scale_b, i64(r), after, i64(width), i32(scale_a), u.fraction_bits, u.floor, u.kept,
            u.base, u.least,
        )  # fmt: skip

    def begin(ea: Any, r: Any, _rows: Any, eb: Any, e: Any) -> None:
        largest(ea, i64(r), i64(r), eb, e)

    return RowLoops(
        VECTOR_LANES, 1, panel_of(terms, False), decoder_of(terms), fills_of(terms, False), scalar(begin), scalar(step)
    )
