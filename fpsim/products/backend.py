"""The interface of the backends of matrix products (the CPU and GPUs): operations of schedules and epilogues."""

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
    """Float operations on matrices in the memory of the CPU or a GPU.

    Operands and results are float32. Operands broadcast as in NumPy, and may be NumPy scalars or arrays. `out`, if it
    is not None, is the float32 matrix to which the result is written.
    """

    def add(self, x: Any, y: Any, out: Any = None) -> Any:
        """Return x + y, rounded once to nearest even; out: the array for the result; None for a new one."""

    def multiply(self, x: Any, y: Any, out: Any = None) -> Any:
        """Return x * y, rounded once to nearest even; out: the array for the result; None for a new one."""

    def fma(self, x: Any, y: Any, z: Any, out: Any = None) -> Any:
        """Return x * y + z, rounded once to nearest even.

        out: a C-contiguous float32 array of the broadcast shape for the result; None for a new one.
        """


class Backend(FloatOperations, Protocol):
    """A backend of matrix products, the CPU or a GPU: reads operands, adds products, and writes results.

    Arguments `name` are the names of the caller's arguments in errors. Methods that read operands raise a ValueError or
    TypeError for a wrong shape, format or dtype, and for an array in other memory than this backend's.
    """

    @property
    def merges_slices(self) -> bool:
        """True if `add_product` can add several slices of K in one call, each of `UnitProduct.cut` terms."""

    def operand(self, x: Any, element: Element, unit: MatrixUnit, name: str) -> Any:
        """Return an operand of a matrix unit, or its addend c, as an array of codes in this backend's memory.

        x: codes of the format of `element`, or floats of its dtype. element: the operand's format in the unit. name:
        the argument that errors name.

        Raises:
          ValueError, TypeError: x has another format, or is not an array in this backend's memory.
        """

    def codes(self, x: Any, fmt: Format | None, name: str) -> tuple[Any, Format]:
        """Return an operand of a generic accumulator as (array of codes on this backend, format of the codes).

        x: array of a float dtype, or of unsigned codes. fmt: the format of x if x holds codes; None if x has a float
        dtype. name: the argument that errors name.

        Raises:
          ValueError, TypeError: x has another format, is not in this backend's memory, or holds integers and fmt is
            None.
        """

    def scaled(self, x: Any, name: str) -> Any | None:
        """Return x if it is a Scaled operand, with codes on this backend and scales on the CPU; else None.

        name: the argument's name in errors.
        """

    def decoded(self, x: Any, fmt: Format) -> Any:
        """Return the values of a Scaled operand of integers as a matrix of codes of `fmt`, on this backend.

        Each integer, less its zero point, times its scale is rounded once. x: a result of the method `scaled`.
        """

    def integers(self, x: Any, element: IntegerElement, unit: IntegerUnit, name: str) -> Any:
        """Return an operand of an integer matrix unit as an array of its element's dtype, in this backend's memory.

        x: array of integers. element: the operand's integer format in the unit. name: the argument that errors name.

        Raises:
          ValueError, TypeError: x does not hold integers of the element's dtype, or is not an array in this backend's
            memory.
        """

    def floats(self, x: Any, name: str) -> Array:
        """Return scales or a bias as a NumPy array, copied from a GPU if necessary.

        x: the caller's array. name: the argument that errors name.
        """

    def block_scales(self, codes: Any, shape: Shape, unit: MatrixUnit, name: str) -> Any:
        """Return the scale codes of an operand's blocks as a uint8 matrix on this backend.

        codes: scale codes, or None; for a unit without block scales they must be None, and the result is a placeholder.
        shape: (M, K / block) for a, (K / block, N) for b. unit: the matrix unit. name: the argument that errors name.

        Raises:
          ValueError: scales are missing, unwanted, or of another shape.
        """

    def product(self, unit: MatrixUnit, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        """Return the operands' codes and block scales as a `UnitProduct`, or as this backend's counterpart of it.

        Nothing is computed. unit: the matrix unit. a, b: codes, (M, K) and (K, N). scale_a, scale_b: results of
        `block_scales`.
        """

    def result(self, out: Any, shape: Shape, dtype: np.dtype[Any], a: Any, *others: Any) -> tuple[Any, Matrix]:
        """Return two views of the result's memory: the array that the caller gets, and the one that this backend fills.

        out: the caller's array; None to allocate one. shape, dtype: the result's. a: the codes of a. others: the codes
        of b, and the scales of a and b.

        Raises:
          ValueError, TypeError: `out` has another shape or dtype, or overlaps an operand.
        """

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Matrix = None) -> Matrix:
        """Return a C-contiguous matrix filled with one value; it reuses the memory of `out` if that is C-contiguous.

        shape, dtype: those of a new matrix; `out`, if not None, must have them too.
        """

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Matrix = None) -> Matrix:
        """Return the values of c, at which a unit's sums start, as a float matrix (M, N).

        It is float32, or float64 if the unit's sums are float64. c: codes or floats of the unit's result format. unit:
        the matrix unit. shape: (M, N), which c must have. out: memory that is reused for the result if it is
        C-contiguous; None to allocate.

        Raises:
          ValueError: c has another shape or format.
        """

    def source(self, c: Any, unit: MatrixUnit, shape: Shape) -> Matrix:
        """Return the values of the matrix C that an epilogue adds, as a float matrix (M, N).

        It is float32, or float64 if the unit's sums are float64. c: codes or floats of the unit's result format, or
        floats of any other dtype than float64. unit: the matrix unit. shape: (M, N), which c must have.

        Raises:
          ValueError: c has another shape or format.
        """

    def rounded(self, x: Matrix, fmt: Format) -> Matrix:
        """Return float32 values x, (M, N), rounded to nearest even to values of `fmt`, still as float32.

        FP8 saturates, as in NVIDIA's cvt.
        """

    def add_product(self, total: Matrix, product: Any) -> None:
        """Add the product of a matrix unit to `total` (M, N) in place.

        `total` holds the values at which the unit's sums start. product: a result of the method `product`: the unit,
        and the codes and scales of both operands.
        """

    def integer_start(self, c: Any, unit: IntegerUnit, shape: Shape) -> Any:
        """Return the integers at which an integer unit's sums start, as a new (M, N) matrix: c, or zeros if c is None.

        c: array of integers of the unit's result dtype, or None. unit: the integer matrix unit. shape: (M, N), which c
        must have.

        Raises:
          ValueError, TypeError: c has another shape, or does not hold integers of the unit's result dtype.
        """

    def add_integers(self, total: Any, a: Any, b: Any, unit: IntegerUnit) -> None:
        """Add a @ b by an integer matrix unit to `total` in place.

        total: (M, N) integers of the unit's result dtype, at which its sums start. a, b: (M, K) and (K, N) integers of
        the unit's input dtypes. unit: the integer matrix unit.
        """

    def take_zero_points(self, total: Any, left: Any, right: Any, unit: IntegerUnit) -> None:
        """Subtract from `total`, in place modulo 2^32, the terms that the zero points of both operands added to it.

        total: (M, N) int32 or uint32. left, right: the operands, with the attributes `codes` and `zero_points`. unit:
        the integer matrix unit that added `total`.
        """

    def floats_of_integers(self, total: Any, signed: bool) -> Matrix:
        """Return sums, `total` (M, N), rounded to nearest even float32; signed: True for int32, False for uint32."""

    def deliver_integers(self, total: Any, dtype: np.dtype[Any], target: Any, floats: bool) -> None:
        """Write `total` (M, N) to the array `target`, which has the integer dtype `dtype`.

        floats: True if `total` holds floats, which are rounded to nearest even and clipped to the range of the dtype;
        NaN becomes 0. False if it holds integers, which are copied.
        """

    def lane_product(self, product: Any, lanes: Lanes, run: int, terms: Span) -> Matrix:
        """Return the sums over some terms of K, (M, N) float32, in the order of GPU threads without matrix units.

        product: a result of the method `product`. lanes: which partial sum (lane) adds which terms. run: number of
        consecutive terms that a lane adds. terms: the range of K.
        """

    def deliver(self, total: Matrix, fmt: Format, nan: int | None, overflow: str, target: Matrix) -> None:
        """Write `total`, (M, N) float32 or float64, to `target` as numbers of a format, rounded once to nearest even.

        `total` may be overwritten. target: (M, N) floats of the dtype of `fmt`, or unsigned codes if the format has no
        dtype. nan: the code that every NaN becomes; None to leave NaNs to the cast. overflow: as in `fpsim.encode`.
        """

    def accumulate(
        self, accumulator: Accumulator, a: Any, b: Any, c: Any, formats: tuple[Format, Format], target: Matrix
    ) -> None:
        """Write c + a @ b by a generic accumulator to `target`, (M, N), as codes of the accumulator's result format.

        a, b, c: codes, as the method `codes` returns them, (M, K), (K, N) and (M, N); c may be None for +0. formats:
        those of a and b.
        """


def output_overflow(fmt: Format) -> str:
    """Return the argument `overflow` of a library's cast to `fmt`: "saturate" for up to 8 bits, else "nonfinite"."""
    return "saturate" if fmt.bits <= 8 else "nonfinite"


def output_nan(fmt: Format) -> int | None:
    """Return the code that NVIDIA's casts write for every NaN; None for a format without NaN.

    If the code with a sign bit of 0 and ones in all other bits is a NaN of the format, it is that; else fmt.nan_code.
    """
    if fmt.nan_code is None:
        return None
    all_ones = fmt.top_magnitude > max(fmt.max_code, fmt.infinity_code or 0)
    return fmt.top_magnitude if all_ones else fmt.nan_code


class NumpyOperations:
    """Float operations on NumPy arrays; `FloatOperations` explains its methods."""

    def add(self, x: Any, y: Any, out: Array | None = None) -> Array:
        total: Array = np.add(x, y, out=out)
        return total

    def multiply(self, x: Any, y: Any, out: Array | None = None) -> Array:
        product: Array = np.multiply(x, y, out=out)
        return product

    def fma(self, x: Any, y: Any, z: Any, out: Array | None = None) -> Array:
        return fma(x, y, z, out)
