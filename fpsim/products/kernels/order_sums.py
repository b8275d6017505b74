"""Sums of products in any order: one loop reads a table of runs and additions, and computes many sums at a time.

A tile is some rows of results by `width` columns. Every sum in the table is a matrix with the shape of the tile.
Operands and sums are all float32, or all float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.float_steps import fused

i64 = np.int64

# What a row of the table does to its sum: set it to +0 or to a rounded product; add products by fused multiply-adds, or
# rounded products; add another sum.
ZERO, PRODUCT, FUSED, ROUNDED, SUM = range(5)
TERMS = 32  # of a run that are added for all rows before the next ones, so that their panel stays in the L1 cache
ROWS = 16  # of a tile


@scalar
def _rounded(x: Any, y: Any, z: Any) -> Any:
    """Return z + x * y; the product is rounded, and then the sum."""
    return z + x * y


def _adder(width: int, multiply_add: Any) -> Any:
    """Return the function (x, panel, first, step, count, row) -> None that adds products to a row of `width` sums.

    It adds x[k] * panel[k] to `row` in place, for `count` terms k = first, first + step, ... x: (K,), panel: (K,
    width), row: (width,) floats. multiply_add: a function of (x, y, z) that returns x * y + z, fused or rounded twice.
    """

    def add(x: Any, panel: Any, first: Any, step: Any, count: Any, row: Any) -> None:
        fours = i64(count // 4 * 4)
        for i in range(0, fours, 4):
            k0 = first + i * step
            k1, k2, k3 = k0 + step, k0 + 2 * step, k0 + 3 * step
            x0, x1, x2, x3 = x[k0], x[k1], x[k2], x[k3]
            y0, y1, y2, y3 = panel[k0], panel[k1], panel[k2], panel[k3]
            for j in range(width):
                two = multiply_add(x1, y1[j], multiply_add(x0, y0[j], row[j]))
                row[j] = multiply_add(x3, y3[j], multiply_add(x2, y2[j], two))
        for i in range(fours, count):
            k0 = first + i * step
            x0, y0 = x[k0], panel[k0]
            for j in range(width):
                row[j] = multiply_add(x0, y0[j], row[j])

    return add


@cache
def _rows(width: int) -> Any:
    """Return the compiled functions (fuse, add, fuse_pairs, set_pairs, set_row, join) on rows of `width` sums.

    All change their argument `row`, (width,), in place.
    - fuse(x, panel, first, step, count, row) adds x[k] * panel[k] to row, for `count` terms k = first, first + step,
      ..., by fused multiply-adds; x: (K,), panel: (K, width).
    - add: the same, with every product rounded before it is added.
    - fuse_pairs(x, y, first, step, count, row): as `fuse`, with x and y (K, width).
    - set_pairs(x, y, row) sets row to x * y; x and y are rows.
    - set_row(x, y, row): the same, where x is a number.
    - join(row, other) adds `other`, (width,), to row.
    """

    def fuse_pairs(x: Any, y: Any, first: Any, step: Any, count: Any, row: Any) -> None:
        for i in range(count):
            x0, y0 = x[first + i * step], y[first + i * step]
            for j in range(width):
                row[j] = fused(x0[j], y0[j], row[j])

    def set_pairs(x: Any, y: Any, row: Any) -> None:
        for j in range(width):
            row[j] = x[j] * y[j]

    def set_row(x: Any, y: Any, row: Any) -> None:
        for j in range(width):
            row[j] = x * y[j]

    def join(row: Any, other: Any) -> None:
        for j in range(width):
            row[j] = row[j] + other[j]

    fuse, add = _adder(width, fused), _adder(width, _rounded)
    return tuple(map(scalar, (fuse, add, fuse_pairs, set_pairs, set_row, join)))


@cache
def order_sums(width: int) -> Any:
    """Return the kernel (a, pairs, panels, out, table, sums) -> None that computes all results, in blocks of columns.

    Arguments of the kernel:
      a: (M, K) floats. panels: (P, K, width), the columns of b in P blocks. out: (M, N), to which results are written.
      table: (S, 5) int64, a row per operation: (action, number of the sum it changes, first term, number of terms,
        distance between terms). action: ZERO sets the sum to +0, PRODUCT to the product of the first term; FUSED adds
        the terms' products by fused multiply-adds, ROUNDED after rounding them; SUM adds another sum, whose number is
        in the column of the first term. Sum 0 is the result.
      sums: (number of sums, ROWS, width), a scratch buffer.
      pairs: (P, K, width), the first factors of products if every result has separate ones: then M is 1, and a is not
        read. Else empty.

    With pairs, ROUNDED would be computed as FUSED: a caller whose table has ROUNDED passes rounded products as the
    columns of b, ones as a, and no pairs.
    """

    fuse, add, fuse_pairs, set_pairs, set_row, join = _rows(width)

    def run(a: Any, pairs: Any, panels: Any, out: Any, table: Any, sums: Any) -> None:
        in_pairs, height = pairs.size > 0, out.shape[0]
        for p in range(panels.shape[0]):
            panel, n = panels[p], p * width
            factors = pairs[p] if in_pairs else panel
            columns = min(width, out.shape[1] - n)
            for m in range(0, height, ROWS):
                rows = min(ROWS, height - m)
                for i in range(table.shape[0]):
                    action, into, k, count, step = table[i, 0], table[i, 1], table[i, 2], table[i, 3], table[i, 4]
                    tile = sums[into]
                    if action == SUM:
                        other = sums[k]
                        for r in range(rows):
                            join(tile[r], other[r])
                    elif action == ZERO:
                        for r in range(rows):
                            for j in range(width):
                                tile[r, j] = 0.0
                    elif in_pairs and action == PRODUCT:
                        set_pairs(factors[k], panel[k], tile[0])
                    elif in_pairs:
                        fuse_pairs(factors, panel, k, step, count, tile[0])
                    elif action == PRODUCT:
                        for r in range(rows):
                            set_row(a[m + r, k], panel[k], tile[r])
                    else:
                        for t in range(0, count, TERMS):
                            terms, first = min(TERMS, count - t), k + t * step
                            for r in range(rows):
                                if action == FUSED:
                                    fuse(a[m + r], panel, first, step, terms, tile[r])
                                else:
                                    add(a[m + r], panel, first, step, terms, tile[r])
                for r in range(rows):
                    row, total = out[m + r], sums[0, r]
                    for j in range(columns):
                        row[n + j] = total[j]

    return kernel(run)
