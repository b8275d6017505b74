"""The interface of the backends of matrix products, the CPU and GPUs: the operations of schedules and epilogues."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import Format
from fpsim.matrix_units.integer_unit import IntegerElement, IntegerUnit
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from fpsim.products.kernels.fma import fma
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes
from fpsim.sums.accumulators import Accumulator

Matrix = Any  # float32 of shape (M, N) on the backend, float64 for units that add in it
Shape = tuple[int, int]


class FloatOperations(Protocol):
    """Operations on matrices of the CPU or a GPU; operands broadcast, and may be NumPy's numbers and arrays."""

    def add(self, x: Any, y: Any, out: Any = None) -> Any:
        """Return x + y, in `out` if given."""

    def multiply(self, x: Any, y: Any, out: Any = None) -> Any:
        """Return x * y, in `out` if given."""

    def fma(self, x: Any, y: Any, z: Any, out: Any = None) -> Any:
        """Return x * y + z with one rounding, in `out` if given."""


class Backend(FloatOperations, Protocol):
    """A backend of matrix products, the CPU or a GPU: reads operands, adds products, and writes results."""

    @property
    def merges_slices(self) -> bool:
        """True if `add_product` can add the slices of K to one another, as `UnitProduct.cut` asks."""

    def operand(self, x: Any, element: Element, unit: MatrixUnit, name: str) -> Any:
        """Return an operand of a unit, or the c to which it adds, as an array of codes on this backend.

        Raises:
          ValueError, TypeError: x has another format, or is not an array in this backend's memory.
        """

    def codes(self, x: Any, fmt: Format | None, name: str) -> tuple[Any, Format]:
        """Return an operand of an accumulator as an array of codes, and their format; fmt None: its dtype's.

        Raises:
          ValueError, TypeError: as for `operand`, or integers without a format.
        """

    def scaled(self, x: Any, name: str) -> Any | None:
        """Return a Scaled operand with its codes on this backend and all else on the CPU; None for other operands."""

    def integers(self, x: Any, element: IntegerElement, unit: IntegerUnit, name: str) -> Any:
        """Return an operand of a unit of integers as an array of its element's dtype.

        Raises:
          ValueError, TypeError: x does not hold integers of the element's dtype, or is not an array in this backend's
            memory.
        """

    def floats(self, x: Any, name: str) -> Array:
        """Return scales or a bias as an array of the CPU."""

    def block_scales(self, codes: Any, shape: Shape, unit: MatrixUnit, name: str) -> Any:
        """Return scale codes of blocks as a matrix; for a unit without block scales, any array.

        Raises:
          ValueError: scales are missing, unwanted, or of another shape.
        """

    def product(self, unit: MatrixUnit, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        """Return a `UnitProduct` of codes, or the record that this backend has in its place."""

    def result(self, out: Any, shape: Shape, dtype: np.dtype[Any], a: Any, *others: Any) -> tuple[Any, Matrix]:
        """Return (the array to return to the caller, the same memory as this backend fills it): `out`, or a new one.

        others: b, and what scales a or b.

        Raises:
          ValueError, TypeError: `out` does not fit, or overlaps what is read.
        """

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Matrix = None) -> Matrix:
        """Return a matrix filled with one value, in the memory of `out` if its shape and dtype fit."""

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Matrix = None) -> Matrix:
        """Return a copy of c, the values that a unit's sums start at, in the memory of `out` if that fits.

        Raises:
          ValueError: c has another shape or format.
        """

    def source(self, c: Any, unit: MatrixUnit, shape: Shape) -> Matrix:
        """Return the matrix C of an epilogue; its dtype is any that `start` accepts, or a narrower float.

        Raises:
          ValueError: c has another shape or format.
        """

    def rounded(self, x: Matrix, fmt: Format) -> Matrix:
        """Return values rounded to nearest even in an output's format; FP8 saturates, as in NVIDIA's cvt."""

    def add_product(self, total: Matrix, product: Any) -> None:
        """Add a product by a matrix unit to `total`, which holds the values that its sums start at."""

    def integer_start(self, c: Any, unit: IntegerUnit, shape: Shape) -> Any:
        """Return a new matrix of the integers that sums start at, copies of c, or zeros for None.

        Raises:
          ValueError, TypeError: c has another shape, or does not hold integers of the unit's result.
        """

    def add_integers(self, total: Any, a: Any, b: Any, unit: IntegerUnit) -> None:
        """Add a product by a unit of integers to `total`, which holds the integers that its sums start at."""

    def take_zero_points(self, total: Any, left: Any, right: Any, unit: IntegerUnit) -> None:
        """Subtract the terms due to both integer operands' zero points from the sums of their products, modulo 2^32."""

    def floats_of_integers(self, total: Any, signed: bool) -> Matrix:
        """Return integers, signed or not, as float32, rounded to nearest even."""

    def deliver_integers(self, total: Any, dtype: np.dtype[Any], target: Any, floats: bool) -> None:
        """Fill `target` with integers, unchanged, or with floats, rounded to nearest even and saturated (NaN: 0)."""

    def lane_product(self, product: Any, lanes: Lanes, run: int, terms: Span) -> Matrix:
        """Return a product's sums over the span `terms` of K, as a schedule without matrix units adds them."""

    def deliver(self, total: Matrix, fmt: Format, nan: int | None, overflow: str, target: Matrix) -> None:
        """Fill `target` with `total` cast once, to nearest even, to a format; `total` may be overwritten.

        nan: the code of every NaN; None to leave it as the cast makes it. overflow: as in `fpsim.encode`.
        """

    def accumulate(
        self, accumulator: Accumulator, a: Any, b: Any, c: Any, formats: tuple[Format, Format], target: Matrix
    ) -> None:
        """Fill a target with the sums of an accumulator; a, b and c are as `codes` returns them, and c may be None."""


def output_overflow(fmt: Format) -> str:
    """Return the overflow rule of casts to an output's format in libraries: FP8 saturates."""
    return "saturate" if fmt.bits <= 8 else "nonfinite"


def output_nan(fmt: Format) -> int | None:
    """Return the code of any NaN in an output's format: all ones, as in NVIDIA's conversions, if that is a NaN."""
    if fmt.nan_code is None:
        return None
    all_ones = fmt.top_magnitude > max(fmt.max_code, fmt.infinity_code or 0)
    return fmt.top_magnitude if all_ones else fmt.nan_code


class NumpyOperations:
    """`FloatOperations` on NumPy arrays."""

    def add(self, x: Any, y: Any, out: Array | None = None) -> Array:
        """Return x + y, in `out` if given."""
        total: Array = np.add(x, y, out=out)
        return total

    def multiply(self, x: Any, y: Any, out: Array | None = None) -> Array:
        """Return x * y, in `out` if given."""
        product: Array = np.multiply(x, y, out=out)
        return product

    def fma(self, x: Any, y: Any, z: Any, out: Array | None = None) -> Array:
        """Return x * y + z with one rounding, in `out` if given."""
        return fma(x, y, z, out)
