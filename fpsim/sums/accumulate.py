"""Sums of products of two matrices of codes by an accumulator: the choice of a compiled loop, and its call.

Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from fpsim.arrays import Array
from fpsim.casts.pipelines import encoding
from fpsim.core.layouts import unpack_layout
from fpsim.core.sums.sum_order import Randomness, Rows, Targets
from fpsim.errors import shown
from fpsim.formats.named import FP32, FP64, Format
from fpsim.runtime.general_loops import replaces
from fpsim.runtime.pipeline import run_stages, wrapping
from fpsim.runtime.processor import ieee_arithmetic, under_ieee
from fpsim.runtime.threads import over_units
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise
from fpsim.sums.float32_plan import Float32Sums, codes_of, exactly, float32_sums, float_words, strips_kernel
from fpsim.sums.float32_sums import NO_C, ONE, summed
from fpsim.sums.kernels import exact_bins
from fpsim.sums.kernels.exact import exact_kernel
from fpsim.sums.kernels.loops import pairwise_kernel, sequence_kernel
from fpsim.sums.kernels.steps import TILE_COLUMNS
from fpsim.sums.plan import (
    NO_LAYOUT,
    ExactPlan,
    exact_plan,
    lowest_place,
    options_of,
    products_fit,
    randomness,
    seedless,
    target,
    ways,
)

u32, u64 = np.uint32, np.uint64
NOTHING = np.zeros((0, 0), u64)
STEP_COST = 16  # elements of a cast that take as long as a step of one sum
NARROW = 1 << 21  # number of codes from which a loop is compiled for their dtype, instead of copying them to 64 bits
FEW_PRODUCTS = 1 << 12  # number of products up to which digits are faster than converting the operands to floats


class SumProblem(NamedTuple):
    """The operands of M * N sums, each of K products of a row of a and a column of b: codes, formats and options.

    Attributes:
      a: (M, K) codes.
      b: (K, N) codes; (M * K, 1) if `paired`.
      c: (M, N) codes from which sums start, or empty for 0.
      formats: formats of a and b. If formats[0] is None, a is all ones, and the sums are those of the columns of b.
      paired: True if row i of a is multiplied by rows i * K to (i + 1) * K - 1 of b instead; N is 1 then.
      first: index of the first sum, which determines its random numbers.
      products: read if a is all ones. True: b holds products of two operands. False: b holds terms, which Sequential
        and Chunked do not round before they add them.
    """

    a: Array
    b: Array
    c: Array
    formats: tuple[Format | None, Format]
    paired: bool = False
    first: int = 0
    products: bool = False

    @property
    def are_terms(self) -> bool:
        """True if a is all ones and b holds plain terms, not products of two operands."""
        return self.formats[0] is None and not self.products

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the result, (M, N)."""
        return self.a.shape[0], self.b.shape[1]

    @property
    def terms(self) -> int:
        """Number of products in one sum, K."""
        return int(self.a.shape[1])

    @property
    def work(self) -> int:
        """Number of products in all sums, M * N * K."""
        return self.terms * self.shape[0] * self.shape[1]

    @property
    def step(self) -> int:
        """Distance in b between the operands of one row of a and those of the next, in rows of b.

        It is K if `paired`, as row i of a then begins at row i * K of b; else 0, as all rows of a share b.
        """
        return self.terms if self.paired else 0


def accumulated(accumulator: Accumulator, problem: SumProblem) -> Array:
    """Return the sums of a problem (operands, formats and options), as (M, N) codes of the accumulator's result format.

    Raises:
      ValueError: operands are FP64, and the accumulator is neither Exact nor in FP64.
    """
    refuse_wide_operands(accumulator, problem.formats)
    fmt = accumulator.result_format
    if problem.terms == 0 or 0 in problem.shape:
        return canonical(problem.c, fmt) if problem.c.size else np.zeros(problem.shape, fmt.storage)
    if isinstance(accumulator, Exact):
        return _exact(accumulator, problem)
    plan = None if problem.paired else float32_sums(seedless(accumulator), problem.formats)
    if plan is None or replaces(strips_kernel(plan.way.how), problem.work):
        return _in_words(accumulator, problem)
    return _fast(accumulator, problem, plan)


def refuse_wide_operands(accumulator: Accumulator, formats: tuple[Format | None, Format]) -> None:
    """Raise a ValueError if two operands have the `formats`, one of them FP64, and the accumulator cannot add them.

    Exact and accumulators in FP64 can add products of FP64. A single operand (a format is None) is always accepted.
    """
    if FP64 not in formats:
        return
    double = accumulator.fmt == accumulator.result_format == FP64
    if None not in formats and not double and not isinstance(accumulator, Exact):
        raise ValueError(
            f"products of FP64 are added by an accumulator in FP64 or by Exact; got {shown(accumulator)}. "
            "Round the operands first with fpsim.cast."
        )


def canonical(codes: Array, fmt: Format) -> Array:
    """Return codes of `fmt` in its storage dtype, with every NaN replaced by the canonical NaN of the format."""
    if fmt.nan_code is None:
        return codes.astype(fmt.storage, copy=False)
    magnitude = codes & fmt.storage.type(fmt.top_magnitude)
    is_nan = magnitude > fmt.storage.type(fmt.max_code)
    if fmt.infinity_code is not None:
        is_nan &= magnitude != fmt.storage.type(fmt.infinity_code)
    return np.where(is_nan, fmt.storage.type(fmt.nan_code), codes).astype(fmt.storage, copy=False)


# ---- words


def _as_words(codes: Array, fmt: Format, in_float64: bool) -> Array:
    """Return codes of format `fmt` as uint64 in C order, or their values as bit patterns of float64.

    in_float64: True for the values.
    """
    return float_words(codes, fmt, FP64) if in_float64 else np.ascontiguousarray(codes, u64)


def _as_codes(words: Array, fmt: Format, in_float64: bool) -> Array:
    """Return sums as codes of `fmt`; words: codes as uint64, or, if `in_float64`, bit patterns of float64.

    A NaN keeps its sign, since an overflow in a format without Inf gives a NaN with the sign of the sum.
    """
    if fmt == FP64:
        return canonical(words, fmt)
    if not in_float64:
        return words.astype(fmt.storage, copy=False)
    codes = np.empty(words.shape, fmt.storage)
    run_stages(encoding(FP64, exactly(fmt)), words, codes)
    return codes


# ---- sums in float32


def _fast(accumulator: Accumulator, problem: SumProblem, plan: Float32Sums) -> Array:
    """Return the sums of `problem`, computed in float32 by `plan`, as (M, N) codes of the accumulator's result format.

    Blocks of the result whose sums may leave the range of float32 are computed in 64 bits instead.
    """
    left = np.full(problem.a.shape, ONE) if problem.formats[0] is None else problem.a
    (a, of_a), (b, of_b) = (codes_of(x, fmt) for x, fmt in zip((left, problem.b), plan.formats, strict=True))
    c = float_words(problem.c, plan.result, FP32) if problem.c.size else NO_C
    result = np.empty(problem.shape, plan.dtype)
    with ieee_arithmetic():
        lost = summed(plan, a, b, (of_a, of_b), c, result)
    codes = result.view(plan.result.storage)
    for rows, columns in lost:
        c_here = problem.c[rows, columns] if problem.c.size else problem.c
        part = problem._replace(a=problem.a[rows], b=problem.b[:, columns], c=c_here)
        codes[rows, columns] = _in_words(accumulator, part)
    return codes


# ---- sums of any kind


def _in_words(accumulator: Accumulator, problem: SumProblem) -> Array:
    """Return the sums of `problem`, computed in 64-bit words, as codes of the accumulator's result format, (M, N).

    The words are float64 values if these hold all products and sums and the loop for them need not be compiled first
    (see `general_loops`), else codes.
    """
    way, outer_way = ways(seedless(accumulator), problem.formats)
    if FP64 not in problem.formats and replaces(_loop_of(accumulator, way, outer_way), problem.work):
        way, outer_way = "core", "core"
    return _generic(accumulator, problem, way, outer_way)


def _loop_of(accumulator: Accumulator, way: str, outer_way: str) -> Any:
    """Return the compiled loop of an accumulator that is not Exact.

    way: representation of sums: "core" (codes, added in integer arithmetic), "double" (FP64 sums, as float64), or the
    name of a rounding mode, such as "nearest" or "any" (values in float64, rounded to the format in that mode).
    outer_way: that of Chunked's outer sums.
    """
    return pairwise_kernel(way) if isinstance(accumulator, Pairwise) else sequence_kernel(way, outer_way)


def _generic(accumulator: Accumulator, problem: SumProblem, way: str, outer_way: str) -> Array:
    """Return the sums of `problem`, computed in 64-bit words, as codes of the accumulator's result format, (M, N).

    way, outer_way: representations of sums and of Chunked's outer sums, codes or float64 values, as for `_loop_of`.
    """
    in_float64 = way != "core"
    if problem.paired and (in_float64 and (way != "double" or not isinstance(accumulator, FusedMultiplyAdd))):
        return _generic(accumulator, _with_products(problem), way, outer_way).reshape(problem.shape)
    fmt, outer = accumulator.fmt, accumulator.result_format
    a_format, b_format = problem.formats
    a = (
        np.full(problem.a.shape, np.float64(1).view(u64))
        if a_format is None
        else _as_words(problem.a, a_format, in_float64)
    )
    b = _as_words(problem.b, b_format, in_float64)
    c = _as_words(problem.c, outer, in_float64) if problem.c.size else NOTHING
    out, rows = np.empty(problem.shape, u64), Rows(a, b, problem.step, c)
    inner = target(options_of(accumulator, fmt), in_float64)
    targets = Targets(
        NO_LAYOUT if a_format is None or in_float64 else unpack_layout(a_format, "keep"),
        NO_LAYOUT if in_float64 else unpack_layout(b_format, "keep"),
        inner,
        inner if outer is fmt else target(options_of(accumulator, outer), in_float64),
    )
    random = randomness(accumulator, problem.terms, problem.first)
    chunked = isinstance(accumulator, Chunked)
    chunk = min(accumulator.chunk, max(problem.terms, 1)) if isinstance(accumulator, Chunked) else problem.terms
    fused = isinstance(accumulator, FusedMultiplyAdd) or (problem.are_terms and not isinstance(accumulator, Pairwise))
    kernel = _loop_of(accumulator, way, outer_way)

    def work(first: int, stop: int) -> None:
        with ieee_arithmetic(), wrapping():
            kernel(rows, out, first, stop, chunk, not chunked, fused, targets, random)

    tiles = -(-problem.shape[1] // TILE_COLUMNS)
    over_units(problem.shape[0] * tiles, problem.terms * min(TILE_COLUMNS, problem.shape[1]) * STEP_COST, work)
    return _as_codes(out, outer, in_float64)


@under_ieee
def _with_products(problem: SumProblem) -> SumProblem:
    """Compute the products of a paired problem in float64, (K, M); return the problem of summing their columns.

    A problem is paired if every row of a has separate factors in b. Loops compute one sum of a paired problem at a
    time, but the sums of many columns at once.
    """
    a_format, b_format = problem.formats
    assert a_format is not None
    left = float_words(problem.a, a_format, FP64).view(np.float64)
    right = float_words(problem.b, b_format, FP64).view(np.float64).reshape(left.shape)
    with np.errstate(all="ignore"):
        products = np.ascontiguousarray((left * right).T)
    c = problem.c.reshape(1, -1) if problem.c.size else problem.c
    ones = np.zeros((1, problem.terms), np.uint8)
    return SumProblem(ones, products.view(u64), c, (None, FP64), first=problem.first, products=True)


def _exact(accumulator: Exact, problem: SumProblem) -> Array:
    """Return the exact sums of `problem`, each rounded once to the accumulator's format, as (M, N) codes."""
    plan = exact_plan(seedless(accumulator), problem.formats, problem.c.size > 0)
    large = max(problem.a.size, problem.b.size) > NARROW
    a, b = (x if large and x.dtype.isnative else np.ascontiguousarray(x, u64) for x in (problem.a, problem.b))
    c = np.ascontiguousarray(problem.c, u64) if problem.c.size else NOTHING
    out, rows = np.empty(problem.shape, u64), Rows(a, b, problem.step, c)
    random = randomness(accumulator, problem.terms, problem.first)
    run, count, cost = exact_kernel(), out.size, problem.terms * STEP_COST
    if _fits_bins(problem):
        strips = -(-out.shape[0] // exact_bins.STRIP) * -(-out.shape[1] // exact_bins.COLUMNS)
        run, count, cost = _in_bins(problem), strips, problem.terms * out.size // strips

    def work(first: int, stop: int) -> None:
        with ieee_arithmetic(), wrapping():
            run(rows, out, first, stop, plan, random)

    over_units(count, cost, work)
    return _as_codes(out, accumulator.fmt, False)


def _fits_bins(problem: SumProblem) -> bool:
    """Return whether the kernel of exact_bins.py can compute these exact sums in one or two float64 numbers ("bins").

    Conditions: every term is a product that float64 holds exactly; there are FEW_PRODUCTS products or more; numba
    compiles; the kernel is compiled, or `general_loops` does not replace it (runtime/general_loops.py); and the problem
    is the product of two matrices (not `paired`, where each row of a has separate factors in b).
    """
    few = problem.work < FEW_PRODUCTS or replaces(exact_bins.strips_kernel(), problem.work)
    usual = not (problem.paired or few or numba.config.DISABLE_JIT)
    return usual and None not in problem.formats and products_fit(problem.formats)


def _in_bins(problem: SumProblem) -> Callable[..., None]:
    """Return the function (rows, out, first, stop, plan, random) -> None that computes exact sums in float64.

    It fills blocks first .. stop - 1 (of 64 rows by 64 columns) of `out`, (M, N) uint64 codes. rows: a Rows with the
    operands' codes. plan: an ExactPlan, the range of exponents of the sums, and how they are rounded. random: a
    Randomness, rounding mode and seed. problem: the operands and formats.
    """
    (a_format, b_format), kernel = problem.formats, exact_bins.strips_kernel()
    assert a_format is not None
    operands = zip((problem.a, problem.b), (a_format, b_format), strict=True)
    a, b = (float_words(codes, fmt, FP64).view(np.float64) for codes, fmt in operands)
    spans = np.array([[lowest_place(a_format), lowest_place(b_format)], [a_format.precision, b_format.precision]])

    def run(rows: Rows, out: Array, first: int, stop: int, plan: ExactPlan, random: Randomness) -> None:
        kernel(rows, a, b, out, first, stop, spans, plan, random)

    return run
