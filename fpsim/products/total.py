"""The sums of a product by a matrix unit with scales, alpha, bias and C, on the backend that holds its operands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, format_of
from fpsim.errors import shown
from fpsim.formats.named import FP64
from fpsim.products.backend import Backend, Matrix
from fpsim.products.epilogue import ONE, Finish, finished
from fpsim.products.matmul_plan import MODES, MatmulPlan
from fpsim.products.operand import UnitOperand, scale_factors
from fpsim.products.request import Request
from fpsim.products.slices import ProductSums, add_slice, merged
from fpsim.products.unit_product import ADD, ROUNDED_FIRST, Factors
from fpsim.schedules.schedule import Chain, Epilogue

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
AT_START = Epilogue(source="first")  # where c belongs to the sum, scales multiply the rest


class MatmulCall(NamedTuple):
    """One call of matmul with a matrix unit.

    Attributes:
      plan: how products of this shape are scaled and added.
      left, right: the operands a and b, with codes and scales.
      request: the keyword arguments of `fpsim.matmul`.
      c: the argument c of `fpsim.matmul`, or None.
    """

    plan: MatmulPlan
    left: UnitOperand
    right: UnitOperand
    request: Request
    c: Any = None

    @property
    def tensor_scale(self) -> np.float32:
        """The product of both operands' whole-tensor scales (NVFP4); 1 if neither has one, Inf on overflow."""
        scales = [x.tensor_scale for x in (self.left, self.right) if x.tensor_scale is not None]
        with np.errstate(all="ignore"):  # the product may be Inf
            return np.prod(scales, dtype=np.float32)

    def factors_at(self, starts: list[int]) -> Factors:
        """Return the decode scales that multiply the partial sums which begin at the terms `starts` of K.

        They are scales of rows, (M, len(starts)), and of columns, (len(starts), N), float32. If no scales change along
        K, the result has no scales (mode ADD): partial sums are only added.
        """
        if not self.plan.schedule.block_scaled or not self.plan.has_factors:
            return Factors(mode=ADD)
        mode = MODES[self.plan.scale_order]
        mode = mode if self.plan.schedule.fuses_scales else ROUNDED_FIRST[mode]
        return scale_factors(self.left, self.right, self.plan.shape, np.array(starts), mode)


def total_of(call: MatmulCall, product: Any, backend: Backend, work: Matrix | None = None) -> Matrix:
    """Return c + a @ b with scales, alpha and bias, before the cast to the result's format: (M, N) float32, or float64.

    The result is float64 for a unit whose sums are float64.

    Args:
      call: the plan, operands and keyword arguments.
      product: the operands as the backend's kernels read them, a result of backend.product.
      backend: the object that computes on the CPU or GPU whose memory holds the operands.
      work: a matrix whose memory may be reused for the result; None to allocate.

    Raises:
      ValueError, TypeError: c, bias, alpha or beta has a wrong shape, dtype or value.
    """
    plan, request, c = call.plan, call.request, call.c
    dtype = FLOAT64 if plan.unit.d.fmt == FP64 else FLOAT32
    if c is None and plan.is_bare:
        total = backend.full(plan.shape, 0.0, dtype, work)
        backend.add_product(total, product)
        return total
    schedule, slices = plan.schedule, plan.along_k.slices
    sums = ProductSums(schedule, plan.along_k, product, backend, call.factors_at, plan.fmt)
    single = isinstance(schedule.sums, Chain) and len(slices) == 1
    if request.beta is not None and float32_number(request.beta, "beta") == 0:
        c = None  # with beta = 0 it may be invalid and is not read (cuBLAS manual, 2.7.1; CUTLASS, is_source_needed)
    belongs_to_sum = c is not None and request.beta is None and not schedule.epilogue.adds_c
    starts = belongs_to_sum and single and request.alpha is None and not plan.scales_sums

    def chained() -> Matrix:
        """Return the sums of the only slice of K; they start at c if the enclosing `starts` is True, else at a zero.

        The zero is -0 if a schedule takes the first partial sum as it is, since adding to -0 keeps all bits; else +0.
        """
        if starts:
            total = backend.start(c, plan.unit, plan.shape, work)
        else:
            as_is = isinstance(schedule.sums, Chain) and schedule.sums.first_as_is
            zero = -0.0 if as_is and plan.along_k.promoted and plan.along_k.k else 0.0
            total = backend.full(plan.shape, zero, dtype, work)
        add_slice(total, slices[0], sums)
        return total

    if single and (c is None or starts) and not plan.has_epilogue and not plan.has_tensor_scale:
        return chained()  # nothing follows, as in most products
    finish = _finish(call, None if starts else c, backend)
    if finish.c is not None:
        work = None  # C may be in this memory, and is read after the sums are written
    order = AT_START if belongs_to_sum else schedule.epilogue
    # an epilogue that does no more than add a bias leaves slices to be added
    changes_sums = finish.alpha != ONE or any(x is not None for x in (finish.scale_a, finish.scale_b, finish.c))
    if not single and len(slices) > 1 and schedule.slicing.merge == "in_place" and changes_sums:
        bare = finish._replace(bias=None) if plan.has_tensor_scale else finish
        total = _in_place(sums, bare, order, plan.shape, dtype)
        return _times_tensor_scale(total, finish.bias, call, backend)
    total = chained() if single else merged(sums, plan.shape, dtype, work)
    return ended(total, order, finish, call, backend)


def ended(total: Matrix, order: Epilogue, finish: Finish, call: MatmulCall, backend: Backend) -> Matrix:
    """Return the sums `total` (M, N) after the epilogue and, for NVFP4, after the scales of whole tensors.

    With such scales the epilogue leaves out the bias; the scales multiply its result, and then the bias is added.
    order: the order of the epilogue's operations. finish: its operands. call: the product, whose whole-tensor scales
    are read. backend: the operations of the CPU or a GPU.
    """
    bias = finish.bias
    if call.plan.has_tensor_scale:  # it multiplies the sums, and the bias is added to the product
        finish = finish._replace(bias=None)
    with np.errstate(all="ignore"):
        total = finished(total, order, finish, backend)
    return _times_tensor_scale(total, bias, call, backend)


def _times_tensor_scale(total: Matrix, bias: Array | None, call: MatmulCall, backend: Backend) -> Matrix:
    """Return sums times the product of both operands' whole-tensor scales (NVFP4), plus the bias.

    Each operation rounds to float32. total: the sums, (M, N) float32, which are overwritten. bias: (N,) float32, or
    None. call: the product, whose scales are read. backend: the operations of the CPU or a GPU. If neither operand has
    such a scale, the sums are returned unchanged, as the epilogue has added the bias already.
    """
    if not call.plan.has_tensor_scale:
        return total
    with np.errstate(all="ignore"):
        total = backend.multiply(total, call.tensor_scale, out=total)
        return total if bias is None else backend.add(total, bias)


def with_epilogue(total: Matrix, call: MatmulCall, backend: Backend) -> Matrix:
    """Return the sums of a tree of additions after the epilogue of a call: scales, alpha, C and bias.

    total: the sums, (M, N) float32, which may be overwritten. call: the plan, operands and keyword arguments. backend:
    the operations of the CPU or a GPU.
    """
    c = call.c
    if call.request.beta is not None and float32_number(call.request.beta, "beta") == 0:
        c = None
    if c is None and not call.plan.has_epilogue and not call.plan.has_tensor_scale:
        return total
    return ended(total, call.plan.schedule.epilogue, _finish(call, c, backend), call, backend)


def _in_place(
    sums: ProductSums, finish: Finish, order: Epilogue, shape: tuple[int, int], dtype: np.dtype[Any]
) -> Matrix:  # fmt: skip
    """Return the sums (M, N) of slices of K that are merged in place.

    The epilogue of each slice adds the result of the earlier slices as its C. sums: the operands and the order of
    additions. finish: the epilogue's operands; its bias is added once, at the end. order: the order of the first
    slice's epilogue; others have the schedule's. shape, dtype: the result's.
    """
    bare = finish._replace(bias=None)

    def join(part: Matrix, total: Matrix | None) -> Matrix:
        if total is None:
            return finished(part, order, bare, sums.backend)
        return finished(part, sums.schedule.epilogue, bare._replace(c=total, beta=ONE), sums.backend)

    with np.errstate(all="ignore"):
        total = merged(sums._replace(join=join), shape, dtype)
        return total if finish.bias is None else sums.backend.add(total, finish.bias)


def _finish(call: MatmulCall, c: Any, backend: Backend) -> Finish:
    """Return the operands of a call's epilogue besides the sums: scales, alpha, bias, beta and C.

    call: the plan, operands and keyword arguments. c: the matrix C as the caller passed it, or None for no C. backend:
    the object that reads arrays of the CPU or GPU in use.

    Raises:
      ValueError, TypeError: an operand has a wrong shape, dtype or value.
    """
    plan, request = call.plan, call.request
    scale_a = scale_b = None
    if plan.scales_sums:
        scale_a, scale_b, _ = scale_factors(call.left, call.right, plan.shape, np.zeros(1, np.int64), ADD)
    bias = None if request.bias is None else bias_of(backend.floats(request.bias, "bias"), plan.shape)
    source = None if c is None else backend.source(c, plan.unit, plan.shape)
    alpha, beta = float32_number(request.alpha, "alpha"), float32_number(request.beta, "beta")
    order = plan.scale_order if plan.scales_sums else "product"
    return Finish(scale_a, scale_b, order, alpha, bias, source, beta, plan.fmt)


def bias_of(array: Array, shape: tuple[int, int]) -> Array:
    """Return a bias, `array`, as float32 of its shape, (N,) or (1, N); shape: (M, N) of the result.

    Raises:
      TypeError: the bias is neither float32, float16 nor bfloat16.
      ValueError: its shape is neither (N,) nor (1, N).
    """
    fmt = format_of(array.dtype)
    if fmt is None or fmt == FP64:
        raise TypeError(f"bias must be an array of float32, float16 or bfloat16; got {array.dtype}.")
    if array.shape not in ((shape[1],), (1, shape[1])):
        raise ValueError(f"bias must have one number per column, shape ({shape[1]},); got {array.shape}.")
    return array.astype(np.float32)


def float32_number(value: float | None, name: str) -> np.float32:
    """Return `value`, the argument alpha or beta, rounded to float32; 1 for None. name: the argument that errors name.

    Raises:
      TypeError: the value is not a number.
      ValueError: the value is finite, and rounds to Inf in float32.
    """
    if value is None:
        return ONE
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, which float32 holds; got {shown(value)}.")
    number = int(value) if isinstance(value, (int, np.integer)) else float(value)
    if isinstance(number, int) and number.bit_length() > FP64.precision:  # NumPy would round to float64 first
        low = number.bit_length() - FP64.precision
        number = (number >> low | (number % (1 << low) != 0)) << low  # rounded to odd, which float32 does not show
    if abs(number) >= (1 << 128) - (1 << 103) and abs(number) != np.inf:
        raise ValueError(f"{name} must be a number that float32 holds, below 2**128; got {shown(value)}.")
    return np.float32(number)
