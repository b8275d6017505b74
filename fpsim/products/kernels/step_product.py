"""The product kernel of units whose rule has no other kernel: panels of floats, and one row function per rule.

A panel is some terms of b as floats for PANEL_COLUMNS columns, which stay in the cache for all rows of a.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.matrix_units.matrix_unit import Rule
from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.products.kernels.step_rows import (
    StepFacts,
    StepRoom,
    add_exactly,
    chain_row,
    even_odd_row,
    exact_row,
    exact_short_row,
    flush,
    flushed_chain_row,
    flushed_chains_row,
    flushed_row,
    range_of,
    separate_row,
    two_chains_row,
)
from fpsim.products.kernels.vector_cut import PART, vector_exact_row
from fpsim.runtime.compile import kernel, scalar

u32, i32, i64, f32, f64 = np.uint32, np.int32, np.int64, np.float32, np.float64

ROWS = {
    "chain": chain_row, Rule.EXACT: exact_row, Rule.FLUSHED_TREE: flushed_row, Rule.SEPARATE: separate_row,
    Rule.EVEN_ODD: even_odd_row, Rule.REVERSED_CHAIN: flushed_chain_row, Rule.TWO_CHAINS: flushed_chains_row,
    "two chains": two_chains_row,
}  # fmt: skip
ROW_BLOCK = 256  # rows whose totals stay in the cache for all steps


@cache
def step_product(rule: Rule | str, vectors: int = 0) -> Any:
    """Return the kernel (a, b, c, terms, facts, m0, m1, n0, n1) -> None, which adds a @ b to part of c.

    Args:
      rule: the unit's rule; or "chain" or "two chains" of fused multiply-adds, without flushing.
      vectors: number of terms of an instruction of `Rule.EXACT` for kernels with AVX-512 (vector_cut.py). They
        compute the rows whose products float64 adds without rounding. 0: no AVX-512.

    Arguments of the kernel:
      a: (M, K), b: (K, N), c: (M, N), float32, or float64 for chains of FP64. Only the part with rows m0 .. m1 - 1
        and columns n0 .. n1 - 1 of c changes.
      terms: products of one instruction.
      facts: (5,) float64: both formats' smallest exponents, their smallest normal values, the sum of their mantissa
        bits.
    """
    one_row, flushes, adds_exactly = ROWS[rule], rule is Rule.FLUSHED_TREE, rule is Rule.EXACT
    in_vectors: Any = vector_exact_row(vectors) if vectors else None

    def vector_row(a: Any, b: Any, c: Any, parts: Any) -> None:
        in_vectors(a, b, c, parts)

    def plain_row(a: Any, b: Any, c: Any, _parts: Any) -> None:
        exact_short_row(a, b, c)

    short_row = scalar(vector_row if vectors else plain_row)

    def product(a: Any, b: Any, c: Any, terms: Any, facts: Any, m0: Any, m1: Any, n0: Any, n1: Any) -> None:
        panel, tile = np.zeros((terms, PANEL_COLUMNS), b.dtype), np.zeros((ROW_BLOCK, PANEL_COLUMNS), c.dtype)
        room = StepRoom(
            np.empty((2, PANEL_COLUMNS), i32), np.empty((2, PANEL_COLUMNS), f64), np.empty(PANEL_COLUMNS, f64)
        )
        x = np.zeros(terms, a.dtype)
        u = StepFacts(i32(facts[0]), i32(facts[1]), f32(facts[2]), f32(facts[3]), i32(facts[4]))
        for n in range(n0, n1, PANEL_COLUMNS):
            width = min(PANEL_COLUMNS, n1 - n)
            parts = i64((width + PART - 1) // PART)
            for m in range(m0, m1, ROW_BLOCK):
                rows = min(ROW_BLOCK, m1 - m)
                for r in range(rows):  # element by element: assigned slices would be counted as references
                    for j in range(width):
                        tile[r, j] = c[m + r, n + j]
                for k in range(0, a.shape[1], terms):
                    count = min(terms, a.shape[1] - k)
                    for i in range(count):
                        for j in range(width):
                            panel[i, j] = flush(b[k + i, n + j], u.tiny_b) if flushes else b[k + i, n + j]
                    for i in range(count, terms):  # terms behind the end of K
                        x[i] = 0
                        for j in range(width):
                            panel[i, j] = 0
                    if adds_exactly:
                        panel_most, panel_least = range_of(panel.reshape(-1).view(u32))
                    for r in range(rows):
                        for i in range(count):
                            x[i] = flush(a[m + r, k + i], u.tiny_a) if flushes else a[m + r, k + i]
                        if adds_exactly and terms % 2 == 0:
                            most, least = range_of(x.view(u32))
                            if add_exactly(most, least, panel_most, panel_least, u.places):
                                short_row(x, panel, tile[r], parts)
                                continue
                        one_row(x, panel, tile[r], count, u, room)
                for r in range(rows):
                    for j in range(width):
                        c[m + r, n + j] = tile[r, j]

    return kernel(product)
