"""Comparison of two policies (conventions of a cast): every input that they cast differently."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.casts.cast import encode
from fpsim.errors import shown, unknown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options
from fpsim.formats.named import Format
from fpsim.formats.policies import policy
from fpsim.formats.rounding import Rounding

KEYWORDS = ("rounding", "overflow", "subnormals", "seed", "random_bits")


@dataclass(frozen=True)
class Difference:
    """A range of inputs, `low` to `high`, all of which one policy casts to `a_code` and another policy to `b_code`.

    `low_included` and `high_included` say whether the ends belong to the range; a single input has low == high. For NaN
    both ends are NaN. a, b: the values of the two codes.
    """

    low: float
    high: float
    low_included: bool
    high_included: bool
    a_code: int
    b_code: int
    a: float
    b: float

    def __str__(self) -> str:
        if self.low == self.high or math.isnan(self.low):
            inputs = f"{self.low!r}"
        else:
            inputs = (
                f"{'[' if self.low_included else '('}{self.low!r}, {self.high!r}{']' if self.high_included else ')'}"
            )
        return f"{inputs}: {self.a!r} ({self.a_code:#x}) or {self.b!r} ({self.b_code:#x})"


def policy_diff(a: str | Mapping[str, Any], b: str | Mapping[str, Any], fmt: FormatLike) -> list[Difference]:
    """List every float64 input that two policies cast differently, as ranges.

    A deterministic cast changes its result only at the format's values and at midpoints between neighbours. So it
    suffices to cast these points and one input between each two of them.

    Args:
      a, b: names for `fpsim.policy`, or dicts of cast keywords.
      fmt: a format of up to 16 bits.

    Returns:
      Differences in ascending order of the inputs, -Inf and +Inf included, a positive NaN last; empty if the policies
      agree.

    Raises:
      ValueError: unknown policy, format or option, a stochastic mode, or a format of more than 16 bits.
      TypeError: a policy is neither a name nor a dict.

    Example:
      >>> import fpsim as fp
      >>> for difference in fp.policy_diff("ml_dtypes", "torch", fp.E4M3):
      ...     print(difference)
      [-inf, -464.0): nan (0xff) or -448.0 (0xfe)
      (464.0, inf]: nan (0x7f) or 448.0 (0x7e)
      >>> fp.policy_diff("ml_dtypes", "torch", fp.E5M2)
      []
    """
    first, second = _options(a, fmt), _options(b, fmt)
    target_fmt = first.fmt
    inputs = _inputs(target_fmt)
    codes_a, codes_b = encode(inputs, **first.keywords()), encode(inputs, **second.keywords())
    differ = np.flatnonzero(codes_a != codes_b)
    new_codes = (np.diff(codes_a[differ]) != 0) | (np.diff(codes_b[differ]) != 0)
    begins = (np.diff(differ) > 1) | new_codes | (differ[1:] == inputs.size - 1)  # NaN is a range of its own
    differences = []
    for run in np.split(differ, np.flatnonzero(begins) + 1) if differ.size else ():
        begin, end = int(run[0]), int(run[-1])  # odd ones stand for the inputs up to the next even one
        a_code, b_code = int(codes_a[begin]), int(codes_b[begin])
        is_nan = math.isnan(inputs[begin])
        low, high = (math.nan, math.nan) if is_nan else (inputs[begin - begin % 2], inputs[end + end % 2])
        values = target_fmt.value_of(a_code), target_fmt.value_of(b_code)
        included = begin % 2 == 0, end % 2 == 0
        differences.append(Difference(float(low), float(high), *included, a_code, b_code, *values))
    return differences


def _options(description: str | Mapping[str, Any], fmt: FormatLike) -> CastOptions:
    """Return the options of a cast to `fmt` by a policy, given by its name or as a dict of cast keywords.

    Raises:
      TypeError: the description is neither a name nor a dict.
      ValueError: an unknown policy or keyword, a stochastic mode, or a format of more than 16 bits.
    """
    if not isinstance(description, (str, Mapping)):
        raise TypeError(f"a policy is a name or a dict of keywords of fp.encode; got {shown(description)}.")
    keywords = policy(description) if isinstance(description, str) else dict(description)
    for keyword in keywords:
        if keyword not in KEYWORDS:
            raise unknown("a policy's keyword", keyword, KEYWORDS)
    options = cast_options(fmt, **keywords)
    if options.rounding is Rounding.STOCHASTIC:
        raise ValueError("policy_diff compares deterministic policies; got rounding 'stochastic'. Compare statistics.")
    if options.fmt.bits > 16:
        raise ValueError(f"policy_diff lists inputs of formats of up to 16 bits; {options.fmt} has {options.fmt.bits}.")
    return options


@lru_cache(maxsize=4)  # up to 2 MB each; several policies are often compared in one format
def _inputs(fmt: Format) -> npt.NDArray[np.float64]:
    """Return float64 inputs, in ascending order, that show every result of a deterministic cast to `fmt`.

    Elements 0, 2, 4, ... are the inputs at which the result can change: the format's values of both signs, their
    midpoints, the value that would follow the largest one, both zeros and infinities. Elements 1, 3, 5, ... are inputs
    between the elements before and after them, or the former again if no float64 is between. The last input is NaN.
    """
    finite = fmt.table()[np.isfinite(fmt.table())]
    positive = np.unique(np.append(np.abs(finite), 0.0))
    with np.errstate(all="ignore"):
        beyond = positive[-1] + fmt.ulp(fmt.max) * np.array([0.5, 1.0])  # the second may be too large for float64
        middles = positive[:-1] + (positive[1:] - positive[:-1]) / 2
        magnitudes = np.unique(np.concatenate([positive, middles, beyond, [np.inf]]))
        points = np.concatenate([-magnitudes[::-1], magnitudes])  # -0.0 comes before 0.0
        low, high = points[:-1], points[1:]
        candidates = np.where(np.isinf(low), np.nextafter(high, low), np.nextafter(low, high))
    between = np.where((low < candidates) & (candidates < high), candidates, low)
    inputs = np.empty(2 * points.size)
    inputs[0::2], inputs[1::2] = points, np.append(between, np.nan)
    inputs.flags.writeable = False  # callers share the array
    return inputs
