"""Runs a tree of two-operand additions for every element of a product of matrices, which forms its products itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.probe.kernels.tree_rows import AS_IT_IS, kept, narrowed
from fpsim.runtime.compile import inner_loop, kernel, scalar
from fpsim.runtime.float_steps import fused

HIGH, WIDE = 4, 128  # elements that go through the tree together: their sums stay in the nearest cache
# A product begins a sum, joins one unrounded, or is added to one; a sum takes another one.
PUSH, JOIN, TAKE, ADD = range(4)


@inner_loop
def _multiply(line: Any, x: Any, y: Any, begins: Any) -> None:
    """Products; those with a zero may have no sign."""
    for r in range(line.size):
        line[r] = x * y[r]
    if begins:
        for r in range(line.size):
            line[r] = abs(line[r]) if (x == 0) | (y[r] == 0) else line[r]


@inner_loop
def _join(line: Any, x: Any, y: Any) -> None:
    """Fused multiply-adds."""
    for r in range(line.size):
        line[r] = fused(x, y[r], line[r])


@inner_loop
def _take(line: Any, x: Any, y: Any) -> None:
    """Multiplications and additions."""
    for r in range(line.size):
        line[r] = line[r] + x * y[r]


@inner_loop
def _add(line: Any, other: Any) -> None:
    for r in range(line.size):
        line[r] = line[r] + other[r]


@inner_loop
def _narrow(line: Any, mode: Any, flushes: Any) -> None:
    """Round sums in float32 once more."""
    for r in range(line.size):
        line[r] = kept(narrowed(line[r], mode), flushes)


@scalar
def _meet(line: Any, action: Any, x: Any, y: Any, begins: Any) -> None:
    """Give sums their next products, by one of the loops."""
    if action == PUSH:
        _multiply(line, x, y, begins)
    elif action == JOIN:
        _join(line, x, y)
    else:
        _take(line, x, y)


@kernel
def tree_products(
    out: Any, a: Any, b: Any, steps: Any, depth: int, mode: int, flushes: int, begins: bool, first: int, stop: int
) -> None:  # fmt: skip
    """Fill tiles of HIGH rows and WIDE columns of `out`, those side by side first.

    Args:
      out: (M, N) float32 or float64, which sums are in.
      a, b: (M, n) and (n, N) matrices of the same dtype.
      steps: (S, 3) int64: what is done, to which sum, and with which term or sum.
      depth: sums that are held at once.
      mode, flushes: what becomes of each sum in float32, as of `tree_rows`; AS_IT_IS and 0 in float64.
      begins: whether products with a zero have no sign.
      first, stop: tiles.
    """
    sums = np.empty((depth, HIGH, WIDE), out.dtype)
    side = (out.shape[1] + WIDE - 1) // WIDE
    for tile in range(first, stop):
        row, column = tile // side * HIGH, tile % side * WIDE
        rows, size = min(HIGH, out.shape[0] - row), min(WIDE, out.shape[1] - column)
        for i in range(steps.shape[0]):
            action, into, taken = steps[i]
            for q in range(rows):
                line = sums[into, q, :size]
                if action == ADD:
                    _add(line, sums[taken, q, :size])
                else:
                    _meet(line, action, a[row + q, taken], b[taken, column : column + size], begins)
                if mode != AS_IT_IS or flushes:
                    _narrow(line, mode, flushes)
        for q in range(rows):
            out[row + q, column : column + size] = sums[0, q, :size]
