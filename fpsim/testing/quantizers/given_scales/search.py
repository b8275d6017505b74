"""Search for the scale by which a function divides and the zero point that it adds, from the function's results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.integer_format import IntegerFormat
from fpsim.testing.quantizers.given_scales.calls import GivenScaleCall
from fpsim.testing.quantizers.given_scales.promise import GivenScale, Values

PATTERNS = 4096  # floats of a call that searches for a threshold
LARGEST = 0x7F7FFFFF  # bit pattern of float32's largest value
NEAR = 4  # floats tried on either side of a scale computed from thresholds, which may be off by this many
DIGITS = 7  # most significant digits of a decimal number; scales with the fewest digits are tried first


def scales_of(box: GivenScaleCall) -> Iterator[GivenScale]:
    """Yield models of a quantizer with the scales and zero points that it may have, likely ones first.

    If fn returns codes, a scale follows from two inputs at which codes step to the next integer, whatever the rounding.
    If fn returns values, the scale is the smallest magnitude above 0 among them. Each float32 near the scale is tried.
    Nothing is yielded for float formats. box: the quantizer, called with its promised scale.
    """
    fmt = box.promise.fmt
    if not isinstance(fmt, IntegerFormat):
        return
    sides = [_of_values(box, fmt) if box.returns_values else _of_codes(box, fmt, sign) for sign in (1, -1)]
    for scale, zero_point in [side for side in sides if side is not None][:1]:
        for candidate in _likely(scale):
            yield box.promise._replace(scale=candidate, zero_point=np.asarray(zero_point, np.float64))


def _of_codes(box: GivenScaleCall, fmt: IntegerFormat, sign: int) -> tuple[float, int] | None:
    """Return (scale, zero point), found from codes for inputs of one sign; None if the codes have too few steps.

    The scale follows from two inputs at which codes step to the next integer, whatever the rounding. box: the
    quantizer. fmt: the integer format of the codes. sign: 1 for positive inputs, -1 for negative ones.
    """
    zero_point = int(box.call(np.zeros(4, np.float32))[0])
    steps = (fmt.highest - zero_point if sign > 0 else zero_point - fmt.lowest) * 3 // 4
    if steps < 2 or not fmt.lowest <= zero_point <= fmt.highest:
        return None

    def rises(x: Array) -> Values:
        return sign * (box.call(np.copysign(x, np.float32(sign))) - zero_point)

    first, last = (_threshold(rises, step) for step in (1, steps))
    if first is None or last is None or not last > first:
        return None
    return (last - first) / (steps - 1), zero_point


def _of_values(box: GivenScaleCall, fmt: IntegerFormat) -> tuple[float, int] | None:
    """Return (scale, zero point), found from values that a quantizer returns; None if all are 0.

    The scale is the smallest magnitude above 0; the zero point follows from the lowest value. box: the quantizer. fmt:
    the integer format of the results.
    """
    everywhere = np.linspace(1, LARGEST, PATTERNS).astype(np.uint32).view(np.float32)
    ends = [box.call(sign * everywhere[-1:].repeat(4))[0] for sign in (np.float32(-1), np.float32(1))]
    values = np.abs(box.call(np.concatenate([everywhere, -everywhere])))
    if not (values > 0).any():
        return None
    step = float(values[values > 0].min())
    lowest = round(ends[0] / step)
    if fmt.signed and lowest == -fmt.highest:
        lowest = fmt.lowest
    return step, fmt.lowest - lowest


def _threshold(rises: Any, level: int) -> float | None:
    """Return the smallest positive float32 for which `rises` is at least `level`, or None if there is none.

    rises: function of a float32 array that returns an integer for each element, which grows with the element.
    """
    low, high = 0, LARGEST  # bit patterns; the result at the first is below the level
    while high - low > 1:
        patterns = np.unique(np.linspace(low + 1, high, PATTERNS).astype(np.uint32))
        reached = np.flatnonzero(rises(patterns.view(np.float32)) >= level)
        if not reached.size:
            return None
        at = int(reached[0])
        low, high = (int(patterns[at - 1]) if at else low), int(patterns[at])
    return float(np.uint32(high).view(np.float32))


def _likely(scale: float) -> list[Any]:
    """Return `scale` and the NEAR nearest float32 numbers on each side of it, shortest decimal numbers first.

    The length of a number is its number of significant decimal digits, or that of its reciprocal if that has fewer. Of
    equally long numbers, the one nearest to `scale` comes first.
    """
    near = np.float32(scale)
    pattern = int(near.view(np.uint32))
    patterns = [pattern + step for step in range(-NEAR, NEAR + 1) if pattern + step > 0]
    floats = [np.uint32(bits).view(np.float32) for bits in patterns]
    return sorted(floats, key=lambda f: (min(_digits(float(f)), _digits(1 / float(f))), abs(float(f) - scale)))


def _digits(number: float) -> int:
    """Return how many significant decimal digits `number` needs to round to the same float32: 1 to 7, or 9 if more."""
    single = np.float32(number)
    return next((n for n in range(1, DIGITS + 1) if np.float32(f"{number:.{n}g}") == single), DIGITS + 2)
