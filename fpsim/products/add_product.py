"""Addition of a matrix unit's product a @ b to a matrix, by a fast kernel for the unit's rule, or by its specification.

The specification is the slower loop of `fpsim.dot_add`, with the same bits.
"""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.formats.named import E8M0, FP32, Format
from fpsim.instructions.dot_add import run_rows
from fpsim.instructions.operands import widened
from fpsim.instructions.plan import kept_bits
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.products.fast_units import is_fast
from fpsim.products.fused import add_fused, fused_plan
from fpsim.products.kernels.cut_product import SIZES, cut_product
from fpsim.products.kernels.grouped_product import GROUP, grouped_product
from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.products.kernels.step_product import step_product
from fpsim.products.operand_floats import bases_of, floats
from fpsim.products.result_parts import blocks, in_spans
from fpsim.products.unit_product import UnitProduct, add_part
from fpsim.runtime.general_loops import replaces
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import over_spans
from fpsim.runtime.vectors import has_avx512

i32, f32 = np.int32, np.float32

TINY = 2.0**FP32.min_exponent  # the smallest normal float32
CHAIN_TERMS = 64  # fused multiply-adds of a chain that share a panel
BLOCK_FLOATS = 1 << 22  # floats of an operand that are held at a time, 16 MiB
PAIR_WORDS = 1 << 20  # 64-bit words of a row and a column, side by side, that are held at a time, 8 MiB


def add_product(total: Array, product: UnitProduct) -> None:
    """Add a @ b to `total` in place, with the additions and roundings of the product's matrix unit.

    total: (M, N) float32, or float64 for units whose sums are float64. FP16 sums are held as float32 of the same value.
    product: the unit, and the codes and scales of a and b.
    """
    (m, n), terms = total.shape, product.a.shape[1]
    if terms == 0 or total.size == 0:
        return
    if n < PANEL_COLUMNS and m > n:  # vectors hold neighbours in a row of the result
        flipped = np.ascontiguousarray(total.T)
        add_product(flipped, product.transposed())
        total[...] = flipped.T
        return
    plan = fused_plan(product.unit)
    if plan is not None:
        if product.promote and product.unit.rule is Rule.TWO_PASSES:
            _promoted(total, product)  # the unit's own additions and those of the promotion are two levels
        elif replaces(plan.loop, total.size * terms):
            _by_specification(total, product)
        else:
            add_fused(total, product, plan)
    elif m * terms <= BLOCK_FLOATS and n * terms <= BLOCK_FLOATS:
        _by_rule(total, product)
    else:  # as many rows and columns at a time as keep the operands' floats small
        for rows, columns in blocks(0, m, 0, n, max(BLOCK_FLOATS // terms // PANEL_COLUMNS, 1) * PANEL_COLUMNS):
            part = np.ascontiguousarray(total[rows, columns])
            _by_rule(part, product.block(rows, columns))
            total[rows, columns] = part


def _by_rule(total: Array, product: UnitProduct) -> None:
    """Add a product to `total` in place, for a unit that `fused_plan` has no plan for.

    Such a unit has another rule than `Rule.FUSED`, SCALED and TWO_PASSES, or no fast kernel. total: (M, N) float32, or
    float64 for units whose sums are float64. product: the unit, and the codes and scales of a and b.
    """
    if product.promote:
        _promoted(total, product)
    elif not is_fast(product.unit):
        _by_specification(total, product)
    elif product.unit.rule is Rule.GROUPED:
        _grouped(total, product)
    elif _cuts(product.unit):
        _cut(total, product)
    elif product.unit.rule in (Rule.REVERSED_CHAIN, Rule.TWO_CHAINS):
        _flushed_chains(total, product)
    else:
        _stepwise(total, product)


def _promoted(total: Array, p: UnitProduct) -> None:
    """Add a product to `total` in place: sums of p.promote terms of K, each from +0, one after the other.

    Each sum is multiplied by its decode scales p.factors before it is added in float32. total: (M, N) float32. p: the
    unit, and the codes and scales of a and b.
    """
    for part, start in enumerate(range(0, p.a.shape[1], p.promote)):
        partial = np.zeros_like(total)
        add_product(partial, p.part(start, min(start + p.promote, p.a.shape[1])))
        with ieee_arithmetic(), np.errstate(all="ignore"):  # totals that are Inf or NaN are regular results
            add_part(total, partial, p.factors, part)


def _by_specification(total: Array, p: UnitProduct) -> None:
    """Add a product to `total` in place by the loop of `fpsim.dot_add`, for units without a fast kernel.

    In a `with general_loops()` block, this loop serves all units whose kernel is not compiled yet. total: (M, N)
    float32, or float64 for units whose sums are float64. p: the unit, and the codes and scales of a and b.
    """
    if p.promote:
        _promoted(total, p)
        return
    (m, n), terms, fmt = total.shape, p.a.shape[1], p.unit.d.fmt
    a, b = widened(p.a, p.unit.a, p.unit), np.ascontiguousarray(widened(p.b, p.unit.b, p.unit).T)
    scale_b = np.ascontiguousarray(p.scale_b.T)
    start = encode(total, fmt).reshape(-1)
    result = np.empty(total.size, fmt.storage)

    side = max(PAIR_WORDS // terms, 1)

    def over_elements(first: int, last: int) -> None:
        for i in range(first, last, side):
            at = np.arange(i, min(i + side, last))
            rows, columns = at // n, at % n
            nothing = np.zeros((at.size, 1), np.uint8)
            of_a, of_b = (p.scale_a[rows], scale_b[columns]) if p.unit.scale else (nothing, nothing)
            result[at] = run_rows(a[rows], b[columns], start[at], of_a, of_b, p.unit)

    over_spans(m * n, over_elements, 1, weight=terms)
    decode(result.reshape(m, n), fmt, total.dtype, out=total)


def _grouped(total: Array, p: UnitProduct) -> None:
    """Add a product to `total` (M, N) float32 in place for a unit of block-scaled FP4, whose rule is `Rule.GROUPED`.

    p: the unit, and the codes and block scales of a and b.
    """
    unit, fmt = p.unit, p.unit.scale_format or E8M0
    a, b = floats(p.a, unit.a.carrier), floats(p.b, unit.b.carrier)
    repeat = unit.block // GROUP
    codes = [x & 0x7F if unit.scale == "ue4m3" else x for x in (p.scale_a, p.scale_b)]
    rows, columns = (np.repeat(floats(x, fmt), repeat, axis) for x, axis in zip(codes, (1, 0), strict=True))
    least = fmt.min_exponent if fmt.has_zero else -fmt.bias
    facts, patterns = np.array([unit.fraction_bits, unit.floor_exponent, least], i32), total.view(i32)
    run = grouped_product()
    in_spans(total, a.shape[1], lambda m0, m1, n0, n1: run(a, b, patterns, rows, columns, facts, (m0, m1, n0, n1)))


def _cuts(unit: MatrixUnit) -> int:
    """Return into how many sums the kernel cut_product splits an instruction's terms; 0 if it can't compute the unit.

    The number is 1 for `Rule.SEPARATE`, and 2 for `Rule.EVEN_ODD`: even terms and odd terms.
    """
    halves = {Rule.SEPARATE: 1, Rule.EVEN_ODD: 2}.get(unit.rule, 0)
    exact = unit.a.fmt.precision + unit.b.fmt.precision <= FP32.precision
    return halves if halves and exact and unit.terms in (SIZES[0] * halves, SIZES[1] * halves) else 0


def _cut(total: Array, p: UnitProduct) -> None:
    """Add a product to `total` (M, N) float32 in place by the kernel cut_product, for a CDNA3 unit that it can compute.

    p: the unit, and the codes of a and b.
    """
    unit, halves = p.unit, _cuts(p.unit)
    a, b = (x.view(i32) for x in _floats_as_read(p))
    formats = unit.a.fmt, unit.b.fmt
    bases = bases_of((a, b), formats)
    of_a, of_b = (np.array([-1, fmt.min_exponent, base], i32) for fmt, base in zip(formats, bases, strict=True))
    run, base, facts = cut_product(unit.terms, halves, has_avx512()), i32(sum(bases)), _step_facts(formats)
    in_spans(total, a.shape[1], lambda m0, m1, n0, n1: run(a, b, total, of_a, of_b, base, facts, (m0, m1, n0, n1)))


def _floats_as_read(p: UnitProduct) -> tuple[Array, Array]:
    """Return the values of a and b of the product p as floats, without the bits that its unit does not read."""
    read = []
    for codes, element in ((p.a, p.unit.a), (p.b, p.unit.b)):
        x, kept = floats(codes, element.carrier), kept_bits(element)
        read.append(x if kept == -1 else (x.view(i32) & i32(kept)).view(f32))
    return read[0], read[1]


def _step_facts(formats: tuple[Format, Format]) -> Array:
    """Return facts on two operand formats as a float64 array of five numbers, as the kernel step_product reads them.

    They are: the smallest exponents of normal values of both formats; their smallest normal values; and the sum of
    their mantissa bits.
    """
    tiny, places = [2.0**fmt.min_exponent for fmt in formats], sum(fmt.mantissa_bits for fmt in formats)
    return np.array([*(fmt.min_exponent for fmt in formats), *tiny, places])


def _stepwise(total: Array, p: UnitProduct) -> None:
    """Add a product to `total` in place by the kernel step_product.

    The unit is one of AMD's, or a chain of fused multiply-adds. total: (M, N) float32, or float64 for chains of FP64.
    p: the unit, and the codes of a and b.
    """
    unit, (a, b) = p.unit, _floats_as_read(p)
    chain = unit.rule is Rule.EXACT and unit.terms == 1
    facts = _step_facts((unit.a.fmt, unit.b.fmt))
    in_vectors = unit.rule is Rule.EXACT and not chain and unit.terms % 2 == 0 and has_avx512()
    run = step_product("chain" if chain else unit.rule, unit.terms if in_vectors else 0)
    terms = CHAIN_TERMS if chain else unit.terms
    if unit.rule is Rule.FLUSHED_TREE:
        total[np.abs(total) < 2.0**FP32.min_exponent] = 0
    in_spans(total, a.shape[1], lambda m0, m1, n0, n1: run(a, b, total, terms, facts, m0, m1, n0, n1))


def _flushed_chains(total: Array, p: UnitProduct) -> None:
    """Add a product to `total` (M, N) float32 in place, for an x86 unit that adds by chains of multiply-adds.

    Such a unit treats subnormal operands and results as zeros. p: the unit, and the codes of a and b.
    """
    unit = p.unit
    a, b = map(_flushed, _floats_as_read(p))
    total[...] = _flushed(total)
    two = unit.rule is Rule.TWO_CHAINS
    if not two:  # the last term of every step first
        order = np.arange(-(-a.shape[1] // unit.terms) * unit.terms).reshape(-1, unit.terms)[:, ::-1].reshape(-1)
        missing = order.size - a.shape[1]
        a = np.ascontiguousarray(np.pad(a, ((0, 0), (0, missing)))[:, order])
        b = np.ascontiguousarray(np.pad(b, ((0, missing), (0, 0)))[order])
    places = unit.a.fmt.mantissa_bits + unit.b.fmt.mantissa_bits
    # all sums are multiples of the last place of the smallest product, so that none lies between zero and 2**-126
    never_tiny = _least(a) * _least(b) * 2.0**-places >= TINY and _least(total) >= TINY * 2.0**FP32.mantissa_bits
    rule = ("two chains" if two else "chain") if never_tiny else unit.rule
    run, terms, facts = step_product(rule), unit.terms if two else CHAIN_TERMS, _step_facts((unit.a.fmt, unit.b.fmt))
    in_spans(total, a.shape[1], lambda m0, m1, n0, n1: run(a, b, total, terms, facts, m0, m1, n0, n1))


def _flushed(x: Array) -> Array:
    """Return a copy of a float32 array x whose subnormals are replaced by zeros of the same sign."""
    bits = x.view(np.uint32).copy()
    bits[bits & np.uint32(0x7F800000) == 0] &= np.uint32(0x80000000)
    return bits.view(f32)


def _least(x: Array) -> float:
    """Return the largest power of two that is at most every nonzero |x| of a float32 array; Inf if all are 0.

    Subnormals count as zeros.
    """
    fields = (x.view(np.uint32) & np.uint32(0x7F800000)).reshape(-1)
    least = int(np.min(fields - np.uint32(1), initial=np.uint32(0xFFFFFFFF))) + 1  # zeros wrap around
    return 2.0 ** ((least >> FP32.mantissa_bits) - FP32.bias) if least <= 0x7F800000 else float("inf")
