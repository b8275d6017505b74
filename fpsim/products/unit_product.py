"""A matrix product by a unit as kernels are passed it: codes, block scales, and decode scales of partial sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import FloatOperations, NumpyOperations
from fpsim.products.kernels.promotion import ADD, ADD_HALF, COLUMNS_FIRST, PRODUCT, ROWS_FIRST

ON_NUMPY = NumpyOperations()
NOTHING = np.zeros((0, 0), np.float32)
NO_SCALES = np.zeros((0, 0), np.uint8)  # of a unit without scales; no kernel reads them
JOINED = (ADD, PRODUCT, ROWS_FIRST, COLUMNS_FIRST)  # by kernels; the others join by operations on whole matrices
# The same products, rounded before they are added to the total.
ROUNDED_FIRST = {mode: ADD_HALF + 1 + i for i, mode in enumerate((PRODUCT, ROWS_FIRST, COLUMNS_FIRST))}
FUSED_AS = {rounded: mode for mode, rounded in ROUNDED_FIRST.items()}
EXCHANGED = {
    ROWS_FIRST: COLUMNS_FIRST, COLUMNS_FIRST: ROWS_FIRST,
    ROUNDED_FIRST[ROWS_FIRST]: ROUNDED_FIRST[COLUMNS_FIRST], ROUNDED_FIRST[COLUMNS_FIRST]: ROUNDED_FIRST[ROWS_FIRST],
}  # fmt: skip

__all__ = [
    "ADD", "COLUMNS_FIRST", "JOINED", "NOTHING", "NO_SCALES", "PRODUCT", "ROUNDED_FIRST", "ROWS_FIRST", "Factors",
    "UnitProduct", "add_part",
]  # fmt: skip


class Factors(NamedTuple):
    """Decode scales (factors of the stored operands) of partial sums, and how partial sums are multiplied by them.

    Attributes:
      rows, columns: float32 scales of rows, (M, parts), and of columns, (parts, N); without elements for none.
      mode: an integer constant. ADD: no scales. PRODUCT: fma(rows * columns, partial, total). ROWS_FIRST: fma(partial *
        rows, columns, total). COLUMNS_FIRST: fma(partial * columns, rows, total). ROUNDED_FIRST[m], where m is one of
        the three modes with scales: as m, but the scaled partial sum is rounded before it is added.
    """

    rows: Array = NOTHING
    columns: Array = NOTHING
    mode: int = ADD

    def block(self, rows: slice, columns: slice) -> Factors:
        """Return the scales of the rows in the slice `rows` and the columns in the slice `columns` of the result."""
        return self._replace(
            rows=np.ascontiguousarray(self.rows[rows]) if self.rows.size else self.rows,
            columns=np.ascontiguousarray(self.columns[:, columns]) if self.columns.size else self.columns,
        )

    def parts(self, parts: slice) -> Factors:
        """Return the scales of the partial sums whose numbers are in the slice `parts`."""
        if not self.rows.size:
            return self
        rows, columns = (np.ascontiguousarray(x) for x in (self.rows[:, parts], self.columns[parts]))
        return self._replace(rows=rows, columns=columns)

    def transposed(self) -> Factors:
        """Return the scales of the transposed product, with rows and columns exchanged.

        The order in which they multiply is exchanged, too.
        """
        rows, columns = np.ascontiguousarray(self.columns.T), np.ascontiguousarray(self.rows.T)
        return Factors(rows, columns, EXCHANGED.get(self.mode, self.mode))


class UnitProduct(NamedTuple):
    """A matrix product by a matrix unit in the form that kernels read: codes, scales, length of partial sums.

    Attributes:
      unit: the matrix unit.
      a, b: codes, (M, K) and (K, N).
      scale_a, scale_b: codes of block scales, (M, K / block) and (K / block, N); not read for units without them.
      promote: terms of K after which a partial sum is added to a float32 total; 0 for one sum.
      factors: decode scales of the partial sums.
      cut: number of terms in a slice of K; at its end the total is added to the earlier slices' sums; 0 for one
        slice. Only units of `Rule.FUSED` or `Rule.SCALED` can have several slices.
    """

    unit: MatrixUnit
    a: Array
    b: Array
    scale_a: Array
    scale_b: Array
    promote: int = 0
    factors: Factors = Factors()
    cut: int = 0

    def transposed(self) -> UnitProduct:
        """Return the product b.T @ a.T, whose result is bit for bit the transpose of a @ b."""
        unit = replace(self.unit, a=self.unit.b, b=self.unit.a)
        scales = self.scale_b.T, self.scale_a.T
        return UnitProduct(unit, self.b.T, self.a.T, *scales, self.promote, self.factors.transposed(), self.cut)

    def part(self, start: int, stop: int) -> UnitProduct:
        """Return the product over terms start .. stop - 1 of K as one sum, without partial sums and decode scales."""
        block = self.unit.block or max(self.a.shape[1], 1)
        blocks = slice(start // block, -(-stop // block))
        return self._replace(
            a=self.a[:, start:stop], b=self.b[start:stop], scale_a=self.scale_a[:, blocks],
            scale_b=self.scale_b[blocks], promote=0, factors=Factors(), cut=0,
        )  # fmt: skip

    def block(self, rows: slice, columns: slice) -> UnitProduct:
        """Return the product of the rows of a in the slice `rows` and the columns of b in the slice `columns`.

        Its result is a block of the result of the whole product.
        """
        scaled = bool(self.unit.scale)
        return self._replace(
            a=self.a[rows], b=self.b[:, columns],
            scale_a=self.scale_a[rows] if scaled else self.scale_a,
            scale_b=self.scale_b[:, columns] if scaled else self.scale_b, factors=self.factors.block(rows, columns),
        )  # fmt: skip

    def run(self, start: int, stop: int) -> UnitProduct:
        """Return the product over terms start .. stop - 1 of K, with its partial sums (and slices) within these terms.

        start and stop must be bounds of partial sums and of slices. The result has the block scales of all of K.
        """
        parts = slice(start // self.promote, -(-stop // self.promote)) if self.promote else slice(0)
        return self._replace(a=self.a[:, start:stop], b=self.b[start:stop], factors=self.factors.parts(parts))

    def in_order(self, spans: Sequence[tuple[int, int]], gap: int, place: int) -> UnitProduct:
        """Return the product of the terms of K in `spans`, in that order, with `gap` zero terms before spans[place].

        spans: pairs (first term, last term + 1). Scales are not reordered with the terms.
        """
        a, b = [self.a[:, slice(*span)] for span in spans], [self.b[slice(*span)] for span in spans]
        if gap:
            a.insert(place, np.zeros((self.a.shape[0], gap), self.a.dtype))
            b.insert(place, np.zeros((gap, self.b.shape[1]), self.b.dtype))
        return self._replace(a=np.concatenate(a, axis=1), b=np.concatenate(b))


def add_part(
    total: Any, partial: Any, factors: Factors, part: int, backend: FloatOperations = ON_NUMPY
) -> None:  # fmt: skip
    """Add partial sum number `part`, times its decode scales, to a float32 total (M, N) in place.

    partial: (M, N) float32, in the backend's memory. factors: the scales of all partial sums, with the order of the
    multiplications and roundings. backend: the operations add, multiply and fma of the CPU or a GPU.
    """
    if factors.mode == ADD:
        backend.add(total, partial, out=total)
        return
    rows, columns = factors.rows[:, part, None], factors.columns[None, part]
    mode = FUSED_AS.get(factors.mode, factors.mode)
    if mode == PRODUCT:
        partial, second = np.multiply(rows, columns), partial
    else:
        first, second = (rows, columns) if mode == ROWS_FIRST else (columns, rows)
        partial = backend.multiply(partial, first)
    if factors.mode in JOINED:
        backend.fma(partial, second, total, out=total)
    else:
        backend.add(total, backend.multiply(partial, second), out=total)
