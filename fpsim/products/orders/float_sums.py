"""Matrix products, sums and dot products in float32 or float64, added in the order of a table (OrderTable)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import FP32, FP64, Format
from fpsim.products.kernels.order_sums import ROWS, order_sums
from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.products.operand_floats import floats
from fpsim.products.orders.table import OrderTable
from fpsim.products.result_parts import MACS
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import over_spans
from fpsim.sums.float32_plan import float_words

Panel = Callable[[int, int], tuple[Array, "Array | None"]]  # span of columns -> (values of b, first factors or None)

FEW = 4  # columns up to which each is added alone


def product_sums(table: OrderTable, a: Array, b: Array, formats: tuple[Format, Format]) -> Array:
    """Return a @ b, (M, N) float32 or float64 (the table's format), added in the table's order.

    table: the additions of a tree as rows of integers. a: (M, K) and b: (K, N) codes of the two `formats`.
    """
    if b.shape[1] < PANEL_COLUMNS and a.shape[0] > b.shape[1]:  # the sums of a panel lie side by side
        flipped = product_sums(table, b.T, a.T, (formats[1], formats[0]))
        return np.ascontiguousarray(flipped.T)
    left = _values(a, formats[0], table.fmt)
    out = np.empty((a.shape[0], b.shape[1]), left.dtype)

    def panel(first: int, last: int) -> tuple[Array, Array | None]:
        return _values(b[:, first:last], formats[1], table.fmt), None

    _run(table, left, panel, out)
    return out


def line_sums(table: OrderTable, a: Array | None, b: Array, formats: tuple[Format | None, Format]) -> Array:
    """Return the sum of each row of b, or of each row of a * b, in the table's order: (R,) float32 or float64.

    table: the additions of a tree as rows of integers; its format decides the dtype. a, b: (R, K) codes of the two
    `formats`; a and its format are None for sums of b alone.
    """
    kept: Any = np.float32 if table.fmt == FP32 else np.float64
    out = np.empty((1, b.shape[0]), kept)

    def panel(first: int, last: int) -> tuple[Array, Array | None]:
        terms, of_a = _values(b[first:last].T, formats[1], table.fmt), formats[0]
        if a is None or of_a is None:
            return terms, None
        factors = _values(a[first:last].T, of_a, table.fmt)
        if table.fuses:
            return terms, factors
        with ieee_arithmetic(), np.errstate(all="ignore"):
            return terms * factors, None

    _run(table, np.ones((1, b.shape[1]), kept), panel, out)
    row: Array = out[0]
    return row


def _run(table: OrderTable, a: Array, panel: Panel, out: Array) -> None:
    """Fill `out` (M, N) with sums in the table's order, a block of columns at a time, on threads if it is large.

    table: the additions as rows of integers. a: (M, K) floats; `out` has their dtype. panel: a function (first, last)
    -> (terms, factors) for columns first .. last - 1 of the result. Its `terms` are values of b, (K, columns). Its
    `factors`, (K, columns), multiply these terms if each column has separate factors; they are None if row i of `a`
    multiplies the terms for row i of the result.
    """
    (m, k), n = a.shape, out.shape[1]
    width = 1 if n <= FEW else PANEL_COLUMNS
    loop, nothing = order_sums(width), np.empty((0, 0, width), a.dtype)

    def work(first: int, last: int) -> None:
        sums = np.empty((table.sums, ROWS, width), a.dtype)
        for start in range(first * width, min(last * width, n), width):
            columns, factors = (_padded(x, width) for x in panel(start, min(start + width, n)))
            part = np.empty((m, min(width, n - start)), a.dtype)
            pairs = nothing if factors is None else factors
            with ieee_arithmetic(), wrapping():  # padding columns hold arbitrary values; NaN and Inf are regular
                loop(a, pairs, columns, part, table.rows, sums)
            out[:, start : start + width] = part

    over_spans(-(-n // width), work, 1, weight=m * width * k / MACS)


def _padded(x: Array | None, width: int) -> Any:
    """Return a matrix (K, N <= width) as an array (1, K, width), with zeros after its last column; None for None.

    An x of `width` columns is not copied if it is C-contiguous.
    """
    if x is None or x.shape[1] == width:
        return None if x is None else np.ascontiguousarray(x)[np.newaxis]
    panel = np.zeros((1, x.shape[0], width), x.dtype)
    panel[0, :, : x.shape[1]] = x
    return panel


def _values(codes: Array, fmt: Format, kept: Format) -> Array:
    """Return the values of codes of format `fmt` as floats in C order: float64 if `kept` is FP64, else float32."""
    return float_words(codes, fmt, FP64).view(np.float64) if kept == FP64 else floats(codes, fmt)
