"""What a product by a matrix unit was asked to do: keyword arguments, checked, as one schedule for one shape."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.errors import shown, unknown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES, FP32, FP64, Format
from fpsim.formats.named import format as find_format
from fpsim.instructions.operands import refuse_shapes
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import output_nan, output_overflow
from fpsim.products.scaled_operand import OperandScales
from fpsim.products.slices import check_blocks
from fpsim.products.unit_product import ADD, COLUMNS_FIRST, PRODUCT, ROWS_FIRST, Factors
from fpsim.schedules.call import Call
from fpsim.schedules.limits import refusals, remarks
from fpsim.schedules.plan import SchedulePlan, Span, plan_of
from fpsim.schedules.schedule import FLAT, Chain, Epilogue, ScaleOrder, Schedule
from fpsim.schedules.written import no_schedule

MODES = {"product": PRODUCT, "a_first": ROWS_FIRST, "b_first": COLUMNS_FIRST}


class Request(NamedTuple):
    """The keyword arguments of `fpsim.matmul` that concern units."""

    schedule: Schedule | None = None
    promote: int | None = None
    scale_a: Any = None
    scale_b: Any = None
    scale_order: str | None = None
    bias: Any = None
    alpha: float | None = None
    beta: float | None = None
    out_fmt: FormatLike | None = None
    strict: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether nothing but a schedule or a promotion and an output format is asked for."""
        return self.alpha is None and self.beta is None and self.bias is None


@dataclass(frozen=True, eq=False)
class Job:
    """A product that can be computed: its request, and how it is added."""

    unit: MatrixUnit
    left: OperandScales
    right: OperandScales
    request: Request
    schedule: Schedule
    plan: SchedulePlan
    scale_order: str
    fmt: Format  # of the result

    @property
    def shape(self) -> tuple[int, int]:
        """Of the result."""
        return self.left.shape[0], self.right.shape[1]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Of the result."""
        return np.dtype(DTYPES.get(self.fmt, self.fmt.storage))

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What the library of the schedule does otherwise, a sentence each."""
        return tuple(remarks(self.schedule, self.unit, *self.shape, self.plan.k))

    @cached_property
    def has_epilogue(self) -> bool:
        """Whether anything is calculated with finished sums, C aside."""
        request, factors = self.request, (self.left.factors, self.right.factors)
        return any(x is not None for x in (request.alpha, request.beta, request.bias, *factors))

    @cached_property
    def tensor_scale(self) -> np.float32 | None:
        """The product of the scales of whole operands of units that take block scales; None where there are none."""
        found = [each.tensor_scale for each in (self.left, self.right) if each.tensor_scale is not None]
        with np.errstate(all="ignore"):  # the product may be Inf
            return np.prod(found, dtype=np.float32) if found else None

    @cached_property
    def nan_code(self) -> int | None:
        """The code of every NaN of the result; None to leave it as it is."""
        has_out_fmt = self.request.out_fmt is not None
        if has_out_fmt and self.fmt != FP32:
            return output_nan(self.fmt)
        if not (has_out_fmt or self.plan.k or self.has_epilogue):
            return None  # nothing is added and nothing follows: the result is what c is
        # sums of FP16 units that were promoted are float32
        return self.unit.nan_code if self.fmt == self.unit.d.fmt else self.fmt.top_magnitude

    @cached_property
    def overflow(self) -> str:
        """What becomes of sums that the result's format does not hold; a unit's own sums are in it."""
        return "nonfinite" if self.request.out_fmt is None else output_overflow(self.fmt)

    @cached_property
    def scaled(self) -> bool:
        """Whether scales multiply finished sums."""
        return not self.schedule.block_scaled and not (self.left.factors is None and self.right.factors is None)

    @cached_property
    def is_bare(self) -> bool:
        """Whether one chain of whole instructions adds all terms in their order, and nothing follows."""
        plan, chain = self.plan, isinstance(self.schedule.sums, Chain)
        whole = len(plan.slices) == 1 and plan.slices[0].runs == (Span(0, plan.k),) and not plan.slices[0].residue
        usual = chain and whole and not plan.promoted and plan.step >= self.unit.terms
        return usual and not self.has_epilogue and self.tensor_scale is None

    def factors_at(self, starts: list[int]) -> Factors:
        """The factors of the partial sums that begin at these terms of K."""
        if not self.schedule.block_scaled or (self.left.factors is None and self.right.factors is None):
            return Factors(mode=ADD)
        return factors_of(self.left, self.right, np.array(starts), MODES[self.scale_order])


def job_of(unit: MatrixUnit, left: OperandScales, right: OperandScales, request: Request, has_c: bool) -> Job:
    """The job for two operands.

    Raises:
      ValueError: shapes that do not match, sums that the schedule cannot add, what its library refuses.
    """
    job = _kept_job(unit, left, right, request, has_c)
    if request.schedule is not None:
        for remark in job.remarks:
            # shown where matmul is called
            warnings.warn(f"{remark} These are the bits of {job.schedule}.", UserWarning, stacklevel=5)
    return job


def _kept_job(unit: MatrixUnit, left: OperandScales, right: OperandScales, request: Request, has_c: bool) -> Job:
    """As `job_of`; operands that nothing scales find the job of a call before."""
    if request.is_plain and left.is_plain and right.is_plain:
        words: tuple[Any, ...] = request.promote, request.scale_order, request.out_fmt, request.strict
        try:
            return _plain_job(unit, left.shape, right.shape, has_c, request.schedule, *words)
        except TypeError:  # something that cannot be hashed: the checks raise the error that says why
            pass
    return _job(unit, left, right, request, has_c)


@lru_cache(maxsize=4096, typed=True)  # True equals 1, and is no promotion
def _plain_job(
    unit: MatrixUnit, a: tuple[int, int], b: tuple[int, int], has_c: bool, schedule: Schedule | None,
    promote: int | None, scale_order: str | None, out_fmt: FormatLike | None, strict: bool,
) -> Job:  # fmt: skip
    """The job of operands of these shapes that nothing scales; a program repeats it many times."""
    request = Request(schedule, promote, scale_order=scale_order, out_fmt=out_fmt, strict=strict)
    return _job(unit, OperandScales("a", a), OperandScales("b", b), request, has_c)


def _job(unit: MatrixUnit, left: OperandScales, right: OperandScales, request: Request, has_c: bool) -> Job:
    """As `job_of`."""
    refuse_shapes(left.shape, right.shape)
    (m, k), n = left.shape, right.shape[1]
    schedule = request.schedule or _default_schedule(request, unit, left, right)
    plan = plan_of(schedule, unit, k)
    fmt = None if request.out_fmt is None else find_format(request.out_fmt)
    if request.schedule is not None and request.strict:
        _obey(Call(schedule, unit, m, n, k, left.kind, right.kind, fmt or FP32))
    job = Job(unit, left, right, request, schedule, plan, _scale_order(schedule, left, right), fmt or FP32)
    _refuse_sums(job, has_c)
    return job if fmt is not None else replace(job, fmt=_own_format(job, has_c))


def refuse_conflicts(request: Request) -> None:
    """A ValueError for arguments that exclude each other."""
    if request.schedule is None:
        return
    if not isinstance(request.schedule, Schedule):
        raise no_schedule(request.schedule)
    for name, value in (("promote", request.promote), ("scale_order", request.scale_order)):
        if value is not None:
            raise ValueError(f"{name} is part of the schedule, {request.schedule}; got both. Leave {name} out.")


def refuse_unit_options(request: Request) -> None:
    """A ValueError for an option that accumulators do not have."""
    for name, value in zip(request._fields, request, strict=True):
        if name != "strict" and value is not None:
            raise ValueError(f"{name} is for matrix units; an accumulator rounds every sum. Leave it out.")


def _default_schedule(request: Request, unit: MatrixUnit, left: OperandScales, right: OperandScales) -> Schedule:
    """One chain, or the promotion that is asked for or that scales along K need."""
    promote, order = request.promote, "product" if request.scale_order is None else request.scale_order
    if not isinstance(order, str) or order not in MODES:
        raise unknown("scale_order", order, list(MODES))
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
    blocks = [each.along_k for each in (left, right) if each.along_k is not None]
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
    """One chain, or partial sums of so many terms."""
    # a promotion that is asked for is CUTLASS's 2xAcc
    epilogue = Epilogue(order, fused_bias=interval > 0 and not block_scaled)
    name = "promote" if interval else FLAT.name
    return Schedule(name, sums=Chain(interval), epilogue=epilogue, block_scaled=block_scaled)


def _obey(call: Call) -> None:
    """A ValueError for what the library refuses."""
    refused = refusals(call)
    if refused:
        raise ValueError(f"{refused[0]} strict=False computes it all the same.")


def _refuse_sums(job: Job, has_c: bool) -> None:
    """A ValueError for sums that the schedule cannot add."""
    unit, request, schedule = job.unit, job.request, job.schedule
    if request.schedule is None:
        pass
    elif isinstance(schedule.sums, Chain) and schedule.sums.interval % unit.terms:
        raise ValueError(
            f"{schedule} promotes every {schedule.sums.interval} terms, which must be a multiple of the {unit.terms} "
            f"terms that {unit.name} adds in a step."
        )
    elif unit.d.fmt == FP64 and schedule != FLAT:
        raise ValueError(f"{schedule} adds in float32; {unit.name} has float64 sums. Take FLAT.")
    for each in (job.left, job.right):
        if each.along_k is None or request.schedule is None:
            continue
        if not schedule.block_scaled:
            raise ValueError(
                f"{schedule} has no place for scales that change along K; got scales of {each.name} per "
                f"{each.along_k} terms. Take fp.schedules.deepgemm(), cutlass_blockwise() or "
                "cublas(family='block_scaled')."
            )
        check_blocks(schedule, unit, each.along_k, job.plan)
    if request.beta is not None and not has_c:
        raise ValueError("beta multiplies c; got no c. Pass c, or leave beta out.")
    if has_c and (job.left.tensor_scale is not None or job.right.tensor_scale is not None):
        raise ValueError("c cannot join a sum that a tensor scale multiplies afterwards; add it to the result.")
    finish = request.alpha, request.beta, request.bias, request.out_fmt
    if unit.d.fmt == FP64 and any(x is not None for x in finish):
        raise ValueError(f"alpha, beta, bias and out_fmt work on float32 sums; {unit.name} has float64 sums.")


def _scale_order(schedule: Schedule, left: OperandScales, right: OperandScales) -> str:
    """The order in which scales are applied."""
    order = schedule.epilogue.scale_order
    if order != "cublas":
        return order
    sides = (left, right)
    if any(side.along_k is not None for side in sides):
        return "a_first" if all(side.factors is None or side.one_dimensional for side in sides) else "product"
    return "b_first" if any(side.kind == "row" for side in sides) else "product"


def _own_format(job: Job, has_c: bool) -> Format:
    """The format of the result where no other is asked for."""
    schedule, plan = job.schedule, job.plan
    finishes = job.has_epilogue or (has_c and schedule.epilogue.adds_c)
    plain = isinstance(schedule.sums, Chain) and not plan.promoted and len(plan.slices) == 1
    return job.unit.d.fmt if plain and not finishes else FP32


def factors_of(left: OperandScales, right: OperandScales, starts: Array, mode: int) -> Factors:
    """The float32 factors of the partial sums that begin at these terms of K."""
    rows, columns = np.arange(left.shape[0]), np.arange(right.shape[1])
    one = np.float32(1)
    of_rows = np.full((rows.size, starts.size), one) if left.factors is None else (
        left.factors[rows[:, None] // left.tile[0], starts // left.tile[1]]
    )  # fmt: skip
    of_columns = np.full((starts.size, columns.size), one) if right.factors is None else (
        right.factors[starts[:, None] // right.tile[0], columns // right.tile[1]]
    )  # fmt: skip
    return Factors(np.ascontiguousarray(of_rows), np.ascontiguousarray(of_columns), mode)
