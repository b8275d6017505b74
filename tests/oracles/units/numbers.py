"""Exact values of codes, and of products and sums of them, as integers times powers of two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from fpsim.formats.named import Format
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from tests.oracles import casts
from tests.oracles.casts import Kind


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
