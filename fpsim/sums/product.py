"""The product of two matrices of codes, summed by an emulated accumulator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fpsim.arrays import Array, overlaps
from fpsim.formats.named import Format
from fpsim.formats.rounding import Rounding
from fpsim.lazy import deferred
from fpsim.sums.accumulators import Accumulator

accumulate = deferred("fpsim.sums.accumulate")  # imports numba
BLOCK = 1 << 21  # terms of an operand that are held as words at a time
COLUMNS = 64  # the fewest columns of a block, as many as the loops process at once


def accumulator_product(
    a: Array,
    b: Array,
    c: Array | None,
    accumulator: Accumulator,
    *,
    formats: tuple[Format, Format],
    out: Array | None = None,
    first: int = 0,
) -> Array:
    """Return a @ b + c, each element summed by the accumulator.

    Args:
      a, b: (M, K) and (K, N) unsigned codes of `formats`, in range.
      c: (M, N) codes of the accumulator's result format, or None.
      accumulator: `Sequential`, `FusedMultiplyAdd`, `Pairwise`, `Chunked` or `Exact`.
      formats: the formats of a and b.
      out: (M, N) array of the result's dtype to fill; it may be c.
      first: the index of the first sum; the random numbers of stochastic sums depend on the sums' indices.

    Returns:
      (M, N) codes of the result format, in its storage dtype.

    Raises:
      ValueError: shapes that do not match, or FP64 operands that the accumulator does not take.

    Source: docs/accumulators.md.

    Example:
      >>> import fpsim as fp
      >>> ones = np.full((2, 2), 0x38, np.uint8)
      >>> accumulator_product(ones, ones, None, fp.Sequential("fp16"), formats=(fp.E4M3, fp.E4M3)).view(np.float16)
      array([[2., 2.],
             [2., 2.]], dtype=float16)
    """
    sums = accumulate()
    fmt = accumulator.result_format
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a product of matrices needs shapes (M, K) and (K, N); got {a.shape} and {b.shape}.")
    shape = (a.shape[0], b.shape[1])
    if c is not None and c.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {c.shape}.")
    if out is not None and (out.shape != shape or out.dtype != fmt.storage):
        raise ValueError(
            f"out must have the result's shape {shape} and dtype {fmt.storage}; got {out.shape}, {out.dtype}."
        )
    start = np.zeros((0, 0), fmt.storage) if c is None else c
    if max(a.size, b.size) <= BLOCK:
        codes: Array = sums.accumulated(accumulator, sums.SumProblem(a, b, start, formats, first=first))
        if out is None:
            return codes
        np.copyto(out, codes)
        return out
    target = np.empty(shape, fmt.storage) if out is None else out
    if c is not None and out is not None and overlaps(c, out):
        start = c.copy()  # a block may write what a later one reads
    for rows, columns in _blocks(accumulator, shape, a.shape[1]):
        part = start if c is None else start[rows, columns]
        problem = sums.SumProblem(a[rows], b[:, columns], part, formats, first=first + rows.start * shape[1])
        target[rows, columns] = sums.accumulated(accumulator, problem)
    return target


def _blocks(accumulator: Accumulator, shape: tuple[int, int], terms: int) -> Iterator[tuple[slice, slice]]:
    """Yield (slice of rows, slice of columns) for the blocks into which the result is cut to limit memory.

    If the accumulator rounds stochastically, blocks have whole rows, as random numbers follow the outputs' indices in C
    order. shape: (M, N) of the result. terms: K.
    """
    side = max(BLOCK // max(terms, 1), COLUMNS) // COLUMNS * COLUMNS
    wide = shape[1] if accumulator.rounding is Rounding.STOCHASTIC else side
    for j in range(0, shape[1], max(wide, 1)):
        for i in range(0, shape[0], side):
            yield slice(i, min(i + side, shape[0])), slice(j, min(j + wide, shape[1]))
