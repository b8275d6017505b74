"""sum and dot: sums and dot products by an accumulator or a matrix unit, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.operands import Formats, broadcast_shape, read_operand, wanted_formats
from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES, NAMED, Format, find_by_name
from fpsim.formats.named import format as find_format
from fpsim.lazy import deferred
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.request import is_order, no_accumulate
from fpsim.sums.accumulators import Accumulator

if TYPE_CHECKING:
    from fpsim.schedules.trees.array_sums import SumOrder
    from fpsim.schedules.trees.tree import Tree

lines, short_sums = deferred("fpsim.sums.lines"), deferred("fpsim.sums.float32_sums")  # both import numba
orders = deferred("fpsim.products.orders.orders")
KINDS = "Sequential, FusedMultiplyAdd, Pairwise, Chunked or Exact"


def no_accumulator(got: object) -> TypeError:
    """Return the TypeError for a value `got` that is not an accumulator; for a format, it suggests one of that format.

    Example:
      >>> from fpsim.products.reduce import no_accumulator
      >>> print(no_accumulator("bf16"))
      accumulate must be Sequential, FusedMultiplyAdd, Pairwise, Chunked or Exact for a sum; got 'bf16'. Pass fp.Sequential(fp.BF16).
    """  # noqa: E501
    fmt = got if isinstance(got, Format) else find_by_name(got) if isinstance(got, str) else None
    hint = "" if fmt is None or fmt.name not in NAMED else f" Pass fp.Sequential(fp.{fmt.name})."
    if got is None:
        hint = " Pass fp.Sequential(fp.FP32), fp.Pairwise(fp.FP32) or fp.Exact(fp.FP32), for instance."
    value = got.name if isinstance(got, Format) else shown(got)
    return TypeError(f"accumulate must be {KINDS} for a sum; got {value}.{hint}")


def sum(
    x: npt.ArrayLike,
    *,
    accumulate: Accumulator | Tree | SumOrder | tuple[Any, ...] | None = None,
    fmt: FormatLike | None = None,
    axis: int | None = None,
) -> Any:
    """Return the sum of an array, with the order and every rounding of an accumulator.

    Args:
      x: array of a float dtype (float16, float32, float64, ml_dtypes) of any shape, or unsigned codes with `fmt`.
      accumulate: `fp.Sequential`, `fp.FusedMultiplyAdd`, `fp.Pairwise`, `fp.Chunked` or `fp.Exact`; or any order: a
        tree of `fp.schedules.tree`, nested tuples of terms, such as ((0, 1), (2, 3)), which are added in float32, or
        the order of an array library, such as `fp.schedules.numpy_sum()`.
      fmt: format of codes; None for float dtypes.
      axis: the axis to add along; None adds all elements in C order.

    Returns:
      Array of the accumulator's result dtype (unsigned codes if the format has no dtype) without the axis; a scalar of
      that dtype for a single sum. An empty sum is +0.

    Raises:
      ValueError: an axis that x does not have, codes without fmt or out of range.
      TypeError: x holds neither floats nor codes, or `accumulate` is not an accumulator.

    Source: docs/accumulators.md states every rule.

    Example:
      >>> import fpsim as fp
      >>> x = np.ones(10000, np.float16)
      >>> for how in (fp.Sequential("fp16"), fp.Chunked("fp16", chunk=64), fp.Pairwise("fp16"), fp.Exact("fp16")):
      ...     print(how, float(fp.sum(x, accumulate=how)))
      Sequential(FP16) 2048.0
      Chunked(FP16, chunk=64) 10000.0
      Pairwise(FP16) 10000.0
      Exact(FP16) 10000.0
    """
    ordered = is_order(accumulate)
    if not isinstance(accumulate, Accumulator) and not ordered:
        raise no_accumulator(accumulate)
    usual = axis is None and type(x) is np.ndarray and (fmt is None or type(fmt) is Format or type(fmt) is str)
    total = short_sums().plain_sum(x, accumulate, fmt) if usual and not ordered else None
    if total is not None:
        return total
    codes, of_codes, _ = read_operand(x, None if fmt is None else find_format(fmt), "x")
    along = checked_axis(axis, codes.ndim)
    terms = codes.reshape(-1) if along is None else np.moveaxis(codes, along, -1)
    sums, kept = _sums(accumulate, lines().Lines(None, terms, (None, of_codes)))
    return _as_result(sums.reshape(terms.shape[:-1]), kept)


def dot(
    a: npt.ArrayLike, b: npt.ArrayLike, *,
    accumulate: Accumulator | MatrixUnit | IntegerUnit | Tree | SumOrder | tuple[Any, ...] | str | None = None,
    fmt: Formats = None,
) -> Any:  # fmt: skip
    """Return the dot products along the last axis, as an accumulator or a matrix unit adds them.

    Args:
      a, b: arrays (..., K) of a float dtype, or unsigned codes with `fmt`; the axes before the last broadcast.
      accumulate: `fp.Sequential`, `fp.FusedMultiplyAdd`, `fp.Pairwise`, `fp.Chunked` or `fp.Exact`, or a matrix unit or
        its name, whose sums start at +0, without block scales; or any order, as for `fpsim.sum`.
      fmt: format of operands that are codes, or a tuple of both formats; None for float dtypes and for a matrix unit,
        which has the formats of its codes.

    Returns:
      Array (...) of the accumulator's result dtype (unsigned codes if the format has no dtype); a scalar of that dtype
      for a single dot product.

    Raises:
      ValueError: shapes that do not match, codes without fmt or out of range, or FP64 operands that the accumulator
        cannot multiply.
      TypeError: operands that are neither codes nor floats, or `accumulate` is not an accumulator.

    Source: docs/accumulators.md states every rule.

    Example:
      >>> import fpsim as fp
      >>> x = np.float16([1, 1.001])
      >>> y = np.float16([-1.002, 1.001])
      >>> [float(fp.dot(x, y, accumulate=how)) for how in (fp.Sequential("fp16"), fp.FusedMultiplyAdd("fp16"))]
      [0.0, 9.5367431640625e-07]
    """
    if isinstance(accumulate, (MatrixUnit, IntegerUnit, str)):
        return _dot_by_unit(a, b, accumulate, fmt)
    if not isinstance(accumulate, Accumulator) and not is_order(accumulate):
        raise no_accumulate(accumulate, {"a": a, "b": b})
    wanted = wanted_formats("dot", fmt, 2)
    (left, of_a, _), (right, of_b, _) = read_operand(a, wanted[0], "a"), read_operand(b, wanted[1], "b")
    check_terms(left, right)
    shape = broadcast_shape("dot", (left.shape, right.shape))
    left, right = np.broadcast_to(left, shape), np.broadcast_to(right, shape)
    sums, kept = _sums(accumulate, lines().Lines(left, right, (of_a, of_b)))
    return _as_result(sums.reshape(shape[:-1]), kept)


def _sums(accumulate: Any, of: Any) -> tuple[Array, Format]:
    """Return (the sum of each row of terms as codes, 1-D; the format of these codes).

    accumulate: an accumulator, or an order of additions: a tree, a SumOrder or nested tuples. of: a record `Lines` with
    codes of the terms, (..., K), or of both factors of each term, and their formats.
    """
    if is_order(accumulate):
        ordered: tuple[Array, Format] = orders().ordered_sums(accumulate, of)
        return ordered
    return lines().line_sums(accumulate, of), accumulate.result_format


def _as_result(codes: Array, fmt: Format) -> Any:
    """Return codes of the format `fmt`, viewed in its dtype if it has one; a 0-d array becomes a scalar."""
    return codes.view(DTYPES.get(fmt, codes.dtype))[()]


def checked_axis(axis: int | None, dimensions: int) -> int | None:
    """Return `axis` as a Python int after checking it for an array of `dimensions` axes.

    None, which stands for all axes, stays None. A negative axis stays negative.

    Raises:
      TypeError, ValueError: axis is not an integer, or not an axis of the array.
    """
    if axis is None:
        return None
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise TypeError(
            f"axis must be an integer, or None for all of them; got {shown(axis)}. Reshape x to add along several."
        )
    if not -dimensions <= axis < dimensions:
        raise ValueError(f"axis must be one of the {dimensions} axes of x, counted from 0; got {shown(axis)}.")
    return int(axis)


def check_terms(a: Any, b: Any) -> None:
    """Raise a ValueError unless the last axes of a and b have the same length."""
    if not a.shape or not b.shape or a.shape[-1] != b.shape[-1]:
        raise ValueError(f"a dot product needs operands (..., K) with the same K; got {a.shape} and {b.shape}.")


def check_unit(unit: MatrixUnit | IntegerUnit, fmt: Formats) -> None:
    """Raise a ValueError if `dot` cannot add by a matrix unit: `fmt` is not None, or the unit needs block scales."""
    if fmt is not None:
        raise ValueError(f"a matrix unit knows the formats of its operands ({unit.name}); leave fmt out.")
    if isinstance(unit, MatrixUnit) and unit.scale is not None:
        raise ValueError(
            f"{unit.name} needs block scales, which dot does not take. Pass them to dot_add, or Scaled operands to "
            "matmul."
        )


def _dot_by_unit(a: npt.ArrayLike, b: npt.ArrayLike, unit: MatrixUnit | IntegerUnit | str, fmt: Formats) -> Any:
    """Return the dot products along the last axis of a and b by a chain of matrix instructions that starts at +0.

    a, b: (..., K) codes or floats of the unit's input formats, whose axes before the last broadcast. unit: a matrix
    unit or its name. fmt: must be None, as a unit has the formats of its operands.

    Raises:
      ValueError, TypeError: fmt is passed, a unit that needs block scales, or operands that the unit does not accept or
        whose shapes do not match.
    """
    from fpsim.instructions.dot_add import dot_add
    from fpsim.instructions.integer_operands import integer_operand
    from fpsim.instructions.operands import operand
    from fpsim.matrix_units.catalogue import any_unit

    unit = any_unit("accumulate", unit)
    check_unit(unit, fmt)
    read: Any = integer_operand if isinstance(unit, IntegerUnit) else operand
    left, right = read(a, unit.a, unit, "a"), read(b, unit.b, unit, "b")
    check_terms(left, right)
    shape = broadcast_shape("dot", (left.shape, right.shape))
    left, right = np.broadcast_to(left, shape), np.broadcast_to(right, shape)
    count = int(np.prod(shape[:-1], dtype=np.int64))
    sums = dot_add(left.reshape(count, shape[-1]), right.reshape(count, shape[-1]), None, unit).reshape(shape[:-1])
    return sums[()] if isinstance(unit, IntegerUnit) else _as_result(sums, unit.d.carrier)
