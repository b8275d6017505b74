"""A matrix product by a schedule: the sums over its slices of K (split-K parts), and their merging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpsim.formats.named import FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.products.backend import Backend, Matrix
from fpsim.products.fast_units import is_fast
from fpsim.products.unit_product import JOINED, Factors, add_part
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.schedules.plan import SchedulePlan, Slice, Span, interval_of
from fpsim.schedules.schedule import Chain, Lanes, Schedule

FactorsAt = Callable[[list[int]], Factors]  # of the partial sums that begin at these terms of K
Join = Callable[[Matrix, "Matrix | None"], Matrix]  # a slice's sum and the total so far -> the new total


class ProductSums(NamedTuple):
    """The operands of a product and the order of its additions, without the epilogue (scales, alpha, bias and C).

    Attributes:
      schedule, plan: the schedule, and its order of additions for this K.
      product: the unit, and the codes and scales of a and b, as the backend's kernels read them.
      backend: the object that computes on the CPU or a GPU.
      factors_at: function that returns the decode scales of partial sums, as a `Factors` (scales of rows and of
        columns). Its argument is a list with one number for each partial sum, the index along K of its first term.
      out_fmt: format of the result, to which some merges round sums.
      join: function (sum of a slice of K, total of the earlier slices or None) -> new total, for merges in place, which
      end every slice with
        an epilogue; None for other merges.
    """

    schedule: Schedule
    plan: SchedulePlan
    product: Any
    backend: Backend
    factors_at: FactorsAt
    out_fmt: Format
    join: Join | None = None


def merged(
    sums: ProductSums, shape: tuple[int, int], dtype: np.dtype[np.floating], work: Matrix | None = None
) -> Matrix:  # fmt: skip
    """Return the (M, N) sums of all slices of K, merged as `slicing.merge` of the schedule says.

    "float32": added in order. "output": rounded to the result's format first. "in_place": each slice's epilogue adds
    the total so far. "from_both_ends": slices i and i + ceil(count / 2) are added, and these sums to the last slice.
    sums: the operands and the order of additions. shape, dtype: the result's. work: a matrix whose memory may be
    reused for the result, or None.
    """
    slices = sums.plan.slices
    if _merged_by_kernel(sums):
        total = sums.backend.full(shape, -0.0, dtype, work)
        _add_by_kernel(total, sums)
        return total
    partial = _by_lanes(sums) if isinstance(sums.schedule.sums, Lanes) else _by_chains(sums, shape, dtype, work)
    with ieee_arithmetic(), np.errstate(all="ignore"):
        if sums.schedule.slicing.merge == "from_both_ends" and len(slices) > 1:
            return _from_both_ends(partial, len(slices), sums.backend)
        return _forward(map(partial, range(len(slices))), sums)


def _forward(partials: Iterator[Matrix], sums: ProductSums) -> Matrix:
    """Return the sum (M, N) of the sums over slices of K, added in order; the first is not added to a zero.

    partials: the sum of each slice. sums: the schedule, whose merge says which sums are rounded to the output's format.
    """
    merge, total = sums.schedule.slicing.merge, None
    for part in partials:
        if merge == "in_place":
            if sums.join is not None:
                part = sums.join(part, total)
            elif total is not None:
                part = sums.backend.add(total, part)
            total = sums.backend.rounded(part, sums.out_fmt)
        else:
            part = sums.backend.rounded(part, sums.out_fmt) if merge == "output" else part
            total = part if total is None else sums.backend.add(total, part, out=total)
    assert total is not None
    return total


def _from_both_ends(partial: Callable[[int], Matrix], count: int, backend: Backend) -> Matrix:
    """Return the sum (M, N) of the sums over all slices of K, in an order that begins with the last slice.

    The total starts as the last slice's sum. For i = 0, 1, ..., half - 1, with half = ceil(count / 2), the sums of
    slices i and i + half are added to one another, and the result to the total. Slice i is added alone if i + half is
    the last slice or beyond. A single slice is not added again. partial: function from a slice's number to its sum.
    count: number of slices. backend: the operations of the CPU or a GPU.
    """
    total, half = partial(count - 1), (count + 1) // 2
    for i in range(half):
        if i == count - 1:
            break  # i + half would be the last slice again
        part = partial(i)
        if i + half < count - 1:
            part = backend.add(part, partial(i + half))
        total = backend.add(total, part)
    return total


def _by_lanes(sums: ProductSums) -> Callable[[int], Matrix]:
    """Return a function from the number of a slice of K to its sum (M, N), added in lanes (partial sums).

    Lanes are those of GPU threads without matrix units.

    sums: the operands and the order of additions.
    """
    lanes, plan = sums.schedule.sums, sums.plan
    assert isinstance(lanes, Lanes)
    runs = [of.runs[0] if of.runs else Span(0, 0) for of in plan.slices]
    return lambda s: sums.backend.lane_product(sums.product, lanes, plan.run, runs[s])


def _by_chains(
    sums: ProductSums, shape: tuple[int, int], dtype: np.dtype[np.floating], work: Matrix | None
) -> Callable[[int], Matrix]:  # fmt: skip
    """Return a function from the number of a slice of K to its sum (M, N), computed by chained matrix instructions.

    sums: the operands and the order of additions. shape, dtype: a sum's. work: memory that slice 0's sum may reuse, or
    None.
    """
    chain = sums.schedule.sums
    assert isinstance(chain, Chain)
    as_is = sums.plan.promoted and chain.first_as_is

    def partial(s: int) -> Matrix:
        of = sums.plan.slices[s]
        total = sums.backend.full(shape, -0.0 if as_is and of.terms else 0.0, dtype, work if s == 0 else None)
        add_slice(total, of, sums)
        return total

    return partial


def add_slice(total: Matrix, of: Slice, sums: ProductSums) -> None:
    """Add the product over one slice of K to `total` (M, N) in place; `total` holds the value at which its sums start.

    of: the terms of the slice, in order. sums: the operands and the order of additions. With promotion, the partial
    sums start at +0 and are added to `total`.
    """
    plan, product = sums.plan, sums.product
    if of.terms == 0:
        return
    if plan.step < product.unit.terms:
        product = _with_step(product, plan.step)
    if of.residue or of.runs != (Span(0, plan.k),):
        product = _in_order(product, of, plan)
    if not plan.promoted:
        sums.backend.add_product(total, product)
        return
    interval = of.blocks[0].terms
    factors = sums.factors_at([_term(of, b.start) for b in of.blocks] if sums.schedule.block_scaled else [])
    if factors.mode in JOINED and all(block.start == i * interval for i, block in enumerate(of.blocks)):
        terms = product.unit.terms
        sums.backend.add_product(total, product._replace(promote=-(-interval // terms) * terms, factors=factors))
        return
    for i, block in enumerate(of.blocks):
        partial = sums.backend.full(total.shape, 0.0, np.dtype(np.float32))
        sums.backend.add_product(partial, product.part(*block))
        with ieee_arithmetic(), np.errstate(all="ignore"):
            add_part(total, partial, factors, i, sums.backend)


def _merged_by_kernel(sums: ProductSums) -> bool:
    """Return whether one kernel call can add up all slices of K, those of `sums.plan`.

    Conditions: a fast unit of `Rule.FUSED` or `Rule.SCALED` with float32 sums; a backend whose kernels merge slices; at
    least two slices, each of which `_is_whole`; instructions with all terms of the unit; partial sums without decode
    scales; and a merge that adds the slices' sums in order in float32.
    """
    plan, chain, unit, merge = sums.plan, sums.schedule.sums, sums.product.unit, sums.schedule.slicing.merge
    # rounding to float32 does not change these totals
    added = merge == "float32" or (merge != "from_both_ends" and sums.out_fmt == FP32 and sums.join is None)
    if not (sums.backend.merges_slices and added and isinstance(chain, Chain) and len(plan.slices) > 1):
        return False
    # partial sums of these units are never -0, so that it makes no difference at which zero their totals start
    takes = unit.rule in (Rule.FUSED, Rule.SCALED) and unit.d.fmt == FP32 and is_fast(unit)
    takes = takes and plan.step == unit.terms and not sums.schedule.block_scaled
    return takes and all(_is_whole(of, interval_of(chain, unit), unit) for of in plan.slices)


def _is_whole(of: Slice, interval: int, unit: MatrixUnit) -> bool:
    """Return whether `of`, a slice of K, can be added by a kernel that adds all slices.

    It must have terms, no residue (first terms that separate instructions add), and partial sums that start at
    multiples of `interval`, the terms of a partial sum (0 for one sum). If the unit multiplies blocks of scales, the
    slice must also be contiguous and begin at a block.
    """
    regular = all(block.start == i * interval for i, block in enumerate(of.blocks)) or not interval
    scaled = len(of.runs) == 1 and of.runs[0].start % unit.block == 0 if unit.block else True
    return of.terms > 0 and of.residue == 0 and regular and scaled


def _add_by_kernel(total: Matrix, sums: ProductSums) -> None:
    """Add the products over all slices of K to `total` (M, N), which holds -0, in place.

    sums: the operands and the order of additions. Slices of one length share one kernel call.
    """
    chain, product = sums.schedule.sums, sums.product
    assert isinstance(chain, Chain)
    for group in _of_one_length(sums.plan):
        length = -(-group[0].terms // product.unit.terms) * product.unit.terms
        part = _in_order(product, _joined_runs(group), sums.plan)
        interval = interval_of(chain, product.unit)
        part = part._replace(promote=interval, cut=length) if interval else part._replace(promote=length)
        sums.backend.add_product(total, part)


def _of_one_length(plan: SchedulePlan) -> Iterator[list[Slice]]:
    """Yield all slices of K in order, as lists of consecutive slices that one kernel call can add.

    The slices of a list have the same number of terms, but the last one may have fewer. A first slice whose number of
    terms is no multiple of `plan.step`, the terms of a matrix instruction, is the only one of its list. plan: the order
    of additions for one K, with the slices into which K is divided.
    """
    group: list[Slice] = []
    for of in plan.slices:
        if group and (group[0].terms % plan.step or group[-1].terms < group[0].terms or of.terms > group[0].terms):
            yield group
            group = []
        group.append(of)
    yield group


def _joined_runs(group: list[Slice]) -> Slice:
    """Return one slice of K with all terms of consecutive slices, in order; adjacent ranges of K become one range.

    group: the slices. The result has no blocks (ranges of partial sums) and no residue (first
    terms that separate instructions add).
    """
    runs: list[Span] = []
    for run in (run for of in group for run in of.runs):
        if runs and runs[-1].stop == run.start:
            runs[-1] = Span(runs[-1].start, run.stop)
        else:
            runs.append(run)
    return Slice(tuple(runs), (), 0)


def _term(of: Slice, position: int) -> int:
    """Return the index along K of term number `position` of a slice of K, in the order of the slice's terms.

    Raises:
      IndexError: the slice has fewer terms.
    """
    for run in of.runs:
        if position < run.terms:
            return run.start + position
        position -= run.terms
    raise IndexError(position)


def _with_step(product: Any, step: int) -> Any:
    """Return a copy of `product` with its unit replaced by one whose instructions have only `step` terms.

    product: the unit, and the codes and scales of a and b.

    Raises:
      ValueError: how such an instruction adds is not known.
    """
    unit = product.unit
    multiple = {Rule.FUSED: 4, Rule.TWO_CHAINS: 2}.get(unit.rule)  # of which the number of terms must be a multiple
    if multiple is None or step % multiple:
        raise ValueError(f"instructions of {step} terms are not known for {unit.name}, whose steps have {unit.terms}.")
    return product._replace(unit=replace(unit, terms=step))


def _in_order(product: Any, of: Slice, plan: SchedulePlan) -> Any:
    """Return the product over the terms of a slice of K, in the order of the slice's instructions.

    product: the unit, and the codes and scales of a and b. of: the slice, whose first of.residue terms are added by
    separate instructions; zero terms fill up the last of these. plan: the order of additions, with the number of terms
    of an instruction.

    Raises:
      ValueError: the slice splits or reorders the unit's blocks of scales.
    """
    if len(of.runs) == 1 and not of.residue:
        run = of.runs[0]
        if product.unit.block and run.start % product.unit.block:
            raise ValueError(
                f"slices must begin at a block of {product.unit.block} scaled terms; got term {run.start}."
            )
        return product.part(*run)
    unit = product.unit
    if unit.block:
        raise ValueError(
            f"the schedule takes terms of K out of their order, where {unit.name} has block scales for it."
        )
    spans = _cut_at(of.runs, of.residue)
    gap = -of.residue % plan.step if of.residue else 0  # zero terms after the residue
    place = next(i for i in range(len(spans)) if sum(s.terms for s in spans[: i + 1]) == of.residue) + 1 if gap else 0
    return product.in_order(spans, gap, place)


def _cut_at(runs: tuple[Span, ...], position: int) -> list[Span]:
    """Return the ranges `runs` of K, with a range split in two if its start and end are before and after `position`.

    position: number of terms before the cut, counted from the first range on. For example, (Span(0, 4), Span(8, 12)) at
    position 6 gives Span(0, 4), Span(8, 10) and Span(10, 12).
    """
    spans: list[Span] = []
    for run in runs:
        cut = run.start + position
        spans += [Span(run.start, cut), Span(cut, run.stop)] if run.start < cut < run.stop else [run]
        position -= run.terms
    return spans


def check_blocks(schedule: Schedule, unit: MatrixUnit, along_k: int, plan: SchedulePlan) -> None:
    """Raise a ValueError unless every partial sum of the plan is within one block of scales, `along_k` terms of K.

    schedule: the schedule that the plan belongs to. It must add partial sums of a fixed number of terms to a float32
    total, else the error is raised too. unit: the matrix unit.
    """
    interval = interval_of(schedule.sums, unit) if isinstance(schedule.sums, Chain) else 0
    aligned = all(_term(of, block.start) % along_k + block.terms <= along_k for of in plan.slices for block in of.blocks
                  if block.terms)  # fmt: skip
    if not interval or not aligned:
        raise ValueError(f"partial sums of {interval} terms must lie in blocks of {along_k} terms that share a scale.")
