"""The stages of a matrix product from operands to result, the same for both kinds of backend: the CPU and GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.errors import require_kind
from fpsim.formats.named import DTYPES, FP32, FP64
from fpsim.instructions.operands import block_count
from fpsim.matrix_units.catalogue import any_unit
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import ELEMENTS, Element, MatrixUnit, Rule
from fpsim.products.backend import Backend
from fpsim.products.integers.matmul import integer_matmul
from fpsim.products.matmul_plan import plan_matmul
from fpsim.products.operand import accumulator_codes, accumulator_matrices, read_operand
from fpsim.products.orders.scheduled_sums import scheduled_accumulator
from fpsim.products.request import Request, no_accumulate, refuse_conflicts, refuse_unit_options
from fpsim.products.total import MatmulCall, total_of
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd

FP32_CHAIN = FusedMultiplyAdd(FP32)


def multiplied(
    a: Any, b: Any, c: Any, accumulate: Any, request: Request, fmt: Formats, out: Any, backend: Backend
) -> Any:
    """Return the product of `fpsim.matmul` for matrices in a backend's memory.

    a, b, c, accumulate, fmt, out: as for `fpsim.matmul`. request: a record of its other keyword arguments. backend: the
    object that computes on the CPU or GPU whose memory holds the operands.

    Raises:
      ValueError, TypeError: as for `fpsim.matmul`.
    """
    require_kind("strict", request.strict, (bool, np.bool_), "True or False")
    refuse_conflicts(request)
    if not isinstance(accumulate, (str, MatrixUnit, IntegerUnit, Accumulator)):
        raise no_accumulate(accumulate, {"a": a, "b": b, "c": c})
    if request.schedule is not None and isinstance(accumulate, Accumulator):
        chain = _fused_chain(a, b, fmt, backend)
        if not (isinstance(accumulate, FusedMultiplyAdd) and accumulate == FP32_CHAIN):
            chain, backend = scheduled_accumulator(accumulate, chain, c, backend)
        accumulate, fmt = chain, None
    if isinstance(accumulate, Accumulator):
        refuse_unit_options(request)
        return _by_accumulator(a, b, c, accumulate, fmt, out, backend)
    unit = any_unit("accumulate", accumulate)
    if fmt is not None:
        raise ValueError(f"fmt is for accumulators; {unit.name} has its own formats. Leave it out.")
    with ieee_arithmetic():
        if isinstance(unit, IntegerUnit):
            return integer_matmul(a, b, c, unit, request, out, backend)
        return _by_unit(a, b, c, unit, request, out, backend)


def _by_unit(a: Any, b: Any, c: Any, unit: MatrixUnit, request: Request, out: Any, backend: Backend) -> Any:
    """Return c + a @ b by a float matrix unit, in `out` or a new array.

    a, b, c, out: as for `fpsim.matmul`. request: a record of its other keyword arguments. backend: the object that
    computes on the CPU or GPU whose memory holds the operands.
    """
    blocks = request.schedule is not None and request.schedule.block_scaled
    left = read_operand(a, "a", unit, request.scale_a, blocks, backend)
    right = read_operand(b, "b", unit, request.scale_b, blocks, backend)
    plan = plan_matmul(unit, left.facts, right.facts, request, has_c=c is not None)
    call = MatmulCall(plan, left, right, request, c)
    product, result, target = prepared(call, out, backend)
    sums = FP64 if unit.d.fmt == FP64 else FP32  # the format of the total, before the cast to the result's
    total = total_of(call, product, backend, target if plan.fmt == sums else None)
    backend.deliver(total, plan.fmt, plan.nan_code, plan.overflow, target)
    return result


def prepared(call: MatmulCall, out: Any, backend: Backend) -> tuple[Any, Any, Any]:
    """Return (the operands as kernels read them, the result's array for the caller, the array that kernels fill).

    call: the plan and operands. out: as for `fpsim.matmul`. backend: the object that computes on the CPU or GPU whose
    memory holds the operands.

    Raises:
      ValueError, TypeError: block scales or `out` of a wrong shape or dtype, or `out` that overlaps an operand.
    """
    (m, n), unit, left, right = call.plan.shape, call.plan.unit, call.left, call.right
    count = block_count(call.plan.along_k.k, unit)
    scale_a = backend.block_scales(left.block_scales, (m, count), unit, "scale_a")
    scale_b = backend.block_scales(right.block_scales, (count, n), unit, "scale_b")
    operands = left.codes, right.codes, scale_a, scale_b
    factors = [x.factors for x in (left, right) if x.factors is not None]
    return backend.product(unit, *operands), *backend.result(out, (m, n), call.plan.dtype, *operands, *factors)


def _by_accumulator(
    a: Any, b: Any, c: Any, accumulator: Accumulator, fmt: Formats, out: Any, backend: Backend
) -> Any:  # fmt: skip
    """Return c + a @ b by a generic accumulator, in `out` or a new array.

    a, b, c, fmt, out: as for `fpsim.matmul`. backend: the object that computes on the CPU or GPU whose memory holds the
    operands.
    """
    (left, right), formats = accumulator_matrices(a, b, fmt, backend)
    kept = accumulator.result_format
    shape, dtype = (left.shape[0], right.shape[1]), DTYPES.get(kept, kept.storage)
    start = None if c is None else backend.codes(c, kept, "c")[0]
    if start is not None and start.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {start.shape}.")
    result, target = backend.result(out, shape, dtype, left, right)
    backend.accumulate(accumulator, left, right, start, formats, target)
    return result


def _fused_chain(a: Any, b: Any, fmt: Formats, backend: Backend) -> MatrixUnit:
    """Return a matrix unit of one term per instruction, equal to fp.FusedMultiplyAdd(fp.FP32), for operands a and b.

    a, b: the operands, of which only the formats are used. fmt: the format of codes, or (format of a, format of b);
    None for float dtypes. backend: the object that reads arrays of the CPU or a GPU.

    Raises:
      ValueError: an operand is FP64.
    """
    _, (of_a, of_b) = accumulator_codes(a, b, fmt, backend)
    if max(of_a.precision, of_b.precision) > FP32.precision:
        raise ValueError("a schedule adds float32 products; got FP64 operands. Encode them first.")
    left, right = Element(str(of_a), of_a, of_a), Element(str(of_b), of_b, of_b)
    return MatrixUnit("fused_multiply_add", "", left, right, ELEMENTS["f32"], Rule.EXACT, 1, evidence="hardware")
