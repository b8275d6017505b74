"""Scalar core: float64 operations that elementary functions consist of, written so that no compiler fuses them.

Compilers for CUDA fuse `a * b + c` even without fast math, so every product of these functions is `times`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from fpsim.runtime.compile import scalar
from fpsim.runtime.vectors import call

f32, f64 = np.float32, np.float64
i64, u32, u64 = np.int64, np.uint32, np.uint64

SIGN_32, MAGNITUDE_32 = u32(0x80000000), u32(0x7FFFFFFF)
INFINITY_32 = u32(0x7F800000)
NAN_32 = u32(0x7FC00000)  # quiet, without a sign
SHIFTER = f64(1.5 * 2.0**52)  # a sum with it is rounded to an integer, which its lowest bits hold
EXPONENT_SHIFT, ONE_BITS = i64(52), i64(1023 << 52)
ODD = i64(1)

if numba.config.DISABLE_JIT:

    def times(x: Any, y: Any) -> Any:
        """Return x * y of two float64 numbers, rounded once to float64; no compiler fuses it with a sum."""
        return x * y

else:

    @intrinsic  # type: ignore[untyped-decorator]
    def times(_typing: Any, x: Any, y: Any) -> Any:
        """Return x * y of two float64 numbers, rounded once to float64; no compiler fuses it with a sum.

        _typing: Numba's typing context, which callers do not pass.
        """

        def build(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
            if type(context).__name__.startswith("CUDA"):
                return call(builder, "llvm.nvvm.mul.rn.d", args[0].type, *args)
            return builder.fmul(*args)

        return types.float64(types.float64, types.float64), build


def polynomial(coefficients: tuple[float, ...]) -> Callable[[Any], Any]:
    """Return the compiled function that evaluates a polynomial at a float64 by Horner's rule, in float64.

    coefficients: those of x**0, x**1, x**2, ...; at least one.
    """
    # numba does not unroll a loop over a tuple for certain, so the expression is written out
    text = repr(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        text = f"times({text}, x) + {coefficient!r}"
    function = eval(f"lambda times: lambda x: {text}")(times)
    function.__qualname__ = "polynomial"
    evaluator: Callable[[Any], Any] = scalar(function)
    return evaluator


def replaced(pairs: tuple[tuple[int, int], ...]) -> Callable[[Any, Any], Any]:
    """Return the compiled function `(bits of x, bits of y)` that corrects the results y of a function at listed inputs.

    It returns the listed result if x is listed, else y unchanged. pairs: (bits of x, correct bits of the result). All
    bits are uint32 patterns of float32.
    """
    text = "y"
    for source, result in pairs:
        text = f"u32({result:#x}) if x == u32({source:#x}) else ({text})"
    function = eval(f"lambda u32: lambda x, y: {text}")(u32)
    function.__qualname__ = "replaced"
    chooser: Callable[[Any, Any], Any] = scalar(function)
    return chooser


@scalar
def bits_of(x: Any) -> Any:
    """Return the bits of the float32 x as a uint32."""
    return u32(f32(x).view(np.uint32))


@scalar
def float_of(bits: Any) -> Any:
    """Return the float32 that has the given bits, a uint32."""
    return u32(bits).view(np.float32)


@scalar
def narrowed(y: Any) -> Any:
    """Return the uint32 bits of the float64 y rounded to float32, to nearest even."""
    return u32(f32(y).view(np.uint32))


@scalar
def sum_to_odd(large: Any, small: Any) -> Any:
    """Return large + small rounded to odd in float64; large, small: float64 with |large| >= |small|, or large is 0.

    An inexact sum gets an odd last bit, so that rounding it again, to float32, equals rounding the exact sum.
    """
    total = large + small
    error = small - (total - large)
    bits = i64(f64(total).view(np.int64))
    outward = (error > f64(0)) == (total > f64(0))
    moved = i64(bits + (ODD if outward else i64(-1)))
    inexact_even = (error != f64(0)) & (i64(bits & ODD) == i64(0))
    return i64(moved if inexact_even else bits).view(np.float64)


@scalar
def power_of_two(shifted: Any) -> Any:
    """Return 2**k as a float64, -1022 <= k <= 1023; shifted: the float64 k + SHIFTER, whose lowest bits hold k."""
    return i64(i64(i64(f64(shifted).view(np.int64)) << EXPONENT_SHIFT) + ONE_BITS).view(np.float64)
