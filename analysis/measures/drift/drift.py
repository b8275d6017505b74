"""`fp.analysis.drift`: measures the error of sums against their number of terms, with the bounds of theory."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.drift.bounds import Chance, accumulator_bounds, matrix_unit_bounds
from fpsim.analysis.measures.drift.report import DriftReport, DriftRow
from fpsim.analysis.measures.drift.terms import Terms, TermSource, checked_operand, terms_of
from fpsim.analysis.measures.iterables import as_list
from fpsim.analysis.tensors.chunks import Floats
from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.deprecation import renamed_arguments
from fpsim.errors import is_integer, require_integer, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32, FP64, Format
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.products.reduce import dot
from fpsim.products.reduce import sum as sum_of
from fpsim.schedules.plan import plan_of
from fpsim.schedules.schedule import FLAT, Chain, Lanes, Schedule
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, Pairwise

MOST_TERMS = 1 << 27  # terms of one operand: 1 GiB in float64
GROUP = 16  # trials in one call of matmul, whose diagonal has their sums
SCALE_OF_ONE = {"ue8m0": 127, "ue4m3": 0x38}
KINDS = (
    "a unit or its name, fp.Sequential, FusedMultiplyAdd, Pairwise, Chunked or Exact, or a pair (unit, schedule) or "
    "(unit, terms between promotions)"
)


class DriftAdder(NamedTuple):
    """The arithmetic that adds the terms of a sum.

    Attributes:
      name: name in reports.
      accumulator: the accumulator; None for a matrix unit.
      unit: the matrix unit; None for an accumulator.
      schedule: the order of the matrix unit's additions; FLAT, without effect, for an accumulator.
    """

    name: str
    accumulator: Accumulator | None
    unit: MatrixUnit | None
    schedule: Schedule


@renamed_arguments(format="fmt")
def drift(
    a: str | npt.ArrayLike = "normal",
    b: str | npt.ArrayLike | None = None,
    *,
    accumulators: Iterable[Any] | Accumulator | MatrixUnit | str,
    lengths: Sequence[int] | int,
    trials: int = 32,
    seed: int = 0,
    fmt: FormatLike | None = None,
    confidence: float = 0.95,
    factor: float | None = None,
) -> DriftReport:
    """Measure the error of sums with different numbers of terms, and compute the bounds that theory predicts.

    Operands are rounded before they are added, so that all of the error comes from the additions. Their format is the
    input format of the matrix unit (float32 for FP64), or `fmt` for other accumulators. They are rounded to nearest
    even, and values beyond the format's range become its largest value. A shorter sum of a trial adds the first terms
    of the longest sum of this trial; trials are independent.

    Args:
      a, b: the terms of sum a[k] * b[k], or of sum a[k] if b is None: "normal" (N(0, 1)), "half_normal" (|N(0, 1)|),
        "uniform" (U[0, 1)), "lognormal" (exp of N(0, 1)), "cauchy", or an array (trials, K) of floats, one sum a row.
      accumulators: one or several: a matrix unit or its name; `fp.Sequential`, `fp.FusedMultiplyAdd`, `fp.Pairwise`,
        `fp.Chunked`, `fp.Exact`; a pair (unit, schedule), with a schedule of `fp.schedules`; a pair (unit, n), with a
        promotion every n terms. Limits of libraries on shapes do not apply; block scales are 1.
      lengths: the numbers of terms of a sum, positive integers.
      trials: number of sums of each length; for arrays, their number of rows replaces it.
      seed: seed of the draws, which also depend on the trial, the operand and the index.
      fmt: the format of the operands of accumulators that are not matrix units; None is float32.
      confidence: probability with which the probabilistic bound holds for one sum.
      factor: the lambda of the probabilistic bound, which for n roundings of unit roundoff u is about lambda sqrt(n) u
        times the sum of |terms|; None computes it from `confidence`.

    Returns:
      A DriftReport with a row for each accumulator and length; `DriftRow` defines the columns.

    Raises:
      ValueError: an unknown distribution, unit or format; lengths, trials or a seed out of range; arrays of another
        shape, with too few terms, or with terms of Inf or NaN.
      TypeError: an accumulator of another type, or an array that does not hold floats.

    Source: docs/drift.md derives the bounds and says when they hold.

    Example:
      >>> import fpsim as fp
      >>> adders = [fp.Sequential(fp.BF16), fp.Sequential(fp.BF16, rounding="stochastic", seed=0)]
      >>> report = fp.analysis.drift("uniform", accumulators=adders, lengths=[100, 1000, 10000], trials=8)
      >>> for row in report.rows:
      ...     print(row.length, f"{row.mean_relative:.3f}", row.stagnated)
      100 0.007 0.125
      1000 0.489 1.0
      10000 0.949 1.0
      100 0.013 0.125
      1000 0.039 0.875
      10000 0.047 1.0
    """
    adders = _checked_accumulators(accumulators)
    sizes = _checked_lengths(lengths)
    require_integer("trials", trials, 1)
    require_integer("seed", seed, 0)
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise ValueError(f"confidence must be a number between 0 and 1, such as 0.95; got {shown(confidence)}.")
    if factor is not None and (isinstance(factor, bool) or not isinstance(factor, Real) or not factor > 0):
        raise ValueError(f"factor must be a positive number, the lambda of the bounds, or None; got {shown(factor)}.")
    chance = Chance(float(confidence), None if factor is None else float(factor))
    left = checked_operand(a, "a", sizes[-1], None)
    rows = None if isinstance(left, str) else len(left)
    right = None if b is None else checked_operand(b, "b", sizes[-1], rows)
    if rows is None and right is not None and not isinstance(right, str):
        rows = len(right)
    source = TermSource(left, right, rows or int(trials), sizes[-1], int(seed))
    if source.trials * source.longest > MOST_TERMS:
        raise ValueError(
            f"drift holds at most {MOST_TERMS} terms, trials times the longest length; got {source.trials} times "
            f"{source.longest}. Merge reports of fewer trials, with other seeds."
        )
    operand = _operand_format(fmt, adders)
    terms: dict[tuple[Any, ...], Terms] = {}
    drift_rows = []
    for adder in adders:
        formats = (operand, operand) if adder.unit is None else (_input(adder.unit.a.fmt), _input(adder.unit.b.fmt))
        key = (*formats, adder.unit is None)
        if key not in terms:
            terms[key] = terms_of(source, formats, plain=adder.unit is None)
        drift_rows += [_row(adder, terms[key], length, source, chance) for length in sizes]
    words = tuple(x if isinstance(x, str) else None if x is None else "an array" for x in (left, right))
    return DriftReport(tuple(drift_rows), words[0] or "", words[1], operand.name, chance, (int(seed),))


def _input(fmt: Format) -> Format:
    """Return the format to which operands are rounded: `fmt`, or FP32 for FP64, so that float64 holds every product."""
    return FP32 if fmt == FP64 else fmt


def _row(adder: DriftAdder, terms: Terms, length: int, source: TermSource, chance: Chance) -> DriftRow:
    """Return the report's row for sums of `length` terms by one accumulator, over all trials.

    adder: the accumulator or matrix unit. terms: the rounded operands. source: the distributions or arrays from which
    they were drawn. chance: probability of the probabilistic bound.
    """
    last, why = _last_addition(adder, length)
    sums, without = _sums(adder, terms, length, last)
    high, low = terms.exact_sums(length)
    if adder.accumulator is not None:
        bounds = accumulator_bounds(adder.accumulator, terms, length, chance, high)
    else:
        assert adder.unit is not None
        bounds = matrix_unit_bounds(adder.unit, adder.schedule, terms, length, chance, source.has_random_signs)
    unchanged = None if without is None else (without == sums) | (np.isnan(without) & np.isnan(sums))
    with np.errstate(invalid="ignore"):
        error = (sums - high) - low
    return DriftRow.of(adder.name, length, error, np.abs(high), bounds, unchanged, why)


def _sums(adder: DriftAdder, terms: Terms, length: int, last: Array | None) -> tuple[Floats, Floats | None]:
    """Return two float64 arrays (trials,): sums of `length` terms, and sums with zeros in place of the terms `last`.

    adder: the accumulator or matrix unit. terms: the operands. last: indices of the terms that the last addition adds;
    None returns None as the second result.
    """
    a, b = terms.a[:, :length], None if terms.b is None else terms.b[:, :length]
    if adder.unit is not None:
        assert b is not None
        return _unit_sums(adder, a, b, last)
    assert adder.accumulator is not None
    return _accumulated(adder.accumulator, a, b), (
        None if last is None else _accumulated(adder.accumulator, _without(a, last), b)
    )


def _without(x: Array, terms: Array) -> Array:
    """Return a copy of `x` with zeros in the columns `terms`."""
    copy = x.copy()
    copy[:, terms] = 0
    return copy


def _accumulated(accumulator: Accumulator, a: Array, b: Array | None) -> Floats:
    """Return each trial's sum of a, or of a * b, (trials, terms), as an accumulator computes it: (trials,) float64."""
    if b is None:
        sums = sum_of(np.ascontiguousarray(a), accumulate=accumulator, axis=-1)
    else:
        sums = dot(np.ascontiguousarray(a), np.ascontiguousarray(b), accumulate=accumulator)
    if sums.dtype.kind in "u":
        sums = decode(sums, accumulator.result_format, np.float64)
    return np.asarray(sums, np.float64)


def _unit_sums(adder: DriftAdder, a: Array, b: Array, last: Array | None) -> tuple[Floats, Floats | None]:
    """Return two arrays (trials,): a matrix unit's sums of a * b, and its sums with zeros in b for the terms `last`.

    adder: the matrix unit and its schedule. last: indices of terms; None returns None as the second result.

    The sums are diagonals of small matrix products of a and b, (trials, length). Both kinds of sums come from columns
    of one product, which takes hardly longer than a product for one kind.
    """
    unit = adder.unit
    assert unit is not None
    sides = [b] if last is None else [b, _without(b, last)]
    missing = -a.shape[1] % unit.block if unit.block else 0  # zeros fill the last block that shares a scale
    if missing:
        a, *sides = (np.pad(x, ((0, 0), (0, missing))) for x in (a, *sides))
    left, right = _as_codes(a, unit.a.carrier), [_as_codes(x, unit.b.carrier) for x in sides]
    sums = np.empty((len(sides), len(a)))
    for first in range(0, len(a), GROUP):
        group = slice(first, first + GROUP)
        x, y = left[group], np.ascontiguousarray(np.concatenate([side[group] for side in right]).T)
        scales: dict[str, Any] = {}
        if unit.scale:
            (rows, terms), columns = x.shape, y.shape[1]
            one, blocks = SCALE_OF_ONE[unit.scale], terms // unit.block
            scales = {
                "scale_a": np.full((rows, blocks), one, np.uint8),
                "scale_b": np.full((blocks, columns), one, np.uint8),
            }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # warnings on shapes that libraries would not use
            schedule = None if adder.schedule is FLAT else adder.schedule
            product = matmul(x, y, accumulate=unit, schedule=schedule, strict=False, **scales)
        for i in range(len(sides)):
            sums[i, group] = np.diagonal(product, i * len(x)).astype(np.float64)
    return sums[0], None if last is None else sums[1]


def _as_codes(x: Array, fmt: Format) -> Array:
    """Return x rounded to codes of the format `fmt`; for FP64, x as float64."""
    return x.astype(np.float64) if fmt == FP64 else encode(x, fmt)


def _last_addition(adder: DriftAdder, length: int) -> tuple[Array | None, str]:
    """Return (indices of the terms that the last addition of a sum adds, ""), or (None, why there is no last one).

    adder: the accumulator or matrix unit. length: number of terms of the sum.
    """
    start = length - 1  # Sequential, FusedMultiplyAdd
    if isinstance(adder.accumulator, Exact):
        return None, "Exact adds all terms at once"
    if isinstance(adder.accumulator, Pairwise):
        start = 1 << (length - 1).bit_length() >> 1 if length > 1 else 0
    elif isinstance(adder.accumulator, Chunked):
        start = (length - 1) // adder.accumulator.chunk * adder.accumulator.chunk
    if adder.unit is None:
        return np.arange(start, length), ""
    if isinstance(adder.schedule.sums, Lanes):
        return None, f"the lanes of {adder.schedule} are merged in a tree"
    plan = plan_of(adder.schedule, adder.unit, length)
    if len(plan.slices) > 1 and adder.schedule.slicing.merge == "from_both_ends":
        return None, f"the slices of {adder.schedule} are merged from both ends"
    last = plan.slices[-1]
    terms = np.concatenate([np.arange(run.start, run.stop) for run in last.runs])
    if len(plan.slices) == 1:
        block = last.blocks[-1]
        step = block if plan.promoted else [spans for spans in last.steps(plan.step) if spans][-1][-1]
        terms = terms[step.start : step.stop]
    return terms, ""


def _checked_accumulators(accumulators: Any) -> list[DriftAdder]:
    """Return the argument `accumulators` of `drift` as a list of DriftAdders with different names.

    accumulators: one item or an iterable of items: a matrix unit or its name, an accumulator such as fp.Sequential, or
    a pair (unit, schedule) or (unit, terms between promotions). Of items with one name, the last is returned.

    Raises:
      ValueError: there are no accumulators, or a unit is unknown or adds integers.
      TypeError: an accumulator has a type that `drift` does not accept.
    """
    single = (str, Accumulator, MatrixUnit)
    pair = isinstance(accumulators, tuple) and len(accumulators) == 2 and _is_rest_of_pair(accumulators[1])
    if pair or isinstance(accumulators, single):
        accumulators = [accumulators]
    items = as_list(accumulators)
    if items is None:
        raise TypeError(f"accumulators must be one or several of: {KINDS}; got {shown(accumulators)}.")
    adders = {adder.name: adder for adder in map(_adder, items)}
    if not adders:
        raise ValueError(f"accumulators must name at least one: {KINDS}; got none.")
    return list(adders.values())


def _is_rest_of_pair(x: object) -> bool:
    """Return whether x may follow a matrix unit in a pair (unit, x): a schedule, or a number of terms as an integer."""
    return isinstance(x, Schedule) or is_integer(x)


def _adder(x: Any) -> DriftAdder:
    """Return x, one item of the argument `accumulators` of `drift`, as a DriftAdder.

    x is an accumulator, a matrix unit or its name, or a pair (unit, schedule) or (unit, terms between promotions).
    Raises TypeError for other objects. Raises ValueError for an unknown unit, one that adds integers, and an interval
    of promotions that is no positive multiple of the terms of the unit's instruction.
    """
    if isinstance(x, Accumulator):
        return DriftAdder(repr(x), x, None, FLAT)
    if isinstance(x, (str, MatrixUnit)):
        unit = _float_unit(x)
        return DriftAdder(unit.name, None, unit, FLAT)
    if isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], (str, MatrixUnit)) and _is_rest_of_pair(x[1]):
        unit = _float_unit(x[0])
        if isinstance(x[1], Schedule):
            return DriftAdder(f"{unit.name}, {x[1]}", None, unit, x[1])
        require_integer("terms between promotions", x[1], 1)
        if x[1] % unit.terms:
            raise ValueError(
                f"terms between promotions must be a multiple of the {unit.terms} that {unit.name} adds in a step; "
                f"got {x[1]}."
            )
        name = f"{unit.name}, promote={int(x[1])}"
        return DriftAdder(name, None, unit, Schedule(f"promote={int(x[1])}", sums=Chain(int(x[1]))))
    raise TypeError(f"an accumulator must be {KINDS}; got {shown(x)}.")


def _float_unit(x: str | MatrixUnit) -> MatrixUnit:
    """Return the matrix unit, from itself or its name; raise ValueError unless its elements are floats."""
    unit = find_unit(x)
    elements: list[Any] = [unit.a.fmt, unit.b.fmt, unit.d.fmt]
    if not all(isinstance(fmt, Format) for fmt in elements):
        raise ValueError(f"accumulators must add floats, as sums of integers are exact; got {unit.name}.")
    return unit


def _checked_lengths(lengths: Any) -> list[int]:
    """Return the numbers of terms, one integer or an iterable of them, as a list in ascending order, each once.

    Raises TypeError or ValueError unless they are positive integers.
    """
    numbers = [lengths] if is_integer(lengths) else as_list(lengths)
    if not numbers or any(not is_integer(n) or n < 1 for n in numbers):
        kind = TypeError if numbers is None else ValueError
        raise kind(f"lengths must be positive integers, the numbers of terms; got {shown(lengths)}.")
    return sorted({int(n) for n in numbers})


def _operand_format(fmt: FormatLike | None, adders: list[DriftAdder]) -> Format:
    """Return the format of the operands of accumulators that are not matrix units: `fmt`, or float32 for None.

    Raises ValueError if `fmt` is a format that float32 cannot hold, or is given though all `adders` are matrix units.
    """
    if fmt is None:
        return FP32
    operand = find_format(fmt)
    if not FP32.holds(operand):
        raise ValueError(f"fmt must be a format whose values float32 holds; got {operand}.")
    if all(adder.unit is not None for adder in adders):
        raise ValueError(
            "fmt is for accumulators other than matrix units, which have their own input formats; got "
            f"{operand}. Leave it out."
        )
    return operand
