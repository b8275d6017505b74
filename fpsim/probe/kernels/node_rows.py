"""Loops that run a tree of additions over many sums at once, in float64.

An addition rounds its terms to common last bits before it adds them, or rounds their exact sum once. Sums that need
more bits, or are near the ends of a format's range, are marked for slower code (`Specification`) to compute.
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
ALMOST_HALF = 0.5 - 2.0**-54  # to add before rounding down: 1/2 would round the number below it up, and large odd ones
LOWEST = -900  # the lowest exponent of a grid, so that powers of two stay normal
BIAS, FRACTION, FIELD = i64(1023), i64(52), i64(0x7FF)


@reloadable
class Target(NamedTuple):
    """A format to round to, with the lowest exponent of its normal values, and a `rounding` such as NEAREST_EVEN.

    Nonzero sums of magnitude up to `least`, or beyond the largest value, `most`, are marked for slower code to compute;
    `least` is 0 if subnormals are kept.
    """

    mantissa_bits: int
    min_exponent: int
    most: float
    rounding: int
    least: float


@reloadable
class Cut(NamedTuple):
    """The rounding of an addition's terms to common last bits, before they are added.

    Terms keep fraction_bits bits (-1: all) below their largest exponent, by the mode `rounding`; sums keep result_bits
    mantissa bits (-1: as many as their format has). If `of_operands`, the exponent of a product a * b is
    max(exponent of a, least_a) + max(exponent of b, least_b).
    """

    fraction_bits: int
    rounding: int
    result_bits: int
    of_operands: bool
    least_a: int
    least_b: int


@reloadable
class Addition(NamedTuple):
    """The arithmetic of an addition: a Target (format and rounding) for sums, one for products, and the Cut of terms.

    to: for sums. product: for products, unrounded if its mantissa_bits is 0. begins: whether zero products become +0.
    """

    to: Target
    product: Target
    cut: Cut
    begins: bool


@reloadable
class NodeProgram(NamedTuple):
    """An order of additions as a program for a stack, and the arithmetic (`rule`) of each addition.

    code: int64; k >= 0 pushes term k, -c adds the top c. rounded: bool (terms,), True to round it. depth: stack size.
    """

    code: Any
    rounded: Any
    depth: int
    rule: Addition


@scalar
def _exponent(x: Any) -> Any:
    """Return the unbiased exponent of a float64, as int64; zeros and subnormals have -1023."""
    return ((f64(x).view(i64) >> FRACTION) & FIELD) - BIAS


@scalar
def _power(exponent: Any) -> Any:
    """Return 2**exponent as a float64, for an integer exponent of a normal number."""
    return i64((i64(exponent) + BIAS) << FRACTION).view(f64)


@scalar
def _away(x: Any) -> Any:
    """Return a float64 rounded to the nearest integer, as float64, ties away from zero."""
    return np.copysign(np.floor(abs(x) + ALMOST_HALF), x)


@inner_loop
def _make_integers(line: Any, rounding: Any) -> None:
    """Round float64 `line` to integers in place; rounding: NEAREST_EVEN, NEAREST_AWAY, TOWARD_ZERO, DOWN or UP."""
    if rounding == NEAREST_EVEN:
        for r in range(line.size):
            line[r] = np.rint(line[r])
    elif rounding == TOWARD_ZERO:
        for r in range(line.size):
            line[r] = np.trunc(line[r])
    elif rounding == NEAREST_AWAY:
        for r in range(line.size):
            line[r] = _away(line[r])
    elif rounding == DOWN:
        for r in range(line.size):
            line[r] = np.floor(line[r])
    else:
        for r in range(line.size):
            line[r] = np.ceil(line[r])


def _rounder(integer: Any) -> Any:
    """Return the loop of `_round` for one mode; integer: the mode's rounding of floats to integers, such as np.rint."""

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
    """Round a row in place to the Target `to`; set flags `unsure` where 0 < |x| <= to.least or |result| > to.most."""
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
    """Return a float64 sum rounded to odd; lost: the exact sum minus s, the sum rounded to nearest."""
    bits = f64(s).view(i64)
    outwards = i64(1) if (lost > 0) == (s > 0) else i64(-1)
    return i64(bits + outwards).view(f64) if (lost != 0) & (bits & i64(1) == 0) else s


@inner_loop
def _add_two(total: Any, line: Any) -> None:
    """Add the float64 row `line` to `total` in place, rounded to odd, for correct rounding to fewer bits later."""
    for r in range(total.size):
        x, y = total[r], line[r]
        s = x + y
        back = s - x
        total[r] = _made_odd(s, (x - (s - back)) + (y - back))


@inner_loop
def _add_exactly(stack: Any, base: Any, count: Any, rest: Any, unsure: Any) -> None:
    """Add rows base + 1 to base + count - 1 of a float64 stack to row `base`, rounded to odd.

    rest: scratch row for sums of rounding errors (Boldo and Melquiond, 2008). unsure: set where such a sum is inexact.
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
    """Round line * powers to integers (TOWARD_ZERO, DOWN or NEAREST_EVEN); write or, if `adds`, add them to `total`."""
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
    """Replace each int64 exponent in the row `high` by that in the row `line` if the latter is larger."""
    for r in range(high.size):
        high[r] = max(high[r], line[r])


@inner_loop
def _grids(high: Any, powers: Any, spare: Any, fraction_bits: Any) -> None:
    """Write the last bits that terms keep, 2**(max(high, LOWEST) - fraction_bits), to `spare`; inverses to `powers`."""
    for r in range(high.size):
        grid = max(high[r], i64(LOWEST)) - fraction_bits
        powers[r], spare[r] = _power(-grid), _power(grid)


@inner_loop
def _scale(line: Any, powers: Any) -> None:
    """Multiply the float64 row `line` by the row `powers` in place."""
    for r in range(line.size):
        line[r] *= powers[r]


@scalar
def _add_cut(stack: Any, exponents: Any, base: Any, count: Any, powers: Any, spare: Any, cut: Any) -> None:
    """Add rows base + 1 to base + count - 1 of a float64 stack to row `base`, after rounding all to common last bits.

    The last bit is cut.fraction_bits below the largest of the terms' int64 exponents. powers, spare: scratch rows.
    """
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
    """Round a row in place to `bits` mantissa bits; rounding: a mode such as NEAREST_EVEN; powers: a scratch row."""
    for r in range(line.size):
        scale = max(_exponent(line[r]), i64(LOWEST)) - bits
        powers[r] = _power(scale)
        line[r] *= _power(-scale)
    _make_integers(line, rounding)
    for r in range(line.size):
        line[r] *= powers[r]


@inner_loop
def _multiply(line: Any, x: Any, y: Any, begins: Any) -> None:
    """Write the float64 products of rows x and y to the row `line`; if `begins`, zero products become +0."""
    for r in range(line.size):
        line[r] = x[r] * y[r]
    if begins:
        for r in range(line.size):
            line[r] = abs(line[r]) if line[r] == 0 else line[r]


@inner_loop
def _align(aligned: Any, line: Any) -> None:
    """Write each number's exponent to the int64 row `aligned`; zeros get NOTHING, an exponent below all others."""
    for r in range(line.size):
        aligned[r] = i64(NOTHING) if line[r] == 0 else _exponent(line[r])


@inner_loop
def _align_by_operands(aligned: Any, line: Any, x: Any, y: Any, cut: Any) -> None:
    """Write max(exponent of x, cut.least_a) + max(exponent of y, cut.least_b) to `aligned`; NOTHING if x * y is 0."""
    for r in range(line.size):
        of_a, of_b = max(_exponent(x[r]), i64(cut.least_a)), max(_exponent(y[r]), i64(cut.least_b))
        aligned[r] = i64(NOTHING) if line[r] == 0 else of_a + of_b


@inner_loop
def _push(line: Any, aligned: Any, x: Any, y: Any, unsure: Any, rule: Any, rounded: Any) -> None:
    """Write the terms x, or the products x * y if y is not empty, to the stack row `line`, float64, rounded by `rule`.

    rule: an Addition. rounded: whether to round to the format of sums. aligned: int64 exponents, written if the rule
    cuts terms. unsure: int64 flags, set for sums that slower code must compute.
    """
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
    """Replace -0 by +0 in the row `line`, in place."""
    for r in range(line.size):
        line[r] += 0.0


@inner_loop
def _mark_zeros(line: Any, unsure: Any) -> None:
    """Set the int64 flag unsure[r] to 1 where the sum line[r] is zero."""
    for r in range(line.size):
        unsure[r] |= i64(line[r] == 0)


@inner_loop
def _add(
    stack: Any, exponents: Any, base: Any, count: Any, powers: Any, spare: Any, unsure: Any, rule: Any
) -> None:  # fmt: skip
    """Add rows base + 1 to base + count - 1 of a float64 stack to row `base`, and round the sums; rule: an Addition.

    Rows are added exactly, or by `_add_cut` if `rule` cuts terms. powers, spare: scratch rows. unsure: as in `_push`.
    """
    size, cut = powers.size, rule.cut
    total = stack[base, :size]  # sliced, so that the compiler sees that rows have no gaps
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
    """Write sums of n terms, or of n products, by an order of additions, in pieces of SUMS_AT_ONCE columns of `out`.

    Args:
      out: float64 (M, N) for a matrix product; else (1, R), for R separate sums.
      marked: int64, like out: nonzero where the slow reference, `Specification`, has to compute the sum.
      a, b: (M, n) and (n, N) float64 matrices; else (n, R) terms and factors, with (0, R) factors for a plain sum.
      of_matrices: True if a and b are the operands of a matrix product.
      program: a NodeProgram: the order of additions, and the arithmetic of each.
      first, stop: range of pieces, which are numbered row by row.
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
                    x[:] = a[row, step]
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
