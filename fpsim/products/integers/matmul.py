"""matmul by an integer matrix unit: exact sums, zero points and scales of Scaled operands, and the epilogue."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.errors import is_integer, require_word, shown
from fpsim.formats.integer_format import INTEGERS
from fpsim.formats.named import DTYPES, FP32, Format, format_argument
from fpsim.instructions.operands import refuse_axes, refuse_shapes
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.products.backend import Backend, Matrix, output_nan, output_overflow
from fpsim.products.epilogue import Finish, finished
from fpsim.products.integers.operand import read_integers
from fpsim.products.matmul_plan import MODES
from fpsim.products.operand import UnitOperand, scale_factors
from fpsim.products.request import Request, refuse_conflicts
from fpsim.products.total import bias_of, float32_number
from fpsim.products.unit_product import ADD, Factors, add_part
from fpsim.schedules.arguments import ORDERS
from fpsim.schedules.schedule import Chain, Epilogue

FLOAT32, USUAL = np.dtype(np.float32), Epilogue()
# Integers that a result may be cast to: names and dtypes -> dtype.
INTEGER_RESULTS: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in ("int8", "uint8", "int32")}


class IntegerCall(NamedTuple):
    """One call of matmul with an integer matrix unit.

    Attributes:
      unit: the unit.
      left, right: the operands a and b, with scales and zero points.
      request: the keyword arguments of `fpsim.matmul`.
      c: the argument c of `fpsim.matmul`, or None.
    """

    unit: IntegerUnit
    left: UnitOperand
    right: UnitOperand
    request: Request
    c: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the result, (m, n)."""
        return self.left.facts.shape[0], self.right.facts.shape[1]

    @property
    def block(self) -> int:
        """Number of terms of K that share a scale; 0 if scales don't change along K."""
        return min((x.facts.along_k for x in (self.left, self.right) if x.facts.along_k), default=0)

    @property
    def has_factors(self) -> bool:
        """True if an operand has float32 decode scales."""
        return self.left.factors is not None or self.right.factors is not None

    @property
    def finishes(self) -> bool:
        """True if the integer sums are converted to float32: for scales, alpha, beta, a bias or `out_fmt`."""
        r = self.request
        return self.has_factors or any(x is not None for x in (r.alpha, r.beta, r.bias, r.out_fmt))


def integer_matmul(
    a: Any, b: Any, c: Any, unit: IntegerUnit, request: Request, out: Any, backend: Backend
) -> Any:  # fmt: skip
    """Return c + a @ b by an integer matrix unit, in `out` or a new array.

    unit: the integer matrix unit. a, b, c, out: as for `fpsim.matmul`. request: a record of its other keyword
    arguments. backend: the object that computes on the CPU or GPU whose memory holds the operands.

    Raises:
      ValueError, TypeError: as for `fpsim.matmul`.
    """
    epilogue = _epilogue(request, unit)
    left, right = (
        read_integers(x, name, unit, scales, backend)
        for x, name, scales in ((a, "a", request.scale_a), (b, "b", request.scale_b))
    )
    for operand, name in ((left, "a"), (right, "b")):
        refuse_axes(operand.codes.shape, name)
    refuse_shapes(left.facts.shape, right.facts.shape)
    call = IntegerCall(unit, left, right, request, c)
    _refuse_additions(call)
    fmt, dtype = _result_format(call)
    factors = [x.factors for x in (left, right) if x.factors is not None]
    result, target = backend.result(out, call.shape, dtype, left.codes, right.codes, *factors)
    if not call.finishes:
        backend.deliver_integers(integer_sums(call, backend), unit.d.dtype, target, floats=False)
        return result
    total = _finished_sums(call, epilogue, fmt or FP32, backend)
    if fmt is None:
        backend.deliver_integers(total, dtype, target, floats=True)
    else:
        nan = FP32.top_magnitude if fmt == FP32 else output_nan(fmt)
        overflow = "nonfinite" if request.out_fmt is None else output_overflow(fmt)
        backend.deliver(total, fmt, nan, overflow, target)
    return result


def integer_sums(call: IntegerCall, backend: Backend) -> Matrix:
    """Return the (M, N) int32 or uint32 sums over all of K, corrected for zero points, in the backend's memory.

    They start at c, or at 0 if the epilogue adds c (with beta or scales). call: the operands and keyword arguments.
    """
    starts = None if call.request.beta is not None or call.has_factors else call.c
    total = backend.integer_start(starts, call.unit, call.shape)
    backend.add_integers(total, call.left.codes, call.right.codes, call.unit)
    backend.take_zero_points(total, call.left, call.right, call.unit)
    return total


def _finished_sums(call: IntegerCall, order: Epilogue, fmt: Format, backend: Backend) -> Matrix:
    """Return the (M, N) sums as float32 after scales, alpha, C and bias, before the cast to `fmt`.

    call: the operands and keyword arguments. order: the epilogue's order of operations. fmt: the result's format.
    backend: the operations of the CPU or GPU, in whose memory the sums are.
    """
    request = call.request
    scale_a = scale_b = None
    mode = request.scale_order or order.scale_order
    if mode == "cublas":
        mode = "b_first" if "row" in (call.left.facts.kind, call.right.facts.kind) else "product"
    with np.errstate(all="ignore"):
        if call.block:
            total = _scaled_blocks(call, MODES[mode], backend)
        else:
            total = backend.floats_of_integers(integer_sums(call, backend), call.unit.d.signed)
            if call.has_factors:
                start = np.zeros(1, np.int64)
                scale_a, scale_b, _ = scale_factors(call.left, call.right, call.shape, start, ADD)
        bias = None if request.bias is None else bias_of(backend.floats(request.bias, "bias"), call.shape)
        alpha, beta = float32_number(request.alpha, "alpha"), float32_number(request.beta, "beta")
        source = None
        if call.c is not None and beta != 0 and (request.beta is not None or call.has_factors):
            integers = backend.integer_start(call.c, call.unit, call.shape)
            source = backend.floats_of_integers(integers, call.unit.d.signed)
        return finished(total, order, Finish(scale_a, scale_b, mode, alpha, bias, source, beta, fmt), backend)


def _scaled_blocks(call: IntegerCall, mode: int, backend: Backend) -> Matrix:
    """Return the (M, N) float32 sums from +0 over blocks of K in order, each an integer sum times its scales.

    call: the operands and keyword arguments. mode: PRODUCT for fma(scale_a * scale_b, sum, total), ROWS_FIRST for
    fma(sum * scale_a, scale_b, total), COLUMNS_FIRST for fma(sum * scale_b, scale_a, total). backend: the object that
    computes on the CPU or GPU whose memory holds the operands.
    """
    total, k, block = backend.full(call.shape, 0.0, FLOAT32), call.left.facts.shape[1], call.block
    starts = np.arange(0, k, block)
    factors: Factors = scale_factors(call.left, call.right, call.shape, starts, mode)
    for i, start in enumerate(starts.tolist()):
        terms = slice(start, start + block)
        sums = backend.integer_start(None, call.unit, call.shape)
        backend.add_integers(sums, call.left.codes[:, terms], call.right.codes[terms], call.unit)
        add_part(total, backend.floats_of_integers(sums, call.unit.d.signed), factors, i, backend)
    return total


def _epilogue(request: Request, unit: IntegerUnit) -> Epilogue:
    """Return the order of the epilogue's operations for a call: its schedule's, or the default.

    request: the call's keyword arguments. unit: the integer unit, which errors name.

    Raises:
      ValueError: `promote`, an unknown `scale_order`, or a schedule that is not a single chain over K.
    """
    refuse_conflicts(request)
    if request.promote is not None:
        raise ValueError(
            f"promote is for units of floats: sums of {unit.name} are exact integers; got {shown(request.promote)}. "
            "Leave it out."
        )
    order: Any = request.scale_order
    if order is not None:
        require_word("scale_order", order, ORDERS)
    schedule = request.schedule
    if schedule is None:
        return USUAL
    if not isinstance(schedule.sums, Chain) or schedule.sums.interval or schedule.slicing.count != 1:
        raise ValueError(
            f"schedule orders sums of floats, and those of {unit.name} are integers; got {schedule}. Leave it out; its "
            "epilogue is that of fp.schedules.FLAT."
        )
    epilogue: Epilogue = schedule.epilogue
    return epilogue


def _refuse_additions(call: IntegerCall) -> None:
    """Raise a ValueError for a combination of c, scales and zero points that has no meaning for integer sums.

    call: the operands and keyword arguments. The combinations are beta without c, c with scales but without beta, zero
    points with scales along K, or scales of a and b that change along K at different terms.
    """
    if call.request.beta is not None and call.c is None:
        raise ValueError("beta multiplies c; got no c. Pass c, or leave beta out.")
    if call.c is not None and call.request.beta is None and call.has_factors:
        raise ValueError(
            "c would be scaled like the products; got c with scales. Pass beta=1 to add it to the scaled sums."
        )
    if call.block and (call.left.zero_points is not None or call.right.zero_points is not None):
        raise ValueError(
            "zero points must not change along K; got tiles of K with zero points. Encode rows or columns, or "
            "symmetrically."
        )
    for operand in (call.left, call.right):
        if operand.facts.along_k and operand.facts.along_k % call.block:
            raise ValueError(
                "scales of a and b must change at common terms of K; got tiles of "
                f"{call.block} and of {operand.facts.along_k} terms."
            )


def _result_format(call: IntegerCall) -> tuple[Format | None, np.dtype[Any]]:
    """Return (the float format of the result, or None for integers; the result's dtype).

    call: the operands and keyword arguments, of which `out_fmt` and those of the epilogue decide.

    Raises:
      ValueError: `out_fmt` is no format, or an integer format other than int8, uint8 and int32.
    """
    wanted = call.request.out_fmt
    if wanted is None:
        return (FP32, FLOAT32) if call.finishes else (None, call.unit.d.dtype)
    name = shown(wanted) if is_integer(wanted) else str(wanted).lower().removeprefix("torch.")
    if isinstance(wanted, type) and issubclass(wanted, np.generic):
        name = str(np.dtype(wanted))
    if name in INTEGER_RESULTS:
        return None, INTEGER_RESULTS[name]
    if name.upper() in INTEGERS:
        raise ValueError(f"out_fmt must be int8, uint8, int32 or a float format; got {shown(wanted)}.")
    fmt = format_argument("out_fmt", wanted)
    return fmt, np.dtype(DTYPES.get(fmt, fmt.storage))
