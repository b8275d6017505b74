"""Accumulators on the GPU: every rounding by the integer functions of fpsim/core, one thread per result."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.core.layouts import unpack_layout
from fpsim.core.philox import random_word
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.sums.exact_sum import exact_sum, sum_layouts
from fpsim.core.sums.running_sum import code_lanes
from fpsim.core.sums.sum_order import (
    ChainOrder,
    Function,
    LaneSteps,
    Randomness,
    Rows,
    SumTile,
    Targets,
    Words,
    fill_words,
    number_levels,
    tile_by_pairs,
    tile_in_order,
)
from fpsim.formats.named import FP64, Format
from fpsim.gpu.device.launch import gpu_kernel, launch, uploaded_rows
from fpsim.runtime.compile import scalar
from fpsim.sums.accumulate import refuse_wide_operands
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise
from fpsim.sums.plan import NO_LAYOUT, exact_plan, options_of, randomness, seedless, target

i64, u64 = np.int64, np.uint64

ROOM = 8  # sizes of arrays of a thread are multiples of it, so that few kernels are compiled


class GpuSumProblem(NamedTuple):
    """The matrices of codes on the GPU whose products are summed, and their formats.

    Attributes:
      a, b: codes (M, K) and (K, N), for M * N sums.
      c: codes added to the sums, (M, N), or (0, 0) for none.
      formats: those of a and b. If that of a is None, the terms are the elements of b; a gives only the shape.
      paired: True if b is (M * K, N), and row i of a is multiplied by rows i * K .. (i + 1) * K - 1 of b.
      first: index of the first sum, on which random numbers depend.
    """

    a: Any
    b: Any
    c: Any
    formats: tuple[Format | None, Format]
    paired: bool = False
    first: int = 0

    @property
    def terms(self) -> int:
        """Number of terms of one sum."""
        return int(self.a.shape[1])


@cache
def _fill_words() -> Function:
    """Return the GPU function (words, n, output, step, r) -> None that fills `words`, (4, n), with random words.

    words[w, j] receives the random word of rounding number step + w in the sum with index output + j. r: the source of
    random numbers, a Randomness.
    """
    return scalar(fill_words)


@cache
def _lanes(wide: bool) -> LaneSteps:
    """Return the GPU functions that multiply, add, and multiply-add codes, each rounding once, as a LaneSteps.

    wide: whether factors may have significands of more than 31 bits, as in FP64.
    """
    return LaneSteps(*map(scalar, code_lanes(wide)))


@cache
def sequence_kernel(mode: int, chained: bool, fused: bool, wide: bool) -> Any:
    """Return the GPU kernel (a, b, rows, c, out, chunk, layouts, r) -> None of sums in ascending order of terms.

    Args:
      mode: number of the rounding mode.
      chained: whether all terms are added to c (or +0) one by one; else each chunk of `chunk` terms is added up from
        +0, and the chunks' sums are added to c (or +0) in order.
      fused: whether products are not rounded before they are added.
      wide: whether factors may have significands of more than 31 bits.

    Arguments of the kernel:
      a, b, c, out: matrices of codes as in `GpuSumProblem`; c may be empty, and out receives the sums.
      rows: number of rows of b that belong to one row of a; 0 if all rows of a use the same b.
      chunk: number of terms of a chunk.
      layouts: rows of integers, the constants that decode a and b, and encode sums within a chunk and of the chunks.
      r: the source of random numbers, a Randomness, whose mode is not read.
    """
    steps = _lanes(wide)
    one_sum = scalar(tile_in_order(steps, steps.add, _fill_words()))

    def sequence(a: Any, b: Any, rows: Any, c: Any, out: Any, chunk: Any, layouts: Any, r: Randomness) -> None:
        t = cuda.local.array((3, 1), np.uint64)
        for_products = cuda.local.array((4, 1), np.uint32)
        for_sums = cuda.local.array((4, 1), np.uint32)
        for_joins = cuda.local.array((4, 1), np.uint32)
        words = Words(for_products, for_sums, for_joins)
        x, f = Rows(a, b, rows, c), Targets(layouts[0], layouts[1], layouts[2], layouts[3])
        fixed, chain = Randomness(mode, r.stride, r.k0, r.k1, r.first), ChainOrder(chunk, chained, fused)
        columns = out.shape[1]
        for output in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            i, j = output // columns, output % columns
            one_sum(x, out, SumTile(i, j, 1, u64(output)), chain, f, fixed, t, words)

    return gpu_kernel(sequence)


@cache
def pairwise_kernel(mode: int, depth: int, wide: bool) -> Any:
    """Return the GPU kernel (a, b, rows, c, out, layouts, r) -> None of pairwise sums, to which c is added last.

    mode: number of the rounding mode. depth: number of partial sums that a thread can store. wide: whether factors may
    have significands of more than 31 bits. a, b, c, out: matrices of codes as in `GpuSumProblem`; c may be empty, and
    out receives the sums. rows: number of rows of b that belong to one row of a; 0 if all use the same b. layouts: rows
    of integers, the constants that decode a and b and encode sums. r: the source of random numbers, a Randomness.
    """
    one_sum = scalar(tile_by_pairs(_lanes(wide), _fill_words()))

    def pairwise(a: Any, b: Any, rows: Any, c: Any, out: Any, layouts: Any, r: Randomness) -> None:
        stack = cuda.local.array((depth, 1), np.uint64)
        numbers = cuda.local.array(depth, np.int64)
        for_products = cuda.local.array((4, 1), np.uint32)
        for_sums = cuda.local.array((4, 1), np.uint32)
        words = Words(for_products, for_sums, for_sums)
        x, f = Rows(a, b, rows, c), Targets(layouts[0], layouts[1], layouts[2], layouts[2])
        fixed = Randomness(mode, r.stride, r.k0, r.k1, r.first)
        number_levels(numbers, a.shape[1])
        columns = out.shape[1]
        for output in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            i, j = output // columns, output % columns
            one_sum(x, out, SumTile(i, j, 1, u64(output)), f, fixed, stack, numbers, words)

    return gpu_kernel(pairwise)


@cache
def exact_kernel(mode: int, room: int, products: bool) -> Any:
    """Return the GPU kernel (a, b, rows, c, out, origin, layouts, rules, r) -> None of exact sums, rounded once.

    mode: number of the rounding mode. room: number of 64-bit digits of an exact sum. products: True to add a * b, False
    to add the elements of b alone. a, b, c, out: matrices of codes as in `GpuSumProblem`; c may be empty, and out
    receives the sums. rows: number of rows of b that belong to one row of a; 0 if all use the same b. origin: exponent
    of the lowest digit. layouts: rows of integers, the constants that decode a, b and c and encode the result. rules:
    sum of LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED of fpsim/core/pack.py. r: the source of random numbers.
    """

    def exact(
        a: Any, b: Any, rows: Any, c: Any, out: Any, origin: Any, layouts: Any, rules: Any, r: Randomness
    ) -> None:
        f = sum_layouts((layouts[0], layouts[1], layouts[2], layouts[3]), mode, rules)
        digits = cuda.local.array(room, np.int64)
        columns = out.shape[1]
        for output in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            i, j = output // columns, output % columns
            word = u64(random_word(u64(u64(output) + r.first), r.k0, r.k1)) if mode == STOCHASTIC else u64(0)
            out[i, j] = exact_sum(Rows(a, b, rows, c), i, j, products, digits, origin, f, word)

    return gpu_kernel(exact)


@cache
def _nothing_kernel() -> Any:
    """Return the GPU kernel (c, out, magnitude, largest, infinity, nan) -> None for K = 0, where the sums are c.

    It copies the codes c to out, with the code `nan` for every NaN, or writes zeros if c is empty. magnitude: mask of
    all bits but the sign. largest: largest finite magnitude. infinity: magnitude code of Inf.
    """

    def nothing(c: Any, out: Any, magnitude: Any, largest: Any, infinity: Any, nan: Any) -> None:
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            code = u64(c[i]) if c.size > 0 else u64(0)
            beyond = (u64(code & magnitude) > largest) & (u64(code & magnitude) != infinity)
            out[i] = nan if beyond else code

    return gpu_kernel(nothing)


def fill_sums(accumulator: Accumulator, problem: GpuSumProblem, out: Any, like: Any) -> None:
    """Write the sums of a problem to `out`, (M, N) codes of the accumulator's result format; out may be problem.c.

    accumulator: the order and the roundings of the sums. problem: the matrices. like: the array on whose library's
    stream the kernels run.

    Raises:
      ValueError: operands in FP64 that the accumulator, in a narrower format, cannot multiply.
    """
    refuse_wide_operands(accumulator, problem.formats)
    terms, mode = problem.terms, int(accumulator.rounding)
    if terms == 0:
        _copy_start(accumulator.result_format, problem.c, out, like)
        return
    multiplies = problem.formats[0] is not None
    wide = multiplies and FP64 in problem.formats
    decoders = [NO_LAYOUT if fmt is None else unpack_layout(fmt, "keep") for fmt in problem.formats]
    more: tuple[Any, ...]
    if isinstance(accumulator, Exact):
        plan = exact_plan(seedless(accumulator), problem.formats, math.prod(problem.c.shape) > 0)
        kernel = exact_kernel(mode, -(-plan.digits // ROOM) * ROOM, multiplies)
        more = i64(plan.lowest), uploaded_rows(*plan.layouts), plan.rules
    elif isinstance(accumulator, Pairwise):
        depth = terms.bit_length() + 2  # a thread stores one partial sum for every level, one more term, and c
        kernel = pairwise_kernel(mode, -(-depth // ROOM) * ROOM, wide)
        more = (uploaded_rows(*decoders, target(options_of(accumulator, accumulator.fmt), False)),)
    else:
        fused = isinstance(accumulator, FusedMultiplyAdd) or not multiplies
        kernel = sequence_kernel(mode, not isinstance(accumulator, Chunked), fused, wide)
        chunk = min(accumulator.chunk, terms) if isinstance(accumulator, Chunked) else terms
        targets = [target(options_of(accumulator, fmt), False) for fmt in (accumulator.fmt, accumulator.result_format)]
        more = chunk, uploaded_rows(*decoders, *targets)
    rows = terms if problem.paired else 0
    r = randomness(accumulator, terms, problem.first)
    launch(kernel, like, math.prod(out.shape), problem.a, problem.b, rows, problem.c, out, *more, r)


def _copy_start(fmt: Format, c: Any, out: Any, like: Any) -> None:
    """Write the sums for K = 0 to `out`, (M, N) codes of `fmt`: c with canonical NaNs, or +0 if c is empty.

    c: codes of `fmt`, (M, N) or (0, 0). like: the array on whose library's stream the kernel runs.
    """
    size, most = math.prod(out.shape), (1 << 64) - 1
    has_nan = fmt.nan_code is not None
    infinity = most if fmt.infinity_code is None else fmt.infinity_code
    launch(
        _nothing_kernel(), like, size, c.reshape(math.prod(c.shape)), out.reshape(size), u64(fmt.top_magnitude),
        u64(fmt.max_code if has_nan else most), u64(infinity), u64(fmt.nan_code or 0),
    )  # fmt: skip
