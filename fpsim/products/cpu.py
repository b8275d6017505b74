"""The CPU as a backend of matrix products: reads operands, adds products, and writes results."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arithmetic.operands import read_operand
from fpsim.arrays import Array, as_array, format_of, is_torch, output, words
from fpsim.casts.cast import decode, encode, quantize
from fpsim.formats.named import DTYPES, FP16, FP32, FP64, Format
from fpsim.instructions.integer_operands import integer_operand
from fpsim.instructions.operands import block_scales, operand, refuse_overlap, takes_scales
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.add_product import add_product
from fpsim.products.backend import NumpyOperations, Shape, output_overflow
from fpsim.products.integers.product import add_integer_product, take_zero_points
from fpsim.products.kernels.panel import canonical_nan
from fpsim.products.lane_product import lane_product
from fpsim.products.unit_product import NO_SCALES, UnitProduct
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.scaling.scaled import Scaled
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes
from fpsim.sums.accumulators import Accumulator
from fpsim.sums.product import accumulator_product


class Cpu(NumpyOperations):
    """The backend of products on the CPU, for NumPy arrays; `Backend` explains its methods."""

    operand = staticmethod(operand)
    integers = staticmethod(integer_operand)
    add_integers = staticmethod(add_integer_product)
    product = UnitProduct
    add_product = staticmethod(add_product)

    @property
    def merges_slices(self) -> bool:
        """True if `add_product` adds several slices of K in one call.

        False in a `with general_loops()` block, whose slower loops add one slice per call.
        """
        return not allows_general_loops()

    def block_scales(self, codes: Any, shape: Shape, unit: MatrixUnit, name: str) -> Array:
        return block_scales(codes, shape, unit, name) if takes_scales(codes, unit, name) else NO_SCALES

    def codes(self, x: Any, fmt: Format | None, name: str) -> tuple[Array, Format]:
        return read_operand(x, fmt, name)[:2]

    def floats(self, x: Any, name: str) -> Array:
        return as_array(x, name)

    def scaled(self, x: Any, name: str) -> Scaled | None:
        return x if type(x) is not np.ndarray and isinstance(x, Scaled) else None  # abstract isinstance is slow

    def decoded(self, x: Scaled, fmt: Format) -> Array:
        return encode(x.decode(np.float64), fmt)  # float64 holds the product of an integer and a scale

    def result(
        self, out: Any, shape: Shape, dtype: np.dtype[Any], a: Array, *others: Array
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return (the result's array for the caller, the array that kernels fill); on the CPU both are one array.

        out: that array, or None for a new one. shape, dtype: the result's. a: the codes of a. others: the codes of b,
        and the scales of a and b.

        Raises:
          ValueError, TypeError: `out` has another shape or dtype, or overlaps an operand.
        """
        if out is None:
            made = np.empty(shape, dtype)
            return made, made
        result = output(out, shape, dtype, a, "the result's")
        refuse_overlap(out, *others)
        return result, result

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Array | None = None) -> Array:
        matrix = np.empty(shape, dtype) if out is None or not out.flags.c_contiguous else out
        matrix[...] = value
        return matrix

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Array | None = None) -> Array:
        values = _values(c, unit, shape)
        matrix = np.empty(shape, values.dtype) if out is None or not out.flags.c_contiguous else out
        matrix[...] = values
        return matrix

    def source(self, c: Any, unit: MatrixUnit, shape: Shape) -> Array:
        array = as_array(c, "c") if is_torch(c) else c
        fmt = format_of(array.dtype) if isinstance(array, np.ndarray) else None
        if fmt is None or fmt in (unit.d.fmt, FP64):
            return _values(c, unit, shape)
        if array.shape != shape:
            raise ValueError(f"c must have the result's shape {shape}; got {array.shape}.")
        return np.asarray(array.astype(np.float32))

    def rounded(self, x: Array, fmt: Format) -> Array:
        return x if fmt == FP32 else quantize(x, fmt, overflow=output_overflow(fmt))

    def integer_start(self, c: Any, unit: IntegerUnit, shape: Shape) -> Array:
        if c is None:
            return np.zeros(shape, unit.d.dtype)
        start = integer_operand(c, unit.d, unit, "c")
        if start.shape != shape:
            raise ValueError(f"c must have the result's shape {shape}; got {start.shape}.")
        return np.array(start, order="C")

    def take_zero_points(self, total: Array, left: Any, right: Any, unit: IntegerUnit) -> None:
        take_zero_points(total, left.codes, right.codes, left.zero_points, right.zero_points)

    def floats_of_integers(self, total: Array, signed: bool) -> Array:
        return total.astype(np.float32)

    def deliver_integers(self, total: Array, dtype: np.dtype[Any], target: Array, floats: bool) -> None:
        if floats:
            ends = np.iinfo(dtype)  # float64 holds all integers of 32 bits
            total = np.clip(np.nan_to_num(np.rint(total), nan=0.0).astype(np.float64), ends.min, ends.max)
        target[...] = total

    def lane_product(self, product: UnitProduct, lanes: Lanes, run: int, terms: Span) -> Array:
        formats = product.unit.a.carrier, product.unit.b.carrier
        return lane_product(product.a, product.b, lanes, run, terms.start, terms.stop, formats)

    def deliver(self, total: Array, fmt: Format, nan: int | None, overflow: str, target: Array) -> None:
        kept = fmt in (FP32, FP64)
        if fmt == FP64 and total.dtype != target.dtype:  # float32 sums, whose NaN has another code
            total = total.astype(np.float64)
        if kept and nan is not None:
            canonical_nan()(words(total.reshape(-1)), *_nan_codes(fmt, nan))
        if kept or (fmt == FP16 and nan is None):  # NumPy's conversion leaves the bits of a NaN
            if total is not target:
                target[...] = total
            return
        codes = encode(total, fmt, overflow=overflow, out=words(target))
        if nan is not None:
            codes[np.isnan(total)] = nan

    def accumulate(
        self, accumulator: Accumulator, a: Array, b: Array, c: Array | None, formats: tuple[Format, Format],
        target: Array,
    ) -> None:  # fmt: skip
        accumulator_product(a, b, c, accumulator, formats=formats, out=words(target))


@lru_cache(maxsize=256)
def _nan_codes(fmt: Format, nan: int) -> tuple[Any, Any, Any]:
    """Return (the code after the largest finite one, mask of the sign bit, `nan`), scalars of fmt's storage dtype.

    The first is the code of +Inf, or of NaN in a format without Inf. nan: the code that replaces every NaN of a result.
    """
    word = fmt.storage.type
    return word(fmt.max_code + 1), word(fmt.sign_bit), word(nan)


def _values(c: Any, unit: MatrixUnit, shape: Shape) -> Array:
    """Return the values of c as float32, or as float64 for a unit whose sums are FP64, (M, N).

    c: codes or floats of the unit's result format. unit: the matrix unit. shape: (M, N), which c must have.

    Raises:
      ValueError, TypeError: c has another shape or format.
    """
    codes = operand(c, unit.d, unit, "c")
    if codes.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {codes.shape}.")
    fmt = unit.d.fmt
    if fmt not in DTYPES:
        return decode(codes, fmt)
    values = codes.view(DTYPES[fmt])
    return values if values.dtype == np.float64 else values.astype(np.float32, copy=False)
