"""The sums of slices of K as nodes of a tree: chains of instructions, lanes of threads, and accumulators."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from fpsim.errors import shown, unknown
from fpsim.formats.named import FP32, Format
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.schedules.plan import SchedulePlan, Slice, Span, grain_of, interval_of
from fpsim.schedules.schedule import BLOCK_THREADS, Chain, Lanes, Schedule
from fpsim.schedules.trees.nodes import (
    FLOAT32,
    Arithmetic,
    Gathered,
    Node,
    Round,
    ScaledSum,
    Steps,
    Sum,
    TrackedNode,
    add,
    add_instructions,
    add_steps,
    rounded,
    sum_of_terms,
    terms_run,
    zero,
)
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential

LEFT = 32, 4  # reduce_1Block_kernel halves its sums down to 32, and adds the last 4 one after the other
CUTS = (Rule.FUSED, Rule.SCALED, Rule.GROUPED, Rule.TWO_PASSES)  # zero results are +0 (docs/matrix-units.md)

MOST_PARTS = 1 << 20  # nodes and runs of a tree: seconds of work


def refuse_many_parts(schedule: Schedule, unit: MatrixUnit, k: int) -> None:
    """Raise a ValueError if a schedule's tree for k terms would have more than MOST_PARTS (2^20) parts.

    Parts are the tree's nodes and runs of additions; their number is estimated. unit: the matrix unit whose
    instructions add.
    """
    sums, slicing = schedule.sums, schedule.slicing
    dealt = slicing.rule in ("interleaved", "rounds") and slicing.count > 1
    tiles = k // grain_of(schedule, unit) if dealt else 0
    if isinstance(sums, Lanes):
        runs = k // (abs(sums.run) or k or 1)
        parts = slicing.count + sums.count * max(sums.blocks, 1) + runs + (k // sums.chunk if sums.chunk else 0)
    else:
        interval = interval_of(sums, unit)
        parts = slicing.count + (k // interval if interval else 0) + (k // sums.restart if sums.restart else 0)
        parts += k // 2 if sums.odd_first else 0
    refuse_parts(parts + tiles, f"{schedule} with k={shown(k)}")


def refuse_parts(parts: int, tree: str, most: int = MOST_PARTS) -> None:
    """Raise a ValueError if `parts`, the number of nodes and runs of additions of a tree, exceeds `most`.

    tree: text that names the tree in the error.
    """
    if parts > most:
        raise ValueError(
            f"a tree must have at most {most} parts; got {tree}, which has about {shown(parts)}. Take a smaller k."
        )


# ---- matrix units


def arithmetic_of(unit: MatrixUnit) -> Arithmetic:
    """Return the arithmetic of one instruction of a matrix unit."""
    if unit.rule is Rule.EXACT and unit.terms == 1:
        return Arithmetic("ieee", unit.d.fmt)
    return Arithmetic(
        unit.rule.name.lower(), unit.d.fmt, unit.rounding,
        fraction_bits=unit.fraction_bits or None,
        floor_exponent=unit.floor_exponent if unit.fraction_bits else None,
        result_bits=unit.result_bits,
        # other rules add a step with fewer terms as if the rest were zeros
        width=unit.terms if unit.rule is Rule.FLUSHED_TREE else 0,
        operands=unit.a.name if unit.a.name in ("tf32", "xf32") else "",
        scale=unit.scale or "", block=unit.block,
    )  # fmt: skip


def by_chains(schedule: Schedule, plan: SchedulePlan, unit: MatrixUnit, scaled: bool) -> list[TrackedNode]:
    """Return the sum of each slice of `plan`, as instructions of `unit` add it: a list of nodes.

    schedule: the schedule, whose order of instructions is a `Chain`. If `plan.promoted`, a slice has several partial
    sums, which are added in float32; otherwise it is one chain. scaled: True multiplies each partial sum by the two
    scales of its block.
    """
    chain, how = schedule.sums, arithmetic_of(unit)
    assert isinstance(chain, Chain)
    never_minus_zero = unit.rule in CUTS and unit.d.fmt == FP32
    parts = []
    for of in plan.slices:
        starts = [*accumulate((run.terms for run in of.runs), initial=0)]  # position of each run in the slice
        if not plan.promoted:
            parts.append(_chain(of, starts, Span(0, of.terms), plan.step, how, never_minus_zero))
            continue
        blocks = [_chain(of, starts, block, plan.step, how, never_minus_zero) for block in of.blocks]
        if scaled:
            order, fuses = schedule.epilogue.scale_order, schedule.fuses_scales
            blocks = [TrackedNode(ScaledSum(order, part.node, fuses), False) for part in blocks]
        parts.append(add(FLOAT32, blocks, from_zero=scaled or not chain.first_as_is))
    return parts


def _chain(
    of: Slice, starts: Sequence[int], block: Span, step: int, how: Arithmetic, never_minus_zero: bool
) -> TrackedNode:  # fmt: skip
    """Return a partial sum of the slice `of` as a node: instructions chained from +0.

    starts: position within the slice of the first term of each run (span of K). block: the partial sum's terms, as
    positions within the slice. step: terms of an instruction. how: the arithmetic of an instruction. never_minus_zero:
    whether an instruction never returns -0.
    """
    cuts = [block.start, of.residue, block.stop] if block.start < of.residue < block.stop else [*block]
    steps: list[Steps | Gathered] = []
    for start, stop in pairwise(cuts):
        _add_run(steps, of.runs, starts, start, stop, step)
    return sum_of_terms(how, steps, never_minus_zero)


def _add_run(
    steps: list[Steps | Gathered], runs: Sequence[Span], starts: Sequence[int], start: int, stop: int, step: int
) -> None:  # fmt: skip
    """Append to `steps`, in place, the instructions that add the terms at positions start .. stop - 1 of a slice.

    A slice is a part of K with a separate sum. It consists of `runs`, spans of contiguous terms, and a position counts
    its terms from 0, run after run. Each instruction adds `step` terms; the last one adds the terms that remain. An
    instruction is listed in a Steps if its terms are contiguous in K, else as a Gathered. starts: position of the first
    term of each run.
    """
    if len(runs) == 1:
        add_instructions(steps, runs[0].start + start, stop - start, step)
        return
    for position in range(start, stop, step):
        spans, left = [], min(step, stop - position)
        while left:
            index = bisect_right(starts, position) - 1
            first = runs[index].start + position - starts[index]
            taken = min(left, runs[index].stop - first)
            spans.append(Span(first, first + taken))
            position, left = position + taken, left - taken
        if len(spans) == 1:
            add_steps(steps, Steps(spans[0].start, spans[0].terms, 1, 0))
        else:
            steps.append(Gathered(tuple(spans)))


def merged(parts: list[TrackedNode], schedule: Schedule, fmt: Format) -> TrackedNode:
    """Return the sum of the slices of K as a node, merged as `Slicing.merge` of the schedule says.

    parts: the sum of each slice, +0 for one without terms. fmt: format of the output, to which some merges round.
    """
    merge, nothing = schedule.slicing.merge, zero(FP32)
    if len(parts) == 1:
        return parts[0]
    if merge == "output":
        return add(FLOAT32, [rounded(part, fmt) for part in parts])
    if merge == "in_place" and fmt != FP32:
        first = rounded(parts[0], fmt)
        return add(replace(FLOAT32, then=fmt), [first, *parts[1:]])
    if merge == "from_both_ends":  # see `Slicing`: the last slice, then pairs of slices i and i + half
        last, half = len(parts) - 1, (len(parts) + 1) // 2
        pairs = [add(FLOAT32, [parts[i], *parts[i + half : last][:1]]) for i in range(half) if i != last]
        from_zero = parts[last].node == nothing
        return add(FLOAT32, pairs if from_zero else [parts[last], *pairs], from_zero=from_zero)
    return add(FLOAT32, parts)


# ---- kernels without matrix units


class LaneOrder(NamedTuple):
    """The order of a tree that consists of lanes only (partial sums of an output), from which fast loops compute sums.

    Attributes:
      root: the tree's root (before a last rounding to the output format).
      lanes: a Lanes: the number of lanes, and how their terms and they themselves are added.
      run: number of consecutive terms that a lane takes before the next lane takes its terms.
      span: the range of K whose terms are added.
      coarse: True if no product of the operands can underflow in float32.
      one_column: True if the result has one column; a thread of cuBLAS's dot kernel then has two chains instead of one.
    """

    root: Node
    lanes: Lanes
    run: int
    span: Span
    coarse: bool
    one_column: bool


def lane_order(root: Node, lanes: Lanes, plan: SchedulePlan, unit: MatrixUnit, n: int | None) -> LaneOrder | None:
    """Return the LaneOrder of a tree that consists of lanes only; None if it also merges slices or has no terms.

    root: the tree's root. lanes: the schedule's lanes, partial sums of an output. plan: the terms of each slice. unit:
    the matrix unit, of which only the operands' formats matter. n: columns of the product; None for any number
    but 1.
    """
    if len(plan.slices) != 1 or not plan.slices[0].terms or len(plan.slices[0].runs) != 1:
        return None
    root = root.input if isinstance(root, Round) else root
    return LaneOrder(root, lanes, plan.run, plan.slices[0].runs[0], is_coarse(unit.a.fmt, unit.b.fmt), n == 1)


def is_coarse(a: Format, b: Format) -> bool:
    """Return whether all products of values of the formats a and b are multiples of float32's smallest number.

    Then no nonzero product underflows to 0 in float32.
    """
    lowest = [fmt.min_exponent - fmt.mantissa_bits for fmt in (a, b, FP32)]  # exponents of the smallest subnormals
    return lowest[0] + lowest[1] >= lowest[2]


def by_lanes(lanes: Lanes, plan: SchedulePlan, unit: MatrixUnit, n: int | None) -> list[TrackedNode]:
    """Return the sum of each slice of `plan`, as threads add it in the lanes `lanes`: a list of nodes.

    A lane is a partial sum of an output. unit: the matrix unit, of which only the operands' formats matter. n: columns
    of the product, or None; a thread of cuBLAS's dot kernel has two chains if n is 1, else one.
    """
    return list(_by_lanes(lanes, plan, is_coarse(unit.a.fmt, unit.b.fmt), 2 if n == 1 else 1))


@lru_cache(maxsize=256)  # a search asks for the same schedules with units that differ in their operands alone
def _by_lanes(lanes: Lanes, plan: SchedulePlan, coarse: bool, chains: int) -> tuple[TrackedNode, ...]:
    """Return the sum of each slice of `plan`, as threads add it in the lanes `lanes`: a cached tuple of nodes.

    coarse: whether no product of nonzero values underflows to 0 in float32. chains: chains per thread of cuBLAS's dot
    kernel.
    """
    parts = []
    for of in plan.slices:
        run = of.runs[0] if of.runs else Span(0, 0)
        if lanes.merge == "blocks":
            parts.append(_dot_blocks(lanes, run, chains, coarse))
            continue
        of_lanes = [_lane(lanes, run, plan.run, lane, coarse) for lane in range(lanes.count)]
        if lanes.merge == "butterfly":
            parts.append(add(FLOAT32, of_lanes, order="butterfly"))
        else:
            parts.append(add(FLOAT32, of_lanes, from_zero=lanes.lanes_from_zero))
    return tuple(parts)


def _lane(lanes: Lanes, slice_: Span, run: int, lane: int, coarse: bool) -> TrackedNode:
    """Return the sum of one lane (a partial sum of an output) of a slice of K as a node.

    It is one chain of the lane's terms, or, if lanes.chunk is not 0, the total of chains of that many terms. lanes: the
    lanes of the schedule. slice_: the terms of the slice. run: consecutive terms that a lane takes in its turn. lane:
    number of the lane. coarse: whether no product of nonzero values underflows to 0 in float32.
    """
    starts = range(slice_.start + lane * run, slice_.stop, lanes.count * run)
    runs = [Span(start, min(start + run, slice_.stop)) for start in starts]
    if not lanes.chunk:
        return _threads_chain(runs, coarse)
    chunks: list[list[Span]] = [[]]
    left = lanes.chunk
    for start, stop in runs:
        while start < stop:
            if left == 0:
                chunks.append([])
                left = lanes.chunk
            taken = min(left, stop - start)
            chunks[-1].append(Span(start, start + taken))
            start, left = start + taken, left - taken
    return add(FLOAT32, [_threads_chain(chunk, coarse) for chunk in chunks], from_zero=lanes.chunks_from_zero)


def _threads_chain(runs: Sequence[Span], coarse: bool) -> TrackedNode:
    """Return a chain of float32 fused multiply-adds from +0 over the spans `runs` of K, as a node.

    coarse: whether no product of nonzero values underflows to 0 in float32.
    """
    steps: list[Steps | Gathered] = []
    for start, stop in runs:
        add_steps(steps, Steps(start, 1, stop - start, 1))
    return sum_of_terms(FLOAT32, steps, coarse)


def _dot_thread(terms: Sequence[range], coarse: bool) -> TrackedNode:
    """Return the sum of one thread in cuBLAS's dot_kernel as a node: +0 plus its chains, each from +0, in order.

    terms: the terms of each chain.
    coarse: whether no product of nonzero values underflows to 0 in float32.
    """
    return add(FLOAT32, [_threads_chain([Span(k, k + 1) for k in chain], coarse) for chain in terms], from_zero=True)


def _dot_blocks(lanes: Lanes, slice_: Span, chains: int, coarse: bool) -> TrackedNode:
    """Return the sum of a slice of K by cuBLAS's dot_kernel and reduce_1Block_kernel, as a node.

    1. Consecutive terms go to the chains of the threads of all blocks, one term each, round after round.
    2. The sums of the 128 threads of a block are added as a butterfly.
    3. Of the blocks' sums, every 128th are added from left to right, which leaves up to 128 sums.
    4. Sum i + 64 is added to sum i, then sum i + 32.
    5. Of these 32 sums, every fourth are added from left to right, which leaves 4; these are added from left to right.

    lanes: the schedule's lanes, with the number of blocks. slice_: the terms of K. chains: chains per thread. coarse:
    whether no product of nonzero values underflows to 0 in float32.
    """
    tile, blocks = BLOCK_THREADS * chains, lanes.blocks
    idle = _dot_thread([range(0)] * chains, coarse)  # as most threads are where K is short
    idle_block = add(FLOAT32, [idle] * BLOCK_THREADS, order="butterfly")
    sums = []
    for first in range(slice_.start, slice_.start + blocks * tile, tile):
        if first >= slice_.stop:
            sums.append(idle_block)
            continue
        threads = []
        for k in range(first, first + tile, chains):
            terms = [range(k + s, slice_.stop, blocks * tile) for s in range(chains)]
            threads.append(_dot_thread(terms, coarse) if k < slice_.stop else idle)
        sums.append(add(FLOAT32, threads, order="butterfly"))
    rows = [add(FLOAT32, sums[t::BLOCK_THREADS]) for t in range(min(BLOCK_THREADS, blocks))]
    half = BLOCK_THREADS // 2
    while half >= LEFT[0]:
        rows = [add(FLOAT32, [rows[i], *rows[i + half : i + half + 1]]) for i in range(min(half, len(rows)))]
        half //= 2
    rows = [add(FLOAT32, rows[j :: LEFT[1]]) for j in range(min(LEFT[1], len(rows)))]
    return add(FLOAT32, rows)


# ---- accumulators


def by_accumulator(how: Accumulator, k: int) -> TrackedNode:
    """Return the sum of k terms by the emulated accumulator `how` as a node.

    Raises:
      ValueError: a Chunked accumulator with more than MOST_PARTS (2^20) chunks, or a class of accumulator that has no
        tree.
    """
    inner = accumulator_arithmetic(how, how.fmt, k)
    if k == 0:
        return TrackedNode(zero(how.result_format), True)
    if isinstance(how, Exact):
        return TrackedNode(Sum(replace(inner, rule="once"), "zero", "chain", (Steps(0, k, 1, 0),)), False)
    one_by_one = terms_run(0, k)
    if isinstance(how, FusedMultiplyAdd):
        return TrackedNode(Sum(inner, "zero", "chain", (one_by_one,)), False)
    if isinstance(how, Pairwise):
        return TrackedNode(Sum(inner, "first", "pairwise", (one_by_one,), inner), False)
    # sums of numbers of one format do not underflow
    exact_below = how.rounding is Rounding.NEAREST_EVEN and how.subnormals == "keep" and how.fmt.subnormals
    if isinstance(how, Sequential):
        return TrackedNode(Sum(inner, "zero", "chain", (one_by_one,), inner), exact_below)
    if not isinstance(how, Chunked):
        raise unknown("how", type(how).__name__, ["Sequential", "FusedMultiplyAdd", "Pairwise", "Chunked", "Exact"])
    refuse_parts(k // how.chunk, f"{how} with k={shown(k)}")
    runs = [Span(start, min(start + how.chunk, k)) for start in range(0, k, how.chunk)]
    totals = [
        TrackedNode(Sum(inner, "zero", "chain", (terms_run(run.start, run.terms),), inner), exact_below)
        for run in runs
    ]  # fmt: skip
    return add(accumulator_arithmetic(how, how.outer, k), totals, from_zero=True)


def accumulator_arithmetic(how: Accumulator, fmt: Format, k: int) -> Arithmetic:
    """Return the arithmetic of the additions of the accumulator `how` in the format `fmt`.

    k: number of terms of the sum, on which the random numbers of stochastic rounding depend.
    """
    stochastic = how.rounding is Rounding.STOCHASTIC  # the random numbers depend on the position of a rounding
    return Arithmetic(
        "ieee", fmt, how.rounding.name.lower(), overflow=how.overflow, subnormals=how.subnormals,
        stream=f"{how!r} of {k} terms" if stochastic else "",
    )  # fmt: skip
