"""The explanation of one cast, as a record and as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fpsim.casts.cast import encode
from fpsim.formats.cast_options import CastOptions, TableOptions
from fpsim.formats.named import Format

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Explanation:
    """A cast of one value with its parts; `str()` explains it in sentences.

    Attributes:
      value: the input, exactly, as a float.
      bits: its bit pattern in its own dtype, as hexadecimal text.
      fmt, options: the format, and the checked keywords of the cast.
      exact: whether the format holds the value.
      inner, outer: the neighbouring values of the format, toward and away from zero, as if it had no largest exponent;
        None if there is none (for NaN, Inf, and values whose sign or zero the format does not have).
      fraction: (value - inner) / (outer - inner), 0 <= fraction < 1; None if a neighbour is missing.
      dropped_bits: the binary digits of the fraction, "1" for a tie.
      tie: whether the value is halfway between inner and outer.
      code, result: the result, as a code and as a value.
      reason: the reason for the result, as a clause.
    """

    value: float
    bits: str
    fmt: Format
    options: CastOptions
    exact: bool
    inner: float | None
    outer: float | None
    fraction: Fraction | None
    dropped_bits: str
    tie: bool
    code: int
    result: float
    reason: str

    def __str__(self) -> str:
        title = f"{self.value!r} in {self.fmt}, rounding {self.options.rounding.name.lower()}"
        subnormals = f", subnormals {self.options.subnormals}" if isinstance(self.options, CastOptions) else ""
        lines = [
            f"{title}, overflow {self.options.overflow}{subnormals}",
            f"  value    {_binary(self.value)}  (bits {self.bits})",
        ]
        near = sorted(value for value in (self.inner, self.outer) if value is not None and not self.exact)
        for word, value in zip(("below", "above") if len(near) == 2 else ("nearest",), near, strict=False):
            lines.append(f"  {word:8} {self._neighbour(value)}")
        if self.fraction is not None and not self.exact:
            place = f"dropped  {self.dropped_bits}," if self.dropped_bits else "place   "
            distance = f"{_share(self.fraction)} of the way from {self.inner!r} to {self.outer!r}"
            lines.append(f"  {place} {distance}{': a tie' if self.tie else ''}")
        lines.append(f"  result   {self._result()}")
        lines.append(f"  because  {self.reason}")
        return "\n".join(lines)

    def _result(self) -> str:
        """Return the result as text with its code."""
        return self._neighbour(self.result)

    def _neighbour(self, value: float) -> str:
        """Return a neighbouring value, or the result, as text with its code split into sign, exponent and mantissa.

        A neighbour beyond the largest finite value has no code, and the text says so.
        """
        if abs(value) > self.fmt.max and value != self.result:
            return f"{value!r}, beyond the largest finite value"
        if value == 0 and math.copysign(1, value) < 0 and not self.fmt.negative_zero:
            value = 0.0
        is_result = value == self.result or math.isnan(value)
        code = self.code if is_result else int(encode(np.float64(value), self.fmt))
        return f"{value!r} = {_fields(code, self.fmt)}"


def drawn_reason(options: CastOptions | TableOptions, fraction: Fraction) -> str:
    """Return the reason for a stochastic result as a clause: the probability of rounding away from zero, and the seed.

    options: those of the cast. fraction: (value - inner) / (outer - inner), where inner and outer are the neighbours
    toward and away from zero.
    """
    chances = 2**options.random_bits
    chance = math.floor(fraction * chances) / chances
    return f"stochastic goes away from zero with probability {chance:.6g}; seed {options.seed} decided so"


def _share(fraction: Fraction) -> str:
    """Return a fraction as text: exact for a denominator up to 1024, else a decimal of six digits.

    A rounded text is never "0.5", which would look like a tie.
    """
    if fraction.denominator <= 1024:
        return str(fraction)
    text = f"{float(fraction):.6g}"
    if text == "0.5":
        return "just more than 1/2" if fraction > HALF else "just less than 1/2"
    return text


def _fields(code: int, fmt: Format) -> str:
    """Return a code of `fmt` as text: in hexadecimal, and in binary with sign, exponent and mantissa separated."""
    digits = f"{code:0{fmt.bits}b}"
    cuts = [int(fmt.signed), int(fmt.signed) + fmt.exponent_bits]
    parts = [digits[: cuts[0]], digits[cuts[0] : cuts[1]], digits[cuts[1] :]]
    return f"code {code:#0{2 + -(-fmt.bits // 4)}x} = 0b{'_'.join(part for part in parts if part)}"


def _binary(value: float) -> str:
    """Return a float as text: a binary significand times a power of two; repr(value) for 0, Inf and NaN."""
    if value == 0 or not math.isfinite(value):
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, exponent = math.frexp(abs(value))
    digits = bin(int(math.ldexp(mantissa, 53)))[2:].rstrip("0")
    fraction = digits[1:] or "0"
    return f"{sign}0b{digits[0]}.{fraction} x 2**{exponent - 1}"
