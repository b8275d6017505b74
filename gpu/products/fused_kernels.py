"""GPU kernels of matrix units that add by `Rule.FUSED`: one kernel in float32, and one in integers.

`Rule.FUSED` aligns all terms of an instruction to its largest exponent, truncates them, and adds them exactly. The
kernel in float32 marks the results that it cannot compute exactly, which the kernel in integers then computes.
docs/gpu.md counts the instructions of both.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.core.units.nvidia import layouts_in, unit_fields
from fpsim.core.units.step_by_rule import steps_by_rule
from fpsim.gpu.device.device import is_simulated
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.gpu.products.fused_step import (
    INFINITE,
    MAGNITUDE,
    NAN_PATTERN,
    NO_TERM,
    OperandFacts,
    StepNumbers,
    cut,
    cut_accumulator,
    float_of_half,
    half_of_float,
    half_result,
    operand,
    power_of_step,
    result_of_long,
    result_of_short,
    result_of_sum,
    scaled_operand,
)
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.products.kernels.promotion import ADD, PRODUCT, ROWS_FIRST
from fpsim.runtime import float_steps
from fpsim.runtime.compile import scalar

i16, i32, i64, u32, u64, f32 = np.int16, np.int32, np.int64, np.uint32, np.uint64, np.float32

SHORT, MIDDLE, LONG = 24, 31, 63  # bits of a sum that a float32, an int32 or an int64 holds exactly
NEVER = -1  # the mode of sums without promotion
MOST_TERMS = 32  # of a step
STEPS = steps_by_rule()


@scalar
def _fused(x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z of float32, rounded once to nearest even."""
    return cuda.fma(x, y, z)


fused = float_steps.fused if is_simulated() else _fused  # the simulator's own cuda.fma rounds twice


class Tile(NamedTuple):
    """The results that a block of threads computes; thread (y, x) computes rows y + i * high and columns x + j * wide.

    Attributes:
      high, wide: number of threads along rows and columns.
      rows, columns: number of results of a thread along rows and columns; i and j above count them from 0.
      registers: the most that a thread may use; 0 for no limit.
    """

    high: int
    wide: int
    rows: int
    columns: int
    registers: int

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return self.high * self.wide

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of results that a block computes."""
        return self.high * self.rows, self.wide * self.columns


@scalar
def promoted(total: Any, partial: Any, left: Any, right: Any, mode: Any) -> Any:
    """Return the float32 total plus a partial sum that is multiplied by its scales `left` (row) and `right` (column).

    mode: PRODUCT for fma(left * right, partial, total), ROWS_FIRST for fma(partial * left, right, total), any other for
    fma(partial * right, left, total).
    """
    if mode == PRODUCT:
        return fused(f32(left * right), partial, total)
    if mode == ROWS_FIRST:
        return fused(f32(partial * left), right, total)
    return fused(f32(partial * right), left, total)


@scalar
def place_of(terms: Any, k: Any) -> Any:
    """Return terms[k], the index along K of the k-th term to add; -1 (a zero term) if there are fewer terms."""
    place = i32(terms[min(u32(k), u32(terms.size - 1))])
    return place if k < terms.size else i32(-1)


@cache
def _parts(terms: int, scaled: bool, tile: Tile) -> Any:
    """Return the GPU functions (fetch_a, fetch_b, largest, add_cuts) that compute the sum of one matrix instruction.

    fetch_a and fetch_b decode the operands' terms to values and exponents in shared memory; largest finds the largest
    exponent of the products of each result; add_cuts adds the products, truncated to integers. Rounding the sum is left
    to the caller.

    terms: number of terms of an instruction. scaled: whether operands have block scales. tile: the results of a block
    of threads.

    Arguments of fetch_a and fetch_b: a or b: codes of the operand. scale: E8M0 codes of the scales of its blocks of
    `block` terms. places: the indices along K of the terms in order. start: position in `places` of the instruction's
    first term. first: the first row or column of the block of threads. f: constants of the operand's format. to, e:
    receive values and exponents, (terms, rows or columns).

    Indices are unsigned, which saves the test for negative ones; loops over results have constant bounds, so that they
    are unrolled and the arrays of a thread are registers. Elements outside a matrix are read from its edge and ignored,
    as loads without branches overlap.
    """
    high, wide, rows, columns, _ = tile
    tall, broad = tile.shape
    # how the threads lie over terms and rows of A, and over terms and columns of B, while they fetch
    a_terms, b_columns = min(terms, tile.threads), min(broad, tile.threads)
    a_rows, b_terms = tile.threads // a_terms, tile.threads // b_columns

    @scalar
    def fetch_a(a: Any, scale: Any, places: Any, start: Any, first: Any, block: Any, f: Any, to: Any, e: Any) -> None:
        thread, last = u32(cuda.threadIdx.x), u32(a.shape[0])
        for k in range(u32(thread % u32(a_terms)), u32(terms), u32(a_terms)):
            place = place_of(places, start + k)
            near = u32(max(place, i32(0)))
            for row in range(u32(thread // u32(a_terms)), u32(tall), u32(a_rows)):
                m = u32(first + u32(row))
                edge = min(m, u32(last - u32(1)))
                inside = (place >= i32(0)) & (m < last)
                code = i32(a[edge, near])
                pattern, exponent = operand(code if inside else i32(0), f)
                if scaled:
                    pattern, exponent = scaled_operand(pattern, exponent, i32(scale[edge, u32(near // block)]), inside)
                to[u32(k), u32(row)] = i32(pattern).view(f32)
                e[u32(k), u32(row)] = i16(exponent)

    @scalar
    def fetch_b(b: Any, scale: Any, places: Any, start: Any, first: Any, block: Any, f: Any, to: Any, e: Any) -> None:
        thread, last = u32(cuda.threadIdx.x), u32(b.shape[1])
        for column in range(u32(thread % u32(b_columns)), u32(broad), u32(b_columns)):
            n = u32(first + u32(column))
            edge = min(n, u32(last - u32(1)))
            for k in range(u32(thread // u32(b_columns)), u32(terms), u32(b_terms)):
                place = place_of(places, start + k)
                near = u32(max(place, i32(0)))
                inside = (place >= i32(0)) & (n < last)
                code = i32(b[near, edge])
                pattern, exponent = operand(code if inside else i32(0), f)
                if scaled:
                    pattern, exponent = scaled_operand(pattern, exponent, i32(scale[u32(near // block), edge]), inside)
                to[u32(k), u32(column)] = i32(pattern).view(f32)
                e[u32(k), u32(column)] = i16(exponent)

    @scalar
    def largest(ea: Any, eb: Any, top: Any, side: Any, x: Any, tops: Any) -> None:
        """Set tops[r] to the largest exponent of the products of an instruction, for each result r of this thread.

        ea, eb: exponents of the operands in shared memory. top, side: the thread's first row and column. x: scratch
        array of an int32 for each row of results. tops: receives an int32 for each result.
        """
        for r in range(rows * columns):
            tops[r] = i32(2 * NO_TERM)
        for k in range(terms):
            for i in range(rows):
                x[i] = i32(ea[u32(k), u32(top + u32(high * i))])
            for j in range(columns):
                y = i32(eb[u32(k), u32(side + u32(wide * j))])
                for i in range(rows):
                    tops[i * columns + j] = max(tops[i * columns + j], i32(x[i] + y))

    @scalar
    def add_cuts(a: Any, b: Any, start: Any, stop: Any, corner: Any, x: Any, y: Any, power: Any, s: Any) -> None:
        """Add the products of terms start .. stop - 1, truncated to integers, to s[r] for each result r of this thread.

        a, b: values of the operands in shared memory. corner: the thread's first row and column. x, y: scratch arrays
        of a float32 for each row of results. power: for each result, float32 bits of the power of two by which products
        are multiplied before they are truncated. s: an int32 for each result. Two terms are added at a time, in one
        addition of three int32.
        """
        top, side = corner
        for k in range(start, stop, 2):
            for i in range(rows):
                x[i] = a[u32(k), u32(top + u32(high * i))]
                y[i] = a[u32(k + 1), u32(top + u32(high * i))]
            for j in range(columns):
                p = b[u32(k), u32(side + u32(wide * j))]
                q = b[u32(k + 1), u32(side + u32(wide * j))]
                for i in range(rows):
                    r = i * columns + j
                    both = i32(cut(f32(x[i] * p), power[r]) + cut(f32(y[i] * q), power[r]))
                    s[r] = i32(s[r] + both)

    return fetch_a, fetch_b, largest, add_cuts


@cache
def tile_kernel(terms: int, bits: int, half: bool, codes: bool, scaled: bool, mode: int, tile: Tile) -> Any:
    """Return the GPU kernel that adds a product to `total` (M, N) in float32, and marks results where that is inexact.

    Args:
      terms: number of terms of an instruction, a multiple of 4.
      bits: the largest size of its sum: SHORT (24 bits, exact in a float32), MIDDLE (31, an int32) or LONG (63, an
        int64).
      half: whether sums are rounded to FP16.
      codes: whether `total` holds FP16 codes; otherwise it holds float32 bits.
      scaled: whether operands have block scales.
      mode: how partial sums of `promotion` instructions are multiplied by their scales, left (M, partial sums) and
        right (partial sums, N), before they are added to the total: ADD (no scales), PRODUCT, ROWS_FIRST or
        COLUMNS_FIRST; NEVER for one sum over all of K.
      tile: the results of a block of threads.

    Arguments of the kernel: `(total, marks, any_mark, a, b, scale_a, scale_b, places, left, right, of_a, of_b, u,
    block, promotion)`. a (M, K), b (K, N): codes; of_a, of_b: the constants of their formats, OperandFacts. scale_a,
    scale_b: E8M0 codes of the scales of blocks of `block` terms. places: the indices along K of the terms in order, -1
    for a zero term. left, right: float32 scales. u: properties of the instruction, StepNumbers. promotion: number of
    instructions of a partial sum. Every result is written, or marked by 1 in `marks` (M, N) and left unchanged;
    any_mark[0] becomes 1 if one is marked.
    """
    high, wide, rows, columns, registers = tile
    (tall, broad), results = tile.shape, rows * columns
    # an odd number of words from one term to the next, so that threads of consecutive terms meet no bank twice
    a_shape, b_shape = (terms, tall + 1), (terms, broad + 1)
    is_long, is_short, promotes = bits == LONG, bits == SHORT, mode != NEVER
    group = min(terms, 16) if is_long else terms  # that many products of 27 bits fill an int32
    fetch_a, fetch_b, largest, add_cuts = _parts(terms, scaled, tile)

    def product(
        total: Any, marks: Any, any_mark: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, places: Any, left: Any,
        right: Any, of_a: OperandFacts, of_b: OperandFacts, u: StepNumbers, block: Any, promotion: Any,
    ) -> None:  # fmt: skip
        a_values = cuda.shared.array(a_shape, np.float32)  # one per line, by which the simulator identifies them
        a_exponents = cuda.shared.array(a_shape, np.int16)
        b_values = cuda.shared.array(b_shape, np.float32)
        b_exponents = cuda.shared.array(b_shape, np.int16)
        c, power = cuda.local.array(results, np.int32), cuda.local.array(results, np.int32)
        s, more = cuda.local.array(results, np.int32), cuda.local.array(results, np.int32)
        totals, e = cuda.local.array(results, np.float32), cuda.local.array(rows, np.int32)
        x, y = cuda.local.array(rows, np.float32), cuda.local.array(rows, np.float32)
        thread, across = u32(cuda.threadIdx.x), u32(u32(total.shape[1] + broad - 1) // u32(broad))
        first_row = u32(u32(u32(cuda.blockIdx.x) // across) * u32(tall))
        first_column = u32(u32(u32(cuda.blockIdx.x) % across) * u32(broad))
        top, side = u32(thread // u32(wide)), u32(thread % u32(wide))
        last_row, last_column = u32(total.shape[0]), u32(total.shape[1])

        for i in range(rows):
            m = u32(first_row + u32(top + u32(high * i)))
            for j in range(columns):
                n = u32(first_column + u32(side + u32(wide * j)))
                start = i32(total[min(m, u32(last_row - u32(1))), min(n, u32(last_column - u32(1)))])
                start = float_of_half(start) if codes else start
                c[i * columns + j] = i32(0) if promotes else start
                totals[i * columns + j] = i32(start).view(f32)

        steps = (places.size + terms - 1) // terms
        for step in range(steps):
            cuda.syncthreads()
            fetch_a(a, scale_a, places, step * terms, first_row, block, of_a, a_values, a_exponents)
            fetch_b(b, scale_b, places, step * terms, first_column, block, of_b, b_values, b_exponents)
            cuda.syncthreads()
            largest(a_exponents, b_exponents, top, side, e, power)
            for r in range(results):
                power[r] = power_of_step(power[r], c[r], u)
                c[r] = cut_accumulator(c[r], power[r])
                s[r] = i32(0) if is_long else c[r]
                more[r] = i32(0)
            add_cuts(a_values, b_values, 0, group, (top, side), x, y, power, s)
            if terms > group:
                add_cuts(a_values, b_values, group, terms, (top, side), x, y, power, more)
            for r in range(results):
                if is_long:
                    whole = i64(i64(i64(c[r]) + i64(s[r])) + i64(more[r]))
                    c[r] = half_result(whole, power[r], u) if half else result_of_long(whole, power[r], u)
                elif half:
                    c[r] = half_result(i64(s[r]), power[r], u)
                else:
                    c[r] = result_of_short(s[r], power[r], u) if is_short else result_of_sum(s[r], power[r], u)
            if promotes and ((step + 1) % promotion == 0 or step + 1 == steps):
                part = u32(step // promotion)
                for i in range(rows):
                    m = min(u32(first_row + u32(top + u32(high * i))), u32(last_row - u32(1)))
                    for j in range(columns):
                        n = min(u32(first_column + u32(side + u32(wide * j))), u32(last_column - u32(1)))
                        r = i * columns + j
                        partial = i32(c[r]).view(f32)
                        if mode == ADD:
                            totals[r] = f32(totals[r] + partial)
                        else:
                            totals[r] = promoted(totals[r], partial, left[m, part], right[part, n], mode)
                        c[r] = i32(0)

        for i in range(rows):
            m = u32(first_row + u32(top + u32(high * i)))
            for j in range(columns):
                n = u32(first_column + u32(side + u32(wide * j)))
                if m < last_row and n < last_column:
                    pattern = f32(totals[i * columns + j]).view(i32) if promotes else c[i * columns + j]
                    marked = i32(pattern & MAGNITUDE) > INFINITE
                    marks[m, n] = marked
                    if marked:
                        any_mark[0] = 1
                    else:
                        total[m, n] = half_of_float(pattern) if codes else pattern

    return gpu_kernel(product, registers)


@cache
def specified_kernel(rule: Rule) -> Any:
    """Return the GPU kernel that computes marked results of `total` in integer arithmetic, as `rule` defines them.

    One kernel serves all units of a rule, as compiling it takes long. total (M, N) is updated where marks (M, N) is 1.
    Its arguments: `(total, marks, a, b, scale_a, scale_b, places, left, right, layouts, facts, half, block, promotion,
    mode)`.

    a (M, K), b (K, N): codes. scale_a, scale_b: E8M0 codes of the scales of blocks of `block` terms. places: the
    indices along K of the terms in the order in which they are added; -1 for a zero term. left (M, partial sums), right
    (partial sums, N): float32 scales of partial sums of `promotion` instructions (0 for one sum over all of K). mode:
    how left and right multiply a partial sum before it is added to the total: ADD (no scales), PRODUCT (left * right),
    ROWS_FIRST (left, then right) or COLUMNS_FIRST. layouts, facts: constants of the unit's formats and of the unit, as
    integers. half: whether sums are FP16.
    """
    one_step, scaled = STEPS[rule], rule is Rule.SCALED

    def product(
        total: Any, marks: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, places: Any, left: Any, right: Any,
        layouts: Any, facts: Any, half: Any, block: Any, promotion: Any, mode: Any,
    ) -> None:  # fmt: skip
        f, u = layouts_in(layouts), unit_fields(facts)
        x, y = cuda.local.array(MOST_TERMS, np.uint32), cuda.local.array(MOST_TERMS, np.uint32)
        p, q = cuda.local.array(1, np.uint32), cuda.local.array(1, np.uint32)
        digits = cuda.local.array(1, np.int64)
        across, terms, promotes = b.shape[1], facts[0], promotion > 0
        for i in range(cuda.grid(1), marks.size, cuda.gridsize(1)):
            m, n = i // across, i % across
            if marks[m, n] != 0:
                c = u64(0) if promotes else u64(total[m, n])
                whole = i32(total[m, n]).view(f32)
                steps = (places.size + terms - 1) // terms
                for step in range(steps):
                    p[0] = u32(0)
                    q[0] = u32(0)
                    for k in range(terms - 1, -1, -1):  # the scales are those of the first term that is there
                        place = place_of(places, step * terms + k)
                        x[k] = u32(a[m, place]) if place >= i32(0) else u32(0)
                        y[k] = u32(b[place, n]) if place >= i32(0) else u32(0)
                        if scaled and place >= i32(0):
                            p[0] = u32(scale_a[m, place // block])
                            q[0] = u32(scale_b[place // block, n])
                    c = one_step(x, y, p, q, i64(0), c, digits, f, u)
                    if promotes and ((step + 1) % promotion == 0 or step + 1 == steps):
                        partial = i32(float_of_half(i32(c)) if half else i32(c)).view(f32)
                        part = step // promotion
                        if mode == ADD:
                            whole = f32(whole + partial)
                        else:
                            whole = promoted(whole, partial, left[m, part], right[part, n], mode)
                        c = u64(0)
                if promotes:
                    pattern = f32(whole).view(i32)
                    total[m, n] = NAN_PATTERN if i32(pattern & MAGNITUDE) > INFINITE else pattern
                else:
                    total[m, n] = c

    return gpu_kernel(product)
