"""Products of integers on the GPU: operands, sums that wrap or saturate, zero points, and conversions of sums."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.core.layouts import pack_plan, unpack_layout
from fpsim.core.units.integers import IntegerFacts, within
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding
from fpsim.gpu.arithmetic.exact_kernels import from_integer_kernel, to_integer_kernel
from fpsim.gpu.casts.cast import has_outside
from fpsim.gpu.device.array import dtype_name, gpu_array
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import gpu_kernel, launch, scratch, uploaded
from fpsim.gpu.products.float_matrix import FloatMatrices
from fpsim.instructions.integers import facts_of
from fpsim.matrix_units.integer_unit import IntegerElement, IntegerUnit

i64, u32, u64 = np.int64, np.uint32, np.uint64

NEAREST_EVEN = int(Rounding.NEAREST_EVEN)
ALL_BITS = 0xFFFFFFFF
NO_SEED = (u64(0), u64(0))


@cache
def integer_kernel(signed_a: bool, signed_b: bool, signed_d: bool, paired: bool) -> Any:
    """Return the GPU kernel (a, b, totals, facts) -> None that adds dot products to `totals` as an integer unit does.

    signed_a, signed_b, signed_d: whether a, b and the sums are signed. paired: True to add the dot product of row i of
    a and row i of b to totals[i]; False for that of row i // N of a and column i % N of b. a, b: bits of 8-bit
    integers, as uint8. totals: 1-D bits of 32-bit sums, as uint32. facts: the constants of the unit, the fields of
    IntegerFacts.
    """

    def product(a: Any, b: Any, totals: Any, facts: Any) -> None:
        u = IntegerFacts(facts[0], facts[1], facts[2], facts[3] != 0, facts[4], facts[5])
        for i in range(cuda.grid(1), totals.size, cuda.gridsize(1)):
            m, n = (i, i) if paired else (i // b.shape[1], i % b.shape[1])
            total = i64(totals[i])
            if signed_d and total > i64(0x7FFFFFFF):
                total -= i64(0x100000000)
            for start in range(0, a.shape[1], u.terms):
                pair = i64(0)
                for k in range(start, min(i64(start + u.terms), i64(a.shape[1]))):
                    x = i64(a[m, k])
                    y = i64(b[n, k]) if paired else i64(b[k, n])
                    if signed_a and x > i64(127):
                        x -= i64(256)
                    if signed_b and y > i64(127):
                        y -= i64(256)
                    if u.pair_highest > i64(0):  # the second product of a pair replaces what the first one added
                        before = min(max(pair, u.pair_lowest), u.pair_highest)
                        pair = i64(pair + i64(x * y))
                        total += i64(min(max(pair, u.pair_lowest), u.pair_highest) - before)
                        if (k - start) % 2 == 1:
                            pair = i64(0)
                    else:
                        total += i64(x * y)
                total = within(total, u)
            totals[i] = u32(i64(total & i64(ALL_BITS)))

    return gpu_kernel(product)


@cache
def zero_point_kernel() -> Any:
    """Return the GPU kernel (totals, of_rows, of_columns, zero_a, zero_b, k) -> None that applies zero points.

    totals: (M * N,) uint32 sums of k products a * b, which become sums of (a - zero_a) * (b - zero_b) modulo 2^32.
    of_rows (M,), of_columns (N,): sums of the rows of a and the columns of b. zero_a (M,), zero_b (N,): zero points;
    all modulo 2^32.
    """

    def take(totals: Any, of_rows: Any, of_columns: Any, zero_a: Any, zero_b: Any, k: Any) -> None:
        columns = of_columns.size
        for i in range(cuda.grid(1), totals.size, cuda.gridsize(1)):
            m, n = i // columns, i % columns
            p, q = u64(zero_a[m]), u64(zero_b[n])
            both = u64(u64(p * q) & u64(ALL_BITS)) * u64(k)
            off = u64(u64(p * u64(of_columns[n])) + u64(q * u64(of_rows[m])))
            totals[i] = u32(u64(u64(u64(totals[i]) + both) - off) & u64(ALL_BITS))

    return gpu_kernel(take)


def integers_on_gpu(x: Any, element: IntegerElement, unit: IntegerUnit, name: str) -> GpuArray:
    """Return an operand x of an integer unit as a GPU array of unsigned integers with the same bits.

    element: the integer format that the unit reads for this operand. name: the argument that errors name. Raises a
    ValueError for another dtype or integers out of range, and a TypeError if x is not an array on the GPU.
    """
    array = gpu_array(x, name)
    if dtype_name(x) != element.dtype.name:
        raise ValueError(
            f"{unit.name} takes {name} of {element.name} as {element.dtype} on the GPU; got {dtype_name(x)}. Cast it "
            "there."
        )
    if element.bits < 8 and has_outside(array, element.lowest, element.highest):
        raise ValueError(
            f"{name} must hold integers {element.lowest} .. {element.highest} ({element.name}); got others. Clip them."
        )
    return array


def add_integer_products(a: Any, b: Any, totals: Any, unit: IntegerUnit, like: Any, *, paired: bool) -> None:
    """Add dot products of 8-bit integers to `totals`, in place, as an integer unit does.

    paired: True for those of row i of a and row i of b; False for those of each row of a and each column of b. a, b:
    matrices of bits, as uint8. totals: 1-D sums, as uint32. like: the array on whose stream the kernel runs.
    """
    facts = np.array([int(x) for x in facts_of(unit)], np.int64)
    kernel = integer_kernel(unit.a.signed, unit.b.signed, unit.d.signed, paired)
    launch(kernel, like, totals.size, a, b, totals, uploaded(facts))


class IntegerMatrices(FloatMatrices):
    """Operations on (M, N) matrices of 32-bit integers in GPU memory, for products by integer units.

    `Backend` in fpsim/products/backend.py describes the methods. Matrices are unsigned integers of the same bits.
    """

    def integers(self, x: Any, element: IntegerElement, unit: IntegerUnit, name: str) -> Any:
        return integers_on_gpu(x, element, unit, name).matrix

    def integer_start(self, c: Any, unit: IntegerUnit, shape: tuple[int, int]) -> Any:
        if c is None:
            return self.filled(shape, np.uint32(0))
        start = integers_on_gpu(c, unit.d, unit, "c")
        if start.shape != shape:
            raise ValueError(f"c must have the result's shape {shape}; got {start.shape}.")
        return self.copied(start.matrix)

    def add_integers(self, total: Any, a: Any, b: Any, unit: IntegerUnit) -> None:
        add_integer_products(a, b, total.reshape(math.prod(total.shape)), unit, self.like, paired=False)

    def take_zero_points(self, total: Any, left: Any, right: Any, unit: IntegerUnit) -> None:
        if 0 in total.shape or (left.zero_points is None and right.zero_points is None):
            return
        (m, n), k = total.shape, left.codes.shape[1]
        facts = np.array([max(k, 1), -(1 << 31), (1 << 31) - 1, 0, 0, 0], np.int64)
        of_rows, of_columns = (self.filled((size, 1), np.uint32(0)).reshape(size) for size in (m, n))
        ones = self.sent(np.ones((k, 1), np.uint8)), self.sent(np.ones((1, k), np.uint8))
        of_a = integer_kernel(unit.a.signed, False, True, False)
        of_b = integer_kernel(False, unit.b.signed, True, False)
        launch(of_a, self.like, m, left.codes, ones[0], of_rows, uploaded(facts))
        launch(of_b, self.like, n, ones[1], right.codes, of_columns, uploaded(facts))
        points = []
        for x, size in ((left, m), (right, n)):
            numbers = np.asarray(0 if x.zero_points is None else x.zero_points, np.int64).reshape(-1)
            points.append(self.sent(np.broadcast_to(numbers & ALL_BITS, size).astype(u32)))
        flat = total.reshape(math.prod(total.shape))
        launch(zero_point_kernel(), self.like, flat.size, flat, of_rows, of_columns, *points, u64(k))

    def floats_of_integers(self, total: Any, signed: bool) -> Any:
        result, size = scratch(total.shape, u32), math.prod(total.shape)
        plan = pack_plan(FP32, Rounding.NEAREST_EVEN, "nonfinite", "keep", 32, "after")
        launch(
            from_integer_kernel(NEAREST_EVEN), self.like, size, total.reshape(size), result.reshape(size),
            scratch(0, np.uint8), u64(1 << 31 if signed else 0), uploaded(plan.layout), u64(plan.rules), NO_SEED,
        )  # fmt: skip
        return result

    def deliver_integers(self, total: Any, dtype: np.dtype[Any], target: Any, floats: bool) -> None:
        if not floats:
            self.copied(total, target)
            return
        size, ends = math.prod(total.shape), np.iinfo(dtype)
        words = total.reshape(size)  # no longer needed by the caller
        self.with_one_nan(words, FP32.max_code + 1, FP32.sign_bit, 0)
        launch(
            to_integer_kernel(NEAREST_EVEN), self.like, size, words, target.reshape(size), scratch(0, np.uint8),
            uploaded(unpack_layout(FP32, "keep")), u64(-int(ends.min)), u64(ends.max), u64(0),
            u64((1 << 8 * dtype.itemsize) - 1), NO_SEED,
        )  # fmt: skip
