"""The class of an integer matrix unit: the operands of one instruction, and how its sums wrap or saturate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np

from fpsim.errors import integer_fields, require_kind, require_word
from fpsim.formats.integer_format import INTEGERS, IntegerFormat
from fpsim.matrix_units.matrix_unit import Evidence
from fpsim.reload import reloadable

MOST_TERMS = 1 << 16  # terms of a step: products of 16-bit integers are added in 64 bits
WIDTHS = (4, 8, 16, 32)
ELEMENT = "an element of an integer unit, such as fp.unit('hopper_s8_s32').a"  # what errors tell callers to pass


@reloadable
@dataclass(frozen=True)
class IntegerElement:
    """The integer type of a matrix unit's operands or results: its width and sign; arrays hold one integer per element.

    Args:
      name: as in PTX and in the unit's name: "s8", "u8", "s4" or "u4" for operands, "s32" or "u32" for results. "s16"
        is the range to which some units (VPMADDUBSW) saturate the sum of two products before they add it.
      bits: 4, 8, 16 or 32.
      signed: whether it has negative values (two's complement).

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> import fpsim as fp
      >>> element = fp.unit("ampere_s4_s32").a
      >>> element.name, element.fmt, element.lowest, element.highest, element.dtype
      ('s4', <INT4: integers -8 .. 7>, -8, 7, dtype('int8'))
    """

    name: str
    bits: int
    signed: bool

    def __post_init__(self) -> None:
        require_kind("name", self.name, str, "a text")
        integer_fields(self, "bits")
        if self.bits not in WIDTHS:
            raise ValueError(f"bits must be one of {', '.join(map(str, WIDTHS))}; got {self.bits}.")
        require_kind("signed", self.signed, bool, "True or False")

    @property
    def lowest(self) -> int:
        """The smallest integer of this type."""
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def highest(self) -> int:
        """The largest integer of this type."""
        return (1 << self.bits - self.signed) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of an array of integers of this type; those of fewer than 8 bits are stored in a byte each."""
        return np.dtype(f"{'' if self.signed else 'u'}int{max(self.bits, 8)}")

    @property
    def fmt(self) -> IntegerFormat | None:
        """The integer format with this width and sign, such as fp.INT8; None if there is none, as for 32-bit sums."""
        formats = (fmt for fmt in INTEGERS.values() if (fmt.bits, fmt.signed) == (self.bits, self.signed))
        return next(formats, None)


INTEGER_ELEMENTS: dict[str, IntegerElement] = {
    f"{sign}{bits}": IntegerElement(f"{sign}{bits}", bits, sign == "s") for bits in WIDTHS for sign in "su"
}


@reloadable
@dataclass(frozen=True)
class IntegerUnit:
    """One matrix instruction of integers: its operands, and how the sums of a step wrap or saturate.

    A step (one instruction) adds `terms` consecutive products to the accumulator, exactly; then the sum wraps, modulo
    2^32, or saturates to the ends of its range. Longer sums chain steps over ascending k. Sums that saturate depend on
    the order and on `terms`; sums that wrap do not.

    Args:
      name: `<arch>_<a>[x<b>]_<d>`, with `_sat` at the end if sums saturate.
      arch: the architecture of the chips.
      a, b, d: the integer types (IntegerElement) of both operands, and of the accumulator and result.
      terms: products of one step.
      saturates: whether the sum of a step becomes the nearest end of d's range if it is beyond; else it wraps.
      pair: integer type to whose range the sum of every two products saturates first, s16 for VPMADDUBSW; or None.
      instruction: the instructions that behave like this.
      source: source of these facts.
      evidence: "hardware" (compared with real output), "inferred" (from the vendor's specification) or "simulated",
        which fpsim's own integer units never are.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> import fpsim as fp
      >>> fp.unit("x86_vnni_u8xs8_s32_sat")
      IntegerUnit('x86_vnni_u8xs8_s32_sat': 4 products per step, exact, then saturated to s32; hardware)
      >>> fp.dot_add(np.uint8([[255, 255]]), np.int8([[127, 127]]), np.int32([2**31 - 9]), "x86_vnni_u8xs8_s32_sat")
      array([2147483647], dtype=int32)
    """

    name: str
    arch: str
    a: IntegerElement
    b: IntegerElement
    d: IntegerElement
    terms: int
    saturates: bool = False
    pair: IntegerElement | None = None
    instruction: str = ""
    source: str = ""
    evidence: Evidence = "inferred"

    def __post_init__(self) -> None:
        for field in ("name", "arch", "instruction", "source"):
            require_kind(field, getattr(self, field), str, "a text")
        for field in ("a", "b", "d"):
            require_kind(field, getattr(self, field), IntegerElement, ELEMENT)
        integer_fields(self, "terms", lowest=1)
        if self.terms > MOST_TERMS:
            raise ValueError(f"terms must be at most {MOST_TERMS}; got {self.terms}.")
        require_kind("saturates", self.saturates, bool, "True or False")
        require_kind("pair", self.pair, (IntegerElement, type(None)), "None or an element such as s16")
        if self.pair is not None and self.terms % 2:
            raise ValueError(f"terms must be even where pairs of products saturate; got {self.terms}.")
        require_word("evidence", self.evidence, get_args(Evidence))
        for field in ("a", "b"):
            if getattr(self, field).bits > 8:
                raise ValueError(f"{field} must have 4 or 8 bits; got {getattr(self, field).name}.")
        if self.d.bits != 32:
            raise ValueError(f"d must have 32 bits, such as s32; got {self.d.name}.")

    @cached_property
    def overflow(self) -> str:
        """The treatment of a sum beyond the range of element d: "saturates" or "wraps"."""
        return "saturates" if self.saturates else "wraps"

    def __repr__(self) -> str:
        products = f"{self.terms} product{'s' if self.terms > 1 else ''} per step"
        added = "exact" if self.pair is None else f"pairs saturated to {self.pair.name}"
        end = f"saturated to {self.d.name}" if self.saturates else "wrapped modulo 2^32"
        return f"IntegerUnit({self.name!r}: {products}, {added}, then {end}; {self.evidence})"
