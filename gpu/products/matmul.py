"""`fpsim.gpu.dot_add` and `fpsim.gpu.matmul`: sums of products by matrix units, libraries and accumulators."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.formats.keywords import given_keywords
from fpsim.gpu.device.array import result_like
from fpsim.gpu.device.launch import scratch
from fpsim.gpu.products.backend import Gpu, codes_of
from fpsim.gpu.products.gpu_product import GpuProduct
from fpsim.gpu.products.integer_matrix import IntegerMatrices, add_integer_products, integers_on_gpu
from fpsim.gpu.products.operands import block_scales, operand
from fpsim.gpu.products.stacks import stacked
from fpsim.gpu.products.unit_product import run_specification
from fpsim.instructions.integer_operands import refuse_scales
from fpsim.instructions.operands import block_count
from fpsim.matrix_units.catalogue import any_unit
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import DEFAULTS, ProductKeywords, renamed_out_fmt, with_product_keywords
from fpsim.products.pipeline import multiplied
from fpsim.products.request import Request
from fpsim.sums.accumulators import Accumulator


def dot_add(
    a: Any, b: Any, c: Any, unit: str | MatrixUnit | IntegerUnit, *, scale_a: Any = None, scale_b: Any = None
) -> Any:
    """Return c[n] + the sum of a[n, k] * b[n, k] over k, for every row n, on the GPU, bit for bit as `fpsim.dot_add`.

    Args:
      a, b: (N, K) codes of the unit's elements on the GPU, or arrays of their dtypes.
      c: (N,) codes of the accumulator or floats of its dtype; None for +0.
      unit: a unit or its name.
      scale_a, scale_b: (N, K / block) scale codes for block-scaled units.

    Returns:
      (N,) array of a's library: codes of the result, in the accumulator's unsigned dtype; integers for integer units.

    Raises:
      GpuError: no GPU, or too little memory on it.
      ValueError, TypeError: shapes or formats that the unit does not accept.

    Source: docs/matrix-units.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.full((1, 32), 0x38, dtype=torch.uint8).cuda()
      ...     print(fp.gpu.dot_add(x, x, None, "hopper_e4m3_f32"))
    """
    unit = any_unit("unit", unit)
    if isinstance(unit, IntegerUnit):
        return _integer_dot_add(a, b, c, unit, scale_a, scale_b)
    left, right = operand(a, unit.a, unit, "a"), operand(b, unit.b, unit, "b")
    if left.shape != right.shape or len(left.shape) != 2:
        raise ValueError(f"a and b must have one shape (N, K); got {left.shape} and {right.shape}.")
    rows, k = left.shape
    scales = [
        block_scales(x, (rows, block_count(k, unit)), unit, name)
        for x, name in ((scale_a, "scale_a"), (scale_b, "scale_b"))
    ]
    start = None if c is None else operand(c, unit.d, unit, "c")
    if start is not None and start.shape != (rows,):
        raise ValueError(f"c must have the shape {(rows,)} of the rows of a; got {start.shape}.")
    result, out = result_like(left, (rows,), unit.d.fmt.storage)
    product = GpuProduct(unit, left.matrix, right.matrix, scales[0], scales[1], np.arange(k, dtype=np.int32))
    words = scratch(0, unit.d.fmt.storage) if start is None else start.words
    run_specification(product, words, out, left.like, paired=True)
    return result


def _integer_dot_add(a: Any, b: Any, c: Any, unit: IntegerUnit, scale_a: Any, scale_b: Any) -> Any:
    """Return the result of `dot_add` for an integer unit, as an array of a's library.

    Arguments are those of `dot_add`; scale_a and scale_b must be None.
    """
    refuse_scales(unit, scale_a, scale_b)
    left, right = integers_on_gpu(a, unit.a, unit, "a"), integers_on_gpu(b, unit.b, unit, "b")
    if left.shape != right.shape or len(left.shape) != 2:
        raise ValueError(f"a and b must have one shape (N, K); got {left.shape} and {right.shape}.")
    start = None if c is None else integers_on_gpu(c, unit.d, unit, "c")
    rows = left.shape[0]
    if start is not None and start.shape != (rows,):
        raise ValueError(f"c must have the shape {(rows,)} of the rows of a; got {start.shape}.")
    result, out = result_like(left, (rows,), unit.d.dtype)
    backend = IntegerMatrices(left.like)
    if start is None:
        backend.filled((rows, 1), np.uint32(0), out.reshape(rows, 1))
    else:
        backend.copied(start.words.reshape(rows, 1), out.reshape(rows, 1))
    add_integer_products(left.matrix, right.matrix, out, unit, left.like, paired=True)
    return result


@with_product_keywords
def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    accumulate: str | MatrixUnit | IntegerUnit | Accumulator | None = None,
    fmt: Formats = None,
    out: Any = None,
    **keywords: Unpack[ProductKeywords],
) -> Any:
    """Return c + a @ b on the GPU by a matrix unit, a library or an accumulator, bit for bit as `fpsim.matmul`.

    Args:
      a, b: (M, K) and (K, N) codes of the unit's elements on the GPU, arrays of their dtypes, or `fp.gpu.Scaled`; or
        stacks of matrices of codes (..., M, K) and (..., K, N), whose leading axes broadcast as in `numpy.matmul`.
      c: (..., M, N) on the GPU: the start of the sums, or C of an epilogue that adds beta * C.
      accumulate: a unit or its name, or an accumulator such as `fp.Sequential(fp.BF16)`.
      schedule, promote, scale_order, alpha, beta, out_fmt, strict: as for `fpsim.matmul`.
      scale_a, scale_b: scale codes for block-scaled units, on the GPU; for other units float32 decode scales of the
        shapes that `fpsim.matmul` accepts, on the CPU or the GPU.
      bias: (N,) floats, on the CPU or the GPU.
      fmt: the format of codes, or (format of a, format of b), for accumulators.
      out: the array for the result; None for a new one.
      out_format: the old name of `out_fmt`, for one release.

    Returns:
      (..., M, N) array of a's library, of the dtype that `fpsim.matmul` returns; codes for cupy and numba if NumPy has
      no such dtype.

    Raises:
      GpuError: no GPU, or too little memory on it.
      ValueError, TypeError: as `fpsim.matmul`.

    Source: docs/matrix-units.md, docs/schedules.md, docs/accumulators.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.full((16, 64), 0x38, dtype=torch.uint8).cuda()
      ...     print(fp.gpu.matmul(x, x.T.contiguous(), accumulate="hopper_e4m3_f32", promote=32))
    """
    passed = given_keywords(matmul, keywords, DEFAULTS)
    if "out_format" in passed:
        passed["out_fmt"] = renamed_out_fmt(passed.get("out_fmt"), passed.pop("out_format"))
    request = Request(**passed)
    if any(len(getattr(x, "shape", ())) > 2 for x in (a, b)):
        return stacked(a, b, c, accumulate, request, fmt, out)
    return multiplied(a, b, c, accumulate, request, fmt, out, Gpu(codes_of(a, "a")))
