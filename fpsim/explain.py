"""One cast in words: what the value is, what its neighbours are, what was dropped and why the result is what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import float_array, words
from fpsim.cast import CastOptions, FormatLike, cast_options, encode
from fpsim.formats import Format
from fpsim.rounding import Rounding

REASONS = {
    Rounding.NEAREST_EVEN: "nearest_even takes the nearer neighbour",
    Rounding.NEAREST_AWAY: "nearest_away takes the nearer neighbour",
    Rounding.TOWARD_ZERO: "toward_zero drops what does not fit",
    Rounding.UP: "up takes the neighbour toward +Inf",
    Rounding.DOWN: "down takes the neighbour toward -Inf",
    Rounding.ODD: "odd takes the neighbour with the odd code",
}


@dataclass(frozen=True)
class Explanation:
    """A cast of one value, taken apart. `str()` tells it in words.

    Attributes:
      value: the input, exactly, as a float.
      bits: its bit pattern in its own dtype, as hexadecimal text.
      fmt: the format.
      exact: whether the format holds the value.
      lower, upper: the finite neighbours toward and away from zero; None where there is none.
      fraction: how far the value lies from lower to upper, 0 <= fraction < 1 (None without both neighbours).
      dropped_bits: the binary digits of the fraction, "1000..." for a tie.
      tie: whether the value lies halfway.
      code, result: the outcome, as a code and as a value.
      reason: why, in words.
    """

    value: float
    bits: str
    fmt: Format
    options: CastOptions
    exact: bool
    lower: float | None
    upper: float | None
    fraction: Fraction | None
    dropped_bits: str
    tie: bool
    code: int
    result: float
    reason: str

    def __str__(self) -> str:
        lines = [
            f"{self.value!r} in {self.fmt}, rounding {self.options.rounding.name.lower()}, "
            f"overflow {self.options.overflow}, subnormals {self.options.subnormals}",
            f"  value    {_binary(self.value)}  (bits {self.bits})",
        ]
        if self.lower is not None and not self.exact:
            lines.append(f"  lower    {self._neighbour(self.lower)}")
        if self.upper is not None and not self.exact:
            lines.append(f"  upper    {self._neighbour(self.upper)}")
        if self.fraction is not None and not self.exact:
            lines.append(
                f"  dropped  {self.dropped_bits}, {_share(self.fraction)} of the way up{': a tie' if self.tie else ''}"
            )
        lines.append(f"  result   {self._neighbour(self.result)}")
        lines.append(f"  because  {self.reason}")
        return "\n".join(lines)

    def _neighbour(self, value: float) -> str:
        if abs(value) > self.fmt.max and math.isfinite(value):
            return f"{value!r}, beyond the largest finite value"
        is_result = value == self.result or math.isnan(value)
        code = self.code if is_result else int(encode(np.float64(value), self.fmt))
        return f"{value!r} = {_fields(code, self.fmt)}"


def explain(
    x: npt.ArrayLike,
    fmt: FormatLike,
    *,
    rounding: str | Rounding = "nearest_even",
    overflow: str = "nonfinite",
    subnormals: str = "keep",
    seed: int | None = None,
    random_bits: int = 32,
) -> Explanation:
    """Explain the cast of one value.

    Args:
      x: one float (a Python float is a float64); other arguments as for `fpsim.encode`.

    Returns:
      An Explanation; print it. A stochastic result is that of flat index 0.

    Raises:
      ValueError: x is not a single value, or as for `fpsim.encode`.
      TypeError: x is not a float.

    Example:
      >>> import fpsim as fp
      >>> print(fp.explain(4.25, fp.E4M3))
      4.25 in E4M3, rounding nearest_even, overflow nonfinite, subnormals keep
        value    0b1.0001 x 2**2  (bits 0x4011000000000000)
        lower    4.0 = code 0x48 = 0b0_1001_000
        upper    4.5 = code 0x49 = 0b0_1001_001
        dropped  1, 1/2 of the way up: a tie
        result   4.0 = code 0x48 = 0b0_1001_000
        because  the value lies halfway, and nearest_even takes the neighbour with the even code
    """
    options = cast_options(fmt, rounding, overflow, subnormals, seed, random_bits)
    source, _ = float_array(x)
    if source.size != 1:
        raise ValueError(f"explain takes one value; got {source.size}. Pass a single element, such as x[0].")
    code = int(encode(source, options.fmt, **_keywords(options)).reshape(-1)[0])
    value = float(source.reshape(-1)[0])
    pattern = f"{int(words(source).reshape(-1)[0]):#0{2 + 2 * source.dtype.itemsize}x}"
    result = options.fmt.value_of(code)
    lower, upper = _neighbours(value, options.fmt)
    fraction = None
    if lower is not None and upper is not None:
        fraction = (abs(Fraction(value)) - abs(Fraction(lower))) / (abs(Fraction(upper)) - abs(Fraction(lower)))
    exact = math.isfinite(value) and fraction == 0
    tie = fraction == Fraction(1, 2)
    return Explanation(
        value=value,
        bits=pattern,
        fmt=options.fmt,
        options=options,
        exact=exact,
        lower=lower,
        upper=upper,
        fraction=fraction,
        dropped_bits=_digits(fraction),
        tie=tie,
        code=code,
        result=result,
        reason=_reason(value, result, options, exact=exact, fraction=fraction),
    )


def _keywords(options: CastOptions) -> dict[str, Any]:
    """The options as keywords of a cast."""
    words = options._asdict()
    del words["fmt"]
    return words


def _neighbours(value: float, fmt: Format) -> tuple[float | None, float | None]:
    """The values of the format next to a finite one, toward and away from zero, with its sign.

    The upper one is what an unbounded exponent range would give; None if the value lies beyond the largest by more.
    """
    if not math.isfinite(value) or (value < 0 and not fmt.signed):
        return None, None
    sign = math.copysign(1.0, value)
    magnitude = abs(Fraction(value))
    step = Fraction(fmt.ulp(value))
    lower = magnitude // step * step
    if not fmt.has_zero and lower < Fraction(fmt.smallest_normal):
        return None, fmt.smallest_normal
    if lower > Fraction(fmt.max):
        return sign * fmt.max, None
    return sign * float(lower), sign * float(lower + step)


def _digits(fraction: Fraction | None) -> str:
    """The binary digits of a fraction below 1, cut with dots after sixty."""
    if not fraction:
        return ""
    digits = fraction.denominator.bit_length() - 1
    text = f"{fraction.numerator:0{digits}b}"
    return text if len(text) <= 60 else text[:60] + "..."


def _share(fraction: Fraction) -> str:
    """A fraction for people: exact where it is short, and never one half where it is not."""
    if fraction.denominator <= 1024:
        return str(fraction)
    text = f"{float(fraction):.6g}"
    if text == "0.5":
        return "just more than 1/2" if fraction > Fraction(1, 2) else "just less than 1/2"
    return text


def _reason(value: float, result: float, options: CastOptions, *, exact: bool, fraction: Fraction | None) -> str:
    fmt, mode = options.fmt, options.rounding
    word = mode.name.lower()
    if math.isnan(value):
        return "NaN stays NaN" if fmt.has_nan else f"{fmt} has no NaN; overflow={options.overflow!r} gives this instead"
    if math.isinf(value):
        return f"overflow={options.overflow!r} decides what an infinite input becomes in {fmt}"
    if value < 0 and not fmt.signed and result != 0:
        return f"{fmt} has no negative values; overflow={options.overflow!r} decides"
    if value < 0 and not fmt.signed:
        return f"{fmt} has no negative values; the nearest one it can return is zero"
    if value == 0 and not fmt.has_zero:
        return f"{fmt} has no zero; overflow={options.overflow!r} decides"
    if _overflowed(value, result, options, fraction):
        beyond = f"it rounds to a magnitude beyond the largest finite value, {fmt.max:g}"
        return f"{beyond}; overflow={options.overflow!r} decides"
    if exact:
        return f"{fmt} holds the value exactly"
    if result == 0 and options.subnormals == "flush":
        return "the result would be subnormal, and subnormals='flush' makes it zero"
    if abs(value) < fmt.smallest_subnormal and not fmt.has_zero:
        return f"{fmt} has nothing below its smallest value"
    if mode is Rounding.STOCHASTIC:
        assert fraction is not None
        return f"stochastic goes away from zero with probability {float(fraction):.6g}; seed {options.seed} decided so"
    if fraction == Fraction(1, 2) and mode is Rounding.NEAREST_EVEN:
        even = "even code" if fmt.mantissa_bits or fmt.ties_to_even_code else "larger magnitude (one-digit precision)"
        return f"the value lies halfway, and {word} takes the neighbour with the {even}"
    if fraction == Fraction(1, 2) and mode is Rounding.NEAREST_AWAY:
        return f"the value lies halfway, and {word} takes the neighbour away from zero"
    return REASONS[mode]


def _overflowed(value: float, result: float, options: CastOptions, fraction: Fraction | None) -> bool:
    """Whether a finite value rounds, with an unbounded exponent, to more than the largest finite one."""
    fmt, mode = options.fmt, options.rounding
    if not math.isfinite(result) or abs(value) >= fmt.max + fmt.ulp(fmt.max):
        return True
    if abs(value) <= fmt.max or fraction is None:
        return False
    half = Fraction(1, 2)
    if mode is Rounding.NEAREST_EVEN:
        odd = fmt.max_code % 2 == 1 or not (fmt.mantissa_bits or fmt.ties_to_even_code)
        return fraction > half or (fraction == half and odd)
    return {
        Rounding.NEAREST_AWAY: fraction >= half,
        Rounding.UP: value > 0,
        Rounding.DOWN: value < 0,
    }.get(mode, False)


def _fields(code: int, fmt: Format) -> str:
    """A code as hexadecimal, and as binary fields."""
    digits = f"{code:0{fmt.bits}b}"
    cuts = [int(fmt.signed), int(fmt.signed) + fmt.exponent_bits]
    parts = [digits[: cuts[0]], digits[cuts[0] : cuts[1]], digits[cuts[1] :]]
    return f"code {code:#0{2 + -(-fmt.bits // 4)}x} = 0b{'_'.join(part for part in parts if part)}"


def _binary(value: float) -> str:
    """A float as a binary significand times a power of two."""
    if value == 0 or not math.isfinite(value):
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, exponent = math.frexp(abs(value))
    digits = bin(int(math.ldexp(mantissa, 53)))[2:].rstrip("0")
    fraction = digits[1:] or "0"
    return f"{sign}0b{digits[0]}.{fraction} x 2**{exponent - 1}"
