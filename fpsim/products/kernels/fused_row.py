"""The innermost loops of matrix products by `Rule.FUSED`: one row of a times a panel of b, for any processor.

The rule truncates all terms below the largest exponent, adds them exactly, and rounds once. A panel is the decoded
terms of one instruction for PANEL_COLUMNS columns of b (panel.py). Per column, the largest exponent M of the products
is a byte, and the power 2**(F - M) (F: fraction bits) is built from it. Every product times that power is converted to
an integer, which truncates it. Product and power are exact in float32, the sum of eight is exact in an int32. Measured:
docs/performance.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.products.kernels.code_panel import code_filler
from fpsim.products.kernels.panel import (
    BIAS,
    FIELD,
    INFINITE,
    MAGNITUDE,
    MANTISSA_BITS,
    NO_TERM,
    PANEL_COLUMNS,
    ZERO_EXPONENT,
    fill_panel,
    fill_rows,
)
from fpsim.reload import reloadable
from fpsim.runtime.compile import inner_loop, scalar
from fpsim.runtime.records import fields_of

i8, i32, i64, f32 = np.int8, np.int32, np.int64, np.float32

SIGN = i32(-0x80000000)
POWER_OF_ZERO = i32(254 << 23)  # minus the pattern of a power gives that of its inverse
HALF_BITS, HALF_LEAST = i32(10), i32(-14)  # mantissa bits and smallest exponent of FP16
HALF_TOP = f32(65536.0)  # what rounds up to this is beyond FP16's largest value
INFINITY = f32(np.inf)


@reloadable
class RowFacts(NamedTuple):
    """The properties of a unit that the loops over a row of one instruction read, as 32-bit integers.

    fraction_bits: bits kept below the largest exponent. floor: the exponent of a zero term. kept: mask of the bits of
    the result that are kept. base: the exponent of a product minus the int8 exponents of its factors. least: the
    smallest exponent of the accumulator's format.
    """

    fraction_bits: Any
    floor: Any
    kept: Any
    base: Any
    least: Any


row_facts = fields_of(RowFacts)


@reloadable
class RowScratch(NamedTuple):
    """Scratch buffers for one row of results, with at least one entry for every column that a loop works on.

    Attributes:
      e: int8, the largest exponent of a column's products.
      power: int32 bits of the float32 2**(fraction bits - M), where M is the largest exponent of a column's products
        and accumulator.
      scaled_power: int32 bits of the same power times both scales.
      sums: (4, PANEL_COLUMNS) int32, sums of up to eight truncated products.
      specials: (rows, PANEL_COLUMNS) float32, the NaN and Inf of results.
    """

    e: Any
    power: Any
    scaled_power: Any
    sums: Any
    specials: Any


@reloadable
class RowPlace(NamedTuple):
    """The rows of a and the columns of b that one call of `RowLoops.step` multiplies.

    Attributes:
      r: number of the first row; RowLoops.rows says how many rows are computed together.
      rows: number of rows of the block of a.
      width: columns of the panel (decoded terms of b) that are not padding.
      scale: exponent of row r's block scale, 0 without scales.
    """

    r: Any
    rows: Any
    width: Any
    scale: Any


@reloadable
class RowLoops(NamedTuple):
    """The innermost loops of a matrix product, for one group of units and one instruction set of the processor.

    Attributes:
      columns: columns of a panel, the decoded terms of one instruction of b.
      rows: rows of a that one call of `step` computes.
      panel: () -> (values, exponents, b, eb), which allocates buffers for a panel. values, exponents: (terms, columns)
        int32 and int8. b, eb: what `step` reads: views of these two, or separate arrays in another layout.
      decode: (source, m, rows, k, facts, values, exponents, s, flags) -> None: decodes rows of a from row m and term
        k on to values[s] and exponents[s], and writes the flags SPECIAL and DEEP of each row to flags[s]. The arguments
        are those of `decode_rows`.
      fills: (source, (k, n, width), facts, values, exponents, b, eb, codes) -> flags, for each form of operand b,
        "floats", "bytes" or "halves" (code_panel.py): decodes its terms from k on, columns from n on, to a panel.
        facts: row 2 of the result of `fpsim.products.fused.fused_facts`. codes: a buffer for the codes of a panel.
      begin: (ea, r, rows, eb, e) -> None, which is called before the first row of a panel, or after rows that another
      loop
        computed. It writes the largest exponents of the products of row r, and of the further rows that `step` computes
        with it, to e; rows from `rows` on do not exist.
      step: (a, ea, b, eb, c, scale_b, place, facts, room) -> None: adds one instruction's products to rows of c, from
        place.r on. facts: a RowFacts. room: a result of the function `room`.
      room: function from a RowScratch to the part of it that `step` and `begin` use.
    """

    columns: int
    rows: int
    panel: Any
    decode: Any
    fills: dict[str, Any]
    begin: Any
    step: Any
    room: Any


@scalar
def _cut(a: Any, b: Any, power: Any) -> Any:
    """Return a * b * power truncated to an int32; the arguments are float32."""
    return i32(f32(f32(a * b) * power))


def _largest(ea: Any, eb: Any, terms: int, e: Any) -> None:
    """Set e[j] to the largest exponent of the products in column j, the maximum of ea[k] + eb[k, j] over all k.

    ea: (terms,), eb: (terms, PANEL_COLUMNS), e: (PANEL_COLUMNS,), int8. terms: a multiple of 4.
    """
    for j in range(PANEL_COLUMNS):
        e[j] = i8(2 * ZERO_EXPONENT)
    for k in range(0, terms, 4):
        x0, x1, x2, x3 = ea[k], ea[k + 1], ea[k + 2], ea[k + 3]
        y0, y1, y2, y3 = eb[k], eb[k + 1], eb[k + 2], eb[k + 3]
        for j in range(PANEL_COLUMNS):
            left = max(i8(x0 + y0[j]), i8(x1 + y1[j]))
            right = max(i8(x2 + y2[j]), i8(x3 + y3[j]))
            e[j] = max(e[j], max(left, right))


def _add_four(a: Any, b: Any, k: Any, power: Any, t: Any) -> None:
    """Add a[i] * b[i, j] * power[j], truncated to an integer, to t[j] for i = k .. k + 3 and every column j.

    a: (terms,), b: (terms, PANEL_COLUMNS), power: (PANEL_COLUMNS,), float32. t: (PANEL_COLUMNS,) int32.
    """
    a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
    b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
    for j in range(PANEL_COLUMNS):
        p = power[j]
        left = i32(_cut(a0, b0[j], p) + _cut(a1, b1[j], p))
        right = i32(_cut(a2, b2[j], p) + _cut(a3, b3[j], p))
        t[j] = i32(t[j] + i32(left + right))


def _add_eight(a: Any, b: Any, k: Any, power: Any, t: Any) -> None:
    """Add a[i] * b[i, j] * power[j], truncated to an integer, to t[j] for i = k .. k + 7 and every column j.

    a: (terms,), b: (terms, PANEL_COLUMNS), power: (PANEL_COLUMNS,), float32. t: (PANEL_COLUMNS,) int32.
    """
    a0, a1, a2, a3, a4, a5, a6, a7 = a[k], a[k + 1], a[k + 2], a[k + 3], a[k + 4], a[k + 5], a[k + 6], a[k + 7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[k], b[k + 1], b[k + 2], b[k + 3], b[k + 4], b[k + 5], b[k + 6], b[k + 7]
    for j in range(PANEL_COLUMNS):
        p = power[j]
        first = i32(i32(_cut(a0, b0[j], p) + _cut(a1, b1[j], p)) + i32(_cut(a2, b2[j], p) + _cut(a3, b3[j], p)))
        second = i32(i32(_cut(a4, b4[j], p) + _cut(a5, b5[j], p)) + i32(_cut(a6, b6[j], p) + _cut(a7, b7[j], p)))
        t[j] = i32(t[j] + i32(first + second))


def _specials(a: Any, b: Any, terms: int, c: Any, met: Any) -> None:
    """Set met[j] to the Inf or NaN that column j's sum becomes, or to a finite number if its sum is finite.

    a, b: (terms,) and (terms, columns) float32 classes of operands: -1, -0, 0 or 1 for a finite value by its sign, else
    Inf or NaN. terms: products of one instruction. c: (columns,) accumulators as int32 bits of float32. met: (columns,)
    float32.
    """
    for j in range(c.size):
        bits = i32(c[j])
        met[j] = bits.view(f32) if i32(bits & MAGNITUDE) >= INFINITE else f32(0.0)
    for k in range(terms):
        x, y = a[k], b[k]
        for j in range(c.size):
            met[j] = f32(met[j] + f32(x * y[j]))


@cache
def _panel_of(terms: int) -> Any:
    """Return the function () -> (values, exponents, b, eb) that allocates buffers for `terms` terms of operand b.

    values: (terms, PANEL_COLUMNS) int32, for float32 patterns. exponents: int8 of the same shape. b: `values` viewed as
    float32. eb: `exponents` itself.
    """

    def panel() -> Any:
        values, exponents = np.empty((terms, PANEL_COLUMNS), i32), np.empty((terms, PANEL_COLUMNS), i8)
        return values, exponents, values.view(f32), exponents

    return scalar(panel)


@inner_loop
def decode_rows(
    source: Any, m: Any, rows: Any, k: Any, facts: Any, values: Any, exponents: Any, s: Any, flags: Any
) -> None:
    """Decode terms k, k + 1, ... of `rows` rows of a, from row m on, for instruction s; terms after K become zeros.

    source: (M, K) float32 patterns as int32. facts: (mask of the bits that the unit reads, smallest exponent, `base`).
    values, exponents: (steps, rows, terms) int32 and int8, of which values[s] and exponents[s] are written; exponents
    are stored minus `base`. flags: (steps, rows) int32: flags[s] gets SPECIAL or DEEP for rows with NaN or Inf, or with
    exponents out of range.
    """
    for r in range(rows):
        flags[s, r] = fill_rows(source[m + r], k, i64(values.shape[2]), facts, values[s, r], exponents[s, r])


@scalar
def _fill_floats(
    source: Any, place: Any, facts: Any, values: Any, exponents: Any, _b: Any, _eb: Any, _codes: Any
) -> Any:
    """Decode float32 patterns of b to a panel, the values and exponents of one instruction's terms; return flags.

    source: (K, N) int32 patterns. place: (first term, first column, number of columns). facts: (mask of the bits that
    the unit reads, smallest exponent, base exponent, which is subtracted from exponents). values, exponents: (terms,
    columns) int32 and int8, written. The flags are SPECIAL (NaN or Inf) + DEEP (an exponent not in -20 .. 20).
    Arguments with an underscore are not used.
    """
    return fill_panel(source, place[0], place[1], place[2], i64(values.shape[0]), facts, values, exponents)


@scalar
def _nothing_to_begin(ea: Any, r: Any, count: Any, eb: Any, e: Any) -> None:
    """Do nothing, as `RowLoops.begin` of loops that compute largest exponents row by row; arguments: see `RowLoops`."""


@scalar
def whole_scratch(room: RowScratch) -> Any:
    """Return `room` unchanged: the loops of this module use all of its buffers."""
    return room


@scalar
def exponents_alone(room: RowScratch) -> Any:
    """Return room.e (int8, the largest exponents of a row's products), the only buffer that vectorised loops use.

    Such a loop computes one row, and overwrites the buffer with the exponents of the next row.
    """
    return room.e


largest, add_four, add_eight = scalar(_largest), scalar(_add_four), scalar(_add_eight)
specials_row = inner_loop(_specials)


@scalar
def rounded_to_half(value: Any) -> Any:
    """Return `value`, a float32, rounded to nearest even FP16, as float32; magnitudes from 65520 on become Inf."""
    exponent = i32(i32(i32(f32(value).view(i32) >> MANTISSA_BITS) & FIELD) - BIAS)
    place = i32(max(exponent, HALF_LEAST) - HALF_BITS)
    # adding 1.5 * 2**23 units of the last place rounds to that place, and taking them off leaves the rounded value
    addend = i32(i32(i32(i32(place + MANTISSA_BITS) + BIAS) << MANTISSA_BITS) | i32(0x400000)).view(f32)
    near = f32(f32(value + addend) - addend)
    near = INFINITY if near >= HALF_TOP else near
    return -INFINITY if near <= -HALF_TOP else near


@cache
def fused_row(terms: int, joined: bool, half: bool, scaled: bool) -> RowLoops:
    """Return the loops of any unit of `Rule.FUSED`, or of a rule built from it, on any processor.

    terms: products of one instruction, 4 or a multiple of 8. joined: sums of eight products fill an int32 and are added
    up in an int64. half: the result is FP16, held as float32. scaled: exponents of block scales are added to those of
    products.
    """
    eights = terms // 8
    wide: Any = i64 if joined else i32

    def row(
        rows: Any, rows_e: Any, b: Any, eb: Any, tile: Any, scale_b: Any, place: RowPlace, u: RowFacts, room: RowScratch
    ) -> None:
        a, ea, c = rows[place.r], rows_e[place.r], tile[place.r]
        e, power, scaled_power, sums = room.e, room.power, room.scaled_power, room.sums
        largest(ea, eb, terms, e)
        bias = i32(BIAS + u.fraction_bits)
        for j in range(PANEL_COLUMNS):
            bits = i32(c[j])
            exponent = i32(i32(i32(bits >> MANTISSA_BITS) & FIELD) - BIAS)
            if half:
                exponent = max(exponent, u.least) if i32(bits & MAGNITUDE) != i32(0) else u.floor
            added = i32(u.base)
            if scaled:
                added = i32(i32(u.base + place.scale) + scale_b[j])
            top = i32(i32(e[j]) + added) if i32(e[j]) > i32(NO_TERM) else u.floor
            top = max(max(top, u.floor), exponent)
            power[j] = i32(i32(bias - top) << MANTISSA_BITS)
            if scaled:
                field = i32(i32(i32(bias - top) + added) - u.base)
                scaled_power[j] = i32(max(field, i32(0)) << MANTISSA_BITS)
        p = scaled_power.view(f32) if scaled else power.view(f32)
        for g in range(4 if joined else 1):
            t = sums[g]
            for j in range(PANEL_COLUMNS):
                t[j] = i32(0)
        if terms == 4:
            add_four(a, b, 0, p, sums[0])
        for g in range(eights):
            add_eight(a, b, 8 * g, p, sums[g if joined else 0])

        q, value, t0, t1, t2, t3 = power.view(f32), c.view(f32), sums[0], sums[1], sums[2], sums[3]
        for j in range(PANEL_COLUMNS):
            bits = i32(c[j])
            total = wide(wide(t0[j]) + wide(i32(f32(value[j] * q[j]))))
            if joined:
                total = wide(total + wide(t1[j]))
                if eights == 4:
                    total = wide(total + wide(wide(t2[j]) + wide(t3[j])))
            magnitude = wide(abs(total))
            # without the bit below the 24 that are kept, rounding to nearest is a cut
            cut = wide(magnitude & ~wide(magnitude >> wide(24)))
            near = f32(cut).view(i32)
            if half:  # what was cut shows in the last bit, which rounds as the exact sum does
                near = i32(near | i32(wide(f32(cut)) != magnitude))
            near = i32(near | (SIGN if total < wide(0) else i32(0)))
            result = f32(i32(near).view(f32) * i32(POWER_OF_ZERO - i32(power[j])).view(f32))
            if half:
                result = rounded_to_half(result)
            new = i32(f32(result).view(i32) & u.kept)
            new = new if i32(new & MAGNITUDE) != i32(0) else i32(0)
            old = i32(bits & u.kept)
            old = old if i32(old & MAGNITUDE) != i32(0) else i32(0)
            old = bits if i32(bits & MAGNITUDE) >= INFINITE else old
            stays = (i32(e[j]) <= i32(NO_TERM)) | (i32(bits & MAGNITUDE) >= INFINITE)
            c[j] = old if stays else new

    fills = {"floats": _fill_floats, "bytes": code_filler(terms)}
    return RowLoops(
        PANEL_COLUMNS, 1, _panel_of(terms), decode_rows, fills, _nothing_to_begin, scalar(row), whole_scratch
    )
