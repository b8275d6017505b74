"""Shared parts of the vectorised kernels over a row: largest exponents of products, FP16 results, aligned buffers.

The processor must have AVX-512 or AVX2 (`has_avx2`). A panel is the decoded terms of one instruction for VECTOR_COLUMNS
columns of b, whose exponents are one vector of bytes. `builder` is always llvmlite's IRBuilder.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from fpsim.products.kernels.panel import ZERO_EXPONENT
from fpsim.runtime import vectors as v
from fpsim.runtime.compile import scalar

i64 = np.int64

VECTOR_COLUMNS = 64
GROUPS = VECTOR_COLUMNS // v.WIDTH
PLACES, FLOAT_BIAS = 23, 127
EXPONENT, MAGNITUDE, SIGN = 0x7F800000, 0x7FFFFFFF, -0x80000000  # bits of float32


@intrinsic  # type: ignore[untyped-decorator]
def _address_of(_typing: Any, array: Any) -> Any:
    """Return the address of the first element of `array` as int64; the argument `_typing` is numba's, and not read."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(v.start_of(context, builder, sig.args[0], args[0]), v.LONG)

    return types.int64(array), build


@scalar
def whole_lines(room: Any, count: Any) -> Any:
    """Return a view of `count` elements of the longer 1-D array `room` that begins at a cache line (64 bytes)."""
    skipped = i64(-_address_of(room) % i64(v.SIZE)) // i64(room.itemsize)
    return room[skipped : skipped + count]


@cache
def panel_of(terms: int, by_sign: bool) -> Any:
    """Return the function `RowLoops.panel`, which allocates buffers for `terms` terms of operand b.

    by_sign: the buffer of values has room for positive and negative ones apart, (terms, 2, VECTOR_COLUMNS).
    """
    size = terms * VECTOR_COLUMNS

    def panel() -> Any:
        b = whole_lines(np.empty((1 + by_sign) * size + v.WIDTH, np.float32), (1 + by_sign) * size)
        eb = whole_lines(np.empty(size + v.SIZE, np.int8), size)
        values = np.empty(size, np.int32) if by_sign else b.view(np.int32)
        return values.reshape((terms, VECTOR_COLUMNS)), eb.reshape((terms, VECTOR_COLUMNS)), b, eb

    return scalar(panel)


def numbers_in(builder: Any, numbers: Any) -> list[Any]:
    """Return, as a list of LLVM values, the numbers of a tuple that an intrinsic is passed as one argument.

    builder: llvmlite's IRBuilder, which emits their extraction. numbers: the tuple, an LLVM value.
    """
    return [builder.extract_value(numbers, i) for i in range(len(numbers.type.elements))]


def larger_so_far(builder: Any, rows: Any, eb: Any, k: Any, so_far: Any) -> list[Any]:
    """Emit, for each row of a, the larger of `so_far` and the exponents of the products of term k; return the vectors.

    rows: addresses of the rows' int8 exponents. eb: address of the exponents of b's terms. k: LLVM value of the term's
    number. so_far: a list of vectors of 64 int8 (columns), one for each row of a.
    """
    of_b = v.load(builder, eb, builder.mul(k, v.LONG(v.SIZE)), v.BYTES)
    of_rows = [v.everywhere(builder, v.load(builder, row, k, v.BYTE), v.BYTES) for row in rows]
    return [v.larger(builder, old, builder.add(x, of_b)) for old, x in zip(so_far, of_rows, strict=True)]


@cache
def largest_of(terms: int, count: int) -> Any:
    """Return the intrinsic (ea, r, next, eb, e) -> None that writes the largest exponents of rows' products to e.

    terms: products of one instruction. count: 1 to compute row r, 2 to compute rows r and next. ea: (rows, terms) int8,
    exponents of a. eb: (terms, VECTOR_COLUMNS) int8, exponents of b. e: (count, VECTOR_COLUMNS) int8, written.
    """

    def largest(_typing: Any, ea: Any, r: Any, following: Any, eb: Any, e: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            ea, eb, e = (v.start_of(context, builder, sig.args[i], args[i]) for i in (0, 3, 4))
            rows = [v.row_at(builder, ea, row, terms) for row in args[1 : 1 + count]]
            start = v.constant(2 * ZERO_EXPONENT, v.BYTES)
            exponents = v.repeated(
                builder, terms, [start] * count, lambda k, so_far: larger_so_far(builder, rows, eb, k, so_far)
            )
            for i, largest in enumerate(exponents):
                v.store(builder, largest, e, i * v.SIZE)
            return context.get_dummy_value()

        return types.void(ea, r, following, eb, e), build

    return intrinsic(largest)


def accumulator_exponents(builder: Any, bits: Any, least: Any, half: bool) -> Any:
    """Emit and return the exponents of 16 accumulators as float32 exponent fields, int32.

    bits: vector of float32 patterns. half: they are FP16, held as float32. least: the exponent field that FP16's
    subnormals get; read if `half`.
    """
    exponent = builder.and_(bits, v.constant(EXPONENT, v.INTS))
    if half:  # subnormal numbers of FP16 have the smallest exponent of its normal ones
        nothing = v.constant(0, v.INTS)
        is_zero = builder.icmp_signed("==", builder.shl(bits, v.constant(1, v.INTS)), nothing)
        exponent = builder.select(is_zero, nothing, v.larger(builder, exponent, least))
    return exponent


def nearest_half(builder: Any, value: Any) -> Any:
    """Emit and return 16 float32 values rounded to nearest even FP16, as float32.

    value: a vector of 16 float32.
    """
    return builder.fpext(builder.fptrunc(value, v.vector(v.SMALL, v.WIDTH)), v.FLOATS)


def put_results(builder: Any, results: Any, places: Any, idle: Any, kept: Any) -> None:
    """Emit the stores of result vectors, 16 columns each, at their places in rows of results.

    results: vectors of int32, float32 patterns. places: for each, (address of a row, number of the group of 16
    columns). idle: for each, a mask of columns to which nothing is added: their old sums are stored again, `shortened`.
    kept: mask of the bits that a result keeps.
    """
    with builder.if_else(v.any_of(builder, idle), likely=False) as (then, otherwise):
        with then:
            old = [shortened(builder, v.load(builder, row, g * v.SIZE, v.INTS), kept) for row, g in places]
            for (row, g), mask, short, result in zip(places, idle, old, results, strict=True):
                v.store(builder, builder.select(v.bits_of(builder, mask), short, result), row, g * v.SIZE)
        with otherwise:
            for (row, g), result in zip(places, results, strict=True):
                v.store(builder, result, row, g * v.SIZE)


def shortened(builder: Any, bits: Any, kept: Any) -> Any:
    """Emit and return the new patterns of accumulators to which an instruction adds nothing.

    Finite accumulators are and-ed with `kept`, after which -0 becomes +0. NaN and Inf stay unchanged.

    bits: vector of the accumulators' float32 patterns. kept: mask of the bits that a result keeps.
    """
    magnitude = builder.and_(bits, v.constant(MAGNITUDE, v.INTS))
    special = builder.icmp_signed(">=", magnitude, v.constant(EXPONENT, v.INTS))
    cut = builder.and_(bits, kept)
    is_zero = builder.icmp_signed("==", builder.and_(cut, magnitude), v.constant(0, v.INTS))
    return builder.select(special, bits, builder.select(is_zero, v.constant(0, v.INTS), cut))
