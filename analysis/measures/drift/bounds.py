"""Bounds of the error of a sum: some always hold, others hold with a stated probability.

A bound limits |sum - exact sum|, one number for each trial. docs/drift.md derives all bounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fpsim.analysis.measures.drift.terms import Terms
from fpsim.analysis.tensors.chunks import Floats
from fpsim.formats.named import FP32, Format
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.schedules.plan import SchedulePlan, Slice, Span, plan_of
from fpsim.schedules.schedule import Lanes, Schedule
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise

SLACK = 1 + 2.0**-30  # covers the rounding errors of the bounds themselves, which are computed in float64

ROUNDING = (
    Rule.EXACT, Rule.FLUSHED_TREE, Rule.REVERSED_CHAIN, Rule.TWO_CHAINS, Rule.ODD_PAIR, Rule.FUSED_PAIR,
)  # fmt: skip
ALIGNING = (Rule.FUSED, Rule.SCALED, Rule.GROUPED, Rule.TWO_PASSES, Rule.SEPARATE, Rule.EVEN_ODD)
BIASED = (Rounding.TOWARD_ZERO, Rounding.UP, Rounding.DOWN)


class Bounds(NamedTuple):
    """Bounds of |sum - exact sum| of each trial, (trials,).

    Attributes:
      deterministic: bounds that always hold; NaN if none is known.
      probabilistic: bounds that hold with the requested probability; NaN if none is known.
      reason: why bounds are NaN; "" if they are known.
    """

    deterministic: Floats
    probabilistic: Floats
    reason: str = ""


class Roundings(NamedTuple):
    """The roundings to one format on the longest path of a term through the additions of a sum.

    Attributes:
      number: number of roundings on the path.
      unit: largest relative error of one rounding to a normal value.
      absolute: largest absolute error of one rounding in the subnormal range.
      total: number of roundings to the format in the whole sum.
    """

    number: int
    unit: float
    absolute: float
    total: int


def unit_roundoff(fmt: Format, rounding: Rounding) -> float:
    """Return the largest relative error of rounding a normal value: 2**-fmt.precision to nearest, else twice that."""
    return 2.0 ** (-fmt.precision if rounding.is_nearest else 1 - fmt.precision)


def smallest_step(fmt: Format, rounding: Rounding, subnormals: str) -> float:
    """Return the largest absolute error of one rounding of a value below the format's smallest normal value.

    subnormals: "flush" if results below the smallest normal value become 0, else "keep".
    """
    if subnormals == "flush" or not fmt.subnormals:
        return fmt.smallest_normal
    return fmt.smallest_subnormal * (0.5 if rounding.is_nearest else 1.0)


class Chance(NamedTuple):
    """The lambda of a probabilistic bound, given itself or by the probability with which the bound holds.

    For n roundings of unit roundoff u the bound is about lambda sqrt(n) u, relative to the sum of |terms|. confidence:
    the probability. factor: lambda; None to compute it from `confidence`.
    """

    confidence: float
    factor: float | None = None

    def factor_of(self, events: int, unit: float = 0.0) -> float:
        """Return `factor`, or if None the lambda with 2 * events * exp(-lambda^2 (1 - unit)^2 / 2) = 1 - confidence.

        events: number of inequalities that must all hold, such as one for each term. unit: largest relative error of
        one rounding.
        """
        if self.factor is not None:
            return self.factor
        return math.sqrt(2 * math.log(2 * events / (1 - self.confidence))) / (1 - unit)


def accumulator_bounds(accumulator: Accumulator, terms: Terms, length: int, chance: Chance, high: Floats) -> Bounds:
    """Return the error bounds of an accumulator's sums of the first `length` terms of each trial.

    terms: operands of all trials. chance: probability of probabilistic bounds. high: (trials,) exact sums in float64.
    """
    sums = terms.magnitude_sums(length)
    if isinstance(accumulator, Exact):  # one rounding of the exact sum
        bound = unit_roundoff(accumulator.fmt, accumulator.rounding) * np.abs(high)
        bound += smallest_step(accumulator.fmt, accumulator.rounding, accumulator.subnormals)
        bounds = Bounds(bound * SLACK, bound * SLACK)
    else:
        bits = accumulator.random_bits if accumulator.rounding is Rounding.STOCHASTIC else None
        paths = _paths(accumulator, length, terms.b is not None)
        bounds = _path_bounds(paths, sums, length, chance, bits)
        if accumulator.rounding in BIASED:
            word = accumulator.rounding.name.lower()
            reason = f"rounding {word} errs to one side, so that its errors have no mean of 0"
            bounds = Bounds(bounds.deterministic, np.full_like(sums, math.nan), reason)
    return _without_saturation(accumulator, bounds, sums)


def _paths(accumulator: Accumulator, length: int, products: bool) -> list[Roundings]:
    """Count the roundings on the longest path from a term to a sum of `length` terms, for each format of partial sums.

    Return a Roundings (number and size of the roundings to one format) for each of these formats. products: whether
    terms are products, which are rounded unless the accumulator fuses them.
    """

    def kind(fmt: Format, count: int, total: int) -> Roundings:
        step = smallest_step(fmt, accumulator.rounding, accumulator.subnormals)
        return Roundings(count, unit_roundoff(fmt, accumulator.rounding), step, total)

    if isinstance(accumulator, Pairwise):
        return [kind(accumulator.fmt, 1 + math.ceil(math.log2(length)), 2 * length)]
    rounded = int(products and not isinstance(accumulator, FusedMultiplyAdd))  # products, in addition to sums
    if isinstance(accumulator, Chunked):
        runs = -(-length // accumulator.chunk)
        inner = kind(accumulator.fmt, min(accumulator.chunk, length) + rounded, (1 + rounded) * length)
        return [inner, kind(accumulator.outer, runs, runs)]
    return [kind(accumulator.fmt, length + rounded, (1 + rounded) * length)]


def _path_bounds(paths: list[Roundings], sums: Floats, events: int, chance: Chance, bits: int | None) -> Bounds:
    """Return Higham and Mary's error bounds, from the roundings on the longest path of a term to the sum.

    With n roundings of unit roundoff u they are ((1 + u)^n - 1) sums, and with the requested probability about
    (exp(lambda sqrt(n) u) - 1) sums; errors in the subnormal range are added. sums: (trials,) sums of |terms|. events:
    number of terms, whose inequalities must all hold for a probabilistic bound. chance: probability of the
    probabilistic bounds. bits: random bits of stochastic rounding, or None for other roundings.
    """
    growth = sum(path.number * math.log1p(path.unit) for path in paths)
    widest = max(path.unit for path in paths)
    if widest >= 1:
        nothing = np.full_like(sums, math.nan)
        return Bounds(nothing, nothing, "a format with one bit of precision has no relative bound")
    factor = chance.factor_of(events, widest)
    spread = factor * math.sqrt(sum(path.number * path.unit**2 for path in paths))
    drift = sum(path.number * path.unit**2 / (1 - path.unit) for path in paths)
    if bits is not None:  # with so few random bits the probability of rounding up has an error of up to 2^-bits
        drift += sum(path.number * path.unit for path in paths) * 2.0**-bits
    with np.errstate(over="ignore"):
        absolute = sum(path.total * path.absolute for path in paths)  # each of them grows with later roundings
        deterministic = (np.expm1(growth) * sums + np.exp(growth) * absolute) * SLACK
        probabilistic = (np.expm1(spread + drift) * sums + np.exp(spread + drift) * absolute) * SLACK
    return Bounds(deterministic, np.minimum(deterministic, probabilistic))


def _without_saturation(accumulator: Accumulator, bounds: Bounds, sums: Floats) -> Bounds:
    """Return the bounds, or NaN with a reason if a partial sum may saturate without becoming Inf or NaN.

    accumulator: the accumulator for which the bounds were computed. sums: (trials,) sums of |terms|.
    """
    formats = (accumulator.fmt, accumulator.outer) if isinstance(accumulator, Chunked) else (accumulator.fmt,)
    shows = accumulator.overflow == "nonfinite" and not any(map(accumulator.rounding.inward, (False, True)))
    if all(shows and (fmt.has_infinity or fmt.has_nan) for fmt in formats):
        return bounds  # a sum that overflowed is Inf or NaN
    beyond = sums + bounds.deterministic > min(fmt.max for fmt in formats)
    if not beyond.any():
        return bounds
    nothing = np.full_like(sums, math.nan)
    return Bounds(nothing, nothing, "a sum may reach the largest value and stay there")


def matrix_unit_bounds(
    unit: MatrixUnit, schedule: Schedule, terms: Terms, length: int, chance: Chance, random_signs: bool
) -> Bounds:  # fmt: skip
    """Return the error bounds of a matrix unit's sums of the first `length` terms under a schedule.

    terms: the operands. chance: probability of probabilistic bounds. random_signs: whether the products have
    independent random signs. If not, units that truncate aligned terms have no probabilistic bounds, as truncation is
    biased. All bounds are NaN if the schedule leaves out terms, or no bound is known for the unit's rule of addition.
    """
    plan = plan_of(schedule, unit, length)
    sums = terms.magnitude_sums(length)
    if plan.lost.terms:
        nothing = np.full_like(sums, math.nan)
        return Bounds(nothing, nothing, f"{schedule} leaves out the last {plan.lost.terms} terms")
    if isinstance(schedule.sums, Lanes):  # float32 fused multiply-adds: at most one rounding a term in any order
        path = Roundings(length, 2.0**-24, FP32.smallest_subnormal, length)
        return _path_bounds([path], sums, length, chance, None)
    if unit.rule in ROUNDING:
        return _rounding_unit_bounds(unit, plan, terms, length, chance)
    if unit.rule not in ALIGNING:
        nothing = np.full_like(sums, math.nan)
        return Bounds(nothing, nothing, f"no bound is known for units of the rule {unit.rule.name}")
    return _aligning_unit_bounds(unit, plan, terms, chance, random_signs)


def _rounding_unit_bounds(unit: MatrixUnit, plan: SchedulePlan, terms: Terms, length: int, chance: Chance) -> Bounds:
    """Return the error bounds of a matrix unit that rounds each addition, from the longest path of a term to the sum.

    plan: the schedule applied to `length` terms. chance: probability with which the probabilistic bounds hold.
    """
    flushes = unit.rule not in (Rule.EXACT, Rule.FUSED_PAIR)
    steps = max(sum(len(block) for block in part.steps(plan.step)) for part in plan.slices)
    joins = max(len(part.blocks) for part in plan.slices) + len(plan.slices)
    count = joins + {
        Rule.FLUSHED_TREE: steps + 1 + math.ceil(math.log2(unit.terms)), Rule.REVERSED_CHAIN: steps * unit.terms,
        Rule.TWO_CHAINS: steps + 1 + unit.terms // 2, Rule.ODD_PAIR: steps + 2, Rule.FUSED_PAIR: steps + 1,
    }.get(unit.rule, steps)  # fmt: skip
    step = FP32.smallest_normal if flushes else unit.d.fmt.smallest_subnormal
    sums = terms.magnitude_sums(length)
    precision = unit.d.fmt.precision - (unit.rounding == "odd")  # rounding to odd errs by up to a whole last place
    path = Roundings(count, 2.0**-precision, step, 3 * length)
    bounds = _path_bounds([path], sums, length, chance, None)
    if not flushes:
        return bounds
    assert terms.b is not None
    least = [
        FP32.smallest_normal if unit.rule is not Rule.FLUSHED_TREE else x.fmt.smallest_normal for x in (unit.a, unit.b)
    ]
    small = (np.abs(terms.a) < least[0]) | (np.abs(terms.b) < least[1])
    lost = np.where(small, terms.magnitudes, 0)[:, :length].sum(axis=1)  # subnormal operands count as 0
    return Bounds(bounds.deterministic + lost, bounds.probabilistic + lost)


class Cuts(NamedTuple):
    """The truncations and roundings in one matrix instruction of a unit that aligns its terms to one grid.

    Attributes:
      products: number of products that are truncated to the grid.
      others: number of truncations of sums and of the accumulator to the same grid.
      fraction_bits: the grid's spacing is 2^-fraction_bits times the largest power of two of the aligned terms.
      result: largest relative error of the result's rounding.
      absolute: largest absolute error of the result's rounding.
      inner: largest error of sums rounded inside the instruction, relative to its sum of |products|.
      apart: whether the accumulator is added after the alignment of products.
    """

    products: int
    others: float
    fraction_bits: int
    result: float
    absolute: float
    inner: float = 0.0
    apart: bool = False


class PartialSum(NamedTuple):
    """A partial sum of each trial, (trials,), and the bounds of its error.

    Attributes:
      value: exact partial sum.
      everything: largest |error|.
      linear: largest |error| without the truncations of products.
      random: sum of the squares of the largest errors that truncations of single products cause.
    """

    value: Floats
    everything: Floats
    linear: Floats
    random: Floats


def cuts_of(unit: MatrixUnit) -> Cuts:
    """Return the truncations and roundings that one instruction of a matrix unit makes by its `unit.rule`, a `Rule`."""
    fmt = unit.d.fmt
    bits, absolute = (min(unit.result_bits, 23), 2.0**-126 * 2.0 ** -min(unit.result_bits, 23))
    result = 2.0**-bits
    if unit.d.name == "f16":
        result, absolute = 2.0**-fmt.precision, fmt.smallest_subnormal / 2
    if unit.rule is Rule.TWO_PASSES:
        last = result if unit.d.name == "f16" else 2.0**-24
        return Cuts(unit.terms, 1, unit.fraction_bits, last, 3 * absolute, inner=2 * result, apart=True)
    if unit.rule is Rule.GROUPED:
        return Cuts(unit.terms // 16, 1, unit.fraction_bits, result, absolute)
    if unit.rule in (Rule.SEPARATE, Rule.EVEN_ODD):
        sums = 1 if unit.rule is Rule.SEPARATE else 3
        return Cuts(unit.terms, sums + 2.0**-8, unit.fraction_bits, 2.0**-24 + 2.0**-31, 2.0**-149)
    return Cuts(unit.terms, 1, unit.fraction_bits, result, absolute)


def _aligning_unit_bounds(
    unit: MatrixUnit, plan: SchedulePlan, terms: Terms, chance: Chance, random_signs: bool
) -> Bounds:  # fmt: skip
    """Return the error bounds of a unit that aligns and truncates its terms, instruction by instruction.

    plan: the schedule applied to the terms. chance: probability with which the probabilistic bounds hold. random_signs:
    whether the products have independent random signs; otherwise the probabilistic bounds are NaN.
    """
    powers = _aligning_powers(unit, terms)
    parts = [_slice_part(unit, plan, part, terms.products, powers) for part in plan.slices]
    total = _joined(parts) if len(parts) > 1 else parts[0]
    if not random_signs:
        reason = "cuts toward zero are biased, unless the signs of the products are known to be random"
        return Bounds(total.everything * SLACK, np.full_like(total.value, math.nan), reason)
    random = total.linear + chance.factor_of(1) * np.sqrt(total.random)
    return Bounds(total.everything * SLACK, np.minimum(total.everything, random) * SLACK)


def _aligning_powers(unit: MatrixUnit, terms: Terms) -> Floats:
    """Return 2^e of every product, (trials, K), with the exponent e by which the unit aligns it; 0 for products of 0.

    e is the sum of the operands' exponents, where subnormals have the exponent of the smallest normal value. It is 0
    for units of `Rule.GROUPED`, which align by block scales alone, here 1. Results are cached in `terms`.
    """
    assert terms.b is not None
    grouped = unit.rule is Rule.GROUPED
    formats = tuple(unit.operand_format(element) for element in (unit.a, unit.b))
    if (grouped, *formats) not in terms.aligned:
        result: Floats | float = 1.0  # grouped products are aligned by their scales alone, which are 1
        if not grouped:
            pairs = zip((terms.a, terms.b), formats, strict=True)
            exponents = [np.maximum(np.frexp(x)[1] - 1, fmt.min_exponent) for x, fmt in pairs]
            result = np.ldexp(1.0, exponents[0] + exponents[1])
        terms.aligned[(grouped, *formats)] = np.where(terms.products != 0, result, 0.0)
    return terms.aligned[(grouped, *formats)]


def _slice_part(unit: MatrixUnit, plan: SchedulePlan, part: Slice, products: Floats, powers: Floats) -> PartialSum:
    """Return the PartialSum of a slice of K: its exact sum in each trial, and error bounds.

    The slice, `part`, is one block of terms, or several blocks whose sums are added in float32. plan: the schedule to
    which the slice belongs. products, powers: (trials, K) exact products, and the powers of two by which `unit` aligns
    them.
    """
    runs = [slice(run.start, run.stop) for run in part.runs]
    terms = runs[0] if len(runs) == 1 else np.concatenate([np.arange(run.start, run.stop) for run in runs])
    p, e = products[:, terms], powers[:, terms]
    blocks = [part for alike in _alike(part, plan.step) for part in _block_parts(unit, alike, p, e)]
    if not blocks:  # a slice without terms
        return PartialSum(*(np.zeros(len(products)) for _ in PartialSum._fields))
    return _joined(blocks) if plan.promoted else blocks[0]


def _alike(part: Slice, step: int) -> list[list[tuple[Span, ...]]]:
    """Divide the blocks of a slice of K into groups of adjacent blocks with equally many instructions.

    A block's terms are added to one accumulator, which starts from 0. The block is given as a tuple with a span for
    each of its instructions: a range of positions among the slice's terms. part: the slice. step: number of terms of an
    instruction.
    """
    groups: list[list[tuple[Span, ...]]] = []
    for spans in filter(None, part.steps(step)):
        last = groups[-1][-1] if groups else ()
        if last and len(last) == len(spans) and last[-1].stop == spans[0].start:
            groups[-1].append(spans)
        else:
            groups.append([spans])
    return groups


def _block_parts(
    unit: MatrixUnit, blocks: list[tuple[Span, ...]], products: Floats, powers: Floats
) -> list[PartialSum]:
    """Return for each of `blocks` a PartialSum: its exact sum in each trial, and error bounds.

    blocks: one of the groups of adjacent blocks that `_alike` returns for a slice of K. products, powers: (trials,
    terms of the slice), the exact products, and the powers of two by which `unit` aligns them.
    """
    cuts = cuts_of(unit)
    first, last = blocks[0][0].start, blocks[-1][-1].stop
    starts = [span.start - first for spans in blocks for span in spans]
    shape = len(products), len(blocks), len(blocks[0])  # of the arrays below: (trials, blocks, instructions)
    inside = products[:, first:last]
    magnitude = np.add.reduceat(np.abs(inside), starts, axis=1).reshape(shape)
    after = np.cumsum(np.add.reduceat(inside, starts, axis=1).reshape(shape), axis=2)  # the sum after each step
    before = np.concatenate([np.zeros((*shape[:2], 1)), after[:, :, :-1]], axis=2)
    largest = np.maximum.reduceat(powers[:, first:last], starts, axis=1).reshape(shape)
    largest = np.maximum(largest, 2.0**unit.floor_exponent)
    grid = np.maximum(largest, magnitude if cuts.apart else np.abs(before)) * 2.0**-cuts.fraction_bits
    rounded = (1 + cuts.result) * (1 + cuts.inner)
    others = rounded * (cuts.others * grid + cuts.inner * magnitude) + cuts.result * np.abs(after) + cuts.absolute
    of_products = rounded * grid
    # later instructions amplify an error of the accumulator by rounding it, and by the coarser grid that it may cause
    ratio = (1 + cuts.result) * (1 + (cuts.products + cuts.others) * 2.0**-cuts.fraction_bits)
    with np.errstate(over="ignore"):
        weights = np.exp(math.log(ratio) * np.arange(shape[2] - 1, -1, -1.0))
        linear = (others * weights).sum(axis=2)
        everything = linear + cuts.products * (of_products * weights).sum(axis=2)
        random = cuts.products * ((of_products * weights) ** 2).sum(axis=2)
    return [PartialSum(*columns) for columns in zip(after[:, :, -1].T, everything.T, linear.T, random.T, strict=True)]


def _joined(parts: list[PartialSum]) -> PartialSum:
    """Return the sum of partial sums, with error bounds for adding them in float32 in any order, to nearest even."""
    value, everything, linear, random = (np.sum(column, axis=0) for column in zip(*parts, strict=True))
    count = len(parts)
    growth = math.exp(count * math.log1p(2.0**-24))
    added = (growth - 1) * (np.sum([np.abs(part.value) for part in parts], axis=0) + everything)
    added += count * FP32.smallest_subnormal
    return PartialSum(value, everything + added, linear + added, random)
