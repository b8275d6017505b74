"""A matrix product without matrix units, as threads add it: which facts the kernel takes, and in which orientation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fpsim.kernels.lane_rows import BLOCKS, BUTTERFLY, FORWARD, THREADS, LaneFacts, room_of
from fpsim.kernels.lane_rows import lane_product as kernel_of
from fpsim.kernels.native import ieee_arithmetic
from fpsim.kernels.panel import LANES
from fpsim.schedules.schedule import Lanes
from fpsim.threads import over_spans

Floats = npt.NDArray[np.float32]

MERGES = {"forward": FORWARD, "butterfly": BUTTERFLY, "blocks": BLOCKS}
MACS = 16  # multiply-adds that take as long as the cast of an element
ROOM = 1 << 16  # float32 sums of a tile, at most, unless one row has more: they stay in the L2 cache
MOST_ROWS = 64  # of a tile


def lane_product(a: Floats, b: Floats, lanes: Lanes, run: int, start: int, stop: int) -> Floats:
    """The sum of terms start .. stop of a @ b, as the lanes of a schedule without matrix units add them.

    Args:
      a: (M, K) float32 in C order.
      b: (K, N) float32 in C order.
      lanes: which lane adds which terms, and how lanes are joined.
      run: consecutive terms of a lane, as in `fpsim.schedules.plan.Plan`; not read for a merge by "blocks".
      start, stop: of one slice of K.

    Returns:
      (M, N) float32 in C order; a NaN may have any pattern.

    Source: cuBLASLt's families 11, 13, 14 and 16 (docs/schedules.md).

    Example:
      >>> import numpy as np
      >>> from fpsim.lane_product import lane_product
      >>> from fpsim.schedules.schedule import Lanes
      >>> a, b = np.float32([[2**24, 1, 1, 1]]), np.ones((4, 1), np.float32)
      >>> [int(lane_product(a, b, Lanes(count), 1, 0, 4)[0, 0]) - 2**24 for count in (1, 2)]
      [0, 2]
    """
    (m, _), n = a.shape, b.shape[1]
    flipped = n < LANES and m > n  # the outputs of a tile lie side by side: fma treats a and b alike
    facts = _facts(lanes, run, start, stop, n, flipped)
    x, source = (np.ascontiguousarray(b.T), a) if flipped else (a, b)
    total = np.empty((n, m) if flipped else (m, n), np.float32)
    _fill(total, x, source, facts)
    return np.ascontiguousarray(total.T) if flipped else total


def _facts(lanes: Lanes, run: int, start: int, stop: int, n: int, flipped: bool) -> LaneFacts:
    """A schedule as the kernel takes it."""
    merge, terms = MERGES[lanes.merge], stop - start
    if merge == BLOCKS:
        chains = THREADS * (2 if n == 1 else 1)  # a thread has two where the matrix has one column
        return LaneFacts(chains, 1, 0, 0, 0.0, merge, 0.0, lanes.blocks, chains, start, stop, int(flipped))
    # lanes that take turns close their chains together, after so many rounds: those without terms in the last one too
    run = max(terms, 1) if lanes.count == 1 else run
    rounds, rest = divmod(terms, run * lanes.count)
    of_first = rounds * run + min(rest, run)
    chunks = -(-of_first // lanes.chunk) if lanes.chunk and lanes.run else 1
    starts = [0.0 if from_zero else -0.0 for from_zero in (lanes.chunks_from_zero, lanes.lanes_from_zero)]
    return LaneFacts(
        lanes.count, run, lanes.chunk, chunks, starts[0], merge, starts[1], 1, max(terms, 1), start, stop, int(flipped)
    )


def _fill(total: Floats, x: Floats, source: Floats, facts: LaneFacts) -> None:
    """The product of rows of x and source, on several cores where that pays."""
    m, n = total.shape
    sums = facts.lanes * (2 if facts.chunk else 1) * LANES
    rows, run = max(min(ROOM // sums, MOST_ROWS, m), 1), kernel_of()
    weight = (facts.stop - facts.start) / MACS

    def over_rows(first: int, last: int) -> None:
        with ieee_arithmetic(), np.errstate(all="ignore"):  # NaN and Inf are meant
            run(x, source, total, facts, room_of(facts, rows), first, last, 0, n)

    def over_outputs(first: int, last: int) -> None:
        with ieee_arithmetic(), np.errstate(all="ignore"):
            run(x, source, total, facts, room_of(facts, rows), 0, m, first, last)

    if m >= n:
        over_spans(m, over_rows, 1, weight=n * weight)
    else:
        over_spans(n, over_outputs, LANES, weight=m * weight)
