"""A matrix product by a matrix unit: which kernel runs, on which floats, in which orientation and on how many cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode, refuse_unless_held
from fpsim.casts.pipelines import decoding
from fpsim.formats.named import E8M0, FP16, FP32, Format
from fpsim.instructions.dot_add import run_rows
from fpsim.instructions.operands import widened
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.products.backend import FloatOperations, NumpyOperations
from fpsim.products.fast_units import BASES, is_centred, is_fast, rows_of, source_of
from fpsim.products.kernels.code_panel import facts_of, facts_of_halves
from fpsim.products.kernels.cut_product import SIZES, cut_product
from fpsim.products.kernels.fused_product import NO_SCALE, fused_product
from fpsim.products.kernels.grouped_product import GROUP, grouped_product
from fpsim.products.kernels.lane_dots import transposition
from fpsim.products.kernels.panel import HIGHEST, PANEL_COLUMNS, largest_exponent
from fpsim.products.kernels.promotion import ADD, ADD_HALF, COLUMNS_FIRST, PRODUCT, ROWS_FIRST
from fpsim.products.kernels.step_product import step_product
from fpsim.products.kernels.transpose import SIDE
from fpsim.runtime.general_loops import replaces
from fpsim.runtime.pipeline import run_stages, wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import SMALLEST, over_spans
from fpsim.runtime.vectors import has_avx512

i32, f32 = np.int32, np.float32

CHAIN_TERMS = 64  # fused multiply-adds of a chain that share a panel
MACS = 16  # multiply-adds that take as long as the cast of an element
SUM_BITS = 29  # of the cut products of a step that an int32 holds beside the accumulator
BLOCK_FLOATS = 1 << 22  # floats of an operand that are held at a time, 16 MiB
RUN_FLOATS = 1 << 19  # of a run of K: as many as stay in the caches, and fewer than are worth a second thread
# terms of a run; with few rows or columns of floats, or up to FEW rows beside codes, memory counts more
RUN, SHORT_RUN, SHORT_CODE_RUN, FEW = 1024, 128, 256, 8
TWO_PASS_TERMS = 32  # the largest step
PAIR_WORDS = 1 << 20  # 64-bit words of a row and a column, side by side, that are held at a time, 8 MiB
SQUARE = 64  # rows and columns that are copied at a time
ON_NUMPY = NumpyOperations()
NOTHING = np.zeros((0, 0), f32)
NO_FACTORS = np.zeros((0, 0), i32)
EXCHANGED = {ROWS_FIRST: COLUMNS_FIRST, COLUMNS_FIRST: ROWS_FIRST}

__all__ = [
    "ADD",
    "COLUMNS_FIRST",
    "PRODUCT",
    "ROWS_FIRST",
    "Factors",
    "UnitProduct",
    "add_part",
    "add_product",
    "as_they_lie",
    "bases_of",
    "floats",
    "fused_facts",
    "fused_loop",
]


class Factors(NamedTuple):
    """float32 factors of partial sums, of rows (M, parts) and of columns (parts, N), and how they are applied."""

    rows: Array = NOTHING
    columns: Array = NOTHING
    mode: int = ADD

    def block(self, rows: slice, columns: slice) -> Factors:
        """Those of some rows and columns of the product."""
        return self._replace(
            rows=np.ascontiguousarray(self.rows[rows]) if self.rows.size else self.rows,
            columns=np.ascontiguousarray(self.columns[:, columns]) if self.columns.size else self.columns,
        )

    def parts(self, parts: slice) -> Factors:
        """Those of some partial sums."""
        if not self.rows.size:
            return self
        rows, columns = (np.ascontiguousarray(x) for x in (self.rows[:, parts], self.columns[parts]))
        return self._replace(rows=rows, columns=columns)

    def transposed(self) -> Factors:
        """Those of the transposed product."""
        rows, columns = np.ascontiguousarray(self.columns.T), np.ascontiguousarray(self.rows.T)
        return Factors(rows, columns, EXCHANGED.get(self.mode, self.mode))


class UnitProduct(NamedTuple):
    """A matrix product as the kernels take it."""

    unit: MatrixUnit
    a: Array  # (M, K) codes
    b: Array  # (K, N) codes
    scale_a: Array  # (M, K / block) codes of scales, (M, 1) without
    scale_b: Array  # (K / block, N)
    promote: int = 0  # terms from one promotion to the next, 0 for none
    factors: Factors = Factors()
    cut: int = 0  # terms of a slice whose promoted total is added to the result, 0 for none; FUSED units only

    def transposed(self) -> UnitProduct:
        """The product of the transposes in the other order: every rule treats a and b alike."""
        unit = replace(self.unit, a=self.unit.b, b=self.unit.a)
        scales = self.scale_b.T, self.scale_a.T
        return UnitProduct(unit, self.b.T, self.a.T, *scales, self.promote, self.factors.transposed(), self.cut)

    def part(self, start: int, stop: int) -> UnitProduct:
        """Terms start .. stop of K, without promotion."""
        block = self.unit.block or max(self.a.shape[1], 1)
        blocks = slice(start // block, -(-stop // block))
        return self._replace(
            a=self.a[:, start:stop], b=self.b[start:stop], scale_a=self.scale_a[:, blocks],
            scale_b=self.scale_b[blocks], promote=0, factors=Factors(), cut=0,
        )  # fmt: skip

    def block(self, rows: slice, columns: slice) -> UnitProduct:
        """Some rows and columns of the result."""
        scaled = bool(self.unit.scale)
        return self._replace(
            a=self.a[rows], b=self.b[:, columns],
            scale_a=self.scale_a[rows] if scaled else self.scale_a,
            scale_b=self.scale_b[:, columns] if scaled else self.scale_b, factors=self.factors.block(rows, columns),
        )  # fmt: skip

    def run(self, start: int, stop: int) -> UnitProduct:
        """Terms start .. stop of K, of whole promotions and slices; the scales of steps stay as they are."""
        parts = slice(start // self.promote, -(-stop // self.promote)) if self.promote else slice(0)
        return self._replace(a=self.a[:, start:stop], b=self.b[start:stop], factors=self.factors.parts(parts))

    def in_order(self, spans: Sequence[tuple[int, int]], gap: int, place: int) -> UnitProduct:
        """The terms of K in `spans`, in this order, with `gap` zeros before the span at `place`."""
        a, b = [self.a[:, slice(*span)] for span in spans], [self.b[slice(*span)] for span in spans]
        if gap:
            a.insert(place, np.zeros((self.a.shape[0], gap), self.a.dtype))
            b.insert(place, np.zeros((gap, self.b.shape[1]), self.b.dtype))
        return self._replace(a=np.concatenate(a, axis=1), b=np.concatenate(b))


def add_product(total: Array, product: UnitProduct) -> None:
    """Add a @ b to `total` as the unit does: float32 of shape (M, N), float64 for units that add in it.

    FP16 results are held as the float32 of the same value.
    """
    m, n = total.shape
    if product.a.shape[1] == 0 or total.size == 0:
        return
    if n < PANEL_COLUMNS and m > n:  # vectors lie along the rows of the result
        flipped = np.ascontiguousarray(total.T)
        add_product(flipped, product.transposed())
        total[...] = flipped.T
    else:
        _by_blocks(total, product)


def _by_blocks(total: Array, product: UnitProduct) -> None:
    """The same, for as many rows and columns at a time as keeps the operands' floats small."""
    (m, n), terms = total.shape, product.a.shape[1]
    fused = is_fast(product.unit) and product.unit.rule in (Rule.FUSED, Rule.SCALED, Rule.TWO_PASSES)
    if fused:
        _fused(total, product)
        return
    if m * terms <= BLOCK_FLOATS and n * terms <= BLOCK_FLOATS:
        _by_rule(total, product)
        return
    for rows, columns in _blocks(0, m, 0, n, max(BLOCK_FLOATS // terms // PANEL_COLUMNS, 1) * PANEL_COLUMNS):
        part = np.ascontiguousarray(total[rows, columns])
        _by_rule(part, product.block(rows, columns))
        total[rows, columns] = part


def _by_rule(total: Array, product: UnitProduct) -> None:
    if not is_fast(product.unit):
        _by_specification(total, product)
    elif product.promote:
        _promoted(total, product)
    elif product.unit.rule is Rule.GROUPED:
        _grouped(total, product)
    elif _cuts(product.unit):
        _cut(total, product)
    else:
        _stepwise(total, product)


def _by_specification(total: Array, p: UnitProduct) -> None:
    """Units that no fast kernel takes: every element by the loop of fpsim.dot_add."""
    if p.promote:
        _promoted(total, p)
        return
    (m, n), terms, fmt = total.shape, p.a.shape[1], p.unit.d.fmt
    a, b = widened(p.a, p.unit.a, p.unit), np.ascontiguousarray(widened(p.b, p.unit.b, p.unit).T)
    scale_b = np.ascontiguousarray(p.scale_b.T)
    start = encode(total, fmt).reshape(-1)
    result = np.empty(total.size, fmt.storage)

    def work(first: int, last: int) -> None:
        at = np.arange(first, last)
        rows, columns = at // n, at % n
        nothing = np.zeros((at.size, 1), np.uint8)
        p_rows, q_columns = (p.scale_a[rows], scale_b[columns]) if p.unit.scale else (nothing, nothing)
        result[first:last] = run_rows(a[rows], b[columns], start[first:last], p_rows, q_columns, p.unit)

    def over_elements(first: int, last: int) -> None:
        for i in range(first, last, side):
            work(i, min(i + side, last))

    side = max(PAIR_WORDS // terms, 1)
    over_spans(m * n, over_elements, 1, weight=terms)
    decode(result.reshape(m, n), fmt, total.dtype, out=total)


def _in_c_order(x: Array) -> Array:
    """A matrix in C order; a transposed one is copied in squares, which takes a third of the time."""
    if x.strides[-1] == x.itemsize or x.size <= SQUARE**2:
        return np.ascontiguousarray(x)
    copy = np.empty(x.shape, x.dtype)
    for m in range(0, x.shape[0], SQUARE):
        for n in range(0, x.shape[1], SQUARE):
            copy[m : m + SQUARE, n : n + SQUARE] = x[m : m + SQUARE, n : n + SQUARE]
    return copy


@lru_cache(maxsize=1024)
def _to_floats(fmt: Format, dtype: np.dtype[Any]) -> Any:
    """The stages from codes in a dtype to float32, which holds them.

    Raises:
      ValueError: it does not.
    """
    refuse_unless_held(fmt, FP32, "encode the operands in another format")
    return decoding(fmt, FP32, dtype)


def floats(codes: Array, fmt: Format) -> Array:
    """Codes as the floats of their values, in C order."""
    if fmt.bits < 32 and codes.strides[0] == codes.itemsize and min(codes.shape) >= SIDE:
        # floats are transposed in registers, in a fraction of the time that bytes take
        values = np.empty(codes.shape, f32)
        transposition()(floats(codes.T, fmt), values)
        return values
    codes = _in_c_order(codes)
    if fmt.bits < 32:
        values = np.empty(codes.shape, np.uint32)
        run_stages(_to_floats(fmt, codes.dtype), codes, values)
        return values.view(f32)
    # kernels would be compiled once more for arrays that cannot be written
    return (codes if codes.flags.writeable else codes.copy()).view(f"f{codes.itemsize}")


def _lies_turned(codes: Array) -> bool:
    """Whether the elements of a column lie side by side in memory, and those of a row do not."""
    return codes.strides[0] == codes.itemsize != codes.strides[1]


def as_they_lie(codes: Array) -> tuple[Array, bool]:
    """A matrix of codes in C order, and whether it is transposed."""
    turned = _lies_turned(codes)
    codes = codes.T if turned else codes
    # kernels would be compiled once more for arrays that cannot be written
    return (codes if codes.flags.c_contiguous and codes.flags.writeable else codes.copy("C")), turned


def _in_spans(total: Array, terms: int, work: Callable[[int, int, int, int], None]) -> None:
    """Call work(m0, m1, n0, n1) for parts of the result, at once on several cores where that pays."""
    m, n = total.shape
    if m * n * terms < SMALLEST * MACS:  # one thread
        with ieee_arithmetic(), wrapping():  # columns without terms hold anything; NaN and Inf are meant
            work(0, m, 0, n)
        return

    def over_rows(start: int, stop: int) -> None:
        with ieee_arithmetic(), wrapping():
            work(start, stop, 0, n)

    def over_columns(start: int, stop: int) -> None:
        with ieee_arithmetic(), wrapping():
            work(0, m, start, stop)

    # every part decodes its rows of a and its columns of b, so the longer side is the one to cut
    if m >= n:
        over_spans(m, over_rows, 1, weight=n * terms / MACS)
    else:
        over_spans(n, over_columns, PANEL_COLUMNS, weight=m * terms / MACS)


def _base(patterns: Array, fmt: Format) -> int:
    """The base of the relative exponents of an operand, floats or codes: its largest one lies HIGHEST above."""
    if is_centred(fmt):
        return 0
    held = FP32 if patterns.itemsize == 4 else fmt
    return int(largest_exponent()(patterns, i32(held.max_code + 1), i32(held.mantissa_bits))) - HIGHEST


def bases_of(operands: tuple[Array, Array], formats: tuple[Format, Format]) -> tuple[int, int]:
    """The bases of both operands; what leaves their windows because of the limit is slower, not wrong."""
    if is_centred(formats[0]) and is_centred(formats[1]):
        return 0, 0
    left, right = (_base(x, fmt) for x, fmt in zip(operands, formats, strict=True))
    excess = left + right - max(-BASES, min(left + right, BASES))
    return left - excess, right


def _interleaved(codes: Array, axis: int) -> Array:
    """Codes of a unit that takes two terms of every four first, in the order of its steps, zeros behind their end."""
    k = codes.shape[axis]
    fours = np.arange(-(-k // 32) * 32).reshape(-1, 8, 2, 2)  # steps of 32, fours, pairs
    order = fours.transpose(0, 2, 1, 3).reshape(-1)
    padded = np.zeros([order.size if i == axis else length for i, length in enumerate(codes.shape)], codes.dtype)
    kept = np.flatnonzero(order < k)
    if axis == 0:
        padded[kept] = codes[order[kept]]
    else:
        padded[:, kept] = codes[:, order[kept]]
    return padded


def _fused(total: Array, p: UnitProduct) -> None:
    """The units that follow the FUSED rule or are built from it."""
    unit = p.unit
    half, two_passes, scaled = unit.d.fmt == FP16, unit.rule is Rule.TWO_PASSES, unit.rule is Rule.SCALED
    if two_passes and p.promote:  # the unit's own additions and those of the promotion are two levels
        _promoted(total, p)
        return
    run = fused_loop(unit)
    if replaces(run, total.size * p.a.shape[1]):
        _by_specification(total, p)
        return
    a, b, promotion, mode = p.a, p.b, p.promote // unit.terms, p.factors.mode
    if two_passes:
        a, b, promotion, mode = _interleaved(a, 1), _interleaved(b, 0), 2, ADD_HALF if half else ADD
        p = p._replace(a=a, b=b)
    formats = unit.operand_format(unit.a), unit.operand_format(unit.b)
    scales = [_scale_exponents(x) if scaled else NO_FACTORS for x in (p.scale_a, p.scale_b)]
    by_codes = source_of(unit, rows_of(unit)) != "floats"

    def adding(part: UnitProduct, scales: Sequence[Array]) -> Callable[..., None]:
        """What adds the products of a run of K to rows m0 .. m1 and columns n0 .. n1 of a part of the result."""
        a = floats(part.a, unit.a.carrier).view(i32)
        b, turned = as_they_lie(part.b) if by_codes else (floats(part.b, unit.b.carrier).view(i32), None)
        rest = *fused_facts(unit, bases_of((a, b), formats), turned), promotion, p.cut // unit.terms, mode
        return partial(_run, run, (a, b), (*scales, part.factors.rows, part.factors.columns, *rest))

    def work(m0: int, m1: int, n0: int, n1: int) -> None:
        for rows, columns in _blocks(m0, m1, n0, n1, side):
            block, patterns = p.block(rows, columns), np.ascontiguousarray(total[rows, columns]).view(i32)
            of_block = [scales[0][rows], scales[1][:, columns]] if scaled else scales
            for k in range(0, a.shape[1], length):
                steps = slice(k // unit.terms, -(-(k + length) // unit.terms))
                of_run = (of_block[0][:, steps], of_block[1][steps]) if scaled else of_block
                add = adding(block.run(k, k + length), [np.ascontiguousarray(x) for x in of_run])
                add(patterns, 0, patterns.shape[0], 0, patterns.shape[1])
            total[rows, columns] = patterns.view(f32)

    length = _run_length(p, by_codes)
    side = max(RUN_FLOATS // length // PANEL_COLUMNS, 1) * PANEL_COLUMNS
    if by_codes and total.shape[0] <= side:
        side = max(side, total.shape[1])  # nothing is held of b
    whole = length >= a.shape[1] and max(total.shape) <= side
    _in_spans(total, a.shape[1], partial(adding(p, scales), total.view(i32)) if whole else work)


def _run(
    loop: Any, operands: tuple[Array, Array], rest: tuple[Any, ...], patterns: Array, m0: int, m1: int, n0: int, n1: int
) -> None:  # fmt: skip
    loop(*operands, patterns, *rest, m0, m1, n0, n1)


def fused_loop(unit: MatrixUnit) -> Any:
    """The loop of a fast unit that follows the FUSED rule or is built from it."""
    half, rows = unit.d.fmt == FP16, rows_of(unit)
    source = source_of(unit, rows)
    terms = 16 if unit.rule is Rule.TWO_PASSES else unit.terms
    fills = unit.fraction_bits + 2 + (terms - 1).bit_length() > SUM_BITS + 1
    joined = fills or terms == 16 or (half and terms == 32)  # one kernel for all units of 16 terms, one for FP16 of 32
    joined = {"chained": False, "avx512": True}.get(rows, joined)
    return fused_product(terms, joined, half, unit.rule is Rule.SCALED, rows, source)


@lru_cache(maxsize=1024)
def fused_facts(
    unit: MatrixUnit, bases: tuple[int, int], turned: bool | None
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """What `fused_product` takes about a unit whose operands have these bases: facts, of_a, of_b, wide.

    turned: whether codes of B are transposed, None where it has floats.
    """
    half, d = unit.d.fmt == FP16, unit.d.fmt
    formats = unit.operand_format(unit.a), unit.operand_format(unit.b)
    of_a, of_b = (
        np.array([_kept(element), fmt.min_exponent, base], i32)
        for element, fmt, base in zip((unit.a, unit.b), formats, bases, strict=True)
    )
    if turned is not None:
        is_byte, fmt = unit.b.fmt.bits <= 8, unit.b.fmt
        of_b = facts_of(fmt, turned) if is_byte else facts_of_halves(fmt, bases[1], turned)
    cleared = 0 if half else (1 << (FP32.mantissa_bits - unit.result_bits)) - 1
    facts = np.array([unit.fraction_bits, unit.floor_exponent, ~cleared, sum(bases), d.min_exponent], i32)
    wide = np.array(
        [unit.fraction_bits, unit.floor_exponent, formats[0].min_exponent, formats[1].min_exponent, d.min_exponent,
         unit.result_bits, int(half), d.bias + 1], i32,
    )  # fmt: skip
    return facts, of_a, of_b, wide


def _run_length(p: UnitProduct, by_codes: bool) -> int:
    """Terms of K whose floats are held at a time: whole promotions or slices, so that sums go on from there."""
    whole, (rows, terms) = p.cut or p.promote or TWO_PASS_TERMS, p.a.shape
    if not by_codes:
        wanted = SHORT_RUN if min(rows, p.b.shape[1]) < PANEL_COLUMNS else RUN
    elif _lies_turned(p.b):  # columns of codes are best read as far as they go
        wanted = max(RUN_FLOATS // (-(-rows // PANEL_COLUMNS) * PANEL_COLUMNS), RUN)
    else:
        wanted = SHORT_CODE_RUN if rows <= FEW else RUN
    return int(min(-(-wanted // whole) * whole, max(terms, 1)))


def _blocks(m0: int, m1: int, n0: int, n1: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of a result in blocks."""
    for j in range(n0, n1, side):
        for i in range(m0, m1, side):
            yield slice(i, min(i + side, m1)), slice(j, min(j + side, n1))


def _kept(element: Element) -> int:
    """The bits of an operand's float32 patterns that count, as the pattern of an int32."""
    return -1 << (element.carrier.bits - element.fmt.bits)


def _scale_exponents(codes: Array) -> Array:
    """The exponents of E8M0 codes, NO_SCALE for NaN."""
    return np.ascontiguousarray(np.where(codes == 0xFF, NO_SCALE, codes.astype(i32) - 127), i32)


def _grouped(total: Array, p: UnitProduct) -> None:
    """Block-scaled FP4."""
    unit, fmt = p.unit, p.unit.scale_format or E8M0
    a, b = floats(p.a, unit.a.carrier), floats(p.b, unit.b.carrier)
    repeat = unit.block // GROUP
    codes = [x & 0x7F if unit.scale == "ue4m3" else x for x in (p.scale_a, p.scale_b)]
    rows, columns = (np.repeat(floats(x, fmt), repeat, axis) for x, axis in zip(codes, (1, 0), strict=True))
    least = fmt.min_exponent if fmt.has_zero else -fmt.bias
    facts, patterns = np.array([unit.fraction_bits, unit.floor_exponent, least], i32), total.view(i32)
    run = grouped_product()
    _in_spans(total, a.shape[1], lambda m0, m1, n0, n1: run(a, b, patterns, rows, columns, facts, m0, m1, n0, n1))


def _cuts(unit: MatrixUnit) -> int:
    """Sums of cut products that a step of a unit has, of a size that cut_product takes; 0 for other units."""
    halves = {Rule.SEPARATE: 1, Rule.EVEN_ODD: 2}.get(unit.rule, 0)
    exact = unit.a.fmt.precision + unit.b.fmt.precision <= FP32.precision
    return halves if halves and exact and unit.terms in (SIZES[0] * halves, SIZES[1] * halves) else 0


def _cut(total: Array, p: UnitProduct) -> None:
    """The units of CDNA3."""
    unit, halves = p.unit, _cuts(p.unit)
    a, b = floats(p.a, unit.a.carrier).view(i32), floats(p.b, unit.b.carrier).view(i32)
    a, b = (x if _kept(element) == -1 else x & i32(_kept(element)) for x, element in ((a, unit.a), (b, unit.b)))
    formats = unit.a.fmt, unit.b.fmt
    bases = bases_of((a, b), formats)
    of_a, of_b = (np.array([-1, fmt.min_exponent, base], i32) for fmt, base in zip(formats, bases, strict=True))
    run, base, facts = cut_product(unit.terms, halves, has_avx512()), i32(sum(bases)), _step_facts(formats)
    _in_spans(total, a.shape[1], lambda m0, m1, n0, n1: run(a, b, total, of_a, of_b, base, facts, m0, m1, n0, n1))


def _step_facts(formats: tuple[Format, Format]) -> Array:
    """StepFacts of two formats."""
    tiny, places = [2.0**fmt.min_exponent for fmt in formats], sum(fmt.mantissa_bits for fmt in formats)
    return np.array([*(fmt.min_exponent for fmt in formats), *tiny, places])


def _stepwise(total: Array, p: UnitProduct) -> None:
    """AMD's units, and chains of fused multiply-adds."""
    unit = p.unit
    a, b = floats(p.a, unit.a.carrier), floats(p.b, unit.b.carrier)
    a, b = (
        x if _kept(element) == -1 else (x.view(i32) & i32(_kept(element))).view(f32)
        for x, element in ((a, unit.a), (b, unit.b))
    )
    formats = unit.a.fmt, unit.b.fmt
    chain = unit.rule is Rule.EXACT and unit.terms == 1
    facts = _step_facts(formats)
    in_vectors = unit.rule is Rule.EXACT and not chain and unit.terms % 2 == 0 and has_avx512()
    run = step_product("chain" if chain else unit.rule, unit.terms if in_vectors else 0)
    terms = CHAIN_TERMS if chain else unit.terms
    if unit.rule is Rule.FLUSHED_TREE:
        total[np.abs(total) < 2.0**FP32.min_exponent] = 0
    _in_spans(total, a.shape[1], lambda m0, m1, n0, n1: run(a, b, total, terms, facts, m0, m1, n0, n1))


def _promoted(total: Array, p: UnitProduct) -> None:
    """Partial sums of `promote` terms from +0, added one after the other."""
    for part, start in enumerate(range(0, p.a.shape[1], p.promote)):
        partial = np.zeros_like(total)
        add_product(partial, p.part(start, min(start + p.promote, p.a.shape[1])))
        with ieee_arithmetic(), np.errstate(all="ignore"):  # totals become Inf or NaN as they should
            add_part(total, partial, p.factors, part)


def add_part(
    total: Any, partial: Any, factors: Factors, part: int, backend: FloatOperations = ON_NUMPY
) -> None:  # fmt: skip
    """Add a partial sum to its total, times its factors."""
    if factors.mode == ADD:
        backend.add(total, partial, out=total)
        return
    rows, columns = factors.rows[:, part, None], factors.columns[None, part]
    if factors.mode == PRODUCT:
        backend.fma(np.multiply(rows, columns), partial, total, out=total)
    else:
        first, second = (rows, columns) if factors.mode == ROWS_FIRST else (columns, rows)
        backend.fma(backend.multiply(partial, first), second, total, out=total)
