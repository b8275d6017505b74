"""The sums of a product by a matrix unit, with scales, alpha, bias and C, on the backend that has its operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array, format_of
from fpsim.errors import shown
from fpsim.formats.named import FP64
from fpsim.products.backend import Backend, Matrix
from fpsim.products.epilogue import ONE, Finish, finished
from fpsim.products.request import Job, factors_of
from fpsim.products.slices import ProductSums, add_slice, merged
from fpsim.products.unit_product import ADD
from fpsim.schedules.schedule import Chain, Epilogue

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
AT_START = Epilogue(source="first")  # where c belongs to the sum, scales multiply the rest


def total_of(job: Job, product: Any, c: Any, backend: Backend, work: Matrix | None = None) -> Matrix:
    """The sums of a job with their scales, alpha, bias and C: float32 (M, N), float64 for units that add in it.

    Args:
      job: what is computed.
      product: the operands as the backend takes them.
      c: as in `fpsim.matmul`.
      backend: the CPU or a GPU that has the operands.
      work: a matrix that may serve as the total.

    Raises:
      ValueError, TypeError: c, bias, alpha or beta that do not fit.
    """
    schedule, request = job.schedule, job.request
    if c is None and job.is_bare:
        total = backend.full(job.shape, 0.0, FLOAT64 if job.unit.d.fmt == FP64 else FLOAT32, work)
        backend.add_product(total, product)
        return total
    sums = ProductSums(schedule, job.plan, product, backend, job.factors_at, job.fmt)
    single = isinstance(schedule.sums, Chain) and len(job.plan.slices) == 1
    if request.beta is not None and _number(request.beta, "beta") == 0:
        c = None  # it need not be valid then, and is not read (cuBLAS manual, 2.7.1; CUTLASS, is_source_needed)
    belongs_to_sum = c is not None and request.beta is None and not schedule.epilogue.adds_c
    starts = belongs_to_sum and single and request.alpha is None and not job.scaled
    dtype = FLOAT64 if job.unit.d.fmt == FP64 else FLOAT32
    if single and (c is None or starts) and not job.has_epilogue and job.tensor_scale is None:
        return _chained(sums, job, c, backend, work, dtype)  # nothing follows, as in most products
    finish = _finish(job, None if starts else c, backend)
    if finish.c is not None:
        work = None  # C may lie there, and is read when the sums are there
    bias = finish.bias
    if job.tensor_scale is not None:  # it multiplies the sums, and the bias is added to the product
        finish = finish._replace(bias=None)
    several = not single and len(job.plan.slices) > 1
    in_place = several and schedule.slicing.merge == "in_place" and _changes_sums(finish)
    if single:
        total = _chained(sums, job, c if starts else None, backend, work, dtype)
    elif in_place:
        total = _in_place(sums, finish, job.shape, dtype)
    else:
        total = merged(sums, job.shape, dtype, work)
    with np.errstate(all="ignore"):
        if not in_place:
            total = finished(total, AT_START if belongs_to_sum else schedule.epilogue, finish, backend)
        if job.tensor_scale is not None:
            total = backend.multiply(total, job.tensor_scale, out=total)
            total = total if bias is None else backend.add(total, bias)
    return total


def _chained(
    sums: ProductSums, job: Job, c: Any, backend: Backend, work: Matrix | None, dtype: np.dtype[Any]
) -> Matrix:
    """The sums of one chain, from c on."""
    total = (
        backend.full(job.shape, _zero(sums), dtype, work) if c is None else backend.start(c, job.unit, job.shape, work)
    )
    add_slice(total, job.plan.slices[0], sums)
    return total


def _zero(sums: ProductSums) -> float:
    """What a total starts at: -0 leaves the first partial sum as it is."""
    chain = sums.schedule.sums
    return -0.0 if isinstance(chain, Chain) and chain.first_as_is and sums.plan.promoted and sums.plan.k else 0.0


def _changes_sums(finish: Finish) -> bool:
    """Whether an epilogue does more to a sum than to add a bias; one that does not leaves slices to be added."""
    plain = finish.scale_a is None and finish.scale_b is None and finish.c is None
    return not (plain and finish.alpha == ONE)


def _in_place(sums: ProductSums, finish: Finish, shape: tuple[int, int], dtype: np.dtype[Any]) -> Matrix:
    """Slices that each end with the epilogue, whose C is the output so far."""
    bare = finish._replace(bias=None)

    def join(part: Matrix, total: Matrix | None) -> Matrix:
        each = bare if total is None else bare._replace(c=total, beta=ONE)
        return finished(part, sums.schedule.epilogue, each, sums.backend)

    with np.errstate(all="ignore"):
        total = merged(sums._replace(join=join), shape, dtype)
        return total if finish.bias is None else sums.backend.add(total, finish.bias)


def _finish(job: Job, c: Any, backend: Backend) -> Finish:
    """What the epilogue works with."""
    request = job.request
    scale_a = scale_b = None
    if job.scaled:
        factors = factors_of(job.left, job.right, np.zeros(1, np.int64), ADD)
        scale_a, scale_b = factors.rows, factors.columns
    bias = None if request.bias is None else _bias(backend.floats(request.bias, "bias"), job.shape)
    source = None if c is None else backend.source(c, job.unit, job.shape)
    alpha, beta = _number(request.alpha, "alpha"), _number(request.beta, "beta")
    order = job.scale_order if job.scaled else "product"
    return Finish(scale_a, scale_b, order, alpha, bias, source, beta, job.fmt)


def _bias(array: Array, shape: tuple[int, int]) -> Array:
    """A bias of every column, as float32."""
    fmt = format_of(array.dtype)
    if fmt is None or fmt == FP64:
        raise TypeError(f"bias must be an array of float32, float16 or bfloat16; got {array.dtype}.")
    if array.shape not in ((shape[1],), (1, shape[1])):
        raise ValueError(f"bias must have one number per column, shape ({shape[1]},); got {array.shape}.")
    return array.astype(np.float32)


def _number(value: float | None, name: str) -> np.float32:
    """alpha or beta as float32."""
    if value is None:
        return ONE
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, which float32 holds; got {shown(value)}.")
    if isinstance(value, int) and abs(value) >= 1 << 128:
        raise ValueError(f"{name} must be a number that float32 reaches, below 2**128; got {shown(value)}.")
    return np.float32(value)
