"""`fpsim.gpu.sum` and `fpsim.gpu.dot`: sums and dot products, rounded as by an accumulator or a matrix unit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.arithmetic.operands import Formats, broadcast_shape, wanted_formats
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import format as find_format
from fpsim.gpu.arithmetic.operands import code_operand, result_dtype
from fpsim.gpu.device.array import result_like
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import scratch
from fpsim.gpu.device.transfer import cleared
from fpsim.gpu.products.float_matrix import FloatMatrices
from fpsim.gpu.products.gpu_product import GpuProduct
from fpsim.gpu.products.integer_matrix import add_integer_products, integers_on_gpu
from fpsim.gpu.products.operands import block_scales, operand
from fpsim.gpu.products.unit_product import run_specification, taken
from fpsim.gpu.sums.accumulate import GpuSumProblem, fill_sums
from fpsim.matrix_units.catalogue import any_unit
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.reduce import check_terms, check_unit, checked_axis, no_accumulator
from fpsim.products.request import is_order, no_accumulate
from fpsim.sums.accumulators import Accumulator


def sum(
    x: Any, *, accumulate: Accumulator | None = None, fmt: FormatLike | None = None, axis: int | None = None
) -> Any:
    """Return the sum of an array on the GPU, as an accumulator adds it, bit for bit as `fpsim.sum`.

    Args:
      x: array of a float dtype on the GPU, of any shape, or unsigned codes with `fmt`.
      accumulate: `fp.Sequential`, `fp.FusedMultiplyAdd`, `fp.Pairwise`, `fp.Chunked` or `fp.Exact`; stochastic results
        are the same as on the CPU. Other orders of additions, such as trees, are for `fpsim.sum` alone.
      axis: as for `fpsim.sum`.
      fmt: format of codes; None for float dtypes.

    Returns:
      Array of x's library, of x's shape without the summed axis; without axes if axis is None. It has the accumulator's
      result dtype, or codes if the library has no such dtype.

    Raises:
      GpuError: no GPU, or too little memory on it.
      ValueError, TypeError: as `fpsim.sum`.

    Source: docs/accumulators.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.ones(10000, dtype=torch.float16).cuda()
      ...     print(fp.gpu.sum(x, accumulate=fp.Sequential("fp16")))
    """
    _refuse_order(accumulate, "sum")
    if not isinstance(accumulate, Accumulator):
        raise no_accumulator(accumulate)
    codes, of_codes = code_operand(x, None if fmt is None else find_format(fmt), "x")
    where = checked_axis(axis, len(codes.shape))
    before, terms, behind = around(codes, where)
    shape = () if where is None else tuple(np.delete(codes.shape, where).tolist())
    result, out = result_like(codes, shape, result_dtype(accumulate.result_format))
    b = codes.words.reshape(before * terms, behind)
    a = codes.words.reshape(before, terms * behind)[:, :terms]  # its values are not read, its shape is
    c = scratch((0, 0), accumulate.result_format.storage)  # +0
    problem = GpuSumProblem(a, b, c, (None, of_codes), paired=True)
    fill_sums(accumulate, problem, out.reshape(before, behind), codes.like)
    return result


def dot(
    a: Any, b: Any, *, accumulate: Accumulator | MatrixUnit | IntegerUnit | str | None = None, fmt: Formats = None
) -> Any:
    """Return the dot products along the last axis on the GPU, by an accumulator or a matrix unit, as `fpsim.dot` does.

    Args:
      a, b: arrays (..., K) of a float dtype on the GPU, or unsigned codes with `fmt`; the axes before the last
        broadcast.
      accumulate: an accumulator, or a matrix unit or its name. Other orders of additions, such as trees, are for
        `fpsim.dot` alone.
      fmt: as for `fpsim.dot`.

    Returns:
      Array (...) of a's library and of the accumulator's result dtype; codes if the library has no such dtype. Sums of
      an integer unit are integers.

    Raises:
      GpuError: no GPU, or too little memory on it.
      ValueError, TypeError: as `fpsim.dot`.

    Source: docs/accumulators.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x, y = torch.tensor([[1, 1.001], [-1.002, 1.001]], dtype=torch.float16).cuda()
      ...     print(fp.gpu.dot(x, y, accumulate=fp.FusedMultiplyAdd("fp16")))
    """
    _refuse_order(accumulate, "dot")
    if isinstance(accumulate, (MatrixUnit, IntegerUnit, str)):
        return _dot_by_unit(a, b, any_unit("accumulate", accumulate), fmt)
    if not isinstance(accumulate, Accumulator):
        raise no_accumulate(accumulate, {"a": a, "b": b})
    wanted = wanted_formats("dot", fmt, 2)
    (left, of_a), (right, of_b) = code_operand(a, wanted[0], "a"), code_operand(b, wanted[1], "b")
    shape, rows = _rows(left, right)
    result, out = result_like(left, shape, result_dtype(accumulate.result_format))
    count, terms = rows[0].shape
    c = scratch((0, 0), accumulate.result_format.storage)  # +0
    problem = GpuSumProblem(rows[0], rows[1].reshape(count * terms, 1), c, (of_a, of_b), paired=True)
    fill_sums(accumulate, problem, out.reshape(count, 1), left.like)
    return result


def around(x: GpuArray, axis: int | None) -> tuple[int, int, int]:
    """Return (number of elements along the axes before `axis`, length of `axis`, number along the axes after it).

    For axis None, all elements of x count as one axis: (1, x.size, 1).
    """
    if axis is None:
        return 1, x.size, 1
    axis %= len(x.shape)
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def _rows(a: GpuArray, b: GpuArray) -> tuple[tuple[int, ...], tuple[Any, Any]]:
    """Return (shape of the result, (a, b) as matrices of codes (number of results, K)).

    a, b: operands (..., K), whose axes before the last broadcast to the shape of the result.

    Raises:
      ValueError: the last axes differ in length, or the axes before them do not broadcast.
    """
    check_terms(a, b)
    shape = broadcast_shape("dot", (a.shape[:-1], b.shape[:-1]), whole=(a.shape, b.shape))
    return shape, (_expanded(a, shape), _expanded(b, shape))


def _expanded(x: GpuArray, shape: tuple[int, ...]) -> Any:
    """Return the operand x (..., K) as a (results, K) matrix of codes, with rows repeated where axes of x broadcast.

    shape: the broadcast shape without the last axis.
    """
    count, terms = math.prod(x.shape[:-1]), x.shape[-1]
    matrix = x.words.reshape(count, terms)
    if x.shape[:-1] == shape or math.prod(shape) == count:
        return matrix
    places = np.broadcast_to(np.arange(count, dtype=np.int32).reshape(x.shape[:-1]), shape)
    return taken(matrix, places.reshape(-1), True, FloatMatrices(x.like))


def _refuse_order(accumulate: Any, name: str) -> None:
    """Raise a TypeError if `accumulate` is an order of additions, such as a tree, which only the CPU supports.

    name: the calling function, "sum" or "dot".
    """
    if is_order(accumulate):
        raise TypeError(
            f"accumulate must be an accumulator on the GPU, such as fp.Pairwise(fp.FP32); got {shown(accumulate)}. "
            f"fpsim.{name} adds in such an order, on the CPU."
        )


def _dot_by_unit(a: Any, b: Any, unit: MatrixUnit | IntegerUnit, fmt: Formats) -> Any:
    """Return the dot products along the last axis of a and b, each by a chain of matrix instructions from +0.

    fmt: must be None, since the unit determines the formats of its operands.
    """
    check_unit(unit, fmt)
    if isinstance(unit, IntegerUnit):
        of_a, of_b = integers_on_gpu(a, unit.a, unit, "a"), integers_on_gpu(b, unit.b, unit, "b")
        shape, rows = _rows(of_a, of_b)
        result, out = result_like(of_a, shape, unit.d.dtype)
        cleared(of_a.like, out)
        add_integer_products(*rows, out, unit, of_a.like, paired=True)
        return result
    left, right = operand(a, unit.a, unit, "a"), operand(b, unit.b, unit, "b")
    shape, (x, y) = _rows(left, right)
    count, terms = x.shape
    scales = [block_scales(None, (count, 1), unit, name) for name in ("scale_a", "scale_b")]
    result, out = result_like(left, shape, result_dtype(unit.d.carrier))
    product = GpuProduct(unit, x, y, scales[0], scales[1], np.arange(terms, dtype=np.int32))
    run_specification(product, scratch(0, out.dtype), out, left.like, paired=True)
    return result
