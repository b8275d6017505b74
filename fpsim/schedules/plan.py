"""The plan of a schedule for one number of terms K: the terms of each slice, their order, and the terms left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.schedule import Chain, Lanes, Schedule

BLOCK_BITS = 1024  # bits of K that nvjet kernels process at a time: 64 terms of 16 bits, 128 of 8 (docs/schedules.md)
VECTOR_BITS = 128  # bits of K that a thread of a CUTLASS kernel loads at a time


class Span(NamedTuple):
    """Consecutive terms start to stop - 1 of K."""

    start: int
    stop: int

    @property
    def terms(self) -> int:
        """Number of terms in the span."""
        return self.stop - self.start


class Slice(NamedTuple):
    """The terms of K that one slice adds, and their order.

    Attributes:
      runs: spans of K in the order in which they are added.
      blocks: the terms of each partial sum, as positions within the slice.
      residue: number of terms at the slice's start that separate instructions add; 0 if there are none, or if the
        terms are added in the same groups without them.
    """

    runs: tuple[Span, ...]
    blocks: tuple[Span, ...]
    residue: int

    @property
    def terms(self) -> int:
        """Number of terms in the slice."""
        return sum(run.terms for run in self.runs)

    def steps(self, step: int) -> Iterator[tuple[Span, ...]]:
        """Yield for each partial sum the terms of its instructions, as spans of positions within the slice.

        step: terms of an instruction.
        """
        for block in self.blocks:
            cuts = [block.start, self.residue, block.stop] if 0 < self.residue < block.stop else [*block]
            yield tuple(
                Span(k, min(k + step, stop)) for start, stop in pairwise(cuts) for k in range(start, stop, step)
            )


class SchedulePlan(NamedTuple):
    """The order of additions of a schedule for one K and one unit.

    Attributes:
      k: number of terms.
      step: terms of an instruction; 1 for lanes, whose threads add term by term.
      promoted: whether partial sums are added to a float32 total.
      slices: the terms of each slice of K and their order.
      lost: the range of K whose terms are never added.
      run: consecutive terms of a lane; 0 without lanes.
    """

    k: int
    step: int
    promoted: bool
    slices: tuple[Slice, ...]
    lost: Span
    run: int


def plan_of(schedule: Schedule, unit: MatrixUnit, k: int) -> SchedulePlan:
    """Return the order of additions of a schedule on a unit for a product of k terms."""
    runs, stop = _slices(schedule, unit, k)
    sums = schedule.sums
    if isinstance(sums, Lanes):
        whole = tuple(Slice(of, (Span(0, sum(r.terms for r in of)),), 0) for of in runs)
        return SchedulePlan(k, 1, False, whole, Span(stop, k), _run(sums, schedule.slicing.count, k))
    step = min(sums.step or unit.terms, unit.terms)
    interval = interval_of(sums, unit)
    slices = tuple(_slice(of, sums, interval, step) for of in runs)
    return SchedulePlan(k, step, interval > 0, slices, Span(stop, k), 0)


def interval_of(chain: Chain, unit: MatrixUnit) -> int:
    """Return the number of terms after which a partial sum is added to a float32 total; 0 if there is no total.

    It is chain.interval, but 0 if chain.short_sums_only is True and the sums of `unit` keep all mantissa bits.
    """
    keeps_all = unit.result_bits >= unit.d.fmt.mantissa_bits
    return 0 if chain.short_sums_only and keeps_all else chain.interval


def grain_of(schedule: Schedule, unit: MatrixUnit) -> int:
    """Return the number of consecutive terms of K that a schedule keeps in one slice: `slicing.grain` (see Slicing).

    If schedule.slicing.grain is 0, it is the number of elements of operand a of `unit` that fill 1024 bits: 64 of FP16;
    128 of FP8, and of formats with fewer than 8 bits.
    """
    return schedule.slicing.grain or BLOCK_BITS // max(unit.a.fmt.bits, 8)


def _slices(schedule: Schedule, unit: MatrixUnit, k: int) -> tuple[tuple[tuple[Span, ...], ...], int]:
    """Return (the spans of K of every slice, the index after the last term that is added).

    schedule: its `slicing` has the rule. unit: the matrix unit, on whose operands the slices may depend. k: number of
    terms.
    """
    slicing, grain = schedule.slicing, grain_of(schedule, unit)
    count = slicing.count
    if slicing.rule == "listed":
        return _listed(slicing.lengths, k), k
    if slicing.rule == "rounds" and count > 1:
        whole = k - k % (grain * count)
        tiles = [Span(start, start + grain) for start in range(0, whole, grain)]
        rest = [Span(whole, k)] if whole < k else []
        return tuple(tuple(tiles[s::count] + (rest if s == 0 else [])) for s in range(count)), k
    if slicing.rule == "interleaved" and count > 1:
        tiles = [Span(start, min(start + grain, k)) for start in range(0, k, grain)]
        # slices without tiles count where the order of the merge depends on their number
        kept = count if slicing.merge == "from_both_ends" else max(min(count, len(tiles)), 1)
        return tuple(tuple(tiles[s::count]) for s in range(kept)), k
    if slicing.rule == "cutlass":
        line = BLOCK_BITS // unit.a.carrier.bits
        grain = line if k % line == 0 else VECTOR_BITS // unit.a.carrier.bits
    if slicing.rule == "floor":
        # no library splits so few terms: the rule would add none of them
        chunk = grain * max(_ceiling(k // count, grain), 1)
    elif slicing.rule == "even" or count == 1:
        chunk = max(_ceiling(k, count), 1)
    else:
        chunk = grain * max(_ceiling(_ceiling(k, grain), count), 1)
    stop = min(count * chunk, k)
    return tuple((Span(start, min(start + chunk, stop)),) for start in range(0, max(stop, 1), chunk)), stop


def _listed(lengths: tuple[int, ...], k: int) -> tuple[tuple[Span, ...], ...]:
    """Return the spans of K that each slice adds, one span per slice, for slices of the given lengths.

    Raises:
      ValueError: the lengths do not add up to k.
    """
    stops = [*accumulate(lengths, initial=0)]
    if stops[-1] != k:
        few = ", ".join([*map(str, lengths[:6]), *["..."] * (len(lengths) > 6)])
        raise ValueError(f"slices of {few} terms need K = {stops[-1]}; got K = {k}. List those of this K.")
    return tuple((Span(start, stop),) for start, stop in pairwise(stops))


def _slice(runs: tuple[Span, ...], chain: Chain, interval: int, step: int) -> Slice:
    """Return the Slice (terms of K with a separate sum) that consists of `runs`, divided into partial sums.

    Its residue is r = (number of terms) mod `chain.residue`, or 0 if r is a multiple of `step`. runs: spans of K, in
    the order in which they are added. chain: the order of instructions. interval: number of terms after which a partial
    sum ends; 0 for a single sum. step: terms of an instruction.
    """
    terms = sum(run.terms for run in runs)
    if chain.odd_first:  # spans of single terms, the two of each pair swapped
        ks = [k for run in runs for k in range(run.start, run.stop)]
        runs = tuple(Span(k, k + 1) for i in range(0, terms, 2) for k in ks[i : i + 2][::-1])
    restart = (chain.restart if interval else 0) or max(terms, 1)
    blocks = tuple(
        Span(k, min(k + (interval or terms), start + restart, terms))
        for start in range(0, terms, restart)
        for k in range(start, min(start + restart, terms), interval or terms)
    )
    rest = min(terms % chain.residue, terms) if chain.residue else 0
    return Slice(runs, blocks, rest if rest % step else 0)


def _run(lanes: Lanes, slices: int, k: int) -> int:
    """Return the number of consecutive terms that a lane adds in its turn, if K = k is cut into `slices` slices.

    It is lanes.run, or, if that is not positive, the number that `Lanes` gives for it.
    """
    chunk = max(_ceiling(k, slices), 1)
    if lanes.run < 0:
        return min(-lanes.run, _ceiling(chunk, lanes.count))
    return lanes.run or _ceiling(chunk, lanes.count)


def _ceiling(terms: int, parts: int) -> int:
    """Return terms / parts, rounded up to an integer."""
    return -(-terms // parts)
