"""Scalar core: IEEE flags of the float32 functions, computed with integers from the operand and the rounded result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.core.elementary.corrections import EDGES
from fpsim.core.elementary.steps import INFINITY_32, MAGNITUDE_32, times
from fpsim.core.pack import DIVIDE_BY_ZERO, INEXACT, INVALID, NO_FLAG, OVERFLOW, UNDERFLOW
from fpsim.runtime.compile import scalar

u32, u64 = np.uint32, np.uint64

QUIET_FROM = u32(0x7FC00000)
SMALLEST_NORMAL = u32(0x00800000)
ONE_32, MINUS_ONE = u32(0x3F800000), u32(0xBF800000)
MANTISSA, HIDDEN = u32(0x7FFFFF), u32(0x800000)
ZERO_32, ONE = u32(0), u32(1)
LONG_ROOT = u32(0xFFFF)  # bits that are 0 in a float32 cube root of 8 bits

Predicate = Callable[[Any, Any], Any]


@scalar
def _is_power(magnitude: Any) -> Any:
    """Return whether the positive finite float32 with the uint32 bits `magnitude` is a power of two."""
    subnormal = magnitude < SMALLEST_NORMAL
    word = magnitude if subnormal else u32(magnitude & MANTISSA)
    return u32(word & u32(word - ONE)) == ZERO_32 if subnormal else word == ZERO_32


@scalar
def _exponent(magnitude: Any) -> Any:
    """Return 160 + e as a uint32 for the float32 2**e, whose uint32 bits are `magnitude`."""
    field = u32(magnitude >> u32(23))
    place = ZERO_32
    for bit in range(23):
        place = u32(bit) if u32(magnitude >> u32(bit)) == ONE else place
    return u32(field + u32(160 - 127)) if field != ZERO_32 else u32(place + u32(160 - 149))


@scalar
def _integer(x: Any, y: Any) -> Any:
    """Return whether 2**x is exact in float32, for a float32 x other than 0: x is an integer, and y is not 0 or Inf.

    x, y: uint32 bits of x and of 2**x rounded to float32.
    """
    magnitude = u32(x & MAGNITUDE_32)
    field = u32(magnitude >> u32(23))
    shift = u32(min(u32(max(field, u32(127)) - u32(127)), u32(23)))
    fraction = u32(u32(MANTISSA >> shift) & magnitude)
    is_integer = (field >= u32(127)) & (fraction == ZERO_32)
    return is_integer & (y != ZERO_32) & (y != INFINITY_32)


@scalar
def _power_of_two(x: Any, y: Any) -> Any:
    """Return whether |x| is a power of two; x: uint32 bits of a finite float32; y is not used."""
    return _is_power(u32(x & MAGNITUDE_32))


@scalar
def _power_of_four(x: Any, y: Any) -> Any:
    """Return whether x is a power of four; x: uint32 bits of a positive finite float32; y is not used."""
    return _is_power(x) & (u32(_exponent(x) & ONE) == ZERO_32)


@scalar
def _inverse_of_power(x: Any, y: Any) -> Any:
    """Return whether |x| is a power of two and y is not infinite; x, y: uint32 bits of operand and result."""
    return _is_power(u32(x & MAGNITUDE_32)) & (u32(y & MAGNITUDE_32) != INFINITY_32)


@scalar
def _cube(x: Any, y: Any) -> Any:
    """Return whether y**3 equals x exactly; x, y: uint32 bits of operand and result, of one sign.

    A root of more than 8 bits has a cube of more than 24 bits, which is no float32.
    """
    root = np.float64(u32(y & MAGNITUDE_32).view(np.float32))
    value = np.float64(u32(x & MAGNITUDE_32).view(np.float32))
    return (u32(y & LONG_ROOT) == ZERO_32) & (times(times(root, root), root) == value)  # exact products


# Whether a result is exact, from the bits of an operand other than 0 and Inf and of the result: docs/elementary.md.
_never: Predicate = scalar(lambda x, y: False)  # of the functions that are not listed
EXACT: dict[str, Predicate] = {
    "exp2": _integer, "log": scalar(lambda x, y: x == ONE_32), "log2": _power_of_two, "rsqrt": _power_of_four,
    "reciprocal": _inverse_of_power, "cbrt": _cube,
}  # fmt: skip


def _edge_of(pairs: tuple[tuple[int, int, int], ...]) -> Any:
    """Return the compiled function `(bits of x, before)`: 1 if x is in `pairs` and its result counts as tiny, else 0.

    The bits and the result are uint32. before: nonzero if tininess is detected before rounding. pairs: (bits of x, 1 if
    tiny when detected after rounding, 1 if tiny when detected before it) for each input whose result rounds to 2**-126,
    the smallest normal float32.
    """
    text = "u32(0)"
    for source, after, before in pairs:
        text = f"u32({before} if before else {after}) if x == u32({source:#x}) else ({text})"
    function = eval(f"lambda u32: lambda x, before: {text}")(u32)
    function.__qualname__ = "edge"
    return scalar(function)


def flags_function(name: str) -> Any:
    """Return the compiled function `(bits of x, bits of the result, before) -> flags` of the float32 function `name`.

    Bits are uint32. before: 1 if tininess is detected before rounding, else 0. flags: a uint64 of bits of `fp.Flags`.
    name: one of the elementary functions, such as "exp".
    """
    is_exact, is_edge = EXACT.get(name, _never), _edge_of(EDGES[name])
    pole_at_zero, pole_at_minus_one = name in ("log", "log2", "rsqrt", "reciprocal"), name == "log1p"
    exact_at_zero = name != "softplus"

    @scalar
    def flags(x: Any, y: Any, before: Any) -> Any:
        """Return the IEEE flags of evaluating the function at x, as a uint64 of bits of `fp.Flags`.

        x, y: uint32 bits of operand and result; before: 1 if tininess is detected before rounding, else 0.
        """
        magnitude, result = u32(x & MAGNITUDE_32), u32(y & MAGNITUDE_32)
        is_zero = magnitude == ZERO_32
        pole = (is_zero & pole_at_zero) | ((x == MINUS_ONE) & pole_at_minus_one)
        exact = (is_zero & exact_at_zero) | (magnitude == INFINITY_32) | ((not is_zero) & is_exact(x, y))
        tiny = (result < SMALLEST_NORMAL) | ((result == SMALLEST_NORMAL) & (is_edge(x, before) != ZERO_32))
        raised = u64(INEXACT | (UNDERFLOW if tiny else NO_FLAG))
        raised = u64(OVERFLOW | INEXACT) if result == INFINITY_32 else raised
        raised = NO_FLAG if exact else raised
        raised = DIVIDE_BY_ZERO if pole else raised
        signalling = (magnitude > INFINITY_32) & (magnitude < QUIET_FROM)
        invalid = signalling | ((result > INFINITY_32) & (magnitude <= INFINITY_32))
        quiet = (magnitude > INFINITY_32) & (not signalling)
        return INVALID if invalid else (NO_FLAG if quiet else raised)

    return flags
