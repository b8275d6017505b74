"""What matrix products ask of a backend, the CPU or a GPU: the operations of schedules and epilogues."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import Format
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
        """x + y."""

    def multiply(self, x: Any, y: Any, out: Any = None) -> Any:
        """x * y."""

    def fma(self, x: Any, y: Any, z: Any, out: Any = None) -> Any:
        """x * y + z."""


class Backend(FloatOperations, Protocol):
    """The CPU or a GPU: what it does with the operands, sums and results of products."""

    @property
    def merges_slices(self) -> bool:
        """True where `add_product` knows `UnitProduct.cut`."""

    def operand(self, x: Any, element: Element, unit: MatrixUnit, name: str) -> Any:
        """An operand of a unit, or its c, as an array of codes.

        Raises:
          ValueError, TypeError: another format, or no array where this backend has its arrays.
        """

    def codes(self, x: Any, fmt: Format | None, name: str) -> tuple[Any, Format]:
        """An operand of an accumulator as an array of codes, and their format; fmt: None for that of its dtype.

        Raises:
          ValueError, TypeError: as for `operand`, or integers without a format.
        """

    def scaled(self, x: Any, name: str) -> Any | None:
        """An operand with scales: codes on this backend, everything else on the CPU; None for any other."""

    def floats(self, x: Any, name: str) -> Array:
        """Scales or a bias as an array of the CPU."""

    def block_scales(self, codes: Any, shape: Shape, unit: MatrixUnit, name: str) -> Any:
        """Scale codes of blocks as a matrix; anything for a unit without.

        Raises:
          ValueError: missing, unwanted, or of another shape.
        """

    def product(self, unit: MatrixUnit, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        """A `UnitProduct` of codes, or what this backend has in its place."""

    def result(self, out: Any, shape: Shape, dtype: np.dtype[Any], a: Any, *others: Any) -> tuple[Any, Matrix]:
        """(the array to return, the same memory as this backend fills it): `out`, or a new one.

        others: b, and what scales either.
        Raises:
          ValueError, TypeError: an `out` that does not fit, or that overlaps what is read.
        """

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Matrix = None) -> Matrix:
        """A matrix of one value; `out` may serve as it."""

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Matrix = None) -> Matrix:
        """c, where a unit's sums start, as a matrix of its own; `out` may serve as it.

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

    def deliver(self, total: Matrix, fmt: Format, nan: int | None, overflow: str, target: Matrix) -> None:
        """Fill a target with a total, cast once to a format, to nearest even; `total` is lost.

        nan: the code of every NaN; None to leave it as the cast makes it. overflow: as in `fpsim.encode`.
        """

    def accumulate(
        self, accumulator: Accumulator, a: Any, b: Any, c: Any, formats: tuple[Format, Format], target: Matrix
    ) -> None:
        """Fill a target with the sums of an accumulator: a, b and c as `codes` gives them, c may be None."""


def output_overflow(fmt: Format) -> str:
    """What becomes of results that a library's output format does not hold."""
    return "saturate" if fmt.bits <= 8 else "nonfinite"


def output_nan(fmt: Format) -> int | None:
    """The code of every NaN in an output's format: NVIDIA's conversions give all ones, where that is one."""
    if fmt.nan_code is None:
        return None
    all_ones = fmt.top_magnitude > max(fmt.max_code, fmt.infinity_code or 0)
    return fmt.top_magnitude if all_ones else fmt.nan_code


class NumpyOperations:
    """`FloatOperations` on NumPy arrays."""

    def add(self, x: Any, y: Any, out: Array | None = None) -> Array:
        """x + y."""
        total: Array = np.add(x, y, out=out)
        return total

    def multiply(self, x: Any, y: Any, out: Array | None = None) -> Array:
        """x * y."""
        product: Array = np.multiply(x, y, out=out)
        return product

    def fma(self, x: Any, y: Any, z: Any, out: Array | None = None) -> Array:
        """x * y + z."""
        return fma(x, y, z, out)
