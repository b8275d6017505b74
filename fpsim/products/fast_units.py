"""Checks of which matrix units have fast kernels.

Other units are computed by the slower loop of their integer specification, to the same bits. The kernels compute in
float32, int32 and float64, which limits the number of terms, the bits and the exponents of a unit. The catalogue's
units are within these limits; a user's unit may exceed them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from fpsim.formats.named import BF16, FP16, FP32, FP64, Format
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.products.kernels.code_panel import has_code_panels
from fpsim.runtime.vectors import widest_vectors

EXPONENTS = 20  # largest magnitude of an exponent in a format whose base exponent is 0 (panel.HIGHEST)
BASES = 60  # largest magnitude of both base exponents' sum: products and powers stay in float32's range
SCALES = 72  # largest magnitude of the sum of two block scales' exponents (fused_product.SCALE_WINDOW)
LOWEST_FLOOR = -900  # lowest floor exponent for which powers of two are normal float64 numbers
FUSED_TERMS = (4, 8, 16, 32)  # terms of the instructions for which fused_row has loops
FUSED_BITS = 26  # fraction bits: eight cut products fill an int32
GROUPED_TERMS, GROUPED_BITS = 64, 38  # terms of a step; fraction bits that float64 sums of dot products of 16 allow
CUT_BITS = 24  # step_rows.CUT_BITS
CHAINED_BITS = 22  # of a sum in units of the last kept bit: chained_row's float32 sums stay in one binade
VECTOR_BITS = 25  # fraction bits: sixteen cut products fill an int32
TREE_TERMS = 4  # products of a tree for which StepRoom has buffers


@lru_cache(maxsize=4096)
def is_fast(unit: MatrixUnit) -> bool:
    """Return whether a fast kernel can compute products by this unit bit for bit."""
    return all(_as_float(element) for element in (unit.a, unit.b)) and OF_RULE[unit.rule](unit)


@lru_cache(maxsize=4096)
def is_centred(fmt: Format) -> bool:
    """Return whether all exponents of normal values of the format `fmt` are within -20 .. 20.

    They are for all usual formats of up to five exponent bits.
    """
    return fmt.min_exponent >= -EXPONENTS and fmt.max_exponent <= EXPONENTS


@lru_cache(maxsize=4096)
def rows_of(unit: MatrixUnit) -> str:
    """Return the name of the kernel that computes rows of a product by a unit on this processor.

    unit: a unit with a fast kernel, of `Rule.FUSED`, `Rule.SCALED` or `Rule.TWO_PASSES`.

    "chained" (kernels/chained_row.py) needs AVX-512 and a unit of `Rule.FUSED`. The exponents of both operands' formats
    must be within -20 .. 20, and sums must have at most 22 bits, counted from the last bit that is kept of a term.
    "avx512" and "avx2" (kernels/vector_row.py, compiled for these instructions) are for other units of at most 25
    fraction bits. "plain" (kernels/fused_row.py) is for all other units and processors.
    """
    vectors = widest_vectors()
    bits = unit.fraction_bits + 2 + (unit.terms - 1).bit_length()
    centred = is_centred(unit.a.fmt) and is_centred(unit.b.fmt)
    if vectors == "avx512" and unit.rule is Rule.FUSED and bits <= CHAINED_BITS and centred:
        return "chained"
    return vectors if vectors and unit.fraction_bits <= VECTOR_BITS else "plain"


@lru_cache(maxsize=4096)
def source_of(unit: MatrixUnit, rows: str) -> str:
    """Return the form in which a unit's kernel reads operand b: "floats", or codes as "bytes" or "halves".

    rows: the kernel's name, a result of `rows_of`. "halves": codes of FP16 or BF16, unless `rows` is "plain". "bytes":
    codes of formats of up to 8 bits that are laid out like FP16 (`has_code_panels`), with exponents within -20 .. 20.
    "floats": all other cases, such as TF32, whose codes have more bits than the unit reads.
    """
    element = unit.b
    # to units of two passes, subnormal FP8 values are FP16 values, with exponents below FP8's
    if not element.fmt == element.carrier == unit.operand_format(element):
        return "floats"
    if element.fmt in (FP16, BF16) and rows != "plain":
        return "halves"
    return "bytes" if is_centred(element.fmt) and has_code_panels(element.fmt) else "floats"


def _as_float(element: Element) -> bool:
    """Return whether kernels can read an operand's values as floats: its format is FP64, or fits into float32.

    A format fits if float32 holds all its values, and its smallest exponent of normal values is not below -126.
    element: the operand's format in a unit, `fmt`, with the format of the codes that hold it, `carrier`, which must be
    `fmt` or FP32.
    """
    fmt, carrier = element.fmt, element.carrier
    if FP64 in (fmt, carrier):
        return True  # only chains add FP64
    return FP32.holds(fmt) and fmt.min_exponent >= FP32.min_exponent and carrier in (fmt, FP32)


def _is_float32(unit: MatrixUnit) -> bool:
    """Return whether a unit's sums are float32 with all mantissa bits, and neither operand is FP64."""
    whole = unit.d.fmt == FP32 and unit.result_bits == FP32.mantissa_bits
    return whole and FP64 not in (unit.a.fmt, unit.b.fmt)


def _fused(unit: MatrixUnit) -> bool:
    """Return whether the fast kernels can compute a unit of `Rule.FUSED`, or of a rule built from it.

    The largest floor exponent (that of a zero term) cuts no bits off an accumulator to which only zeros are added.
    """
    d, terms = unit.d.fmt, unit.terms // 2 if unit.rule is Rule.TWO_PASSES else unit.terms
    # a step without products leaves the accumulator as it is, which no cut then may shorten
    keeps = unit.fraction_bits - unit.result_bits
    return (
        terms in FUSED_TERMS
        and 1 <= unit.fraction_bits <= FUSED_BITS
        and unit.a.fmt.precision + unit.b.fmt.precision <= FP32.precision
        and (d == FP32 or (d == FP16 and unit.result_bits == FP16.mantissa_bits))
        and keeps >= 0
        and LOWEST_FLOOR <= unit.floor_exponent <= d.min_exponent + keeps
    )


def _scaled(unit: MatrixUnit) -> bool:
    """Return whether the fast kernels can compute a unit of `Rule.SCALED`: with one block of scales per instruction."""
    a, b = unit.a.fmt, unit.b.fmt
    least = a.min_exponent + b.min_exponent - SCALES
    # the smallest power of a step, 2**(fraction bits - least), is a normal float32
    in_range = least >= unit.fraction_bits + 1 - FP32.bias and is_centred(a) and is_centred(b)
    return _fused(unit) and unit.block == unit.terms and in_range


def _exact(unit: MatrixUnit) -> bool:
    """Return whether the fast kernels can compute a unit of `Rule.EXACT`.

    They compute fused multiply-adds (one term) in float64 or float32, and exact sums of up to 4 FP16 or 2 BF16
    products, as CDNA1's instructions have.
    """
    a, b, d = unit.a.fmt, unit.b.fmt, unit.d.fmt
    if unit.terms == 1 and (a, b, d) == (FP64, FP64, FP64):
        return unit.result_bits == FP64.mantissa_bits
    if unit.terms == 1:
        return _is_float32(unit)
    most = {(FP16, FP16): 4, (BF16, BF16): 2}.get((a, b), 0)
    return _is_float32(unit) and unit.terms <= most


def _separate(unit: MatrixUnit) -> bool:
    """Return whether the fast kernels can compute a unit of `Rule.SEPARATE` or `Rule.EVEN_ODD`."""
    return _is_float32(unit) and (unit.fraction_bits, unit.floor_exponent) == (CUT_BITS, FP32.min_exponent)


def _flushed_chain(unit: MatrixUnit) -> bool:
    """Return whether the fast kernels can compute a unit of `Rule.REVERSED_CHAIN` or `Rule.TWO_CHAINS`."""
    # float64 shows which results of such products are below 2**-126
    return _is_float32(unit) and unit.a.fmt.precision + unit.b.fmt.precision <= FP32.precision


OF_RULE: dict[Rule, Callable[[MatrixUnit], bool]] = {
    Rule.FUSED: _fused, Rule.SCALED: _scaled, Rule.EXACT: _exact,
    Rule.GROUPED: lambda unit: (
        _is_float32(unit) and unit.terms == GROUPED_TERMS and unit.fraction_bits <= GROUPED_BITS
        and LOWEST_FLOOR <= unit.floor_exponent <= 0
    ),
    Rule.TWO_PASSES: lambda unit: (
        _fused(unit) and unit.terms == 32 and unit.result_bits == unit.d.fmt.mantissa_bits
    ),
    Rule.FLUSHED_TREE: lambda unit: _is_float32(unit) and unit.terms <= TREE_TERMS,
    Rule.SEPARATE: _separate, Rule.EVEN_ODD: _separate,
    Rule.REVERSED_CHAIN: _flushed_chain, Rule.TWO_CHAINS: _flushed_chain,
    Rule.ODD_PAIR: lambda _unit: False, Rule.FUSED_PAIR: lambda _unit: False,  # by the specification alone
}  # fmt: skip
