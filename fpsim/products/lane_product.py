"""Matrix products added by threads without matrix units: chooses the kernel, a @ b or b.T @ a.T, and parts of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.casts.pipelines import decoding
from fpsim.formats.named import FP32, Format
from fpsim.products.kernels.lane_dots import lane_sums
from fpsim.products.kernels.lane_rows import BLOCKS, BUTTERFLY, FORWARD, THREADS, LaneFacts, room_of
from fpsim.products.kernels.lane_rows import lane_product as kernel_of
from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.products.lane_dots import FULL, lane_dots, transposed
from fpsim.products.operand_floats import floats
from fpsim.products.result_parts import MACS
from fpsim.runtime.general_loops import replaces
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import over_spans
from fpsim.schedules.schedule import Lanes

Floats = npt.NDArray[np.float32]

MERGES = {"forward": FORWARD, "butterfly": BUTTERFLY, "blocks": BLOCKS}
ROOM = 1 << 16  # float32 sums of a tile, at most, unless one row has more: they stay in the L2 cache
MOST_ROWS = 64  # of a tile
PART = 1 << 19  # elements that are decoded at a time, unless a tile has more: they stay in the cache
# Outputs along the longer side from which on vectors of outputs are as fast as vectors of lanes, measured: for lanes
# that take single terms in turn, for others that fill a vector, and for those of which each waits for its last sum
FEW_SINGLE, FEW, FEW_SLOW = 24, 8, 3


class LaneOperand(NamedTuple):
    """An operand as a matrix: a itself, or the transpose of b.

    Attributes:
      codes: (rows, K), codes of the format `fmt` in its storage dtype, or float32.
      fmt: format of the codes.
    """

    codes: Array
    fmt: Format

    @property
    def by_rows(self) -> bool:
        """True if the terms of one row of `codes` are adjacent in memory."""
        return self.codes.shape[1] == 1 or self.codes.strides[1] == self.codes.itemsize

    def rows(self) -> Floats:
        """Return all rows decoded, (rows, K) float32 in C order."""
        if self.by_rows:
            return floats(np.ascontiguousarray(self.codes), self.fmt)
        return transposed(floats(np.ascontiguousarray(self.codes.T), self.fmt))

    def part(self, first: int, last: int, room: Floats) -> Floats:
        """Return rows first .. last - 1 as float32: (last - first, K), or their transpose.

        The result is the transpose, (K, last - first), if the property `by_rows` is False. room: 1-D scratch buffer
        that holds the result; the returned array is a view of it.
        """
        part = self.codes[first:last] if self.by_rows else self.codes[first:last].T
        codes = np.ascontiguousarray(part).reshape(-1)
        values = room[: codes.size]
        if self.fmt.bits >= FP32.bits:
            values[...] = codes.view(np.float32)
            return values.reshape(part.shape)
        # as fpsim.decode, but on this thread only: one of the pool must not wait for others of the pool
        *stages, final = decoding(self.fmt, FP32, codes.dtype)
        with wrapping():
            for stage in stages:
                between = np.empty(codes.size, stage.dtype)
                stage.run(codes, between, 0)
                codes = between
            final.run(codes, values.view(np.uint32), 0)
        return values.reshape(part.shape)


def lane_product(
    a: Array, b: Array, lanes: Lanes, run: int, start: int, stop: int, formats: tuple[Format, Format] = (FP32, FP32)
) -> Floats:
    """Return the sum of terms start .. stop - 1 of a @ b, as a schedule without matrix units adds them in lanes.

    Args:
      a, b: (M, K) and (K, N) codes of the two `formats`; float32 for FP32.
      lanes: which lane (partial sum of an output) adds which terms, and how lanes are joined.
      run: consecutive terms of a lane, as in `fpsim.schedules.plan.SchedulePlan`; not read for a merge by "blocks".
      start, stop: the range of K, which is one slice of a split-K schedule, or all of K.
      formats: the formats of a and b.

    Returns:
      (M, N) float32 in C order; zeros if there are no terms; a NaN may have any pattern.

    Example:
      >>> import numpy as np
      >>> from fpsim.products.lane_product import lane_product
      >>> from fpsim.schedules.schedule import Lanes
      >>> a, b = np.float32([[2**24, 1, 1, 1]]), np.ones((4, 1), np.float32)
      >>> [int(lane_product(a, b, Lanes(count), 1, 0, 4)[0, 0]) - 2**24 for count in (1, 2)]
      [0, 2]
    """
    m, n = len(a), b.shape[1]
    if stop == start or not m or not n:
        return np.zeros((m, n), np.float32)
    rows, columns = LaneOperand(a[:, start:stop], formats[0]), LaneOperand(b[start:stop].T, formats[1])
    facts = lane_facts(lanes, run, stop - start, n)
    if max(m, n) < _few(facts) and not replaces(lane_sums(), m * n * (stop - start)):
        return lane_dots(rows.rows(), columns.rows(), facts)
    flipped = n < PANEL_COLUMNS and m > n  # the outputs of a tile are neighbours in a row; fma is symmetric in a and b
    total = np.empty((n, m) if flipped else (m, n), np.float32)
    x, source = (columns, rows) if flipped else (rows, columns)
    _fill(total, x.rows(), source, facts._replace(transposed=int(source.by_rows)))
    return np.ascontiguousarray(total.T) if flipped else total


def _few(facts: LaneFacts) -> int:
    """Return the smallest max(M, N) from which on vectors of outputs are as fast as vectors of partial sums.

    facts: the order of additions: number of partial sums (lanes) of an output, their terms, and chunks of these.
    """
    fills = facts.lanes >= FULL
    if facts.run == 1:
        return FEW_SINGLE if fills else FEW
    return FEW if fills or facts.chunk else FEW_SLOW


def lane_facts(lanes: Lanes, run: int, terms: int, n: int) -> LaneFacts:
    """Return the order of additions in a schedule's lanes (partial sums of an output) as the numbers that kernels read.

    lanes: the schedule's number of lanes, and how they are joined. run: number of consecutive terms of K that a lane
    adds. terms: number of terms of K. n: number of columns of the result.
    """
    merge = MERGES[lanes.merge]
    if merge == BLOCKS:
        chains = THREADS * (2 if n == 1 else 1)  # a thread has two where the matrix has one column
        return LaneFacts(chains, 1, 0, 0, 0.0, merge, 0.0, lanes.blocks, chains, 0, terms, 0)
    # lanes that take turns close their chains together, after so many rounds: those without terms in the last one too
    run = max(terms, 1) if lanes.count == 1 else run
    rounds, rest = divmod(terms, run * lanes.count)
    of_first = rounds * run + min(rest, run)
    chunks = -(-of_first // lanes.chunk) if lanes.chunk and lanes.run else 1
    lanes_from_zero = lanes.lanes_from_zero and merge == FORWARD
    starts = [0.0 if from_zero else -0.0 for from_zero in (lanes.chunks_from_zero, lanes_from_zero)]
    return LaneFacts(lanes.count, run, lanes.chunk, chunks, starts[0], merge, starts[1], 1, max(terms, 1), 0, terms, 0)


def _fill(total: Floats, x: Floats, source: LaneOperand, facts: LaneFacts) -> None:
    """Write the dot products of the rows of x with the rows of `source` to `total` (M, N), on threads if it is large.

    x: (M, K) float32 in C order. source: (N, K) codes with their format, decoded a part at a time. facts: the order of
    additions: which lane (partial sum of an output) adds which terms.
    """
    m, n = total.shape
    terms = facts.stop - facts.start
    sums = facts.lanes * (2 if facts.chunk else 1) * PANEL_COLUMNS
    rows, run = max(min(ROOM // sums, MOST_ROWS, m), 1), kernel_of()

    def over_outputs(first: int, last: int) -> None:
        step = max(PART // (PANEL_COLUMNS * terms), 1) * PANEL_COLUMNS
        width, room = min(step, last - first), room_of(facts, rows)
        decoded, part = np.empty(width * terms, np.float32), np.empty(m * width, np.float32)
        for start in range(first, last, step):
            stop = min(start + step, last)
            outputs = part[: m * (stop - start)].reshape(m, stop - start)
            with ieee_arithmetic(), np.errstate(all="ignore"):  # NaN and Inf are regular results
                run(x, source.part(start, stop, decoded), outputs, facts, room, 0, m, 0, stop - start)
            total[:, start:stop] = outputs

    if m < n:
        over_spans(n, over_outputs, PANEL_COLUMNS, weight=terms + m * terms / MACS)  # casts, and multiply-adds
        return
    whole = source.part(0, n, np.empty(n * terms, np.float32))

    def over_rows(first: int, last: int) -> None:
        with ieee_arithmetic(), np.errstate(all="ignore"):
            run(x, whole, total, facts, room_of(facts, rows), first, last, 0, n)

    over_spans(m, over_rows, 1, weight=n * terms / MACS)
