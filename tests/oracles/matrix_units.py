"""A slow, obvious oracle for matrix units, one row of codes at a time in Python's integers, and rows to try it on.

Three steps: `read` gives a code its exact value, a rule of RULES adds the terms of one step, `write` rounds the sum.
A number is `(-1)**negative * integer * 2**ulp`. The rules are those of docs/matrix-units.md; only facts of the units
and formats come from fpsim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import E4M3, E8M0, FP16, FP32, Format
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from tests.oracles import casts
from tests.oracles.casts import Kind

Array = npt.NDArray[Any]

GROUP = 16  # products of mxf4 and mxf4nvf4 that add up before their scales join
# AMD CDNA3, mmasim 2.1.1: bits below the largest exponent that the sum of products, and the final sum, keep
SUM_BITS, FINAL_BITS = 32, 31


class Number(NamedTuple):
    """The value of a code, or of a product; `exponent` is the one that terms are aligned by."""

    kind: Kind
    negative: bool = False
    integer: int = 0
    ulp: int = 0
    exponent: int = 0

    @property
    def is_zero(self) -> bool:
        return self.kind == "finite" and self.integer == 0

    @property
    def is_negative_zero(self) -> bool:
        return self.is_zero and self.negative

    @property
    def signed(self) -> int:
        return -self.integer if self.negative else self.integer


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


NAN = Number("nan")
PLUS_ZERO = Number("finite")


# ---- codes


@lru_cache(maxsize=1 << 18)
def read(code: int, fmt: Format) -> Number:
    """Return the value of a code; a subnormal keeps the smallest exponent."""
    magnitude, negative = code & fmt.top_magnitude, bool(code & fmt.sign_bit)
    kind = "nan" if fmt.nan == "negative_zero" and code == fmt.sign_bit else casts.kind(fmt, magnitude)
    if kind != "finite":
        return Number(kind, negative)
    field, fraction = magnitude >> fmt.mantissa_bits, magnitude % 2**fmt.mantissa_bits
    if fmt.subnormals and field == 0:
        integer, exponent = fraction, fmt.min_exponent
    else:
        integer, exponent = 2**fmt.mantissa_bits + fraction, field - fmt.bias
    return Number("finite", negative, integer, exponent - fmt.mantissa_bits, exponent)


def read_operand(code: int, element: Element) -> Number:
    """Return the value of an operand; TF32 drops the low bits of a float32, also if only they make it a NaN."""
    return read(code >> (element.carrier.bits - element.fmt.bits), element.fmt)


def write(value: Number, fmt: Format, rounding: str = "nearest_even", mantissa_bits: int | None = None) -> int:
    """Return the code of a finite value rounded once; bits below `mantissa_bits` are zero, overflow is Inf."""
    sign = fmt.sign_bit if value.negative else 0
    if value.is_zero:
        return sign
    kept = fmt.mantissa_bits if mantissa_bits is None else mantissa_bits
    exponent = max(value.integer.bit_length() - 1 + value.ulp, fmt.min_exponent)
    shift = exponent - kept - value.ulp  # bits to drop
    significand, rest = divmod(value.integer << max(-shift, 0), 1 << max(shift, 0))
    half = 1 << shift - 1 if shift > 0 else 1
    if rounding == "nearest_even" and (rest > half or (rest == half and significand % 2)):
        significand += 1
    # the hidden bit, and a carry, walk into the exponent field by themselves
    code = (exponent - fmt.min_exponent << fmt.mantissa_bits) + (significand << fmt.mantissa_bits - kept)
    assert fmt.infinity_code is not None
    return sign | min(code, fmt.infinity_code)


def nan_code(unit: MatrixUnit) -> int:
    """All ones from NVIDIA's units and CDNA3's, the quiet NaN from chains of IEEE operations, CDNA1 and CDNA2."""
    fmt = unit.d.fmt
    assert fmt.nan_code is not None
    if unit.rule in (Rule.REVERSED_CHAIN, Rule.TWO_CHAINS):
        return fmt.nan_code | fmt.sign_bit
    quiet = (Rule.EXACT, Rule.FLUSHED_TREE, Rule.ODD_PAIR, Rule.FUSED_PAIR)
    return fmt.nan_code if unit.rule in quiet else fmt.top_magnitude


# ---- exact numbers


def multiply(x: Number, y: Number) -> Number:
    """Return the exact product, not normalised: its significand lies in [0, 4)."""
    negative = x.negative != y.negative
    kinds = {x.kind, y.kind}
    if "nan" in kinds or ("infinity" in kinds and (x.is_zero or y.is_zero)):
        return NAN
    if "infinity" in kinds:
        return Number("infinity", negative)
    return Number("finite", negative, x.integer * y.integer, x.ulp + y.ulp, x.exponent + y.exponent)


def number(signed: int, ulp: int, *, negative_zero: bool = False) -> Number:
    """`signed * 2**ulp`."""
    return Number("finite", signed < 0 or (signed == 0 and negative_zero), abs(signed), ulp)


def total(terms: Sequence[Number]) -> Number:
    """Return the exact sum; zero is negative only where every term is -0."""
    ulp = min(term.ulp for term in terms)
    signed = sum(term.signed << term.ulp - ulp for term in terms)
    return number(signed, ulp, negative_zero=all(term.is_negative_zero for term in terms))


def special_sum(terms: Iterable[Number]) -> Number | None:
    """NaN or Inf where a term is one, else None."""
    specials = {term for term in terms if term.kind != "finite"}
    if not specials:
        return None
    return specials.pop() if len(specials) == 1 else NAN


def cut(term: Number, place: int) -> Number:
    """Return the magnitude without its part below 2**place."""
    integer = term.integer << term.ulp - place if term.ulp >= place else term.integer >> place - term.ulp
    return term._replace(integer=integer, ulp=place)


def floor(term: Number, place: int) -> Number:
    """Return the multiple of 2**place at or below a number."""
    signed = term.signed << term.ulp - place if term.ulp >= place else term.signed >> place - term.ulp
    return number(signed, place)


def aligned_sum(terms: Sequence[Number], top: int, bits: int) -> Number:
    """Terms cut toward zero at `bits` below 2**top, then added exactly."""
    return total([cut(term, top - bits) for term in terms])


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


# ---- rows


class Rows(NamedTuple):
    """Operands of `fp.dot_add`: codes a, b (N, K) and c (N,), scale codes (N, K / block) or None."""

    a: Array
    b: Array
    c: Array
    scale_a: Array | None = None
    scale_b: Array | None = None

    def __len__(self) -> int:
        return len(self.c)

    def scales(self) -> dict[str, Array]:
        """Keywords of `fp.dot_add`."""
        named = {"scale_a": self.scale_a, "scale_b": self.scale_b}
        return {name: codes for name, codes in named.items() if codes is not None}


def dot_add_rows(rows: Rows, unit: MatrixUnit) -> Array:
    """Return the oracle's code for every row."""
    empty = np.zeros((len(rows), 0), np.uint8)
    columns = (rows.a, rows.b, rows.c, *(empty if scale is None else scale for scale in (rows.scale_a, rows.scale_b)))
    results = [
        dot_add(a, b, c, unit, scale_a, scale_b)
        for a, b, c, scale_a, scale_b in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return np.array(results, unit.d.dtype)


class Codes:
    """Random codes of one element, in arrays of one shape."""

    def __init__(self, element: Element, shape: tuple[int, ...], generator: np.random.Generator) -> None:
        self.fmt, self.element, self.shape, self.generator = element.fmt, element, shape, generator

    def integers(self, count: int) -> Array:
        """0 .. count - 1."""
        if count == 1:  # for which nothing is drawn
            return np.zeros(self.shape, np.uint64)
        return self.generator.integers(0, count, self.shape, dtype=np.uint64)

    def carried(self, codes: Array) -> Array:
        """Codes as the unit takes them: what TF32 drops is random."""
        low = self.element.carrier.bits - self.fmt.bits
        return (codes << np.uint64(low) | self.integers(1 << low) if low else codes).astype(self.element.dtype)

    def signed(self, magnitudes: Array) -> Array:
        """With a random sign; zero stays +0 where the format has no -0."""
        signs = self.integers(2) * np.uint64(self.fmt.sign_bit)
        return self.carried(magnitudes | (signs if self.fmt.negative_zero else signs * (magnitudes != 0)))

    def near(self, exponent: int, spread: int, *, few_bits: bool = False) -> Array:
        """Finite values about 2**exponent, up to 2**spread away: with any mantissa, or with one bit of it at most."""
        fmt = self.fmt
        fields = self.generator.integers(exponent - spread, exponent + spread + 1, self.shape) + fmt.bias
        mantissa = self.integers(1 << fmt.mantissa_bits)
        if few_bits:
            mantissa &= np.uint64(1) << self.integers(2 * fmt.mantissa_bits + 1)
        fields = np.minimum(np.maximum(fields, 0), fmt.max_code >> fmt.mantissa_bits).astype(np.uint64)
        return self.signed(np.minimum(fields << np.uint64(fmt.mantissa_bits) | mantissa, np.uint64(fmt.max_code)))

    def wide(self) -> Array:
        """Every finite exponent."""
        return self.near(0, 1 << self.fmt.exponent_bits)

    def uniform(self) -> Array:
        """Every finite magnitude alike."""
        return self.signed(self.integers(self.fmt.max_code + 1))

    def largest(self) -> Array:
        """Draw values of the top binades."""
        return self.near((self.fmt.max_code >> self.fmt.mantissa_bits) - self.fmt.bias, 1)

    def subnormal(self) -> Array:
        return self.signed(self.integers(1 << self.fmt.mantissa_bits))

    def zero(self) -> Array:
        zeros: Array = self.signed(self.integers(1)) & self.element.dtype.type(self.element.carrier.sign_bit)
        return zeros

    def anything(self) -> Array:
        """Every code of the carrier."""
        return self.integers(1 << self.element.carrier.bits).astype(self.element.dtype)

    def special(self) -> Array:
        """NaN, Inf, the largest and the smallest magnitudes and zero, where the format has them."""
        fmt = self.fmt
        smallest_normal = 1 << fmt.mantissa_bits
        magnitudes = {0, 1, smallest_normal - 1, smallest_normal, fmt.max_code, fmt.top_magnitude}
        magnitudes |= {code for code in (fmt.infinity_code, fmt.nan_code) if code is not None}
        signs = self.integers(2) * np.uint64(fmt.sign_bit)
        return self.carried(self.generator.choice(np.array(sorted(magnitudes), np.uint64), self.shape) | signs)

    def negated(self, codes: Array) -> Array:
        """Return the same magnitudes with the other sign; +0 stays if the format has no -0."""
        has_sign = (codes != 0) | self.fmt.negative_zero
        flipped: Array = codes ^ (self.element.dtype.type(self.element.carrier.sign_bit) * has_sign)
        return flipped

    def positive(self, codes: Array) -> Array:
        magnitudes: Array = codes & self.element.dtype.type(self.element.carrier.top_magnitude)
        return magnitudes

    def mix(self, codes: Array, others: Array, chance: float) -> Array:
        """`others` in place of `codes` with a probability."""
        return np.where(self.generator.random(self.shape) < chance, others, codes)


class Sides(NamedTuple):
    """What rows are made of: codes of a, b, c, and of the scales where the unit has some."""

    a: Codes
    b: Codes
    c: Codes
    scale: Codes | None
    unit: MatrixUnit


def rows_of(sides: Sides, a: Array, b: Array, c: Array, scales: Callable[[Codes], Array] | None = None) -> Rows:
    """Rows with scales about 1, or with the given ones."""
    if sides.scale is None:
        return Rows(a, b, c)
    draw = scales or (lambda scale: scale.near(0, 3))
    return Rows(a, b, c, draw(sides.scale), draw(sides.scale))


def normal(sides: Sides) -> Rows:
    """Values of a few binades."""
    return rows_of(sides, sides.a.near(-1, 3), sides.b.near(-1, 3), sides.c.near(0, 4))


def wide(sides: Sides) -> Rows:
    """Every exponent."""
    return rows_of(sides, sides.a.wide(), sides.b.wide(), sides.c.wide(), Codes.wide)


def cancelling(sides: Sides) -> Rows:
    """Odd terms that negate the even ones but for some, and an accumulator of any size below them."""
    a, b = sides.a.near(0, 4), sides.b.near(0, 4)
    odd = a.shape[1] // 2
    last = 2 * odd
    b[:, 1:last:2] = sides.b.negated(b)[:, 0:last:2]
    a[:, 1:last:2] = sides.a.mix(a, sides.a.near(0, 4), 0.05)[:, 0:last:2]
    return rows_of(sides, a, b, sides.c.mix(sides.c.near(-10, 12), sides.c.zero(), 0.3))


def ties(sides: Sides) -> Rows:
    """Powers of two, or with one bit more: sums half-way between results."""
    c = sides.c.near(0, 12, few_bits=True)
    return rows_of(sides, sides.a.near(0, 6, few_bits=True), sides.b.near(0, 6, few_bits=True), c)


def few_products(sides: Sides) -> Rows:
    """Mostly zeros, so that single products of any size meet the accumulator."""
    a = sides.a.mix(sides.a.wide(), sides.a.zero(), 0.8)
    return rows_of(sides, a, sides.b.wide(), sides.c.mix(sides.c.wide(), sides.c.zero(), 0.3), Codes.wide)


def subnormal(sides: Sides) -> Rows:
    """Subnormal operands and accumulators."""
    a = sides.a.mix(sides.a.subnormal(), sides.a.near(0, 3), 0.2)
    return rows_of(sides, a, sides.b.near(0, 3), sides.c.mix(sides.c.subnormal(), sides.c.zero(), 0.3))


def tiny(sides: Sides) -> Rows:
    """Return products near and below the exponent of zeros, with accumulators that are zero or subnormal."""
    place = (sides.unit.floor_exponent or sides.unit.d.fmt.min_exponent) // 2 - 6  # of one of two factors
    of_code = 0 if sides.scale is not None else place
    a = sides.a.mix(sides.a.near(of_code, 8), sides.a.zero(), 0.6)
    c = sides.c.mix(sides.c.zero(), sides.c.subnormal(), 0.3)
    return rows_of(sides, a, sides.b.near(of_code, 8), c, lambda scale: scale.near(place, 8))


def zeros(sides: Sides) -> Rows:
    """Zeros of both signs, with little else."""
    a, b = sides.a.mix(sides.a.zero(), sides.a.near(0, 3), 0.1), sides.b.mix(sides.b.near(0, 3), sides.b.zero(), 0.5)
    return rows_of(sides, a, b, sides.c.mix(sides.c.zero(), sides.c.near(0, 4), 0.2))


def any_accumulator(sides: Sides) -> Rows:
    """Accumulators from the smallest to the largest."""
    return rows_of(sides, sides.a.near(0, 3), sides.b.near(0, 3), sides.c.uniform())


def overflowing(sides: Sides) -> Rows:
    """Return the largest values, with one sign in each row."""
    b = sides.b.positive(sides.b.largest())
    b[::2] = sides.b.negated(b)[::2]
    return rows_of(sides, sides.a.positive(sides.a.largest()), b, sides.c.largest(), Codes.largest)


def special(sides: Sides) -> Rows:
    """NaN, Inf, extremes and zeros among values of a few binades."""
    a = sides.a.mix(sides.a.near(0, 3), sides.a.special(), 0.1)
    b = sides.b.mix(sides.b.near(0, 3), sides.b.special(), 0.1)
    c = sides.c.mix(sides.c.near(0, 4), sides.c.special(), 0.4)
    return rows_of(sides, a, b, c, lambda scale: scale.mix(scale.near(0, 3), scale.special(), 0.2))


def any_code(sides: Sides) -> Rows:
    """Every code."""
    return rows_of(sides, sides.a.anything(), sides.b.anything(), sides.c.anything(), Codes.anything)


KINDS: tuple[Callable[[Sides], Rows], ...] = (
    normal, wide, cancelling, ties, few_products, subnormal, tiny, zeros, any_accumulator, overflowing, special,
    any_code,
)  # fmt: skip
SCALES = {"ue8m0": Element("ue8m0", E8M0, E8M0), "ue4m3": Element("ue4m3", E4M3, E4M3)}


def random_rows(unit: MatrixUnit, kind: Callable[[Sides], Rows], count: int, terms: int, seed: int = 0) -> Rows:
    """Rows of a kind; `terms` is a multiple of the block where the unit has scales."""
    generator = np.random.default_rng((seed, KINDS.index(kind), terms))
    a, b = (Codes(element, (count, terms), generator) for element in (unit.a, unit.b))
    scale = Codes(SCALES[unit.scale], (count, terms // unit.block), generator) if unit.scale else None
    return kind(Sides(a, b, Codes(unit.d, (count,), generator), scale, unit))
