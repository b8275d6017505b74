"""Sums along the last axis, some terms at a time, so that converted terms take little memory. Loads numba.

Short lines are taken whole, several at a time. A long line is cut where its accumulator lets a sum begin anew: at a
power of two for a tree of pairs, at the end of a run, or anywhere in a chain, which goes on from the code it reached.
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
COLUMNS_OF_ONE = 16  # that loops in float32 have for one sum (float32_rows.GRANULE)
SUBTREE = 1 << 12  # terms of a tree of pairs that a long line is cut into


class Lines(NamedTuple):
    """Codes (..., K) of the terms of sums along the last axis, or of both factors of each term; a sum is a "line"."""

    a: Array | None  # None: the terms are those of b
    b: Array
    formats: tuple[Format | None, Format]

    @property
    def number(self) -> int:
        """Number of lines."""
        return math.prod(self.b.shape[:-1])

    @property
    def terms(self) -> int:
        """Terms of one line."""
        return int(self.b.shape[-1])

    def some(self, start: int, stop: int) -> Lines:
        """Return lines start .. stop, counted in C order, as a matrix; the others are not read."""
        return self._replace(a=None if self.a is None else _some(self.a, start, stop), b=_some(self.b, start, stop))

    def part(self, start: int, stop: int) -> Lines:
        """Return terms start .. stop of every line."""
        return self._replace(a=None if self.a is None else self.a[..., start:stop], b=self.b[..., start:stop])

    def folded(self, length: int) -> Lines:
        """Return one line as several of this length."""
        return self._replace(a=None if self.a is None else self.a.reshape(-1, length), b=self.b.reshape(-1, length))


def _some(array: Array, start: int, stop: int) -> Array:
    """Return lines start .. stop of an array, as a matrix, without copying more than these."""
    outer = array.shape[:-1]
    if len(outer) == 1:
        return array[start:stop]
    if stop - start == math.prod(outer):
        return array.reshape(stop - start, array.shape[-1])
    picked: Array = array[np.unravel_index(np.arange(start, stop), outer)]
    return picked


def line_sums(accumulator: Accumulator, lines: Lines) -> Array:
    """Return the sum of every line as codes of the accumulator's result format, (number,)."""
    step = max(TERMS_AT_ONCE // max(lines.terms, 1), 1)
    if lines.number <= step:
        return _matrix_sums(accumulator, lines.some(0, lines.number), 0)
    sums = np.empty(lines.number, accumulator.result_format.storage)
    for start in range(0, lines.number, step):
        stop = min(start + step, lines.number)
        sums[start:stop] = _matrix_sums(accumulator, lines.some(start, stop), start)
    return sums


def _matrix_sums(accumulator: Accumulator, lines: Lines, first: int) -> Array:
    """Return the sums of a matrix of lines; `first` is the number of its first line."""
    long = lines.terms > TERMS_AT_ONCE and lines.number == 1 and accumulator.rounding is not Rounding.STOCHASTIC
    if long and isinstance(accumulator, Pairwise) and lines.terms > SUBTREE:
        return _tree(accumulator, lines)
    if long and not isinstance(accumulator, (Exact, Pairwise)):
        return _chain(accumulator, lines)
    return accumulated(accumulator, _problem(accumulator, lines, first)).reshape(-1)


def _problem(accumulator: Accumulator, lines: Lines, first: int, c: Array | None = None) -> SumProblem:
    """Return the sums of some lines as a problem for the loops."""
    start = np.zeros((0, 0), accumulator.result_format.storage) if c is None else c.reshape(-1, 1)
    if lines.a is None:
        terms = np.zeros((1, lines.terms), np.uint8)
        return SumProblem(terms, lines.b.T, start, lines.formats, first=first)
    return SumProblem(lines.a, lines.b.reshape(-1, 1), start, lines.formats, paired=True, first=first)


def _tree(accumulator: Pairwise, line: Lines) -> Array:
    """Return the pairwise sum of one long line, as the pairwise sum of its subtrees' totals."""
    whole = line.terms // SUBTREE * SUBTREE
    totals = [line_sums(accumulator, line.part(0, whole).folded(SUBTREE))]
    if whole < line.terms:
        totals.append(line_sums(accumulator, line.part(whole, line.terms)))
    fmt = accumulator.result_format
    return line_sums(accumulator, Lines(None, np.concatenate(totals)[np.newaxis], (None, fmt)))


def _chain(accumulator: Accumulator, line: Lines) -> Array:
    """Return the sum of one long line in order: each part starts from the total of the one before."""
    run = accumulator.chunk if isinstance(accumulator, Chunked) else 1
    step = max(TERMS_AT_ONCE // (COLUMNS_OF_ONE * run), 1) * run
    total: Array | None = None
    for start in range(0, line.terms, step):
        part = line.part(start, min(start + step, line.terms))
        total = accumulated(accumulator, _problem(accumulator, part, 0, total)).reshape(-1)
    assert total is not None
    return total
