"""Results of arithmetic for whole arrays, in the deterministic modes: equal exact results are rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fpsim.formats.named import Format
from tests.oracles import casts
from tests.oracles.arithmetic import (
    INEXACT,
    INVALID,
    OPERATIONS,
    OVERFLOW,
    PLAIN,
    UNDERFLOW,
    Array,
    Exact,
    Options,
    Place,
    deliver,
    first_normal_code,
    in_units,
    largest,
    place,
    read,
)

# ---- the same for whole arrays, in the deterministic modes: equal results are rounded once


def simplify(size: Fraction, fmt: Format) -> Fraction:
    """Return a simpler number that every deterministic mode rounds alike: eighths of a unit, odd ones between quarters.

    Quarters, or halves of them, because the unit of the rounding that finds tiny results is half as large.
    """
    if size > 4 * largest(fmt):
        return 5 * largest(fmt)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, casts.lowest_exponent(fmt))
    quarter = exponent - fmt.mantissa_bits - 2
    below, rest = in_units(size, quarter)
    eighths = 2 * below + (rest != 0)
    return Fraction(eighths << max(quarter - 1, 0), 1 << max(1 - quarter, 0))


class Places(NamedTuple):
    """`place` of many numbers, bounded and not, as columns."""

    code: Array
    rest: Array  # in sixteenths of a unit in the last place
    odd: Array


class Outcomes(NamedTuple):
    """The different results of an operation on many operands, not yet rounded, and which one each element has."""

    results: list[Exact]
    which: Array  # (n,)
    out: Format  # what they will be rounded to
    finite: Array  # which results are numbers other than zero, whose columns follow
    negative: Array
    raised: Array
    is_small: Array  # below the smallest normal value
    bounded: Places
    unbounded: Places


def outcomes(
    operation: str, columns: Sequence[Array], fmts: Sequence[Format], out: Format, input_subnormals: str = "keep"
) -> Outcomes:
    """Return the outcomes of an operation on columns of codes."""
    exact = OPERATIONS[operation]
    operands = []
    for column, fmt in zip(columns, fmts, strict=True):
        codes = column.reshape(-1).tolist()
        known = {code: read(fmt, code, input_subnormals) for code in set(codes)}
        operands.append([known[code] for code in codes])
    numbered: dict[Exact, int] = {}
    which = [numbered.setdefault(exact(*row), len(numbered)) for row in zip(*operands, strict=True)]
    simple: dict[Exact, int] = {}
    numbers = []
    for result in numbered:
        if result.kind == "finite" and result.magnitude:
            result = result._replace(magnitude=simplify(result.magnitude, out))
        numbers.append(simple.setdefault(result, len(simple)))
    results = list(simple)
    is_finite = [result.kind == "finite" and result.magnitude != 0 for result in results]
    finite = [result for result, yes in zip(results, is_finite, strict=True) if yes]
    bounded = [place(result.magnitude, out) for result in finite]
    is_small = [row.code < first_normal_code(out) for row in bounded]
    unbounded = [
        place(result.magnitude, out, bounded=False) if small else row
        for result, small, row in zip(finite, is_small, bounded, strict=True)
    ]
    signs, raised = [x.negative for x in finite], [x.raised != 0 for x in finite]
    return Outcomes(
        results,
        np.array(numbers)[np.array(which)],
        out,
        np.array(is_finite, bool),
        np.array(signs, bool),
        np.array(raised, bool),
        np.array(is_small, bool),
        columns_of(bounded, out),
        columns_of(unbounded, out),
    )


def columns_of(rows: Sequence[Place], fmt: Format) -> Places:
    """Return the places of numbers that `simplify` returned, whose rest is a multiple of a sixteenth.

    Codes beyond that of the largest value are the next one, so that FP64's fit into 64 bits.
    """
    beyond = (casts.code_of_kind(fmt, "finite") or 0) + 1
    assert all(16 % row.rest.denominator == 0 for row in rows)
    rests = [row.rest.numerator * (16 // row.rest.denominator) for row in rows]
    columns = [min(row.code, beyond) for row in rows], rests, [row.odd for row in rows]
    return Places(*(np.array(column, dtype) for column, dtype in zip(columns, (np.int64, np.int64, bool), strict=True)))


def go_up(at: Places, negative: Array, rounding: str) -> Array:
    """`goes_up` of every number, in a deterministic mode."""
    above: Array = casts.AWAY[rounding](at.rest / 16, at.odd, negative)
    return above


def deliver_all(found: Outcomes, fmt: Format, options: Options = PLAIN) -> tuple[Array, Array]:
    """Codes and flags of outcomes in a deterministic mode."""
    assert fmt == found.out
    codes, flags = np.zeros(len(found.results), np.uint64), np.zeros(len(found.results), np.uint8)
    for i in np.flatnonzero(~found.finite).tolist():
        codes[i], flags[i] = deliver(found.results[i], fmt, options)
    codes[found.finite], flags[found.finite] = deliver_finite_all(found, options)
    return codes.astype(fmt.storage)[found.which], flags[found.which]


def deliver_finite_all(found: Outcomes, options: Options) -> tuple[Array, Array]:
    """`deliver_finite` of every outcome that is a number other than zero; what the operation raised is INVALID."""
    fmt, negative = found.out, found.negative
    code = found.bounded.code + go_up(found.bounded, negative, options.rounding)
    lost = code < 0  # there is no zero to go to
    if options.subnormals == "flush":
        lost |= code < first_normal_code(fmt)
    code[lost] = 0
    exact = (found.bounded.rest == 0) & ~lost
    is_tiny = found.is_small
    if options.tininess == "after":
        rounded = found.unbounded.code + go_up(found.unbounded, negative, options.rounding)
        is_tiny = is_tiny & (rounded < first_normal_code(fmt))
    too_large = code > (casts.code_of_kind(fmt, "finite") or 0)
    flags = np.where(exact, 0, INEXACT) | np.where(~exact & is_tiny, UNDERFLOW, 0)
    flags |= np.where(too_large, OVERFLOW | INEXACT, 0)
    is_zero = (code == 0) & fmt.subnormals
    codes = code.astype(np.uint64)
    for sign in (False, True):
        inward = casts.rounds_inward(options.rounding, sign)
        kind = "finite" if inward else casts.overflow_kind(fmt, options.overflow)
        codes[too_large & (negative == sign)] = casts.special_code(fmt, kind, False)
    has_sign = negative & (~is_zero | fmt.negative_zero)
    codes |= np.where(has_sign, np.uint64(casts.sign_of(fmt)), np.uint64(0))
    if not fmt.signed:
        below, is_below = casts.below_code(fmt, options.overflow), negative & ~is_zero
        flags[is_below] = INVALID
        if below is not None:
            codes[is_below] = below
    flags[found.raised] = INVALID
    return codes, flags
