"""A loop that runs a tree of two-operand additions for every element of a matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.probe.kernels.tree_rows import AS_IT_IS, kept, narrowed
from fpsim.runtime.compile import inner_loop, kernel
from fpsim.runtime.float_steps import fused

HIGH, WIDE = 4, 128  # rows and columns that are computed together; their sums fit into the first-level cache
# Begin a sum with a product, add a product unrounded, add a rounded product, add another sum.
PUSH, JOIN, TAKE, ADD = range(4)


@inner_loop
def _multiply(line: Any, x: Any, y: Any, begins: Any) -> None:
    """Write x * y to the row `line`, for a number x and a row y, all of one float dtype.

    If `begins`, products with a zero operand are +0.
    """
    for r in range(line.size):
        line[r] = x * y[r]
    if begins:
        for r in range(line.size):
            line[r] = abs(line[r]) if (x == 0) | (y[r] == 0) else line[r]


@inner_loop
def _join(line: Any, x: Any, y: Any) -> None:
    """Add the unrounded products x * y to the row `line` in place by fused multiply-adds; x: a number, y: a row."""
    for r in range(line.size):
        line[r] = fused(x, y[r], line[r])


@inner_loop
def _take(line: Any, x: Any, y: Any) -> None:
    """Add the rounded products x * y to the row `line` in place, for a number x and a row y."""
    for r in range(line.size):
        line[r] = line[r] + x * y[r]


@inner_loop
def _add(line: Any, other: Any) -> None:
    """Add the row `other` to the row `line` in place."""
    for r in range(line.size):
        line[r] = line[r] + other[r]


@inner_loop
def _narrow(line: Any, mode: Any, flushes: Any) -> None:
    """Round a row of float32 sums in place, to nearest even: to FP16 or BF16 (`mode` TO_FP16 or TO_BF16), or not.

    The sums stay float32; with the mode AS_IT_IS they are not rounded. If `flushes`, results below 2**-126 in
    magnitude, the subnormals of float32, are then replaced by zeros of their sign.
    """
    for r in range(line.size):
        line[r] = kept(narrowed(line[r], mode), flushes)


@kernel
def tree_products(
    out: Any, a: Any, b: Any, steps: Any, mode: int, flushes: int, begins: bool, first: int, stop: int
) -> None:  # fmt: skip
    """Write tiles of a matrix product, HIGH rows by WIDE columns each, by a tree of two-operand additions.

    Args:
      out: (M, N) float32 or float64, the dtype of sums.
      a, b: (M, n) and (n, N) matrices of the same dtype.
      steps: a ProductSteps: per step an action (PUSH: start a sum with a product; JOIN: add an unrounded product; TAKE:
        add a rounded one; ADD: add another sum), the number of the sum, and the index of the term or of the other sum.
      mode: rounding of float32 sums, AS_IT_IS, TO_FP16 or TO_BF16; AS_IT_IS for float64.
      flushes: 1 if subnormal float32 sums become zeros, else 0; 0 for float64.
      begins: True if products with which sums start are +0 where an operand is zero; else they have the usual sign.
      first, stop: range of tiles, which are numbered row by row.
    """
    actions = steps.actions
    sums = np.empty((steps.depth, HIGH, WIDE), out.dtype)
    side = (out.shape[1] + WIDE - 1) // WIDE
    for tile in range(first, stop):
        row, column = tile // side * HIGH, tile % side * WIDE
        rows, size = min(HIGH, out.shape[0] - row), min(WIDE, out.shape[1] - column)
        for i in range(actions.shape[0]):
            action, into, taken = actions[i]
            for q in range(rows):
                line = sums[into, q, :size]
                if action == ADD:
                    _add(line, sums[taken, q, :size])
                else:
                    x, y = a[row + q, taken], b[taken, column : column + size]
                    if action == PUSH:
                        _multiply(line, x, y, begins)
                    elif action == JOIN:
                        _join(line, x, y)
                    else:
                        _take(line, x, y)
                if mode != AS_IT_IS or flushes:
                    _narrow(line, mode, flushes)
        for q in range(rows):
            out[row + q, column : column + size] = sums[0, q, :size]
