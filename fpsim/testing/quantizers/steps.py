"""Parts of the model of a quantizer: outcomes and other names, and classes for steps with parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from fpsim.formats.float_format import Format
from fpsim.testing.quantizers.rounder import (
    Codes,
    Doubles,
    Flags,
    FractionGrid,
    grid_of,
    magnitude_of,
    magnitudes_of,
    round_to_codes,
)

Outcome = Literal[
    "infinity", "nan", "max", "positive_max", "zero", "opposite_zero", "positive_zero", "wrap", "wrap_into_sign",
    "unlimited", "lowest", "magnitude", "top_code", "smallest_normal", "positive_infinity",
    "bits", "cut_bits",
]  # fmt: skip
Edge = Literal[
    "rounded", "exact", "tie_too", "past_tie", "binade", "not_down", "top_binade", "rounded_top_binade", "top_carry"
]
Subnormals = Literal[
    "keep", "flush", "flush_before", "flush_positive", "nearest_normal", "never_zero", "half", "double",
    "ordinary_binade", "smallest_normal",
]  # fmt: skip
Zeros = Literal["keep", "positive", "positive_input", "positive_rounded", "nan_rounded", "nan_negative"]
Sign = Literal["keep", "drop", "flip"]
CarryFault = Literal["lost", "first_bit", "stays"]


@dataclass(frozen=True)
class Through:
    """A rounding of inputs to another grid, before they are rounded to the format.

    Attributes:
      name: name of the grid: "FP16", or "11 significand bits" if its exponents are unbounded.
      grid: the magnitudes of the grid.
      rule: the rule of the rounding, a name in `rounder.RULES` such as "toward_zero".
      max_code: code of the grid's largest value, or None if there is none.
      saturates: whether larger values become the largest one instead of Inf; they always do with rule "toward_zero".
      flushes: whether the grid's subnormals become zeros.
    """

    name: str
    grid: FractionGrid
    rule: str = "nearest_even"
    max_code: int | None = None
    saturates: bool = False
    flushes: bool = False

    def run(self, magnitude: Doubles, negative: Flags) -> Doubles:
        """Return magnitudes rounded to the grid; Inf and NaN stay. negative: mask of values with a minus sign."""
        finite = np.isfinite(magnitude)
        codes = round_to_codes(np.where(finite, magnitude, 0), negative, self.grid, self.rule)
        if self.flushes:
            codes = np.where(codes < 1 << self.grid.mantissa_bits, 0, codes)
        values = magnitudes_of(codes if self.max_code is None else np.minimum(codes, self.max_code), self.grid)
        if self.max_code is not None and not self.saturates and self.rule != "toward_zero":
            values = np.where(codes > self.max_code, np.inf, values)
        return np.where(finite, values, magnitude)


@dataclass(frozen=True)
class Carry:
    """A fault of results that round up to the next power of two, where the mantissa carries into the exponent.

    Attributes:
      how: "lost" (the exponent stays, the mantissa is 0), "first_bit" (the exponent increases, and the first mantissa
        bit is set) or "stays" (the mantissa stays all ones).
      normals: whether the fault affects results whose smaller neighbour is a normal value.
      subnormals: whether it affects results whose smaller neighbour is subnormal.
      beyond: whether it affects results too large for the format.
    """

    how: CarryFault
    normals: bool = True
    subnormals: bool = True
    beyond: bool = True

    def change(self, codes: Codes, smaller: Codes, fmt: Format) -> Codes:
        """Return the codes that results have with the fault.

        codes: the codes of correctly rounded magnitudes. smaller: the codes of the same magnitudes rounded toward zero.
        fmt: the format of the codes.
        """
        bits = fmt.mantissa_bits
        carried = (codes >> bits) > (smaller >> bits)
        normal = smaller >= 1 << bits if fmt.subnormals else np.ones_like(carried)
        carried &= (normal & self.normals) | (~normal & self.subnormals)
        if not self.beyond:
            carried &= codes <= fmt.max_code
        faulty = {"lost": codes - (1 << bits), "first_bit": codes | (1 << bits >> 1), "stays": smaller}[self.how]
        return np.where(carried, faulty, codes)


class ReadyInputs(NamedTuple):
    """Magnitudes of inputs after all steps of a quantizer before the rounding, with masks of the same shape.

    Attributes:
      clipped: the magnitudes, float64; 0 in place of Inf and NaN.
      finite: mask of the finite magnitudes.
      infinite: mask of the infinite magnitudes; None if none is infinite.
      is_nan: mask of the NaNs; None if there is no NaN.
    """

    clipped: Doubles
    finite: Flags
    infinite: Flags | None
    is_nan: Flags | None


class RoundedInputs(NamedTuple):
    """Rounded inputs, before values that are too large or special are treated.

    Attributes:
      ready: the inputs before rounding.
      codes: the codes that their magnitudes are rounded to.
      values: the magnitudes of these codes.
      is_zero: mask of the inputs that are rounded to zero.
    """

    ready: ReadyInputs
    codes: Codes
    values: Doubles
    is_zero: Flags


@lru_cache(maxsize=256)
def plain_outcomes(fmt: Format, top: int) -> dict[str, tuple[float, float]]:
    """Return {outcome: (result with a plus sign, with a minus sign)} for all outcomes that are constants.

    top: number of codes by which the largest finite value exceeds that of `fmt`.
    """
    largest = magnitude_of(fmt.max_code + top, grid_of(fmt))
    magnitudes = {
        "infinity": np.inf, "nan": np.nan, "max": largest, "zero": 0.0, "smallest_normal": fmt.smallest_normal,
        "top_code": magnitude_of(fmt.top_magnitude, grid_of(fmt)),
    }  # fmt: skip
    alike = {
        "positive_infinity": np.inf, "positive_max": largest, "lowest": fmt.min, "positive_zero": 0.0,
        "bits": np.nan, "cut_bits": np.nan,  # of NaNs whose bits are unknown
    }  # fmt: skip
    pairs = {name: (value, -value) for name, value in magnitudes.items()} | {"opposite_zero": (-0.0, 0.0)}
    return pairs | {name: (value, value) for name, value in alike.items()}


def too_large(edge: Edge, codes: Codes, magnitude: Doubles, grid: FractionGrid, most: int) -> Flags:
    """Return a mask of the inputs that are too large for a format; `family.EDGE_WORDS` explains the names of `edge`.

    codes: codes of the rounded magnitudes, without an upper limit. magnitude: magnitudes before the rounding. grid: the
    format's magnitudes. most: code of its largest value.
    """
    largest = magnitude_of(most, grid)
    power = 2.0 ** (np.frexp(largest)[1] - 1)  # the largest power of two of the format
    if edge == "exact":
        return np.asarray(magnitude > largest)
    if edge in ("tie_too", "past_tie"):
        tie = largest + (magnitude_of(most + 1, grid) - largest) / 2
        return np.asarray((magnitude >= tie) if edge == "tie_too" else (magnitude > tie))
    if edge == "binade":
        return np.asarray(magnitude >= 2 * power)
    if edge == "top_binade":
        return np.asarray(magnitude >= power)
    beyond = codes > most
    if edge == "not_down":
        return beyond & ((codes > most + 1) | (magnitude < magnitude_of(most + 1, grid)))
    if edge in ("rounded_top_binade", "top_carry"):
        from_power = magnitudes_of(np.minimum(codes, most), grid) >= power
        beyond |= from_power if edge == "rounded_top_binade" else from_power & (magnitude < power)
    return beyond
