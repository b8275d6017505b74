"""Explanations of schedules in sentences: the order of additions, the rounding of sums, and the terms left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fpsim.deprecation import renamed_arguments
from fpsim.display.optional import Axes
from fpsim.errors import is_integer, require_integer, shown
from fpsim.formats.named import FP32, Format, format_argument
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.call import Call
from fpsim.schedules.limits import refusals, remarks
from fpsim.schedules.plan import SchedulePlan, Slice, interval_of, plan_of
from fpsim.schedules.schedule import Chain, Lanes, Schedule
from fpsim.schedules.trees.nodes import extent_of, in_words
from fpsim.schedules.trees.parts import arithmetic_of
from fpsim.schedules.trees.tree import FormatLike, Tree, tree, unit_of
from fpsim.schedules.written import no_schedule

FEW = 4  # slices that are listed one by one

SCALES = {
    "product": "fma(scale_a * scale_b, {x}, {y})", "a_first": "fma({x} * scale_a, scale_b, {y})",
    "b_first": "fma({x} * scale_b, scale_a, {y})",
    "cublas": "fma({x} * scale_a, scale_b, {y}) where both sides have scales per 1x128, else "
              "fma(scale_a * scale_b, {x}, {y})",
}  # fmt: skip
FACTORS = {  # of a finished sum
    "product": "scale_a * scale_b * alpha, sum", "a_first": "sum * scale_a, scale_b * alpha",
    "b_first": "sum * scale_b, scale_a * alpha",
    "cublas": "scale_a * scale_b * alpha, sum (with scales per row and column: sum * scale_b, scale_a * alpha)",
}  # fmt: skip
EVIDENCE = {
    "hardware": "compared with real output by the source", "source": "read from the library's source code",
    "inferred": "inferred",
}  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """The additions of a product of one shape, explained; `str()` gives sentences.

    Attributes:
      schedule, unit: the schedule and the matrix unit.
      m, n, k: rows and columns of the result, and terms.
      text: a few sentences.
      tree: the tree of additions, without scales of the whole sum, bias and C.
    """

    schedule: Schedule
    unit: MatrixUnit
    m: int
    n: int
    k: int
    text: str = field(repr=False)
    tree: Tree = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Return the text as HTML with one line per sentence, for notebooks."""
        from html import escape

        return "<br>".join(map(escape, self.text.splitlines()))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the tree of additions: terms of K from left to right, sums above them.

        Args:
          ax: matplotlib Axes; None for new ones.

        Returns:
          The Axes.
        """
        from fpsim.schedules.trees.picture import tree_axes

        name = self.unit.name if isinstance(self.schedule.sums, Chain) else "threads without tensor cores"
        return tree_axes(self.tree, ax, f"{self.schedule}, K = {self.k}\n{name}")


@renamed_arguments(out_format="out_fmt")
def explain(
    schedule: Schedule, m: int, n: int, k: int, *, accumulate: MatrixUnit | str | None = None,
    out_fmt: FormatLike | None = None,
) -> Explanation:  # fmt: skip
    """Explain how a schedule adds up the products of an (m, k) by (k, n) matrix product.

    Args:
      schedule: a schedule of `fp.schedules`.
      m, n, k: the shape.
      accumulate: the unit, as for `fp.matmul`; None as for `fp.schedules.tree`.
      out_fmt: the format of the result; None for that of the sums.

    Returns:
      An Explanation; print it, or `.plot()` it.

    Raises:
      ValueError: an unknown unit, or a size that is not a positive integer.
      TypeError: the schedule is not a Schedule.

    Example:
      >>> import fpsim as fp
      >>> print(fp.schedules.explain(fp.schedules.cutlass_2xacc(128), 64, 64, 512))
      cutlass_2xacc(128), a 64 x 64 product of K = 512 on hopper_e4m3_f32.
      An instruction adds 32 products, cut at 13 fraction bits, rounded toward zero to 13 mantissa bits in float32.
      Every 128 terms (4 instructions, chained from +0) their sum joins a float32 total that starts at +0: 4 partial
      sums.
      Epilogue, each operation rounded once to float32: fma(scale_a * scale_b * alpha, sum, bias); fma(beta, C, y) where
        there is a C. A C without beta is what the sum starts at instead.
      Source: NVIDIA/cutlass: gemm/collective/fp8_accumulation.hpp,
        epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp (read from the library's source code).
    """
    if not isinstance(schedule, Schedule):
        raise no_schedule(schedule)
    for value, name in ((m, "m"), (n, "n"), (k, "k")):
        if not is_integer(value) or value < 1:
            raise ValueError(f"{name} must be a positive integer; got {shown(value)}.")
        require_integer(name, value)
    unit = unit_of(schedule, accumulate)
    fmt = None if out_fmt is None else format_argument("out_fmt", out_fmt)
    additions = tree(
        schedule, k, n=n, accumulate=unit, out_fmt=fmt
    )  # raises a ValueError where there are too many parts
    in_order = schedule  # whose slices are the same, without pairs of terms that are turned round
    if isinstance(schedule.sums, Chain) and schedule.sums.odd_first:
        in_order = replace(schedule, sums=replace(schedule.sums, odd_first=False))
    plan = plan_of(in_order, unit, k)
    lines = [f"{schedule}, a {m} x {n} product of K = {k} on {unit.name}."]
    if isinstance(schedule.sums, Lanes):
        lines += _lanes(schedule.sums, plan, n)
    else:
        lines += _chains(schedule, schedule.sums, plan, unit)
    lines += [*_slices(schedule, plan, fmt), *_lost(plan), *_result(schedule, unit, fmt)]
    call = Call(schedule, unit, m, n, k, out_fmt=fmt or FP32)
    lines += [f"Refused by the library: {line}" for line in refusals(call)]
    lines += [f"Note: {line}" for line in remarks(schedule, unit, m, n, k)]
    of_unit = (
        "" if unit.evidence == "hardware" or isinstance(schedule.sums, Lanes) else f"; the unit is {unit.evidence}"
    )
    lines.append(f"Source: {schedule.source or 'not stated'} ({EVIDENCE[schedule.evidence]}{of_unit}).")
    return Explanation(schedule, unit, m, n, k, "\n".join(lines), additions)


def _chains(schedule: Schedule, chain: Chain, plan: SchedulePlan, unit: MatrixUnit) -> Iterator[str]:
    """Yield sentences on the order in which the instructions of `unit` add.

    schedule: the schedule. chain: its order of instructions. plan: that order for one number of terms.
    """
    longest = max(plan.slices, key=lambda of: of.terms)
    yield f"An instruction adds {_count(plan.step, 'product')}, {arithmetic_of(unit).words}."
    if not plan.promoted:
        whole = "All of K is" if len(plan.slices) == 1 else "A slice is"
        # the residue has instructions of its own
        instructions = sum(-(-part // plan.step) for part in (longest.residue, longest.terms - longest.residue))
        goes = "over ascending k" if not chain.odd_first else "over k, the second term of each pair before the first"
        yield f"{whole} one chain from +0: {_count(instructions, 'instruction')} {goes}."
    else:
        yield _promotion(schedule, chain, plan, unit, longest)
        if chain.odd_first:
            yield "The second term of each pair comes before the first."
    if chain.residue and any(of.terms % chain.residue for of in plan.slices):
        yield _residue(chain, plan)


def _promotion(schedule: Schedule, chain: Chain, plan: SchedulePlan, unit: MatrixUnit, longest: Slice) -> str:
    """Return the sentence on partial sums that are added to a float32 total.

    schedule: the schedule. chain: its order of instructions. plan: that order for one number of terms. unit: the matrix
    unit. longest: the slice with the most terms.
    """
    interval = interval_of(chain, unit)
    instructions = _count(-(-interval // plan.step), "instruction")
    restarts = f", and at the end of every {chain.restart}," if chain.restart and chain.restart % interval else ""
    start = "the first of them" if chain.first_as_is and not schedule.block_scaled else "+0"
    joins = f"their sum joins a float32 total that starts at {start}"
    if schedule.block_scaled:
        formula = SCALES[schedule.epilogue.scale_order].format(x="p", y="total")
        twice = "" if schedule.fuses_scales else ", in two roundings instead of one"
        joins = f"their sum p joins a float32 total that starts at +0 as {formula}{twice}"
    of_slices = " in a slice" if len(plan.slices) > 1 else ""
    sums = _count(len(longest.blocks), "partial sum")
    return f"Every {interval} terms{restarts} ({instructions}, chained from +0) {joins}: {sums}{of_slices}."


def _residue(chain: Chain, plan: SchedulePlan) -> str:
    """Return the sentence on the first terms of each slice, which fill no whole tile of `chain.residue` terms.

    chain: the order of instructions. plan: the terms of each slice for one number of terms.
    """
    rests = sorted({of.terms % chain.residue for of in plan.slices if of.terms % chain.residue})
    counts = " or ".join(map(str, rests)) if len(rests) <= FEW else "few"
    terms, come, their = ("term", "comes", "its") if rests == [1] else ("terms", "come", "their")
    place = "which leaves the order as it is"
    if any(of.residue for of in plan.slices):
        place = f"in instructions of {their} own, the last of which is not full"
        if rests[-1] < plan.step:
            place = f"in an instruction of {their} own, which is not full"
    of_slices = "a slice" if len(plan.slices) > 1 else "K"
    return f"The {counts} {terms} by which {of_slices} exceeds a multiple of {chain.residue} {come} first, {place}."


def _lanes(lanes: Lanes, plan: SchedulePlan, n: int) -> Iterator[str]:
    """Yield sentences on the order in which threads without tensor cores add.

    lanes: the schedule's lanes, partial sums of an output. plan: their order for one number of terms. n: columns of the
    product.
    """
    yield "There are no tensor cores in it: every product joins a float32 sum by a fused multiply-add."
    if lanes.merge == "blocks":
        chains = 2 if n == 1 else 1
        yield (
            f"{_count(lanes.blocks, 'block')} of 128 threads take tiles of {128 * chains} terms in turn; a thread "
            f"keeps {_count(chains, 'chain')}, one term of every tile each{'' if chains == 1 else ', because N = 1'}."
        )
        yield "In a block, threads are joined as a butterfly (h = 64, 32, ..., 1)."
        if lanes.blocks > 1:
            yield "Blocks are joined by halves down to 32, then every fourth one, then the last 4 in order."
        return
    if lanes.count == 1:
        taken = "One thread adds all terms"
    elif lanes.run == 0:
        taken = f"{lanes.count} threads share an output, each with {_count(plan.run, 'term')} side by side"
    else:
        taken = f"{lanes.count} lanes share an output and take {_count(plan.run, 'term')} in turn"
    chunk = f", in chunks of {lanes.chunk} terms that are added up from +0" if lanes.chunk else ""
    total = (", totals starting at +0" if lanes.chunks_from_zero else ", totals starting at the first") if chunk else ""
    yield f"{taken}{chunk}{total}."
    if lanes.count > 1:
        halves = ", ".join(str(lanes.count >> i) for i in range(1, lanes.count.bit_length()))
        forward = f"one after the other{', from +0' if lanes.lanes_from_zero else ''}"
        how = f"as a butterfly: lane l takes lane l + h for h = {halves}" if lanes.merge == "butterfly" else forward
        yield f"Then the sums of lanes are joined {how}."


MERGES = {
    "float32": "Their sums are added in float32, one after the other, from the first one on",
    "output": "Their sums are rounded to {out}, then added in float32, one after the other",
    "in_place": "Their sums are added in float32, one after the other, and the running sum is rounded to {out}, "
    "each time, from the first slice on",
    "from_both_ends": "The sum starts at the last slice; then slices are added in order, each of the first half "
    "together with one of the second",
}  # fmt: skip


def _slices(schedule: Schedule, plan: SchedulePlan, fmt: Format | None) -> Iterator[str]:
    """Yield sentences on the slices of K and how their sums are merged.

    schedule: the schedule. plan: its slices for one number of terms. fmt: format of the result, or None for float32.
    """
    slices = plan.slices
    wanted = schedule.slicing.count
    if len(slices) == 1:
        if wanted > 1:
            yield f"K is too short for {wanted} slices: there is one."
        return
    bounds = [
        " and ".join(str(extent_of(run)) for run in of.runs[:2]) + " ..." * (len(of.runs) > 2) or "none"
        for of in slices
    ]
    listed = ", ".join(bounds if len(bounds) <= FEW else [*bounds[:2], "...", bounds[-1]])
    fewer = f" ({wanted} were asked for)" if wanted != len(slices) else ""
    yield f"K is cut into {len(slices)} slices{fewer}: terms {listed}."
    merge = schedule.slicing.merge
    yield f"{MERGES[merge].format(out=f'the output, {in_words(fmt or FP32)}')}."
    if merge in ("output", "in_place") and (fmt or FP32) == FP32:
        yield "The output is float32, so nothing is rounded there; pass out_fmt to see it for another."


def _lost(plan: SchedulePlan) -> Iterator[str]:
    """Yield a sentence on the terms of K that `plan` leaves out of the sum, if there are any."""
    if plan.lost.terms:
        terms = "The last term" if plan.lost.terms == 1 else f"The last {plan.lost.terms} terms"
        lost = extent_of(plan.lost)
        verb = "is" if plan.lost.terms == 1 else "are"
        yield f"{terms}, {lost}, {verb} lost: no slice reaches them, and cuBLAS leaves them out."


def _result(schedule: Schedule, unit: MatrixUnit, fmt: Format | None) -> Iterator[str]:
    """Yield sentences on the epilogue of `schedule` and the rounding of the result.

    unit: the matrix unit. fmt: format of the result, or None for float32.
    """
    order = schedule.epilogue
    addend = "beta * C" if order.source == "first" else "bias" if order.fused_bias else "0"
    takes_scales = not schedule.block_scaled and not unit.scale
    takes_scales &= unit.a.fmt.bits <= 8 or schedule.library != "cuBLAS"
    factors = FACTORS[order.scale_order] if takes_scales else "alpha, sum"
    steps = [f"fma({factors}, {addend})"]
    if addend != "bias":
        steps += ["plus bias"]
    if order.source != "first":
        steps += ["rounded to the output"] if order.source == "after_cast" else []
        steps += ["fma(beta, C, y) where there is a C"]
    starts = "" if order.adds_c else " A C without beta is what the sum starts at instead."
    yield f"Epilogue, each operation rounded once to float32: {'; '.join(steps)}.{starts}"
    if fmt is not None and fmt != FP32:
        yield f"The result is rounded to {in_words(fmt)}, to nearest even{', and saturates' if fmt.bits <= 8 else ''}."


def _count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if it is not 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
