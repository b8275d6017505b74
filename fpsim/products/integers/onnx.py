"""ONNX's integer products: MatMulInteger and QLinearMatMul, with zero points and scales of rows and columns."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array
from fpsim.errors import require_word, shown
from fpsim.lazy import deferred
from fpsim.matrix_units.catalogue import INTEGER_ROWS
from fpsim.matrix_units.integer_unit import IntegerUnit

loops, processor = deferred("fpsim.products.integers.product"), deferred("fpsim.runtime.processor")  # import numba
Library = Literal["onnx", "onnxruntime"]
BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


def matmul_integer(
    a: npt.ArrayLike, b: npt.ArrayLike, a_zero_point: npt.ArrayLike | None = None,
    b_zero_point: npt.ArrayLike | None = None,
) -> Any:  # fmt: skip
    """Return (a - a_zero_point) @ (b - b_zero_point) in int32, as ONNX's MatMulInteger does.

    Products and sums are exact modulo 2^32.

    Args:
      a, b: int8 or uint8 arrays, multiplied as by `np.matmul`: (..., M, K) and (..., K, N), or one axis.
      a_zero_point: integers of a's dtype: a number, one per row (M,), or (..., M, 1); None for 0.
      b_zero_point: integers of b's dtype: a number, one per column (N,), or (..., 1, N); None for 0.

    Returns:
      int32 array of np.matmul's shape; a scalar for two operands of one axis.

    Raises:
      ValueError: shapes that do not match, zero points out of range.
      TypeError: an argument has another dtype than those above.

    Source: ONNX operators, MatMulInteger-10; docs/integer-products.md.

    Example:
      >>> import fpsim as fp
      >>> fp.matmul_integer(np.uint8([[11, 7, 3], [10, 6, 2]]), np.uint8([[1, 4], [2, 5], [3, 6]]), 12, 0)
      array([[-38, -83], [-44, -98]], dtype=int32)
    """
    shape, rows, columns = _shapes(_bytes(a, "a"), _bytes(b, "b"))
    return _integer_sums(rows, columns, (a_zero_point, b_zero_point)).reshape(shape)[()]


def qlinear_matmul(
    a: npt.ArrayLike, a_scale: npt.ArrayLike, a_zero_point: npt.ArrayLike | None, b: npt.ArrayLike,
    b_scale: npt.ArrayLike, b_zero_point: npt.ArrayLike | None, y_scale: npt.ArrayLike,
    y_zero_point: npt.ArrayLike | None = None, *, library: Library = "onnx",
) -> Any:  # fmt: skip
    """Return the product of quantised matrices, quantised again, as ONNX's QLinearMatMul does.

    The integer sums of `matmul_integer` are multiplied by a_scale * b_scale / y_scale, rounded to nearest even, and
    saturated to the dtype of the result.

    Args:
      a, b: int8 or uint8 arrays, multiplied as by `np.matmul`.
      a_scale, a_zero_point: a number, one per row (M,), or (..., M, 1). Scales are float32 or float16. A zero point
        of None is 0.
      b_scale, b_zero_point: a number, one per column (N,), or (..., 1, N).
      y_scale, y_zero_point: scale and zero point of the result: a number, or one per row, (M,) or (..., M, 1). The
        result has the zero point's dtype; None is 0 in a's dtype.
      library: the library whose arithmetic is used where the operator leaves it open. "onnx": the reference
        evaluator, which multiplies in float64, and adds the zero point before it rounds to an integer; "onnxruntime":
        the sum and its product with the scales are rounded to float32, and the zero point is added to the rounded
        integer.

    Returns:
      Array of y_zero_point's dtype and np.matmul's shape.

    Raises:
      ValueError: shapes that do not match, zero points out of range, an unknown library.
      TypeError: an argument has another dtype than those above.

    Source: ONNX operators, QLinearMatMul-21; docs/integer-products.md.

    Example:
      >>> import fpsim as fp
      >>> a, b = np.uint8([[208, 236, 0, 238]]), np.uint8([[152], [51], [60], [26]])
      >>> fp.qlinear_matmul(a, np.float32(0.0066), np.uint8(113), b, np.float32(0.00705), np.uint8(114),
      ...                   np.float32(0.0107), np.uint8(118))
      array([[79]], dtype=uint8)
    """
    require_word("library", library, get_args(Library))
    shape, rows, columns = _shapes(_bytes(a, "a"), _bytes(b, "b"))
    full, out = _full_shape(rows, columns), rows.dtype
    if y_zero_point is not None:
        y = y_zero_point if hasattr(y_zero_point, "dtype") else as_array(y_zero_point, "y_zero_point")
        out = _bytes(y, "y_zero_point").dtype
    end = _points(y_zero_point, full, out, "y_zero_point")
    of_a, of_b = _scales(a_scale, rows.shape, "a_scale"), _scales(b_scale, columns.shape, "b_scale")
    of_y = _scales(y_scale, full, "y_scale")
    sums = _integer_sums(rows, columns, (a_zero_point, b_zero_point))
    with processor().ieee_arithmetic(), np.errstate(all="ignore"):
        factor = of_a * of_b / of_y
        offset = 0 if end is None else end.astype(np.int64)
        if library == "onnx":
            scaled = np.rint(sums.astype(np.float64) * factor.astype(np.float64) + offset)
        else:
            scaled = np.rint(sums.astype(np.float32) * factor.astype(np.float32)).astype(np.float64) + offset
    ends = np.iinfo(out)
    result = np.clip(np.where(np.isnan(scaled), 0, scaled), ends.min, ends.max)
    return result.astype(out).reshape(shape)[()]


# ---- operands


def _bytes(x: Any, name: str) -> Array:
    """Return operand x as an int8 or uint8 array; name: the argument that errors name.

    Raises:
      TypeError: x has another dtype, or is a masked array.
    """
    array = as_array(x, name)
    if array.dtype not in BYTES:
        got = array.dtype if hasattr(x, "dtype") else shown(x)
        raise TypeError(f"{name} must be an array of int8 or uint8; got {got}.")
    return array


def _shapes(a: Array, b: Array) -> tuple[tuple[int, ...], Array, Array]:
    """Return (the shape of np.matmul(a, b), a with at least two axes, b with at least two axes).

    Raises:
      ValueError: shapes that do not match.
    """
    rows, columns = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    matches = min(a.ndim, b.ndim) > 0 and rows.shape[-1] == columns.shape[-2]
    try:
        batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2]) if matches else ()
    except ValueError:
        matches = False
    if not matches:
        raise ValueError(f"a (..., M, K) and b (..., K, N) must be operands of np.matmul; got {a.shape} and {b.shape}.")
    shape = (*batch, *(rows.shape[-2:-1] if a.ndim > 1 else ()), *(columns.shape[-1:] if b.ndim > 1 else ()))
    return shape, rows, columns


def _full_shape(rows: Array, columns: Array) -> tuple[int, ...]:
    """Return the shape (..., M, N) of the product of rows (..., M, K) and columns (..., K, N)."""
    return (*np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2]), rows.shape[-2], columns.shape[-1])


def _points(x: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> Array | None:
    """Return zero points x, integers of `dtype`, as an int32 array; None for None.

    The array's shape is the one that `_placed` gives for an operand of the given shape. name: the argument's name.

    Raises:
      ValueError: x has another shape, or numbers out of the range of the dtype.
      TypeError: x does not hold integers.
    """
    if x is None:
        return None
    points, ends = as_array(x, name), np.iinfo(dtype)
    if points.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers of {dtype}; got {points.dtype}.")
    outside = (points < ends.min) | (points > ends.max)
    if outside.any():
        raise ValueError(
            f"{name} must lie in {ends.min} .. {ends.max}, the range of {dtype}; got {points[outside].flat[0]}."
        )
    return _placed(points.astype(np.int32), shape, name)


def _scales(x: Any, shape: tuple[int, ...], name: str) -> Array:
    """Return scales x as a float32 or float16 array; plain numbers become float32.

    The array's shape is the one that `_placed` gives for an operand of the given shape. name: the argument's name.

    Raises:
      ValueError: the scales have another shape.
      TypeError: the scales are neither float32 nor float16.
    """
    scales = as_array(x, name)
    if not hasattr(x, "dtype") and scales.dtype.kind in "iuf":
        scales = scales.astype(np.float32)
    if scales.dtype not in (np.dtype(np.float32), np.dtype(np.float16)):
        raise TypeError(f"{name} must be float32 or float16; got {scales.dtype if hasattr(x, 'dtype') else shown(x)}.")
    return _placed(scales, shape, name)


def _placed(x: Array, shape: tuple[int, ...], name: str) -> Array:
    """Return x, one number per row or column of an operand of the given shape, in a shape that broadcasts to it.

    The shape is (..., 1, N) for columns if the argument's `name` begins with "b_", else (..., M, 1) for rows, or () for
    one number.

    Raises:
      ValueError: x has another number of elements, or more than one along K.
    """
    if x.size == 1 and x.ndim <= 1:
        return x.reshape(())
    axis, other = (-2, -1) if name.startswith("b_") else (-1, -2)
    count = shape[other]
    if x.shape == (count,):
        return np.expand_dims(x, axis)
    fits = 2 <= x.ndim <= len(shape) and x.shape[axis] == 1
    if not fits or any(size not in (1, wanted) for size, wanted in zip(x.shape[::-1], shape[::-1], strict=False)):
        one = f"({count},) or (..., {'1, ' if axis == -2 else ''}{count}{', 1' if axis == -1 else ''})"
        raise ValueError(f"{name} must be one number, or have the shape {one}; got {x.shape} for {shape}.")
    return x


def _integer_sums(rows: Array, columns: Array, points: tuple[Any, Any]) -> Array:
    """Return (rows - zero points of rows) @ (columns - zero points of columns), (..., M, N) int32, modulo 2^32.

    rows: (..., M, K) and columns: (..., K, N), int8 or uint8. points: the callers' arguments a_zero_point and
    b_zero_point.

    Raises:
      ValueError, TypeError: as `_points` does.
    """
    names = "a_zero_point", "b_zero_point"
    placed = (_points(x, y.shape, y.dtype, name) for x, y, name in zip(points, (rows, columns), names, strict=True))
    sign = {np.dtype(np.int8): "s8", np.dtype(np.uint8): "u8"}
    first, second = sign[rows.dtype], sign[columns.dtype]
    unit: IntegerUnit = INTEGER_ROWS[f"hopper_{first if first == second else f'{first}x{second}'}_s32"]
    *batch, m, n = shape = _full_shape(rows, columns)
    total, k = np.zeros(shape, np.int32), rows.shape[-1]
    left, right = (
        x if x.shape == shape else np.broadcast_to(x, shape)  # a broadcast view would be a read-only array to kernels
        for x, shape in ((rows, (*batch, m, k)), (columns, (*batch, k, n)))
    )
    of_rows, of_columns = (None if x is None else np.broadcast_to(x, (*batch, *size)) for x, size in
                           zip(placed, ((m, 1), (1, n)), strict=True))  # fmt: skip
    for place in np.ndindex(*batch):
        loops().add_integer_product(total[place], left[place], right[place], unit)
        loops().take_zero_points(
            total[place], left[place], right[place], None if of_rows is None else of_rows[place],
            None if of_columns is None else of_columns[place],
        )  # fmt: skip
    return total
