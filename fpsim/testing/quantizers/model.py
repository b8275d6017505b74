"""Model of a quantizer: parameters for every step, faults included, so that faults can be combined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

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
from fpsim.testing.quantizers.steps import (
    Carry,
    Edge,
    Outcome,
    ReadyInputs,
    RoundedInputs,
    Sign,
    Subnormals,
    Through,
    Zeros,
    plain_outcomes,
    too_large,
)


@dataclass(frozen=True)
class QuantizerModel:
    """A quantizer as a sequence of steps with parameters; those after `subnormals` add no fault by default.

    Attributes:
      fmt: the format of the results.
      rounding: a rule of `rounder.RULES`, such as "nearest_even" or "half_added".
      finite, infinite, nan, below: results, named as in `family.OUTCOME_WORDS`, which explains the names, for finite
        values that are too large, for Inf, for NaN, and for negative values in an unsigned format.
      subnormals: treatment of subnormal results, a name that `family.SUBNORMAL_WORDS` explains.
      inward: whether a rounding toward zero turns finite values that are too large into the largest value.
      edge: which values are too large: "rounded" (those that round above the largest), or a key of `family.EDGE_WORDS`.
      top: number of codes by which the largest finite value exceeds the format's.
      source_subnormals: treatment of subnormal inputs, "keep" or "flush".
      factor, added, input_ulps: factor and summand of the input, and the number of floats by which it is moved away
        from zero, before all other steps.
      scale: exponent of the power of two by which the input is multiplied.
      clamp, limit: magnitudes to which the input and the results are limited, or None.
      through: format to which the input is rounded first, or None.
      subnormal_rule, source_rule, negative_rule: rounding rules for subnormal results, for subnormal inputs and for
        negative values, or None.
      carry: fault of the carry of the mantissa into the exponent, or None.
      overflow_sign: "drop" if values that are too large lose their sign.
      sign: whether the signs of all results are kept ("keep"), dropped ("drop") or changed ("flip").
      zeros: treatment of the signs of zeros, a name that `family.ZERO_WORDS` or NO_NEGATIVE_ZERO_WORDS explains.
      code_shift: number added to the magnitude code of every result that is neither zero nor special.
      dropped_bits: number of low mantissa bits of the result that become zero.
      unreached: whether results equal to the largest value become the one below. unrounded: whether nothing rounds.
      only: outcome for every result but NaN, or None.
      read_as: format as whose codes the codes of results are read, or None.
      source_normal: smallest normal value of the dtype of the input.
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
    source_normal: float = 2.0**-126

    def replace(self, **changes: Any) -> QuantizerModel:
        """Return a copy of the model with some parameters changed."""
        # a search makes thousands, and dataclasses.replace goes through all parameters
        assert changes.keys() <= vars(self).keys(), changes
        model = object.__new__(QuantizerModel)
        vars(model).update(vars(self), **changes)
        return model

    def run(self, inputs: SplitInputs) -> Words:
        """Return the results for inputs as bit patterns of float64, with one pattern for all NaNs."""
        with np.errstate(all="ignore"):
            return words_of(self.values(inputs))

    def values(self, inputs: SplitInputs) -> Doubles:
        """Return the results for inputs as float64 values."""
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
        parameters = (
            fmt, self.rounding, self.subnormals, self.subnormal_rule, self.source_rule, self.negative_rule, self.carry,
            *self._parameters_before(),
        )  # fmt: skip
        (clipped, finite, infinite, is_nan), codes, values, is_zero = inputs.once(parameters, self._rounded_inputs)
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

    def _rounded_inputs(self, inputs: SplitInputs) -> RoundedInputs:
        """Return the magnitudes of inputs before the rounding, and the codes and magnitudes to which they round."""
        ready = inputs.once(self._parameters_before(), self._ready)
        codes = self._rounded(ready.clipped, inputs.negative)
        if self.carry is not None:
            smaller = round_to_codes(ready.clipped, inputs.negative, grid_of(self.fmt), "toward_zero")
            codes = self.carry.change(codes, smaller, self.fmt)
        codes = self._small(codes, ready.clipped, inputs.negative)
        return RoundedInputs(ready, codes, magnitudes_of(codes, grid_of(self.fmt)), (codes == 0) & self.fmt.has_zero)

    def _ready(self, inputs: SplitInputs) -> ReadyInputs:
        """Return the magnitudes to be rounded, and masks of the finite, infinite and NaN ones."""
        magnitude = self._before(inputs)
        finite, infinite, is_nan = np.isfinite(magnitude), np.isinf(magnitude), np.isnan(magnitude)
        clipped = np.where(finite, magnitude, 0.0)
        return ReadyInputs(clipped, finite, infinite if infinite.any() else None, is_nan if is_nan.any() else None)

    def _moved(self, inputs: SplitInputs) -> SplitInputs:
        """Return the inputs times `factor`, plus `added`, then moved away from zero by `input_ulps` floats.

        Each of these steps is rounded to the dtype of the inputs.
        """
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
        """Return magnitudes of the inputs after the steps before the rounding to `fmt`.

        The steps are those of the parameters nan, source_subnormals, scale, clamp and through, in this order.
        """
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
        """Return the parameters on which `_before` depends, to be used as a key of the cache."""
        nan = (self.nan, self.fmt.mantissa_bits) if self.nan in ("bits", "cut_bits") else None
        return nan, self.source_subnormals, self.source_normal, self.scale, self.clamp, self.through

    def _rounded(self, magnitude: Doubles, negative: Flags) -> Codes:
        """Return codes of magnitudes, rounded by the rule `rounding` or a rule set for negative or subnormal values."""
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
        """Return the rounded codes `codes` after subnormal results are treated as the parameter `subnormals` says.

        magnitude, negative: magnitudes before the rounding, and mask of inputs with a minus sign.
        """
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
        """Return a mask of the results with a minus sign, which the parameters `sign` and `zeros` determine.

        negative, is_zero: masks of the negative inputs and of the results that are zero.
        """
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
        """Return the results `values`, with the outcome `finite` in place of those that are too large for the format.

        codes: codes of the rounded magnitudes, without an upper limit. magnitude, negative: magnitudes of the inputs,
        and mask of those with a minus sign. signed: mask of the results with a minus sign.
        """
        fmt = self.fmt
        most = fmt.max_code + self.top
        beyond = codes > most
        if self.edge == "rounded" and not beyond.any():
            return values
        largest = magnitude_of(most, grid_of(fmt))
        if self.edge != "rounded":
            beyond = too_large(self.edge, codes, magnitude, grid_of(fmt), most)
            values = np.where((codes > most) & ~beyond, np.where(signed, -largest, largest), values)
        if not beyond.any():
            return values
        outcome = self._outcome(self.finite, codes, np.zeros_like(signed) if self.overflow_sign == "drop" else signed)
        kept = INWARD.get(self.rounding, (False, False))
        if self.inward and any(kept):
            inward = np.where(negative, kept[1], kept[0])
            outcome = np.where(inward, np.where(signed, -largest, largest), outcome)
        return np.asarray(np.where(beyond, outcome, values))

    def _outcome(self, outcome: Outcome, codes: Codes, negative: Flags) -> Doubles:
        """Return for each input the result that `outcome` names, such as "max" for the largest value with its sign.

        codes: codes of the rounded magnitudes, from which some outcomes follow. negative: mask of results < 0 or -0.
        """
        fmt = self.fmt
        outcomes = plain_outcomes(fmt, self.top)
        if outcome in outcomes:
            positive, below = outcomes[outcome]
            return np.asarray(np.where(negative, below, positive))
        if outcome == "unlimited":
            values = magnitudes_of(codes, grid_of(fmt))
            return np.where(negative, -values, values)
        if fmt.bits > 16:
            return np.full(codes.shape, np.nan)  # without a table of values
        full = codes + np.where(negative, fmt.sign_bit, 0)
        if outcome == "wrap":
            full = (codes & fmt.top_magnitude) | np.where(negative, fmt.sign_bit, 0)
        return np.asarray(fmt.table()[full & ((1 << fmt.bits) - 1)])

    def _below(self, values: Doubles, negative: Flags, is_zero: Flags, magnitude: Doubles, finite: Flags) -> Doubles:
        """Return the results of an unsigned format: |values|, with the outcome `below` for negative inputs.

        Negative inputs that round to zero have the result 0. In a format without zero, an input of 0 counts as
        negative. negative, is_zero, finite: masks of the inputs (is_zero: those that round to zero).
        """
        below = negative & ~is_zero & finite
        if not self.fmt.has_zero:
            below = finite & (negative | (magnitude == 0))
        return np.where(below, self._of_below(np.abs(values)), np.abs(values))

    def _of_below(self, magnitudes: Doubles) -> Doubles:
        """Return what `below` sets for negative inputs in unsigned formats: `magnitudes`, NaN or value of code 0."""
        if self.below == "magnitude":
            return magnitudes
        return np.full(magnitudes.shape, np.nan if self.below == "nan" else self.fmt.value_of(0))

    def _read(self, values: Doubles) -> Doubles:
        """Return what the codes of `values` mean in the format `self.read_as`; `values` if that is None."""
        if self.read_as is None or self.fmt.bits > 16 or self.read_as.bits > 16:
            return values
        order, ordered = _sorted_table(self.fmt)
        places = np.clip(np.searchsorted(ordered, words_of(values)), 0, ordered.size - 1)
        codes = order[places]
        return np.where(codes < 1 << self.read_as.bits, self.read_as.table()[codes % (1 << self.read_as.bits)], np.nan)


def _as_float32(values: Doubles) -> Doubles:
    """Return float64 values, with those beyond float32's range as a conversion without overflow check gives them.

    2**128 becomes Inf, 2**129 a zero of the other sign, and other finite values from 2**128 on become NaN.
    """
    size = np.abs(values)
    over = np.where(size == 2.0**128, np.copysign(np.inf, values), np.nan)
    over = np.where(size == 2.0**129, np.copysign(0.0, -values), over)  # the carry goes into the sign
    return np.where(np.isfinite(values) & (size >= 2.0**128), over, values)


INWARD = {mode.name.lower(): mode.facts.inward for mode in Rounding}  # (positive, negative), for the rules that it has


@lru_cache(maxsize=64)
def _sorted_table(fmt: Format) -> tuple[Any, Words]:
    """Return a format's codes, sorted by the float64 bit patterns of their values, and these patterns."""
    words = words_of(fmt.table())
    order = np.argsort(words, kind="stable")
    return order, words[order]


def model_of(options: CastOptions, source_normal: float = 2.0**-126) -> QuantizerModel:
    """Return the model of the deterministic cast `options`; source_normal: smallest normal value of the inputs."""
    fmt = options.fmt
    outcome = overflow_outcome(options.overflow, fmt)
    nan: Outcome = "nan" if fmt.has_nan else "positive_max" if outcome.nan == "max" else "opposite_zero"
    return QuantizerModel(
        fmt, options.rounding.name.lower(), outcome.overflow, outcome.infinite, nan, outcome.below,
        "flush" if options.subnormals == "flush" else "keep", source_normal=source_normal,
    )  # fmt: skip
