"""A slow, obvious oracle for matrix units, one row of codes at a time in Python's integers, and rows to try it on.

Three steps: `read` gives a code its exact value, a rule of RULES adds the terms of one step, `write` rounds the sum.
A number is `(-1)**negative * integer * 2**ulp`. The rules are those of docs/matrix-units.md; only facts of the units
and formats come from fpsim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from fpsim.formats.named import E4M3, E8M0, FP16, FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from tests.oracles.units.numbers import (
    PLUS_ZERO,
    Number,
    aligned_sum,
    floor,
    multiply,
    nan_code,
    read,
    read_operand,
    special_sum,
    total,
    write,
)

Array = npt.NDArray[Any]

GROUP = 16  # products of mxf4 and mxf4nvf4 that add up before their scales join
# AMD CDNA3, mmasim 2.1.1: bits below the largest exponent that the sum of products, and the final sum, keep
SUM_BITS, FINAL_BITS = 32, 31


class Step(NamedTuple):
    """What one step adds up: read operands, the accumulator, and the block scales of every term."""

    a: list[Number]
    b: list[Number]
    c: Number
    scale_a: list[Number]
    scale_b: list[Number]
    unit: MatrixUnit

    @property
    def products(self) -> list[Number]:
        return [multiply(x, y) for x, y in zip(self.a, self.b, strict=True)]


# ---- one step of each rule: a Number when it is special, else rounded to the code of d


def finish(value: Number, unit: MatrixUnit, rounding: str = "nearest_even") -> int:
    """Return the code of a result: the unit's NaN, Inf, or the rounded value."""
    fmt = unit.d.fmt
    if value.kind == "nan":
        return nan_code(unit)
    if value.kind == "infinity":
        assert fmt.infinity_code is not None
        return (fmt.sign_bit if value.negative else 0) | fmt.infinity_code
    return write(value, fmt, rounding, unit.result_bits)


def fuse(terms: Sequence[Number], exponents: Sequence[int], unit: MatrixUnit) -> int:
    """Align all terms to the largest exponent, cut, add, round once; zero is +0."""
    if (special := special_sum(terms)) is not None:
        return finish(special, unit)
    value = aligned_sum(terms, max(*exponents, unit.floor_exponent), unit.fraction_bits)
    code = finish(value, unit, "toward_zero" if unit.d.fmt == FP32 else "nearest_even")
    return 0 if code == unit.d.fmt.sign_bit else code


def fuse_products(terms: Sequence[Number], unit: MatrixUnit) -> int:
    """`fuse`, each term with its own exponent and a zero with that of the floor."""
    return fuse(terms, [unit.floor_exponent if term.is_zero else term.exponent for term in terms], unit)


def fused(step: Step) -> int:
    return fuse_products([*step.products, step.c], step.unit)


def scaled(step: Step) -> int:
    scales = [multiply(x, y) for x, y in zip(step.scale_a, step.scale_b, strict=True)]
    products = [multiply(product, scale) for product, scale in zip(step.products, scales, strict=True)]
    return fuse_products([*products, step.c], step.unit)


def grouped(step: Step) -> int:
    """Exact dot products of 16, aligned by the exponents of their scales alone."""
    products = step.products
    terms, exponents = [step.c], [step.unit.floor_exponent if step.c.is_zero else step.c.exponent]
    for start in range(0, len(products), GROUP):
        group = products[start : start + GROUP]
        scale = multiply(step.scale_a[start], step.scale_b[start])
        terms.append(multiply(total(group)._replace(exponent=0), scale))
        # a group that cancels to zero still counts with the exponent of its scales
        absent = scale.is_zero or all(product.is_zero for product in group)
        exponents.append(step.unit.floor_exponent if absent else scale.exponent)
    return fuse(terms, exponents, step.unit)


def in_float16(x: Number) -> Number:
    """Return an FP8 number as a float16, in which subnormals of E4M3 are normal."""
    if x.kind != "finite" or x.is_zero:
        return x
    return x._replace(exponent=max(x.integer.bit_length() - 1 + x.ulp, FP16.min_exponent))


def two_passes(step: Step) -> int:
    """Terms with k mod 4 in {0, 1}, then those in {2, 3}, in steps of an FP16 unit; then one addition to c."""
    products = [multiply(in_float16(x), in_float16(y)) for x, y in zip(step.a, step.b, strict=True)]
    accumulator = PLUS_ZERO
    for places in ((0, 1), (2, 3)):
        terms = [product for k, product in enumerate(products) if k % 4 in places]
        accumulator = read(fuse_products([*terms, accumulator], step.unit), step.unit.d.fmt)
    return finish(special_sum([step.c, accumulator]) or total([step.c, accumulator]), step.unit)


def exact(step: Step) -> int:
    """IEEE 754's fused multiply-add, or a sum of several products, of which a zero is +0."""
    terms = [*step.products, step.c]
    sum_ = special_sum(terms) or total(terms)
    return finish(PLUS_ZERO if sum_.is_zero and step.unit.terms > 1 else sum_, step.unit)


def flush(value: Number, fmt: Format, *, keep_sign: bool = False) -> Number:
    """Zero in place of a subnormal; a zero that came in loses its sign as well, unless signs are kept."""
    tiny = value.kind == "finite" and value.integer < 2**fmt.mantissa_bits
    return PLUS_ZERO._replace(negative=keep_sign and value.negative) if tiny else value


def as_float32(value: Number) -> Number:
    """Round to float32, with a subnormal result flushed to a zero of its sign."""
    if value.kind != "finite":
        return value
    return flush(read(write(value, FP32), FP32), FP32, keep_sign=True)


def flushed_add(x: Number, y: Number) -> Number:
    return as_float32(special_sum([x, y]) or total([x, y]))


def flushed_tree(step: Step) -> int:
    """Pairs of float32 products, pairs of pairs, then c; missing terms are products of +0."""
    a, b = ([flush(x, element.fmt) for x in side] for side, element in ((step.a, step.unit.a), (step.b, step.unit.b)))
    level = [as_float32(multiply(x, y)) for x, y in zip(a, b, strict=True)]
    level += [PLUS_ZERO] * (step.unit.terms - len(level))
    while len(level) > 1:
        level = [flushed_add(x, y) for x, y in zip(level[::2], level[1::2], strict=True)]
    return finish(flushed_add(step.c, level[0]), step.unit)


def overflowed(product: Number) -> Number:
    """Inf where a product reaches 2**128."""
    if product.kind == "finite" and product.integer and product.integer.bit_length() + product.ulp > 128:
        return Number("infinity", product.negative)
    return product


class Sum(NamedTuple):
    """A sum of products, and the largest exponent among those that are not zero; None where all are."""

    value: Number
    top: int | None


def sum_of(products: Sequence[Number], bits: int) -> Sum:
    """Products cut at `bits` below the largest exponent, where a zero has none."""
    exponents = [product.exponent for product in products if not product.is_zero]
    if not exponents:
        return Sum(PLUS_ZERO, None)
    return Sum(aligned_sum(products, max(exponents), bits), max(exponents))


def join(products: Sum, c: Number, unit: MatrixUnit, *, drops_small_c: bool) -> int:
    """Return the accumulator's cut and the two floors that end a step of CDNA3; zero is +0."""
    top = c.exponent if products.top is None else max(products.top, c.exponent)
    addend = floor(c, top - unit.fraction_bits)
    if drops_small_c and c.exponent < top - unit.fraction_bits - 1:
        addend = PLUS_ZERO
    value = total([floor(products.value, top - SUM_BITS), addend])
    exponent = max(value.integer.bit_length() - 1 + value.ulp, unit.floor_exponent)
    return finish(floor(value, exponent - FINAL_BITS), unit)


def separate(step: Step) -> int:
    products = [overflowed(product) for product in step.products]
    if (special := special_sum([*products, step.c])) is not None:
        return finish(special, step.unit)
    return join(sum_of(products, step.unit.fraction_bits), step.c, step.unit, drops_small_c=False)


def even_odd(step: Step) -> int:
    products, bits = [overflowed(product) for product in step.products], step.unit.fraction_bits
    if (special := special_sum([*products, step.c])) is not None:
        return finish(special, step.unit)
    halves = [sum_of(products[start::2], bits) for start in (0, 1)]
    tops = [half.top for half in halves if half.top is not None]
    if not tops:
        return join(halves[0], step.c, step.unit, drops_small_c=True)
    top = max(tops)
    value = total([floor(half.value, top - bits) for half in halves])
    return join(Sum(value, top), step.c, step.unit, drops_small_c=True)


def flushed_float32(value: Number) -> Number:
    """Round to 24 bits with unbounded exponent; below 2**-126 return a zero of its sign, from 2**128 on Inf."""
    if value.kind != "finite" or value.integer == 0:
        return value
    exponent = value.integer.bit_length() - 1 + value.ulp
    ulp = exponent - FP32.mantissa_bits
    shift = max(ulp - value.ulp, 0)
    kept, rest = divmod(value.integer, 1 << shift)
    half = (1 << shift) // 2
    kept += shift > 0 and (rest > half or (rest == half and kept % 2 == 1))
    ulp = value.ulp + shift
    if kept.bit_length() + ulp <= FP32.min_exponent:
        return Number("finite", value.negative)
    return read(write(Number("finite", value.negative, kept, ulp), FP32), FP32)


def flushed_fma(x: Number, y: Number, z: Number) -> Number:
    """Return x * y + z with one rounding; inputs and results below 2**-126 are zeros of their sign."""
    x, y, z = (daz(number) for number in (x, y, z))
    terms = [multiply(x, y), z]
    return flushed_float32(special_sum(terms) or total(terms))


def daz(value: Number) -> Number:
    """Return a number, or a zero of its sign below 2**-126."""
    tiny = value.kind == "finite" and value.integer.bit_length() + value.ulp <= FP32.min_exponent
    return Number("finite", value.negative) if tiny else value


def reversed_chain(step: Step) -> int:
    """One fused multiply-add per term, from the last to the first; missing terms are products of +0."""
    padding = [PLUS_ZERO] * (step.unit.terms - len(step.a))
    c = daz(step.c)
    for x, y in reversed(list(zip([*step.a, *padding], [*step.b, *padding], strict=True))):
        c = flushed_fma(x, y, c)
    return finish(c, step.unit)


def two_chains(step: Step) -> int:
    """Even and odd terms in chains of their own from +0; missing terms are products of +0."""
    chains = [PLUS_ZERO, PLUS_ZERO]
    for k, (x, y) in enumerate(zip(step.a, step.b, strict=True)):
        chains[k % 2] = flushed_fma(x, y, chains[k % 2])
    both = flushed_float32(special_sum(chains) or total(chains))
    terms = [daz(step.c), both]
    return finish(flushed_float32(special_sum(terms) or total(terms)), step.unit)


def odd_float32(value: Number) -> Number:
    """A zero of its sign below 2**-126, else cut to 24 bits, whose last is set where something was cut off."""
    value = daz(value)
    if value.kind != "finite" or value.integer == 0:
        return value
    shift = max(value.integer.bit_length() - 1 - FP32.mantissa_bits, 0)
    kept, rest = divmod(value.integer, 1 << shift)
    if kept.bit_length() + value.ulp + shift > FP32.max_exponent + 1:
        return Number("infinity", value.negative)
    return read(write(Number("finite", value.negative, kept | (rest > 0), value.ulp + shift), FP32), FP32)


def pair_of_products(step: Step) -> list[tuple[Number, Number]]:
    """The operands of both products; a missing term is a product of +0."""
    padding = [PLUS_ZERO] * (2 - len(step.a))
    return list(zip([*step.a, *padding], [*step.b, *padding], strict=True))


def odd_pair(step: Step) -> int:
    products = [odd_float32(multiply(daz(x), daz(y))) for x, y in pair_of_products(step)]
    pair = odd_float32(special_sum(products) or total(products))
    terms = [daz(step.c), pair]
    return finish(odd_float32(special_sum(terms) or total(terms)), step.unit)


def fused_pair(step: Step) -> int:
    products = [multiply(x, y) for x, y in pair_of_products(step)]
    exact_pair = special_sum(products) or total(products)
    pair = exact_pair if exact_pair.kind != "finite" else read(write(exact_pair, FP32), FP32)
    terms = [step.c, pair]
    return finish(special_sum(terms) or total(terms), step.unit)


RULES: dict[Rule, Callable[[Step], int]] = {
    Rule.FUSED: fused,
    Rule.SCALED: scaled,
    Rule.GROUPED: grouped,
    Rule.TWO_PASSES: two_passes,
    Rule.EXACT: exact,
    Rule.FLUSHED_TREE: flushed_tree,
    Rule.SEPARATE: separate,
    Rule.EVEN_ODD: even_odd,
    Rule.REVERSED_CHAIN: reversed_chain,
    Rule.TWO_CHAINS: two_chains,
    Rule.ODD_PAIR: odd_pair,
    Rule.FUSED_PAIR: fused_pair,
}


# ---- a row, all rows


def read_scale(code: int, unit: MatrixUnit) -> Number:
    """Return the value of a block scale: a power of two, or an E4M3 whose sign bit is ignored."""
    return read(code, E8M0) if unit.scale == "ue8m0" else read(code & 0x7F, E4M3)


def dot_add(
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    unit: MatrixUnit,
    scale_a: Sequence[int] = (),
    scale_b: Sequence[int] = (),
) -> int:
    """Return the code of c + sum(a * b), in steps over ascending k."""
    xs, ys = [read_operand(code, unit.a) for code in a], [read_operand(code, unit.b) for code in b]
    scales = [[read_scale(code, unit) for code in codes for _ in range(unit.block)] for codes in (scale_a, scale_b)]
    d = c
    if unit.rule is Rule.FLUSHED_TREE:  # later steps return nothing that is left to flush
        d = finish(flush(read(c, FP32), FP32), unit)
    for start in range(0, len(xs), unit.terms):
        part = slice(start, start + unit.terms)
        step = Step(xs[part], ys[part], read(d, unit.d.fmt), scales[0][part], scales[1][part], unit)
        d = RULES[unit.rule](step)
    return d
