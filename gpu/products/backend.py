"""The GPU as the machine on which schedules and epilogues are worked out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.formats.cast_options import cast_options
from fpsim.formats.named import FP32, FP64, Format
from fpsim.gpu.casts.cast import fill_codes, fill_values, widened_codes
from fpsim.gpu.device.array import gpu_array
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import scratch
from fpsim.gpu.products.float_matrix import FloatMatrices
from fpsim.gpu.products.lane_product import lane_product
from fpsim.gpu.products.operands import operand
from fpsim.gpu.products.unit_product import GpuProduct, add_product
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import Shape, output_overflow
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes


class Gpu(FloatMatrices):
    """What `fpsim.machine.Machine` asks for, on words of float32 (float64 for units that add in it)."""

    merges_slices = False

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Any = None) -> Any:
        """A matrix of one value."""
        word = np.asarray(value, dtype).view(f"u{dtype.itemsize}")[()]
        return self.filled(shape, word, out)

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Any = None) -> Any:
        """As `Machine.start`."""
        given = operand(c, unit.d, unit, "c")
        return self.copied(self._widened(given, unit.d.fmt, shape), out)

    def source(self, c: Any, unit: MatrixUnit, shape: Shape) -> Any:
        """As `Machine.source`."""
        given = gpu_array(c, "c")
        fmt = given.fmt
        if fmt is None or fmt in (unit.d.fmt, FP64):
            given, fmt = operand(c, unit.d, unit, "c"), unit.d.fmt
        return self._widened(given, fmt, shape)

    def _widened(self, given: GpuArray, fmt: Format, shape: Shape) -> Any:
        """Codes as the words of their float32 values; float64 stays."""
        if given.shape != shape:
            raise ValueError(f"c must have the result's shape {shape}; got {given.shape}.")
        words = given.words if fmt in (FP32, FP64) else widened_codes(given, fmt, FP32).words
        return words.reshape(*shape)

    def rounded(self, x: Any, fmt: Format) -> Any:
        """As `Machine.rounded`."""
        if fmt == FP32:
            return x
        flat = self._flat(x)
        codes, result = self.codes(x, fmt), self.copied(x)
        fill_values(flat, codes, self._flat(result).words, fmt, FP32)
        return result

    def codes(self, x: Any, fmt: Format, out: Any = None) -> Any:
        """The codes of values in an output's format, in a row: to nearest even, and FP8 saturates."""
        flat = self._flat(x)
        codes = scratch(flat.size, fmt.storage) if out is None else out
        fill_codes(flat, codes, cast_options(fmt, overflow=output_overflow(fmt)))
        return codes

    def _flat(self, x: Any) -> GpuArray:
        """float32 words in a row."""
        size = math.prod(x.shape)
        return GpuArray(x.reshape(size), (size,), FP32, self.like)

    def add_product(self, total: Any, product: GpuProduct) -> None:
        """As `Machine.add_product`."""
        add_product(total, product, self)

    def lane_product(self, product: GpuProduct, lanes: Lanes, run: int, terms: Span) -> Any:
        """As `Machine.lane_product`."""
        return lane_product(product, lanes, run, terms, self)
