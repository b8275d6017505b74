"""Casts to and from table formats, which list the value of each code: the kernels that run in sequence (stages).

The intervals of floats that become one code are computed exactly, by fractions. Imports numba.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts import pipelines
from fpsim.casts.loops import random_words
from fpsim.casts.table_loops import table_kernel
from fpsim.formats.cast_options import TableOptions, cast_options
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64
from fpsim.formats.policies import overflow_outcome
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import TableFormat
from fpsim.runtime.pipeline import Stage
from fpsim.runtime.processor import ieee_arithmetic

INDEX_BITS = range(9, 17)  # upper bits of a pattern by which its first interval is looked up: the fewest that suffice


class TablePlan(NamedTuple):
    """The intervals of ordered float bits that have one code each, as the arguments of `table_kernel`.

    Ordered bits are float bits as integers in the order of the values; intervals are numbered in ascending order.
    codes: the code of each interval, in the format's storage dtype. last: its largest ordered bits, uint32 or uint64.
    shift: the number of bits by which ordered bits are shifted to index `first`. first: int32, for each value of
    ordered bits >> shift, the interval of the smallest float with that value. steps: how many intervals after that one
    the kernel has to check at most.
    """

    first: Array
    last: Array
    codes: Array
    shift: int
    steps: int


class _Level(NamedTuple):
    """A possible result of a cast: its exact value, from which midpoints between results are computed, and its code.

    Inf and NaN, as results of overflow, have the finite value that would follow the largest one (`_beyond`).
    """

    value: Fraction
    code: int


def encoding(source: Format, options: TableOptions) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) that round numbers to codes of the table format options.fmt.

    source: the format of the numbers: FP32 or FP64 for float bits, or another format for its codes. options: those of
    the cast.
    """
    width = 64 if source == FP64 else 32
    before = () if source.bits == width and source in (FP32, FP64) else pipelines.decoding(source, FP32, source.storage)
    if options.rounding is Rounding.STOCHASTIC:
        return (*before, _stochastic_stage(width, options))
    plan = table_plan(options.fmt, width, options.rounding, options.overflow)
    loop = table_kernel(width)

    def run(bits: Array, codes: Array, first: int) -> None:
        loop(bits, codes, *plan)

    return (*before, Stage(run, options.fmt.storage))


@lru_cache(maxsize=256)
def decoding(fmt: TableFormat, target: Format, codes: np.dtype[Any]) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) that convert codes of the table format `fmt` to `target`.

    codes: the dtype of the arrays of codes. target: the format of the results, which must hold the values of `fmt`:
    float bits for FP32 or FP64, else codes.
    """
    is_single = all(_float_below(abs(Fraction(value)), 32)[1] for value, _ in fmt.finite)  # float32 holds every value
    middle = target if target in (FP32, FP64) else FP32 if is_single else FP64
    stage = pipelines.look_up_stage(value_words(fmt, middle.bits))
    return (stage,) if target == middle else (stage, *pipelines.encoding(middle, cast_options(target)))


def quantizing(source: Format, target: Format, options: TableOptions) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) that round numbers to values of the table options.fmt.

    source, target: the formats of the bits before and after, FP32 or FP64 for float bits, others for codes. options:
    those of the cast.
    """
    return (*encoding(source, options), *decoding(options.fmt, target, options.fmt.storage))


@lru_cache(maxsize=256)
def value_words(fmt: TableFormat, width: int) -> Array:
    """Return the float bits of the values of all codes of the table format `fmt`, as an unsigned array indexed by code.

    width: 32 or 64; floats of that width must hold the values.
    """
    bits = fmt.table().view(np.uint64).copy()
    bits[np.isnan(fmt.table())] = 0x7FF8000000000000
    return pipelines.narrowed(bits, width)


class _Neighbours(NamedTuple):
    """The distinct results of a cast in ascending order, and the intervals between neighbouring ones.

    values: float64 results; codes: their codes. low, high, unit: int64, one element for each interval i, which reaches
    from values[i] = low[i] * 2**unit[i] to values[i + 1] = high[i] * 2**unit[i].
    """

    values: Array
    codes: Array
    low: Array
    high: Array
    unit: Array


@lru_cache(maxsize=256)
def _neighbours(fmt: TableFormat, overflow: str) -> _Neighbours:
    """Return all possible results of stochastic rounding to the table format `fmt`, with the intervals between them.

    overflow: the result for values beyond the largest finite one: "infinity", "nan" or "max". Raise a ValueError if two
    neighbours are not integers below 2**30 times one power of two.
    """
    levels = _levels(fmt, Rounding.STOCHASTIC, overflow)
    levels = [level for i, level in enumerate(levels) if i == 0 or level.value != levels[i - 1].value]  # one of -0, 0
    lows, highs, units = [], [], []
    for low, high in itertools.pairwise(levels):
        places = [
            (value.numerator & -value.numerator).bit_length() - value.denominator.bit_length()
            for value in (low.value, high.value)
            if value
        ]
        unit = min(places)
        lows.append(int(low.value / Fraction(2) ** unit))
        highs.append(int(high.value / Fraction(2) ** unit))
        units.append(unit)
        if max(abs(lows[-1]), abs(highs[-1])) >= 1 << 30:
            raise ValueError(
                f"stochastic rounding needs neighbours that are multiples of one power of two below 2**30; "
                f"{fmt.name} has {float(low.value)!r} and {float(high.value)!r}. Use another rounding."
            )
    return _Neighbours(
        np.array([_nearest_float(level.value) for level in levels]),
        np.array([level.code for level in levels], fmt.storage),
        np.array(lows, np.int64), np.array(highs, np.int64), np.array(units, np.int64),
    )  # fmt: skip


def _nearest_float(value: Fraction) -> float:
    """Return the float64 nearest to a value; Inf of its sign if the value exceeds the largest float64."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _stochastic_stage(width: int, options: TableOptions) -> Stage:
    """Return the stage (a function on arrays and the dtype of its results) that rounds floats stochastically to codes.

    width: bits of the floats, 32 or 64. options: those of the cast to a table format.
    The probability of rounding away from zero is the distance from the neighbour toward zero as a share of the gap
    between both neighbours, truncated to options.random_bits bits. Random numbers follow from options.seed and the flat
    index.
    """
    fmt, _, overflow, seed, random_bits = options
    near = _neighbours(fmt, overflow_outcome(overflow, fmt).overflow)  # type: ignore[arg-type]
    # for Inf and NaN
    exact = table_plan(fmt, width, Rounding.NEAREST_EVEN, overflow)
    loop = table_kernel(width)
    zeros = [code for value, code in fmt.finite if value == 0]

    def run(bits: Array, codes: Array, first: int) -> None:
        loop(bits, codes, *exact)
        with ieee_arithmetic(), np.errstate(all="ignore"):
            x = bits.view(np.float32 if width == 32 else np.float64).astype(np.float64)
            at = np.searchsorted(near.values, x, side="right") - 1
            inside = (at >= 0) & (at < near.values.size - 1) & (near.values[np.maximum(at, 0)] != x)
            outside = np.isfinite(x) & ~inside
            codes[outside] = near.codes[np.clip(at[outside], 0, None)]
            places = np.flatnonzero(inside)
            away = _goes_away(
                x[places], at[places], near, random_words(seed or 0, first, bits.size)[places], random_bits
            )
            codes[places] = near.codes[at[places] + (away == (x[places] >= 0))]
            if zeros:
                is_zero = np.isin(codes, zeros) & np.isfinite(x)
                codes[is_zero] = np.where(np.signbit(x[is_zero]), zeros[0], zeros[-1])

    return Stage(run, fmt.storage)


def _goes_away(x: Array, at: Array, near: _Neighbours, words: Array, random_bits: int) -> Array:
    """Return for each value of x, as bools, whether stochastic rounding takes the neighbour away from zero.

    x: float64. at: index of each value's lower neighbour: near.values[at] < x < near.values[at + 1]. near: all possible
    results of the cast. words: a random uint32 for each value, of which the upper `random_bits` bits are used.
    """
    mantissas, exponents = np.frexp(np.abs(x))
    significands = np.ldexp(mantissas, 53).astype(np.int64)
    shifts = exponents - 53 + random_bits - near.unit[at]
    fixed = np.where(shifts >= 0, significands << np.maximum(shifts, 0), significands >> np.clip(-shifts, 0, 63))
    inner = np.where(x >= 0, near.low[at], -near.high[at])
    fractions = (fixed - (inner << random_bits)) // (near.high[at] - near.low[at])
    draws = words.astype(np.int64) >> (32 - random_bits)
    goes: Array = fractions + draws >= 1 << random_bits
    return goes


@lru_cache(maxsize=1024)
def table_plan(fmt: TableFormat, width: int, rounding: Rounding, overflow: str) -> TablePlan:
    """Return the intervals of floats of `width` bits (32 or 64) that a deterministic mode rounds to one code; cached.

    fmt: the table format. rounding: the mode. overflow: the name of an overflow policy, as in `fpsim.encode`.
    """
    outcome = overflow_outcome(overflow, fmt)  # type: ignore[arg-type]  # it reads only whether Inf and NaN exist
    positive_nan, negative_nan = _nan_codes(fmt, outcome.nan)
    ends = [_special_code(fmt, outcome.infinite, negative) for negative in (True, False)]
    levels = _levels(fmt, rounding, outcome.overflow)
    infinity = 0x7F800000 if width == 32 else 0x7FF0000000000000
    sign = 1 << (width - 1)
    starts = [(0, negative_nan), (_ordered(sign | infinity, width), ends[0])]
    starts.append((_ordered(sign | (infinity - 1), width), levels[0].code))
    for low, high in itertools.pairwise(levels):
        starts.append((_first_of(low, high, fmt, rounding, width), high.code))
    starts += [(_ordered(infinity, width), ends[1]), (_ordered(infinity + 1, width), positive_nan)]
    return _plan_of(starts, fmt.storage, width)


def _levels(fmt: TableFormat, rounding: Rounding, overflow: str) -> list[_Level]:
    """Return all possible results of a cast to `fmt` in ascending order: finite values, and results of overflow.

    overflow: "max" if the largest finite value replaces larger ones, which adds no results. "infinity" or "nan" adds
    one at each end, unless `rounding` rounds the values beyond that end toward zero.
    """
    levels = [_Level(Fraction(value), code) for value, code in fmt.finite]
    if overflow == "max":
        return levels
    if not rounding.inward(True):
        levels.insert(0, _Level(-_beyond(fmt), _special_code(fmt, overflow, True)))
    if not rounding.inward(False):
        levels.append(_Level(_beyond(fmt), _special_code(fmt, overflow, False)))
    return levels


def _plan_of(starts: list[tuple[int, int]], storage: np.dtype[Any], width: int) -> TablePlan:
    """Return a TablePlan from the start and the code of each interval of floats that are rounded to one code.

    starts: (start, code) in ascending order; an entry replaces earlier ones whose start is not smaller. A start is the
    bits of the first float as an integer in the order of the values (ordered bits). storage: dtype of the codes. width:
    bits of the floats, 32 or 64.
    """
    merged: list[tuple[int, int]] = []
    for start, code in starts:
        while merged and merged[-1][0] >= start:
            merged.pop()
        if not merged or merged[-1][1] != code:
            merged.append((start, code))
    firsts = [start for start, _ in merged]
    word: Any = np.uint32 if width == 32 else np.uint64
    last = np.array([*(start - 1 for start in firsts[1:]), (1 << width) - 1], word)
    for bits in INDEX_BITS:
        shift = width - bits
        first = [bisect_right(firsts, index << shift) - 1 for index in range(1 << bits)]
        ends = [bisect_right(firsts, ((index + 1) << shift) - 1) - 1 for index in range(1 << bits)]
        steps = max(end - begin for begin, end in zip(first, ends, strict=True))
        if steps <= 1 or bits == INDEX_BITS[-1]:
            break
    codes = np.array([code for _, code in merged], storage)
    return TablePlan(np.array(first, np.int32), last, codes, shift, steps)


def _nan_codes(fmt: TableFormat, nan: str) -> tuple[int, int]:
    """Return (code of a positive NaN, code of a negative NaN) as results of a cast to the table format `fmt`.

    nan: the result if the table has no NaN: "max" for its largest value, "zero" for its zero, or for its largest value
    if it has no zero. If "zero" is chosen and the table has +0 and -0, a positive NaN becomes -0 and a negative one +0.
    """
    if fmt.nan_code is not None:
        return fmt.nan_code, fmt.nan_code
    if nan == "zero" and fmt.has_zero:
        zeros = [code for value, code in fmt.finite if value == 0]
        return zeros[0], zeros[-1]  # of the opposite sign, where there is one
    return fmt.finite[-1][1], fmt.finite[-1][1]


def _special_code(fmt: TableFormat, outcome: str, negative: bool) -> int:
    """Return the code in `fmt` of the result `outcome` of a cast, "infinity", "nan" or "max".

    negative: whether the cast value is negative. A table without Inf has NaN in place of Inf. A table without NaN has
    in place of NaN the lowest finite value for a negative value, else the highest.
    """
    last, infinity = fmt.finite[0 if negative else -1][1], fmt.infinity_code(negative)
    if outcome == "max":
        return last
    if outcome == "infinity" and infinity is not None:
        return infinity
    return last if fmt.nan_code is None else fmt.nan_code


def _beyond(fmt: TableFormat) -> Fraction:
    """Return the magnitude that would follow a table's largest one, with which the midpoint of overflow is computed.

    It is fmt.beyond, or else the largest magnitude plus its distance to the one before.
    """
    if fmt.beyond is not None:
        return Fraction(fmt.beyond)
    magnitudes = sorted({abs(value) for value, _ in fmt.finite})
    return 2 * Fraction(magnitudes[-1]) - Fraction(magnitudes[-2] if len(magnitudes) > 1 else 0)


def _first_of(low: _Level, high: _Level, fmt: TableFormat, rounding: Rounding, width: int) -> int:
    """Return the smallest float that rounds to `high` rather than `low`, as an integer (ordered bits).

    Ordered bits are a float's bits, changed so that unsigned integers have the order of the values, with -0 before +0.
    low, high: two neighbouring results of a cast, each with its exact value and its code; low is the smaller one, or -0
    next to +0. fmt: the table format. rounding: a deterministic mode; those to nearest break ties as fmt.ties says.
    width: bits of the floats that are cast, 32 or 64.
    """
    if low.value == high.value:  # -0 and 0
        return _ordered(0, width)
    if rounding.is_nearest:
        edge = (low.value + high.value) / 2
        larger = abs(high.value) >= abs(low.value)
        included = {"away": larger, "toward_zero": not larger, "down": False}
        if fmt.ties == "even" and (low.code + high.code) % 2:
            return _first_from(edge, high.code % 2 == 0, width)
        return _first_from(edge, included.get(fmt.ties, larger), width)
    if rounding is Rounding.UP or (rounding is Rounding.TOWARD_ZERO and high.value <= 0):
        return _first_from(low.value, False, width)
    return _first_from(high.value, True, width)


def _first_from(edge: Fraction, included: bool, width: int) -> int:
    """Return the ordered bits of the smallest float >= edge if `included`, else of the smallest float > edge.

    Ordered bits are float bits as integers in the order of the values. They are those of Inf if no finite float is
    large enough. width: bits of the floats, 32 or 64.
    """
    infinity = 0x7F800000 if width == 32 else 0x7FF0000000000000
    magnitude, exact = _float_below(abs(edge), width)
    if edge < 0:  # toward zero from the edge
        if exact and not included:
            if magnitude == 1:  # the next is -0
                return _ordered(1 << (width - 1), width)
            magnitude -= 1
        return _ordered((1 << (width - 1)) | min(magnitude, infinity - 1), width)
    if not exact or not included:
        magnitude += 1
    if magnitude == 0:
        return _ordered(1 << (width - 1), width)  # -0 >= 0
    return _ordered(min(magnitude, infinity), width)


def _ordered(pattern: int, width: int) -> int:
    """Return float bits (`pattern`) as an integer that grows with the value, -0 before +0; width: 32 or 64 bits."""
    sign = 1 << (width - 1)
    return pattern ^ ((1 << width) - 1) if pattern & sign else pattern | sign


def _float_below(magnitude: Fraction, width: int) -> tuple[int, bool]:
    """Return (bits of the largest float of `width` bits that is at most `magnitude`, whether it equals `magnitude`).

    For a magnitude beyond the largest float's binade the bits are those of Inf, and the second element tells whether
    a float with an unbounded exponent would equal it.
    """
    mantissa_bits, smallest, bias = (23, -149, 127) if width == 32 else (52, -1074, 1023)
    if magnitude == 0:
        return 0, True
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    step = Fraction(2) ** max(exponent - mantissa_bits, smallest)
    significand = magnitude // step
    if exponent > bias:
        return (2 * bias + 1) << mantissa_bits, significand * step == magnitude
    # the hidden bit is one step of the exponent field
    return ((max(exponent + bias, 1) - 1) << mantissa_bits) + significand, significand * step == magnitude
