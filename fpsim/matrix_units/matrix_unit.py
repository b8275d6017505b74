"""The class of a matrix unit: how one instruction multiplies, aligns, adds and rounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from fpsim.errors import integer_fields, require_kind, require_word
from fpsim.formats.named import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
)
from fpsim.matrix_units.meaning import refuse_carrier, refuse_meaningless
from fpsim.matrix_units.rule import Rule
from fpsim.reload import reloadable

__all__ = ["ELEMENT", "ELEMENTS", "SCALES", "Element", "Evidence", "MatrixUnit", "Rule", "row"]

Evidence = Literal["hardware", "simulated", "inferred"]
SCALES = {"ue8m0": E8M0, "ue4m3": E4M3}  # what block scales are called -> the format of their codes
QUIET = (Rule.EXACT, Rule.FLUSHED_TREE, Rule.ODD_PAIR, Rule.FUSED_PAIR)  # whose NaN is the format's quiet one
ELEMENT = "an element of a unit, such as fp.unit('hopper_f16_f32').a"  # what errors tell callers to pass


@reloadable
@dataclass(frozen=True)
class Element:
    """The number type of a matrix unit's operands or results: the format of its values and the codes that carry them.

    Args:
      name: as in PTX and in the unit's name, such as "e4m3", "bf16" or "tf32".
      fmt: format of the values.
      carrier: format whose codes carry the values: FP32 for tf32, whose last bits are dropped; otherwise `fmt`.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> import fpsim as fp
      >>> mine = fp.Format("mine", exponent_bits=4, mantissa_bits=2)
      >>> type(fp.unit("hopper_f16_f32").a)("mine", mine, mine).dtype
      dtype('uint8')
    """

    name: str
    fmt: Format
    carrier: Format

    def __post_init__(self) -> None:
        require_kind("name", self.name, str, "a text")
        for field in ("fmt", "carrier"):
            require_kind(field, getattr(self, field), Format, "an fp.Format, such as fp.E4M3")
        refuse_carrier(self.fmt, self.carrier)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of an array of codes of this type, such as uint8 for "e4m3": the storage dtype of `carrier`."""
        return self.carrier.storage


ELEMENTS: dict[str, Element] = {
    name: Element(name, fmt, carrier)
    for name, fmt, carrier in (
        ("f16", FP16, FP16), ("bf16", BF16, BF16), ("tf32", TF32, FP32), ("xf32", TF32, FP32),
        ("f32", FP32, FP32), ("f64", FP64, FP64),
        ("e4m3", E4M3, E4M3), ("e5m2", E5M2, E5M2), ("e3m2", E3M2, E3M2), ("e2m3", E2M3, E2M3), ("e2m1", E2M1, E2M1),
        ("fp8", E4M3FNUZ, E4M3FNUZ), ("bf8", E5M2FNUZ, E5M2FNUZ), ("bf16_1k", BF16, BF16),
    )
}  # fmt: skip


@reloadable
@dataclass(frozen=True)
class MatrixUnit:
    """One matrix instruction: its operands, and the arithmetic of one step.

    A step (one instruction) adds `terms` consecutive products to the accumulator and rounds the sum to the
    accumulator's format; longer sums chain steps over ascending k.

    Args:
      name: `<arch>_<a>[x<b>]_<d>`.
      arch: the architecture of the chips.
      a, b, d: the number types (Element) of both operands, and of the accumulator and result.
      rule: how a step adds its terms (docs/matrix-units.md).
      terms: products of one step.
      fraction_bits: bits kept below the largest exponent when terms are aligned; 0 if nothing is truncated.
      floor_exponent: the smallest exponent to which terms are aligned, even if all of them are below it.
      result_bits: mantissa bits of the result; 13 sets the low 10 bits of a float32 to zero.
      scale: format of the block scales: "ue8m0", "ue4m3" or None.
      block: terms that share a scale; 0 without scales.
      instruction: the instructions that behave like this.
      source: source of these facts.
      evidence: "hardware" (compared with real output), "simulated" (taken from an official simulator whose authors
        claim equal bits) or "inferred" (from specifications or from other units).

    Raises:
      TypeError, ValueError: a field has another type or value than those above, or the rule does not allow it;
        docs/matrix-units.md has the bounds.

    Example:
      >>> import fpsim as fp
      >>> unit = fp.unit("hopper_e4m3_f32")
      >>> unit.terms, unit.fraction_bits, unit.result_bits, unit.evidence
      (32, 13, 13, 'hardware')
    """

    name: str
    arch: str
    a: Element
    b: Element
    d: Element
    rule: Rule
    terms: int
    fraction_bits: int = 0
    floor_exponent: int = 0
    result_bits: int = 23
    scale: str | None = None
    block: int = 0
    instruction: str = ""
    source: str = ""
    evidence: Evidence = "simulated"

    def __post_init__(self) -> None:
        for field in ("name", "arch", "instruction", "source"):
            require_kind(field, getattr(self, field), str, "a text")
        for field in ("a", "b", "d"):
            require_kind(field, getattr(self, field), Element, ELEMENT)
        require_kind("rule", self.rule, Rule, "a Rule, such as fp.unit('hopper_f16_f32').rule")
        integer_fields(self, "terms", lowest=1)
        integer_fields(self, "fraction_bits", "result_bits", lowest=0)
        integer_fields(self, "floor_exponent")
        if self.scale is not None:
            require_word("scale", self.scale, tuple(SCALES))
        integer_fields(self, "block", lowest=1 if self.scale else 0)
        require_word("evidence", self.evidence, get_args(Evidence))
        refuse_meaningless(self)

    def __hash__(self) -> int:
        return self._hash  # units are keys of the caches of plans, which every product reads

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickling, without the cached hash, which differs from process to process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _hash(self) -> int:
        """Hash of the unit, computed once."""
        return hash((self.name, self.a, self.b, self.d, self.terms, self.fraction_bits, self.result_bits))

    @property
    def scale_format(self) -> Format | None:
        """The format of the block scales' codes, None without scales; UE4M3 is E4M3 whose sign bit is ignored."""
        return SCALES[self.scale] if self.scale else None

    @property
    def nan_code(self) -> int:
        """The code of every NaN that the unit returns.

        Exponent and mantissa are all ones, but under EXACT, FLUSHED_TREE, ODD_PAIR and FUSED_PAIR it is the format's
        canonical quiet NaN, and under REVERSED_CHAIN and TWO_CHAINS (x86) the quiet NaN with the sign set.
        """
        fmt = self.d.fmt
        if self.rule in (Rule.REVERSED_CHAIN, Rule.TWO_CHAINS):
            return fmt.sign_bit | (fmt.infinity_code or 0) | (1 << fmt.mantissa_bits - 1)
        canonical = fmt.nan_code if self.rule in QUIET else None
        return fmt.top_magnitude if canonical is None else canonical

    @property
    def specials(self) -> str:
        """Sentences that state the results for NaN, Inf and overflow.

        Example:
          >>> import fpsim as fp
          >>> fp.unit("blackwell_nvfp4_f32").specials.rpartition(". ")[2]
          'A scale that is NaN gives NaN.'
        """
        products = " Products of 2^128 or more count as Inf." if self.rule in (Rule.SEPARATE, Rule.EVEN_ODD) else ""
        scales = " A scale that is NaN gives NaN." if self.scale else ""
        return (
            f"NaN, Inf * 0 and infinities of both signs give NaN (0x{self.nan_code:X}), other infinities Inf; "
            f"a sum that overflows is Inf.{products}{scales}"
        )

    def operand_format(self, element: Element) -> Format:
        """Return the format in which the unit's instruction reads an operand: FP16 for FP8 under `Rule.TWO_PASSES`.

        element: the unit's `a` or `b`.

        Raises:
          TypeError: element is not an Element.
        """
        if type(element) is not Element:  # without a helper, as one more call slows small products
            require_kind("element", element, Element, ELEMENT)
        return FP16 if self.rule is Rule.TWO_PASSES else element.carrier

    @property
    def rounding(self) -> str:
        """Name of the mode, such as "toward_zero", by which the sum of a step is rounded to the result's format."""
        cuts = self.rule in (Rule.FUSED, Rule.SCALED, Rule.GROUPED, Rule.TWO_PASSES) and self.d.fmt == FP32
        return "toward_zero" if cuts else "odd" if self.rule is Rule.ODD_PAIR else "nearest_even"

    def __repr__(self) -> str:
        scaled = f", a {self.scale} scale per {self.block} terms" if self.scale else ""
        cut = f"cut at {self.fraction_bits} fraction bits, " if self.fraction_bits else ""
        low = f" to {self.result_bits} mantissa bits" if self.result_bits < self.d.fmt.mantissa_bits else ""
        words = self.rounding.replace("_", " ")
        products = f"{self.terms} product{'s' if self.terms > 1 else ''} per step{scaled}"
        return f"MatrixUnit({self.name!r}: {products}, {cut}rounded {words}{low}; {self.evidence})"


def row(
    name: str, elements: str, rule: Rule, numbers: str, evidence: Evidence, source: str,
    instruction: str, scale: str = "",
) -> MatrixUnit:  # fmt: skip
    """Return a matrix unit made of one row of a vendor's table.

    elements: names of the number types of both operands and of the result, such as "e4m3 e4m3 f32". numbers: the fields
    terms, fraction_bits, floor_exponent and result_bits, such as "32 25 -133 23". scale: format of the block scales and
    number of terms that share one, such as "ue8m0/32"; "" for no scales. name, rule, evidence, source, instruction: the
    fields of MatrixUnit.
    """
    a, b, d = (ELEMENTS[element] for element in elements.split())
    terms, fraction_bits, floor_exponent, result_bits = map(int, numbers.split())
    of_scale, _, block = scale.partition("/")
    return MatrixUnit(
        name, name.partition("_")[0], a, b, d, rule, terms, fraction_bits, floor_exponent, result_bits,
        of_scale or None, int(block or 0), instruction, source, evidence,
    )  # fmt: skip
