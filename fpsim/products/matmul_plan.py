"""The cached plan for all products of one shape by a matrix unit: how they are scaled and added."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.errors import require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES, FP32, FP64, Format, format_argument
from fpsim.instructions.operands import refuse_shapes
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import output_nan, output_overflow
from fpsim.products.operand import OperandShape
from fpsim.products.request import Request
from fpsim.products.slices import check_blocks
from fpsim.products.unit_product import COLUMNS_FIRST, PRODUCT, ROWS_FIRST
from fpsim.schedules.arguments import ORDERS
from fpsim.schedules.call import Call
from fpsim.schedules.limits import refusals, remarks
from fpsim.schedules.plan import SchedulePlan, Span, plan_of
from fpsim.schedules.schedule import FLAT, Chain, Epilogue, ScaleOrder, Schedule

MODES = {"product": PRODUCT, "a_first": ROWS_FIRST, "b_first": COLUMNS_FIRST}


class PassedFinish(NamedTuple):
    """Flags for the epilogue's operands c, alpha, beta and bias: True for each that a call of matmul passes."""

    c: bool = False
    alpha: bool = False
    beta: bool = False
    bias: bool = False


@dataclass(frozen=True, eq=False)
class MatmulPlan:
    """The plan by which a unit computes all products of the same shapes, tiles of scales, schedule and result format.

    Attributes:
      unit: the matrix unit.
      left, right: shapes of a and b, each with the tile (block of elements) that shares a scale.
      passed: flags for the epilogue's operands that the call passes.
      schedule: the call's schedule, or the default one.
      along_k: the order in which that schedule adds the K terms.
      scale_order: "product", "a_first" or "b_first", the order in which scales multiply, as in `fpsim.matmul`.
      out_fmt: the argument of `fpsim.matmul`, None if it was not passed.
      fmt: format of the result.
    """

    unit: MatrixUnit
    left: OperandShape
    right: OperandShape
    passed: PassedFinish
    schedule: Schedule
    along_k: SchedulePlan
    scale_order: str
    out_fmt: Format | None
    fmt: Format

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Shape of the result, (m, n)."""
        return self.left.shape[0], self.right.shape[1]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result: that of its format, or the unsigned dtype of its codes if the format has no dtype."""
        return np.dtype(DTYPES.get(self.fmt, self.fmt.storage))

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the schedule, a sentence each, such as which other kernels the library runs for the same shape."""
        return tuple(remarks(self.schedule, self.unit, *self.shape, self.along_k.k))

    @cached_property
    def has_factors(self) -> bool:
        """True if an operand has float32 decode scales (as opposed to scale codes that the unit itself applies)."""
        return self.left.factors is not None or self.right.factors is not None

    @cached_property
    def has_epilogue(self) -> bool:
        """True if the call has float32 decode scales, alpha, beta or a bias; C alone does not count."""
        return self.passed.alpha or self.passed.beta or self.passed.bias or self.has_factors

    @cached_property
    def has_tensor_scale(self) -> bool:
        """True if an operand of a unit with block scales also has one scale for the whole operand, as in NVFP4."""
        return self.left.has_tensor_scale or self.right.has_tensor_scale

    @cached_property
    def nan_code(self) -> int | None:
        """The code that replaces every NaN of the result; None if NaNs keep their bits."""
        if self.out_fmt is not None and self.fmt != FP32:
            return output_nan(self.fmt)
        if not (self.out_fmt is not None or self.along_k.k or self.has_epilogue):
            return None  # nothing is added and no epilogue follows: the result is c
        # sums of FP16 units that were promoted are float32
        return self.unit.nan_code if self.fmt == self.unit.d.fmt else self.fmt.top_magnitude

    @cached_property
    def overflow(self) -> str:
        """The overflow rule of the cast to `out_fmt`, as in `fp.encode`; "nonfinite" if `out_fmt` is None."""
        return "nonfinite" if self.out_fmt is None else output_overflow(self.fmt)

    @cached_property
    def scales_sums(self) -> bool:
        """True if float32 decode scales multiply the finished sums.

        False without scales, or if they multiply partial sums.
        """
        return not self.schedule.block_scaled and self.has_factors

    @cached_property
    def is_bare(self) -> bool:
        """True if one chain of full instructions adds all terms of K in ascending order, and no epilogue follows."""
        order, chain = self.along_k, isinstance(self.schedule.sums, Chain)
        whole = len(order.slices) == 1 and order.slices[0].runs == (Span(0, order.k),) and not order.slices[0].residue
        usual = chain and whole and not order.promoted and order.step >= self.unit.terms
        return usual and not self.has_epilogue and not self.has_tensor_scale


def plan_matmul(unit: MatrixUnit, left: OperandShape, right: OperandShape, request: Request, has_c: bool) -> MatmulPlan:
    """Return the plan of a product, and warn (UserWarning) of each remark on a schedule that the caller passed.

    unit: the matrix unit. left, right: shapes of a and b, each with the tile (block of elements) that shares a scale.
    request: the call's keyword arguments. has_c: whether the call passes c.

    Raises:
      ValueError: shapes that do not match, sums that the schedule cannot add, products that its library refuses.
    """
    passed = PassedFinish(has_c, request.alpha is not None, request.beta is not None, request.bias is not None)
    words: tuple[Any, ...] = request.schedule, request.promote, request.scale_order, request.out_fmt, request.strict
    try:
        plan = _cached_plan(unit, left, right, passed, *words)
    except TypeError:  # an argument cannot be hashed, or the checks will refuse it again
        plan = _cached_plan.__wrapped__(unit, left, right, passed, *words)
    if request.schedule is not None:
        for remark in plan.remarks:
            # shown where matmul is called
            warnings.warn(f"{remark} These are the bits of {plan.schedule}.", UserWarning, stacklevel=5)
    return plan


@lru_cache(maxsize=4096, typed=True)  # True equals 1, but is not a promotion
def _cached_plan(
    unit: MatrixUnit, left: OperandShape, right: OperandShape, passed: PassedFinish, schedule: Schedule | None,
    promote: int | None, scale_order: str | None, out_fmt: FormatLike | None, strict: bool,
) -> MatmulPlan:  # fmt: skip
    """Return the plan of a product, from a cache, as programs repeat most products many times.

    unit: the matrix unit. left, right: shapes of a and b, each with the tile (block of elements) that shares a scale.
    passed: flags for the epilogue's operands that the call passes. schedule, promote, scale_order, out_fmt, strict:
    keyword arguments of `fp.matmul`.

    Raises:
      ValueError: shapes that do not match; sums that the schedule cannot add; if `strict`, products that its library
        refuses.
    """
    refuse_shapes(left.shape, right.shape)
    (m, k), n = left.shape, right.shape[1]
    used = schedule or _default_schedule(promote, scale_order, unit, (left, right))
    order = plan_of(used, unit, k)
    fmt = None if out_fmt is None else format_argument("out_fmt", out_fmt)
    if schedule is not None and strict:
        refused = refusals(Call(used, unit, m, n, k, left.kind, right.kind, fmt or FP32))
        if refused:
            raise ValueError(f"{refused[0]} strict=False computes it all the same.")
    plan = MatmulPlan(unit, left, right, passed, used, order, _scale_order(used, left, right), fmt, fmt or FP32)
    _refuse_sums(plan, schedule is not None)
    return plan if fmt is not None else replace(plan, fmt=_own_format(plan))


def _default_schedule(
    promote: int | None, scale_order: Any, unit: MatrixUnit, sides: tuple[OperandShape, OperandShape]
) -> Schedule:
    """Return the schedule of a call without one: one chain of instructions over K, or float32 sums of shorter chains.

    A shorter chain has `promote` terms, or, if that is None, as many as share a scale along K. With neither there is
    one chain. promote, scale_order: as in `fp.matmul`. sides: shapes of a and b, each with the tile (block of elements)
    that shares a scale.

    Raises:
      ValueError: the unit or the operands cannot have that `promote` or order of scales.
    """
    order: ScaleOrder = "product" if scale_order is None else scale_order
    require_word("scale_order", order, ORDERS)
    if promote is not None:
        if isinstance(promote, bool) or not isinstance(promote, (int, np.integer)) or promote < 1:
            raise ValueError(f"promote must be a number of terms, or None for no promotion; got {shown(promote)}.")
        if promote % unit.terms:
            raise ValueError(
                f"promote must be a multiple of the {unit.terms} terms that {unit.name} adds in a step; got {promote}."
            )
        if unit.d.fmt == FP64:
            raise ValueError(
                f"promote adds partial sums to a float32 total; {unit.name} has float64 sums. Leave it out."
            )
    blocks = [side.along_k for side in sides if side.along_k is not None]
    interval = int(promote) if promote is not None else min(blocks, default=0)
    for block in blocks:
        if block % unit.terms:
            raise ValueError(
                f"{unit.name} adds {unit.terms} terms in a step, and scales of {block} terms of K cannot join between "
                "steps. Use larger tiles, or a unit that takes such scales."
            )
        if block % interval:
            raise ValueError(f"promote must divide the {block} terms of K that share a scale; got {interval}.")
    return _chain(interval, order, bool(blocks))


@cache
def _chain(interval: int, order: ScaleOrder, block_scaled: bool) -> Schedule:
    """Return the schedule of one chain of instructions over K, or of float32 sums of shorter chains.

    interval: number of terms in a shorter chain; 0 for one chain. order: the order in which scales are applied.
    block_scaled: whether scales multiply partial sums.
    """
    # `promote=` is CUTLASS's 2xAcc
    epilogue = Epilogue(order, fused_bias=interval > 0 and not block_scaled)
    name = "promote" if interval else FLAT.name
    return Schedule(name, sums=Chain(interval), epilogue=epilogue, block_scaled=block_scaled)


def _refuse_sums(plan: MatmulPlan, is_scheduled: bool) -> None:
    """Raise a ValueError if the plan's schedule cannot add the unit's sums, its scales or C.

    is_scheduled: whether the call passed the schedule. A passed schedule is refused if its partial sums have a number
    of terms that is not a multiple of the unit's, or if it adds float64 sums in float32. It is also refused if scales
    change along K and it does not apply them, or its partial sums extend over several of them. Any call is refused with
    beta but without c, with c and a tensor scale, or with alpha, beta, bias or out_fmt for float64 sums.
    """
    unit, passed, schedule = plan.unit, plan.passed, plan.schedule
    if is_scheduled and isinstance(schedule.sums, Chain) and schedule.sums.interval % unit.terms:
        raise ValueError(
            f"{schedule} promotes every {schedule.sums.interval} terms, which must be a multiple of the {unit.terms} "
            f"terms that {unit.name} adds in a step."
        )
    if is_scheduled and unit.d.fmt == FP64 and schedule != FLAT:
        raise ValueError(f"{schedule} adds in float32; {unit.name} has float64 sums. Take FLAT.")
    for side in (plan.left, plan.right) if is_scheduled else ():
        if side.along_k is None:
            continue
        if not schedule.block_scaled:
            raise ValueError(
                f"{schedule} has no place for scales that change along K; got scales of {side.name} per "
                f"{side.along_k} terms. Take fp.schedules.deepgemm(), cutlass_blockwise() or "
                "cublas(family='block_scaled')."
            )
        check_blocks(schedule, unit, side.along_k, plan.along_k)
    if passed.beta and not passed.c:
        raise ValueError("beta multiplies c; got no c. Pass c, or leave beta out.")
    if passed.c and plan.has_tensor_scale:
        raise ValueError("c cannot join a sum that a tensor scale multiplies afterwards; add it to the result.")
    finishes = passed.alpha or passed.beta or passed.bias or plan.out_fmt is not None
    if unit.d.fmt == FP64 and finishes:
        raise ValueError(f"alpha, beta, bias and out_fmt work on float32 sums; {unit.name} has float64 sums.")


def _scale_order(schedule: Schedule, left: OperandShape, right: OperandShape) -> str:
    """Return the order in which a schedule multiplies a sum by scales: "product", "a_first" or "b_first".

    For cuBLAS it depends on the tiles that share a scale in a (`left`) and b (`right`). Scales along K: "a_first" if no
    two rows of a and no two columns of b share a scale, else "product". Other scales: "b_first" if a has scales per row
    or b per column, else "product".
    """
    order = schedule.epilogue.scale_order
    if order != "cublas":
        return order
    sides = (left, right)
    if any(side.along_k is not None for side in sides):
        return "a_first" if all(side.factors is None or side.one_dimensional for side in sides) else "product"
    return "b_first" if any(side.kind == "row" for side in sides) else "product"


def _own_format(plan: MatmulPlan) -> Format:
    """Return the result format of a call without `out_fmt`: the unit's if the unit alone adds up all terms, else FP32.

    It is also FP32 if an epilogue follows, including the addition of C. plan: the plan, whose `fmt` is not read.
    """
    schedule, order = plan.schedule, plan.along_k
    finishes = plan.has_epilogue or (plan.passed.c and schedule.epilogue.adds_c)
    plain = isinstance(schedule.sums, Chain) and not order.promoted and len(order.slices) == 1
    return plan.unit.d.fmt if plain and not finishes else FP32
