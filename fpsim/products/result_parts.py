"""Division of a product's result: spans of rows or columns, one per thread, and blocks that fit the caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fpsim.arrays import Array
from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import SMALLEST, over_spans

MACS = 16  # multiply-adds that take as long as the cast of an element


def in_spans(total: Array, terms: int, work: Callable[[int, int, int, int], None]) -> None:
    """Call work(m0, m1, n0, n1) for blocks of rows m0 .. m1 - 1 and columns n0 .. n1 - 1 that together cover `total`.

    total: (M, N), of which only the shape is read. terms: K. Products of fewer than 2**24 multiply-adds (SMALLEST *
    MACS) run in one call, others on several threads.
    """
    m, n = total.shape
    if m * n * terms < SMALLEST * MACS:  # one thread
        with ieee_arithmetic(), wrapping():  # padding columns hold arbitrary values; NaN and Inf are regular
            work(0, m, 0, n)
        return

    def over_span(start: int, stop: int) -> None:
        with ieee_arithmetic(), wrapping():
            work(*((start, stop, 0, n) if m >= n else (0, m, start, stop)))

    # every span decodes its rows of a and its columns of b, so the longer side is the one to cut
    over_spans(max(m, n), over_span, 1 if m >= n else PANEL_COLUMNS, weight=min(m, n) * terms / MACS)


def blocks(m0: int, m1: int, n0: int, n1: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Yield pairs (slice of rows, slice of columns) that cover rows m0 .. m1 - 1 and columns n0 .. n1 - 1.

    side: the largest number of rows and of columns in a block.
    """
    for j in range(n0, n1, side):
        for i in range(m0, m1, side):
            yield slice(i, min(i + side, m1)), slice(j, min(j + side, n1))
