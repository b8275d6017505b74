"""Products on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array, format_of, from_torch, is_torch
from fpsim.casts.cast import quantize
from fpsim.formats.named import DTYPES, FP32, FP64, Format
from fpsim.instructions.operands import accumulator
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import NumpyOperations, Shape, output_overflow
from fpsim.products.lane_product import lane_product
from fpsim.products.unit_product import Product, add_product
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes


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
