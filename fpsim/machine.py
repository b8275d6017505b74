"""Where the sums of a matrix product are worked out: the operations that schedules and epilogues are made of."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fpsim.arrays import Array, format_of, from_torch, is_torch
from fpsim.cast import quantize
from fpsim.float_operations import FloatOperations, NumpyOperations
from fpsim.formats import DTYPES, FP32, FP64, Format
from fpsim.lane_product import lane_product
from fpsim.matrix_unit import MatrixUnit
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes
from fpsim.unit_operands import accumulator
from fpsim.unit_product import Product, add_product

Matrix = Any  # float32 of shape (M, N) on the machine, float64 for units that add in it
Shape = tuple[int, int]


class Machine(FloatOperations, Protocol):
    """A processor or a GPU, and what it does with its matrices."""

    merges_slices: bool  # whether add_product knows `Product.cut`

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Matrix = None) -> Matrix:
        """A matrix of one value."""

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Matrix = None) -> Matrix:
        """c, where a unit's sums start, as a matrix of its own.

        Raises:
          ValueError: another shape or format.
        """

    def source(self, c: Any, unit: MatrixUnit, shape: Shape) -> Matrix:
        """C of an epilogue: of any float dtype that is narrower than float32, or as `start` takes it.

        Raises:
          ValueError: another shape or format.
        """

    def rounded(self, x: Matrix, fmt: Format) -> Matrix:
        """Values of an output's format: to nearest even, where FP8 saturates, as NVIDIA's cvt does."""

    def add_product(self, total: Matrix, product: Any) -> None:
        """Add a product by a unit to what its sums start at."""

    def lane_product(self, product: Any, lanes: Lanes, run: int, terms: Span) -> Matrix:
        """Some terms of a product without matrix units."""


class Cpu(NumpyOperations):
    """The processor, on NumPy arrays."""

    merges_slices = True

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Array | None = None) -> Array:
        """As `Machine.full`."""
        matrix = np.empty(shape, dtype) if out is None else out
        matrix[...] = value
        return matrix

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Array | None = None) -> Array:
        """As `Machine.start`."""
        values = _values(c, unit, shape)
        matrix = np.empty(shape, values.dtype) if out is None else out
        matrix[...] = values
        return matrix

    def source(self, c: Any, unit: MatrixUnit, shape: Shape) -> Array:
        """As `Machine.source`."""
        array = from_torch(c) if is_torch(c) else c
        fmt = format_of(array.dtype) if isinstance(array, np.ndarray) else None
        if fmt is None or fmt in (unit.d.fmt, FP64):
            return _values(c, unit, shape)
        if array.shape != shape:
            raise ValueError(f"c must have the result's shape {shape}; got {array.shape}.")
        return np.asarray(array.astype(np.float32))

    def rounded(self, x: Array, fmt: Format) -> Array:
        """As `Machine.rounded`."""
        return x if fmt == FP32 else quantize(x, fmt, overflow=output_overflow(fmt))

    def add_product(self, total: Array, product: Product) -> None:
        """As `Machine.add_product`."""
        add_product(total, product)

    def lane_product(self, product: Product, lanes: Lanes, run: int, terms: Span) -> Array:
        """As `Machine.lane_product`."""
        formats = product.unit.a.carrier, product.unit.b.carrier
        return lane_product(product.a, product.b, lanes, run, terms.start, terms.stop, formats)


def _values(c: Any, unit: MatrixUnit, shape: Shape) -> Array:
    """c as floats of its values."""
    codes = accumulator(c, unit)
    if codes.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {codes.shape}.")
    values = codes.view(DTYPES[unit.d.fmt])
    return values if values.dtype == np.float64 else values.astype(np.float32, copy=False)


def output_overflow(fmt: Format) -> str:
    """What becomes of results that a library's output format does not hold."""
    return "saturate" if fmt.bits <= 8 else "nonfinite"


def output_nan(fmt: Format) -> int | None:
    """The code of every NaN in an output's format: NVIDIA's conversions give all ones, where that is one."""
    if fmt.nan_code is None:
        return None
    all_ones = fmt.top_magnitude > max(fmt.max_code, fmt.infinity_code or 0)
    return fmt.top_magnitude if all_ones else fmt.nan_code
