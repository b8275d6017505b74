"""Sums along the last axis, a limited number of terms at a time, so that converted terms take little memory.

A long sum is split where its accumulator allows. Imports numba.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import Format
from fpsim.formats.rounding import Rounding
from fpsim.sums.accumulate import SumProblem, accumulated
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, Pairwise

TERMS_AT_ONCE = 1 << 20  # held as words
COLUMNS_OF_ONE = 16  # columns that float32 loops compute for one sum (float32_rows.GRANULE)
SUBTREE = 1 << 12  # terms of each subtree into which a long pairwise sum is cut


class Lines(NamedTuple):
    """Operands of sums along the last axis of arrays of shape (..., K), as codes: one sum per index of the other axes.

    Attributes:
      a, b: factors of each term; if a is None, b holds the terms.
      formats: formats of a and b; the first is None if a is None.
    """

    a: Array | None
    b: Array
    formats: tuple[Format | None, Format]

    @property
    def number(self) -> int:
        """Number of sums, one for each index of the axes before the last."""
        return math.prod(self.b.shape[:-1])

    @property
    def terms(self) -> int:
        """Number of terms in each sum."""
        return int(self.b.shape[-1])

    def some(self, start: int, stop: int) -> Lines:
        """Return the operands of sums start .. stop - 1, counted in C order, as 2-D arrays (stop - start, K)."""
        return self._replace(a=None if self.a is None else _some(self.a, start, stop), b=_some(self.b, start, stop))

    def part(self, start: int, stop: int) -> Lines:
        """Return the operands of shorter sums, with only the terms start .. stop - 1 of each sum."""
        return self._replace(a=None if self.a is None else self.a[..., start:stop], b=self.b[..., start:stop])

    def folded(self, length: int) -> Lines:
        """Return the operands of a single sum of K terms as those of K / length sums of `length` consecutive terms."""
        return self._replace(a=None if self.a is None else self.a.reshape(-1, length), b=self.b.reshape(-1, length))


def _some(array: Array, start: int, stop: int) -> Array:
    """Return rows start .. stop - 1 of an array viewed as (rows, K), copying no other rows."""
    outer = array.shape[:-1]
    if len(outer) == 1:
        return array[start:stop]
    if stop - start == math.prod(outer):
        return array.reshape(stop - start, array.shape[-1])
    picked: Array = array[np.unravel_index(np.arange(start, stop), outer)]
    return picked


def line_sums(accumulator: Accumulator, lines: Lines) -> Array:
    """Return the sum over the last axis of all `lines`, as 1-D codes of the accumulator's result format.

    The sums are in C order of the operands' other axes.
    """
    step = max(TERMS_AT_ONCE // max(lines.terms, 1), 1)
    if lines.number <= step:
        return _matrix_sums(accumulator, lines.some(0, lines.number), 0)
    sums = np.empty(lines.number, accumulator.result_format.storage)
    for start in range(0, lines.number, step):
        stop = min(start + step, lines.number)
        sums[start:stop] = _matrix_sums(accumulator, lines.some(start, stop), start)
    return sums


def _matrix_sums(accumulator: Accumulator, lines: Lines, first: int) -> Array:
    """Return the sums of `lines`, 2-D operands (rows, K), one per row, as codes of the accumulator's result format.

    first: index of the first sum, on which random numbers depend.
    """
    long = lines.terms > TERMS_AT_ONCE and lines.number == 1 and accumulator.rounding is not Rounding.STOCHASTIC
    if long and isinstance(accumulator, Pairwise) and lines.terms > SUBTREE:
        return _tree(accumulator, lines)
    if long and not isinstance(accumulator, (Exact, Pairwise)):
        return _chain(accumulator, lines)
    return accumulated(accumulator, _problem(accumulator, lines, first)).reshape(-1)


def _problem(accumulator: Accumulator, lines: Lines, first: int, c: Array | None = None) -> SumProblem:
    """Return a SumProblem with one column of results, the sums of `lines`, 2-D operands (rows, K), one per row.

    accumulator: decides the format of c. first: index of the first sum, on which random numbers depend. c: (rows,)
    codes from which sums start, or None for 0.
    """
    start = np.zeros((0, 0), accumulator.result_format.storage) if c is None else c.reshape(-1, 1)
    if lines.a is None:
        terms = np.zeros((1, lines.terms), np.uint8)
        return SumProblem(terms, lines.b.T, start, lines.formats, first=first)
    return SumProblem(lines.a, lines.b.reshape(-1, 1), start, lines.formats, paired=True, first=first)


def _tree(accumulator: Pairwise, line: Lines) -> Array:
    """Return one pairwise sum of more than TERMS_AT_ONCE (2**20) terms, (1,) codes.

    Subtrees of 4096 terms are summed first, then their totals. accumulator: formats and rounding. line: the operands.
    """
    whole = line.terms // SUBTREE * SUBTREE
    totals = [line_sums(accumulator, line.part(0, whole).folded(SUBTREE))]
    if whole < line.terms:
        totals.append(line_sums(accumulator, line.part(whole, line.terms)))
    fmt = accumulator.result_format
    return line_sums(accumulator, Lines(None, np.concatenate(totals)[np.newaxis], (None, fmt)))


def _chain(accumulator: Accumulator, line: Lines) -> Array:
    """Return one sum of more than TERMS_AT_ONCE (2**20) terms in ascending order, (1,) codes.

    The terms are added part by part, each part to the total of the previous ones. accumulator: a Sequential,
    FusedMultiplyAdd or Chunked. line: the operands of the sum.
    """
    run = accumulator.chunk if isinstance(accumulator, Chunked) else 1
    step = max(TERMS_AT_ONCE // (COLUMNS_OF_ONE * run), 1) * run
    total: Array | None = None
    for start in range(0, line.terms, step):
        part = line.part(start, min(start + step, line.terms))
        total = accumulated(accumulator, _problem(accumulator, part, 0, total)).reshape(-1)
    assert total is not None
    return total
