"""Additions of a reduction: the formats of sums and of messages, and the random bits of each rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arithmetic.conversion import convert
from fpsim.arithmetic.functions import add, divide, multiply
from fpsim.arrays import Array, format_of, words
from fpsim.casts.cast import decode, encode
from fpsim.formats.cast_options import FormatLike, cast_options
from fpsim.formats.ieee import Flags
from fpsim.formats.named import FP32, FP64, Format, format_argument
from fpsim.formats.rounding import Rounding
from fpsim.runtime.processor import keeps_ieee
from fpsim.sums.accumulators import Accumulator, Sequential

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / the golden ratio: neighbouring ranks and roundings get distant seeds
ADD, SEND, CAST, AVERAGE = range(4)  # stages at which a rank rounds; `step_seed` explains them


def step_seed(seed: int, rank: int, stage: int = ADD) -> int:
    """Return the seed of one rounding in a reduction; with the element's index it determines the random bits.

    Args:
      seed: seed of the reduction.
      rank: the rank whose contribution is added, or the first rank of the sum that is added.
      stage: what is rounded: ADD an addition, SEND a sum in the accumulation format, CAST the contribution itself,
        AVERAGE its multiplication by 1 / ranks or division by ranks.

    Example:
      >>> from fpsim.analysis.systems.collectives.rounding import step_seed
      >>> step_seed(0, 0) != step_seed(0, 1)
      True
    """
    return (seed + (4 * rank + stage + 1) * GOLDEN) % (1 << 64)


class Adder:
    """The additions and roundings of a reduction over ranks.

    Args:
      fmt: the format of contributions and of every message between ranks.
      accumulate: the format in which a rank adds, to nearest even; None or `fmt` for adding in `fmt` by `rounding`.
      rounding, seed: settings of each rounding to `fmt`, as for `fp.encode`.
      overflow: the overflow mode of each rounding to `fmt`, as for `fp.encode`.

    Attributes:
      wide: the accumulation format, or None if ranks add in `fmt`.
      watches: whether `fmt` has neither Inf nor NaN, so that overflows must be recorded in `overflowed`.
      overflowed: whether a rounding has overflowed so far, if `watches`.

    Raises:
      ValueError: an unknown name or format, or a format without a sign or a zero.
    """

    def __init__(
        self, fmt: FormatLike, accumulate: Any, rounding: str | Rounding, seed: int | None, overflow: str
    ) -> None:
        self._options = cast_options(fmt, rounding, overflow, seed=seed)
        self.fmt: Format = self._options.fmt
        if isinstance(accumulate, Accumulator) and not isinstance(accumulate, Sequential):
            raise ValueError(
                f"accumulate must be a format, in which each rank adds; got {accumulate!r}. The algorithm determines "
                "the order of additions; only algorithm='direct' is exact."
            )
        if isinstance(accumulate, Sequential):
            accumulate = accumulate.fmt
        self.accumulate: Format | None = None if accumulate is None else format_argument("accumulate", accumulate)
        if not self.fmt.has_zero or not self.fmt.signed:
            raise ValueError(f"fmt must be a format with a sign and a zero; got {self.fmt}. Use BF16 or FP32.")
        if self.accumulate is not None and not (self.accumulate.has_zero and self.accumulate.signed):
            raise ValueError(f"accumulate must be a format with a sign and a zero; got {self.accumulate}. Use FP32.")
        self.wide: Format | None = self.accumulate if self.accumulate != self.fmt else None
        self.is_stochastic = self._options.rounding is Rounding.STOCHASTIC
        self.overflowed = False
        self.watches = not (self.fmt.has_infinity or self.fmt.has_nan)

    def options(self, rank: int, stage: int) -> dict[str, Any]:
        """Return the keyword arguments rounding, overflow and seed of `fp.encode` for one rounding to `self.fmt`.

        rank, stage: the arguments of `step_seed`, a rank and ADD, SEND, CAST or AVERAGE; they determine the seed.
        """
        seed = None if self._options.seed is None else step_seed(self._options.seed, rank, stage)
        return {"rounding": self._options.rounding, "overflow": self._options.overflow, "seed": seed}

    def add_into(self, total: Array, codes: Array, start: int, size: int, rank: int) -> None:
        """Add `codes` to `total` in place, both codes of `self.fmt`; round once (twice with an accumulation format).

        Args:
          total, codes: elements of the buffer from index `start` on.
          start, size: index of the first element, and elements of the whole buffer, which select random bits.
          rank: the rank whose contribution is added, or the first rank of the sum that is added.
        """
        if self.is_stochastic and (start or total.size != size):
            place = slice(start, start + total.size)
            padded = [np.zeros(size, total.dtype) for _ in range(2)]
            padded[0][place], padded[1][place] = total, codes
            self._add(padded[0], padded[1], padded[0], rank)
            total[...] = padded[0][place]
        else:
            self._add(total, codes, total, rank)

    def _add(self, a: Array, b: Array, out: Array, rank: int) -> None:
        """Write a + b to `out`, all codes of `self.fmt`, with the roundings of one addition; update `overflowed`.

        rank: the rank whose contribution is added, or the first rank of the sum that is added; it selects random bits.
        """
        flags = Flags.NONE
        if self.wide is not None:
            wide = add(a, b, fmt=self.fmt, out_fmt=self.wide)
            if self.watches:
                out[...], flags = convert(wide, self.fmt, fmt=self.wide, flags="any", **self.options(rank, SEND))
            else:
                convert(wide, self.fmt, fmt=self.wide, out=out, **self.options(rank, SEND))
        elif self.watches:
            out[...], flags = add(a, b, fmt=self.fmt, flags="any", **self.options(rank, ADD))
        else:
            add(a, b, fmt=self.fmt, out=out, **self.options(rank, ADD))
        self.overflowed |= bool(flags & Flags.OVERFLOW)

    def rounded(self, values: Array, rank: int, stage: int) -> Array:
        """Return float values rounded to codes of `self.fmt`.

        If the attribute `watches` is True (the format has neither Inf nor NaN) and a value overflows, set the attribute
        `overflowed`. rank: the rank that rounds. stage: ADD, SEND, CAST or AVERAGE, as for `step_seed`. Both determine
        the seed, and matter for stochastic rounding only.
        """
        options = self.options(rank, stage)
        if not self.watches:
            return encode(values, self.fmt, **options)
        source = format_of(values.dtype)
        rounded: Array
        rounded, flags = convert(words(np.ascontiguousarray(values)), self.fmt, fmt=source, flags="any", **options)
        self.overflowed |= bool(flags & Flags.OVERFLOW)
        return rounded

    def add_all(self, operands: list[tuple[int, Array]], start: int, size: int) -> Array:
        """Return the codes of the sum of operands that one rank adds from left to right.

        With an accumulation format the rank rounds to `fmt` once, after the last addition; otherwise after each.
        operands: pairs (rank, codes): a contribution with its rank, or a sum with its first rank, in `self.fmt`. start,
        size: index of the first element, and elements of the whole buffer, which select random bits.
        """
        if self.wide is None or len(operands) < 3:
            total = operands[0][1].copy()
            for rank, codes in operands[1:]:
                self.add_into(total, codes, start, size, rank)
            return total
        wide = self.widened(operands[0][1])
        for _, codes in operands[1:]:
            self.add_wide(wide, codes)
        return self.sent(wide, start, size, operands[-1][0])

    def widened(self, codes: Array) -> Array:
        """Return codes of the adder's format `fmt` converted to codes of its accumulation format `wide`."""
        assert self.wide is not None
        return convert(codes, self.wide, fmt=self.fmt)  # type: ignore[no-any-return]

    def add_wide(self, total: Array, codes: Array) -> None:
        """Add `codes`, of `self.fmt`, to `total`, of the accumulation format, in place, rounding to nearest even."""
        assert self.wide is not None
        if self.wide == FP32 and FP32.holds(self.fmt) and keeps_ieee():  # NumPy's float32 addition is exact enough
            floats = total.view(np.float32)
            with np.errstate(all="ignore"):
                np.add(floats, decode(codes, self.fmt, np.float32), out=floats)
        else:
            add(total, codes, fmt=(self.wide, self.fmt), out_fmt=self.wide, out=total)

    def sent(self, wide: Array, start: int, size: int, rank: int) -> Array:
        """Return `wide`, codes of the accumulation format, rounded to codes of `self.fmt`; update `self.overflowed`.

        If the accumulation format is FP32, every NaN of `wide` is first replaced, in place, by the canonical NaN.

        start: index in the buffer of the first element. size: elements of the whole buffer. rank: the rank whose
        contribution was added, or the first rank of the sum that was added.
        """
        assert self.wide is not None
        if self.wide == FP32 and self.wide.nan_code is not None:
            wide[np.isnan(wide.view(np.float32))] = self.wide.nan_code
        place, whole = slice(start, start + wide.size), wide
        if self.is_stochastic:
            whole = np.zeros(size, wide.dtype)
            whole[place] = wide
        rounded: Array
        rounded, flags = convert(whole, self.fmt, fmt=self.wide, flags="any", **self.options(rank, SEND))
        self.overflowed |= self.watches and bool(flags & Flags.OVERFLOW)
        return rounded[place] if self.is_stochastic else rounded

    def mean(self, sums: Array, average: str | None, ranks: int) -> Array:
        """Return the codes `sums` divided by `ranks` if `average` is "divide_after", and unchanged otherwise."""
        return self.scaled(sums, average, ranks, 0) if average == "divide_after" else sums

    def scaled(self, codes: Array, average: str, ranks: int, rank: int) -> Array:
        """Return `codes` divided by `ranks`, or multiplied by the rounded 1 / ranks, rounded once to `self.fmt`.

        average: "multiply_before" multiplies, "divide_before" and "divide_after" divide. rank: the rank that rounds,
        which selects random bits.
        """
        options = self.options(rank, AVERAGE)
        if self.fmt == FP64:
            if self._options.rounding is not Rounding.NEAREST_EVEN:
                word = self._options.rounding.name.lower()
                raise ValueError(f"average in FP64 is rounded to nearest even; got rounding={word!r}. Leave one out.")
            values = codes.view(np.float64)
            with np.errstate(all="ignore"):
                means = values * (1 / ranks) if average == "multiply_before" else values / ranks
            return means.view(codes.dtype)
        if average == "multiply_before":
            factor = encode(np.array([1 / ranks]), self.fmt)
            return multiply(codes, factor, fmt=self.fmt, **options)  # type: ignore[no-any-return]
        number = encode(np.array([ranks], np.float32), FP32)
        return divide(codes, number, fmt=(self.fmt, FP32), out_fmt=self.fmt, **options)  # type: ignore[no-any-return]
