"""Loops that run a tree of any additions over many sums at once: nodes cut their numbers, or round an exact sum once.

They work in float64, which holds the operands of additions in formats up to float32. A sum that needs more bits, or
reaches the end of a format's range, is marked and left to the specification.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.reload import reloadable
from fpsim.runtime.compile import inner_loop, kernel, scalar

f64, i64 = np.float64, np.int64

SUMS_AT_ONCE = 256  # sums that are computed together
NEAREST_EVEN, TOWARD_ZERO, NEAREST_AWAY, DOWN, UP = range(5)
NOTHING = -(1 << 20)  # the exponent of a zero, which aligns nothing
LOWEST = -900  # the lowest exponent of a grid, so that powers of two stay normal
BIAS, FRACTION, FIELD = i64(1023), i64(52), i64(0x7FF)


@reloadable
class Target(NamedTuple):
    """A format and the rounding to it."""

    mantissa_bits: int
    min_exponent: int
    most: float  # the largest number; a sum beyond it is marked
    rounding: int
    least: float  # numbers up to this magnitude, except zeros, are marked; 0 where subnormals are kept


@reloadable
class Cut(NamedTuple):
    """The cut of a node: the bits that its terms keep when they are aligned, before they are added."""

    fraction_bits: int  # -1 for no cut
    rounding: int
    result_bits: int  # -1 for those of the format
    of_operands: bool  # whether products are aligned by the exponents of their operands, at least least_a and least_b
    least_a: int
    least_b: int


@reloadable
class Addition(NamedTuple):
    """The addition of a node, and the rounding of products before it."""

    to: Target
    product: Target  # the format of products; mantissa_bits is 0 where they are not rounded first
    cut: Cut
    begins: bool  # whether zero products have no sign


@reloadable
class NodeProgram(NamedTuple):
    """A program of additions for the loop over nodes."""

    code: Any  # the order in reverse Polish notation, as of `Order`: int64
    rounded: Any  # for each term whether it is rounded to the format before it is added
    depth: int  # the largest number of values on the stack
    rule: Addition


@scalar
def _exponent(x: Any) -> Any:
    """Return the exponent of a float64; that of a zero is below all others."""
    return ((f64(x).view(i64) >> FRACTION) & FIELD) - BIAS


@scalar
def _power(exponent: Any) -> Any:
    """Return 2**exponent, a normal float64."""
    return i64((i64(exponent) + BIAS) << FRACTION).view(f64)


@inner_loop
def _make_integers(line: Any, rounding: Any) -> None:
    """Round numbers to integers."""
    if rounding == NEAREST_EVEN:
        for r in range(line.size):
            line[r] = np.rint(line[r])
    elif rounding == TOWARD_ZERO:
        for r in range(line.size):
            line[r] = np.trunc(line[r])
    elif rounding == NEAREST_AWAY:
        for r in range(line.size):
            line[r] = np.copysign(np.floor(abs(line[r]) + 0.5), line[r])
    elif rounding == DOWN:
        for r in range(line.size):
            line[r] = np.floor(line[r])
    else:
        for r in range(line.size):
            line[r] = np.ceil(line[r])


@scalar
def _away(x: Any) -> Any:
    """Return the nearest integer, ties away from zero."""
    return np.copysign(np.floor(abs(x) + 0.5), x)


def _rounder(integer: Any) -> Any:
    """Return a loop that rounds numbers to a format by a rounding to integers in units of their last bit."""

    @inner_loop
    def run(line: Any, unsure: Any, to: Any) -> None:
        for r in range(line.size):
            x = line[r]
            exponent = max(_exponent(x), i64(to.min_exponent)) - i64(to.mantissa_bits)
            near = integer(x * _power(-exponent)) * _power(exponent)
            unsure[r] |= i64((x != 0) & (abs(x) <= to.least)) | i64(not (abs(near) <= to.most))
            line[r] = near

    return run


_round_even, _round_inwards, _round_away = _rounder(np.rint), _rounder(np.trunc), _rounder(_away)
_round_down, _round_up = _rounder(np.floor), _rounder(np.ceil)


@inner_loop
def _round(line: Any, unsure: Any, to: Any) -> None:
    """Round numbers to a format, and mark those that the loop cannot decide."""
    if to.rounding == NEAREST_EVEN:
        _round_even(line, unsure, to)
    elif to.rounding == TOWARD_ZERO:
        _round_inwards(line, unsure, to)
    elif to.rounding == NEAREST_AWAY:
        _round_away(line, unsure, to)
    elif to.rounding == DOWN:
        _round_down(line, unsure, to)
    else:
        _round_up(line, unsure, to)


@scalar
def _made_odd(s: Any, lost: Any) -> Any:
    """Return a sum rounded to odd, given the part that it lost."""
    bits = f64(s).view(i64)
    outwards = i64(1) if (lost > 0) == (s > 0) else i64(-1)
    return i64(bits + outwards).view(f64) if (lost != 0) & (bits & i64(1) == 0) else s


@inner_loop
def _add_two(total: Any, line: Any) -> None:
    """Add two rows with rounding to odd, so that a second rounding rounds the exact sum."""
    for r in range(total.size):
        x, y = total[r], line[r]
        s = x + y
        back = s - x
        total[r] = _made_odd(s, (x - (s - back)) + (y - back))


@inner_loop
def _add_exactly(stack: Any, base: Any, count: Any, rest: Any, unsure: Any) -> None:
    """Add rows of a stack to the first of them with rounding to odd, so that a second rounding rounds the exact sum.

    `rest` keeps the losses of the additions (Boldo and Melquiond, 2008).
    """
    total = stack[base, : rest.size]
    rest[:] = 0.0
    for i in range(base + 1, base + count):
        line = stack[i, : rest.size]
        for r in range(total.size):
            x, y = total[r], line[r]
            s = x + y
            back = s - x
            lost = (x - (s - back)) + (y - back)
            kept = rest[r] + lost
            again = kept - rest[r]
            unsure[r] |= i64((rest[r] - (kept - again)) + (lost - again) != 0)
            total[r], rest[r] = s, kept
    for r in range(total.size):
        x, y = total[r], rest[r]
        s = x + y
        back = s - x
        lost = (x - (s - back)) + (y - back)
        total[r] = _made_odd(s, lost) if y != 0 else x


@inner_loop
def _cut(total: Any, line: Any, powers: Any, rounding: Any, adds: Any) -> None:
    """Round numbers to integers in units of their grid, and add them to a total or replace it."""
    if rounding == TOWARD_ZERO:
        for r in range(line.size):
            total[r] = (total[r] if adds else 0.0) + np.trunc(line[r] * powers[r])
    elif rounding == DOWN:
        for r in range(line.size):
            total[r] = (total[r] if adds else 0.0) + np.floor(line[r] * powers[r])
    else:
        for r in range(line.size):
            total[r] = (total[r] if adds else 0.0) + np.rint(line[r] * powers[r])


@inner_loop
def _raise(high: Any, line: Any) -> None:
    """Replace exponents by the larger ones of two rows."""
    for r in range(high.size):
        high[r] = max(high[r], line[r])


@inner_loop
def _grids(high: Any, powers: Any, spare: Any, fraction_bits: Any) -> None:
    """Set `powers` to the inverse of the units to which numbers are cut, and `spare` to these units."""
    for r in range(high.size):
        grid = max(high[r], i64(LOWEST)) - fraction_bits
        powers[r], spare[r] = _power(-grid), _power(grid)


@inner_loop
def _scale(line: Any, powers: Any) -> None:
    """Multiply numbers by powers."""
    for r in range(line.size):
        line[r] *= powers[r]


@scalar
def _add_cut(stack: Any, exponents: Any, base: Any, count: Any, powers: Any, spare: Any, cut: Any) -> None:
    """Add rows of a stack to the first of them, each number cut below the largest exponent among them."""
    size = powers.size
    total, high = stack[base, :size], exponents[base, :size]
    for i in range(base + 1, base + count):
        _raise(high, exponents[i, :size])
    _grids(high, powers, spare, cut.fraction_bits)
    _cut(total, total, powers, cut.rounding, False)
    for i in range(base + 1, base + count):
        _cut(total, stack[i, :size], powers, cut.rounding, True)
    _scale(total, spare)


@inner_loop
def _shorten(line: Any, powers: Any, bits: Any, rounding: Any) -> None:
    """Round each number to a number of mantissa bits."""
    for r in range(line.size):
        scale = max(_exponent(line[r]), i64(LOWEST)) - bits
        powers[r] = _power(scale)
        line[r] *= _power(-scale)
    _make_integers(line, rounding)
    for r in range(line.size):
        line[r] *= powers[r]


@inner_loop
def _multiply(line: Any, x: Any, y: Any, begins: Any) -> None:
    """Multiply two rows; with `begins`, zero products have no sign."""
    for r in range(line.size):
        line[r] = x[r] * y[r]
    if begins:
        for r in range(line.size):
            line[r] = abs(line[r]) if line[r] == 0 else line[r]


@inner_loop
def _align(aligned: Any, line: Any) -> None:
    """Set the exponents by which numbers are aligned to their own."""
    for r in range(line.size):
        aligned[r] = i64(NOTHING) if line[r] == 0 else _exponent(line[r])


@inner_loop
def _align_by_operands(aligned: Any, line: Any, x: Any, y: Any, cut: Any) -> None:
    """Set the exponents by which products are aligned to the sums of those of their operands."""
    for r in range(line.size):
        of_a, of_b = max(_exponent(x[r]), i64(cut.least_a)), max(_exponent(y[r]), i64(cut.least_b))
        aligned[r] = i64(NOTHING) if line[r] == 0 else of_a + of_b


@inner_loop
def _fill(line: Any, x: Any) -> None:
    """Fill a row with one value."""
    for r in range(line.size):
        line[r] = x


@inner_loop
def _push(line: Any, aligned: Any, x: Any, y: Any, unsure: Any, rule: Any, rounded: Any) -> None:
    """Put a term, or the product of two operands, on the stack."""
    if y.size == 0:
        line[:] = x
    else:
        _multiply(line, x, y, rule.begins)
        if rule.product.mantissa_bits > 0:
            _round(line, unsure, rule.product)
    if rule.cut.fraction_bits < 0:
        if rounded:
            _round(line, unsure, rule.to)
    elif rule.cut.of_operands:
        _align_by_operands(aligned, line, x, y, rule.cut)
    else:
        _align(aligned, line)  # sums with infinities and NaN are marked where they are rounded


@inner_loop
def _positive(line: Any) -> None:
    """Replace negative zeros by positive ones."""
    for r in range(line.size):
        line[r] += 0.0


@inner_loop
def _mark_zeros(line: Any, unsure: Any) -> None:
    """Mark sums that are zero."""
    for r in range(line.size):
        unsure[r] |= i64(line[r] == 0)


@inner_loop
def _add(
    stack: Any, exponents: Any, base: Any, count: Any, powers: Any, spare: Any, unsure: Any, rule: Any
) -> None:  # fmt: skip
    """Add rows of a stack to the first of them; slices show the compiler that rows have no gaps."""
    size, cut = powers.size, rule.cut
    total = stack[base, :size]
    if cut.fraction_bits < 0:
        if count == 2:
            _add_two(total, stack[base + 1, :size])
        else:
            _add_exactly(stack, base, count, spare, unsure)
        if rule.to.rounding == DOWN:  # a sum that cancels is -0 then
            _mark_zeros(total, unsure)
        _round(total, unsure, rule.to)
        return
    _add_cut(stack, exponents, base, count, powers, spare, cut)
    if cut.result_bits >= 0:
        _shorten(total, powers, cut.result_bits, rule.to.rounding)
    _round(total, unsure, rule.to)
    _positive(total)
    _align(exponents[base, :size], total)


@kernel
def node_rows(
    out: Any, marked: Any, a: Any, b: Any, of_matrices: bool, program: Any, first: int, stop: int
) -> None:  # fmt: skip
    """Compute sums of terms, or of products, by a program of additions, in pieces of SUMS_AT_ONCE columns of `out`.

    Args:
      out: (M, N) float64 for the sums of a matrix product; else (1, R).
      marked: like out, int64: not 0 where the specification has to decide.
      a, b: (M, n) and (n, N) float64 matrices; else (n, R) terms and factors, with (0, R) factors for a plain sum.
      of_matrices: whether a and b are the operands of a matrix product.
      program: a NodeProgram.
      first, stop: range of pieces, row by row.
    """
    code, rounded, depth, rule = program.code, program.rounded, program.depth, program.rule
    stack, exponents = np.empty((depth, SUMS_AT_ONCE)), np.empty((depth, SUMS_AT_ONCE), np.int64)
    spare, more, same = np.empty(SUMS_AT_ONCE), np.empty(SUMS_AT_ONCE), np.empty(SUMS_AT_ONCE)
    flags = np.empty(SUMS_AT_ONCE, np.int64)
    pieces = (out.shape[1] + SUMS_AT_ONCE - 1) // SUMS_AT_ONCE
    for piece in range(first, stop):
        row, start = piece // pieces, piece % pieces * SUMS_AT_ONCE
        end = min(start + SUMS_AT_ONCE, out.shape[1])
        size = end - start
        powers, rest, unsure = spare[:size], more[:size], flags[:size]
        unsure[:] = 0
        top = 0
        for step in code:
            if step >= 0:
                x = same[:size]
                if of_matrices:
                    _fill(x, a[row, step])
                else:
                    x[:] = a[step, start:end]
                y = b[step, start:end] if b.shape[0] > 0 else x[:0]
                _push(stack[top, :size], exponents[top, :size], x, y, unsure, rule, rounded[step])
                top += 1
            else:
                top += step + 1
                _add(stack, exponents, top - 1, -step, powers, rest, unsure, rule)
        out[row, start:end] = stack[0, :size]
        marked[row, start:end] = unsure
