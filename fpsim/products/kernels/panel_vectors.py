"""Panels of operands (decoded terms of one instruction) for AVX-512 or AVX2; `builder` is llvmlite's IRBuilder."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from fpsim.formats.named import BF16, FP16, Format
from fpsim.products.kernels.code_panel import (
    HALF_BIAS,
    HALF_FIELD_BITS,
    WIDTH,
    announce,
    code_facts,
    gatherer,
    half_facts,
)
from fpsim.products.kernels.fused_row import decode_rows
from fpsim.products.kernels.panel import DEEP, HIGHEST, SPECIAL, WINDOW, ZERO_EXPONENT, fill_panel
from fpsim.products.kernels.row_vectors import (
    EXPONENT,
    FLOAT_BIAS,
    GROUPS,
    MAGNITUDE,
    PLACES,
    VECTOR_COLUMNS,
    numbers_in,
)
from fpsim.runtime import vectors as v
from fpsim.runtime.compile import inner_loop, scalar

i8, i32, i64, f32 = np.int8, np.int32, np.int64, np.float32


@inner_loop
def _split(values: Any, b: Any) -> None:
    """Copy positive values to b[:, 0] and negative ones to b[:, 1], with zeros in place of the others.

    values: (terms, columns) int32, float32 patterns. b: float32, (terms, 2, columns), as a 1-D array.
    """
    columns, parts = i64(VECTOR_COLUMNS), b.view(i32)
    for k in range(values.shape[0]):
        first = i64(2 * columns * k)
        for j in range(columns):
            value = i32(values[k, j])
            parts[first + j] = max(value, i32(0))
            parts[first + columns + j] = min(value, i32(0))


def decoded(builder: Any, bits: Any, facts: Any) -> tuple[Any, Any, Any, Any]:
    """Emit the decoding of `bits`, a vector of float32 patterns, and return four vectors for the same elements.

    They are: the patterns, 0 for NaN and Inf; int8 exponents minus base; a mask of NaN and Inf; and a mask of exponents
    minus base outside -20 .. 20. facts: LLVM values (mask of the unit's bits, smallest exponent, base).
    """
    kind = bits.type
    kept, least, base = (v.everywhere(builder, fact, kind) for fact in facts)
    nothing, no_exponent = v.constant(0, kind), v.constant(ZERO_EXPONENT, kind)
    bits = builder.and_(bits, kept)
    magnitude = builder.and_(bits, v.constant(MAGNITUDE, kind))
    special = builder.icmp_signed(">=", magnitude, v.constant(EXPONENT, kind))
    exponent = builder.sub(builder.lshr(magnitude, v.constant(PLACES, kind)), v.constant(FLOAT_BIAS, kind))
    exponent = builder.sub(v.larger(builder, exponent, least), base)
    counts = builder.and_(builder.icmp_signed("!=", magnitude, nothing), builder.not_(special))
    low = builder.icmp_signed("<", exponent, v.constant(HIGHEST - WINDOW, kind))
    high = builder.icmp_signed(">", exponent, v.constant(HIGHEST, kind))
    deep = builder.and_(counts, builder.or_(low, high))
    fits = builder.and_(counts, builder.icmp_signed(">", exponent, no_exponent))
    exponent = builder.trunc(builder.select(fits, exponent, no_exponent), v.vector(v.BYTE, kind.count))
    return builder.select(special, nothing, bits), exponent, special, deep


def flags_of(builder: Any, special: Any, deep: Any) -> Any:
    """Emit and return an int32: SPECIAL if any bit of the mask `special` is set, plus DEEP if any bit of `deep` is."""
    flags = [builder.select(v.any_of(builder, [mask]), v.WORD(flag), v.WORD(0))
             for mask, flag in ((special, SPECIAL), (deep, DEEP))]  # fmt: skip
    return builder.or_(*flags)


@cache
def row_decoder(terms: int) -> Any:
    """Return the intrinsic (source, (m, k, at), (kept, least, base), values, exponents) -> flags for a row of a.

    It decodes `terms` terms of source (M, K), float32 patterns, from row m and term k on, into row `at` of values and
    exponents, (..., terms) int32 and int8. kept: mask of the bits that the unit reads. least: the format's smallest
    exponent. base: subtracted from exponents. flags: sum of SPECIAL (NaN, Inf) and DEEP (an exponent not in -20 .. 20).
    """

    def decode(_typing: Any, source: Any, place: Any, facts: Any, values: Any, exponents: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            m, k, at = numbers_in(builder, args[1])
            start = v.element(context, builder, sig.args[0], args[0], m, k)
            bits = v.load(builder, start, 0, v.vector(v.WORD, terms))
            value, exponent, special, deep = decoded(builder, bits, numbers_in(builder, args[2]))
            for i, kept_here, size in ((3, value, 4 * terms), (4, exponent, terms)):
                into = v.start_of(context, builder, sig.args[i], args[i])
                v.store(builder, kept_here, into, builder.mul(at, v.LONG(size)))
            return flags_of(builder, special, deep)

        return types.int32(source, place, facts, values, exponents), build

    return intrinsic(decode)


def _put_values(builder: Any, value: Any, b: Any, place: Any, by_sign: bool) -> None:
    """Emit the store of `value`, 16 decoded values of b (float32 patterns), `place` bytes after the address b.

    by_sign: positive values are stored there, negative ones 64 float32 later, each with zeros in place of the others.
    """
    if not by_sign:
        v.store(builder, value, b, place)
        return
    nothing = v.constant(0, v.INTS)
    v.store(builder, v.larger(builder, value, nothing), b, place)
    v.store(builder, v.smaller(builder, value, nothing), b, builder.add(place, v.LONG(GROUPS * v.SIZE)))


@cache
def panel_decoder(by_sign: bool) -> Any:
    """Return the intrinsic (source, (k, n, i), (kept, least, base), b, eb) -> flags that decodes 64 elements of term k.

    Row i of b and of eb gets the values and exponents of source[k, n : n + 64], float32 patterns; if by_sign, positive
    and negative values are stored apart. kept: mask of the bits that the unit reads. least: the format's smallest
    exponent. base: subtracted from exponents. flags: SPECIAL (NaN, Inf) + DEEP (an exponent not in -20 .. 20).
    """

    def decode(_typing: Any, source: Any, place: Any, facts: Any, b: Any, eb: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            (k, n, row), facts = numbers_in(builder, args[1]), numbers_in(builder, args[2])
            source = v.element(context, builder, sig.args[0], args[0], k, n)
            b, eb = (v.start_of(context, builder, sig.args[i], args[i]) for i in (3, 4))
            first = builder.mul(row, v.LONG((1 + by_sign) * GROUPS * v.SIZE))
            met, deeps = v.constant(0, v.vector(v.BIT, v.WIDTH)), v.constant(0, v.vector(v.BIT, v.WIDTH))
            for g in range(GROUPS):
                bits = v.load(builder, source, g * v.SIZE, v.INTS)
                value, exponent, special, deep = decoded(builder, bits, facts)
                met, deeps = builder.or_(met, special), builder.or_(deeps, deep)
                _put_values(builder, value, b, builder.add(first, v.LONG(g * v.SIZE)), by_sign)
                at = builder.add(builder.mul(row, v.LONG(VECTOR_COLUMNS)), v.LONG(g * v.WIDTH))
                v.store(builder, exponent, eb, at)
            return flags_of(builder, met, deeps)

        return types.int32(source, place, facts, b, eb), build

    return intrinsic(decode)


def _decoded_codes(builder: Any, codes: Any, facts: Any) -> tuple[Any, Any, Any]:
    """Emit and return (codes with 0 in place of NaN and Inf, their exponents, mask of NaN and Inf) for 64 codes.

    codes: a vector of bytes. facts: LLVM values of the fields up, highest, mantissa_bits and bias of CodeFacts.
    """
    up, highest, mantissa_bits, bias = facts
    all_ones = builder.lshr(v.WORD(MAGNITUDE >> v.WORD.width - WIDTH), up)
    nothing, one = v.constant(0, v.BYTES), v.constant(1, v.BYTES)
    highest = _everywhere(builder, highest, v.BYTES)
    magnitude = builder.and_(codes, _everywhere(builder, all_ones, v.BYTES))
    special = builder.icmp_unsigned(">", magnitude, highest)
    counts = builder.icmp_unsigned("<", builder.sub(magnitude, one), highest)  # 0 becomes 255
    twos = v.vector(v.HALF, VECTOR_COLUMNS // 2)  # processors have no shifts of bytes
    field = builder.lshr(builder.bitcast(magnitude, twos), _everywhere(builder, mantissa_bits, twos))
    whole_field = _everywhere(builder, builder.lshr(all_ones, mantissa_bits), v.BYTES)
    field = builder.and_(builder.bitcast(field, v.BYTES), whole_field)
    exponent = builder.sub(v.larger(builder, field, one), _everywhere(builder, bias, v.BYTES))
    exponent = builder.select(counts, exponent, v.constant(ZERO_EXPONENT, v.BYTES))
    return builder.select(counts, codes, nothing), exponent, special


def _everywhere(builder: Any, number: Any, kind: Any) -> Any:
    """Emit and return a vector of type `kind` whose lanes all hold the low bits of `number`, a 32-bit LLVM value."""
    return v.everywhere(builder, builder.trunc(number, kind.element), kind)


def _values_of(builder: Any, codes: Any, facts: Any) -> list[Any]:
    """Emit the values of 64 finite codes, and return them as four vectors of float32 patterns.

    facts: LLVM values of the fields up, highest (not used), mantissa_bits and bias of CodeFacts.
    """
    up, _, mantissa_bits, bias = facts
    twos = v.vector(v.HALF, VECTOR_COLUMNS // 2)
    to_front = _everywhere(builder, builder.add(up, v.WORD(v.HALF.width - WIDTH)), twos)
    missing = builder.sub(builder.add(mantissa_bits, up), v.WORD(WIDTH - 1 - HALF_FIELD_BITS))
    back = _everywhere(builder, missing, twos)
    kept = builder.or_(builder.lshr(v.WORD(0x7FFF), missing), v.WORD(0x8000))
    kept = _everywhere(builder, kept, twos)
    power = builder.shl(builder.sub(v.WORD(FLOAT_BIAS + HALF_BIAS), bias), v.WORD(PLACES))
    power = builder.bitcast(v.everywhere(builder, power, v.INTS), v.FLOATS)
    values = []
    for first in range(0, VECTOR_COLUMNS, VECTOR_COLUMNS // 2):
        words = builder.zext(v.lanes_of(builder, codes, first, VECTOR_COLUMNS // 2), twos)
        words = builder.and_(builder.ashr(builder.shl(words, to_front), back), kept)
        for g in range(0, VECTOR_COLUMNS // 2, v.WIDTH):
            halves = builder.bitcast(v.lanes_of(builder, words, g, v.WIDTH), v.vector(v.SMALL, v.WIDTH))
            value = builder.fmul(builder.fpext(halves, v.FLOATS), power)
            values.append(builder.bitcast(value, v.INTS))
    return values


@cache
def code_decoder(by_sign: bool) -> Any:
    """Return the intrinsic (source, (k, n, i), facts, b, eb) -> mask that decodes 64 8-bit codes of term k.

    Row i of b and of eb gets the values and exponents of source[k, n : n + 64]; if by_sign, positive and negative
    values are stored apart. facts: the fields up, highest, mantissa_bits and bias of CodeFacts. mask: int64, whose bit
    j is set if code j is NaN or Inf.
    """

    def decode(_typing: Any, source: Any, place: Any, facts: Any, b: Any, eb: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            (k, n, row), facts = numbers_in(builder, args[1]), numbers_in(builder, args[2])
            source = v.element(context, builder, sig.args[0], args[0], k, n)
            b, eb = (v.start_of(context, builder, sig.args[i], args[i]) for i in (3, 4))
            first = builder.mul(row, v.LONG((1 + by_sign) * GROUPS * v.SIZE))
            codes, exponent, special = _decoded_codes(builder, v.load(builder, source, 0, v.BYTES), facts)
            v.store(builder, exponent, eb, builder.mul(row, v.LONG(VECTOR_COLUMNS)))
            for g, value in enumerate(_values_of(builder, codes, facts)):
                _put_values(builder, value, b, builder.add(first, v.LONG(g * v.SIZE)), by_sign)
            return builder.bitcast(special, v.LONG)

        return types.int64(source, place, facts, b, eb), build

    return intrinsic(decode)


@cache
def half_decoder(by_sign: bool, fmt: Format) -> Any:
    """Return the intrinsic (source, k, n, base, b, eb, i) -> mask that decodes 64 codes of fmt, FP16 or BF16.

    Row i of b and of eb gets the values and the exponents minus base of source[k, n : n + 64]; if by_sign, positive and
    negative values are stored apart. mask: int64. For j < 32, bit j is set if the code of column j or j + 32 is NaN
    or Inf; bit 32 + j is set if the stored exponent of either is outside -20 .. 20.
    """
    infinity, kind = fmt.max_code + 1, v.vector(v.HALF, VECTOR_COLUMNS // 2)
    mantissa_bits, bias, magnitudes, is_half = fmt.mantissa_bits, fmt.bias, fmt.top_magnitude, fmt == FP16

    def exponents(builder: Any, magnitude: Any, counts: Any, base: Any) -> tuple[Any, Any]:
        # returns (exponents minus base, mask of those out of range); counts: mask of finite nonzero codes
        field = builder.lshr(magnitude, v.constant(mantissa_bits, kind))
        field = v.larger(builder, field, v.constant(1, kind))
        exponent = builder.sub(field, _everywhere(builder, builder.add(base, v.WORD(bias)), kind))
        above = builder.sub(exponent, v.constant(HIGHEST - WINDOW, kind))
        deep = builder.and_(builder.icmp_unsigned(">", above, v.constant(WINDOW, kind)), counts)
        lowest = v.constant(ZERO_EXPONENT, kind)
        return builder.select(counts, v.larger(builder, exponent, lowest), lowest), deep

    def values(builder: Any, codes: Any) -> Any:  # returns 16 codes as float32 patterns
        if is_half:
            halves = builder.bitcast(codes, v.vector(v.SMALL, v.WIDTH))
            return builder.bitcast(builder.fpext(halves, v.FLOATS), v.INTS)
        return builder.shl(builder.zext(codes, v.INTS), v.constant(v.HALF.width, v.INTS))

    def decode(_typing: Any, source: Any, k: Any, n: Any, base: Any, b: Any, eb: Any, i: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            source = v.element(context, builder, sig.args[0], args[0], args[1], args[2])
            b, eb = (v.start_of(context, builder, sig.args[i], args[i]) for i in (4, 5))
            first = builder.mul(args[6], v.LONG((1 + by_sign) * GROUPS * v.SIZE))
            met = v.constant(0, v.vector(v.BIT, kind.count))
            deeps = met
            for half in range(2):
                codes = v.load(builder, source, half * v.SIZE, kind)
                magnitude = builder.and_(codes, v.constant(magnitudes, kind))
                special = builder.icmp_unsigned(">=", magnitude, v.constant(infinity, kind))
                before = builder.sub(magnitude, v.constant(1, kind))  # the largest number for a zero
                counts = builder.icmp_unsigned("<", before, v.constant(infinity - 1, kind))
                exponent, deep = exponents(builder, magnitude, counts, args[3])
                met, deeps = builder.or_(met, special), builder.or_(deeps, deep)
                at = builder.add(builder.mul(args[6], v.LONG(VECTOR_COLUMNS)), v.LONG(half * kind.count))
                v.store(builder, builder.trunc(exponent, v.vector(v.BYTE, kind.count)), eb, at)
                finite = builder.select(counts, codes, v.constant(0, kind))
                for g in range(2):
                    value = values(builder, v.lanes_of(builder, finite, g * v.WIDTH, v.WIDTH))
                    place = builder.add(first, v.LONG((2 * half + g) * v.SIZE))
                    _put_values(builder, value, b, place, by_sign)
            low, high = (builder.zext(builder.bitcast(mask, v.WORD), v.LONG) for mask in (met, deeps))
            return builder.or_(low, builder.shl(high, v.LONG(v.WORD.width)))

        return types.int64(source, k, n, base, b, eb, i), build

    return intrinsic(decode)


@cache
def decoder_of(terms: int) -> Any:
    """Return the loop `RowLoops.decode`, which decodes `terms` terms of rows of a.

    It uses vectors if all these terms are within K, else scalar code.
    """
    whole = row_decoder(terms)

    def decode(
        source: Any, m: Any, rows: Any, k: Any, facts: Any, values: Any, exponents: Any, s: Any, flags: Any
    ) -> None:
        if k + terms > source.shape[1]:
            decode_rows(source, m, rows, k, facts, values, exponents, s, flags)
            return
        kept, least, base, first = facts[0], facts[1], facts[2], i64(s * values.shape[1])
        for r in range(rows):
            flags[s, r] = whole(source, (i64(m + r), i64(k), i64(first + r)), (kept, least, base), values, exponents)

    return inner_loop(decode)


@cache
def filler_of(terms: int, by_sign: bool) -> Any:
    """Return the loop RowLoops.fills["floats"], which decodes float32 patterns of `terms` terms of b.

    by_sign: positive and negative values are stored apart.
    """
    whole = panel_decoder(by_sign)

    def fill(source: Any, place: Any, facts: Any, values: Any, exponents: Any, b: Any, eb: Any, _codes: Any) -> Any:
        k, n, width = place
        flags = i32(0)
        if width < VECTOR_COLUMNS or k + terms > source.shape[0]:
            flags = i32(fill_panel(source, k, n, width, i64(terms), facts, values, exponents))
            if by_sign:
                _split(values, b)
        else:
            kept, least, base = facts[0], facts[1], facts[2]
            for i in range(terms):
                flags = i32(flags | whole(source, (i64(k + i), i64(n), i64(i)), (kept, least, base), b, eb))
        return flags

    return inner_loop(fill)


@cache
def _byte_decoder(terms: int, by_sign: bool) -> Any:
    """Return the function (source, k, n, facts, b, eb) -> flags that decodes 8-bit codes of operand b.

    It decodes terms k .. k + terms - 1 of 64 columns from n on: values to b (if by_sign, positive and negative ones
    apart), exponents to eb. facts: a CodeFacts array. flags: SPECIAL for NaN or Inf, else 0.
    """
    row = code_decoder(by_sign)

    def decode(source: Any, k: Any, n: Any, facts: Any, b: Any, eb: Any) -> Any:
        u, special = code_facts(facts), i64(0)
        layout = u.up, u.highest, u.mantissa_bits, u.bias
        for i in range(terms):
            special |= row(source, (i64(k + i), i64(n), i64(i)), layout, b, eb)
        return i32(SPECIAL) if special != 0 else i32(0)

    return scalar(decode)


@cache
def _half_decoder(terms: int, by_sign: bool) -> Any:
    """Return the function (source, k, n, facts, b, eb) -> flags that decodes FP16 or BF16 codes of operand b.

    It decodes terms k .. k + terms - 1 of 64 columns from n on: values to b (if by_sign, positive and negative ones
    apart), exponents to eb. facts: a HalfFacts array. flags: SPECIAL (NaN or Inf) + DEEP (a stored exponent not in -20
    .. 20).
    """
    of_half, of_bfloat = half_decoder(by_sign, FP16), half_decoder(by_sign, BF16)

    def decode(source: Any, k: Any, n: Any, facts: Any, b: Any, eb: Any) -> Any:
        u, met = half_facts(facts), i64(0)
        if u.is_half != i32(0):
            for i in range(terms):
                met |= of_half(source, i64(k + i), i64(n), u.base, b, eb, i64(i))
        else:
            for i in range(terms):
                met |= of_bfloat(source, i64(k + i), i64(n), u.base, b, eb, i64(i))
        special = i32(SPECIAL) if met & i64(0xFFFFFFFF) != 0 else i32(0)
        return i32(special | i32(DEEP)) if met >> i64(32) != 0 else special

    return scalar(decode)


@cache
def _code_filler(terms: int, decode: Any, layout: Any) -> Any:
    """Return the loop of `RowLoops.fills` that decodes codes of `terms` terms of operand b.

    decode: a result of `_byte_decoder` or `_half_decoder`. layout: the function that names `facts`' numbers.
    """
    gather = gatherer(terms)

    def fill(source: Any, place: Any, facts: Any, _values: Any, _exponents: Any, b: Any, eb: Any, codes: Any) -> Any:
        (k, n, width), turned = place, layout(facts).turned
        announce(source, k, n, i64(terms), i64(VECTOR_COLUMNS), turned)
        if turned == i32(0) and width == VECTOR_COLUMNS and k + terms <= source.shape[0]:
            return decode(source, k, n, facts, b, eb)
        gather(source, k, n, width, turned, codes)
        return decode(codes, 0, 0, facts, b, eb)

    return inner_loop(fill)


def fills_of(terms: int, by_sign: bool) -> dict[str, Any]:
    """Return the dict `RowLoops.fills` of vectorised functions that decode `terms` terms of operand b.

    Keys: "floats", and codes as "bytes" or "halves". by_sign: positive and negative values are stored apart.
    """
    bytes_filler = _code_filler(terms, _byte_decoder(terms, by_sign), code_facts)
    halves_filler = _code_filler(terms, _half_decoder(terms, by_sign), half_facts)
    return {"floats": filler_of(terms, by_sign), "bytes": bytes_filler, "halves": halves_filler}
