"""Products by units of `Rule.FUSED` or a rule built from it (SCALED, TWO_PASSES).

Such a unit aligns all terms to the largest exponent, truncates them, adds them exactly, and rounds once. There is a
cached plan for each unit, and one call of its kernel for each range of K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import FP16, FP32, Format
from fpsim.instructions.plan import kept_bits
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.products.fast_units import is_centred, is_fast, rows_of, source_of
from fpsim.products.kernels.code_panel import facts_of, facts_of_halves
from fpsim.products.kernels.fused_product import NO_SCALE, fused_product
from fpsim.products.kernels.fused_row import RowFacts
from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.products.kernels.promotion import ADD, ADD_HALF
from fpsim.products.kernels.wide_row import WideFacts
from fpsim.products.operand_floats import bases_of, floats, in_stored_order, is_fortran_order
from fpsim.products.result_parts import blocks, in_spans
from fpsim.products.unit_product import UnitProduct

i32, f32 = np.int32, np.float32

SUM_BITS = 29  # bits of a sum of cut products that an int32 holds beside the accumulator
RUN_FLOATS = 1 << 19  # floats decoded at a time: they stay in the caches, and are too few for a second thread
# terms decoded at a time; SHORT_RUN for few rows or columns of floats, SHORT_CODE_RUN for up to FEW rows by codes
RUN, SHORT_RUN, SHORT_CODE_RUN, FEW = 1024, 128, 256, 8
TWO_PASS_TERMS = 32  # of the largest instruction
NO_FACTORS = np.zeros((0, 0), i32)


class FusedPlan(NamedTuple):
    """The plan of all products by one unit of `Rule.FUSED`, or of a rule built from it (SCALED, TWO_PASSES).

    Attributes:
      unit: the matrix unit.
      loop: the compiled kernel of `fused_product`.
      formats: the formats of the floats or codes of a and b that the kernel reads.
      by_codes: whether the kernel reads codes of b instead of floats.
      facts: a dict of the kernel's integer parameters; None if they depend on the operands' values. Each value is an
        array that `fused_facts` returns. The keys are the possible values of its argument `turned`. If the kernel reads
        codes of b, they are True (the codes are transposed) and False; if it reads floats of b, the only key is None.
    """

    unit: MatrixUnit
    loop: Any
    formats: tuple[Format, Format]
    by_codes: bool
    facts: dict[bool | None, Array] | None

    def facts_of(self, operands: tuple[Array, Array], turned: bool | None) -> Array:
        """Return the kernel's integer parameters for two operands, a (4, 8) int32 array.

        operands: a (M, K) and b (K, N) as float32 patterns in int32; or for b its codes, transposed if `turned` is
        True. turned: whether b's codes are transposed; None if b is floats.
        """
        if self.facts is not None:
            return self.facts[turned]
        return fused_facts(self.unit, bases_of(operands, self.formats), turned)


@lru_cache(maxsize=4096)
def fused_plan(unit: MatrixUnit) -> FusedPlan | None:
    """Return the plan for a unit of `Rule.FUSED`, SCALED or TWO_PASSES; None if no fast kernel can compute the unit."""
    if unit.rule not in (Rule.FUSED, Rule.SCALED, Rule.TWO_PASSES) or not is_fast(unit):
        return None
    half, rows = unit.d.fmt == FP16, rows_of(unit)
    source = source_of(unit, rows)
    terms = 16 if unit.rule is Rule.TWO_PASSES else unit.terms
    fills = unit.fraction_bits + 2 + (terms - 1).bit_length() > SUM_BITS + 1
    joined = fills or terms == 16 or (half and terms == 32)  # one kernel for all units of 16 terms, one for FP16 of 32
    joined = {"chained": False, "avx512": True}.get(rows, joined)
    loop = fused_product(terms, joined, half, unit.rule is Rule.SCALED, rows, source)
    formats, by_codes = (unit.operand_format(unit.a), unit.operand_format(unit.b)), source != "floats"
    orders = (False, True) if by_codes else (None,)
    is_known = all(map(is_centred, formats))  # the bases are 0 then, whatever the operands hold
    facts: dict[bool | None, Array] = {turned: fused_facts(unit, (0, 0), turned) for turned in orders}
    return FusedPlan(unit, loop, formats, by_codes, facts if is_known else None)


@lru_cache(maxsize=1024)
def fused_facts(unit: MatrixUnit, bases: tuple[int, int], turned: bool | None) -> Array:
    """Return the integer parameters that the kernel `fused_product` is passed for a unit, as a (4, 8) int32 array.

    Its rows, padded with zeros, are as follows.

    - 0: the fields of RowFacts (kernels/fused_row.py).
    - 1: for a: mask of the bits that the unit reads, the smallest exponent of its format's normal values, and the
      base exponent.
    - 2: the same for b; or the fields of CodeFacts or HalfFacts (kernels/code_panel.py) if codes of b are read.
    - 3: the fields of WideFacts (kernels/wide_row.py).

    bases: the base exponents of a and b, which kernels subtract from exponents. turned: whether b's codes are
    transposed; None if b is read as floats.
    """
    half, d = unit.d.fmt == FP16, unit.d.fmt
    formats = unit.operand_format(unit.a), unit.operand_format(unit.b)
    of_a, of_b = (
        [kept_bits(element), fmt.min_exponent, base]
        for element, fmt, base in zip((unit.a, unit.b), formats, bases, strict=True)
    )
    if turned is not None:
        is_byte, fmt = unit.b.fmt.bits <= 8, unit.b.fmt
        of_b = (facts_of(fmt, turned) if is_byte else facts_of_halves(fmt, bases[1], turned)).tolist()
    cleared = 0 if half else (1 << (FP32.mantissa_bits - unit.result_bits)) - 1
    row = RowFacts(unit.fraction_bits, unit.floor_exponent, ~cleared, sum(bases), d.min_exponent)
    wide = WideFacts(
        unit.fraction_bits, unit.floor_exponent, formats[0].min_exponent, formats[1].min_exponent, d.min_exponent,
        unit.result_bits, int(half), d.bias + 1,
    )  # fmt: skip
    facts = np.zeros((4, len(wide)), i32)
    for numbers, values in zip(facts, (row, of_a, of_b, wide), strict=True):
        numbers[: len(values)] = values
    return facts


def add_fused(total: Array, p: UnitProduct, plan: FusedPlan) -> None:
    """Add a product to float32 `total` (M, N) in place by the kernel of `plan`.

    It works through K in ranges that are short enough for their decoded floats to stay in the caches. p: the unit, and
    the codes and scales of a and b.
    """
    unit = plan.unit
    half, two_passes, scaled = unit.d.fmt == FP16, unit.rule is Rule.TWO_PASSES, unit.rule is Rule.SCALED
    a, promotion, mode = p.a, p.promote // unit.terms, p.factors.mode
    if two_passes:  # which are two promotions
        a, promotion, mode = _interleaved(p.a, 1), 2, ADD_HALF if half else ADD
        p = p._replace(a=a, b=_interleaved(p.b, 0))
    scales = [NO_FACTORS, NO_FACTORS]
    if scaled:  # the unbiased exponents of E8M0 codes
        exponents = (np.where(x == 0xFF, NO_SCALE, x.astype(i32) - 127) for x in (p.scale_a, p.scale_b))
        scales = [np.ascontiguousarray(x, i32) for x in exponents]

    def adding(part: UnitProduct, scales: Sequence[Array]) -> Callable[..., None]:
        """Return a function (patterns, m0, m1, n0, n1) -> None that adds a part of a product to float32 sums.

        The function adds rows m0 .. m1 - 1 and columns n0 .. n1 - 1 of the product to `patterns`, the sums viewed as
        int32. part: the product over some terms of K. scales: int32 exponents of its block scales, (M, steps) of a and
        (steps, N) of b; without elements for units without scales.
        """
        a = floats(part.a, unit.a.carrier).view(i32)
        b, turned = in_stored_order(part.b) if plan.by_codes else (floats(part.b, unit.b.carrier).view(i32), None)
        rest = (*scales, part.factors.rows, part.factors.columns, plan.facts_of((a, b), turned))

        def add(patterns: Array, *span: int) -> None:
            parts = one_part(*span, promotion, p.cut // unit.terms, mode)
            plan.loop(a[np.newaxis], b[np.newaxis], patterns[np.newaxis], parts, *rest)

        return add

    def work(m0: int, m1: int, n0: int, n1: int) -> None:
        for rows, columns in blocks(m0, m1, n0, n1, side):
            block, patterns = p.block(rows, columns), np.ascontiguousarray(total[rows, columns]).view(i32)
            of_block = [scales[0][rows], scales[1][:, columns]] if scaled else scales
            for k in range(0, a.shape[1], length):
                steps = slice(k // unit.terms, -(-(k + length) // unit.terms))
                of_run = (of_block[0][:, steps], of_block[1][steps]) if scaled else of_block
                add = adding(block.run(k, k + length), [np.ascontiguousarray(x) for x in of_run])
                add(patterns, 0, patterns.shape[0], 0, patterns.shape[1])
            total[rows, columns] = patterns.view(f32)

    length = _run_length(p, plan.by_codes)
    side = max(RUN_FLOATS // length // PANEL_COLUMNS, 1) * PANEL_COLUMNS
    if plan.by_codes and total.shape[0] <= side:
        side = max(side, total.shape[1])  # no floats of b are stored
    whole = length >= a.shape[1] and max(total.shape) <= side
    in_spans(total, a.shape[1], partial(adding(p, scales), total.view(i32)) if whole else work)


@lru_cache(maxsize=256)
def one_part(m0: int, m1: int, n0: int, n1: int, promotion: int, cut: int, mode: int) -> Array:
    """Return the argument `parts` of the kernel `fused_product` for one product, (2, 5) int64.

    The product adds to rows m0 .. m1 - 1 and columns n0 .. n1 - 1 of the result. promotion: instructions after which a
    partial sum is added to a total, 0 for none. cut: instructions per slice of K, 0 for one slice. mode: how partial
    sums are scaled and added, such as ADD (kernels/promotion.py).
    """
    return np.array([[promotion, cut, mode, n0, n1], [0, 0, 0, m0, m1]], np.int64)


def _run_length(p: UnitProduct, by_codes: bool) -> int:
    """Return how many terms of K to decode at a time, at most K.

    It is a multiple of the number of terms of a slice of K, or of a partial sum if there are no slices. p: the unit,
    and the codes of a and b. by_codes: whether kernels read codes of b instead of floats.
    """
    whole, (rows, terms) = p.cut or p.promote or TWO_PASS_TERMS, p.a.shape
    if not by_codes:
        wanted = SHORT_RUN if min(rows, p.b.shape[1]) < PANEL_COLUMNS else RUN
    elif is_fortran_order(p.b):  # long pieces of a column of codes are read fastest
        wanted = max(RUN_FLOATS // (-(-rows // PANEL_COLUMNS) * PANEL_COLUMNS), RUN)
    else:
        wanted = SHORT_CODE_RUN if rows <= FEW else RUN
    return int(min(-(-wanted // whole) * whole, max(terms, 1)))


def _interleaved(codes: Array, axis: int) -> Array:
    """Return the codes of a `Rule.TWO_PASSES` unit in the order in which it adds them.

    codes: a matrix whose axis `axis` is K, which is padded with zeros to a multiple of the 32 terms of an instruction.
    Of every 32 terms, those with k mod 4 = 0 or 1 (the first pass) are followed by those with k mod 4 = 2 or 3 (the
    second).
    """
    k = codes.shape[axis]
    fours = np.arange(-(-k // 32) * 32).reshape(-1, 8, 2, 2)  # steps of 32, fours, pairs
    order = fours.transpose(0, 2, 1, 3).reshape(-1)
    padded = np.zeros([order.size if i == axis else size for i, size in enumerate(codes.shape)], codes.dtype)
    kept = np.flatnonzero(order < k)
    if axis == 0:
        padded[kept] = codes[order[kept]]
    else:
        padded[:, kept] = codes[:, order[kept]]
    return padded
