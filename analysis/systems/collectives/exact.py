"""Exact sums of the ranks' contributions, each rounded once."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.systems.collectives.contributions import CodeRows, Source
from fpsim.analysis.systems.collectives.loops import add_rows_kernel, round_to_odd_kernel
from fpsim.analysis.systems.collectives.rounding import SEND, Adder
from fpsim.arrays import Array, words
from fpsim.casts.cast import decode
from fpsim.formats.named import FP32, FP64
from fpsim.products.reduce import sum as sum_of
from fpsim.runtime.threads import over_spans
from fpsim.sums.accumulators import Exact

AT_ONCE = 8  # contributions that a loop adds while a sum is in registers
MOST_CELLS = 1 << 24  # most entries of a matrix (elements, ranks) passed to fp.sum


class Sums:
    """Running sums of many elements, each held as two float64 numbers, `high + low`.

    `lost` is 0 where the two numbers are the exact sum, NaN after a term of Inf or NaN, and positive otherwise.

    Terms are float32, after `widen` float64. size: number of sums.
    """

    def __init__(self, size: int) -> None:
        self.high, self.low, self.lost = np.zeros(size), np.zeros(size), np.zeros(size)
        self._rows: Array = np.empty((AT_ONCE, size), np.float32)
        self._waiting = 0

    def widen(self) -> None:
        """Make the arrays that `next_row` returns float64; terms written before keep their values."""
        if self._rows.dtype != np.float64:
            rows = np.empty(self._rows.shape)
            rows[: self._waiting] = self._rows[: self._waiting]  # the others hold anything, also signalling NaNs
            self._rows = rows

    def next_row(self) -> Array:
        """Return an array (size,) for the next terms: the caller must fill it before any other call."""
        if self._waiting == AT_ONCE:
            self.flush()
        self._waiting += 1
        row: Array = self._rows[self._waiting - 1]
        return row

    def flush(self) -> None:
        """Add the terms in all arrays that `next_row` returned to the sums."""
        rows, self._waiting = self._rows[: self._waiting], 0
        add_rows = add_rows_kernel()

        def work(start: int, stop: int) -> None:
            place = slice(start, stop)
            with np.errstate(all="ignore"):
                add_rows(rows[:, place], self.high[place], self.low[place], self.lost[place])

        if len(rows):
            over_spans(self.high.size, work, weight=len(rows))

    def to_odd(self) -> Array:
        """Return the sums as float64, rounded to odd: an inexact sum becomes the neighbour with an odd significand.

        Where `lost` is 0, rounding a returned value to a shorter format equals rounding the exact sum to that format.
        """
        self.flush()
        bits = np.empty(self.high.size, np.uint64)
        round_to_odd_kernel()(self.high, self.low, bits)
        return bits.view(np.float64)


def exact_reduce(rows: CodeRows, adder: Adder, members: list[int], start: int, stop: int) -> Array:
    """Add contributions exactly, round each element's sum once, and return the codes (stop - start,).

    Args:
      rows, members: contributions of ranks or nodes as codes, and the indices of the rows to add.
      adder: the format and the rounding. Stochastic rounding first rounds the sum to a float64 (to odd), and decides by
        the significand bits that this float64 has in addition to the format's, 29 for FP32.
      start, stop: the elements start .. stop - 1 are added.
    """
    if not FP32.holds(adder.fmt):
        return _by_columns(rows, adder, members, np.arange(start, stop), Exact(adder.fmt, **adder.options(0, SEND)))
    sums = Sums(stop - start)
    for member in members:
        decode(rows.row(member, start, stop), adder.fmt, np.float32, out=sums.next_row())
    values = sums.to_odd()
    rough = np.flatnonzero(~(sums.lost == 0) | (values == 0))  # inexact sums, and zeros, whose sign fp.Exact determines
    if adder.is_stochastic:
        if rough.size:
            codes = _by_columns(rows, adder, members, start + rough, Exact(FP64, rounding="odd"))
            values[rough] = codes.view(np.float64)
        whole = np.zeros(rows.size)  # random bits depend on the index in the whole buffer
        whole[start:stop] = values
        return adder.rounded(whole, members[0], SEND)[start:stop]
    codes = adder.rounded(values, members[0], SEND)
    if rough.size:
        accumulate = Exact(adder.fmt, **adder.options(members[0], SEND))
        codes[rough] = _by_columns(rows, adder, members, start + rough, accumulate)
    return codes


def _by_columns(rows: CodeRows, adder: Adder, members: list[int], chosen: Array, accumulate: Exact) -> Array:
    """Return the codes of exact sums of the elements with the ascending indices `chosen`, by `fp.sum`.

    rows: contributions as codes of `adder.fmt`. members: indices of the rows to add. accumulate: the exact accumulator
    with the rounding of its result.
    """
    step = max(1, MOST_CELLS // len(members))
    parts = []
    for first in range(0, len(chosen), step):
        places = chosen[first : first + step]
        low, high = int(places[0]), int(places[-1]) + 1
        columns = [rows.row(member, low, high)[places - low] for member in members]
        sums = sum_of(np.ascontiguousarray(np.stack(columns, axis=1)), accumulate=accumulate, fmt=adder.fmt, axis=1)
        parts.append(words(np.asarray(sums)))
    return np.concatenate(parts)


def exact_values(source: Source) -> tuple[Array, Array]:
    """Return the sums over ranks of the contributions in `source`, unrounded, as float64 arrays (high, low), each (n,).

    A sum is high + low, which is exact where two float64 numbers suffice.
    """
    sums = Sums(source.size)
    for rank in range(source.count):
        values = source.values(rank)
        if values.dtype == np.float64:
            sums.widen()
        sums.next_row()[...] = values
    sums.flush()
    return sums.high, sums.low
