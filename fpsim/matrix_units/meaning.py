"""Checks that a matrix unit's description can be computed: the units that each rule allows, and bounds of integers.

Each check yields a sentence for each requirement that a unit breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fpsim.formats.named import E2M1, FP16, FP32, FP64, Format
from fpsim.matrix_units.rule import Rule

MOST_TERMS = 1 << 16
PRODUCT_BITS = 62  # of two significands together
SUM_BITS = 60  # fraction bits of a step plus the bits that count its terms; products are below 4, and there is a sign
FLOORS = 4096  # largest magnitude of a floor exponent
SEPARATE_BITS = 32  # fraction bits of the sum of products of SEPARATE, below which nothing is cut
GROUP, GROUP_BITS = 16, 10  # terms of a group of GROUPED; bits of its scaled dot product above the fraction bits

Described = Any  # a MatrixUnit, whose type is defined with these checks
Check = Callable[[Described], Iterator[str]]


def refuse_meaningless(unit: Described) -> None:
    """Raise a ValueError that states the first contradiction in the description of the MatrixUnit `unit`, if any."""
    for check in (_accumulator, _sizes, _scales, OF_RULE[unit.rule]):
        for reason in check(unit):
            raise ValueError(f"{reason}.")


def refuse_carrier(fmt: Format, carrier: Format) -> None:
    """Raise a ValueError unless codes of the format `carrier` can hold values of `fmt` in their upper bits.

    `carrier` must be `fmt` itself, or both must have an IEEE 754 layout that differs only in that `carrier` has more
    mantissa bits, such as FP32 for TF32.
    """
    same = all(
        (one.exponent_bits, one.bias, one.signed, one.nan, one.subnormals)
        == (fmt.exponent_bits, fmt.bias, fmt.signed, "ieee", True)
        for one in (fmt, carrier)
    )
    if fmt != carrier and not (same and carrier.mantissa_bits > fmt.mantissa_bits):
        raise ValueError(
            f"carrier must be {fmt} itself, or its layout of IEEE 754 with more mantissa bits, as FP32 is of TF32; "
            f"got {carrier}."
        )


def _accumulator(unit: Described) -> Iterator[str]:
    """Yield a sentence for each reason why the accumulator of the MatrixUnit `unit` cannot be computed."""
    d: Format = unit.d.fmt
    if d != unit.d.carrier or d.nan != "ieee" or not (d.signed and d.subnormals):
        yield f"d must be an IEEE 754 element with its own codes, such as f32 or f16; got {unit.d.name}"
    if not (FP32.holds(d) or d == FP64):
        yield f"d must be f64, or a format whose values float32 holds; got {unit.d.name}"
    if unit.result_bits > d.mantissa_bits:
        most = f"the {d.mantissa_bits} mantissa bits of {unit.d.name}"
        yield f"result_bits must be at most {most}; got {unit.result_bits}"


def _sizes(unit: Described) -> Iterator[str]:
    """Yield a sentence if the MatrixUnit `unit` has more than 65536 terms, and one if |floor_exponent| exceeds 4096."""
    if unit.terms > MOST_TERMS:
        yield f"terms must be at most {MOST_TERMS}; got {unit.terms}"
    if abs(unit.floor_exponent) > FLOORS:
        yield f"floor_exponent must lie in -{FLOORS} .. {FLOORS}; got {unit.floor_exponent}"


def _scales(unit: Described) -> Iterator[str]:
    """Yield a sentence if the MatrixUnit `unit` has block scales that its rule does not use, or lacks needed ones."""
    scaled = unit.rule in (Rule.SCALED, Rule.GROUPED)
    if scaled and not unit.scale:
        yield f"{unit.rule.name} needs block scales: pass scale='ue8m0' and a block, or take Rule.FUSED"
    if not scaled and (unit.scale or unit.block):
        yield f"{unit.rule.name} has no block scales: leave scale and block out, or take Rule.SCALED"


# ---- what each rule requires


def _cut(unit: Described) -> Iterator[str]:
    """Yield a sentence for each limit on bits that `unit`, a MatrixUnit whose rule truncates aligned terms, exceeds."""
    precision = unit.a.carrier.precision + unit.b.carrier.precision
    if precision > PRODUCT_BITS:
        yield (
            f"{unit.rule.name} takes products of up to {PRODUCT_BITS} bits; {unit.a.name} x {unit.b.name} has "
            f"{precision}. Take Rule.EXACT"
        )
    most = SUM_BITS - unit.terms.bit_length()
    if unit.fraction_bits > most:
        yield f"fraction_bits must be at most {most} for {unit.terms} terms; got {unit.fraction_bits}"


def _scaled(unit: Described) -> Iterator[str]:
    """Yield a sentence for each requirement of `Rule.SCALED` that the MatrixUnit `unit` breaks."""
    yield from _cut(unit)
    if unit.scale != "ue8m0":
        yield f"SCALED adds the exponents of scales, which must be 'ue8m0'; got {unit.scale!r}"
    if unit.block % unit.terms:
        share = f"the {unit.terms} terms of a step of SCALED share their scales"
        yield f"{share}: block must be a multiple; got {unit.block}"


def _grouped(unit: Described) -> Iterator[str]:
    """Yield a sentence for each requirement of `Rule.GROUPED` that the MatrixUnit `unit` breaks."""
    if (unit.a.fmt, unit.b.fmt) != (E2M1, E2M1):
        yield f"GROUPED takes e2m1 operands; got {unit.a.name} and {unit.b.name}"
    for field in ("terms", "block"):
        if getattr(unit, field) % GROUP:
            yield f"GROUPED adds groups of {GROUP} products: {field} must be a multiple; got {getattr(unit, field)}"
    most = SUM_BITS - GROUP_BITS - unit.terms.bit_length()
    if unit.fraction_bits > most:
        yield f"fraction_bits must be at most {most} for {unit.terms} terms; got {unit.fraction_bits}"


def _two_passes(unit: Described) -> Iterator[str]:
    """Yield a sentence for each requirement of `Rule.TWO_PASSES` that the MatrixUnit `unit` breaks."""
    yield from _cut(unit)
    for element in (unit.a, unit.b):
        if not FP16.holds(element.fmt) or element.carrier != element.fmt:
            yield f"TWO_PASSES reads its operands as FP16, which does not hold {element.name}"
    if unit.terms % 4:
        yield f"TWO_PASSES takes two terms of every four first: terms must be a multiple of 4; got {unit.terms}"


def _uncut(unit: Described) -> Iterator[str]:
    """Yield a sentence if the MatrixUnit `unit` has fraction bits although its rule truncates nothing."""
    if unit.fraction_bits:
        yield f"{unit.rule.name} cuts nothing: fraction_bits must be 0; got {unit.fraction_bits}"


def _flushed_tree(unit: Described) -> Iterator[str]:
    """Yield a sentence for each requirement of `Rule.FLUSHED_TREE` that the MatrixUnit `unit` breaks."""
    yield from _in_float32(unit)
    if unit.terms & (unit.terms - 1):
        yield f"FLUSHED_TREE adds pairs of pairs: terms must be a power of two; got {unit.terms}"


def _in_float32(unit: Described) -> Iterator[str]:
    """Yield a sentence for each requirement that the MatrixUnit `unit` breaks, for the rules that add in float32."""
    yield from _uncut(unit)
    name = unit.rule.name
    if unit.d.fmt != FP32 or unit.result_bits != FP32.mantissa_bits:
        yield f"{name} adds in float32: d must be f32 with {FP32.mantissa_bits} result_bits; got {unit.d.name}"
    if unit.terms % 2 and unit.rule is Rule.TWO_CHAINS:
        yield f"TWO_CHAINS adds even and odd terms apart: terms must be even; got {unit.terms}"
    for element in (unit.a, unit.b):
        if not FP32.holds(element.fmt):
            yield f"{name} multiplies in float32, which does not hold {element.name} operands"


def _pair(unit: Described) -> Iterator[str]:
    """Yield a sentence for each requirement of the rules ODD_PAIR and FUSED_PAIR that the MatrixUnit `unit` breaks."""
    yield from _in_float32(unit)
    if unit.terms != 2:
        yield f"{unit.rule.name} adds pairs: terms must be 2; got {unit.terms}"


def _separate(unit: Described) -> Iterator[str]:
    """Yield a sentence for each requirement of AMD's rules SEPARATE and EVEN_ODD that the MatrixUnit `unit` breaks."""
    yield from _cut(unit)
    if unit.fraction_bits > SEPARATE_BITS:
        yield f"fraction_bits of {unit.rule.name} must be at most {SEPARATE_BITS}; got {unit.fraction_bits}"


OF_RULE: dict[Rule, Check] = {
    Rule.FUSED: _cut, Rule.SCALED: _scaled, Rule.GROUPED: _grouped, Rule.TWO_PASSES: _two_passes, Rule.EXACT: _uncut,
    Rule.FLUSHED_TREE: _flushed_tree, Rule.SEPARATE: _separate, Rule.EVEN_ODD: _separate,
    Rule.REVERSED_CHAIN: _in_float32, Rule.TWO_CHAINS: _in_float32, Rule.ODD_PAIR: _pair, Rule.FUSED_PAIR: _pair,
}  # fmt: skip
