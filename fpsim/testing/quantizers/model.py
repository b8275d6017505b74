"""A quantizer in a row of parameters, faults included: each changes one step, so that faults combine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from fpsim.formats.cast_options import CastOptions
from fpsim.formats.float_format import Format
from fpsim.formats.policies import overflow_outcome
from fpsim.formats.rounding import Rounding
from fpsim.testing.quantizers.rounder import (
    Codes,
    Doubles,
    Flags,
    FractionGrid,
    SplitInputs,
    Words,
    grid_of,
    magnitude_of,
    magnitudes_of,
    round_to_codes,
    words_of,
)

Outcome = Literal[
    "infinity", "nan", "max", "positive_max", "zero", "opposite_zero", "positive_zero", "wrap", "wrap_into_sign",
    "unlimited", "lowest", "magnitude", "top_code", "smallest_normal", "positive_infinity",
    "bits", "cut_bits",
]  # fmt: skip
Edge = Literal["rounded", "exact", "tie_too", "past_tie", "binade"]
Subnormals = Literal[
    "keep", "flush", "flush_before", "flush_positive", "nearest_normal", "never_zero", "half", "double",
    "ordinary_binade", "smallest_normal",
]  # fmt: skip
Zeros = Literal["keep", "positive", "positive_input", "positive_rounded", "nan_rounded", "nan_negative"]
Sign = Literal["keep", "drop", "flip"]
CarryFault = Literal["lost", "first_bit", "stays"]


@dataclass(frozen=True)
class Through:
    """A grid that values are rounded to first.

    Attributes:
      name: "FP16", or "11 significand bits" where the exponent is unbounded.
      grid: its magnitudes.
      rule: how they are rounded to it.
      max_code: its largest finite code, None where it has no end.
      saturates: whether what is larger becomes the largest value, not Inf.
      flushes: whether its subnormals become zeros.
    """

    name: str
    grid: FractionGrid
    rule: str = "nearest_even"
    max_code: int | None = None
    saturates: bool = False
    flushes: bool = False

    def run(self, magnitude: Doubles, negative: Flags) -> Doubles:
        """The magnitudes afterwards, Inf and NaN as they are."""
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
      how: "lost" (the exponent stays, the mantissa is 0), "first_bit" (the exponent goes up, and the first mantissa bit
        is set) or "stays" (the mantissa stays all ones).
      normals, subnormals: whether it shows where the smaller neighbour is a normal value, and where it is a subnormal.
      beyond: whether it shows where the right result is too large for the format.
    """

    how: CarryFault
    normals: bool = True
    subnormals: bool = True
    beyond: bool = True

    def change(self, codes: Codes, smaller: Codes, fmt: Format) -> Codes:
        """Return the faulty codes for right ones and those of the smaller neighbours."""
        bits = fmt.mantissa_bits
        carried = (codes >> bits) > (smaller >> bits)
        normal = smaller >= 1 << bits if fmt.subnormals else np.ones_like(carried)
        carried &= (normal & self.normals) | (~normal & self.subnormals)
        if not self.beyond:
            carried &= codes <= fmt.max_code
        faulty = {"lost": codes - (1 << bits), "first_bit": codes | (1 << bits >> 1), "stays": smaller}[self.how]
        return np.where(carried, faulty, codes)


class ReadyInputs(NamedTuple):
    """Inputs before they are rounded."""

    clipped: Doubles  # magnitudes, 0 where they are not finite
    finite: Flags
    infinite: Flags | None  # None: nowhere
    is_nan: Flags | None


class RoundedInputs(NamedTuple):
    """Inputs when they are rounded, before anything is done to what is too large or special."""

    ready: ReadyInputs
    codes: Codes
    values: Doubles  # the magnitudes of the codes
    is_zero: Flags


@dataclass(frozen=True)
class QuantizerModel:
    """A model of a quantizer, step by step; the defaults of all but the first six fields are what a right one does.

    Attributes:
      fmt: the format that it rounds to.
      rounding: a rule of `rounder.RULES`.
      finite, infinite, nan, below: what becomes of a finite value that is too large, of Inf, of NaN, and of values
        below those of an unsigned format.
      subnormals: of the result.
      inward: whether a mode that rounds toward zero keeps the largest value where a finite one is too large.
      edge: which values are too large: those that round to more, that are more, or where the tie goes.
      top: codes by which the largest finite one is off.
      source_subnormals: "keep" or "flush", of the input.
      factor, added, input_ulps: what the input is multiplied by, what is added to it, and by how many floats it is
        moved away from zero, before all else.
      scale: the power of two that the input is multiplied by.
      clamp: a magnitude that the input is limited to, or None.
      through: a format that it is rounded to first, or None.
      subnormal_rule: a rule of its own for subnormal results, or None.
      source_rule: a rule of its own for subnormal inputs, or None.
      negative_rule: a rule of its own for negative values, or None.
      carry: what becomes of a carry of the mantissa into the exponent, or None for what is right.
      overflow_sign: "drop" where values that are too large lose their sign.
      sign: of every result.
      zeros: the sign of zeros.
      code_shift: added to the magnitude code of every result that is neither zero nor special.
      dropped_bits: low bits of the result's mantissa that become zero.
      unreached: whether the largest value becomes the one below it.
      limit: a magnitude that results are limited to, or None.
      only: what every result but NaN is, or None.
      read_as: the format that its codes are read in, or None for its own.
      unrounded: whether results are what is rounded otherwise: the input after all that is done to it first.
    """

    fmt: Format
    rounding: str = "nearest_even"
    finite: Outcome = "infinity"
    infinite: Outcome = "infinity"
    nan: Outcome = "nan"
    below: Outcome = "nan"
    subnormals: Subnormals = "keep"
    inward: bool = True
    edge: Edge = "rounded"
    top: int = 0
    source_subnormals: Literal["keep", "flush"] = "keep"
    factor: float | None = None
    added: float | None = None
    input_ulps: int = 0
    scale: int = 0
    clamp: float | None = None
    through: Through | None = None
    subnormal_rule: str | None = None
    source_rule: str | None = None
    negative_rule: str | None = None
    carry: Carry | None = None
    overflow_sign: Sign = "keep"
    sign: Sign = "keep"
    zeros: Zeros = "keep"
    code_shift: int = 0
    dropped_bits: int = 0
    unreached: bool = False
    limit: float | None = None
    only: Outcome | None = None
    read_as: Format | None = None
    unrounded: bool = False
    source_normal: float = 2.0**-126  # of the source's dtype, below which its subnormals lie

    def replace(self, **changes: Any) -> QuantizerModel:
        """The same with other parameters."""
        # a search makes thousands, and dataclasses.replace goes through all parameters
        assert changes.keys() <= vars(self).keys(), changes
        found = object.__new__(QuantizerModel)
        vars(found).update(vars(self), **changes)
        return found

    def run(self, inputs: SplitInputs) -> Words:
        """The results as patterns of float64, every NaN the same."""
        with np.errstate(all="ignore"):
            return words_of(self.values(inputs))

    def values(self, inputs: SplitInputs) -> Doubles:
        """The results as float64."""
        fmt = self.fmt
        if self.factor is not None or self.added is not None or self.input_ulps:
            inputs = inputs.once((self.factor, self.added, self.input_ulps, self.source_normal), self._moved)
        negative = inputs.negative
        if self.unrounded:
            magnitude = self._before(inputs)
            values = np.where(self._signed(negative, magnitude == 0, inputs), -magnitude, magnitude)
            if self.source_normal == 2.0**-126:
                values = _as_float32(values)
            return values if self.limit is None else np.clip(values, -self.limit, self.limit)
        (clipped, finite, infinite, is_nan), codes, values, is_zero = self._rounding_of(inputs)
        if self.code_shift:
            moved = np.clip(codes + self.code_shift, 0, None)
            codes = np.where(is_zero, codes, moved)
            values = magnitudes_of(codes, grid_of(fmt))
        if self.dropped_bits:
            values = magnitudes_of(codes >> self.dropped_bits << self.dropped_bits, grid_of(fmt))
        signed = self._signed(negative, is_zero, inputs)
        values = np.where(signed, -values, values)
        values = self._large(values, codes, clipped, negative, signed)
        if not fmt.signed:
            values = self._below(values, negative, is_zero, clipped, finite)
        if infinite is not None:
            special = self._outcome(self.infinite, codes, negative)
            if not fmt.signed:
                special = np.where(negative, self._of_below(np.abs(special)), special)
            values = np.where(infinite, special, values)
        if is_nan is not None:
            values = np.where(is_nan, self._outcome(self.nan, codes, negative), values)
        if self.unreached:
            below = magnitude_of(fmt.max_code - 1, grid_of(fmt))
            values = np.where(np.abs(values) == fmt.max, np.copysign(below, values), values)
        if self.limit is not None:
            values = np.clip(values, -self.limit, self.limit)  # NaN stays
        if self.only is not None:
            only = self._outcome(self.only, codes, negative)
            values = only if is_nan is None else np.where(is_nan, values, only)
        if not fmt.negative_zero:
            if self.zeros in ("nan_rounded", "nan_negative"):  # the code of -0 is that of NaN
                gone = is_zero & negative & finite
                gone &= (inputs.magnitude != 0) | (self.zeros == "nan_negative")
                values = np.where(gone, np.nan, values)
            values = values + 0.0  # -0 becomes 0
        return self._read(values)

    def _rounding_of(self, inputs: SplitInputs) -> RoundedInputs:
        """Return inputs after the steps up to rounding, which models that differ in later steps share."""
        parameters = (
            self.fmt, self.rounding, self.subnormals, self.subnormal_rule, self.source_rule, self.negative_rule,
            self.carry, *self._parameters_before(),
        )  # fmt: skip
        return inputs.once(parameters, self._rounded_inputs)

    def _rounded_inputs(self, inputs: SplitInputs) -> RoundedInputs:
        ready = inputs.once(self._parameters_before(), self._ready)
        codes = self._rounded(ready.clipped, inputs.negative)
        if self.carry is not None:
            smaller = round_to_codes(ready.clipped, inputs.negative, grid_of(self.fmt), "toward_zero")
            codes = self.carry.change(codes, smaller, self.fmt)
        codes = self._small(codes, ready.clipped, inputs.negative)
        return RoundedInputs(ready, codes, magnitudes_of(codes, grid_of(self.fmt)), (codes == 0) & self.fmt.has_zero)

    def _ready(self, inputs: SplitInputs) -> ReadyInputs:
        magnitude = self._before(inputs)
        finite, infinite, is_nan = np.isfinite(magnitude), np.isinf(magnitude), np.isnan(magnitude)
        clipped = np.where(finite, magnitude, 0.0)
        return ReadyInputs(clipped, finite, infinite if infinite.any() else None, is_nan if is_nan.any() else None)

    def _moved(self, inputs: SplitInputs) -> SplitInputs:
        """Inputs after its factor, summand and steps, each result rounded to the source's dtype."""
        dtype: Any = np.float32 if self.source_normal == 2.0**-126 else np.float64
        x = np.where(inputs.negative, -inputs.magnitude, inputs.magnitude).astype(dtype)
        if self.factor is not None:
            x = (x.astype(np.float64) * self.factor).astype(dtype)
        if self.added is not None:
            x = x + dtype(self.added)
        if self.input_ulps:
            word: Any = np.int32 if dtype == np.float32 else np.int64
            x = np.where(np.isfinite(x) & (x != 0), (x.view(word) + word(self.input_ulps)).view(dtype), x)
        values = x.astype(np.float64)
        moved = SplitInputs(np.signbit(values), np.abs(values), np.isfinite(values))
        return moved if inputs.steps is None else moved.with_steps()

    def _before(self, inputs: SplitInputs) -> Doubles:
        magnitude = inputs.magnitude
        if self.nan == "bits" and inputs.payload is not None:
            magnitude = np.where(np.isnan(magnitude), inputs.payload, magnitude)
        if self.nan == "cut_bits" and inputs.payload is not None:
            empty = inputs.payload < 2.0**128 * (1 + 2.0**-self.fmt.mantissa_bits)
            magnitude = np.where(np.isnan(magnitude) & empty, np.inf, magnitude)
        if self.source_subnormals == "flush":
            magnitude = np.where(magnitude < self.source_normal, 0.0, magnitude)
        if self.scale:
            magnitude = np.ldexp(magnitude, self.scale)
        if self.clamp is not None:
            magnitude = np.minimum(magnitude, self.clamp)  # NaN stays
        return magnitude if self.through is None else self.through.run(magnitude, inputs.negative)

    def _parameters_before(self) -> tuple[Any, ...]:
        """The parameters that decide what becomes of inputs before they are rounded."""
        nan = (self.nan, self.fmt.mantissa_bits) if self.nan in ("bits", "cut_bits") else None
        return nan, self.source_subnormals, self.source_normal, self.scale, self.clamp, self.through

    def _rounded(self, magnitude: Doubles, negative: Flags) -> Codes:
        grid = grid_of(self.fmt)
        codes = round_to_codes(magnitude, negative, grid, self.rounding)
        if self.negative_rule is not None:
            codes = np.where(negative, round_to_codes(magnitude, negative, grid, self.negative_rule), codes)
        if self.source_rule is not None:
            low = magnitude < self.source_normal
            codes = np.where(low, round_to_codes(magnitude, negative, grid, self.source_rule), codes)
        if self.subnormal_rule is not None:
            small = magnitude < np.ldexp(1.0, grid.min_exponent)
            codes = np.where(small, round_to_codes(magnitude, negative, grid, self.subnormal_rule), codes)
        return codes

    def _small(self, codes: Codes, magnitude: Doubles, negative: Flags) -> Codes:
        """Codes of results below the smallest normal one, after what is done to them."""
        how, grid = self.subnormals, grid_of(self.fmt)
        if how == "keep" or not grid.subnormals:
            return codes
        normal = 1 << grid.mantissa_bits
        subnormal = codes < normal
        small = magnitude < np.ldexp(1.0, grid.min_exponent)
        if how == "flush":
            return np.where(subnormal, 0, codes)
        if how == "flush_positive":
            return np.where(subnormal & ~negative, 0, codes)
        if how == "flush_before":
            return np.where(small, 0, codes)
        if how == "nearest_normal":
            return np.where(small, np.where(magnitude > np.ldexp(1.0, grid.min_exponent - 1), normal, 0), codes)
        if how == "smallest_normal":
            return np.where(small & (magnitude > 0), normal, codes)
        if how == "never_zero":
            return np.where((codes == 0) & (magnitude > 0), 1, codes)
        if how == "ordinary_binade":
            lower = FractionGrid(grid.mantissa_bits, grid.min_exponent - 1, False, grid.ties_to_even_code)
            shifted = round_to_codes(magnitude, negative, lower, self.rounding)
            kept = magnitude >= np.ldexp(1.0, grid.min_exponent - 1)
            return np.where(small, np.where(kept, shifted, 0), codes)
        moved = np.ldexp(magnitude, 1 if how == "double" else -1)
        return np.where(small, round_to_codes(moved, negative, grid, self.subnormal_rule or self.rounding), codes)

    def _signed(self, negative: Flags, is_zero: Flags, inputs: SplitInputs) -> Flags:
        signed = negative
        if self.sign != "keep":
            signed = np.zeros_like(negative) if self.sign == "drop" else ~negative
        if self.zeros == "positive":
            return np.asarray(signed & ~is_zero)
        if self.zeros == "positive_input":
            return np.asarray(signed & (inputs.magnitude != 0))
        if self.zeros == "positive_rounded":
            return np.asarray(signed & ~(is_zero & (inputs.magnitude != 0)))
        return signed

    def _large(self, values: Doubles, codes: Codes, magnitude: Doubles, negative: Flags, signed: Flags) -> Doubles:
        """Values after what is done to those that are too large."""
        fmt = self.fmt
        most = fmt.max_code + self.top
        beyond = codes > most
        if self.edge == "rounded" and not beyond.any():
            return values
        largest = magnitude_of(most, grid_of(fmt))
        if self.edge == "exact":
            beyond = magnitude > largest
        elif self.edge in ("tie_too", "past_tie"):
            tie = largest + (magnitude_of(most + 1, grid_of(fmt)) - largest) / 2
            beyond = (magnitude >= tie) if self.edge == "tie_too" else (magnitude > tie)
            values = np.where((codes > most) & ~beyond, np.where(signed, -largest, largest), values)
        elif self.edge == "binade":
            end = 2.0 ** (np.frexp(largest)[1])
            values = np.where((codes > most) & (magnitude < end), np.where(signed, -largest, largest), values)
            beyond = magnitude >= end
        if not beyond.any():
            return values
        outcome = self._outcome(self.finite, codes, np.zeros_like(signed) if self.overflow_sign == "drop" else signed)
        kept = INWARD.get(self.rounding, (False, False))
        if self.inward and any(kept):
            inward = np.where(negative, kept[1], kept[0])
            outcome = np.where(inward, np.where(signed, -largest, largest), outcome)
        return np.asarray(np.where(beyond, outcome, values))

    def _outcome(self, outcome: Outcome, codes: Codes, negative: Flags) -> Doubles:
        fmt = self.fmt
        plain = _plain_outcomes(fmt, self.top)
        if outcome in plain:
            return np.asarray(np.where(negative, -plain[outcome], plain[outcome]))
        if outcome in ("bits", "cut_bits"):  # of NaN whose bits are unknown
            return np.full(codes.shape, np.nan)
        if outcome == "positive_infinity":
            return np.full(codes.shape, np.inf)
        if outcome == "positive_max":
            return np.full(codes.shape, plain["max"])
        if outcome == "lowest":
            return np.full(codes.shape, fmt.min)
        if outcome == "positive_zero":
            return np.zeros(codes.shape)
        if outcome == "opposite_zero":
            return np.where(negative, 0.0, -0.0)
        if outcome == "unlimited":
            values = magnitudes_of(codes, grid_of(fmt))
            return np.where(negative, -values, values)
        if fmt.bits > 16:
            return np.full(codes.shape, np.nan)  # no table to look wrapped codes up in
        full = codes + np.where(negative, fmt.sign_bit, 0)
        if outcome == "wrap":
            full = (codes & fmt.top_magnitude) | np.where(negative, fmt.sign_bit, 0)
        return np.asarray(fmt.table()[full & ((1 << fmt.bits) - 1)])

    def _below(self, values: Doubles, negative: Flags, is_zero: Flags, magnitude: Doubles, finite: Flags) -> Doubles:
        """Values of an unsigned format."""
        below = negative & ~is_zero & finite
        if not self.fmt.has_zero:
            below = finite & (negative | (magnitude == 0))
        return np.where(below, self._of_below(np.abs(values)), np.abs(values))

    def _of_below(self, magnitudes: Doubles) -> Doubles:
        if self.below == "magnitude":
            return magnitudes
        return np.full(magnitudes.shape, np.nan if self.below == "nan" else self.fmt.value_of(0))

    def _read(self, values: Doubles) -> Doubles:
        """The codes of values, read as those of another format."""
        if self.read_as is None or self.fmt.bits > 16 or self.read_as.bits > 16:
            return values
        order, ordered = _sorted_table(self.fmt)
        places = np.clip(np.searchsorted(ordered, words_of(values)), 0, ordered.size - 1)
        codes = order[places]
        return np.where(codes < 1 << self.read_as.bits, self.read_as.table()[codes % (1 << self.read_as.bits)], np.nan)


def _as_float32(values: Doubles) -> Doubles:
    """Return what float32 patterns are whose exponents ran over, given as values from 2.0**128 on."""
    size = np.abs(values)
    over = np.where(size == 2.0**128, np.copysign(np.inf, values), np.nan)
    over = np.where(size == 2.0**129, np.copysign(0.0, -values), over)  # the carry goes on into the sign
    return np.where(np.isfinite(values) & (size >= 2.0**128), over, values)


INWARD = {mode.name.lower(): mode.facts.inward for mode in Rounding}  # (positive, negative), for the rules that it has


@lru_cache(maxsize=256)
def _plain_outcomes(fmt: Format, top: int) -> dict[str, float]:
    """Return the magnitude of each outcome that has one; top: codes by which the largest value is off."""
    return {
        "infinity": np.inf, "nan": np.nan, "max": magnitude_of(fmt.max_code + top, grid_of(fmt)), "zero": 0.0,
        "smallest_normal": fmt.smallest_normal, "top_code": magnitude_of(fmt.top_magnitude, grid_of(fmt)),
    }  # fmt: skip


@lru_cache(maxsize=64)
def _sorted_table(fmt: Format) -> tuple[Any, Words]:
    """Codes of a format in the order of the patterns of their values, and these."""
    words = words_of(fmt.table())
    order = np.argsort(words, kind="stable")
    return order, words[order]


def model_of(options: CastOptions, source_normal: float = 2.0**-126) -> QuantizerModel:
    """The model of a cast with checked keywords that is not stochastic."""
    fmt = options.fmt
    outcome = overflow_outcome(options.overflow, fmt)
    nan: Outcome = "nan" if fmt.has_nan else "positive_max" if outcome.nan == "max" else "opposite_zero"
    return QuantizerModel(
        fmt, options.rounding.name.lower(), outcome.overflow, outcome.infinite, nan, outcome.below,
        "flush" if options.subnormals == "flush" else "keep", source_normal=source_normal,
    )  # fmt: skip
